//! Bounds of plans and prices, each with its reason.

/// A receive buffer of a link: payload that must be folded passes through it, so it should stay in
/// the second-level cache.
pub const BOUNCE_BYTES: usize = 256 << 10;
/// A measured number is at least this share of the built-in one.
pub const TUNING_FACTOR_MIN: f64 = 1e-2;
/// A measured number of TCP above this multiple of the built-in one (1.2 s a message, 29 kB/s) is
/// no link's, but a disturbance's.
pub const TUNING_FACTOR_MAX_TCP: f64 = 1e5;
/// Likewise in shared memory: 75 µs a message, 67 MB/s. Where ranks outnumber cores by a few
/// times, a message takes some 10 µs; where two ranks that spin share a core, 100.
pub const TUNING_FACTOR_MAX_SHM: f64 = 500.0;
/// Scratch of a plan that needs more than one buffer of it: gathering every rank's contribution is
/// for short buffers, and ranks of one host have their scratch in the same memory.
pub const SCRATCH_BYTES_MAX: usize = 16 << 20;
/// A program's own algorithm is proven for up to so many ranks when it is registered: a mistake
/// shows with few, and the proof takes milliseconds.
pub const OWN_ALGORITHM_PROVEN_RANKS: usize = 8;
/// The largest radix of an algorithm: a rank exchanges one message less in a round, and a launch on
/// a device reduces as many operands.
pub const RADIX_MAX: usize = 64;
/// Which algorithms fold in rank order is found by a proof for up to so many ranks; with more they
/// take the answer for so many, because a proof takes time and memory like the square of the ranks
/// (here some hundredths of a second). No radix makes one group of so many.
pub const IN_RANK_ORDER_PROVEN_RANKS: usize = RADIX_MAX + 1;
/// Plans of ranks at several sites are priced message by message for up to so many ranks, each
/// algorithm and radix in up to some thousands of steps; with more by a bound.
pub const SITES_COUNTED_RANKS_MAX: usize = 64;
/// The most ranks for which plans are examined for links that a call uses twice.
pub const REUSE_COUNTED_RANKS_MAX: usize = 4096;
/// Programs (bound plans) kept per communicator; above it the cache is emptied.
pub const PROGRAMS_CACHED_MAX: usize = 512;
/// An exchange of a longer buffer is done in slices of at least this length. All-reduces of 25 MiB
/// on 8 hosts were fastest with it both at 200 Mbit/s + 5 ms and at 1 Gbit/s + 0.25 ms; with twice
/// as much, what ranks out of step sent to one port no longer fitted a queue of 1 MiB.
pub const SLICE_BYTES_MIN: usize = 512 << 10;
/// A slice has at least this much of every block: each takes a place in a system call.
pub const SLICE_BLOCK_BYTES_MIN: usize = 16 << 10;
/// The most pieces a block is split into: a pipelined plan has a round for each. With this many, a
/// broadcast of 2 GiB fits segments of shared memory.
pub const PIECES_MAX: usize = 1 << 14;
/// Above this many ranks the command line does not run the verifier.
pub const VERIFY_RANKS_MAX: usize = 1024;
/// Ranks that share a host: what one launcher starts there, each with three threads and a process
/// group, and what plans in shared memory are priced for.
pub const RANKS_PER_HOST_MAX: usize = 1024;
/// Pricing a plan counts every rank's rounds up to this many, which takes a fraction of a second;
/// above it the closed form answers.
pub const TRAFFIC_STEPS_MAX: usize = 1 << 20;
/// Above this many ranks a plan is neither drawn nor listed message by message.
pub const DRAWN_RANKS_MAX: usize = 64;
/// A page plays plans with up to this many transfers per rank. The longest plan for 64 ranks and
/// 1 MiB has as many, and a page of two plans for 16 ranks stays below 200 KB.
pub const PLAYED_TRANSFERS_PER_RANK_MAX: usize = 256;
/// Spans that a rank's trace holds; later ones are counted and dropped.
pub const TRACE_SPANS_MAX: usize = 1 << 16;
/// Bytes of a segment of shared memory: the most that a rank publishes at once. Segments are
/// recycled, so that they stay in cache.
pub const SHARED_SEGMENT_BYTES: usize = 128 << 10;
