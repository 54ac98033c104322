//! The longest path through the messages of all ranks' plans.
//!
//! A message begins when its chunks hold what it is to carry, and when the message before it to the
//! same rank has begun. Ports take messages in the order in which these come to them. Pieces that
//! follow each other on a link therefore pay L once, and a rank that sends k messages pays o k
//! times.
//!
//! *May import* what `cost` imports.

use super::ChunkBytes;
use crate::plan::ir::{ChunkRange, Plan, Source, Step};
use crate::plan::price::LinkCost;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// Seconds from the common start of all ranks to the end of the last, for a buffer of `bytes`.
/// `plans` are those of all ranks, in rank order, and proven ([`crate::plan::verify`]).
///
/// ```
/// use ringtree::plan::cost::longest_path_s;
/// use ringtree::plan::price::LinkCost;
/// use ringtree::plan::{Algorithm, Collective, Hosts, Request, plan};
///
/// let link = LinkCost {
///     alpha_s: 10.0,
///     overhead_s: 1.0,
///     beta_s_per_byte: 0.1,
///     gamma_s_per_byte: 0.0,
/// };
/// let plans: Vec<_> = (0..4)
///     .map(|rank| {
///         plan(&Request {
///             collective: Collective::Broadcast,
///             algorithm: Algorithm::Flat,
///             world_size: 4,
///             rank,
///             root: 0,
///             pieces: 1,
///             hosts: Hosts::APART,
///         })
///     })
///     .collect::<Result<_, _>>()?;
/// // Three messages of 20 bytes leave one after the other; the last is on its way, and arrives.
/// assert_eq!(longest_path_s(&plans, 20, &link), 3.0 * (1.0 + 2.0) + 10.0 + 1.0);
/// # Ok::<(), String>(())
/// ```
#[must_use]
pub fn longest_path_s(plans: &[Plan], bytes: usize, link: &LinkCost) -> f64 {
    let mut graph = Graph::of_plans(plans, bytes, link);
    graph.run(link)
}

/// Something that a rank does, once what it waits for has happened.
struct Task {
    work: Work,
    /// How much of what it waits for has not happened yet.
    waits: usize,
    /// What waits for its end.
    next: Vec<usize>,
    /// The next message to the same rank, which waits for its beginning.
    behind: Option<usize>,
}

#[derive(Clone, Copy)]
enum Work {
    Send { from: usize, to: usize, port_s: f64 },
    Local { seconds: f64 },
}

/// What happens at a time; of what happens at once, first what was decided first.
struct Event {
    at_s: f64,
    number: usize,
    what: What,
}

enum What {
    /// The message is at its receiver's port.
    AtPort(usize),
    /// The task has ended.
    Ended(usize),
}

struct Graph {
    tasks: Vec<Task>,
    events: BinaryHeap<Event>,
    events_made: usize,
    sending_until_s: Vec<f64>,
    receiving_until_s: Vec<f64>,
}

impl Graph {
    fn of_plans(plans: &[Plan], bytes: usize, link: &LinkCost) -> Self {
        let mut graph = Self {
            tasks: Vec::new(),
            events: BinaryHeap::new(),
            events_made: 0,
            sending_until_s: vec![0.0; plans.len()],
            receiving_until_s: vec![0.0; plans.len()],
        };
        let mut messages: HashMap<(usize, usize), VecDeque<usize>> = HashMap::new();
        let mut receives = Vec::new();
        for (rank, plan) in plans.iter().enumerate() {
            let lengths = ChunkBytes::of_plan(plan, bytes);
            let mut writers: Vec<Option<usize>> = vec![None; plan.chunks + plan.scratch];
            for step in plan.rounds.iter().flatten() {
                match step {
                    Step::Send { peers, ranges } => {
                        let port_s = lengths.of(ranges) as f64 * link.beta_s_per_byte;
                        for &to in peers {
                            let from = rank;
                            let task = graph.add(Work::Send { from, to, port_s });
                            graph.follow(task, &writers, ranges);
                            let queue = messages.entry((from, to)).or_default();
                            if let Some(before) = queue.back() {
                                graph.tasks[*before].behind = Some(task);
                                graph.tasks[task].waits += 1;
                            }
                            queue.push_back(task);
                        }
                    }
                    Step::Receive {
                        sources, ranges, ..
                    } => {
                        let task = graph.local(sources.len(), lengths.of(ranges), link);
                        if sources.contains(&Source::Own) {
                            graph.follow(task, &writers, ranges);
                        }
                        receives.push((rank, task, sources));
                        write(&mut writers, ranges, task);
                    }
                    Step::Copy { from, to } => {
                        let task = graph.local(1, 0, link);
                        graph.follow(task, &writers, &[*from]);
                        write(&mut writers, &[*to], task);
                    }
                    Step::Reduce { from, to, .. } => {
                        let task = graph.local(from.len(), lengths.of(&[*to]), link);
                        graph.follow(task, &writers, from);
                        write(&mut writers, &[*to], task);
                    }
                }
            }
        }
        for (rank, task, sources) in receives {
            for source in sources {
                let Source::Peer(peer) = *source else {
                    continue;
                };
                let sent = messages
                    .get_mut(&(peer, rank))
                    .and_then(VecDeque::pop_front);
                let sent = sent.expect("invariant: in proven plans each receive has its message");
                graph.tasks[sent].next.push(task);
                graph.tasks[task].waits += 1;
            }
        }
        graph
    }

