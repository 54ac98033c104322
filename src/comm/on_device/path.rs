//! Which path device buffers take: all ranks find the same.

use crate::bootstrap::settings::DevicePathChoice;
use crate::comm::{Communicator, Parts};
use crate::device::Device;
use crate::device::mapped::{Offer, Windows};
use crate::device::numbering::page_bytes;
use crate::error::{Error, Result};
use crate::limits::DEVICE_SOURCES_MAX;
use std::os::fd::OwnedFd;

/// What a group hands around here, beside allocations of host memory.
const WINDOW: u32 = 1;
const WORDS: u32 = 2;
/// Bytes of what a rank tells the others about itself: whether it demands the mapped path, how long
/// its reason against it is, and the reason.
const REASON_BYTES: usize = 256;

/// How device buffers travel.
pub(in crate::comm) enum Path {
    /// GPUs read each other's memory.
    Mapped(Windows),
    /// Through the hosts, and why.
    Staged(String),
}

impl Path {
    /// No stream uses it any more.
    pub(super) fn retire(self) {
        if let Self::Mapped(windows) = self {
            windows.retire();
        }
    }
}

impl Communicator {
    /// Finds the path; all ranks call this together.
    ///
    /// # Errors
    /// [`Error::usage`], on all ranks: a rank demands the mapped path, and it cannot be had.
    pub(in crate::comm) fn find_path(&self, device: &Device) -> Result<Path> {
        let Parts {
            runtime,
            group,
            timeout,
            ..
        } = &self.0.parts;
        let runtime = runtime.get()?;
        let offer = self.offer(device);
        if let Some(why) = self.first_reason(offer.as_ref().err())? {
            return Ok(Path::Staged(why));
        }
        let offer = offer?;
        let [window, words] = &offer.files;
        let bytes = Some(page_bytes(self.world_size()));
        let windows = runtime.exchange((*group, WINDOW), window, None, *timeout);
        let words = runtime.exchange((*group, WORDS), words, bytes, *timeout);
        let pairs = windows?.into_iter().zip(words?);
        let theirs: Vec<[OwnedFd; 2]> = pairs.map(|(one, other)| [one.1, other.1]).collect();
        let windows = Windows::map(device.gpu(), self.rank(), offer, &theirs);
        // Behind this no rank is in the exchange any more.
        match self.first_reason(windows.as_ref().err())? {
            Some(why) => Ok(Path::Staged(why)),
            None => windows.map(Path::Mapped),
        }
    }

    /// What this rank gives the others to map, or why there is nothing.
    fn offer(&self, device: &Device) -> Result<Offer> {
        let Parts {
            runtime,
            members,
            device_path,
            ..
        } = &self.0.parts;
        let world_size = self.world_size();
        let refusal = |why: &str| Err(Error::device(why.to_owned()));
        if *device_path == DevicePathChoice::Staged {
            return refusal("RINGTREE_DEVICE_PATH is staged");
        }
        if world_size > 1 && runtime.get()?.local_ranks(members).len() != world_size {
            return refusal("not all ranks share memory");
        }
        if world_size > DEVICE_SOURCES_MAX {
            return refusal(&format!("there are more than {DEVICE_SOURCES_MAX} ranks"));
        }
        device.gpu().load_reductions()?;
        Offer::new(device.gpu(), world_size)
    }

    /// The reason of the first rank that has one, which is an error where a rank demands the mapped
    /// path.
    fn first_reason(&self, own: Option<&Error>) -> Result<Option<String>> {
        let mut reasons = vec![[0; REASON_BYTES]; self.world_size()];
        let reason = &mut reasons[self.rank()];
        let is_demanded = self.0.parts.device_path == DevicePathChoice::Mapped;
        reason[0] = u8::from(is_demanded);
        if let Some(error) = own {
            let text = error.to_string();
            let text = text.lines().next().unwrap_or("unknown").as_bytes();
            let length = text.len().min(REASON_BYTES - 2);
            reason[1] = length.max(1) as u8;
            reason[2..2 + length].copy_from_slice(&text[..length]);
        }
        self.all_gather(reasons.as_flattened_mut())?;
        let of = |(rank, reason): (usize, &[u8; REASON_BYTES])| {
            let text = &reason[2..2 + usize::from(reason[1])];
            let text = String::from_utf8_lossy(text).replace(char::is_control, " ");
            (reason[1] > 0).then(|| format!("rank {rank}: {text}"))
        };
        let found = reasons.iter().enumerate().find_map(of);
        let demanding = reasons.iter().position(|reason| reason[0] > 0);
        match (found, demanding) {
            (Some(why), Some(rank)) => Err(Error::usage(format!(
                "RINGTREE_DEVICE_PATH is mapped on rank {rank}, but {why}; with auto, buffers are \
                 staged through the hosts"
            ))),
            (found, _) => Ok(found),
        }
    }
}
