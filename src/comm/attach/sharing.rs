//! What ranks tell each other of their devices, and how they come by each other's memory.

use super::AttachOptions;
use crate::comm::Communicator;
use crate::device::published::{self, Published};
use crate::device::{Device, Exported, HANDLE_BYTES, Memory};
use crate::error::{Error, Result};
use std::sync::Arc;

/// A rank's device, and what it was told of it: a unique id, the length of a segment, other
/// options.
const INTRODUCTION_BYTES: usize = 16 + 8 + 1;

/// What a rank offers: whether there is anything, how long each reader's part is, where it is.
const OFFER_BYTES: usize = 1 + 8 + 8 + HANDLE_BYTES;

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

/// The options of an introduction.
fn in_words(introduction: &[u8; INTRODUCTION_BYTES]) -> String {
    let access = match introduction[24] {
        0 => "without",
        _ => "with",
    };
    let segment_bytes = word(&introduction[16..]);
    format!("in segments of {segment_bytes} bytes and {access} peer access")
}

/// Whose memory which rank can read.
pub(super) struct Reach {
    world_size: usize,
    /// By rank and peer, 1 where it can.
    reads: Vec<u8>,
}

impl Reach {
    fn both_ways(&self, rank: usize, peer: usize) -> bool {
        let reads = |rank: usize, peer: usize| self.reads[rank * self.world_size + peer] == 1;
        reads(rank, peer) && reads(peer, rank)
    }

    /// The peers that can read what `rank` has, and it what they have; ascending.
    pub(super) fn partners(&self, rank: usize) -> Vec<usize> {
        let mut peers: Vec<_> = (0..self.world_size).collect();
        peers.retain(|peer| self.both_ways(rank, *peer));
        peers
    }
}

/// Introductions and offers.
impl Communicator {
    /// Makes the devices known to all ranks; whose memory each will be able to read.
    pub(super) fn introduce(
        &self,
        device: &Arc<dyn Device>,
        options: AttachOptions,
    ) -> Result<Reach> {
        let rank = self.rank();
        let unique_id = device.description().unique_id;
        let mut own = [0; INTRODUCTION_BYTES];
        own[..16].copy_from_slice(&unique_id);
        own[16..24].copy_from_slice(&(options.segment_bytes as u64).to_le_bytes());
        own[24] = u8::from(options.peer_access);
        let all = self.gather(own)?;
        if let Some(other) = all.iter().position(|theirs| theirs[16..] != own[16..]) {
            return Err(Error::Mismatch(format!(
                "rank {rank} attaches its device {}, rank {other} {}; all ranks must attach with \
                 the same options",
                in_words(&own),
                in_words(&all[other])
            )));
        }
        let neighbours = self.0.parts.runtime.neighbours();
        self.agree(|peer| {
            let mut theirs = [0; 16];
            theirs.copy_from_slice(&all[peer][..16]);
            let is_reached = || options.peer_access && device.can_reach(&theirs);
            peer != rank && neighbours.contains(&peer) && (theirs == unique_id || is_reached())
        })
    }

    /// Exports `own`, imports what `partners` have exported, and publishes. A rank's memory has so
    /// many rows as `rows_of` says, each of `row_bytes` bytes, which must be the same on all ranks.
    /// What is returned of a peer is mapped both ways.
    pub(super) fn share(
        &self,
        device: &Arc<dyn Device>,
        own: Option<&Memory>,
        partners: &[usize],
        row_bytes: usize,
        rows_of: impl Fn(usize) -> usize,
    ) -> Result<(Vec<Option<Memory>>, Option<Published>)> {
        let exported = own.map(|own| device.export(own)).transpose()?;
        let published = own.zip(exported.as_ref());
        let published = published.map(|(own, exported)| Published::new(exported, own));
        let offers = self.offer(exported, row_bytes)?;
        let import = |peer: usize| {
            let exported = offers[peer].filter(|_| partners.contains(&peer))?;
            let found = match published::find(&exported) {
                Some(memory) => device.adopt(&memory),
                None => device.import(&exported, rows_of(peer) * row_bytes),
            };
            found.ok()
        };
        let theirs: Vec<_> = (0..self.world_size()).map(import).collect();
        let mapped = self.agree(|peer| theirs[peer].is_some())?;
        let both_ways = theirs.into_iter().enumerate();
        let theirs =
            both_ways.map(|(peer, theirs)| theirs.filter(|_| mapped.both_ways(self.rank(), peer)));
        Ok((theirs.collect(), published))
    }

    /// All ranks' offers.
    fn offer(&self, own: Option<Exported>, row_bytes: usize) -> Result<Vec<Option<Exported>>> {
        let mut bytes = [0; OFFER_BYTES];
        bytes[1..9].copy_from_slice(&(row_bytes as u64).to_le_bytes());
        if let Some(exported) = &own {
            bytes[0] = 1;
            bytes[9..17].copy_from_slice(&exported.offset.to_le_bytes());
            bytes[17..].copy_from_slice(&exported.handle);
        }
        let all = self.gather(bytes)?;
        let other = |theirs: &[u8; OFFER_BYTES]| word(&theirs[1..]) != row_bytes as u64;
        if let Some(other) = all.iter().position(other) {
            return Err(Error::Mismatch(format!(
                "rank {} allocates a buffer of {row_bytes} bytes on its device, rank {other} one \
                 of {}; all ranks must ask for the same",
                self.rank(),
                word(&all[other][1..])
            )));
        }
        let decode = |bytes: &[u8; OFFER_BYTES]| {
            let mut handle = [0; HANDLE_BYTES];
            handle.copy_from_slice(&bytes[17..]);
            let offset = word(&bytes[9..]);
            (bytes[0] == 1).then_some(Exported { handle, offset })
        };
        Ok(all.iter().map(decode).collect())
    }

    /// All ranks' answers to the same question; `reads` says whether this rank can read a peer's.
    fn agree(&self, reads: impl Fn(usize) -> bool) -> Result<Reach> {
        let (rank, world_size) = (self.rank(), self.world_size());
        let mut all = vec![0u8; world_size * world_size];
        for (peer, to) in all[rank * world_size..][..world_size]
            .iter_mut()
            .enumerate()
        {
            *to = u8::from(reads(peer));
        }
        self.all_gather(&mut all)?;
        Ok(Reach {
            world_size,
            reads: all,
        })
    }

    /// What every rank has to say.
    fn gather<const N: usize>(&self, own: [u8; N]) -> Result<Vec<[u8; N]>> {
        let mut all = vec![[0; N]; self.world_size()];
        all[self.rank()] = own;
        self.all_gather(all.as_flattened_mut())?;
        Ok(all)
    }
}
