//! Binds a plan to lengths and memory, which turns the plan's chunks into byte ranges.

use super::program::{
    Action, Dependency, Endpoint, Lane, Piece, Program, ProgramStep, Space, in_order,
};
use crate::plan::internal::layout::{Division, Layout};
use crate::plan::internal::spec::{Collective, Demand};
use crate::plan::internal::spec::{demands, is_blocked, moves_blocks};
use crate::plan::{ChunkRange, Plan, Request, Source, Step};

/// The memory that holds a call's elements and the memory that holds its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// A single buffer holds the elements and the result.
    #[default]
    InPlace,
    /// The elements are in an input, which is only read, and the result is in an output. The input
    /// of an all-gather or gather consists of only this rank's block, and so does the output of a
    /// reduce-scatter or scatter. Only the root has the input of a scatter and the output of a
    /// gather.
    Into,
}

/// The number of elements in a call, and the layouts of the call's blocks. The two layouts differ
/// only in an all-to-all with counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lengths<'a> {
    /// Number of elements in the complete buffer. If counts are given, their sum applies instead.
    pub count: usize,
    /// Layout of the blocks that are read.
    pub input: Layout<'a>,
    /// Layout of the blocks that are written.
    pub output: Layout<'a>,
}

impl From<usize> for Lengths<'_> {
    fn from(count: usize) -> Self {
        Self {
            count,
            ..Self::default()
        }
    }
}

impl Program {
    /// Binds `plan` to buffers of these `lengths`, whose elements have `element_bytes` bytes.
    ///
    /// `is_local` returns `true` for ranks on this rank's host. Bytes that are sent to several of
    /// these ranks are written once.
    ///
    /// ```
    /// use ringtree::internal::engine::Placement;
    /// use ringtree::internal::engine::{Action, Program};
    /// use ringtree::plan::{Algorithm, Collective, Hosts, Request, plan};
    ///
    /// let request = Request {
    ///     collective: Collective::AllReduce,
    ///     algorithm: Algorithm::RecursiveDoubling,
    ///     world_size: 2,
    ///     rank: 0,
    ///     root: 0,
    ///     pieces: 1,
    ///     hosts: Hosts::APART,
    /// };
    /// let program = Program::bind(&plan(&request)?, 100, 4, Placement::InPlace, &|_| false);
    /// let [send, reduce] = program.steps.as_slice() else { panic!("one exchange") };
    /// assert!(matches!(send.action, Action::Send { .. }));
    /// // The reduction overwrites a byte after that byte has been sent.
    /// assert_eq!((reduce.bytes, reduce.dependencies[0].step), (400, 0));
    /// # Ok::<(), String>(())
    /// ```
    #[must_use]
    pub fn bind<'a>(
        plan: &Plan,
        lengths: impl Into<Lengths<'a>>,
        element_bytes: usize,
        placement: Placement,
        is_local: &dyn Fn(usize) -> bool,
    ) -> Self {
        let request = &plan.request;
        let mut binder = Binder {
            plan,
            places: Places::new(plan, lengths.into(), element_bytes, placement),
            is_local,
            program: Program::default(),
            send_lanes: vec![None; request.world_size],
            receive_lanes: vec![None; request.world_size],
            last: vec![Touch::default(); plan.chunks + plan.scratch],
        };
        for (round, steps) in plan.rounds.iter().enumerate() {
            for step in steps {
                binder.add(round, step);
            }
        }
        binder.add_final_copies();
        binder.pad_empty_messages();
        let mut program = binder.program;
        program.scratch_bytes = scratch_bytes(&program.steps);
        program.order = in_order(&program.steps);
        let is_whole = |step: &ProgramStep| step.pieces.len() == 1;
        let longest_bytes = program.steps.iter().map(|step| step.bytes).max();
        program.longest_bytes = longest_bytes.filter(|_| program.steps.iter().all(is_whole));
        program
    }
}

