//! Tests a peer that writes arbitrary data to its own region.

use crate::links::{channel, channel_without, endpoints, receive, send};
use crate::long::short_or_long;
use crate::shares::{memory, peer_memory};
use crate::world::{Case, PLAIN, Random, connected};
use proptest::prelude::*;
use ringtree::internal::compute::Region;
use ringtree::internal::engine::{Engine, Group, Links, Memory, Start};
use ringtree::internal::limits::SHARED_SEGMENT_BYTES;
use ringtree::internal::link::shm::{
    Allocation, CELL_WORDS, CELLS, INLINE_BYTES, Layout, Own, OwnRegion, WriteWords,
};
use ringtree::internal::link::{Header, Link, LinkError, Message, Payload};
use ringtree::plan::{Algorithm, Collective};
use ringtree::{Dtype, ReduceOp};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Number of segments in a row, in a world of three ranks.
const ROW_SLOTS: usize = Layout::new(3).row_slots();

const EXPECTED: Message = Message {
    sequence: (7 << 32) + 3,
    digest: 0xfeed,
    number: 2,
    bytes: 400,
};

/// Returns the links of the honest ranks, and the region of the liar, which is the last of
/// `world_size` ranks.
fn links_with_liar(world_size: usize) -> (Vec<Links>, OwnRegion) {
    let (channels, mut lying) = channel_without((5, 1), world_size, 1);
    let honest = channels.into_iter().map(|one| connected(world_size, one));
    (
        honest.collect(),
        lying.pop().expect("the liar has a region"),
    )
}

fn link(links: &mut Links, peer: usize) -> &mut dyn Link {
    links.link(peer).expect("the peer shares memory")
}

/// Writes cell `count` of the liar's ring to `place`, with the given `head`.
fn forge(lying: &OwnRegion, places: usize, place: usize, count: u32, through: u32, head: [u32; 4]) {
    let at = Layout::new(places).ring(place) + (count as usize % CELLS) * CELL_WORDS;
    let pack = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    lying.store(at + 1, pack(head[0], head[1]));
    lying.store(at + 2, pack(head[2], head[3]));
    lying.release(at, pack(count, through));
}

/// Encodes the form of a cell: the kind, slot and length of its payload.
fn form(kind: u32, slot: u32, bytes: u32) -> u32 {
    kind << 28 | slot << 24 | bytes
}

#[test]
fn message_of_other_call_is_reported_and_not_stored() {
    let others = [
        Message {
            digest: 0xbeef,
            ..EXPECTED
        },
        Message {
            sequence: EXPECTED.sequence + 1,
            ..EXPECTED
        },
        Message {
            sequence: EXPECTED.sequence - 4,
            ..EXPECTED
        },
        Message {
            number: 3,
            ..EXPECTED
        },
        Message {
            sequence: EXPECTED.sequence - (1 << 30),
            digest: 1,
            number: 0,
            bytes: 400,
        },
    ];
    // Place the payload next to the flag, or in a segment.
    for bytes in [8, INLINE_BYTES, 100] {
        for other in others {
            let mut ranks = channel(2).into_iter().map(|one| connected(2, one));
            let (mut near, mut far) = (ranks.next().unwrap(), ranks.next().unwrap());
            let (near, far) = (link(&mut near, 1), link(&mut far, 0));
            let data = vec![0xab; bytes];
            assert_eq!(near.send(&other, 0, Payload::Bytes(&[&data])), Ok(bytes));
            let unexpected = LinkError::Unexpected(Header {
                epoch: 0,
                group: 0,
                sequence: other.sequence,
                message: other.number,
                bytes: bytes as u32,
                digest: other.digest,
            });
            let mut into = [7; 400];
            // The receiver gets the same error, no matter how often it polls.
            for _ in 0..2 {
                let got = far.receive(&EXPECTED, 0, &mut into);
                assert_eq!(got, Err(unexpected.clone()));
                let got = far.fetch(&EXPECTED, 0);
                assert_eq!(got, Err(unexpected.clone()));
            }
            assert_eq!(into, [7; 400]);
            // A receiver that expects the message gets it.
            assert_eq!(far.receive(&other, 0, &mut into), Ok(bytes));
            assert_eq!(into[..bytes], vec![0xab; bytes]);
        }
    }
}

