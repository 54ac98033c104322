//! Exchanges descriptors among the ranks on a host.

use super::super::descriptors::DescriptorUsage;
use super::LocalPeers;
use crate::error::{Error, Result};
use crate::limits::FD_PASSING_PROBE_EVERY;
use crate::lock::lock;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

/// The pause after a step that made progress. After each step without progress, the pause doubles,
/// up to `PAUSE_MAX`.
const PAUSE_FIRST: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(2);

/// Exchanges descriptors with `others`; see [`LocalPeers::exchange`].
pub(super) fn exchange(
    local: &LocalPeers,
    others: &[usize],
    channel: u32,
    (own, bytes): (BorrowedFd<'_>, Option<usize>),
    deadline: Instant,
    goes_on: &dyn Fn() -> bool,
) -> Result<Vec<(usize, OwnedFd)>> {
    let others: BTreeSet<usize> = others.iter().copied().collect();
    let mut exchange = Exchange {
        local,
        channel,
        bytes,
        goes_on,
        unsent: others.clone(),
        missing: others,
        handed: Vec::new(),
    };
    exchange.run(own, deadline)?;
    exchange.handed.sort_by_key(|(rank, _)| *rank);
    Ok(exchange.handed)
}

struct Exchange<'a> {
    local: &'a LocalPeers,
    channel: u32,
    bytes: Option<usize>,
    /// Returns `true` while the exchange is still needed.
    goes_on: &'a dyn Fn() -> bool,
    /// Ranks that have not accepted this rank's descriptor yet.
    unsent: BTreeSet<usize>,
    /// Ranks whose descriptor has not arrived yet.
    missing: BTreeSet<usize>,
    handed: Vec<(usize, OwnedFd)>,
}

impl Exchange<'_> {
    fn run(&mut self, own: BorrowedFd<'_>, deadline: Instant) -> Result<()> {
        let mut pause = PAUSE_FIRST;
        let mut next_probe = Instant::now() + FD_PASSING_PROBE_EVERY;
        loop {
            let open = self.unsent.len() + self.missing.len();
            self.send(own)?;
            self.collect()?;
            let still_open = self.unsent.len() + self.missing.len();
            if still_open == 0 {
                return Ok(());
            }
            let now = Instant::now();
            let is_probing = now >= next_probe;
            if now >= deadline || (is_probing && !(self.goes_on)()) {
                return Err(self.late());
            }
            if is_probing {
                next_probe = now + FD_PASSING_PROBE_EVERY;
                self.check_for_dead()?;
            }
            pause = if still_open < open {
                PAUSE_FIRST
            } else {
                (pause * 2).min(PAUSE_MAX)
            };
            thread::sleep(pause.min(deadline - now));
        }
    }

    fn send(&mut self, own: BorrowedFd<'_>) -> Result<()> {
        for rank in std::mem::take(&mut self.unsent) {
            if !self.local.pass_descriptor(self.channel, own, rank)? {
                self.unsent.insert(rank);
            }
        }
        Ok(())
    }

    /// Collects the descriptors for this channel, no matter which thread received them.
    fn collect(&mut self) -> Result<()> {
        let mut stash = lock(&self.local.stash);
        if self.local.receive(&mut stash) {
            // This call received a wake-up for the sleeping thread, so the reactor does not see it.
            self.local.wake_sleeper();
        }
        let came = stash.remove(&self.channel).unwrap_or_default();
        drop(stash);
        for (rank, descriptor) in came {
            let Some(descriptor) = descriptor else {
                let why = format!(
                    "no file descriptors were available; {}",
                    DescriptorUsage::here()
                );
                return Err(self.wrong(rank, &why, Error::system));
            };
            if self.missing.remove(&rank) {
                let checked = self.bytes.map_or(Ok(()), |bytes| check(&descriptor, bytes));
                if let Err(why) = checked {
                    return Err(self.wrong(rank, &why, Error::protocol));
                }
                self.handed.push((rank, descriptor));
            }
        }
        Ok(())
    }

    fn check_for_dead(&mut self) -> Result<()> {
        let gone = self.missing.iter().copied();
        let gone = gone.filter(|rank| self.local.is_gone(*rank));
        let gone: Vec<usize> = gone.collect();
        if gone.is_empty() {
            return Ok(());
        }
        // Descriptors that these ranks sent before they exited may still be in the queue.
        self.collect()?;
        match gone.iter().find(|rank| self.missing.contains(rank)) {
            Some(rank) => Err(self.local.gone(*rank)),
            None => Ok(()),
        }
    }

    fn wrong(&self, rank: usize, why: &str, kind: fn(String) -> Error) -> Error {
        let own = self.local.rank;
        kind(format!(
            "rank {own} cannot use the memory of rank {rank}: {why}"
        ))
        .with_rank(own)
        .with_peer(rank)
    }

    fn late(&self) -> Error {
        let list = |ranks: &BTreeSet<usize>| {
            let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
            let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
            format!("{noun} {}", ranks.join(", "))
        };
        let own = self.local.rank;
        let (missing, what) = match self.missing.is_empty() {
            true => (&self.unsent, "accept it from"),
            false => (&self.missing, "send it to"),
        };
        Error::deadline(format!(
            "the exchange of shared memory timed out: {} did not {what} rank {own}; check whether \
             they are stopped or in a different call",
            list(missing)
        ))
        .with_rank(own)
        .with_missing(missing.iter().copied())
    }
}

/// Checks that `descriptor` refers to memory of exactly `bytes` bytes that no process can resize.
///
/// # Errors
/// Returns a message that states the reason if it does not.
pub(super) fn check(descriptor: &OwnedFd, bytes: usize) -> std::result::Result<(), String> {
    // Only memory that was created with sealing allowed can have these seals.
    let fixed = SealFlags::SHRINK | SealFlags::GROW;
    let is_fixed = fcntl_get_seals(descriptor).is_ok_and(|seals| seals.contains(fixed));
    if !is_fixed {
        return Err("it is not sealed memory".to_owned());
    }
    let size = fstat(descriptor)
        .map_err(|error| error.to_string())?
        .st_size;
    if usize::try_from(size) == Ok(bytes) {
        Ok(())
    } else {
        Err(format!("it has {size} bytes, but {bytes} were expected"))
    }
}
