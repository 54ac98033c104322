//! What ranks tell each other of their devices, and how they come by each other's memory.

use super::{AttachOptions, HandOver};
use crate::comm::{Communicator, Parts};
use crate::device::published::{self, Published};
use crate::device::{Device, Exported, HANDLE_BYTES, Memory, Words};
use crate::engine::device::signals::Signals;
use crate::error::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// A rank's device, and what it was told of it: a unique id, the length of a segment, other
/// options; and whether its streams can wait for words.
const INTRODUCTION_BYTES: usize = OPTIONS.end + 1;
/// Where the options are, which are the same on all ranks.
const OPTIONS: Range<usize> = 16..16 + 8 + 2;

/// What a rank offers: whether there is anything, how long each reader's part is, where it is.
const OFFER_BYTES: usize = 1 + 8 + 8 + HANDLE_BYTES;

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

/// The options of an introduction.
fn options(introduction: &[u8; INTRODUCTION_BYTES]) -> AttachOptions {
    AttachOptions {
        segment_bytes: usize::try_from(word(&introduction[16..])).unwrap_or(usize::MAX),
        peer_access: introduction[24] == 1,
        hand_over: match introduction[25] {
            0 => HandOver::Hosts,
            _ => HandOver::Streams,
        },
    }
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
        own[25] = u8::from(options.hand_over == HandOver::Streams);
        own[OPTIONS.end] = u8::from(device.description().word_operations);
        let all = self.gather(own)?;
        if let Some(other) = all
            .iter()
            .position(|theirs| theirs[OPTIONS] != own[OPTIONS])
        {
            return Err(Error::Mismatch(format!(
                "rank {rank} attaches its device {}, rank {other} {}; all ranks must attach with \
                 the same options",
                options,
                self::options(&all[other])
            )));
        }
        let waits = |one: &[u8; INTRODUCTION_BYTES]| one[OPTIONS.end] == 1;
        let without = all.iter().position(|one| !waits(one));
        if let Some(without) = without.filter(|_| options.hand_over == HandOver::Streams) {
            return Err(Error::Usage(format!(
                "the streams of rank {without}'s device cannot wait for words; attach it with \
                 HandOver::Hosts"
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

    /// Words by which the streams of this rank and of those that share its memory wait for each
    /// other; by rank.
    pub(super) fn exchange_words(
        &self,
        device: &Arc<dyn Device>,
    ) -> Result<Vec<Option<Box<Signals>>>> {
        let Parts {
            runtime,
            group,
            timeout,
            ..
        } = &self.0.parts;
        let neighbours = runtime.neighbours();
        if neighbours.len() < 2 {
            return Ok(Vec::new());
        }
        let own = device.words(neighbours.len() * Signals::WORDS)?;
        let files = runtime.hand_out(*group, own.file(), own.file_bytes(), *timeout)?;
        let place = |rank: usize| {
            let place = neighbours.iter().position(|each| *each == rank);
            place.unwrap_or(neighbours.len()) * Signals::WORDS
        };
        let pair = |words: &Words, at: usize| Ok([words.word(at)?, words.word(at + 1)?]);
        let mut signals: Vec<_> = (0..self.world_size()).map(|_| None).collect();
        for (peer, file) in files {
            let theirs = device.open_words(file)?;
            let both = (pair(&own, place(peer))?, pair(&theirs, place(self.rank()))?);
            signals[peer] = Some(Box::new(Signals::new(both.0, both.1)));
        }
        // Before the next file is handed out.
        self.barrier()?;
        Ok(signals)
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
