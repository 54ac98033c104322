//! Defines the limits of the library as named constants, each documented with its rationale. They
//! are kept in one file so that they are easy to audit. The limits of plans are in `crates/plan`.

#[doc(inline)]
pub use ringtree_plan::internal::limits::*;
use std::time::Duration;

/// Maximum number of ranks. A rank number must fit into the 32-bit fields of messages with room to
/// spare.
pub const WORLD_SIZE_MAX: usize = 1 << 20;
/// Default timeout for a call.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(300);
/// Maximum timeout. Longer timeouts are reduced to this value so that clocks and blocking system
/// calls, which accept milliseconds in 31 bits, do not overflow.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(14 * 24 * 3600);
/// Timeout value that means "no timeout". A call with this timeout does not start a clock.
pub const NO_TIMEOUT: Duration = Duration::MAX;
/// Time that a rank waits before it tells its peers which call it is waiting in. It is also the
/// initial interval between such notices.
pub const WAITING_NOTICE_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of times that a rank waiting without a deadline doubles the interval between its
/// notices. The longest interval is therefore 17 minutes.
pub const NOTICES_DOUBLED_MAX: u32 = 10;
/// Maximum number of peers that a waiting rank queries per notice. If the rank is waiting for more
/// peers than this, it queries different ones with each notice.
pub const PEERS_QUERIED_MAX: usize = 8;
/// Number of consecutive queries that a peer may leave unanswered before its last answer is
/// discarded.
pub const ANSWERS_MISSED_MAX: u32 = 2;
/// Maximum length of a communicator name, in bytes. A single message may contain two names.
pub const COMMUNICATOR_NAME_BYTES_MAX: usize = 64;
/// Default time that a rank waits before it prints a stall warning to standard error. The warning
/// names the missing ranks and reports which call, if any, each of them is in.
pub const STALL_WARNING_DEFAULT: Duration = Duration::from_secs(10);
/// Maximum number of ranks that a waiting rank names as the cause of a delay, and maximum number of
/// ranks whose waits it reports.
pub const PLACES_MAX: usize = 8;
/// Maximum time that a rank that has reported an error waits to learn which error came first. After
/// that, the rank uses its own error.
pub const FIRST_ERROR_GRACE: Duration = Duration::from_millis(800);
/// Maximum time to wait for a connection to arrive after the rank that opened it has left.
pub const LINK_GRACE: Duration = Duration::from_secs(1);
/// Maximum time that the coordinator waits, after learning of a failure, for marks from the
/// surviving ranks.
pub const MARKS_GRACE: Duration = Duration::from_secs(1);
/// Maximum time that a caller sleeps while another thread polls.
pub const WAITER_SLEEP_MAX: Duration = Duration::from_millis(20);
/// Minimum interval at which a thread that is waiting in a call checks whether the user has
/// interrupted the program.
pub const INTERRUPT_EVERY: Duration = Duration::from_millis(50);
/// Minimum size, in bytes, of a message that is exposed rather than copied. A message can be
/// exposed only if its readers can read the memory in place.
pub const EXPOSED_BYTES_MIN: usize = 16 << 10;
/// Minimum size, in bytes, of a buffer for which a call also exposes the parts that it overwrites.
/// A smaller buffer stays in its core's cache, so taking every cache line back from the reader
/// would cost more than copying the buffer.
pub const EXPOSED_OVERWRITTEN_BYTES_MIN: usize = 2 << 20;
/// Minimum number of bytes that are offered to a link at a time, unless fewer bytes of the message
/// are left.
pub const SEND_GRAIN_BYTES: usize = 64 << 10;
/// Maximum time that a rank waits, after a link has closed, for a goodbye message that would
/// explain why.
pub const GOODBYE_GRACE: Duration = Duration::from_millis(150);
/// Maximum time that a rank that has received data of a different call waits for the error of the
/// peer, which compares the calls of both ranks. If the peer has left or a call is overdue,
/// [`GOODBYE_GRACE`] applies instead.
pub const COMPARISON_GRACE: Duration = Duration::from_secs(3);
/// Number of past calls that a rank remembers for each communicator. It needs this record to answer
/// peers that ask which call it made.
pub const CALLS_REMEMBERED: usize = 256;
/// Number of tags, from 0, that a rank tries if a message does not match its receive. The message
/// contains only a digest of its tag, and the sender may have left.
pub const TAGS_TRIED: u32 = 256;
/// Maximum number of checked calls by other ranks that the coordinator remembers until it makes the
/// same calls itself.
pub const CALLS_AHEAD_MAX: usize = 1 << 16;
/// Maximum number of payload bytes per frame header on a byte stream.
pub const SEGMENT_BYTES: usize = 1 << 20;
/// Maximum size, in bytes, of a payload that is read together with its header. A larger payload is
/// read directly into its destination.
pub const INLINE_BYTES_MAX: usize = 16 << 10;
/// Maximum number of unauthenticated connections per listener. Even if 1,000 unauthenticated peers
/// connect per second and each gets as far through the handshake as it can, every connection keeps
/// its slot for longer than a legitimate handshake takes.
pub const HANDSHAKES_PENDING_MAX: usize = 64;
/// Time after which an unauthenticated connection is closed.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time that an authenticated rank may take to confirm the handshake. The initiator waits
/// for the answer for a much shorter time, so a connection that the initiator relies on is never
/// closed.
pub const HANDSHAKE_CONFIRMATION_MAX: Duration = Duration::from_secs(30);
/// Reciprocal of the fraction of the control thread's time that unauthenticated peers may consume.
pub const STRANGERS_SHARE: u32 = 10;
/// Amount of control thread time by which a burst of unauthenticated peers may exceed the fraction
/// set by [`STRANGERS_SHARE`].
pub const STRANGERS_BURST: Duration = Duration::from_millis(50);
/// Time for which a process must be unable to open a connection before it counts as short of file
/// descriptors. A shorter shortage may simply mean that the program is opening many files at the
/// moment.
pub const DESCRIPTORS_GRACE: Duration = Duration::from_millis(250);
/// Maximum size of a control message, in bytes. The address table of the world is therefore sent in
/// pieces.
pub const CONTROL_MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Maximum size of an error's text, in bytes. This is enough for a page of a traceback. The middle
/// of a longer text is removed. An error with two texts of this size takes up an eighth of a
/// control message.
pub const ERROR_BYTES_MAX: usize = 4 << 10;
/// Maximum total size, in bytes, of the reports that a rank sends to its launcher, which reads them
/// into memory. This is enough for about a thousand errors.
pub const REPORTS_BYTES_MAX: usize = 1 << 20;
/// Maximum size, in bytes, of a name that a peer sends, such as a host name or a communicator name.
/// The names in 8 wait reports take up a sixteenth of a control message.
pub const NAME_BYTES_MAX: usize = 512;
/// Maximum number of block lengths that a rank sends to another rank whose call has different block
/// lengths. At ten bytes each, they fit into a control message.
pub const COUNTS_SENT_MAX: usize = 4096;
/// Maximum total size, in bytes, of the control messages queued for a rank that is not reading
/// them. If the queue grows larger, the rank is considered lost.
pub const CONTROL_QUEUE_BYTES_MAX: usize = 16 << 20;
/// Maximum number of control messages that the control thread processes in a row before it turns to
/// its other tasks.
pub const CONTROL_BATCH_MAX: usize = 1024;
/// Time after which a control connection counts as lost if the peer's host has not acknowledged
/// anything.
pub const CONTROL_UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(6);
/// Minimum round-trip time of a connection whose send buffer is made as large as the system allows.
pub const LONG_ROUND_TRIP: Duration = Duration::from_millis(20);
/// Time after which a data connection counts as disconnected if the peer's host has not sent an
/// acknowledgment that is due.
pub const CUT_OFF_AFTER: Duration = Duration::from_secs(5);
/// Interval at which a rank checks the data connections that a call is waiting for. Together with
/// [`CUT_OFF_AFTER`], this interval ensures that a disconnection is detected within 6 seconds.
pub const DISCONNECT_CHECK_INTERVAL: Duration = Duration::from_millis(400);
/// Maximum number of processes of other ranks that a rank watches. Each watched process requires a
/// file descriptor.
pub const PROCESSES_WATCHED_MAX: usize = 128;
/// Maximum time that a rank keeps trying to resolve the rendezvous host name. A cluster may not
/// publish the name until rank 0 is running.
pub const RESOLVE_RETRY_TIME: Duration = Duration::from_secs(30);
/// Minimum time that rank 0, when it leaves, keeps forwarding control messages before it notifies
/// the other ranks.
pub const CONTROL_RELAY_MIN: Duration = Duration::from_millis(100);
/// Maximum time that rank 0 keeps forwarding control messages after it has notified the other ranks
/// that it is leaving, if some of them do not answer.
pub const CONTROL_RELAY_MAX: Duration = Duration::from_millis(500);
/// Maximum time that a leaving process waits for its last control messages to be sent.
pub const CONTROL_CLOSE_MAX: Duration = Duration::from_secs(1);
/// Time that rank 0 stays available after a failed join so that it can report the cause to ranks
/// that arrive late.
pub const JOIN_FAILURE_NOTICE: Duration = Duration::from_secs(5);
/// Time after which a process that is still waiting for other processes at startup prints why it is
/// waiting. If a rank exits successfully while other ranks are still running, a launcher also waits
/// this long before it reports that.
pub const START_NOTICE_AFTER: Duration = Duration::from_secs(5);
/// Interval at which a process that is still waiting at startup prints further messages.
pub const START_TOLD_EVERY: Duration = Duration::from_secs(30);
/// Maximum time that a rank that leaves its last group waits until its events have been emitted.
pub const EVENTS_SETTLE_MAX: Duration = Duration::from_secs(1);
/// Maximum number of events that wait until they are emitted.
pub const EVENTS_QUEUED_MAX: usize = 256;
/// Maximum time that a rank that was lost during the join may take to reconnect. Such a rank may
/// have been restarted.
pub const REJOIN_GRACE: Duration = Duration::from_secs(1);
/// Time after which a port that has not answered a handshake is considered a different service, not
/// the rendezvous.
pub const FOREIGN_SERVICE_AFTER: Duration = Duration::from_millis(500);
/// Time budget for measuring the speed of shared memory when the ranks connect. Each of the four
/// measured costs gets a quarter of the budget. The measurement stops after the batch of calls that
/// exceeds the budget.
pub const MEASURING_SHARED_MEMORY: Duration = Duration::from_millis(8);
/// Time budget for measuring the speed of a network. It is divided in the same way as
/// [`MEASURING_SHARED_MEMORY`].
pub const MEASURING_NETWORK: Duration = Duration::from_millis(40);
/// Maximum number of passes per measurement. The lowest result is used.
pub const MEASURING_PASSES: usize = 3;
/// Time limit for opening the window of a connection before the connection's speed is measured. If
/// [`MEASURING_ROUND_TRIPS`] round trips take longer than this, their duration is the limit.
pub const MEASURING_WINDOW: Duration = Duration::from_millis(100);
/// Lower bound of the time limit for opening windows, in round trips. A window can double with each
/// round trip.
pub const MEASURING_ROUND_TRIPS: f64 = 20.0;
/// Factor by which each message that opens a window is longer than the previous one.
pub const MEASURING_GROWTH: usize = 4;
/// Maximum size, in bytes, of a message that opens a window.
pub const MEASURING_BYTES_MAX: usize = 16 << 20;
/// Ratio above which a window counts as open. The time per byte of a message is divided by that of
/// the previous, shorter message.
pub const MEASURING_SETTLED: f64 = 0.8;
/// Number of untimed warm-up calls over shared memory. These calls touch every segment.
pub const MEASURING_WARM_UP_CALLS: usize = 8;
/// Maximum number of batches of calls per pass. The fastest batch is used.
pub const MEASURING_BATCHES_MAX: usize = 15;
/// Minimum number of batches per pass. Until a pass has completed this many batches, it may take up
/// to [`MEASURING_OVERTIME`] times its time budget.
pub const MEASURING_BATCHES_MIN: usize = 7;
/// Factor by which the time budget of a pass is extended until the pass has completed
/// [`MEASURING_BATCHES_MIN`] batches. If the network is too slow for that many batches, the pass
/// ends when the extended budget is used up.
pub const MEASURING_OVERTIME: f64 = 4.0;
/// Approximate duration of a batch of short calls. It is much longer than the time needed to read a
/// clock and much shorter than the time for which another process runs once the scheduler has given
/// it the core.
pub const MEASURING_BATCH: Duration = Duration::from_micros(40);
/// Maximum number of calls per batch.
pub const MEASURING_CALLS_MAX: usize = 64;
/// Number of consecutive operations that must each need less than a quarter of a communicator's
/// scratch memory before the communicator shrinks it. The communicator retains as much memory as
/// the last of these operations needed.
pub const SCRATCH_KEPT_FOR: u32 = 64;
/// Exclusive upper bound for group numbers. A channel number is three bits wider than a group
/// number. Each group number is used only once in a job.
pub const GROUPS_MAX: u32 = 1 << 29;
/// Maximum number of members in a group that does not contain all ranks. The list of members must
/// fit into a control message.
pub const MEMBERS_LISTED_MAX: usize = 16 << 10;
/// Maximum number of groups that a rank can be waiting to create at the same time, one per thread.
pub const JOINS_OPEN_MAX: usize = 64;
/// Maximum number of ranks listed in an error about a group.
pub const RANKS_LISTED_MAX: usize = 8;
/// Total size, in bytes, of the shared-memory segments in a region that belongs to a group created
/// from another group. With 64 such groups of 8 ranks each, the segments take up 48 MiB per rank.
pub const GROUP_SEGMENTS_BYTES: usize = 768 << 10;
/// Number of fruitless passes that a waiting rank makes before it yields, if it has a core to
/// itself. A pass over TCP takes one or two system calls, so all the passes together take about 10
/// µs. That is about as long as a running peer needs to respond, but shorter than the delay that a
/// peer on the same core would cause.
pub const SPIN_PASSES: u32 = 20;
/// Number of fruitless passes, each followed by a yield, that a waiting rank makes before it
/// sleeps. If each rank has its own session or control group, the scheduler lets a yielding rank
/// run for its full share of the core even while another rank is computing. The number of passes is
/// therefore low. Even so, 4 ranks on 2 cores that communicate over TCP are no slower than they
/// would be with three times as many passes.
pub const YIELD_PASSES: u32 = 300;
/// Maximum time that a yield takes while only waiting ranks share the core. If a yield takes
/// longer, another thread computes on the core. The scheduler lets each such thread run for
/// milliseconds.
pub const YIELD_MAX: Duration = Duration::from_millis(1);
/// Time for which a waiting rank does not yield after a yield has taken longer than [`YIELD_MAX`].
/// It doubles, up to [`CROWDED_MAX`], each time that the next yields are no better.
pub const CROWDED_MIN: Duration = Duration::from_millis(400);
/// Maximum time for which a waiting rank does not yield. With four computing threads on the core, a
/// yield takes 12 ms or more, so the yields that find out whether the core is free take less than
/// one percent of the time.
pub const CROWDED_MAX: Duration = Duration::from_millis(3200);
/// Number of passes over the in-flight operations that a background thread makes before it turns to
/// its other tasks.
pub const BACKGROUND_PASSES: u32 = 64;
/// Maximum time for which the program's code may occupy the background thread before the control
/// thread takes over and advances operations in its place. Waking a task takes a thousandth of this
/// time.
pub const PROGRAM_CODE_MAX: Duration = Duration::from_millis(10);
/// Interval at which a sleeping rank checks its deadlines until its peers know that it is waiting.
/// This interval also applies while the cause of a failure is being determined.
pub const IDLE_SLEEP: Duration = Duration::from_millis(50);
/// Interval at which a sleeping rank checks for disconnections once its peers know that it is
/// waiting.
pub const NOTIFIED_SLEEP: Duration = DISCONNECT_CHECK_INTERVAL;
/// Shortest time that a rank sleeps in the reactor, which rounds shorter times up. For a shorter
/// time, the rank sleeps outside the reactor, so arriving data does not wake it.
pub const REACTOR_SLEEP_MIN: Duration = Duration::from_millis(1);
/// Size, in bytes, of the largest gradient bucket that is chosen automatically. This is PyTorch's
/// default bucket size.
pub const BUCKET_BYTES_MAX: usize = 25 << 20;
/// Size, in bytes, of the smallest gradient bucket that is chosen automatically. For smaller
/// buckets, the overhead of a call exceeds the time needed to transfer the bytes, whatever the
/// link.
pub const BUCKET_BYTES_MIN: usize = 64 << 10;
/// Number of times that each rank is asked for the time on its clock when the recordings of a trace
/// are gathered. The fastest answer is used.
pub const CLOCK_QUESTIONS: usize = 16;
/// Maximum total size, in bytes, of the tensor names and shapes in a checkpoint. Readers of the
/// safetensors format reject larger headers.
pub const TENSOR_HEADER_BYTES_MAX: usize = 100_000_000;
/// Maximum size, in bytes, of a value (such as a name, shape, setting or metric) that a rank
/// accepts from another rank.
pub const VALUE_BYTES_MAX: usize = TENSOR_HEADER_BYTES_MAX;
/// Maximum number of bytes that a rank allocates for a value before the first byte arrives. A value
/// is sent in pieces. For each subsequent piece, the rank allocates at most as many bytes as have
/// already arrived.
pub const VALUE_PIECE_BYTES: usize = 64 << 10;
/// Maximum length of a custom operator's name, in bytes. A single message may contain two names.
pub const OPERATOR_NAME_BYTES_MAX: usize = 64;
/// Total size, in bytes, of the pieces that a custom operator combines at a time, one from each
/// rank. Pieces of this size stay in the cache.
pub const OPERATOR_SCRATCH_BYTES: usize = 4 << 20;
/// Maximum number of times that a reader tries to read a checkpoint. The reader starts over if a
/// writer replaces the checkpoint while it is being read.
pub const CHECKPOINT_LOOKS_MAX: usize = 5;
/// Maximum number of channels for which a rank keeps file descriptors that local peers passed to it
/// before it asked for them. It keeps at most one descriptor per rank and channel. Threads that
/// create communicators concurrently need only a few channels.
pub const HANDED_CHANNELS_MAX: usize = 64;
/// Maximum number of channels for which a rank keeps connections from peers that have run ahead and
/// created the channel before the rank has.
pub const CHANNELS_AHEAD_MAX: usize = 64;
/// Number of connections that a rank may be dialing at the same time before it starts to ignore
/// further dial requests from its peers.
pub const DIALS_ASKED_MAX: usize = 4096;
/// Maximum number of dropped groups that the control thread remembers. It remembers them so that it
/// can ignore late requests from peers for the channels of these groups.
pub const FORGOTTEN_MAX: usize = 1024;
/// Maximum number of datagrams that are read from a rank's local socket in a row. This is more than
/// the system queues for one socket.
pub const DATAGRAMS_AT_ONCE: usize = 1024;
/// Interval at which a rank that is waiting for other ranks to share their memory checks that these
/// ranks are alive and that the group has not failed.
pub const FD_PASSING_PROBE_EVERY: Duration = Duration::from_millis(100);

