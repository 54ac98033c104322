//! The device that a command works on.

use ringtree::Result;
use ringtree::device::Device;
use ringtree::device::cuda::{self, Cuda};
use ringtree::device::fake::{Fake, Options};
use std::sync::Arc;

/// Set to 1, `bench` takes the pretended device where it would take a GPU: to try a command line on
/// a machine that has none. Its times say nothing.
pub(crate) const FAKE: &str = "RINGTREE_FAKE_DEVICE";

/// Whether the pretended device was asked for.
pub(crate) fn is_fake() -> bool {
    std::env::var(FAKE).is_ok_and(|value| value.trim() == "1")
}

/// The GPU of the rank `local_rank` of a host, or the pretended one as `options` say.
///
/// # Errors
/// [`ringtree::Error::NoDevice`] says in one line why there is no GPU.
pub(crate) fn open(local_rank: usize, fake: Option<Options>) -> Result<Arc<dyn Device>> {
    Ok(match fake {
        Some(options) => Arc::new(Fake::with(options)),
        None => Arc::new(Cuda::open(local_rank % cuda::count()?)?),
    })
}
