//! The rings of shared memory and the wake-up, under a model checker: every interleaving and every
//! value that the memory model allows, for two or three ranks and a few cells.
//!
//! The rings run as they are, over words of the model. Flags, acknowledgements and doorbells are
//! atomics; all other words, and the segments, are plain memory here: so two accesses at once are
//! an error, even where the real words would bear them. Every model is run once more for each way
//! to break it, and the checker must find it: else it would look at nothing.

#![allow(clippy::unwrap_used)]

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use ringtree::internal::link::shm::{
    CELL_WORDS, Head, INLINE_BYTES, ReadWords, Receiver, Sender, WriteWords,
};

/// Cells of a modelled ring; a receiver says after every cell that it is through.
const SHORT: usize = 2;
/// Here it leaves that to its own cells, for as long as the model looks.
const LONG: usize = 8;
/// Plain words of a cell: what it is, and one word of payload.
const PLAIN_WORDS: usize = 3;
/// The cell, in every memory, whose flag is the doorbell.
const BELL: usize = 0;
/// The first cells' flags are doorbell and acknowledgements.
const RING: usize = 3 * CELL_WORDS;

/// How a model is broken.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Broken {
    Nothing,
    /// A flag or an acknowledgement does not release what was written before.
    Release,
    /// What is read after a flag or an acknowledgement is not ordered behind it.
    Acquire,
    /// A receiver says that it is through before it has read.
    Early,
    /// A sender does not ask whether its reader, or the second of them, is through.
    Unasked,
    /// The sleeper, or the waker, does not fence.
    SleepersFence,
    WakersFence,
    /// The sleeper does not look once more.
    SecondLook,
    /// A waker that has woken a sleeper does so never again.
    SecondWaking,
}

/// The region of a rank.
struct Memory {
    flags: Vec<AtomicU64>,
    plain: Vec<UnsafeCell<u64>>,
    segment: UnsafeCell<u64>,
    broken: Broken,
}

// SAFETY: loom runs one thread at a time, and reports accesses to a cell that nothing orders.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

impl Memory {
    fn new(rings: usize, cells: usize, broken: Broken) -> Arc<Self> {
        let flags = RING / CELL_WORDS + rings * cells;
        Arc::new(Self {
            flags: (0..flags).map(|_| AtomicU64::new(0)).collect(),
            plain: (0..rings * cells * PLAIN_WORDS)
                .map(|_| UnsafeCell::new(0))
                .collect(),
            segment: UnsafeCell::new(0),
            broken,
        })
    }

    fn plain(&self, at: usize) -> &UnsafeCell<u64> {
        let cell = (at - RING) / CELL_WORDS;
        &self.plain[cell * PLAIN_WORDS + at % CELL_WORDS - 1]
    }

    fn write_segment(&self, value: u64) {
        // SAFETY: loom checks that nobody else is at the cell.
        self.segment.with_mut(|segment| unsafe { *segment = value });
    }

    fn read_segment(&self) -> u64 {
        // SAFETY: loom checks that nobody writes the cell.
        self.segment.with(|segment| unsafe { *segment })
    }
}

impl ReadWords for Memory {
    fn load(&self, at: usize) -> u64 {
        match at % CELL_WORDS {
            0 => self.flags[at / CELL_WORDS].load(Ordering::Relaxed),
            // SAFETY: loom checks that nobody writes the cell.
            _ => self.plain(at).with(|word| unsafe { *word }),
        }
    }

    fn acquire(&self) {
        if self.broken != Broken::Acquire {
            fence(Ordering::Acquire);
        }
    }
}

impl WriteWords for Memory {
    fn store(&self, at: usize, value: u64) {
        match at % CELL_WORDS {
            0 => self.flags[at / CELL_WORDS].store(value, Ordering::Relaxed),
            // SAFETY: loom checks that nobody else is at the cell.
            _ => self.plain(at).with_mut(|word| unsafe { *word = value }),
        }
    }