/// Number of fruitless polls that a call running step by step makes without yielding, if every rank
/// has its own core. The polls take about ten microseconds. Notifying a peer takes just as long if
/// another program occupies one of the cores.
pub const CALL_SPINS: u32 = 300;
/// Number of further polls that the call makes once [`CALL_SPINS`] is used up. It yields its core
/// after each of these polls. After the last one, it unlocks the engine.
pub const CALL_YIELDS: u32 = 100;

/// Maximum number of sources for one launch of a reduction on a device. The addresses of the
/// sources are launch arguments. A call that would reduce more sources at a time is staged through
/// host memory instead.
pub const DEVICE_SOURCES_MAX: usize = 64;
/// Minimum size, in bytes, of a piece of a device buffer. While one piece is being copied to the
/// host, the previous piece is in flight and the piece before that is being copied back.
pub const DEVICE_PIECE_BYTES_MIN: usize = 1 << 20;
/// Maximum size, in bytes, of a piece of a device buffer. It is slightly less than 4 MiB because
/// pinned memory is allocated in powers of two.
pub const DEVICE_PIECE_BYTES_MAX: usize = (4 << 20) - (64 << 10);
/// Maximum number of pieces that start together. These pieces share one allocation of pinned
/// memory.
pub const DEVICE_PIECES_MAX: usize = 16;
/// Maximum number of entries that the calls of one communicator may have in each device queue. If a
/// call needs more entries, it waits for the oldest ones to complete. Drivers hold about 1,000
/// entries before a driver call blocks.
pub const DEVICE_ENTRIES_MAX: usize = 256;
/// Number of frames in a rank's window, which is the device memory that its peers read. The pieces
/// of calls alternate between the frames.
pub const DEVICE_FRAMES: usize = 2;
/// Size of a frame, in bytes. Everything that a rank sends for one piece fits into a frame.
pub const DEVICE_FRAME_BYTES: usize = 32 << 20;
/// Maximum size, in bytes, of a piece in a call between GPUs that read each other's memory. Larger
/// pieces need fewer launches, but smaller pieces allow more overlap.
pub const DEVICE_MAPPED_BYTES_MAX: usize = 16 << 20;
/// Maximum amount of pinned memory, in bytes, that the calls of one communicator use at the same
/// time.
pub const DEVICE_PINNED_BYTES_MAX: usize = 256 << 20;
/// Number of pinned areas that a device buffer keeps for copies of its contents. While the stream
/// copies from one area, the host fills the other.
pub const BUFFER_AREAS_MAX: usize = 2;
/// Number of times that a busy device is polled without sleeping in between, unless another thread
/// needs the core.
pub const DEVICE_LOOKS: u32 = 100;
/// Time that a caller sleeps between subsequent polls of a busy device.
pub const DEVICE_SLEEP: Duration = Duration::from_micros(20);
/// Additional time, beyond the timeout of a call, that a caller waits for the streams. The call's
/// deadline therefore expires first. The call then reports which ranks are late and releases the
/// streams.
pub const DEVICE_GRACE: Duration = Duration::from_secs(1);
/// Maximum time that a communicator, when dropped, waits for its streams to finish. Memory that the
/// streams may still be using after that time is leaked.
pub const DEVICE_CLOSE_MAX: Duration = Duration::from_millis(200);
