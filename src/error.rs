//! The error type: which rank, in which call, why, and what the caller can do next.
//! It may import the base files and `plan`, for the names of the collectives.

use crate::limits::{ERROR_BYTES_MAX, NAME_BYTES_MAX, PLACES_MAX};
use crate::plan::spec::Collective;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The result of a fallible call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong: one line for people, and fields for programs.
///
/// After any error but [`ErrorKind::Usage`] the communicator is unusable: every later call on it
/// returns the same first error, and the contents of the buffers are unspecified.
///
/// The line (by `Display`) names the ranks, the call, the cause and what to do next. `Debug` is the
/// same line, so that a `main` which returns the error shows it; `{:#?}` shows kind and fields. The
/// fields hold what of this is known; ranks are numbers of the communicator that the error comes
/// from. All ranks get the first error with the same line and the same fields. Of a text of more
/// than 4 KiB the middle is cut out, and the line says so.
///
/// ```
/// use ringtree::{Collective, sim::simulate::{World, sleep}};
/// use std::time::Duration;
/// let mut world = World::new(3);
/// world.timeout = Duration::from_secs(2);
/// let ends = world.run(|comm| {
///     if comm.rank() == 1 {
///         sleep(comm, Duration::from_secs(60));
///     }
///     comm.barrier()
/// });
/// let error = ends[0].as_ref().unwrap_err();
/// assert!(error.is_timeout(), "{error}");
/// assert_eq!((error.collective(), error.sequence()), (Some(Collective::Barrier), Some(1)));
/// assert_eq!(error.missing(), [1]);
/// assert!(error.elapsed() >= Some(Duration::from_secs(2)));
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error(Box<Details>);

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Details {
    kind: ErrorKind,
    text: Text,
    collective: Option<Collective>,
    sequence: Option<u64>,
    rank: Option<usize>,
    peer: Option<usize>,
    /// At most [`PLACES_MAX`].
    missing: Vec<usize>,
    elapsed: Option<Duration>,
    /// The failure of another communicator that this one comes from; the line ends with it.
    origin: Option<Text>,
    #[serde(skip)]
    source: Source,
}

/// What an error says: at most [`ERROR_BYTES_MAX`], whether it is made here or comes from a peer.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String")]
struct Text(String);

/// Stands where the middle of a text was.
const CUT: &str = " [... cut ...] ";

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text.cut(ERROR_BYTES_MAX))
    }
}

/// Text in a message, which a peer may make as long as the message.
pub(crate) trait Told {
    /// The text, cut to `bytes_max`. A longer one keeps its beginning, which says what failed, and
    /// its end, which has the advice or a traceback's last line.
    fn cut(self, bytes_max: usize) -> Self;
}

impl Told for String {
    fn cut(mut self, bytes_max: usize) -> Self {
        if self.len() > bytes_max {
            let kept = (bytes_max - CUT.len()) / 2;
            let is_boundary = |at: &usize| self.is_char_boundary(*at);
            let start = (0..=kept).rev().find(is_boundary).unwrap_or(0);
            let end = (self.len() - kept..)
                .find(is_boundary)
                .unwrap_or(self.len());
            self.replace_range(start..end, CUT);
        }
        self
    }
}

impl<T> Told for std::result::Result<T, String> {
    fn cut(self, bytes_max: usize) -> Self {
        self.map_err(|text| text.cut(bytes_max))
    }
}

impl Told for Vec<(String, String)> {
    fn cut(self, bytes_max: usize) -> Self {
        let cut = |(one, other): (String, String)| (one.cut(bytes_max), other.cut(bytes_max));
        self.into_iter().map(cut).collect()
    }
}

/// Decodes a name that a peer tells. For the fields of messages, by `deserialize_with`.
pub(crate) fn told_name<'de, D, T>(from: D) -> std::result::Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Told,
{
    Ok(T::deserialize(from)?.cut(NAME_BYTES_MAX))
}

/// Like [`told_name`], but decodes a line of text.
pub(crate) fn told_line<'de, D, T>(from: D) -> std::result::Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Told,
{
    Ok(T::deserialize(from)?.cut(ERROR_BYTES_MAX))
}

/// What an error comes from, in this process. It does not travel, and it does not count when
/// errors are compared: their text says what it is.
#[derive(Clone, Default)]
struct Source(Option<Arc<dyn std::error::Error + Send + Sync>>);

