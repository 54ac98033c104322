//! Selects the path for device buffers. All ranks select the same path.

use crate::bootstrap::settings::DevicePathChoice;
use crate::comm::{Communicator, Parts};
use crate::device::Device;
use crate::device::mapped::{Offer, Windows};
use crate::device::numbering::page_bytes;
use crate::error::{Error, Result};
use crate::limits::DEVICE_SOURCES_MAX;
use std::os::fd::OwnedFd;

/// Exchange numbers for passing file descriptors to the other ranks. Number 0 is used when host
/// memory is allocated.
const WINDOW: u32 = 1;
const WORDS: u32 = 2;
/// Number of bytes that each rank contributes when the ranks compare their reasons. The first byte
/// is 1 if the rank requires the mapped path, and the second byte is the length of the rank's
/// reason for not using that path. The text of the reason follows.
const REASON_BYTES: usize = 256;

/// The path that device buffers use.
pub(in crate::comm) enum Path {
    /// The GPUs read each other's memory.
    Mapped(Windows),
    /// Data is copied through host memory, for the given reason.
    Staged(String),
}

impl Path {
    /// Retires the windows, which no stream uses any more.
    pub(super) fn retire(self) {
        if let Self::Mapped(windows) = self {
            windows.retire();
        }
    }
}

impl Communicator {
    /// Selects the path, together with all other ranks.
    ///
    /// # Errors
    /// In addition to the [errors that all calls share](Communicator#errors), returns an [`Error`]
    /// of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) on all ranks if a rank requires the
    /// mapped path and that path is not possible.
    pub(in crate::comm) fn find_path(&self, device: &Device) -> Result<Path> {
        let Parts {
            runtime,
            group,
            timeout,
            ..
        } = &self.core.parts;
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
        // Once this all-gather has completed, no rank is still in the exchange.
        match self.first_reason(windows.as_ref().err())? {
            Some(why) => Ok(Path::Staged(why)),
            None => windows.map(Path::Mapped),
        }
    }

    /// Creates the memory that the other ranks map. If this rank cannot use the mapped path,
    /// returns an error that contains the reason.
    fn offer(&self, device: &Device) -> Result<Offer> {
        let Parts {
            runtime,
            members,
            device_path,
            ..
        } = &self.core.parts;
        let world_size = self.world_size();
        let refusal = |why: &str| Err(Error::device(why.to_owned()));
        if *device_path == DevicePathChoice::Staged {
            return refusal("RINGTREE_DEVICE_PATH=staged");
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

    /// Returns the reason of the first rank that has a reason not to use the mapped path. `own` is
    /// this rank's reason. If there is such a reason but any rank requires the mapped path, returns
    /// an error that contains the reason.
    fn first_reason(&self, own: Option<&Error>) -> Result<Option<String>> {
        let mut reasons = vec![[0; REASON_BYTES]; self.world_size()];
        let reason = &mut reasons[self.rank()];
        let is_demanded = self.core.parts.device_path == DevicePathChoice::Mapped;
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
                "RINGTREE_DEVICE_PATH=mapped on rank {rank} is not possible: {why}; set it to auto \
                 to stage buffers through host memory"
            ))),
            (found, _) => Ok(found),
        }
    }
}
