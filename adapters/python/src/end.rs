//! Describes the two ends of a message.

use std::sync::{Arc, OnceLock};

/// The rank that sent a message. Empty until the message has been received.
pub(crate) type Sender = Arc<OnceLock<usize>>;

/// One end of a message.
#[derive(Clone)]
pub(crate) enum End {
    To(usize),
    From(usize),
    FromAny(Sender),
}
