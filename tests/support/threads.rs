//! Runs ranks as threads of this process, over real shared memory or loopback TCP. Each rank has
//! its own runtime and control thread.

use ringtree::start::{TransportChoice, UniqueId};
use ringtree::{Builder, Communicator};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// The links between ranks of one host.
pub(crate) const LINKS: [TransportChoice; 2] = [TransportChoice::Tcp, TransportChoice::Shm];

/// Runs `act` on a separate thread. Returns its result, or `None` if `act` does not return within
/// `limit`.
pub(crate) fn within<R: Send + 'static>(
    limit: Duration,
    act: impl FnOnce() -> R + Send + 'static,
) -> Option<R> {
    let (sender, receiver) = channel();
    thread::spawn(move || sender.send(act()));
    receiver.recv_timeout(limit).ok()
}

/// Runs `act` on `ranks` ranks whose calls have this `timeout`. `setting` can configure the builder
/// of each rank further.
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
