//! Finds the longest path through the messages of all ranks' plans.
//!
//! A message begins once its chunks hold the data that it carries and the previous message to the
//! same rank has begun. Ports handle messages in the order in which they arrive. Pieces that follow
//! each other on a link therefore incur L only once, and a rank that sends k messages incurs o k
//! times.
//!
//! A message between sites passes through two more ports, one out of the sender's site and one into
//! the receiver's site. All ranks at a site share these ports. The message's bytes pass through
//! these ports as well, at the speed of the uplink.
//!
//! *May import* what `cost` imports.

use super::{ChunkBytes, MessageTimes, Schedule};
use crate::ir::{ChunkRange, Plan, Source, Step};
use crate::price::{LinkCost, UplinkCost};
use crate::tuning::{TuningTable, between_sites};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// Returns the time, in seconds, from the common start of all ranks until the last rank finishes,
/// for a buffer of `bytes` bytes. `plans` contains the plans of all ranks in rank order. The plans
/// must have been verified (see [`crate::verify`]).
///
/// ```
/// use ringtree::plan::internal::cost::longest_path_s;
/// use ringtree::plan::LinkCost;
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
/// // Three messages of 20 bytes leave in sequence. The last one travels and then arrives.
/// assert_eq!(longest_path_s(&plans, 20, &link), 3.0 * (1.0 + 2.0) + 10.0 + 1.0);
/// # Ok::<(), String>(())
/// ```
#[must_use]
pub fn longest_path_s(plans: &[Plan], bytes: usize, link: &LinkCost) -> f64 {
    Graph::of_plans(plans, (bytes, 1), *link).run()
}

/// Like [`longest_path_s`], but supports ranks at several sites.
///
/// ```
/// use ringtree::tuning::TuningTable;
/// use ringtree::plan::internal::cost::longest_path_between_sites_s;
/// use ringtree::plan::{LinkCost, UplinkCost};
/// use ringtree::plan::{Algorithm, Collective, Hosts, Request, plan};
///
/// let mut table = TuningTable::default();
/// table.tcp = LinkCost {
///     alpha_s: 10.0,
///     overhead_s: 1.0,
///     beta_s_per_byte: 0.1,
///     gamma_s_per_byte: 0.0,
/// };
/// table.uplink = Some(UplinkCost {
///     alpha_s: 100.0,
///     beta_s_per_byte: 1.0,
/// });
/// let plans: Vec<_> = (0..4)
///     .map(|rank| {
///         plan(&Request {
///             collective: Collective::Broadcast,
///             algorithm: Algorithm::Flat,
///             world_size: 4,
///             rank,
///             root: 0,
///             pieces: 1,
///             hosts: Hosts::APART.in_sites(&[0, 0, 1, 1]),
///         })
///     })
///     .collect::<Result<_, _>>()?;
/// // Two of three messages of 20 bytes go to the other site in sequence.
/// let seconds = longest_path_between_sites_s(&plans, 20, &table);
/// assert_eq!(seconds, (1.0 + 2.0) + 1.0 + 2.0 * 20.0 + 100.0 + 1.0);
/// # Ok::<(), String>(())
/// ```
#[must_use]
pub fn longest_path_between_sites_s(plans: &[Plan], bytes: usize, table: &TuningTable) -> f64 {
    let mut graph = Graph::of_plans(plans, (bytes, 1), table.tcp);
    graph.uplinks = plans.first().map(|plan| Uplinks::of(plan, table));
    graph.run()
}

/// Returns the times of each message, in the order of the plans. If `shares` is `true`, messages
/// between ranks on the same host use shared memory.
pub(super) fn schedule(
    plans: &[Plan],
    length: (usize, usize),
    table: &TuningTable,
    shares: bool,
) -> Schedule {
    let mut graph = Graph::of_plans(plans, length, table.tcp);
    if let Some(plan) = plans.first() {
        let topology = plan.request.topology();
        graph.uplinks = Some(Uplinks::of(plan, table));
        graph.inside = shares.then(|| Inside {
            link: table.shm,
            host_of: (0..plans.len())
                .map(|rank| topology.host_of(rank))
                .collect(),
        });
    }
    let end_s = graph.run();
    let messages = graph.tasks.iter().filter_map(|task| match task.work {
        Work::Send(message) => Some(message),
        Work::Local { .. } => None,
    });
    Schedule {
        messages: messages.collect(),
        end_s,
    }
}

/// Returns the steps of a plan, each with its round.
fn numbered(plan: &Plan) -> impl Iterator<Item = (usize, &Step)> {
    let rounds = plan.rounds.iter().enumerate();
    rounds.flat_map(|(round, steps)| steps.iter().map(move |step| (round, step)))
}

/// An action of a rank. It begins once all events that it waits for have happened.
struct Task {
    work: Work,
    /// Number of events for which the task is still waiting.
    waits: usize,
    /// Tasks that are waiting for this task to end.
    next: Vec<usize>,
    /// The next message to the same rank, which waits for this message to begin.
    behind: Option<usize>,
}

