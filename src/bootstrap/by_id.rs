//! Joins using an ID that the program provides or that rank 0 publishes in a key-value store.

use super::settings::Settings;
use super::store::StoreError;
use super::unique_id::UniqueId;
use crate::control::notices::RankNotices;
use crate::error::{Error, Result};
use std::time::{Duration, Instant};

/// The key under which rank 0 stores the ID of its most recent join.
const ID: &str = "ringtree/id";
/// Maximum time that one `get` waits. It is short so that the join can be canceled.
const GET_AT_MOST: Duration = Duration::from_millis(200);
/// The pause between two calls of `get`, which may return without waiting.
const PAUSE: Duration = Duration::from_millis(10);

impl Settings {
    /// Uses the rendezvous and the secret from `id`.
    pub(crate) fn use_id(&mut self, id: &UniqueId) {
        self.rendezvous = id.address().to_string();
        self.next_port_too = false;
        self.listener_fd = None;
        self.secret = Some(id.secret());
        self.start.id = Some(id.clone());
    }

    /// Returns an error if the join was canceled.
    pub(crate) fn check_cancelled(&self) -> Result<()> {
        match self.start.cancel.is_canceled() {
            true => Err(self.cancelled()),
            false => Ok(()),
        }
    }

    /// Returns the error for a canceled join.
    pub(crate) fn cancelled(&self) -> Error {
        let rank = self.rank;
        let line = format!("rank {rank} did not join: the program canceled the join");
        Error::join(line).with_rank(rank)
    }
}

/// Creates an ID for the job, whose rank 0 this process is. The address is a loopback address if
/// all ranks are on this host.
pub(super) fn new_id(settings: &Settings) -> Result<UniqueId> {
    match &settings.interface {
        Some(interface) => UniqueId::on(interface),
        None if settings.local_world_size == Some(settings.world_size) => UniqueId::on("127.0.0.1"),
        None => UniqueId::new(),
    }
}

/// On rank 0, creates an ID and puts it into the store if the program provides a store.
pub(super) fn publish(settings: &mut Settings) -> Result<()> {
    let Some(store) = settings.start.store.clone() else {
        return Ok(());
    };
    let id = new_id(settings)?;
    let set = store.set(ID, &id.to_bytes());
    set.map_err(|error| failed(settings, "set", ID, error))?;
    settings.use_id(&id);
    Ok(())
}

/// On any other rank, reads the newest ID from the store if the program provides a store. This
/// function is called before every attempt to reach rank 0, because the ID in the store may come
/// from an earlier launch.
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
                "rank {}: rank 0 did not store '{ID}' within {} ms; check that rank 0 is running \
                 and uses the same store",
                settings.rank,
                settings.timeout.as_millis()
            );
            let error = Error::join(line).with_rank(settings.rank).with_peer(0);
            return Err(error.with_missing([0]).with_elapsed(settings.timeout));
        }
        let rank = settings.rank;
        notices.still(|seconds| {
            format!(
                "rank {rank} has waited {seconds} s for rank 0's address to appear in the store"
            )
        });
        std::thread::sleep(PAUSE);
    };
    let id = UniqueId::from_bytes(&bytes).map_err(|error| {
        let rank = settings.rank;
        let line = format!("rank {rank}: '{ID}' in the store is invalid: {error}");
        Error::join(line).with_rank(rank)
    })?;
    let known = settings.start.id.as_ref();
    if known.is_none_or(|known| known.name() != id.name()) {
        let key = came(&id);
        let added = store.add(&key, 1);
        added.map_err(|error| failed(settings, "add", &key, error))?;
        settings.use_id(&id);
    }
    Ok(())
}

/// On rank 0, returns a clause that states how many ranks have read its address from the store.
pub(super) fn found_line(settings: &Settings) -> String {
    let (Some(store), Some(id)) = (&settings.start.store, &settings.start.id) else {
        return String::new();
    };
    match store.add(&came(id), 0) {
        Ok(found) => format!(
            "; {found} of {} other ranks have read its address from the store",
            settings.world_size - 1
        ),
        Err(error) => format!("; the store also failed: {error}"),
    }
}

/// Returns the key under which the ranks that have read this ID are counted.
fn came(id: &UniqueId) -> String {
    format!("ringtree/came/{}", id.name())
}

fn failed(settings: &Settings, what: &str, key: &str, error: StoreError) -> Error {
    let rank = settings.rank;
    let line = format!("rank {rank}: the store failed to {what} '{key}': {error}");
    Error::join(line).with_rank(rank).with_source(error)
}
