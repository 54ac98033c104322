//! Limits on plans and predictions, each with its rationale.

/// Size of a link's receive buffer, in bytes. Payload data that is about to be reduced passes
/// through this buffer, so the buffer should fit into the second-level cache.
pub const BOUNCE_BYTES: usize = 256 << 10;
/// Lower limit of a measured cost, as a fraction of the built-in cost.
pub const TUNING_FACTOR_MIN: f64 = 1e-2;
/// Upper limit of a measured TCP cost, as a multiple of the built-in cost. It corresponds to 1.2 s
/// per message and 27 kB/s. Higher costs indicate that the measurement was disturbed, not that the
/// link is slow.
pub const TUNING_FACTOR_MAX_TCP: f64 = 1e5;
/// Like [`TUNING_FACTOR_MAX_TCP`], but applies to shared memory. It corresponds to 75 µs per
/// message and 67 MB/s. A message takes about 10 µs if there are a few times as many ranks as
/// cores, and 100 µs if two spinning ranks share a core.
pub const TUNING_FACTOR_MAX_SHM: f64 = 500.0;
/// Maximum amount of scratch, in bytes, for plans whose scratch is larger than the buffer.
/// Gathering every rank's contribution is suitable only for short buffers, and all ranks on a host
/// allocate their scratch from the same memory.
pub const SCRATCH_BYTES_MAX: usize = 16 << 20;
/// Largest number of ranks for which a custom algorithm is verified when it is registered. Mistakes
/// show up even with few ranks, and verifying up to this number takes only milliseconds.
pub const OWN_ALGORITHM_PROVEN_RANKS: usize = 8;
/// Largest radix of an algorithm. With radix k, a rank exchanges at most k − 1 messages per round,
/// and one kernel launch on a device reduces at most k operands.
pub const RADIX_MAX: usize = 64;
/// Largest number of ranks for which the verifier determines whether an algorithm reduces in rank
/// order. For more ranks, the result for this number is used, because the time and memory that the
/// verifier needs grow with the square of the number of ranks (it takes a few hundredths of a
/// second for this number). This number is larger than any radix, so no algorithm puts this many
/// ranks into a single group.
pub const IN_RANK_ORDER_PROVEN_RANKS: usize = RADIX_MAX + 1;
/// Largest number of ranks for which the times of plans across sites are predicted message by
/// message. Such a prediction takes up to several thousand steps per algorithm and radix. For more
/// ranks, a bound is used.
pub const SITES_COUNTED_RANKS_MAX: usize = 64;
/// Largest number of ranks for which plans are checked for links that a call uses twice.
pub const REUSE_COUNTED_RANKS_MAX: usize = 4096;
/// Maximum number of programs (bound plans) that are cached per communicator. When the cache is
/// full, it is emptied.
pub const PROGRAMS_CACHED_MAX: usize = 512;
/// Minimum size of a slice, in bytes. Longer buffers are exchanged in slices. All-reduces of 25 MiB
/// across 8 hosts were fastest with this size, both at 200 Mbit/s with a latency of 5 ms and at 1
/// Gbit/s with a latency of 0.25 ms. With slices that were twice as long, the bytes that
/// out-of-step ranks sent to the same port no longer fit into a queue of 1 MiB.
pub const SLICE_BYTES_MIN: usize = 512 << 10;
/// Minimum size, in bytes, of each block in a slice. Blocks should not be too small because every
/// block takes up an entry in a system call.
pub const SLICE_BLOCK_BYTES_MIN: usize = 16 << 10;
/// Maximum number of pieces per block. A pipelined plan has one round for each piece. With this
/// many pieces, each piece of a 2 GiB broadcast fits into a shared-memory segment.
pub const PIECES_MAX: usize = 1 << 14;
/// Largest number of ranks for which the command line runs the verifier.
pub const VERIFY_RANKS_MAX: usize = 1024;
/// Maximum number of ranks per host. A single launcher starts all ranks on a host, each with three
/// threads and its own process group. Predictions for shared memory cover up to this many ranks.
pub const RANKS_PER_HOST_MAX: usize = 1024;
/// Maximum number of rounds, summed over all ranks, for which traffic is counted from the plans.
/// Counting this many rounds takes a fraction of a second. For more rounds, the closed form is
/// used.
pub const TRAFFIC_STEPS_MAX: usize = 1 << 20;
/// Largest number of ranks for which a plan is drawn or listed message by message.
pub const DRAWN_RANKS_MAX: usize = 64;
/// Maximum number of transfers per rank in a plan that a page plays. This is the number of
/// transfers in the longest plan for 64 ranks and 1 MiB. It also keeps a page with two 16-rank
/// plans under 200 KB.
pub const PLAYED_TRANSFERS_PER_RANK_MAX: usize = 256;
/// Maximum number of spans in a rank's trace. Any further spans are dropped and only counted.
pub const TRACE_SPANS_MAX: usize = 1 << 16;
/// Size of a shared-memory segment, in bytes. This is the most that a rank publishes at a time.
/// Segments are reused so that they stay in the cache.
pub const SHARED_SEGMENT_BYTES: usize = 128 << 10;
