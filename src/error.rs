//! Defines the error type, which reports the rank, the call, the cause and the next step.
//!
//! *May import* the base files, and `plan` for the names of the collectives.

use crate::limits::{ERROR_BYTES_MAX, NAME_BYTES_MAX, PLACES_MAX};
use crate::plan::{Collective, PlanError};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The result of a fallible call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error type returned by all calls. It has a one-line message for people to read and fields
/// for programs to inspect.
///
/// After any error except [`ErrorKind::Usage`], the communicator is unusable. Every later call on
/// it returns the first error again. The contents of the buffers passed to the failed calls are
/// unspecified. See [`Communicator`](crate::Communicator#errors) for details.
///
/// `Display` prints one line that names the ranks, the call, the cause and the next step. If the
/// text is longer than 4 KiB, its middle is replaced with a marker. `Debug` prints the same line,
/// so this line is also what is shown if `main` returns the error. `{:#?}` prints the kind and the
/// known fields.
///
/// Rank numbers refer to the communicator that returned the error. All ranks get the first error,
/// with the same line and the same fields. `docs/errors.md#limits-of-detection` lists the
/// exceptions to this rule.
///
/// ```
/// use ringtree::plan::Collective;
/// use ringtree::{ErrorKind, sim::{World, sleep}};
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
/// assert_eq!(error.kind(), ErrorKind::Deadline, "{error}");
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
    /// At most [`PLACES_MAX`] ranks.
    missing: Vec<usize>,
    /// Total number of missing ranks, including those that are not in `missing` because there are
    /// more than [`PLACES_MAX`].
    missing_count: u32,
    elapsed: Option<Duration>,
    /// Text of an error in another communicator that caused this error. `Display` appends it to the
    /// line.
    origin: Option<Text>,
    #[serde(skip)]
    source: Source,
}

/// The text of an error. It has at most [`ERROR_BYTES_MAX`] bytes, even if a peer sent it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String")]
struct Text(String);

/// Marker that replaces the middle of a text that is too long.
const CUT: &str = " [... cut ...] ";

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text.cut(ERROR_BYTES_MAX))
    }
}

/// Text that a peer may have sent. It can be as long as an entire message.
pub(crate) trait PeerText {
    /// Shortens the text to `bytes_max` bytes. Keeps the beginning, which states what failed, and
    /// the end, which contains the advice or the last line of a traceback.
    fn cut(self, bytes_max: usize) -> Self;
}

impl PeerText for String {
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

impl<T> PeerText for std::result::Result<T, String> {
    fn cut(self, bytes_max: usize) -> Self {
        self.map_err(|text| text.cut(bytes_max))
    }
}

impl PeerText for Vec<(String, String)> {
    fn cut(self, bytes_max: usize) -> Self {
        let cut = |(one, other): (String, String)| (one.cut(bytes_max), other.cut(bytes_max));
        self.into_iter().map(cut).collect()
    }
}

/// Decodes a name that a peer has sent, and shortens it if it is too long. For use with
/// `deserialize_with` on message fields.
pub(crate) fn decode_name<'de, D, T>(from: D) -> std::result::Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + PeerText,
{
    Ok(T::deserialize(from)?.cut(NAME_BYTES_MAX))
}

/// Like [`decode_name`], but decodes a line of text.
pub(crate) fn decode_line<'de, D, T>(from: D) -> std::result::Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + PeerText,
{
    Ok(T::deserialize(from)?.cut(ERROR_BYTES_MAX))
}

/// The cause of an error that occurred in this process. It is not sent to other ranks. It is
/// ignored when errors are compared because the text already describes it.
#[derive(Clone, Default)]
struct Source(Option<Arc<dyn std::error::Error + Send + Sync>>);

impl PartialEq for Source {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Source {}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $($make:ident)?,)*) => {
        /// The kinds of [`Error`]. The documentation for each kind explains what the caller can do
        /// about it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum ErrorKind { $($(#[$doc])* $kind,)* }

        impl Error {
            $($(
                /// Creates an error of this kind with the one-line message `text`.
                pub(crate) fn $make(text: impl Into<String>) -> Self {
                    Self::new(ErrorKind::$kind, text)
                }
            )?)*
        }
    };
}

