//! How devices are attached.

use crate::error::{Error, Result};
use crate::limits::DEVICE_SEGMENT_BYTES;
use std::fmt;

/// How the ranks of a communicator use their devices together; the same on all ranks.
///
/// ```
/// use ringtree::comm::attach::AttachOptions;
/// use ringtree::device::{Device, fake::Fake};
/// use std::sync::Arc;
///
/// let ends = ringtree::simulate(2, |comm| {
///     let device: Arc<dyn Device> = Arc::new(Fake::new());
///     comm.attach_with(&device, AttachOptions::new().segment_bytes(1 << 20))
/// });
/// assert_eq!(ends, [Ok(()), Ok(())]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachOptions {
    pub(super) segment_bytes: usize,
    pub(super) peer_access: bool,
    pub(super) hand_over: HandOver,
}

/// By whom a rank is told that a segment is in the GPU's memory, or was read there, where two ranks
/// share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandOver {
    /// By their hosts, which look at events and send each other messages. Streams of the library
    /// wait for nobody.
    #[default]
    Hosts,
    /// By their streams, which write words in the other's host memory and wait for their own. The
    /// hosts run ahead and only see the end. This takes devices with word operations; and a
    /// stream that waits keeps those of its process waiting that the driver puts in the same queue
    /// of the GPU.
    Streams,
}

impl AttachOptions {
    /// What [`Communicator::attach`](crate::Communicator::attach) uses.
    #[must_use]
    pub fn new() -> Self {
        Self {
            segment_bytes: DEVICE_SEGMENT_BYTES,
            peer_access: false,
            hand_over: HandOver::Hosts,
        }
    }

    /// By whom ranks that have mapped each other's memory hand each other segments.
    #[must_use]
    pub fn hand_over(mut self, by: HandOver) -> Self {
        self.hand_over = by;
        self
    }

    /// How much ranks hand each other at once: a multiple of 16. A slot takes as much memory, and
    /// each peer has several.
    #[must_use]
    pub fn segment_bytes(mut self, bytes: usize) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// Whether ranks of one host that use different GPUs read each other's memory too, where both
    /// GPUs can; otherwise they go through their hosts. Off unless it is asked for: it has not been
    /// seen on real GPUs.
    ///
    /// ```
    /// use ringtree::comm::attach::AttachOptions;
    /// use ringtree::device::{Device, fake::{Fake, Options}};
    /// use std::sync::Arc;
    ///
    /// # fn rank(comm: &ringtree::Communicator) -> ringtree::Result<()> {
    /// let gpu = comm.local_rank() as u8;
    /// let options = Options { gpu, peers: &[0, 1], ..Options::default() };
    /// let device: Arc<dyn Device> = Arc::new(Fake::with(options));
    /// comm.attach_with(&device, AttachOptions::new().peer_access(true))
    /// # }
    /// # let builder = ringtree::Communicator::builder().rank(0).world_size(1);
    /// # rank(&builder.rendezvous("127.0.0.1:0").connect().unwrap()).unwrap();
    /// ```
    #[must_use]
    pub fn peer_access(mut self, is_wanted: bool) -> Self {
        self.peer_access = is_wanted;
        self
    }

    /// What the environment asks for: `RINGTREE_HAND_OVER` is `hosts` or `streams`, and
    /// `RINGTREE_PEER_ACCESS` 0 or 1; otherwise as [`AttachOptions::new`].
    ///
    /// ```
    /// use ringtree::comm::attach::AttachOptions;
    /// // With neither set.
    /// assert_eq!(AttachOptions::from_env(), Ok(AttachOptions::new()));
    /// ```
    ///
    /// # Errors
    /// [`Error::Configuration`] names the variable that says something else.
    pub fn from_env() -> Result<Self> {
        Self::from_settings(|name| std::env::var(name).ok())
    }

    fn from_settings(setting: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let of = |name: &str, [default, other]: [&str; 2]| {
            let given = setting(name).unwrap_or_default();
            match given.trim() {
                "" => Ok(false),
                given if given == default => Ok(false),
                given if given == other => Ok(true),
                given => Err(Error::Configuration(format!(
                    "{name}={given}: it is {default} or {other}"
                ))),
            }
        };
        let by = match of("RINGTREE_HAND_OVER", ["hosts", "streams"])? {
            false => HandOver::Hosts,
            true => HandOver::Streams,
        };
        let peer_access = of("RINGTREE_PEER_ACCESS", ["0", "1"])?;
        Ok(Self::new().hand_over(by).peer_access(peer_access))
    }

    pub(super) fn check(self) -> Result<()> {
        let bytes = self.segment_bytes;
        if bytes == 0 || !bytes.is_multiple_of(16) {
            let why = format!("segments of {bytes} bytes: a multiple of 16 is needed");
            return Err(Error::Usage(why));
        }
        Ok(())
    }
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for AttachOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.hand_over {
            HandOver::Hosts => "hosts",
            HandOver::Streams => "streams",
        };
        let access = match self.peer_access {
            false => "without",
            true => "with",
        };
        let segment_bytes = self.segment_bytes;
        write!(
            formatter,
            "in segments of {segment_bytes} bytes, {access} peer access, handed over by {by}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_asks_or_is_told_what_is_wrong() {
        let of = |name: &'static str, value: &'static str| {
            AttachOptions::from_settings(|asked| (asked == name).then(|| value.to_owned()))
        };
        let usual = AttachOptions::new();
        for (name, default) in [
            ("RINGTREE_HAND_OVER", "hosts"),
            ("RINGTREE_PEER_ACCESS", "0"),
        ] {
            assert_eq!(of(name, default), Ok(usual));
            assert_eq!(of(name, " "), Ok(usual));
            let Err(Error::Configuration(why)) = of(name, "yes") else {
                panic!("{name}");
            };
            assert!(why.starts_with(&format!("{name}=yes: it is {default} or ")));
        }
        let streams = usual.hand_over(HandOver::Streams);
        assert_eq!(of("RINGTREE_HAND_OVER", "streams"), Ok(streams));
        assert_eq!(of("RINGTREE_PEER_ACCESS", "1"), Ok(usual.peer_access(true)));
    }
}