#[test]
fn impossible_length_or_place_is_garbage() {
    let segment = SHARED_SEGMENT_BYTES as u32;
    let forms = [
        form(0, 0, 0),
        form(0, 0, INLINE_BYTES as u32 + 1),
        form(1, 0, 0),
        form(1, 0, 401),
        form(2, 0, 401),
        form(1, Layout::new(2).row_slots() as u32, 8),
        form(2, 15, 8),
        form(1, 0, segment + 1),
        form(4, 0, 8),
        form(15, 15, (1 << 24) - 1),
    ];
    for form in forms {
        let (mut honest, lying) = links_with_liar(2);
        let low = EXPECTED.sequence as u32;
        forge(
            &lying,
            2,
            0,
            1,
            0,
            [EXPECTED.digest, form, low, EXPECTED.number],
        );
        let mut into = [7; 400];
        let honest = link(&mut honest[0], 1);
        let got = honest.receive(&EXPECTED, 0, &mut into);
        assert!(
            matches!(got, Err(LinkError::Garbage(_))),
            "{form:#x}: {got:?}"
        );
        assert!(honest.fetch(&EXPECTED, 0).is_err());
        assert_eq!(into, [7; 400]);
    }
}

/// The payload is in an allocation that was never made, or beyond the end of an existing
/// allocation.
#[test]
fn nonexistent_exposed_payload_is_garbage() {
    let bytes = 4096;
    let places = [
        (1, 0, true),
        (2, 0, false),
        (1, 4096 - 99, false),
        (1, u64::MAX - 9, false),
    ];
    for (number, start, exists) in places {
        let (mut honest, lying) = links_with_liar(2);
        let (own, _) = memory(bytes);
        let (_theirs, file) = memory(bytes);
        let local = honest[0].local().expect("the ranks share memory");
        local.admit(Allocation {
            number: 1,
            own: Own::new(&own),
            theirs: vec![(1, peer_memory(bytes, &file))],
        });
        let reference = Layout::new(2).ring(0) + CELL_WORDS + 3;
        lying.store(reference, number);
        lying.store(reference + 1, start);
        let low = EXPECTED.sequence as u32;
        let head = [EXPECTED.digest, form(3, 0, 100), low, EXPECTED.number];
        forge(&lying, 2, 0, 1, 0, head);
        let mut into = [7; 400];
        let got = link(&mut honest[0], 1).receive(&EXPECTED, 0, &mut into);
        match exists {
            true => assert_eq!((got, into[0]), (Ok(100), 0)),
            false => assert!(matches!(got, Err(LinkError::Garbage(_))), "{got:?}"),
        }
    }
}

/// The last part of a message must not be longer than the rest of the message.
#[test]
fn message_that_exceeds_its_length_is_garbage() {
    let (mut honest, lying) = links_with_liar(2);
    let low = EXPECTED.sequence as u32;
    let mut into = [7; 400];
    for (count, bytes) in [(1, 300), (2, 101)] {
        let head = [EXPECTED.digest, form(1, 0, bytes), low, EXPECTED.number];
        forge(&lying, 2, 0, count, 0, head);
    }
    let got = link(&mut honest[0], 1).receive(&EXPECTED, 0, &mut into);
    assert!(matches!(got, Err(LinkError::Garbage(_))), "{got:?}");
    assert_eq!(into[300..], [7; 100]);
}