/// The locations of the plan's chunks in memory.
struct Places {
    /// Offset of each chunk in the complete output, followed by the end of the last chunk.
    starts: Vec<usize>,
    /// Like `starts`, for the complete input. Used for chunks that are read before a step has
    /// written them.
    input_starts: Vec<usize>,
    /// Number of chunks in the buffer. The indices of scratch chunks follow.
    chunks: usize,
    placement: Placement,
    /// This rank's own chunks, or all chunks if the collective has no blocks.
    block: std::ops::Range<usize>,
    /// `true` if the input holds only this rank's own chunks.
    is_input_own: bool,
    output: Output,
    /// Offset of the plan's own scratch chunks. Chunks that the output cannot hold are stored
    /// before this offset.
    scratch_start: usize,
    /// `true` if empty messages are dropped. This is possible if the sender and the receiver have
    /// agreed on the length of each message in advance.
    drops_empty: bool,
    element_bytes: usize,
}

/// The chunks that an output can hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    All,
    Own,
    None,
}

impl Places {
    fn new(plan: &Plan, lengths: Lengths, element_bytes: usize, placement: Placement) -> Self {
        let Request {
            collective,
            world_size,
            rank,
            root,
            ..
        } = plan.request;
        let division = Division::new(collective, world_size, plan.chunks, lengths.count);
        let starts = |layout| {
            let division = division.laid(layout);
            let start = |chunk| division.start(chunk) * element_bytes;
            (0..=plan.chunks).map(start).collect::<Vec<_>>()
        };
        let (input_starts, starts) = (starts(lengths.input), starts(lengths.output));
        let pieces = plan.chunks / world_size.max(1);
        let output = match collective {
            _ if placement == Placement::InPlace => Output::All,
            Collective::ReduceScatter | Collective::Scatter => Output::Own,
            Collective::Gather if rank != root => Output::None,
            _ => Output::All,
        };
        // Chunks that the output cannot hold are kept in scratch.
        let scratch_start = match output {
            Output::All => 0,
            Output::Own | Output::None => starts[plan.chunks],
        };
        let by_counts = matches!(lengths.input, Layout::Counts(_)) && moves_blocks(collective);
        Self {
            starts,
            input_starts,
            chunks: plan.chunks,
            placement,
            block: match is_blocked(collective) {
                true => rank * pieces..(rank + 1) * pieces,
                false => 0..plan.chunks,
            },
            is_input_own: matches!(collective, Collective::AllGather | Collective::Gather),
            output,
            scratch_start,
            drops_empty: by_counts,
            element_bytes,
        }
    }

    fn piece(&self, space: Space, starts: &[usize], chunk: usize, base: usize) -> Piece {
        let (start, end) = (starts[chunk], starts[chunk + 1]);
        Piece {
            space,
            offset: start - base,
            bytes: end - start,
        }
    }

    /// Returns the piece from which a chunk is read before a step has written it.
    fn input(&self, chunk: usize) -> Piece {
        // If the input holds only this rank's chunks, no other chunk is read from it.
        let start = self.input_starts[self.block.start].min(self.input_starts[chunk]);
        let base = if self.is_input_own { start } else { 0 };
        self.piece(Space::Input, &self.input_starts, chunk, base)
    }

    /// Returns the piece to which a chunk is written, and from which it is read afterwards.
    fn home(&self, chunk: usize) -> Piece {
        let starts = &self.starts;
        if chunk >= self.chunks {
            let scratch = chunk - self.chunks;
            return Piece {
                offset: self.scratch_start + periodic(starts, scratch),
                ..self.piece(Space::Scratch, starts, scratch % self.chunks, 0)
            };
        }
        match self.output {
            _ if self.placement == Placement::InPlace => {
                self.piece(Space::Buffer, starts, chunk, 0)
            }
            Output::All => self.piece(Space::Output, starts, chunk, 0),
            Output::Own if self.block.contains(&chunk) => {
                self.piece(Space::Output, starts, chunk, starts[self.block.start])
            }
            Output::Own | Output::None => self.piece(Space::Scratch, starts, chunk, 0),
        }
    }
}