    fn release(&self, at: usize, value: u64) {
        let order = match self.broken {
            Broken::Release => Ordering::Relaxed,
            _ => Ordering::Release,
        };
        self.flags[at / CELL_WORDS].store(value, order);
    }
}

/// Where, in its memory, receiver `number` says what it is through with.
fn acknowledgement(number: usize) -> usize {
    (1 + number) * CELL_WORDS
}

fn head(number: u32) -> Head {
    Head {
        digest: 1,
        form: 2,
        sequence: 3,
        number,
    }
}

/// The payload of cell `number`.
fn payload(number: u32) -> u64 {
    u64::from(number) * 1000
}

fn send<const CELLS: usize>(sender: &mut Sender<CELLS>, own: &Memory, number: u32, through: u32) {
    let bytes = payload(number).to_le_bytes();
    sender.publish(own, head(number), &bytes, through);
}

/// Reads cell `number` and what is beside its flag, if it is there; returns what it acknowledges.
fn glance<const CELLS: usize>(
    receiver: &Receiver<CELLS>,
    theirs: &Memory,
    number: u32,
) -> Option<u32> {
    let (found, through) = receiver.peek(theirs)?;
    assert_eq!(found, head(number));
    let mut bytes = [0; INLINE_BYTES];
    receiver.inline(theirs, &mut bytes, 8);
    assert_eq!(bytes[..8], payload(number).to_le_bytes());
    Some(through)
}