/// A reader that lies about what it has read does not harm other readers.
#[test]
fn false_acknowledgment_does_not_free_segment_of_other_reader() {
    let (mut honest, lying) = links_with_liar(3);
    let to = endpoints([1, 2]);
    let message = Message {
        bytes: 100 * ROW_SLOTS + 100,
        number: 0,
        ..EXPECTED
    };
    let acknowledgement = Layout::new(3).acknowledgement(0);
    for part in 0..ROW_SLOTS {
        let data = [part as u8; 100];
        assert_eq!(send(&mut honest[0], &to, &message, 100 * part, &data), 100);
        for lie in [0, 1, part as u64 + 1, 17, u64::MAX] {
            lying.release(acknowledgement, lie);
        }
    }
    lying.release(acknowledgement, ROW_SLOTS as u64);
    let next = 100 * ROW_SLOTS;
    assert_eq!(send(&mut honest[0], &to, &message, next, &[9; 100]), 0);
    let mut into = [7; 100 * ROW_SLOTS];
    assert_eq!(receive(&mut honest[1], 0, &message, &mut into), into.len());
    for (part, bytes) in into.chunks(100).enumerate() {
        assert_eq!(bytes, [part as u8; 100]);
    }
    assert_eq!(send(&mut honest[0], &to, &message, next, &[9; 100]), 100);
}

/// An action of a liar, or of an honest rank that is linked to it.
#[derive(Clone, Debug)]
enum Turn {
    Forge {
        cells: u32,
        through: u32,
        head: [u32; 4],
    },
    Word {
        at: usize,
        value: u64,
    },
    Receive {
        bytes: usize,
    },
    Reduce {
        consumed: usize,
    },
    Send {
        bytes: usize,
    },
    SendToBoth {
        bytes: usize,
    },
}

/// Generates the expected value in most cases, and an arbitrary value otherwise.
fn near(expected: u32) -> impl Strategy<Value = u32> {
    prop_oneof![6 => Just(expected), 1 => 0u32..20, 1 => any::<u32>()]
}

fn turn() -> impl Strategy<Value = Turn> {
    let forms = prop_oneof![
        (0u32..4, 0u32..5, 0u32..500).prop_map(|(kind, slot, bytes)| form(kind, slot, bytes)),
        any::<u32>(),
    ];
    let low = EXPECTED.sequence as u32;
    let head = (
        near(EXPECTED.digest),
        forms,
        near(low),
        near(EXPECTED.number),
    );
    let head = head.prop_map(|(digest, form, sequence, number)| [digest, form, sequence, number]);
    let words = Layout::new(3).division().words;
    prop_oneof![
        3 => (0u32..20, near(1), head)
            .prop_map(|(cells, through, head)| Turn::Forge { cells, through, head }),
        1 => (0..words, any::<u64>()).prop_map(|(at, value)| Turn::Word { at, value }),
        2 => (0usize..400).prop_map(|bytes| Turn::Receive { bytes }),
        2 => (0usize..400).prop_map(|consumed| Turn::Reduce { consumed }),
        1 => (0usize..400_000).prop_map(|bytes| Turn::Send { bytes }),
        1 => (0usize..400_000).prop_map(|bytes| Turn::SendToBoth { bytes }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(short_or_long(150, 5000)))]

    #[test]
    fn arbitrary_writes_of_liar_fail_only_its_link(
        turns in prop::collection::vec(turn(), 1..60),
    ) {
        let (mut honest, lying) = links_with_liar(3);
        let one = &mut honest[0];
        let to = endpoints([1, 2]);
        let mut count = 0;
        let mut offset = 0;
        let message = EXPECTED;
        for turn in turns {
            match turn {
                Turn::Forge { cells, through, head } => {
                    for _ in 0..cells {
                        count += 1;
                        forge(&lying, 3, 0, count, through, head);
                    }
                }
                Turn::Word { at, value } => lying.store(at, value),
                Turn::Receive { bytes } => {
                    let mut into = [0; 400];
                    let bytes = bytes.min(message.bytes - offset);
                    if let Ok(stored) = link(one, 2).receive(&message, offset, &mut into[..bytes]) {
                        prop_assert!(stored <= bytes);
                        offset += stored;
                    }
                }
                Turn::Reduce { consumed } => {
                    let link = link(one, 2);
                    if let Ok(visible) = link.fetch(&message, offset) {
                        prop_assert!(visible <= message.bytes - offset);
                        let taken = visible.min(consumed);
                        prop_assert_eq!(link.view(taken).len(), taken);
                        if taken > 0 {
                            prop_assert_eq!(link.consume(taken), Ok(()));
                            offset += taken;
                        }
                    }
                }
                Turn::Send { bytes } => {
                    let sent = send(one, &to[1..], &message, 0, &vec![1; bytes]);
                    prop_assert!(sent <= bytes);
                }
                Turn::SendToBoth { bytes } => {
                    let sent = send(one, &to, &message, 0, &vec![1; bytes]);
                    prop_assert!(sent <= bytes);
                }
            }
            one.flush();
            if offset == message.bytes {
                offset = 0;
            }
        }
    }
}

