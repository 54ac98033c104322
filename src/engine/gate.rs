//! What an operation on a device's memory waits for, and what waits for it.

/// Ties an operation to a device's stream by words in host memory. The engine calls it from the
/// polling thread with its lock held: an implementation only loads and stores memory.
pub trait Gate: Send {
    /// Whether the operation may begin.
    fn is_ready(&self) -> bool;
    /// Whether the stream has come to the operation: if it has, and the operation may not begin,
    /// then peers hold it up.
    fn has_come(&self) -> bool {
        self.is_ready()
    }
    /// The operation has ended, with a result or without one: the stream may go on. Called once.
    fn open(&self, succeeded: bool);
}
