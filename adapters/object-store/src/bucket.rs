//! Stores checkpoints in an object store bucket.

use crate::connect::{REQUEST_TIMEOUT, connect};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt, PutPayload};
use ringtree::ddp::checkpoint::Store;
use ringtree::{Error, ErrorKind, Result};
use std::future::Future;
use std::thread;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// Number of bytes per request. Even a slow connection can transfer this many bytes in time, and
/// the number exceeds the minimum size of an object part (5 MiB).
const PART_BYTES: usize = 8 << 20;
/// Maximum number of parts per object that every provider accepts.
const PARTS_MAX: usize = 10_000;
/// Number of concurrent requests: enough to saturate a fast connection with little memory.
const CONCURRENT_REQUESTS: usize = 4;

/// The objects under a prefix in a bucket.
///
/// Calls block, even in an asynchronous program. A request that fails is retried a few times and
/// returns an error after [`REQUEST_TIMEOUT`]. A writer that is killed may leave behind parts of an
/// object that never appears. To remove such parts, use a lifecycle rule on the bucket (on S3,
/// `AbortIncompleteMultipartUpload`).
pub struct Bucket {
    url: String,
    client: Box<dyn ObjectStore>,
    prefix: Path,
    /// Present until the bucket is dropped.
    runtime: Option<Runtime>,
}

impl Bucket {
    /// Opens the bucket and prefix at `url`, with credentials from the environment. This does not
    /// send a request to the server.
    ///
    /// # Errors
    /// Returns an [`Error`] of kind
    /// [`ErrorKind::Configuration`](ringtree::ErrorKind::Configuration) if the URL or a setting is
    /// malformed, and of kind [`ErrorKind::System`](ringtree::ErrorKind::System) if no thread can
    /// be started.
    pub fn open(url: &str) -> Result<Self> {
        let names = std::env::vars_os();
        let text = names.filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Self::open_with(url, text)
    }

    /// Like [`Bucket::open`], but uses `settings` instead of the environment.
    ///
    /// ```
    /// use ringtree_object_store::Bucket;
    /// let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    /// let bucket = Bucket::open_with(
    ///     "s3://models/first-try",
    ///     [
    ///         setting("AWS_REGION", "eu-central-1"),
    ///         setting("AWS_ACCESS_KEY_ID", "name"),
    ///         setting("AWS_SECRET_ACCESS_KEY", "secret"),
    ///     ],
    /// );
    /// assert!(bucket.is_ok());
    /// ```
    ///
    /// # Errors
    /// Returns the same errors as [`Bucket::open`].
    pub fn open_with(
        url: &str,
        settings: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self> {
        let settings: Vec<_> = settings.into_iter().collect();
        let (client, prefix) = connect(url, &settings)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|error| Error::io("cannot start a thread for the object store", &error))?;
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            client,
            prefix,
            runtime: Some(runtime),
        })
    }

    fn path(&self, name: &str) -> Path {
        self.prefix.clone().join(name)
    }

    /// Runs the future and returns its output. Uses a separate thread, because the caller's thread
    /// may belong to an asynchronous runtime, which must not block on a future.
    fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        let runtime = self
            .runtime
            .as_ref()
            .expect("invariant: present until the bucket is dropped");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| runtime.block_on(future));
            waiting
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Returns the error of the operation `what` on the object `name`.
    fn error(&self, what: &str, name: &str, cause: &Failure) -> Error {
        let cause = match cause {
            Failure::Timeout => format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()),
            Failure::Refused(error) => error.to_string(),
        };
        // Some servers respond with an HTML page. Join its lines, so that the error is a single
        // line.
        let cause: Vec<_> = cause.split_whitespace().collect();
        Error::new(
            ErrorKind::System,
            format!(
                "cannot {what} {}/{name}: {}; check that the server is up and that the bucket and \
                 the credentials are correct",
                self.url,
                cause.join(" ")
            ),
        )
    }

    async fn read_all(&self, path: &Path) -> std::result::Result<Vec<u8>, Failure> {
        let size = with_timeout(self.client.head(path)).await?.size;
        let starts = (0..size).step_by(PART_BYTES);
        let requests = starts.map(|start| {
            let end = size.min(start + PART_BYTES as u64);
            with_timeout(self.client.get_range(path, start..end))
        });
        let mut parts = stream::iter(requests).buffered(CONCURRENT_REQUESTS);
        let mut bytes = Vec::new();
        while let Some(part) = parts.try_next().await? {
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    }

    async fn write_all(&self, path: &Path, parts: &[&[u8]]) -> std::result::Result<(), Failure> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        if total <= PART_BYTES {
            let payload = PutPayload::from(parts.concat());
            return with_timeout(self.client.put(path, payload)).await.map(drop);
        }
        let mut upload = with_timeout(self.client.put_multipart(path)).await?;
        let size = PART_BYTES.max(total.div_ceil(PARTS_MAX));
        let sent = {
            let requests = pieces(parts, size)
                .map(|piece| with_timeout(upload.put_part(PutPayload::from(piece))));
            let requests = stream::iter(requests).buffered(CONCURRENT_REQUESTS);
            requests.try_collect::<Vec<()>>().await
        };
        let done = match sent {
            Ok(_) => with_timeout(upload.complete()).await.map(drop),
            Err(failure) => Err(failure),
        };
        if done.is_err() {
            // Best effort: parts without an object are invisible but cost money.
            let _ = with_timeout(upload.abort()).await;
        }
        done
    }
}

