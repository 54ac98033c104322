//! Checks the shared-memory rings and the wake-up protocol with the model checker loom, for two or
//! three ranks and a few cells. Loom explores the interleavings, and the values that the memory
//! model allows.
//!
//! The production code of the rings operates on the model's words. Flags, acknowledgements and
//! doorbells are atomics. All other words, and the segments, are plain memory in the model, so loom
//! reports every unordered access to them, even if the real words would tolerate it. Each model
//! also runs once for each way to break it. The checker must detect every defect, which shows that
//! the models check something.

#![allow(clippy::unwrap_used)]

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use ringtree::internal::link::shm::{
    CELL_WORDS, Head, INLINE_BYTES, ReadWords, Receiver, Sender, WriteWords,
};

/// Number of cells in a short ring, whose receiver acknowledges every cell immediately.
const SHORT: usize = 2;
/// Number of cells in a long ring. Its receiver acknowledges only in the cells that it sends,
/// because the model sends too few cells for a separate acknowledgement.
const LONG: usize = 8;
/// Number of plain words in a cell: two in its head, and one in its payload.
const PLAIN_WORDS: usize = 3;
/// Index of the cell whose flag is the doorbell, in every rank's memory.
const BELL: usize = 0;
/// Index of the first word of the rings. The flags of the cells before it are the doorbell and the
/// acknowledgements.
const RING: usize = 3 * CELL_WORDS;

/// The defect that a model contains.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Broken {
    Nothing,
    /// A flag or an acknowledgement is written without release ordering.
    Release,
    /// A flag or an acknowledgement is read without acquire ordering.
    Acquire,
    /// A receiver acknowledges a cell before it has read the data.
    Early,
    /// A sender does not check whether its reader, or the second of two readers, has finished.
    Unchecked,
    /// The sleeper does not execute its fence.
    SleepersFence,
    /// The waker does not execute its fence.
    WakersFence,
    /// The sleeper does not check for a cell again before it sleeps.
    SecondLook,
    /// The waker wakes the sleeper only once.
    SecondWaking,
}

/// The region of a rank.
struct Memory {
    flags: Vec<AtomicU64>,
    plain: Vec<UnsafeCell<u64>>,
    segment: UnsafeCell<u64>,
    broken: Broken,
}

// SAFETY: loom runs one thread at a time, and reports unordered accesses to a cell.
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
        // SAFETY: loom checks that no other thread accesses the cell.
        self.segment.with_mut(|segment| unsafe { *segment = value });
    }

    fn read_segment(&self) -> u64 {
        // SAFETY: loom checks that no thread writes the cell.
        self.segment.with(|segment| unsafe { *segment })
    }
}

impl ReadWords for Memory {
    fn load(&self, at: usize) -> u64 {
        match at % CELL_WORDS {
            0 => self.flags[at / CELL_WORDS].load(Ordering::Relaxed),
            // SAFETY: loom checks that no thread writes the cell.
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
            // SAFETY: loom checks that no other thread accesses the cell.
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

/// Returns the word of a receiver's memory in which receiver `number` acknowledges cells.
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

/// Returns the payload of cell `number`.
fn payload(number: u32) -> u64 {
    u64::from(number) * 1000
}

fn send<const CELLS: usize>(sender: &mut Sender<CELLS>, own: &Memory, number: u32, through: u32) {
    let bytes = payload(number).to_le_bytes();
    sender.publish(own, head(number), &bytes, through);
}

/// Reads cell `number` and its payload. Returns the count that the cell acknowledges, or `None` if
/// the cell has not arrived.
fn try_receive<const CELLS: usize>(
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

/// Like [`try_receive`], but waits for the cell.
fn receive<const CELLS: usize>(receiver: &Receiver<CELLS>, theirs: &Memory, number: u32) -> u32 {
    loop {
        if let Some(through) = try_receive(receiver, theirs, number) {
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

/// Sends more cells than a ring holds. Each cell carries a payload, and the only segment holds
/// another payload.
fn one_ring(broken: Broken) {
    const CELLS: u32 = 3;
    check(move || {
        let (near, far) = (Memory::new(1, SHORT, broken), Memory::new(0, SHORT, broken));
        let reader = {
            let (near, far) = (near.clone(), far.clone());
            thread::spawn(move || {
                let mut receiver = Receiver::<SHORT>::new(RING, acknowledgement(0));
                for number in 1..=CELLS {
                    receive(&receiver, &near, number);
                    if broken == Broken::Early {
                        receiver.finish(&*far, true);
                    }
                    assert_eq!(near.read_segment(), payload(number));
                    if broken != Broken::Early {
                        receiver.finish(&*far, true);
                    }
                }
            })
        };
        let mut sender = Sender::<SHORT>::new(RING, acknowledgement(0));
        for number in 1..=CELLS {
            let before = sender.count();
            while !sender.has_room(&*far)
                || (broken != Broken::Unchecked && !sender.is_acknowledged(&*far, before))
            {
                thread::yield_now();
            }
            near.write_segment(payload(number));
            send(&mut sender, &near, number, 0);
        }
        reader.join().unwrap();
    });
}

/// Sends cells without a segment whenever the ring has space, so that the ring's cells are reused.
fn reused_cells(broken: Broken) {
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
                    receive(&receiver, &near, number);
                    receiver.finish(&*far, false);
                }
            })
        };
        let mut sender = Sender::<SHORT>::new(RING, acknowledgement(0));
        for number in 1..=CELLS {
            while broken != Broken::Unchecked && !sender.has_room(&*far) {
                thread::yield_now();
            }
            send(&mut sender, &near, number, 0);
        }
        reader.join().unwrap();
    });
}

/// Sends cells in both directions. The reader acknowledges only in its own cells, and the sender
/// reads no acknowledgement word.
fn both_directions(broken: Broken) {
    check(move || {
        let (near, far) = (Memory::new(1, LONG, broken), Memory::new(1, LONG, broken));
        let other = {
            let (near, far) = (near.clone(), far.clone());
            thread::spawn(move || {
                let mut receiver = Receiver::<LONG>::new(RING, acknowledgement(0));
                let mut sender = Sender::<LONG>::new(RING, acknowledgement(0));
                for number in 1..=2 {
                    receive(&receiver, &near, number);
                    if broken == Broken::Early {
                        send(&mut sender, &far, number, receiver.finished() + 1);
                    }
                    assert_eq!(near.read_segment(), payload(number));
                    receiver.finish(&*far, false);
                    if broken != Broken::Early {
                        send(&mut sender, &far, number, receiver.finished());
                    }
                }
            })
        };
        let mut receiver = Receiver::<LONG>::new(RING, acknowledgement(0));
        let mut sender = Sender::<LONG>::new(RING, acknowledgement(0));
        for number in 1..=2 {
            near.write_segment(payload(number));
            send(&mut sender, &near, number, receiver.finished());
            if broken == Broken::Unchecked {
                continue;
            }
            sender.record_acknowledgment(receive(&receiver, &far, number));
            receiver.finish(&*near, false);
            // The sender knows the count without reading the acknowledgement word.
            assert!(sender.is_acknowledged(&Unreadable, u64::from(number)));
        }
        other.join().unwrap();
    });
}

/// Words that must not be read.
struct Unreadable;

impl ReadWords for Unreadable {
    fn load(&self, at: usize) -> u64 {
        panic!("read word {at}");
    }