impl PartialEq for Source {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Source {}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $is:ident $($make:ident)?,)*) => {
        /// The kinds of [`Error`]. Each one's documentation ends with what the caller can do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum ErrorKind { $($(#[$doc])* $kind,)* }

        impl Error {
            $(
                #[doc = concat!("Whether the kind is [`ErrorKind::", stringify!($kind), "`].")]
                #[must_use]
                pub fn $is(&self) -> bool {
                    self.0.kind == ErrorKind::$kind
                }
            )*

            $($(
                #[doc = concat!("An error of the kind [`ErrorKind::", stringify!($kind),
                    "`] with this one line of text.")]
                #[must_use]
                pub fn $make(text: impl Into<String>) -> Self {
                    Self::new(ErrorKind::$kind, text.into())
                }
            )?)*
        }
    };
}

kinds! {
    /// The call itself was wrong (a root that is no rank, a bit operator on floats, a
    /// message to the rank itself). Nothing was sent. *Correct the call; the communicator is fine.*
    Usage is_usage usage,
    /// A setting is missing or malformed. *Correct the setting that the message names.*
    Configuration is_configuration configuration,
    /// The ranks could not be brought together. *The message names what to check; start again.*
    Join is_join join,
    /// Ranks issued different calls. *Correct the program: all ranks issue the operations of a
    /// communicator in the same order with the same arguments.*
    Mismatch is_mismatch mismatch,
    /// A rank died, or left while another still needed it: [`Error::peer`]. *Restart the job, from
    /// a checkpoint.*
    PeerLost is_peer_lost,
    /// A call did not finish by its deadline: the text says which ranks are missing and where, as
    /// far as this is known, and so does [`Error::missing`]. *Look at those ranks; raise the
    /// timeout if they are merely slow.*
    Deadline is_timeout deadline,
    /// A peer sent bytes that no plan accounts for. *Report it; the connection was closed.*
    Protocol is_protocol protocol,
    /// The operating system refused something. *The message names the call and the cause, which is
    /// also the [`source`](std::error::Error::source) where this process saw it.*
    System is_system system,
    /// There is no GPU that could be used here; the message says why. *Use host memory, or mend
    /// what the message names.*
    NoDevice is_no_device no_device,
    /// A GPU, or its driver, refused or failed something. *The message names the call and the
    /// cause; after a failed kernel the process must be started again.*
    Device is_device device,
}

impl Error {
    fn new(kind: ErrorKind, text: String) -> Self {
        Self(Box::new(Details {
            kind,
            text: text.into(),
            collective: None,
            sequence: None,
            rank: None,
            peer: None,
            missing: Vec::new(),
            elapsed: None,
            origin: None,
            source: Source::default(),
        }))
    }

    /// Rank `peer` is lost; the text says what was seen, in which call.
    ///
    /// ```
    /// let error = ringtree::Error::peer_lost(3, "rank 3 is gone: connection reset");
    /// assert!(error.is_peer_lost() && error.peer() == Some(3));
    /// ```
    #[must_use]
    pub fn peer_lost(peer: usize, text: impl Into<String>) -> Self {
        Self::new(ErrorKind::PeerLost, text.into()).with_peer(peer)
    }