/// Returns the offset of chunk `index` in a sequence of adjacent buffers whose chunks all have
/// these `starts`.
fn periodic(starts: &[usize], index: usize) -> usize {
    let chunks = starts.len() - 1;
    (index / chunks) * starts[chunks] + starts[index % chunks]
}

/// The last write to a chunk and the reads since then. Each access is identified by a step and a
/// byte of the step's stream.
#[derive(Clone, Default)]
struct Touch {
    write: Option<(usize, usize)>,
    reads: Vec<(usize, usize)>,
}

struct Binder<'a> {
    plan: &'a Plan,
    places: Places,
    is_local: &'a dyn Fn(usize) -> bool,
    program: Program,
    /// Index of the send lane for each peer, indexed by peer.
    send_lanes: Vec<Option<usize>>,
    receive_lanes: Vec<Option<usize>>,
    last: Vec<Touch>,
}

impl Binder<'_> {
    /// Returns `true` if the chunk is read from the input because no step has written it. Returns
    /// `false` for empty chunks: no step writes them, so they would otherwise make a range look as
    /// if it were read from the input.
    fn is_input(&self, chunk: usize) -> bool {
        self.places.placement == Placement::Into
            && chunk < self.places.chunks
            && self.places.home(chunk).bytes + self.places.input(chunk).bytes > 0
            && self.last[chunk].write.is_none()
    }

    /// Returns the piece from which the chunk must be read now.
    fn source(&self, chunk: usize) -> Piece {
        if self.is_input(chunk) {
            self.places.input(chunk)
        } else {
            self.places.home(chunk)
        }
    }

    fn sources(&self, ranges: &[ChunkRange]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for chunk in chunks(ranges) {
            append(&mut pieces, self.source(chunk));
        }
        pieces
    }

    /// Returns the pieces to which the chunks are written. If this rank's bytes are an operand that
    /// is stored in different memory, also returns the pieces of that operand, which have the same
    /// lengths.
    fn destinations(&self, ranges: &[ChunkRange], reads_own: bool) -> (Vec<Piece>, Vec<Piece>) {
        let (mut pieces, mut own): (Vec<Piece>, Vec<Piece>) = (Vec::new(), Vec::new());
        let reads_input = reads_own && chunks(ranges).any(|chunk| self.is_input(chunk));
        for chunk in chunks(ranges) {
            let home = self.places.home(chunk);
            if !reads_input {
                append(&mut pieces, home);
                continue;
            }
            let source = self.source(chunk);
            let joins = pieces.last().is_some_and(|last| follows(last, &home))
                && own.last().is_some_and(|last| follows(last, &source));
            match (pieces.last_mut(), own.last_mut()) {
                (Some(piece), Some(operand)) if joins => {
                    piece.bytes += home.bytes;
                    operand.bytes += source.bytes;
                }
                _ if home.bytes > 0 => {
                    pieces.push(home);
                    own.push(source);
                }
                _ => {}
            }
        }
        (pieces, own)
    }

    fn add(&mut self, round: usize, step: &Step) {
        match step {
            Step::Send { peers, ranges } => {
                let (local, remote): (Vec<_>, Vec<_>) =
                    peers.iter().partition(|peer| (self.is_local)(**peer));
                if !local.is_empty() {
                    self.send(round, &local, ranges);
                }
                for peer in remote {
                    self.send(round, &[peer], ranges);
                }
            }
            Step::Receive {
                sources,
                ranges,
                completes,
            } => self.receive(round, sources, ranges, *completes),
            Step::Copy { from, to } => {
                let from = std::slice::from_ref(from);
                let action = Action::Copy(self.sources(from));
                self.local(round, action, from, *to);
            }
            Step::Reduce {
                from,
                to,
                completes,
            } => {
                let operands = from.iter().map(|one| self.sources(&[*one]));
                let action = Action::Fold {
                    from: operands.collect(),
                    completes: *completes,
                };
                self.local(round, action, from, *to);
            }
        }
    }

    fn send(&mut self, round: usize, peers: &[&usize], ranges: &[ChunkRange]) {
        let pieces = self.sources(ranges);
        if pieces.is_empty() && self.places.drops_empty {
            return;
        }
        let index = self.program.steps.len();
        let to = peers
            .iter()
            .map(|peer| endpoint(&mut self.program.sends, &mut self.send_lanes, **peer, index));
        let to = to.collect();
        let mut dependencies = Vec::new();
        self.touch(index, ranges, false, &mut dependencies);
        let action = Action::Send { to, exposed: None };
        self.push(round, action, (pieces, Vec::new()), dependencies);
    }

    fn receive(
        &mut self,
        round: usize,
        sources: &[Source],
        ranges: &[ChunkRange],
        completes: bool,
    ) {
        let own = sources.iter().position(|source| *source == Source::Own);
        let places = self.destinations(ranges, own.is_some());
        let peers = sources.iter().filter_map(|source| match source {
            Source::Own => None,
            Source::Peer(peer) => Some(*peer),
        });
        if places.0.is_empty() {
            if !self.places.drops_empty {
                peers.for_each(|peer| self.receive_nothing(round, peer));
            }
            return;
        }
        let index = self.program.steps.len();
        let (lanes, of_peer) = (&mut self.program.receives, &mut self.receive_lanes);
        let from: Vec<_> = peers
            .map(|peer| endpoint(lanes, of_peer, peer, index))
            .collect();
        let action = match (from.as_slice(), own) {
            ([from], None) => Action::Store(*from),
            _ => Action::Reduce {
                from,
                own,
                completes,
            },
        };
        let mut dependencies = Vec::new();
        // A receive that only stores bytes reads nothing, but it must wait for the last writer,
        // too.
        self.touch(index, ranges, true, &mut dependencies);
        self.push(round, action, places, dependencies);
    }

    fn receive_nothing(&mut self, round: usize, peer: usize) {
        let index = self.program.steps.len();
        let (lanes, of_peer) = (&mut self.program.receives, &mut self.receive_lanes);
        let from = endpoint(lanes, of_peer, peer, index);
        self.push(round, Action::Store(from), Default::default(), Vec::new());
    }

    fn local(&mut self, round: usize, action: Action, from: &[ChunkRange], to: ChunkRange) {
        let places = self.destinations(&[to], false);
        if places.0.is_empty() {
            return;
        }
        let index = self.program.steps.len();
        self.program.locals.push(index);
        let mut dependencies = Vec::new();
        self.touch(index, &[to], true, &mut dependencies);
        for one in from.iter().filter(|one| **one != to) {
            self.touch(index, &[*one], false, &mut dependencies);
        }
        self.push(round, action, places, dependencies);
    }

    /// Extends each empty message to the length of one element. The element is stored after all
    /// other scratch.
    fn pad_empty_messages(&mut self) {
        let nothing = Piece {
            space: Space::Scratch,
            offset: scratch_bytes(&self.program.steps),
            bytes: self.places.element_bytes,
        };
        for step in self.program.steps.iter_mut().filter(|step| step.bytes == 0) {
            step.pieces.push(nothing);
            step.bytes = nothing.bytes;
        }
    }

    /// Adds copies of the chunks that the plan leaves in the input but that the caller needs in the
    /// output.
    fn add_final_copies(&mut self) {
        let request = &self.plan.request;
        let pieces = self.places.chunks / request.world_size.max(1);
        let round = self.plan.rounds.len();
        for chunk in 0..self.places.chunks {
            let block = if is_blocked(request.collective) {
                chunk / pieces.max(1)
            } else {
                0
            };
            let demand = demands(request.collective, request.rank, request.root, block);
            if self.is_input(chunk) && demand != Demand::Anything {
                let from = [ChunkRange::new(chunk, 1)];
                let action = Action::Copy(self.sources(&from));
                self.local(round, action, &[], from[0]);
            }
        }
    }

    fn push(
        &mut self,
        round: usize,
        action: Action,
        (pieces, own): (Vec<Piece>, Vec<Piece>),
        mut dependencies: Vec<Dependency>,
    ) {
        dependencies.sort_by_key(|dependency| dependency.at);
        self.program.steps.push(ProgramStep {
            action,
            bytes: pieces.iter().map(|piece| piece.bytes).sum(),
            pieces,
            own,
            round,
            dependencies,
        });
    }

    /// Records that step `index` reads or writes `ranges`, and adds the dependencies that result
    /// from these accesses.
    fn touch(
        &mut self,
        index: usize,
        ranges: &[ChunkRange],
        writes: bool,
        dependencies: &mut Vec<Dependency>,
    ) {
        let mut at = 0;
        for chunk in chunks(ranges) {
            let place = if writes {
                self.places.home(chunk)
            } else {
                self.source(chunk)
            };
            let bytes = place.bytes;
            // The input is never written, so nothing waits for its readers.
            let is_input = !writes && self.is_input(chunk);
            let touch = &mut self.last[chunk];
            if bytes > 0 {
                let reads = if writes { touch.reads.as_slice() } else { &[] };
                for (step, from) in touch.write.iter().chain(reads) {
                    add_dependency(
                        dependencies,
                        Dependency {
                            at,
                            bytes,
                            step: *step,
                            from: *from,
                        },
                    );
                }
            }
            if writes {
                touch.write = Some((index, at));
                touch.reads.clear();
            } else if !is_input {
                touch.reads.push((index, at));
            }
            at += bytes;
        }
    }
}