    fn acquire(&self) {}
}

/// Publishes one segment to two readers. A thread that would have to wait returns instead, because
/// three threads that wait for each other have too many interleavings to explore.
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
                    if try_receive(&receiver, &near, number).is_none() {
                        return;
                    }
                    if broken == Broken::Early {
                        receiver.finish(&*far, true);
                    }
                    assert_eq!(near.read_segment(), payload(number));
                    if broken != Broken::Early {
                        receiver.finish(&*far, true);
                    }
                }
            })
        });
        let mut senders =
            [0, 1].map(|reader: usize| Sender::<SHORT>::new(ring(reader), acknowledgement(0)));
        for number in 1..=2 {
            let is_checked = |reader| reader == 0 || broken != Broken::Unchecked;
            let is_free = senders.iter_mut().enumerate().all(|(reader, sender)| {
                let before = sender.count();
                !is_checked(reader) || sender.is_acknowledged(&*far[reader], before)
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

/// The state that a sleeping rank waits on.
struct Sleep {
    /// 1 if the rank was woken and has not slept since.
    is_woken: AtomicU64,
    /// 1 if no thread will wake the rank again.
    is_over: AtomicU64,
}

impl Sleep {
    fn wait(&self) {
        loop {
            let is_over = self.is_over.load(Ordering::Acquire) == 1;
            if self.is_woken.swap(0, Ordering::Acquire) == 1 {
                return;
            }
            assert!(!is_over, "sleeps forever");
            thread::yield_now();
        }
    }
}

/// Sends two cells to a rank that sleeps whenever no cell has arrived.
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
            // Like `SharedLink::flush`.
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
            receive(&receiver, near, next);
            receiver.finish(far, true);
            next += 1;
        }
    }
}

#[test]
fn ring_passes_cells_and_segments_to_reader() {
    one_ring(Broken::Nothing);
}

#[test]
fn ring_reuses_its_cells() {
    reused_cells(Broken::Nothing);
}

#[test]
fn cell_acknowledges_opposite_direction() {
    both_directions(Broken::Nothing);
}

#[test]
fn segment_waits_for_all_readers() {
    two_readers(Broken::Nothing);
}

#[test]
fn no_rank_sleeps_after_a_cell_has_arrived() {
    waking(Broken::Nothing);
}

/// Tests that the checker detects a defect of a model.
macro_rules! detects {
    ($($name:ident $model:ident $broken:ident $report:literal;)*) => {$(
        #[test]
        #[should_panic(expected = $report)]
        fn $name() {
            $model(Broken::$broken);
        }
    )*};
}

detects! {
    detects_segment_flag_without_release one_ring Release "Causality violation";
    detects_segment_flag_without_acquire one_ring Acquire "Causality violation";
    detects_segment_acknowledged_early one_ring Early "Causality violation";
    detects_segment_written_unchecked one_ring Unchecked "Causality violation";
    detects_cell_without_release reused_cells Release "Causality violation";
    detects_cell_without_acquire reused_cells Acquire "Causality violation";
    detects_cell_acknowledged_early reused_cells Early "Causality violation";
    detects_cell_written_unchecked reused_cells Unchecked "Causality violation";
    detects_reply_without_release both_directions Release "Causality violation";
    detects_reply_without_acquire both_directions Acquire "Causality violation";
    detects_reply_acknowledging_early both_directions Early "Causality violation";
    detects_missing_wait_for_reply both_directions Unchecked "Causality violation";
    detects_reader_without_release two_readers Release "Causality violation";
    detects_reader_without_acquire two_readers Acquire "Causality violation";
    detects_reader_acknowledging_early two_readers Early "Causality violation";
    detects_unchecked_second_reader two_readers Unchecked "Causality violation";
    detects_sleeper_without_fence waking SleepersFence "sleeps forever";
    detects_waker_without_fence waking WakersFence "sleeps forever";
    detects_sleeper_without_second_look waking SecondLook "sleeps forever";
    detects_waker_that_wakes_only_once waking SecondWaking "sleeps forever";
}
