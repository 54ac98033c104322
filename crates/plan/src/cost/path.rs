//! The longest path through the messages of all ranks' plans.
//!
//! A message begins when its chunks hold what it is to carry, and when the message before it to the
//! same rank has begun. Ports take messages in the order in which these come to them. Pieces that
//! follow each other on a link therefore pay L once, and a rank that sends k messages pays o k
//! times.
//!
//! A message between sites passes two ports more, each shared by all ranks of a site: out of the
//! sender's site and into the receiver's. Its bytes pass through these too, at the uplink's speed.
//!
//! *May import* what `cost` imports.

use super::{ChunkBytes, MessageTimes, Schedule};
use crate::ir::{ChunkRange, Plan, Source, Step};
use crate::price::{LinkCost, UplinkCost};
use crate::tuning::TuningTable;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// Seconds from the common start of all ranks to the end of the last, for a buffer of `bytes`.
/// `plans` are those of all ranks, in rank order, and proven ([`crate::verify`]).
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
    Graph::of_plans(plans, (bytes, 1), *link).run()
}

/// As [`longest_path_s`], where the ranks are at several sites.
///
/// ```
/// use ringtree::TuningTable;
/// use ringtree::plan::cost::longest_path_between_sites_s;
/// use ringtree::plan::price::{LinkCost, UplinkCost};
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
/// // Of three messages of 20 bytes two go to the other site, one after the other.
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

/// When each message passes, in the order of the plans. What the ranks of a host send each other
/// goes through shared memory, if `shares`.
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
    let tasks = graph.tasks.iter().zip(&graph.passes);
    let messages = tasks.filter_map(|(task, passes)| match task.work {
        Work::Send(message) => Some(MessageTimes {
            round: message.round,
            from: message.from,
            to: message.to,
            bytes: message.bytes,
            sends_s: passes.sends_s,
            receives_s: passes.receives_s,
        }),
        Work::Local { .. } => None,
    });
    Schedule {
        messages: messages.collect(),
        end_s,
    }
}

/// The steps, each with its round.
fn numbered(plan: &Plan) -> impl Iterator<Item = (usize, &Step)> {
    let rounds = plan.rounds.iter().enumerate();
    rounds.flat_map(|(round, steps)| steps.iter().map(move |step| (round, step)))
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
    Send(Message),
    Local { seconds: f64 },
}

#[derive(Clone, Copy)]
struct Message {
    round: usize,
    from: usize,
    to: usize,
    bytes: usize,
}

/// From when to when a message keeps its sender's port busy, and its receiver's.
#[derive(Clone, Copy, Default)]
struct Passes {
    sends_s: [f64; 2],
    receives_s: [f64; 2],
}

/// What happens at a time; of what happens at once, first what was decided first.
struct Event {
    at_s: f64,
    number: usize,
    what: What,
}

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
    /// By rank.
    site_of: Vec<usize>,
    out_until_s: Vec<f64>,
    in_until_s: Vec<f64>,
}

impl Uplinks {
    fn of(plan: &Plan, table: &TuningTable) -> Self {
        let topology = plan.request.topology();
        let ranks = 0..topology.world_size;
        Self {
            link: table.between_sites(),
            site_of: ranks
                .map(|rank| topology.site_of(topology.host_of(rank)))
                .collect(),
            out_until_s: vec![0.0; topology.site_count()],
            in_until_s: vec![0.0; topology.site_count()],
        }
    }
}

/// What is between the ranks of a host.
struct Inside {
    link: LinkCost,
    /// By rank.
    host_of: Vec<usize>,
}

struct Graph {
    link: LinkCost,
    uplinks: Option<Uplinks>,
    inside: Option<Inside>,
    tasks: Vec<Task>,
    /// By task; zeros for what is no message.
    passes: Vec<Passes>,
    events: BinaryHeap<Event>,
    events_made: usize,
    sending_until_s: Vec<f64>,
    receiving_until_s: Vec<f64>,
}

impl Graph {
    /// What the plans do on a buffer of so many elements of so many bytes each.
    fn of_plans(plans: &[Plan], (count, element_bytes): (usize, usize), link: LinkCost) -> Self {
        let mut graph = Self {
            link,
            uplinks: None,
            inside: None,
            tasks: Vec::new(),
            passes: Vec::new(),
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
                            let task = graph.add(Work::Send(Message {
                                round,
                                from: rank,
                                to,
                                bytes,
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

    /// The task waits for the message that it receives.
    fn receive(&mut self, sent: Option<usize>, task: usize) {
        let sent = sent.expect("invariant: in proven plans each receive has its message");
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
        self.passes.push(Passes::default());
        self.tasks.len() - 1
    }

    /// A fold of so many operands of so many bytes.
    fn local(&mut self, operands: usize, bytes: usize) -> usize {
        let folds = operands.saturating_sub(1) as f64;
        self.add(Work::Local {
            seconds: folds * bytes as f64 * self.link.gamma_s_per_byte,
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

    /// The message begins after the one before it on its link, if there is one.
    fn follow_message(&mut self, task: usize, before: Option<usize>) {
        if let Some(before) = before {
            self.tasks[before].behind = Some(task);
            self.tasks[task].waits += 1;
        }
    }

    /// Lets everything happen; returns when the last thing did.
    fn run(&mut self) -> f64 {
        let free: Vec<usize> = (0..self.tasks.len())
            .filter(|task| self.tasks[*task].waits == 0)
            .collect();
        for task in free {
            self.begin(task, 0.0);
        }
        let mut end_s = 0.0_f64;
        while let Some(Event { at_s, what, .. }) = self.events.pop() {
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
            Work::Send(Message {
                from, to, bytes, ..
            }) => {
                let link = self.between(from, to);
                let port = &mut self.sending_until_s[from];
                let begins_s = port.max(at_s);
                let leaves_s = begins_s + link.overhead_s;
                *port = leaves_s + bytes as f64 * link.beta_s_per_byte;
                self.passes[task].sends_s = [begins_s, *port];
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

    /// The first byte leaves the sender's site when the uplink is free.
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

    /// The first byte is at the receiver's port when the uplink was free, and the last one not
    /// before it has passed the uplink.
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
        if let Work::Send(Message {
            from, to, bytes, ..
        }) = self.tasks[task].work
        {
            let link = self.between(from, to);
            let port = &mut self.receiving_until_s[to];
            let begins_s = port.max(at_s);
            *port = begins_s + bytes as f64 * link.beta_s_per_byte + link.overhead_s;
            let end_s = *port;
            self.passes[task].receives_s = [begins_s, end_s];
            self.schedule(end_s, What::Ended(task));
        }
    }

    /// What is between two ranks of a site.
    fn between(&self, from: usize, to: usize) -> LinkCost {
        match &self.inside {
            Some(inside) if inside.host_of[from] == inside.host_of[to] => inside.link,
            _ => self.link,
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
