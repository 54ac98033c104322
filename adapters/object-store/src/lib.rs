//! Stores [ringtree checkpoints](ringtree::ddp::checkpoint) in an object store, so that any machine
//! can resume a training run.
//!
//! [`Bucket`] is a [`Store`] at a URL. The URL is either `s3://bucket/prefix`, which also works
//! with other S3-compatible servers, or `az://container/prefix`. [`store_at`] accepts a URL or a
//! path, for example from a command line.
//!
//! *Credentials.* The credentials come either from the machine's role or from the environment
//! variables that the providers' own tools use:
//!
//! - S3: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT` (for another
//!   S3-compatible server) and `AWS_ALLOW_HTTP`
//! - Azure: `AZURE_STORAGE_ACCOUNT_NAME` and `AZURE_STORAGE_ACCOUNT_KEY`
//!
//! *Tests.* This crate has been tested only with emulators: S3 with moto and s3s-fs, and Azure with
//! Azurite. The tests include ranks that are killed during a save. The crate has not been tested
//! with a provider's own servers or with a machine's role. Google Cloud Storage is not supported,
//! and `gs://` URLs return an error.
//!
//! *Invariants.* An object appears either completely or not at all. A small object is sent in a
//! single request. A large object is sent in parts, which become an object only after the last part
//! has been sent. Every request ends. If a server does not answer within [`REQUEST_TIMEOUT`], the
//! request returns an error that contains the URL.
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
pub use connect::REQUEST_TIMEOUT;

use ringtree::Result;
use ringtree::ddp::checkpoint::{Directory, Store};

/// Returns the store at `place`, which is a bucket if `place` is a URL and a directory if it is a
/// path.
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
/// Returns the same errors as [`Bucket::open`].
pub fn store_at(place: &str) -> Result<Box<dyn Store>> {
    if place.contains("://") {
        return Ok(Box::new(Bucket::open(place)?));
    }
    Ok(Box::new(Directory::new(place)))
}