kinds! {
    /// The call was invalid: for example, the root of a broadcast was out of range, a bitwise
    /// reduction was requested for floats, or a rank sent a message to itself. Nothing was sent,
    /// unless the documentation of the call states otherwise. Correct the program. The communicator
    /// remains usable. See `docs/errors.md#usage`.
    Usage usage,
    /// A setting is missing, misspelled or malformed. Correct the setting that the message names.
    /// See `docs/errors.md#configuration`.
    Configuration configuration,
    /// The ranks could not be connected. Fix the cause that the message names, and restart the
    /// job. See `docs/errors.md#join`.
    Join join,
    /// Different ranks made different calls. Correct the program: all ranks must issue the
    /// operations of a communicator in the same order and with the same arguments. See
    /// `docs/errors.md#mismatch`.
    Mismatch mismatch,
    /// A rank died, or left while another rank still needed it. [`Error::peer`] returns the lost
    /// rank. Read the last output of that rank, and restart the job from a checkpoint. See
    /// `docs/errors.md#peerlost`.
    PeerLost,
    /// A call did not complete before its deadline. The message and [`Error::missing`] name the
    /// missing ranks if they are known. Check those ranks, or raise the timeout if they are only
    /// slow. See `docs/errors.md#deadline`.
    Deadline deadline,
    /// A peer sent data that no plan accounts for. Check that all ranks are running the same build.
    /// If they are, report a bug. See `docs/errors.md#protocol`.
    Protocol protocol,
    /// Something that the call needs is unavailable: in most cases, the operating system refused a
    /// request. The message names the cause. In the process where the error occurred,
    /// [`source`](std::error::Error::source) returns the I/O error if there is one. Fix the cause.
    /// See `docs/errors.md#system`.
    System system,
    /// There is no usable GPU on this host. Fix the cause that the message names, or use host
    /// memory instead. See `docs/errors.md#nodevice`.
    NoDevice no_device,
    /// A GPU or its driver failed. The message names the driver function and the cause. If a kernel
    /// failed, restart the process. See `docs/errors.md#device`.
    Device device,
}

