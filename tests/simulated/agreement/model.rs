//! Sessions under a random schedule: messages are delivered late, ranks die, leave and fail at any
//! moment, in the control plane without a relay.

use crate::long::short_or_long;
use ringtree::internal::protocol::call::Call;
use ringtree::internal::protocol::message::Message;
use ringtree::internal::protocol::session::{Session, To};
use ringtree::plan::Collective;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const STEPS_MAX: u64 = 20_000;
/// The longest time without any message in which every rank has to have decided.
const QUIET: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// In the call of that number.
    Inside(u64),
    Left,
    Died,
}

struct Rank {
    session: Session,
    state: State,
    calls: u64,
    /// The number of calls of its program.
    wanted: u64,
    dies_after: Option<u64>,
}

/// A group whose ranks have a connection to each other.
struct Group {
    ranks: Vec<Rank>,
    /// Messages in flight, by sender and receiver.
    links: BTreeMap<(usize, usize), VecDeque<Message>>,
    /// Connections whose end the receiver has seen.
    closed: BTreeMap<(usize, usize), bool>,
    now: Duration,
    random: u64,
}

impl Group {
    fn new(seed: u64) -> Self {
        let mut group = Self {
            ranks: Vec::new(),
            links: BTreeMap::new(),
            closed: BTreeMap::new(),
            now: Duration::ZERO,
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        };
        let count = 2 + group.chance(5) as usize;
        let calls = 1 + group.chance(4);
        for rank in 0..count {
            // Some programs end early, some processes die.
            let wanted = match group.chance(12) {
                0 => group.chance(calls + 1),
                _ => calls,
            };
            let dies = group.chance(8) == 0;
            let dies_after = dies.then(|| group.chance(12));
            group.ranks.push(Rank {
                session: Session::new(rank, count),
                state: State::Idle,
                calls: 0,
                wanted,
                dies_after,
            });
        }
        group
    }

    /// A random number below `limit`, by xorshift.
    fn chance(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % limit
    }

    fn is_there(&self, rank: usize) -> bool {
        !matches!(self.ranks[rank].state, State::Left | State::Died)
    }

    /// Puts what the rank has to say on its links.
    fn say(&mut self, from: usize) {
        while let Some((to, message)) = self.ranks[from].session.next_message() {
            for peer in (0..self.ranks.len()).filter(|peer| *peer != from) {
                if to == To::All || to == To::Rank(peer) {
                    let link = self.links.entry((from, peer)).or_default();
                    link.push_back(message.clone());
                }
            }
        }
    }

    fn leave(&mut self, rank: usize) {
        self.ranks[rank].session.leave(None);
        self.say(rank);
        self.ranks[rank].state = State::Left;
    }

    /// The next step of the program of `rank`.
    fn go_on(&mut self, rank: usize) {
        let one = &mut self.ranks[rank];
        if let Some(steps) = &mut one.dies_after {
            if *steps == 0 {
                one.state = State::Died;
                return;
            }
            *steps -= 1;
        }
        match one.state {
            _ if one.session.has_error() && one.session.first_error().is_none() => {}
            _ if one.session.first_error().is_some() => self.leave(rank),
            State::Idle if one.calls == one.wanted => self.leave(rank),
            State::Idle => {
                one.calls += 1;
                let call = Call::new(Collective::Barrier, 0).numbered(one.calls);
                let (digest, timeout) = (call.digest(), Duration::MAX);
                one.session.enter((&call, None), digest, one.calls, timeout);
                one.state = State::Inside(one.calls);
            }
            State::Inside(number) => self.look(rank, number),
            State::Left | State::Died => {}
        }
        self.say(rank);
    }

    /// A rank in its call number `number`: the call completes once every rank has made it.
    fn look(&mut self, rank: usize, number: u64) {
        let missing = (0..self.ranks.len()).find(|peer| self.ranks[*peer].calls < number);
        let call = Call::new(Collective::Barrier, 0).numbered(number);
        let one = &mut self.ranks[rank];
        match missing {
            None => {
                one.session.idle();
                one.state = State::Idle;
            }
            Some(peer) => one.session.miss_if_left_before(peer, &call),
        }
    }

    /// Delivers the next message of a link, or its end.
    fn deliver(&mut self, from: usize, to: usize) -> bool {
        if !self.is_there(to) {
            return false;
        }
        let message = self.links.entry((from, to)).or_default().pop_front();
        match message {
            Some(message) => self.ranks[to].session.receive(from, message),
            None if self.is_there(from) => return false,
            None if self.closed.insert((from, to), true).is_some() => return false,
            None => self.ranks[to].session.control_lost(from, "it closed"),
        }
        self.say(to);
        true
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for rank in 0..self.ranks.len() {
            if self.is_there(rank) {
                self.ranks[rank].session.tick(self.now);
                self.say(rank);
            }
        }
    }

    /// Runs the group until nothing happens any more.
    fn run(&mut self) {
        let count = self.ranks.len() as u64;
        for _ in 0..STEPS_MAX {
            let (one, other) = (self.chance(count) as usize, self.chance(count) as usize);
            match self.chance(4) {
                0 if self.is_there(one) => self.go_on(one),
                0 => {}
                1 => {
                    let time = Duration::from_millis(self.chance(30));
                    self.pass(time);
                }
                _ if one != other => drop(self.deliver(one, other)),
                _ => {}
            }
            if !(0..self.ranks.len()).any(|rank| self.is_there(rank)) {
                return;
            }
        }
        // Everything is delivered, and time passes.
        let end = self.now + QUIET;
        while self.now < end {
            for from in 0..self.ranks.len() {
                for to in (0..self.ranks.len()).filter(|to| *to != from) {
                    while self.deliver(from, to) {}
                }
                if self.is_there(from) {
                    self.go_on(from);
                }
            }
            self.pass(Duration::from_millis(50));
        }
    }

    /// What is wrong with the end, if anything.
    fn fault(&self) -> Option<String> {
        let calls = self.ranks.iter().map(|rank| rank.wanted);
        let is_even = calls.clone().min() == calls.max();
        let died: Vec<usize> = (0..self.ranks.len())
            .filter(|rank| self.ranks[*rank].state == State::Died)
            .collect();
        for (rank, one) in self.ranks.iter().enumerate() {
            let error = one.session.first_error();
            if self.is_there(rank) {
                return Some(format!("rank {rank} waits for ever: {:?}", one.state));
            }
            let Some(error) = error.filter(|_| one.state == State::Left) else {
                continue;
            };
            if is_even && died.is_empty() {
                return Some(format!("rank {rank} failed without a reason: {error}"));
            }
            let blamed = error.peer();
            if blamed.is_none_or(|peer| self.is_there(peer)) {
                return Some(format!("rank {rank} blames a rank that is there: {error}"));
            }
        }
        None
    }
}

#[test]
fn no_schedule_leaves_a_rank_waiting_or_blames_a_living_one() {
    for seed in 1..short_or_long(20_000, 1_000_000) {
        let mut group = Group::new(seed);
        group.run();
        if let Some(fault) = group.fault() {
            panic!("seed {seed}: {fault}");
        }
    }
}