impl Store for Bucket {
    fn location(&self) -> String {
        self.url.clone()
    }

    fn list(&self) -> Result<Vec<String>> {
        let listing = with_timeout(self.client.list_with_delimiter(Some(&self.prefix)));
        let listing = self
            .wait(listing)
            .map_err(|cause| self.error("list", "", &cause))?;
        let names = listing.objects.iter().filter_map(|object| {
            let name = object.location.filename()?;
            // Some servers ignore the delimiter. Skip the objects at deeper levels that they list.
            (object.location == self.path(name)).then(|| name.to_owned())
        });
        Ok(names.collect())
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match self.wait(self.read_all(&self.path(name))) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Failure::Refused(StoreError::NotFound { .. })) => Ok(None),
            Err(cause) => Err(self.error("read", name, &cause)),
        }
    }

    fn write_atomically(&self, name: &str, parts: &[&[u8]]) -> Result<()> {
        let written = self.wait(self.write_all(&self.path(name), parts));
        written.map_err(|cause| self.error("write", name, &cause))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        match self.wait(with_timeout(self.client.delete(&path))) {
            Ok(()) | Err(Failure::Refused(StoreError::NotFound { .. })) => Ok(()),
            Err(cause) => Err(self.error("remove", name, &cause)),
        }
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        // Dropping the runtime directly would panic in an asynchronous program.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Bucket({})", self.url)
    }
}

/// The reason why a request failed.
enum Failure {
    Timeout,
    Refused(StoreError),
}

/// Runs `request` and returns an error if it takes longer than [`REQUEST_TIMEOUT`].
async fn with_timeout<T>(
    request: impl Future<Output = object_store::Result<T>>,
) -> std::result::Result<T, Failure> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(result) => result.map_err(Failure::Refused),
        Err(_) => Err(Failure::Timeout),
    }
}

/// Splits the bytes of `parts` into pieces of `size` bytes. The last piece may be shorter.
/// Creates each piece only when it is requested.
fn pieces(parts: &[&[u8]], size: usize) -> impl Iterator<Item = Vec<u8>> {
    let (mut part, mut at) = (0, 0);
    std::iter::from_fn(move || {
        let mut piece = Vec::with_capacity(size);
        while piece.len() < size && part < parts.len() {
            let rest = &parts[part][at..];
            let taken = rest.len().min(size - piece.len());
            piece.extend_from_slice(&rest[..taken]);
            at += taken;
            if at == parts[part].len() {
                (part, at) = (part + 1, 0);
            }
        }
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_equal_size_and_preserve_all_bytes() {
        let bytes: Vec<u8> = (0..23).collect();
        let parts = [&bytes[..0], &bytes[..7], &bytes[7..8], &[], &bytes[8..]];
        for size in 1..30 {
            let split: Vec<_> = pieces(&parts, size).collect();
            assert_eq!(split.concat(), bytes);
            let (_, full) = split.split_last().unwrap();
            assert!(full.iter().all(|piece| piece.len() == size));
        }
        assert_eq!(pieces(&[&[]], 3).count(), 0);
    }
}