/// Waits for cell `number`.
fn look<const CELLS: usize>(receiver: &Receiver<CELLS>, theirs: &Memory, number: u32) -> u32 {
    loop {
        if let Some(through) = glance(receiver, theirs, number) {
            return through;
        }
        thread::yield_now();
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(4);
    builder.check(model);
}

/// More cells than a ring has, each with a payload beside it and one in the one segment.
fn one_ring(broken: Broken) {
    const CELLS: u32 = 3;
    check(move || {
        let (near, far) = (Memory::new(1, SHORT, broken), Memory::new(0, SHORT, broken));
        let reader = {
            let (near, far) = (near.clone(), far.clone());
            thread::spawn(move || {
                let mut receiver = Receiver::<SHORT>::new(RING, acknowledgement(0));
                for number in 1..=CELLS {
                    look(&receiver, &near, number);
                    if broken == Broken::Early {
                        receiver.pass(&*far, true);
                    }
                    assert_eq!(near.read_segment(), payload(number));
                    if broken != Broken::Early {
                        receiver.pass(&*far, true);
                    }
                }
            })
        };
        let mut sender = Sender::<SHORT>::new(RING, acknowledgement(0));
        for number in 1..=CELLS {
            let before = sender.count();
            while !sender.has_room(&*far)
                || (broken != Broken::Unasked && !sender.is_through(&*far, before))
            {
                thread::yield_now();
            }
            near.write_segment(payload(number));
            send(&mut sender, &near, number, 0);
        }
        reader.join().unwrap();
    });
}

/// Cells alone, as many as there is room for: the ring itself is what is used again.
fn cells_alone(broken: Broken) {
    const CELLS: u32 = 4;
    check(move || {
        let (near, far) = (Memory::new(1, SHORT, broken), Memory::new(0, SHORT, broken));
        let reader = {
            let (near, far) = (near.clone(), far.clone());
            thread::spawn(move || {
                let mut receiver = Receiver::<SHORT>::new(RING, acknowledgement(0));
                for number in 1..=CELLS {
                    if broken == Broken::Early && number == 2 {
                        far.release(acknowledgement(0), 2);
                    }
                    look(&receiver, &near, number);
                    receiver.pass(&*far, false);
                }
            })
        };
        let mut sender = Sender::<SHORT>::new(RING, acknowledgement(0));
        for number in 1..=CELLS {
            while broken != Broken::Unasked && !sender.has_room(&*far) {
                thread::yield_now();
            }
            send(&mut sender, &near, number, 0);
        }
        reader.join().unwrap();
    });
}

/// The reader acknowledges by its own cells alone, and the sender looks at nothing else.
fn there_and_back(broken: Broken) {
    check(move || {
        let (near, far) = (Memory::new(1, LONG, broken), Memory::new(1, LONG, broken));
        let other = {
            let (near, far) = (near.clone(), far.clone());
            thread::spawn(move || {
                let mut receiver = Receiver::<LONG>::new(RING, acknowledgement(0));
                let mut sender = Sender::<LONG>::new(RING, acknowledgement(0));
                for number in 1..=2 {
                    look(&receiver, &near, number);
                    if broken == Broken::Early {
                        send(&mut sender, &far, number, receiver.through() + 1);
                    }
                    assert_eq!(near.read_segment(), payload(number));
                    receiver.pass(&*far, false);
                    if broken != Broken::Early {
                        send(&mut sender, &far, number, receiver.through());
                    }
                }
            })
        };
        let mut receiver = Receiver::<LONG>::new(RING, acknowledgement(0));
        let mut sender = Sender::<LONG>::new(RING, acknowledgement(0));
        for number in 1..=2 {
            near.write_segment(payload(number));
            send(&mut sender, &near, number, receiver.through());
            if broken == Broken::Unasked {
                continue;
            }
            sender.hear(look(&receiver, &far, number));
            receiver.pass(&*near, false);
            // It knows, and has not looked at the other's word.
            assert!(sender.is_through(&Blind, u64::from(number)));
        }
        other.join().unwrap();
    });
}

/// Words that nobody may look at.
struct Blind;

impl ReadWords for Blind {
    fn load(&self, at: usize) -> u64 {
        panic!("looked at word {at}");
    }

    fn acquire(&self) {}
}

/// One segment, published to two. Who would have to wait gives up instead: three that wait for each
/// other are too much to go through.
fn two_readers(broken: Broken) {
    check(move || {
        let near = Memory::new(2, SHORT, broken);
        let far = [(); 2].map(|()| Memory::new(0, SHORT, broken));
        let ring = |reader| RING + reader * SHORT * CELL_WORDS;
        let readers = [0, 1].map(|reader: usize| {
            let (near, far) = (near.clone(), far[reader].clone());
            thread::spawn(move || {
                let mut receiver = Receiver::<SHORT>::new(ring(reader), acknowledgement(0));
                for number in 1..=2 {
                    if glance(&receiver, &near, number).is_none() {
                        return;
                    }
                    if broken == Broken::Early {
                        receiver.pass(&*far, true);
                    }
                    assert_eq!(near.read_segment(), payload(number));
                    if broken != Broken::Early {
                        receiver.pass(&*far, true);
                    }
                }
            })
        });
        let mut senders =
            [0, 1].map(|reader: usize| Sender::<SHORT>::new(ring(reader), acknowledgement(0)));
        for number in 1..=2 {
            let is_asked = |reader| reader == 0 || broken != Broken::Unasked;
            let is_free = senders.iter_mut().enumerate().all(|(reader, sender)| {
                let before = sender.count();
                !is_asked(reader) || sender.is_through(&*far[reader], before)
            });
            if is_free {
                near.write_segment(payload(number));
                for sender in &mut senders {
                    send(sender, &near, number, 0);
                }
            }
        }
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

/// What a rank sleeps on.
struct Sleep {
    /// It was woken, and has not slept since.
    is_woken: AtomicU64,
    /// Nobody will wake it any more.
    is_over: AtomicU64,
}

impl Sleep {
    fn wait(&self) {
        loop {
            let is_over = self.is_over.load(Ordering::Acquire) == 1;
            if self.is_woken.swap(0, Ordering::Acquire) == 1 {
                return;
            }
            assert!(!is_over, "sleeps for ever");
            thread::yield_now();
        }
    }
}

/// A rank that sleeps whenever there is nothing, and one that sends it two cells.
fn waking(broken: Broken) {
    const CELLS: u32 = 2;
    check(move || {
        let (near, far) = (Memory::new(1, SHORT, broken), Memory::new(0, SHORT, broken));
        let sleep = Arc::new(Sleep {
            is_woken: AtomicU64::new(0),
            is_over: AtomicU64::new(0),
        });
        let sleeper = {
            let (near, far, sleep) = (near.clone(), far.clone(), sleep.clone());
            thread::spawn(move || sleep_through(broken, &near, &far, &sleep, CELLS))
        };
        let mut sender = Sender::<SHORT>::new(RING, acknowledgement(0));
        let mut woken = 0;
        for number in 1..=CELLS {
            send(&mut sender, &near, number, 0);
            // As `SharedLink::flush`.
            if broken != Broken::WakersFence {
                fence(Ordering::SeqCst);
            }
            let doorbell = far.load(BELL);
            let is_first = woken == 0 || broken != Broken::SecondWaking;
            if doorbell % 2 == 1 && doorbell != woken && is_first {
                woken = doorbell;
                sleep.is_woken.swap(1, Ordering::Release);
            }
        }
        sleep.is_over.store(1, Ordering::Release);
        sleeper.join().unwrap();
    });
}

fn sleep_through(broken: Broken, near: &Memory, far: &Memory, sleep: &Sleep, cells: u32) {
    let mut receiver = Receiver::<SHORT>::new(RING, acknowledgement(0));
    let mut doorbell = 0;
    let mut next = 1;
    while next <= cells {
        let mut is_there = receiver.peek(near).is_some();
        if !is_there {
            doorbell += 1;
            far.store(BELL, doorbell);
            if broken != Broken::SleepersFence {
                fence(Ordering::SeqCst);
            }
            is_there = broken != Broken::SecondLook && receiver.peek(near).is_some();
            if !is_there {
                sleep.wait();
            }
            doorbell += 1;
            far.store(BELL, doorbell);
        }
        if is_there {
            look(&receiver, near, next);
            receiver.pass(far, true);
            next += 1;
        }
    }
}

#[test]
fn a_ring_hands_over_cells_and_segments() {
    one_ring(Broken::Nothing);
}

#[test]
fn a_ring_is_used_again_and_again() {
    cells_alone(Broken::Nothing);
}

#[test]
fn a_cell_acknowledges_the_other_direction() {
    there_and_back(Broken::Nothing);
}

#[test]
fn a_segment_waits_for_all_its_readers() {
    two_readers(Broken::Nothing);
}

#[test]
fn nobody_sleeps_through_a_cell() {
    waking(Broken::Nothing);
}

/// The checker finds what is broken.
macro_rules! found {
    ($($name:ident $model:ident $broken:ident $complaint:literal;)*) => {$(
        #[test]
        #[should_panic(expected = $complaint)]
        fn $name() {
            $model(Broken::$broken);
        }
    )*};
}

found! {
    a_flag_without_release one_ring Release "Causality violation";
    a_flag_without_acquire one_ring Acquire "Causality violation";
    a_segment_acknowledged_early one_ring Early "Causality violation";
    a_segment_written_unasked one_ring Unasked "Causality violation";
    a_cell_without_release cells_alone Release "Causality violation";
    a_cell_without_acquire cells_alone Acquire "Causality violation";
    a_cell_acknowledged_early cells_alone Early "Causality violation";
    a_cell_written_unasked cells_alone Unasked "Causality violation";
    a_reply_without_release there_and_back Release "Causality violation";
    a_reply_without_acquire there_and_back Acquire "Causality violation";
    a_reply_that_acknowledges_early there_and_back Early "Causality violation";
    a_reply_not_waited_for there_and_back Unasked "Causality violation";
    a_reader_without_release two_readers Release "Causality violation";
    a_reader_without_acquire two_readers Acquire "Causality violation";
    a_reader_that_is_early two_readers Early "Causality violation";
    a_second_reader_not_asked two_readers Unasked "Causality violation";
    a_sleeper_without_fence waking SleepersFence "sleeps for ever";
    a_waker_without_fence waking WakersFence "sleeps for ever";
    a_sleeper_that_does_not_look_again waking SecondLook "sleeps for ever";
    a_waker_that_wakes_once waking SecondWaking "sleeps for ever";
}
