use super::*;
use crate::engine::cache::Prepared;
use crate::engine::group::{Memory, Order, Start};
use crate::engine::medium::host::Links;
use crate::link::Link;
use crate::link::stream::StreamLink;
use crate::sys::memory::Region;
use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const RANKS: usize = 3;

type Bytes = Arc<Mutex<VecDeque<u8>>>;

/// One end of a pair of pipes, one pipe in each direction.
struct Pipes {
    from: Bytes,
    to: Bytes,
}

impl Read for Pipes {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        match self.from.lock().unwrap().read(into) {
            Ok(0) => Err(Error::from(ErrorKind::WouldBlock)),
            read => read,
        }
    }
}

impl Write for Pipes {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.to.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

fn world() -> Vec<Group> {
    let pipes: Vec<Bytes> = (0..RANKS * RANKS).map(|_| Bytes::default()).collect();
    let group = |rank: usize| {
        let links = || {
            let pipes = pipes.clone();
            let connect = move |peer: usize| -> Box<dyn Link> {
                let mut ends = Some(Pipes {
                    from: Arc::clone(&pipes[peer * RANKS + rank]),
                    to: Arc::clone(&pipes[rank * RANKS + peer]),
                });
                Box::new(StreamLink::new((0, 0), Box::new(move || ends.take())))
            };
            Links::new(RANKS, Box::new(connect))
        };
        Group::new(rank, RANKS, links(), links())
    };
    (0..RANKS).map(group).collect()
}

fn post(group: &mut Group, end: MessageEnd, content: u64) -> usize {
    let region = Region::own(vec![content]);
    let mut memory = match end {
        MessageEnd::To(_) => Memory {
            input: Some(region),
            output: None,
        },
        _ => Memory::in_place(region),
    };
    let dtype = crate::dtype::Dtype::U64;
    let prepared = Prepared::message(group.rank, end, (1, dtype), 0).unwrap();
    let mut start = Start {
        prepared: &Arc::new(prepared),
        sequence: 0,
        memory: &mut memory,
        timeout: Duration::MAX,
        gate: None,
    };
    let slot = group.post(Order::Pairs, &mut start).unwrap();
    group.poll();
    slot
}

/// Returns the sender and the content of the message if the receive has completed.
fn taken(group: &mut Group, slot: usize) -> Option<(usize, u64)> {
    group.poll();
    let sender = group.sender(slot);
    let (memory, end) = group.take(Order::Pairs, slot)?;
    end.unwrap();
    let content: Vec<u64> = memory.output.unwrap().into_vector().unwrap();
    Some((sender.unwrap(), content[0]))
}

#[test]
fn receives_match_messages_in_order_of_issue() {
    let mut groups = world();
    let [receiver, one, two] = &mut groups[..] else {
        unreachable!("there are three groups")
    };
    let first = post(receiver, MessageEnd::From(1), 0);
    let any = post(receiver, MessageEnd::FromAny(RANKS), 0);
    let later = post(receiver, MessageEnd::From(1), 0);
    let other = post(receiver, MessageEnd::FromAny(RANKS), 0);
    let last = post(receiver, MessageEnd::From(2), 0);
    // The first message from rank 1 belongs to `first`, not to `any`.
    post(one, MessageEnd::To(0), 10);
    assert_eq!(taken(receiver, first), Some((1, 10)));
    assert_eq!(taken(receiver, any), None);
    // The second message from rank 1 belongs to `any`, which was issued before `later`.
    post(one, MessageEnd::To(0), 11);
    assert_eq!(taken(receiver, later), None);
    assert_eq!(taken(receiver, any), Some((1, 11)));
    // The third message from rank 1 belongs to `later`, so only rank 2 can match `other`.
    post(two, MessageEnd::To(0), 20);
    post(two, MessageEnd::To(0), 21);
    assert_eq!(taken(receiver, other), Some((2, 20)));
    assert_eq!(taken(receiver, last), Some((2, 21)));
    post(one, MessageEnd::To(0), 12);
    assert_eq!(taken(receiver, later), Some((1, 12)));
}
