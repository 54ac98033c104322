//! A key-value store that the program brings.

use std::sync::Arc;
use std::time::Duration;

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
