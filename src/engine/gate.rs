//! What ties an operation to a device's stream.

/// Ties an operation to a device's stream by words in host memory. The engine calls it from the
/// polling thread with its lock held: an implementation only loads and stores memory.
pub trait Gate: Send {
    /// Whether the stream has put the operation's input in place.
    fn is_ready(&self) -> bool;
    /// The operation has ended, with a result or without one: the stream may go on. Called once.
    fn open(&self, succeeded: bool);
}
