//! Every bound of the library, named, with its reason. One file, so that a reader can audit them.

#[doc(inline)]
pub use ringtree_plan::limits::*;
use std::time::Duration;

/// The largest world: a rank must fit the wire's 32-bit fields with room to spare.
pub const WORLD_SIZE_MAX: usize = 1 << 20;
/// A call that names no deadline ends by this one.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(300);
/// A longer timeout counts as this one: clocks and the system's waits (milliseconds in 31 bits)
/// must not overflow by it.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(14 * 24 * 3600);
/// The timeout of a call that starts no clock.
pub const PATIENT: Duration = Duration::MAX;
/// A rank that has waited this long tells its peers what it is waiting in, again and again.
pub const WAITING_NOTICE_AFTER: Duration = Duration::from_secs(1);
/// A rank that waits without a deadline doubles the time between two notices so often: to 17 min.
pub const NOTICES_DOUBLED_MAX: u32 = 10;
/// Peers that a waiting rank asks at once; if it waits for more, they take turns.
pub const PEERS_ASKED_MAX: usize = 8;
/// Questions a rank may leave unanswered before its last answer is forgotten.
pub const ANSWERS_MISSED_MAX: u32 = 2;
/// Bytes of a communicator's name: it is shown in one line beside another one.
pub const COMMUNICATOR_NAME_BYTES_MAX: usize = 64;
/// A rank that has waited this long says on standard error for which ranks, and where they are.
pub const STALL_WARNING_DEFAULT: Duration = Duration::from_secs(10);
/// Ranks that a waiting rank says it is held up by, and ranks whose waits it tells of.
pub const PLACES_MAX: usize = 8;
/// How long a rank that reported an error waits for the first error before it takes its own.
pub const FIRST_ERROR_GRACE: Duration = Duration::from_millis(800);
/// A connection that a rank had made before it left may still be on its way for so long.
pub const LINK_GRACE: Duration = Duration::from_secs(1);
/// How long rank 0, once it knows of a failure, waits for the marks of the ranks it has not lost.
pub const MARKS_GRACE: Duration = Duration::from_secs(1);
/// A caller that waits while another thread polls sleeps this long at most before it looks again.
pub const POLLER_SLEEP: Duration = Duration::from_millis(20);
/// A thread that waits in a call asks at most so often whether the program's user has interrupted
/// it.
pub const INTERRUPT_EVERY: Duration = Duration::from_millis(50);
/// A message of so many bytes that lies where its readers can read it is exposed, not copied.
pub const EXPOSED_BYTES_MIN: usize = 16 << 10;
/// In smaller buffers nothing is exposed that the same call overwrites: they stay in the core's own
/// cache, and to take every line back from the reader's costs more than to copy it out.
pub const EXPOSED_OVERWRITTEN_BYTES_MIN: usize = 2 << 20;
/// A link is offered at least this much at once, unless less is left of the message.
pub const SEND_GRAIN_BYTES: usize = 64 << 10;
/// How long a rank that saw a link close waits for a goodbye that would explain it.
pub const GOODBYE_GRACE: Duration = Duration::from_millis(150);
/// Own calls remembered per communicator, to answer a peer that asks what ours was.
pub const CALLS_REMEMBERED: usize = 256;
/// Checked calls that rank 0 remembers because it has not made them yet itself.
pub const CALLS_AHEAD_MAX: usize = 1 << 16;
/// Bytes of payload under one frame header on a byte stream.
pub const SEGMENT_BYTES: usize = 1 << 20;
/// A payload up to this long is read together with its header; a longer one straight into place.
pub const INLINE_BYTES_MAX: usize = 16 << 10;
/// Unauthenticated connections a listener holds at once. Even if 1,000 strangers a second go as far
/// in the handshake as they can, each has its place for longer than an honest handshake takes.
pub const HANDSHAKES_PENDING_MAX: usize = 64;
/// An unauthenticated connection is closed after this long.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// A rank that has proven itself must confirm within this time. Much longer than the initiator
/// waits for the answer: no connection ends that the initiator counts on.
pub const HANDSHAKE_CONFIRMATION_MAX: Duration = Duration::from_secs(30);
/// Of a second, strangers may take the control thread one part in so many.
pub const STRANGERS_SHARE: u32 = 10;
/// How much of what strangers may take they may take at once.
pub const STRANGERS_BURST: Duration = Duration::from_millis(50);
/// A process that could open no connection for so long has too few descriptors; a shorter lack may
/// be a program's that opens many files for a moment.
pub const DESCRIPTORS_GRACE: Duration = Duration::from_millis(250);
/// The longest control message; a world's address table is sent in pieces below it.
pub const CONTROL_MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Bytes of an error's text, whose middle is cut out of a longer one: a page of a traceback. An
/// error with two such texts takes an eighth of a control message.
pub const ERROR_BYTES_MAX: usize = 4 << 10;
/// Bytes of a rank's reports to its launcher, which reads them into memory: some thousand errors.
pub const REPORTS_BYTES_MAX: usize = 1 << 20;
/// Bytes of a name that a peer tells, of a host or a communicator: the names of 8 waits take a
/// sixteenth of a control message.
pub const NAME_BYTES_MAX: usize = 512;
/// Lengths of blocks that a rank tells another one whose call has others: with ten bytes each they
/// fit a control message.
pub const COUNTS_TOLD_MAX: usize = 4096;
/// Control messages queued for one rank that does not read them; above it the rank counts as lost.
pub const CONTROL_QUEUE_BYTES_MAX: usize = 16 << 20;
/// Control messages taken in a row before the control thread sees to its other duties.
pub const MESSAGES_AT_ONCE: usize = 1024;
/// A control connection whose peer's host acknowledges nothing for this long counts as lost.
pub const CONTROL_UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(6);
/// From here on a connection's send buffer is made as large as the system allows.
pub const LONG_ROUND_TRIP: Duration = Duration::from_millis(20);
/// A data connection whose peer's host acknowledges nothing for this long, while it should, is cut.
pub const CUT_OFF_AFTER: Duration = Duration::from_secs(5);
/// How often data connections that are waited for are looked at. With the time above, a cut is
/// noticed within 6 s.
pub const CUTS_FOUND_EVERY: Duration = Duration::from_millis(400);
/// Processes of other ranks that a rank watches, each with a descriptor.
pub const PROCESSES_WATCHED_MAX: usize = 128;
/// A rendezvous name that does not resolve is asked for again for this long: a cluster may publish
/// it only when rank 0 is up.
pub const RESOLVE_RETRY_TIME: Duration = Duration::from_secs(30);
/// How long rank 0, when it leaves, passes control messages on before it tells the other ranks, and
pub const CONTROL_RELAY_MIN: Duration = Duration::from_millis(100);
/// for how long after that, for ranks that do not answer.
pub const CONTROL_RELAY_MAX: Duration = Duration::from_millis(500);
/// How long a process that leaves waits until its last control messages have been sent.
pub const CONTROL_CLOSE_MAX: Duration = Duration::from_secs(1);
/// How long rank 0 stays after a failed join, to tell the ranks that come late why.
pub const JOIN_FAILURE_NOTICE: Duration = Duration::from_secs(5);
/// A start that waits for other processes tells the user so after this long, and a launcher of
/// which a rank has ended well, while others run,
pub const START_TOLD_AFTER: Duration = Duration::from_secs(5);
/// and then this often.
pub const START_TOLD_EVERY: Duration = Duration::from_secs(30);
/// A rank that is lost during the join may come back for so long: it may have been started again.
pub const REJOIN_GRACE: Duration = Duration::from_secs(1);
/// A port that answers no handshake within this time is not the rendezvous.
pub const FOREIGN_SERVICE_AFTER: Duration = Duration::from_millis(500);
/// How long the speed of shared memory is measured at connect: each of the numbers has a quarter of
/// it, and the batches of calls that end later are the last.
pub const MEASURING_SHARED_MEMORY: Duration = Duration::from_millis(8);
/// Likewise over a network.
pub const MEASURING_NETWORK: Duration = Duration::from_millis(40);
/// Everything is measured so often while there is time, and the least counts.
pub const MEASURING_PASSES: usize = 3;
/// How long the windows of connections may open before their speed is measured, unless
/// [`MEASURING_ROUND_TRIPS`] take longer. The messages that
/// open them grow by this factor, to at most so many bytes, while their bytes still pass faster
/// than this share of the time before.
pub const MEASURING_WINDOW: Duration = Duration::from_millis(100);
/// See [`MEASURING_WINDOW`]: a window that doubles in each is then a thousand times as large.
pub const MEASURING_ROUND_TRIPS: f64 = 20.0;
/// See [`MEASURING_WINDOW`].
pub const MEASURING_GROWTH: usize = 4;
/// See [`MEASURING_WINDOW`].
pub const MEASURING_BYTES_MAX: usize = 16 << 20;
/// See [`MEASURING_WINDOW`].
pub const MEASURING_SETTLED: f64 = 0.8;
/// Calls in shared memory before the first that is timed: each of its segments has been touched.
pub const MEASURING_WARM_UP_CALLS: usize = 8;
/// Batches of calls at most in a pass, of which the least time counts.
pub const MEASURING_BATCHES_MAX: usize = 15;
/// Fewer batches than this may take so many times as long as they should.
pub const MEASURING_BATCHES_MIN: usize = 7;
/// See [`MEASURING_BATCHES_MIN`]: a call of a slow network is not repeated that often.
pub const MEASURING_OVERTIME: f64 = 4.0;
/// A batch of short calls takes about this long: much more than reading a clock, much less than
/// another process runs once it has taken the core.
pub const MEASURING_BATCH: Duration = Duration::from_micros(40);
/// Calls of a batch at most.
pub const MEASURING_CALLS_MAX: usize = 64;
/// After so many operations in a row that need less than a quarter of the scratch that their
/// communicator keeps, it keeps no more than the last of them needs.
pub const SCRATCH_KEPT_FOR: u32 = 64;
/// Group numbers are below this: the number of what a group hands around has three bits more. Each
/// is given once in a job.
pub const GROUPS_MAX: u32 = 1 << 29;
/// Members of a group that is not all ranks: a list of them fits a control message.
pub const MEMBERS_LISTED_MAX: usize = 16 << 10;
/// Groups that a rank may wait for at once, in threads of its own, before they are made.
pub const JOINS_OPEN_MAX: usize = 64;
/// Ranks that an error about a group lists.
pub const RANKS_LISTED_MAX: usize = 8;
/// Bytes of the segments of shared memory in a region of a group that is made from another one: 64
/// groups of 8 ranks take 48 MiB a rank.
pub const GROUP_SEGMENTS_BYTES: usize = 768 << 10;
/// Fruitless passes a waiting rank makes before it yields, where it has a core to itself. A pass
/// over TCP is a system call or two, so this is around 10 µs: about what a peer that runs needs,
/// shorter than what a peer on the same core would be held up for.
pub const SPIN_PASSES: u32 = 20;
/// Fruitless passes in which a waiting rank lets others run before it sleeps. Where each rank is in
/// a session or control group of its own, the scheduler lets a rank that yields go on for its share
/// of the core beside one that computes; so they are few, and 4 ranks on 2 cores over TCP still
/// take no longer than with three times as many.
pub const YIELD_PASSES: u32 = 300;
/// Passes over operations under way that a thread in the background makes before it sees to its
/// other duties.
pub const BACKGROUND_PASSES: u32 = 64;
/// Once code of the program has kept the background thread this long, the control thread advances
/// operations in its place. Waking a task takes a thousandth of it.
pub const PROGRAM_CODE_MAX: Duration = Duration::from_millis(10);
/// A sleeping rank looks at its deadlines this often, until its peers know that it waits; and while
/// a failure is settled.
pub const IDLE_SLEEP: Duration = Duration::from_millis(50);
/// After that it looks so often whether its connections are cut.
pub const PATIENT_SLEEP: Duration = CUTS_FOUND_EVERY;
/// The largest bucket of gradients that is chosen automatically: PyTorch's default.
pub const BUCKET_BYTES_MAX: usize = 25 << 20;
/// The smallest one: below it the work of a call outweighs what it moves on any link.
pub const BUCKET_BYTES_MIN: usize = 64 << 10;
/// Questions that a trace asks each rank for its clock; the fastest answer counts.
pub const CLOCK_QUESTIONS: usize = 16;
/// Names and shapes of a checkpoint's tensors: readers of the safetensors format refuse more.
pub const TENSOR_HEADER_BYTES_MAX: usize = 100_000_000;
/// Bytes of a value (names, shapes, settings, metrics) that a rank takes from another one.
pub const VALUE_BYTES_MAX: usize = TENSOR_HEADER_BYTES_MAX;
/// A value travels in pieces: room is made for this much before any of it has come, and then for
/// as much again as has come.
pub const VALUE_PIECE_BYTES: usize = 64 << 10;
/// The longest name of a program's own operator: it is shown in one line beside another one.
pub const OPERATOR_NAME_BYTES_MAX: usize = 64;
/// All ranks' pieces that are folded by a program's own operator at once: they stay in cache.
pub const OPERATOR_SCRATCH_BYTES: usize = 4 << 20;
/// How often a reader of checkpoints starts again because a writer beside it replaced what it was
/// reading.
pub const CHECKPOINT_LOOKS_MAX: usize = 5;
/// Channels for which a rank keeps descriptors that its local peers passed before it asked; of each
/// at most one a rank. Threads that make communicators at once need a few.
pub const HANDED_CHANNELS_MAX: usize = 64;
/// Channels that this rank does not have yet and for which it keeps connections of peers that are
/// ahead.
pub const CHANNELS_AHEAD_MAX: usize = 64;
/// Data connections that are being dialed while a rank dials another one because its peer asks.
pub const DIALS_ASKED_MAX: usize = 4096;
/// Channels of dropped groups that the control thread remembers, for what peers asked in time.
pub const FORGOTTEN_MAX: usize = 1024;
/// Datagrams taken from a rank's local socket in a row: more than the system queues for one.
pub const DATAGRAMS_AT_ONCE: usize = 1024;
/// How often a rank that waits for others' memory makes sure that they are still there, and that
/// the group has not failed.
pub const HAND_OVER_PROBE_EVERY: Duration = Duration::from_millis(100);

