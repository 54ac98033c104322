//! Decodes the bytes on a peer's links: frames on a stream, and cells in shared memory.

use super::{Decoder, Input};
use crate::link::frame::{HEADER_BYTES, Header};
use crate::link::shm::exposed::{self, Allocation, Own};
use crate::link::shm::layout::Layout;
use crate::link::shm::ring::{CELL_WORDS, CELLS, INLINE_BYTES};
use crate::link::shm::{links, peer_region, region};
use crate::link::stream::StreamLink;
use crate::link::{Link, LinkError, Message};
use crate::sys::shared::{OwnRegion, WriteWords};
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;

pub(super) const FRAME: Decoder = Decoder {
    name: "frame",
    run: |bytes| {
        let bytes: [u8; HEADER_BYTES] = Input(bytes).array();
        if let Some(header) = Header::decode(&bytes) {
            assert_eq!(header.encode(), bytes);
        }
    },
    seeds: || vec![header(&MESSAGES[0]).encode().to_vec()],
};

/// Two bytes that determine how to read a stream, followed by all bytes that a peer sends on it.
pub(super) const STREAM: Decoder = Decoder {
    name: "stream",
    run: stream,
    seeds: || {
        let mut honest = vec![0b0101, 100];
        for message in &MESSAGES {
            honest.extend(header(message).encode());
            honest.extend(vec![7; message.bytes]);
        }
        let mut other = honest.clone();
        other[..2].copy_from_slice(&[0b1010, 255]);
        vec![honest, other]
    },
};

/// Cells that a peer has written to shared memory.
pub(super) const CELLS_OF_A_PEER: Decoder = Decoder {
    name: "cells",
    run: cells,
    seeds: || {
        let through = [0; 4];
        let cell = |form: u32| [&[1][..], &form.to_le_bytes(), &through].concat();
        let exposed = |start: u8| {
            let form = 3 << 28 | 100_u32;
            let mut locator = [0; INLINE_BYTES];
            (locator[0], locator[8]) = (NUMBER as u8, start);
            [&[7][..], &form.to_le_bytes(), &locator, &through].concat()
        };
        let kinds = [
            [40, 1 << 28 | 41],
            [2 << 28 | 1000, 40],
            [1 << 28 | 1 << 24 | 500, 8],
        ];
        let mut seeds: Vec<_> = kinds.map(|pair| pair.map(cell).concat()).to_vec();
        seeds.push([exposed(0), exposed(200)].concat());
        seeds
    },
};

const CHANNEL: (u32, u16) = (5, 1);
const MESSAGES: [Message; 3] = [message(1, 40), message(2, 1), message(3, 18_000)];

const fn message(number: u32, bytes: usize) -> Message {
    Message {
        sequence: 9,
        digest: 0xfeed,
        number,
        bytes,
    }
}

fn header(message: &Message) -> Header {
    Header {
        epoch: CHANNEL.1,
        group: CHANNEL.0,
        sequence: message.sequence,
        message: message.number,
        bytes: message.bytes as u32,
        digest: message.digest,
    }
}

/// Bytes that a peer has written, read in pieces of at most `piece` bytes.
struct Wire {
    bytes: Vec<u8>,
    read: usize,
    piece: usize,
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let rest = &self.bytes[self.read..];
        let count = rest.len().min(self.piece).min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.read += count;
        Ok(count)
    }
}

impl Write for Wire {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(ErrorKind::WouldBlock.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Consumes the next bytes of `message`: in place if `is_folded` is `true`, or else directly into a
/// buffer. Returns the number of bytes.
fn take(
    link: &mut dyn Link,
    message: &Message,
    so_far: usize,
    is_folded: bool,
) -> Result<usize, LinkError> {
    if !is_folded {
        let mut into = vec![0; message.bytes - so_far];
        return link.receive(message, so_far, &mut into);
    }
    let visible = link.fetch(message, so_far)?.min(message.bytes - so_far);
    assert_eq!(link.view(visible).len(), visible);
    link.consume(visible)?;
    Ok(visible)
}

fn stream(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (folded, piece) = (input.byte(), usize::from(input.byte()) + 1);
    let mut wire = Some(Wire {
        bytes: input.0.to_vec(),
        read: 0,
        piece,
    });
    let mut link = StreamLink::new(CHANNEL, Box::new(move || wire.take()));
    for (index, message) in MESSAGES.iter().enumerate() {
        let mut so_far = 0;
        while so_far < message.bytes {
            match take(&mut link, message, so_far, folded >> index & 1 == 1) {
                Ok(0) => return,
                Ok(bytes) => so_far += bytes,
                Err(error) => {
                    assert!(!format!("{error:?}").is_empty());
                    return;
                }
            }
        }
        assert_eq!(so_far, message.bytes, "a link must not exceed the message");
    }
}

/// Number of ranks that share the memory: this rank and the peer.
const PLACES: usize = 2;
/// Number of the allocation that the peer exposes. Its size is `EXPOSED_BYTES`.
const NUMBER: u64 = 3;
const EXPOSED_BYTES: usize = 4096;

fn cells(bytes: &[u8]) {
    let (own, _file) = region(PLACES).expect("the memory can be created");
    let (lying, file) = region(PLACES).expect("the memory can be created");
    let theirs = vec![(
        1,
        peer_region(PLACES, &file).expect("the memory can be mapped"),
    )];
    let wake: crate::link::shm::Wake = Arc::new(|_| {});
    let (mut links, mut local) = links(CHANNEL, &[0, 1], 0, own, theirs, &wake);
    let (own, _file) = exposed::memory(EXPOSED_BYTES).expect("the memory can be created");
    let (_lent, file) = exposed::memory(EXPOSED_BYTES).expect("the memory can be created");
    let lent = exposed::peer_memory(EXPOSED_BYTES, &file).expect("the memory can be mapped");
    local.admit(Allocation {
        number: NUMBER,
        own: Own::new(&own),
        theirs: vec![(1, lent)],
    });
    let link = links[0].1.as_mut();
    let mut input = Input(bytes);
    let (mut count, mut so_far) = (0, 0);
    while !input.is_empty() {
        let what = input.byte();
        count += 1;
        forge(&lying, count, what, &mut input);
        match take(link, &MESSAGES[2], so_far, what & 4 == 4) {
            Ok(bytes) => so_far = (so_far + bytes) % MESSAGES[2].bytes,
            Err(_) => return,
        }
    }
}

/// Writes cell `count` of the peer's ring. The cell claims to belong to the expected message or to
/// a different one.
fn forge(lying: &OwnRegion, count: u32, what: u8, input: &mut Input<'_>) {
    let at = Layout::new(PLACES).ring(0) + (count as usize % CELLS) * CELL_WORDS;
    let pack = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let form = input.word();
    let Message {
        sequence,
        digest,
        number,
        ..
    } = MESSAGES[2];
    let expected = [digest, sequence as u32, number];
    let [digest, sequence, number] = match what & 1 {
        1 => expected,
        _ => [input.word(), input.word(), input.word()],
    };
    lying.store(at + 1, pack(digest, form));
    lying.store(at + 2, pack(sequence, number));
    if what & 2 == 2 {
        for (word, bytes) in input.array::<INLINE_BYTES>().chunks_exact(8).enumerate() {
            let bytes = bytes.try_into().expect("a word has eight bytes");
            lying.store(at + 3 + word, u64::from_le_bytes(bytes));
        }
    }
    lying.release(at, pack(count, input.word()));
}
