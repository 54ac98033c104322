//! Defines the connection between an operation and a device's stream.

/// Connects an operation to a device's stream through words in host memory. The engine calls these
/// methods on the polling thread with its lock held, so an implementation must do nothing except
/// load and store memory.
pub trait Gate: Send {
    /// Returns `true` if the operation may begin.
    fn is_ready(&self) -> bool;
    /// Returns `true` if the stream has reached the operation. If it has, but [`Gate::is_ready`]
    /// returns `false`, the stream is waiting for peers.
    fn is_reached(&self) -> bool {
        self.is_ready()
    }
    /// Lets the stream continue, because the operation has ended. This method is called only once.
    fn open(&self, succeeded: bool);
}
