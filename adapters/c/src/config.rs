//! Creates communicators from a `ringtree_config_t`.

use crate::memory::text;
use crate::types::{
    RINGTREE_UNIQUE_ID_BYTES, RINGTREE_UNSET, rank, ringtree_config_t, ringtree_unique_id_t,
};
use ringtree::start::UniqueId;
use ringtree::{Builder, Communicator, Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr::null;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type Id = [u8; RINGTREE_UNIQUE_ID_BYTES];

/// IDs that this process has created. Each ID reserves its port until this process joins as rank 0.
static IDS: Mutex<BTreeMap<Id, UniqueId>> = Mutex::new(BTreeMap::new());

fn ids() -> MutexGuard<'static, BTreeMap<Id, UniqueId>> {
    IDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates an ID for a new world.
pub(crate) fn new_id() -> Result<ringtree_unique_id_t> {
    let id = UniqueId::new()?;
    let bytes = id.to_bytes();
    ids().insert(bytes, id);
    Ok(ringtree_unique_id_t { bytes })
}

/// Joins the world identified by `id`.
pub(crate) fn join(builder: Builder, id: &ringtree_unique_id_t) -> Result<Communicator> {
    let made_here = ids().get(&id.bytes).cloned();
    let unique = match made_here {
        Some(id) => id,
        None => UniqueId::from_bytes(&id.bytes)?,
    };
    let comm = builder.unique_id(&unique).connect()?;
    if comm.rank() == 0 {
        ids().remove(&id.bytes);
    }
    Ok(comm)
}

/// Returns a builder for rank `own` of `world_size` ranks.
///
/// # Errors
/// Returns [`ErrorKind::Usage`] if a number is negative.
pub(crate) fn place_of(own: c_int, world_size: c_int) -> Result<Builder> {
    let negative = |_| {
        usage(format!(
            "world_size {world_size} is out of range: expected at least 1"
        ))
    };
    let own = rank("rank", own)?;
    let world_size = usize::try_from(world_size).map_err(negative)?;
    Ok(Communicator::builder().rank(own).world_size(world_size))
}

impl ringtree_config_t<'_> {
    /// The values of `RINGTREE_CONFIG_INITIALIZER`.
    pub(crate) const DEFAULT: Self = Self {
        size: size_of::<Self>(),
        name: null(),
        interface: null(),
        site: null(),
        transport: null(),
        rendezvous: null(),
        id: None,
        secret: null(),
        timeout_ms: RINGTREE_UNSET as i64,
        stall_warning_ms: RINGTREE_UNSET as i64,
        world_size: RINGTREE_UNSET,
        rank: RINGTREE_UNSET,
        check_calls: RINGTREE_UNSET,
        reproducible: RINGTREE_UNSET,
    };

    /// Creates the communicator.
    pub(crate) fn connect(&self) -> Result<Communicator> {
        let builder = self.builder()?;
        let comm = match self.id {
            Some(_) if !self.rendezvous.is_null() || !self.secret.is_null() => {
                return Err(usage(
                    "config sets id as well as rendezvous or secret, but the id contains both; \
                     set only one of them",
                ));
            }
            Some(id) => join(builder, id)?,
            None => builder.connect()?,
        };
        let comm = match text(self.name) {
            Some(name) => comm.with_name(&name),
            None => comm,
        };
        match self.timeout_ms {
            0 => Ok(comm.without_timeout()),
            _ => Ok(comm),
        }
    }

    fn builder(&self) -> Result<Builder> {
        let mut builder = match (self.rank, self.world_size) {
            (RINGTREE_UNSET, RINGTREE_UNSET) => Communicator::builder(),
            (RINGTREE_UNSET, _) | (_, RINGTREE_UNSET) => {
                return Err(usage(
                    "config sets only one of rank and world_size; set both or neither",
                ));
            }
            (own, world_size) => place_of(own, world_size)?,
        };
        if let Some(address) = text(self.rendezvous) {
            builder = builder.rendezvous(&address);
        }
        if let Some(digits) = text(self.secret) {
            builder = builder.secret(digits.parse()?);
        }
        if let Some(interface) = text(self.interface) {
            builder = builder.interface(&interface);
        }
        if let Some(site) = text(self.site) {
            builder = builder.site(&site);
        }
        if let Some(transport) = text(self.transport) {
            builder = builder.transport(transport.parse().map_err(usage)?);
        }
        if let Some(timeout) = milliseconds("timeout_ms", self.timeout_ms)?
            && !timeout.is_zero()
        {
            builder = builder.timeout(timeout);
        }
        if let Some(after) = milliseconds("stall_warning_ms", self.stall_warning_ms)? {
            builder = builder.stall_warning(after);
        }
        if let Some(checks) = switch("check_calls", self.check_calls)? {
            builder = builder.check_calls(checks);
        }
        if let Some(reproducible) = switch("reproducible", self.reproducible)? {
            builder = builder.reproducible(reproducible);
        }
        Ok(builder)
    }
}

/// Returns the duration in the field named `what`, or `None` if the program does not set it.
fn milliseconds(what: &str, number: i64) -> Result<Option<Duration>> {
    if number == i64::from(RINGTREE_UNSET) {
        return Ok(None);
    }
    let negative = |_| {
        usage(format!(
            "{what} {number} is out of range: expected at least 0, or RINGTREE_UNSET"
        ))
    };
    let number = u64::try_from(number).map_err(negative)?;
    Ok(Some(Duration::from_millis(number)))
}

/// Returns the value of the field named `what`, or `None` if the program does not set it.
fn switch(what: &str, number: c_int) -> Result<Option<bool>> {
    match number {
        RINGTREE_UNSET => Ok(None),
        0 => Ok(Some(false)),
        1 => Ok(Some(true)),
        _ => Err(usage(format!(
            "{what} {number} is out of range: expected 0, 1 or RINGTREE_UNSET"
        ))),
    }
}

fn usage(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, text)
}
