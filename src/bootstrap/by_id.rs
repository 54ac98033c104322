//! A start by an id: one that the program gives, or that rank 0 publishes in a key-value store.

use super::settings::Settings;
use super::store::StoreError;
use super::unique_id::UniqueId;
use crate::control::notices::RankNotices;
use crate::error::{Error, Result};
use std::time::{Duration, Instant};

/// Where rank 0 puts the id of its newest start.
const ID: &str = "ringtree/id";
/// A `get` of a start that can be cancelled waits so long at most.
const GET_AT_MOST: Duration = Duration::from_millis(200);
/// Between two looks at a store whose `get` does not wait.
const PAUSE: Duration = Duration::from_millis(10);

impl Settings {
    /// Meets the others where `id` says, with its secret.
    pub(crate) fn use_id(&mut self, id: &UniqueId) {
        self.rendezvous = id.address().to_string();
        self.next_port_too = false;
        self.listener_fd = None;
        self.secret = Some(id.secret());
        self.start.id = Some(id.clone());
    }

    /// An error if the join was cancelled.
    pub(crate) fn check_cancelled(&self) -> Result<()> {
        match self.start.cancel.is_cancelled() {
            true => Err(self.cancelled()),
            false => Ok(()),
        }
    }

    /// This rank does not join after all.
    pub(crate) fn cancelled(&self) -> Error {
        let rank = self.rank;
        let line = format!("rank {rank} does not join: its program cancelled the start");
        Error::join(line).with_rank(rank)
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