/// The spin budget of a call run step by step, in fruitless looks, where every rank has a core:
/// some ten microseconds, which is also what notifying a peer costs when another program takes one
/// of the cores.
pub const CALL_SPINS: u32 = 300;
/// After the spin budget the call looks so many times more, and yields its core after each look;
/// then it unlocks the engine.
pub const CALL_YIELDS: u32 = 100;

/// Sources of one reduce on a device: their addresses travel with the launch. More take several
/// launches.
pub const DEVICE_SOURCES_MAX: usize = 64;
/// Bytes of a piece of a device's buffer, at least and at most: a piece is copied to the host while
/// the one before it travels and the one before that is copied back.
pub const DEVICE_PIECE_BYTES_MIN: usize = 1 << 20;
/// See [`DEVICE_PIECE_BYTES_MIN`]. A little less than 4 MiB: pinned memory comes in powers of two.
pub const DEVICE_PIECE_BYTES_MAX: usize = (4 << 20) - (64 << 10);
/// Pieces that are begun together; their pinned memory is one.
pub const DEVICE_PIECES_MAX: usize = 16;
/// Entries in each queue of a device that calls of one communicator may have there, of about 1,000
/// that drivers hold before a call waits for room; another call waits for the oldest.
pub const DEVICE_ENTRIES_MAX: usize = 256;
/// Frames of a rank's window of device memory that peers read, used in turns by the pieces of
/// calls.
pub const DEVICE_FRAMES: usize = 2;
/// Bytes of a frame. Pieces are cut so that all that a rank sends of one fits.
pub const DEVICE_FRAME_BYTES: usize = 32 << 20;
/// Bytes of a piece of a call among GPUs that read each other's memory, at most: the larger it is,
/// the less its launches cost; the more there are, the more of them overlap.
pub const DEVICE_MAPPED_BYTES_MAX: usize = 16 << 20;
/// Pinned memory that calls of one communicator may use at once.
pub const DEVICE_PINNED_BYTES_MAX: usize = 256 << 20;
/// Pinned memories that a device buffer keeps for its content to pass through: while the stream
/// copies from one, the host fills the other.
pub const BUFFER_AREAS_MAX: usize = 2;
/// Looks at a busy device without a sleep; later looks have a sleep between them.
pub const DEVICE_LOOKS: u32 = 100;
/// The sleep between two looks at a busy device.
pub const DEVICE_SLEEP: Duration = Duration::from_micros(20);
/// How much longer than a call may take a caller waits for the streams: the call's own deadline,
/// which says who is late, comes first, and releases the streams.
pub const DEVICE_GRACE: Duration = Duration::from_secs(1);
/// How long a communicator that is dropped waits for its streams to end their work. Memory that
/// they may still use after that is leaked.
pub const DEVICE_CLOSE_MAX: Duration = Duration::from_millis(200);
