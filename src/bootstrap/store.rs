//! Defines the interface to a key-value store that the program provides.

use std::sync::Arc;
use std::time::Duration;

/// The error type returned by a [`Store`].
pub type StoreError = Box<dyn std::error::Error + Send + Sync>;

/// A key-value store that all ranks can reach, such as Redis, etcd or another framework's store.
///
/// Pass the store to `Builder::store`. While a rank is joining, the store's methods are called from
/// one thread at a time.
///
/// The store is *trusted*: rank 0 stores the world's secret in it. A process that can read the
/// store can join as any rank, and a process that can write to it can redirect ranks to a different
/// world. Connections between ranks are authenticated with the world's secret, just as they are
/// without a store.
///
/// All keys begin with `ringtree/`. If several worlds share a store, your implementation must add a
/// different prefix to the keys of each world. If the same world is launched several times in
/// sequence, all of the launches can use the same store.
///
/// ```
/// use ringtree::start::{Store, StoreError};
/// use ringtree::{Communicator, ReduceOp};
/// use std::collections::HashMap;
/// use std::sync::{Arc, Condvar, Mutex};
/// use std::time::Duration;
///
/// /// A store for ranks in the same process.
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
    /// Sets `key` to `value`.
    ///
    /// # Errors
    /// Returns an error if the store fails. The join then fails with that error.
    fn set(&self, key: &str, value: &[u8]) -> std::result::Result<(), StoreError>;

    /// Returns the value of `key`, or `None` if the key has no value.
    ///
    /// This method may wait for up to `at_most` for a value to be set. If it returns `None` without
    /// waiting, it is called again.
    ///
    /// # Errors
    /// Returns an error if the store fails. The join then fails with that error.
    fn get(&self, key: &str, at_most: Duration)
    -> std::result::Result<Option<Vec<u8>>, StoreError>;

    /// Atomically adds `amount` to the number stored under `key`, which is initially 0, and returns
    /// the sum.
    ///
    /// # Errors
    /// Returns an error if the store fails. The join then fails with that error.
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