#[derive(Clone, Copy)]
enum Work {
    /// A message. Its times are zero until it passes through the ports.
    Send(MessageTimes),
    Local {
        seconds: f64,
    },
}

/// The bits of an event's time, its sequence number, and what happens. Simultaneous events happen
/// in the order in which they were scheduled. Times are not negative, so their bits have the same
/// order as the times.
type Event = Reverse<(u64, usize, What)>;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The message is at the uplink of its sender's site.
    AtUplink(usize),
    /// The message is at the uplink of its receiver's site.
    AtOtherUplink(usize),
    /// The message is at its receiver's port.
    AtPort(usize),
    /// The task has ended.
    Ended(usize),
}

/// The uplinks of all sites.
struct Uplinks {
    link: UplinkCost,
    /// Site of each rank.
    site_of: Vec<usize>,
    out_until_s: Vec<f64>,
    in_until_s: Vec<f64>,
}

impl Uplinks {
    fn of(plan: &Plan, table: &TuningTable) -> Self {
        let topology = plan.request.topology();
        let ranks = 0..topology.world_size;
        Self {
            link: between_sites(table),
            site_of: ranks
                .map(|rank| topology.site_of(topology.host_of(rank)))
                .collect(),
            out_until_s: vec![0.0; topology.site_count()],
            in_until_s: vec![0.0; topology.site_count()],
        }
    }
}

/// The links between ranks on the same host.
struct Inside {
    link: LinkCost,
    /// Host of each rank.
    host_of: Vec<usize>,
}

struct Graph {
    link: LinkCost,
    uplinks: Option<Uplinks>,
    inside: Option<Inside>,
    tasks: Vec<Task>,
    events: BinaryHeap<Event>,
    events_made: usize,
    sending_until_s: Vec<f64>,
    receiving_until_s: Vec<f64>,
}

impl Graph {
    /// Builds the graph of `plans` for a buffer of `count` elements of `element_bytes` bytes.
    fn of_plans(plans: &[Plan], (count, element_bytes): (usize, usize), link: LinkCost) -> Self {
        let mut graph = Self {
            link,
            uplinks: None,
            inside: None,
            tasks: Vec::new(),
            events: BinaryHeap::new(),
            events_made: 0,
            sending_until_s: vec![0.0; plans.len()],
            receiving_until_s: vec![0.0; plans.len()],
        };
        let mut messages: HashMap<(usize, usize), VecDeque<usize>> = HashMap::new();
        let mut receives = Vec::new();
        for (rank, plan) in plans.iter().enumerate() {
            let lengths = ChunkBytes::of_elements(plan, count, element_bytes);
            let mut writers: Vec<Option<usize>> = vec![None; plan.chunks + plan.scratch];
            for (round, step) in numbered(plan) {
                match step {
                    Step::Send { peers, ranges } => {
                        let bytes = lengths.of(ranges);
                        for &to in peers {
                            let task = graph.add(Work::Send(MessageTimes {
                                round,
                                from: rank,
                                to,
                                bytes,
                                sends_s: [0.0; 2],
                                receives_s: [0.0; 2],
                            }));
                            graph.follow(task, &writers, ranges);
                            let queue = messages.entry((rank, to)).or_default();
                            graph.follow_message(task, queue.back().copied());
                            queue.push_back(task);
                        }
                    }
                    Step::Receive {
                        sources, ranges, ..
                    } => {
                        let task = graph.local(sources.len(), lengths.of(ranges));
                        if sources.contains(&Source::Own) {
                            graph.follow(task, &writers, ranges);
                        }
                        receives.push((rank, task, sources));
                        write(&mut writers, ranges, task);
                    }
                    Step::Copy { from, to } => {
                        let task = graph.local(1, 0);
                        graph.follow(task, &writers, &[*from]);
                        write(&mut writers, &[*to], task);
                    }
                    Step::Reduce { from, to, .. } => {
                        let task = graph.local(from.len(), lengths.of(&[*to]));
                        graph.follow(task, &writers, from);
                        write(&mut writers, &[*to], task);
                    }
                }
            }
        }
        for (rank, task, sources) in receives {
            for source in sources {
                if let Source::Peer(peer) = *source {
                    let sent = messages
                        .get_mut(&(peer, rank))
                        .and_then(VecDeque::pop_front);
                    graph.receive(sent, task);
                }
            }
        }
        graph
    }

