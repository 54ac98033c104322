//! A start through a key-value store that the program brings.

use super::settings::Settings;
use super::unique_id::UniqueId;
use crate::control::notices::RankNotices;
use crate::error::{Error, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where rank 0 puts the id of its newest start.
const ID: &str = "ringtree/id";
/// A `get` of a start that can be cancelled waits so long at most.
const GET_AT_MOST: Duration = Duration::from_millis(200);
/// Between two looks at a store whose `get` does not wait.
const PAUSE: Duration = Duration::from_millis(10);

/// What a store's functions fail with.
pub type StoreError = Box<dyn std::error::Error + Send + Sync>;

/// A key-value store that all ranks reach, such as Redis, etcd or the store of another framework:
/// a start needs these three functions of it, and calls them from one thread at a time.
///
/// The store is *trusted*: rank 0 puts the world's secret there, so a process that can read it can
/// join as any rank, and one that can write it can lead ranks astray. Every connection between
/// ranks is authenticated with that secret, as in every start.
///
/// The keys begin with `ringtree/`. Worlds that share a store must not share keys: give each a
/// prefix of its own. The same store serves one start of a world after another.
///
/// ```
/// use ringtree::{Communicator, ReduceOp, Store, StoreError};
/// use std::collections::HashMap;
/// use std::sync::{Arc, Condvar, Mutex};
/// use std::time::Duration;
///
/// /// For the ranks of one process.
/// #[derive(Default)]
/// struct InMemory(Mutex<HashMap<String, Vec<u8>>>, Condvar);
///
/// impl Store for InMemory {
///     fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
///         self.0.lock().unwrap().insert(key.into(), value.into());
///         self.1.notify_all();
///         Ok(())
///     }
///     fn get(&self, key: &str, at_most: Duration) -> Result<Option<Vec<u8>>, StoreError> {
///         let all = self.0.lock().unwrap();
///         let absent = |all: &mut HashMap<_, _>| !all.contains_key(key);
///         let (all, _) = self.1.wait_timeout_while(all, at_most, absent).unwrap();
///         Ok(all.get(key).cloned())
///     }
///     fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
///         let mut all = self.0.lock().unwrap();
///         let before = match all.get(key) {
///             Some(value) => String::from_utf8(value.clone())?.parse()?,
///             None => 0,
///         };
///         all.insert(key.into(), (before + amount).to_string().into());
///         Ok(before + amount)
///     }
/// }
///
/// let store = Arc::new(InMemory::default());
/// let ranks = [0, 1].map(|rank| {
///     let builder = Communicator::builder().rank(rank).world_size(2).interface("lo");
///     let builder = builder.store(Arc::clone(&store));
///     std::thread::spawn(move || {
///         let mut sum = [rank as f32 + 1.0];
///         builder.connect()?.all_reduce(&mut sum, ReduceOp::Sum)?;
///         Ok::<_, ringtree::Error>(sum[0])
///     })
/// });
/// assert_eq!(ranks.map(|rank| rank.join().unwrap()), [Ok(3.0), Ok(3.0)]);
/// ```
pub trait Store: Send + Sync {
    /// Puts `value` under `key`, in place of what was there.
    ///
    /// # Errors
    /// The store's: the start ends with it.
    fn set(&self, key: &str, value: &[u8]) -> std::result::Result<(), StoreError>;

    /// What is under `key`; if nothing is, waits for it, `at_most` so long, and then `None`.
    ///
    /// # Errors
    /// The store's: the start ends with it.
    fn get(&self, key: &str, at_most: Duration)
    -> std::result::Result<Option<Vec<u8>>, StoreError>;

    /// Adds `amount` to the number under `key`, which begins as 0, in one step; the sum.
    ///
    /// # Errors
    /// The store's: the start ends with it.
    fn add(&self, key: &str, amount: i64) -> std::result::Result<i64, StoreError>;
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn set(&self, key: &str, value: &[u8]) -> std::result::Result<(), StoreError> {
        (**self).set(key, value)
    }

    fn get(
        &self,
        key: &str,
        at_most: Duration,
    ) -> std::result::Result<Option<Vec<u8>>, StoreError> {
        (**self).get(key, at_most)
    }

    fn add(&self, key: &str, amount: i64) -> std::result::Result<i64, StoreError> {
        (**self).add(key, amount)
    }
}

/// Rank 0: makes an id and puts it into the store, if the start has one.
pub(super) fn publish(settings: &mut Settings) -> Result<()> {
    let Some(store) = settings.start.store.clone() else {
        return Ok(());
    };
    let id = match &settings.interface {
        Some(interface) => UniqueId::on(interface)?,
        None => UniqueId::new()?,
    };
    let set = store.set(ID, &id.to_bytes());
    set.map_err(|error| failed(settings, "set", ID, error))?;
    settings.use_id(&id);
    Ok(())
}

/// Another rank: takes the newest id from the store, if the start has one. It is asked again
/// before each attempt to reach rank 0, for what it says may be of an earlier start.
pub(super) fn refresh(
    settings: &mut Settings,
    deadline: Instant,
    notices: &mut RankNotices,
) -> Result<()> {
    let Some(store) = settings.start.store.clone() else {
        return Ok(());
    };
    let bytes = loop {
        settings.check_cancelled()?;
        let left = deadline.saturating_duration_since(Instant::now());
        let got = store.get(ID, left.min(GET_AT_MOST));
        if let Some(bytes) = got.map_err(|error| failed(settings, "get", ID, error))? {
            break bytes;
        }
        if Instant::now() >= deadline {
            let line = format!(
                "rank {}: rank 0 has put nothing into the store under '{ID}' within {} ms; is it \
                 running, with the same store?",
                settings.rank,
                settings.timeout.as_millis()
            );
            let error = Error::join(line).with_rank(settings.rank).with_peer(0);
            return Err(error.with_missing([0]).with_elapsed(settings.timeout));
        }
        let rank = settings.rank;
        notices.still(|seconds| {
            format!("rank {rank} has waited for {seconds} s for rank 0's address in the store")
        });
        std::thread::sleep(PAUSE);
    };
    let id = UniqueId::from_bytes(&bytes).map_err(|error| {
        let line = format!("rank {}: the store's '{ID}': {error}", settings.rank);
        Error::join(line).with_rank(settings.rank)
    })?;
    if settings
        .start
        .id
        .as_ref()
        .is_none_or(|old| old.name() != id.name())
    {
        let key = came(&id);
        let added = store.add(&key, 1);
        added.map_err(|error| failed(settings, "add", &key, error))?;
        settings.use_id(&id);
    }
    Ok(())
}

/// Rank 0, when ranks are missing: how many have found its address.
pub(super) fn found_line(settings: &Settings) -> String {
    let (Some(store), Some(id)) = (&settings.start.store, &settings.start.id) else {
        return String::new();
    };
    match store.add(&came(id), 0) {
        Ok(found) => format!(
            "; {found} of {} others have read its address from the store",
            settings.world_size - 1
        ),
        Err(error) => format!("; the store fails as well: {error}"),
    }
}

/// How many ranks have found this id.
fn came(id: &UniqueId) -> String {
    format!("ringtree/came/{}", id.name())
}

fn failed(settings: &Settings, what: &str, key: &str, error: StoreError) -> Error {
    let rank = settings.rank;
    let line = format!("rank {rank}: the store's {what} of '{key}' failed: {error}");
    Error::join(line).with_rank(rank).with_source(error)
}