    /// The system error `error` that came from doing `what`. It is the error's source.
    ///
    /// ```
    /// use std::{error::Error as _, io};
    /// let refused = io::Error::from(io::ErrorKind::PermissionDenied);
    /// let error = ringtree::Error::io("writing 'weights'", &refused);
    /// assert_eq!(error.to_string(), "writing 'weights': permission denied");
    /// let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    /// assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::PermissionDenied));
    /// ```
    #[must_use]
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        // An `io::Error` cannot be cloned.
        let copy = match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(error.kind(), error.to_string()),
        };
        Self::system(format!("{what}: {error}")).with_source(copy)
    }

    /// What kind of error it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The collective in which it happened. `None` for a send or a receive, where it happened in
    /// no call, and where the call is not known.
    #[must_use]
    pub fn collective(&self) -> Option<Collective> {
        self.0.collective
    }

    /// The number of the call in which it happened: collectives count from 1 in their
    /// communicator, messages from 1 for each sender and receiver.
    #[must_use]
    pub fn sequence(&self) -> Option<u64> {
        self.0.sequence
    }

    /// The rank that saw it; of a mismatch, which two ranks see, the lower one.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        self.0.rank
    }

    /// The other rank that it is about: the one that is lost, that made another call (of the two
    /// the higher one), or that sent what it must not. `None` where it has no number in this
    /// communicator: a group hears of the death of a rank outside of it.
    #[must_use]
    pub fn peer(&self) -> Option<usize> {
        self.0.peer
    }

    /// The ranks that hold up what did not finish in time, as far as they are known: the first
    /// [`PLACES_MAX`].
    #[must_use]
    pub fn missing(&self) -> &[usize] {
        &self.0.missing
    }

    /// How long the call had been under way, where it ran out of time.
    #[must_use]
    pub fn elapsed(&self) -> Option<Duration> {
        self.0.elapsed
    }

    /// The same error, seen in call number `sequence`, of this collective if it is one.
    #[must_use]
    pub fn with_call(mut self, collective: Option<Collective>, sequence: u64) -> Self {
        self.0.collective = collective;
        self.0.sequence = Some(sequence);
        self
    }

    /// The same error, seen by `rank`.
    #[must_use]
    pub fn with_rank(mut self, rank: usize) -> Self {
        self.0.rank = Some(rank);
        self
    }

    /// The same error, which is about `peer`.
    #[must_use]
    pub fn with_peer(mut self, peer: usize) -> Self {
        self.0.peer = Some(peer);
        self
    }

    /// The same error, with the ranks that are missing; of many the first [`PLACES_MAX`].
    #[must_use]
    pub fn with_missing(mut self, ranks: impl IntoIterator<Item = usize>) -> Self {
        self.0.missing = ranks.into_iter().take(PLACES_MAX).collect();
        self
    }

    /// The same error, of a call that had been under way for so long.
    #[must_use]
    pub fn with_elapsed(mut self, elapsed: Duration) -> Self {
        self.0.elapsed = Some(elapsed);
        self
    }

    /// The same error, which comes from `source`. The text should say so, too: other ranks get no
    /// source.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.0.source = Source(Some(Arc::from(source.into())));
        self
    }

    /// The same error, which comes from `cause`, the failure of another communicator. Of causes
    /// that were handed from one to the next the first is told.
    pub(crate) fn with_origin(mut self, cause: &Error) -> Self {
        let Details { text, origin, .. } = &*cause.0;
        self.0.origin = Some(origin.as_ref().unwrap_or(text).clone());
        self
    }

    fn ranks(&self) -> impl Iterator<Item = usize> {
        let Details { rank, peer, .. } = *self.0;
        rank.into_iter()
            .chain(peer)
            .chain(self.0.missing.iter().copied())
    }

    /// Whether it can be of a world of `world_size`; a message from outside may be anything.
    pub(crate) fn is_possible(&self, world_size: usize) -> bool {
        self.0.missing.len() <= PLACES_MAX && self.ranks().all(|rank| rank < world_size)
    }

    /// The same error with other numbers for its ranks, and a `note` behind the text, which has the
    /// old ones; a rank without another number is left out.
    pub(crate) fn renumbered(
        mut self,
        number: impl Fn(usize) -> Option<usize>,
        note: &str,
    ) -> Self {
        let details = &mut *self.0;
        details.text = Text::from(format!("{}{note}", details.text.0));
        details.rank = details.rank.and_then(&number);
        details.peer = details.peer.and_then(&number);
        let missing = details.missing.iter();
        details.missing = missing.filter_map(|rank| number(*rank)).collect();
        self
    }

    /// The same error in a world of `world_size`: if it came from a larger one, whose rank numbers
    /// mean nothing here, it has none.
    pub(crate) fn within(mut self, world_size: usize) -> Self {
        if !self.is_possible(world_size) {
            self.0.rank = None;
            self.0.peer = None;
            self.0.missing.clear();
        }
        self
    }
}