/// Writes random words and bytes to its region until `stop` is set.
fn lie(mut lying: OwnRegion, places: usize, honest: usize, head: [u32; 2], stop: &AtomicBool) {
    let layout = Layout::new(places);
    let mut random = Random(1);
    let mut count = 0u32;
    while !stop.load(Ordering::Relaxed) {
        let place = random.below(honest);
        match random.below(4) {
            0 => {
                let word = random.below(layout.division().words);
                lying.store(word, random.draw());
            }
            1 => {
                let at = layout.slot(random.below(places), random.below(layout.row_slots()));
                lying.bytes_mut(at, 64).fill(random.draw() as u8);
            }
            2 => lying.store(layout.acknowledgement(place), random.draw() % 40),
            _ => {
                count = (count + random.below(2) as u32) % 40;
                let form = form(random.below(3) as u32, random.below(4) as u32, 40);
                let form = if random.below(8) == 0 {
                    random.draw() as u32
                } else {
                    form
                };
                let number = random.below(2) as u32;
                forge(
                    &lying,
                    places,
                    place,
                    count,
                    random.below(40) as u32,
                    [head[0], form, head[1], number],
                );
            }
        }
        if random.below(64) == 0 {
            std::thread::yield_now();
        }
    }
}

/// Two engines make calls with a liar. The calls may give wrong results, fail, or keep waiting, but
/// nothing panics.
#[test]
fn engines_survive_concurrent_writes_of_liar() {
    const WORLD: usize = 3;
    const CALLS: u64 = 200;
    for (algorithm, count) in [
        (Algorithm::Flat, 100),
        (Algorithm::TwoShot, 30_000),
        (Algorithm::Ring, 30),
    ] {
        let case = Case {
            collective: Collective::AllReduce,
            algorithm,
            pieces: 1,
            count,
            root: 0,
            dtype: Dtype::F32,
            op: ReduceOp::Sum,
            seed: 0,
        };
        for sequence in 1..=CALLS {
            let (honest, lying) = links_with_liar(WORLD);
            let stop = AtomicBool::new(false);
            let stop = &stop;
            let head = [case.prepared(0, WORLD, PLAIN).digest, sequence as u32];
            std::thread::scope(|scope| {
                scope.spawn(move || lie(lying, WORLD, WORLD - 1, head, stop));
                let ranks = honest.into_iter().zip(channel(WORLD)).enumerate();
                let calls = ranks.map(|(rank, (collectives, pairs))| {
                    scope.spawn(move || {
                        let pairs = connected(WORLD, pairs);
                        let group = Group::new(rank, WORLD, collectives, pairs);
                        call_with_liar(&case, rank, sequence, group);
                    })
                });
                let calls: Vec<_> = calls.collect();
                let ends: Vec<_> = calls.into_iter().map(|call| call.join()).collect();
                stop.store(true, Ordering::Relaxed);
                assert!(ends.iter().all(Result::is_ok), "{ends:?}");
            });
        }
    }
}

fn call_with_liar(case: &Case, rank: usize, sequence: u64, group: Group) {
    const POLLS_MAX: u32 = 30;
    let mut start = Start {
        prepared: &case.prepared(rank, 3, PLAIN),
        sequence,
        memory: &mut Memory::in_place(Region::own(case.input(rank, 3))),
        timeout: Duration::from_secs(60),
        gate: None,
    };
    let mut patience = |polls| {
        std::thread::yield_now();
        polls < POLLS_MAX
    };
    let mut engine = Engine::default();
    engine.add_group(0, group);
    let ran = engine
        .group(0)
        .expect("group 0 exists")
        .run(&mut start, &mut patience);
    if !matches!(ran, Ok(Some(_))) {
        return;
    }
    for _ in 0..POLLS_MAX {
        engine.poll();
        std::thread::yield_now();
    }
}