impl Error {
    /// Creates an error with the one-line message `text`.
    ///
    /// ```
    /// use ringtree::{Error, ErrorKind};
    /// let error = Error::new(ErrorKind::System, "the disk is full");
    /// assert!(error.is_fatal() && error.to_string() == "the disk is full");
    /// ```
    #[must_use]
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self(Box::new(Details {
            kind,
            text: Text::from(text.into()),
            collective: None,
            sequence: None,
            rank: None,
            peer: None,
            missing: Vec::new(),
            missing_count: 0,
            elapsed: None,
            origin: None,
            source: Source::default(),
        }))
    }

    /// Creates an error of kind [`ErrorKind::PeerLost`]. `text` describes how the rank `peer` was
    /// lost, and in which call.
    pub(crate) fn peer_lost(peer: usize, text: impl Into<String>) -> Self {
        Self::new(ErrorKind::PeerLost, text).with_peer(peer)
    }

    /// Creates an error of kind [`ErrorKind::System`] that reports that the action described by
    /// `what` failed with `error`. The [`source`](std::error::Error::source) of the new error is a
    /// copy of `error`.
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

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns `false` if the kind is [`ErrorKind::Usage`]: nothing was sent, and the communicator
    /// still works, unless the documentation of the call states otherwise. Returns `true` for all
    /// other kinds: create a new communicator, or restart the job.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.0.kind != ErrorKind::Usage
    }

    /// Returns the collective in which the error occurred. Returns `None` if the call was a send or
    /// receive, if the error occurred outside any call, or if the call is not known.
    #[must_use]
    pub fn collective(&self) -> Option<Collective> {
        self.0.collective
    }

    /// Returns the sequence number of the call in which the error occurred. Collectives are
    /// numbered starting from 1 in each communicator. Messages are numbered starting from 1 for
    /// each pair of sender and receiver.
    #[must_use]
    pub fn sequence(&self) -> Option<u64> {
        self.0.sequence
    }

    /// Returns the rank that detected the error. If the error is a mismatch detected by two ranks,
    /// returns the lower of the two.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        self.0.rank
    }

    /// Returns the other rank that the error concerns. This is the rank that was lost, the rank
    /// that sent invalid data or, for a mismatch, the higher of the two ranks that made different
    /// calls.
    ///
    /// Returns `None` if that rank is not a member of this communicator, because the members of a
    /// group can also learn of the death of a rank outside the group.
    #[must_use]
    pub fn peer(&self) -> Option<usize> {
        self.0.peer
    }

    /// Returns the ranks that were holding up the call that timed out, if they are known. The list
    /// contains at most the first [`PLACES_MAX`] of these ranks. [`Error::missing_count`] counts
    /// all of them.
    #[must_use]
    pub fn missing(&self) -> &[usize] {
        &self.0.missing
    }

    /// Returns the number of ranks that this rank knew to be holding up the call that timed out. If
    /// the group is large, there may have been more.
    #[must_use]
    pub fn missing_count(&self) -> usize {
        self.0.missing_count as usize
    }

    /// Returns how long the call had been in flight, if it timed out.
    #[must_use]
    pub fn elapsed(&self) -> Option<Duration> {
        self.0.elapsed
    }

    /// Sets the call in which the error occurred. `sequence` is its sequence number. Pass `None` as
    /// `collective` if the call is a send or receive.
    pub(crate) fn with_call(mut self, collective: Option<Collective>, sequence: u64) -> Self {
        self.0.collective = collective;
        self.0.sequence = Some(sequence);
        self
    }

    /// Sets the rank that detected the error.
    pub(crate) fn with_rank(mut self, rank: usize) -> Self {
        self.0.rank = Some(rank);
        self
    }

    /// Sets the other rank that the error concerns.
    pub(crate) fn with_peer(mut self, peer: usize) -> Self {
        self.0.peer = Some(peer);
        self
    }

    /// Sets the ranks that were holding up the call. Only the first [`PLACES_MAX`] ranks are kept,
    /// but all of them are counted.
    pub(crate) fn with_missing(mut self, ranks: impl IntoIterator<Item = usize>) -> Self {
        let mut ranks = ranks.into_iter();
        let missing: Vec<usize> = ranks.by_ref().take(PLACES_MAX).collect();
        let count = missing.len() + ranks.count();
        self.0.missing = missing;
        self.0.missing_count = u32::try_from(count).unwrap_or(u32::MAX);
        self
    }

    /// Sets the time for which the call had been in flight.
    pub(crate) fn with_elapsed(mut self, elapsed: Duration) -> Self {
        self.0.elapsed = Some(elapsed);
        self
    }

    /// Sets the underlying cause in this process. The cause is not sent to other ranks, so the text
    /// should describe it too.
    pub(crate) fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.0.source = Source(Some(Arc::from(source.into())));
        self
    }

    /// Sets the error in another communicator that caused this error. If `cause` was itself caused
    /// by an error in another communicator, uses that error instead, so that the line shows the
    /// first error in a chain of causes.
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

    /// Returns `true` if the ranks and the number of missing ranks are possible in a world of
    /// `world_size` ranks. An error received from a peer can contain arbitrary values.
    pub(crate) fn is_possible(&self, world_size: usize) -> bool {
        self.0.missing.len() <= PLACES_MAX
            && self.0.missing_count as usize <= world_size
            && self.ranks().all(|rank| rank < world_size)
    }

    /// Renumbers the ranks in the fields, and removes those for which `number` returns `None`. The
    /// text keeps the old rank numbers, so `note`, which can explain them, is appended to it.
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

    /// Removes all ranks if the error must come from a world of more than `world_size` ranks,
    /// because its rank numbers are meaningless in this world.
    pub(crate) fn within(mut self, world_size: usize) -> Self {
        if !self.is_possible(world_size) {
            self.0.rank = None;
            self.0.peer = None;
            self.0.missing.clear();
            self.0.missing_count = 0;
        }
        self
    }
}

/// Text that is safe to print on a terminal. Control characters are escaped because parts of the
/// text may come from other processes.
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

/// Converts a plan error to an error of kind [`ErrorKind::Usage`].
impl From<PlanError> for Error {
    fn from(error: PlanError) -> Self {
        Self::usage(error)
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

/// Prints the same line as `Display`, because a `main` that returns `ringtree::Result<()>` shows
/// the `Debug` output. `{:#?}` prints the kind, the text and the known fields. It does not print
/// the source because errors that compare equal must look the same.
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
        let count = Some(&details.missing_count).filter(|count| **count as usize > PLACES_MAX);
        known("missing_count", count.map(|one| one as _));
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
mod tests;
