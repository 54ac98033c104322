//! Ranks as threads of this process, each with a runtime and a control thread of its own, over real
//! shared memory or loopback TCP.

use ringtree::start::{TransportChoice, UniqueId};
use ringtree::{Builder, Communicator};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// What ranks of one host talk over.
pub(crate) const LINKS: [TransportChoice; 2] = [TransportChoice::Tcp, TransportChoice::Shm];

/// What `act` returns, which runs on a thread of its own; `None` if it does not end in time.
pub(crate) fn within<R: Send + 'static>(
    limit: Duration,
    act: impl FnOnce() -> R + Send + 'static,
) -> Option<R> {
    let (tell, told) = channel();
    thread::spawn(move || tell.send(act()));
    told.recv_timeout(limit).ok()
}

/// Runs `act` on each of `ranks` ranks, with the timeout for their calls; `setting` may add to what
/// a rank's builder has.
pub(crate) fn world<R: Send>(
    ranks: usize,
    (transport, timeout): (TransportChoice, Duration),
    setting: impl Fn(usize, Builder) -> Builder + Sync,
    act: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let id = UniqueId::on("127.0.0.1").unwrap();
    thread::scope(|scope| {
        let start = |rank: usize| {
            let (id, act, setting) = (&id, &act, &setting);
            scope.spawn(move || {
                let builder = Communicator::builder().rank(rank).world_size(ranks);
                let builder = builder.local(rank, ranks).unique_id(id);
                let builder = builder.transport(transport).timeout(timeout);
                act(setting(rank, builder).connect().unwrap())
            })
        };
        let ranks: Vec<_> = (0..ranks).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
