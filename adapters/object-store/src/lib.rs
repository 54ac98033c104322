//! Checkpoints of [ringtree](ringtree::ddp::checkpoint) in an object store, so that any machine can
//! go on with a training.
//!
//! *Purpose.* [`Bucket`] is a [`Store`] behind a URL: `s3://bucket/prefix` (also of another server
//! that speaks S3), `az://container/prefix`. [`store_at`] takes a URL or a path,
//! as a command line does.
//!
//! *Credentials* come from the environment under the names that each provider's own tools use:
//! `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT` (another server that
//! speaks S3), `AWS_ALLOW_HTTP`; `AZURE_STORAGE_ACCOUNT_NAME` and `AZURE_STORAGE_ACCOUNT_KEY`; or from
//! the machine's own role.
//!
//! *Tried* with emulators alone, also with ranks killed while they save: S3 with moto and s3s-fs,
//! Azure with Azurite. No provider's own servers have been, nor a machine's role. Google Cloud
//! Storage is not supported, and `gs://` is refused.
//!
//! *Invariants.* An object is there whole or not at all: a small one is put at once, a large one
//! as parts that become an object when the last is there. Every request ends: a server that does
//! not answer is an error with the URL, after [`PATIENCE`] for each request.
//!
//! ```no_run
//! use ringtree::ddp::checkpoint::Checkpoints;
//!
//! # fn main() -> ringtree::Result<()> {
//! let store = ringtree_object_store::store_at("s3://models/first-try")?;
//! let checkpoints = Checkpoints::new(store, 3);
//! let newest = checkpoints.latest()?;
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bucket;
mod connect;

pub use bucket::Bucket;
pub use connect::PATIENCE;

use ringtree::Result;
use ringtree::ddp::checkpoint::{Directory, Store};

/// The store at `place`: a bucket if it is a URL, a folder if it is a path.
///
/// ```
/// use ringtree::ddp::checkpoint::Store;
/// # fn main() -> ringtree::Result<()> {
/// assert_eq!(ringtree_object_store::store_at("/tmp/run")?.location(), "/tmp/run");
/// assert!(ringtree_object_store::store_at("ftp://host/run").is_err());
/// # Ok(()) }
/// ```
///
/// # Errors
/// As [`Bucket::open`].
pub fn store_at(place: &str) -> Result<Box<dyn Store>> {
    if place.contains("://") {
        return Ok(Box::new(Bucket::open(place)?));
    }
    Ok(Box::new(Directory::new(place)))
}