/// Returns the number of bytes of scratch that the steps use.
fn scratch_bytes(steps: &[ProgramStep]) -> usize {
    let end = |pieces: &Vec<Piece>| {
        let used = pieces.iter().filter(|one| one.space == Space::Scratch);
        used.map(|one| one.offset + one.bytes).max().unwrap_or(0)
    };
    let of = |step: &ProgramStep| {
        let read = match &step.action {
            Action::Copy(from) => end(from),
            Action::Fold { from, .. } => from.iter().map(end).max().unwrap_or(0),
            _ => 0,
        };
        end(&step.pieces).max(end(&step.own)).max(read)
    };
    steps.iter().map(of).max().unwrap_or(0)
}

fn chunks(ranges: &[ChunkRange]) -> impl Iterator<Item = usize> + '_ {
    ranges.iter().flat_map(|range| range.first..range.end())
}

/// Returns `true` if `next` begins where `last` ends.
fn follows(last: &Piece, next: &Piece) -> bool {
    last.space == next.space && last.offset + last.bytes == next.offset
}

/// Appends a piece, or extends the last piece if `next` follows it.
fn append(pieces: &mut Vec<Piece>, next: Piece) {
    match pieces.last_mut() {
        Some(last) if follows(last, &next) => last.bytes += next.bytes,
        _ if next.bytes > 0 => pieces.push(next),
        _ => {}
    }
}

/// Appends a message for step `step` to the lane for `peer`. Creates the lane if it does not exist
/// yet.
fn endpoint(
    lanes: &mut Vec<Lane>,
    lane_of_peer: &mut [Option<usize>],
    peer: usize,
    step: usize,
) -> Endpoint {
    let lane = *lane_of_peer[peer].get_or_insert_with(|| {
        lanes.push(Lane {
            peer,
            steps: Vec::new(),
        });
        lanes.len() - 1
    });
    let steps = &mut lanes[lane].steps;
    steps.push(step);
    Endpoint {
        lane,
        peer,
        // A lane has far fewer than 2^32 messages.
        number: (steps.len() - 1) as u32,
    }
}

/// Adds a dependency, or extends a recent dependency if `new` continues it.
fn add_dependency(dependencies: &mut Vec<Dependency>, new: Dependency) {
    let joins = |old: &&mut Dependency| {
        old.step == new.step && old.at + old.bytes == new.at && old.from + old.bytes == new.from
    };
    match dependencies.iter_mut().rev().take(4).find(joins) {
        Some(old) => old.bytes += new.bytes,
        None => dependencies.push(new),
    }
}