/// Text as a terminal may show it: parts of it may come from other processes, so control
/// characters are written out.
pub(crate) struct Printable<'a>(pub(crate) &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.contains(char::is_control) {
            return formatter.write_str(self.0);
        }
        self.0.chars().try_for_each(|one| match one.is_control() {
            true => write!(formatter, "{}", one.escape_default()),
            false => write!(formatter, "{one}"),
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(&self.0.text.0).fmt(formatter)?;
        match &self.0.origin {
            Some(origin) => write!(formatter, ": {}", Printable(&origin.0)),
            None => Ok(()),
        }
    }
}

/// The text, as `fn main() -> ringtree::Result<()>` shows it. With `{:#?}` the kind, the text and
/// the fields that are known; no source, as equal errors look equal.
impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !formatter.alternate() {
            return fmt::Display::fmt(self, formatter);
        }
        let details = &*self.0;
        let mut fields = formatter.debug_struct(&format!("{:?}", details.kind));
        fields.field("text", &details.text.0);
        let mut known = |name, value: Option<&dyn fmt::Debug>| {
            if let Some(value) = value {
                fields.field(name, value);
            }
        };
        known(
            "collective",
            details.collective.as_ref().map(|one| one as _),
        );
        known("sequence", details.sequence.as_ref().map(|one| one as _));
        known("rank", details.rank.as_ref().map(|one| one as _));
        known("peer", details.peer.as_ref().map(|one| one as _));
        let missing = Some(&details.missing).filter(|missing| !missing.is_empty());
        known("missing", missing.map(|one| one as _));
        known("elapsed", details.elapsed.as_ref().map(|one| one as _));
        let origin = details.origin.as_ref().map(|origin| &origin.0);
        known("origin", origin.map(|one| one as _));
        fields.finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let source = self.0.source.0.as_deref()?;
        Some(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_of_a_peer_reaches_a_terminal() {
        let error = Error::join("host \u{1b}]0;x\u{7}é\n\u{9b}2J is héron");
        let line = error.to_string();
        assert_eq!(line, "host \\u{1b}]0;x\\u{7}é\\n\\u{9b}2J is héron");
        assert_eq!(format!("{error:?}"), line, "as a program's end shows it");
        let fields = format!("{error:#?}");
        assert!(fields.starts_with("Join {") && !fields.contains(['\u{1b}', '\u{7}']));
    }

    #[test]
    fn a_result_is_as_small_as_a_pointer() {
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }

    #[test]
    fn every_field_travels_but_the_source() {
        let refused = io::Error::from_raw_os_error(13);
        let error = Error::io("opening", &refused)
            .with_call(Some(Collective::Reduce), 1 << 40)
            .with_rank(3)
            .with_peer(1)
            .with_missing(0..100)
            .with_elapsed(Duration::from_millis(1500))
            .with_origin(&Error::system("another"));
        let bytes = postcard::to_stdvec(&error).unwrap();
        let told: Error = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(told, error);
        assert_eq!(told.missing(), [0, 1, 2, 3, 4, 5, 6, 7]);
        use std::error::Error as _;
        assert!(told.source().is_none() && error.source().is_some());
    }

    #[test]
    fn of_a_long_text_both_ends_are_kept_here_and_where_it_comes_from_a_peer() {
        for filling in ["a", "é", "💾", "aé", "\n"] {
            let long = format!("first {} last", filling.repeat(50_000));
            // A peer's encoder may cut nothing.
            let by_peer = postcard::to_stdvec(&long).unwrap();
            let by_peer: Text = postcard::from_bytes(&by_peer).unwrap();
            let own = Error::system(long).0.text;
            assert_eq!(own.0, by_peer.0);
            assert!((ERROR_BYTES_MAX - 8..=ERROR_BYTES_MAX).contains(&own.0.len()));
            assert!(own.0.starts_with("first ") && own.0.ends_with(" last"));
            assert!(own.0.contains(CUT));
            assert_eq!(Text::from(own.0.clone()).0, own.0);
        }
        let fits = "a".repeat(ERROR_BYTES_MAX);
        assert_eq!(Error::system(&*fits).to_string(), fits);
    }

    #[test]
    fn ranks_of_a_larger_world_do_not_enter_a_smaller_one() {
        let error = Error::peer_lost(7, "rank 7 is gone").with_rank(1);
        assert_eq!(error.clone().within(8), error);
        let inside = error.within(4);
        assert!(inside.is_peer_lost() && inside.peer().is_none() && inside.rank().is_none());
    }
}