    /// Makes a task wait for the message that it receives.
    fn receive(&mut self, sent: Option<usize>, task: usize) {
        let sent = sent.expect("invariant: in verified plans, each receive has its message");
        self.tasks[sent].next.push(task);
        self.tasks[task].waits += 1;
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

    /// Adds a reduction of `operands` operands of `bytes` bytes each.
    fn local(&mut self, operands: usize, bytes: usize) -> usize {
        let folds = operands.saturating_sub(1) as f64;
        self.add(Work::Local {
            seconds: folds * bytes as f64 * self.link.gamma_s_per_byte,
        })
    }

    /// Makes a task wait for the last writers of the chunks that it reads.
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

    /// Makes a message begin after `before`, the previous message on its link.
    fn follow_message(&mut self, task: usize, before: Option<usize>) {
        if let Some(before) = before {
            self.tasks[before].behind = Some(task);
            self.tasks[task].waits += 1;
        }
    }

    /// Runs all tasks, and returns the time at which the last one ends.
    fn run(&mut self) -> f64 {
        let free: Vec<usize> = (0..self.tasks.len())
            .filter(|task| self.tasks[*task].waits == 0)
            .collect();
        for task in free {
            self.begin(task, 0.0);
        }
        let mut end_s = 0.0_f64;
        while let Some(Reverse((bits, _, what))) = self.events.pop() {
            let at_s = f64::from_bits(bits);
            match what {
                What::AtUplink(task) => self.leave_site(task, at_s),
                What::AtOtherUplink(task) => self.enter_site(task, at_s),
                What::AtPort(task) => self.arrive(task, at_s),
                What::Ended(task) => {
                    end_s = end_s.max(at_s);
                    for next in std::mem::take(&mut self.tasks[task].next) {
                        self.release(next, at_s);
                    }
                }
            }
        }
        end_s
    }

    fn release(&mut self, task: usize, at_s: f64) {
        self.tasks[task].waits -= 1;
        if self.tasks[task].waits == 0 {
            self.begin(task, at_s);
        }
    }

    fn begin(&mut self, task: usize, at_s: f64) {
        match self.tasks[task].work {
            Work::Local { seconds } => self.schedule(at_s + seconds, What::Ended(task)),
            Work::Send(mut message) => {
                let (from, to) = (message.from, message.to);
                let link = self.between(from, to);
                let port = &mut self.sending_until_s[from];
                let begins_s = port.max(at_s);
                let leaves_s = begins_s + link.overhead_s;
                *port = leaves_s + message.bytes as f64 * link.beta_s_per_byte;
                message.sends_s = [begins_s, *port];
                self.tasks[task].work = Work::Send(message);
                let crosses = self.uplinks.as_ref().is_some_and(|uplinks| {
                    let site_of = &uplinks.site_of;
                    site_of[from] != site_of[to]
                });
                match crosses {
                    true => self.schedule(leaves_s, What::AtUplink(task)),
                    false => self.schedule(leaves_s + link.alpha_s, What::AtPort(task)),
                }
                if let Some(behind) = self.tasks[task].behind {
                    self.release(behind, at_s);
                }
            }
        }
    }

    /// Sends a message out of its sender's site. Its first byte leaves when the uplink is free.
    fn leave_site(&mut self, task: usize, at_s: f64) {
        let (Work::Send(message), Some(uplinks)) = (self.tasks[task].work, &mut self.uplinks)
        else {
            return;
        };
        let uplink = &mut uplinks.out_until_s[uplinks.site_of[message.from]];
        let leaves_s = uplink.max(at_s);
        *uplink = leaves_s + message.bytes as f64 * uplinks.link.beta_s_per_byte;
        let alpha_s = uplinks.link.alpha_s;
        self.schedule(leaves_s + alpha_s, What::AtOtherUplink(task));
    }

    /// Receives a message into its receiver's site. Its first byte reaches the receiver's port when
    /// the uplink is free, and its last byte does so no earlier than it has passed through the
    /// uplink.
    fn enter_site(&mut self, task: usize, at_s: f64) {
        let (Work::Send(message), Some(uplinks)) = (self.tasks[task].work, &mut self.uplinks)
        else {
            return;
        };
        let bytes = message.bytes as f64;
        let uplink = &mut uplinks.in_until_s[uplinks.site_of[message.to]];
        let enters_s = uplink.max(at_s);
        *uplink = enters_s + bytes * uplinks.link.beta_s_per_byte;
        let last_s = *uplink - bytes * self.link.beta_s_per_byte;
        self.schedule(enters_s.max(last_s), What::AtPort(task));
    }

    fn arrive(&mut self, task: usize, at_s: f64) {
        if let Work::Send(mut message) = self.tasks[task].work {
            let link = self.between(message.from, message.to);
            let port = &mut self.receiving_until_s[message.to];
            let begins_s = port.max(at_s);
            let end_s = begins_s + message.bytes as f64 * link.beta_s_per_byte + link.overhead_s;
            *port = end_s;
            message.receives_s = [begins_s, end_s];
            self.tasks[task].work = Work::Send(message);
            self.schedule(end_s, What::Ended(task));
        }
    }

    /// Returns the costs of the link between two ranks, not including uplinks.
    fn between(&self, from: usize, to: usize) -> LinkCost {
        match &self.inside {
            Some(inside) if inside.host_of[from] == inside.host_of[to] => inside.link,
            _ => self.link,
        }
    }

    fn schedule(&mut self, at_s: f64, what: What) {
        let event = (at_s.to_bits(), self.events_made, what);
        self.events.push(Reverse(event));
        self.events_made += 1;
    }
}

fn write(writers: &mut [Option<usize>], ranges: &[ChunkRange], task: usize) {
    for range in ranges {
        writers[range.first..range.end()].fill(Some(task));
    }
}