    fn add(&mut self, work: Work) -> usize {
        self.tasks.push(Task {
            work,
            waits: 0,
            next: Vec::new(),
            behind: None,
        });
        self.tasks.len() - 1
    }

    /// A fold of so many operands of so many bytes.
    fn local(&mut self, operands: usize, bytes: usize, link: &LinkCost) -> usize {
        let folds = operands.saturating_sub(1) as f64;
        self.add(Work::Local {
            seconds: folds * bytes as f64 * link.gamma_s_per_byte,
        })
    }

    /// The task reads these chunks, so it waits for what wrote them last.
    fn follow(&mut self, task: usize, writers: &[Option<usize>], ranges: &[ChunkRange]) {
        let chunks = ranges.iter().flat_map(|range| range.first..range.end());
        let mut before: Vec<usize> = chunks.filter_map(|chunk| writers[chunk]).collect();
        before.sort_unstable();
        before.dedup();
        self.tasks[task].waits += before.len();
        for writer in before {
            self.tasks[writer].next.push(task);
        }
    }

    /// Lets everything happen; returns when the last thing did.
    fn run(&mut self, link: &LinkCost) -> f64 {
        let free: Vec<usize> = (0..self.tasks.len())
            .filter(|task| self.tasks[*task].waits == 0)
            .collect();
        for task in free {
            self.begin(task, 0.0, link);
        }
        let mut end_s = 0.0_f64;
        while let Some(Event { at_s, what, .. }) = self.events.pop() {
            match what {
                What::AtPort(task) => self.arrive(task, at_s, link),
                What::Ended(task) => {
                    end_s = end_s.max(at_s);
                    for next in std::mem::take(&mut self.tasks[task].next) {
                        self.release(next, at_s, link);
                    }
                }
            }
        }
        end_s
    }

    fn release(&mut self, task: usize, at_s: f64, link: &LinkCost) {
        self.tasks[task].waits -= 1;
        if self.tasks[task].waits == 0 {
            self.begin(task, at_s, link);
        }
    }

    fn begin(&mut self, task: usize, at_s: f64, link: &LinkCost) {
        match self.tasks[task].work {
            Work::Local { seconds } => self.schedule(at_s + seconds, What::Ended(task)),
            Work::Send { from, port_s, .. } => {
                let port = &mut self.sending_until_s[from];
                let leaves_s = port.max(at_s) + link.overhead_s;
                *port = leaves_s + port_s;
                self.schedule(leaves_s + link.alpha_s, What::AtPort(task));
                if let Some(behind) = self.tasks[task].behind {
                    self.release(behind, at_s, link);
                }
            }
        }
    }

    fn arrive(&mut self, task: usize, at_s: f64, link: &LinkCost) {
        if let Work::Send { to, port_s, .. } = self.tasks[task].work {
            let port = &mut self.receiving_until_s[to];
            *port = port.max(at_s) + port_s + link.overhead_s;
            let end_s = *port;
            self.schedule(end_s, What::Ended(task));
        }
    }

    fn schedule(&mut self, at_s: f64, what: What) {
        self.events.push(Event {
            at_s,
            number: self.events_made,
            what,
        });
        self.events_made += 1;
    }
}

fn write(writers: &mut [Option<usize>], ranges: &[ChunkRange], task: usize) {
    for range in ranges {
        writers[range.first..range.end()].fill(Some(task));
    }
}

/// The earliest is the greatest, as the heap has it.
impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_time = other.at_s.total_cmp(&self.at_s);
        by_time.then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}
