//! Ranks with a device each, or one in common.

use crate::SEGMENT_BYTES;
use crate::pretended::REQUIRED;
use ringtree::bootstrap::TransportChoice;
use ringtree::comm::attach::{AttachOptions, HandOver};
use ringtree::device::cuda::Cuda;
use ringtree::device::fake::{Fake, Options};
use ringtree::device::{Device, Stream};
use ringtree::{Communicator, Result};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

/// Long enough for a slow machine, short enough for a test that hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How segments travel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    /// In memory of the device that all use; the hosts hand it over.
    Mapped,
    /// There too, but the streams hand it over.
    Signalled,
    /// Through the hosts, over TCP.
    Staged,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::Mapped, Self::Signalled, Self::Staged];
}

/// A rank, its device and a stream of it.
pub(crate) struct Rank {
    pub(crate) comm: Communicator,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) stream: Arc<dyn Stream>,
}

impl Rank {
    pub(crate) fn with(
        comm: Communicator,
        device: &Arc<dyn Device>,
        options: AttachOptions,
    ) -> Result<Self> {
        comm.attach_with(device, options)?;
        Ok(Self {
            comm,
            stream: device.stream()?,
            device: Arc::clone(device),
        })
    }
}

/// The device to test on; none where it cannot be as `options` say. A GPU can be one of several, of
/// which the first two reach each other, as the pretended driver has them.
pub(crate) fn device(options: Options) -> Option<Arc<dyn Device>> {
    let is_cuda = std::env::var_os(REQUIRED).is_some();
    if !is_cuda {
        return Some(Arc::new(Fake::with(options)));
    }
    let usual = Options {
        gpu: options.gpu,
        peers: options.peers,
        ..Options::default()
    };
    (options == usual).then(|| -> Arc<dyn Device> {
        let gpu = Cuda::open(usize::from(options.gpu)).unwrap();
        Arc::new(gpu)
    })
}

/// How a device is attached.
pub(crate) fn options(way: Way) -> AttachOptions {
    let by = match way {
        Way::Signalled => HandOver::Streams,
        Way::Mapped | Way::Staged => HandOver::Hosts,
    };
    AttachOptions::new()
        .segment_bytes(SEGMENT_BYTES)
        .hand_over(by)
}

/// An address that nobody uses.
pub(crate) fn rendezvous() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

pub(crate) fn transport(way: Way) -> TransportChoice {
    match way {
        Way::Mapped | Way::Signalled => TransportChoice::Shm,
        Way::Staged => TransportChoice::Tcp,
    }
}

/// Runs `script` on every rank, each a thread of this process with a device in common.
pub(crate) fn on_threads<R: Send>(
    world_size: usize,
    way: Way,
    device: &Arc<dyn Device>,
    script: impl Fn(&Rank) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    let devices = vec![Arc::clone(device); world_size];
    on_devices(way, &devices, options(way), script)
}

/// The same, each rank with a device of its own, attached as `options` say.
pub(crate) fn on_devices<R: Send>(
    way: Way,
    devices: &[Arc<dyn Device>],
    options: AttachOptions,
    script: impl Fn(&Rank) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    let (rendezvous, world_size) = (rendezvous(), devices.len());
    let rank = |rank: usize| {
        let builder = Communicator::builder().rank(rank).world_size(world_size);
        let builder = builder.rendezvous(&rendezvous).timeout(TIMEOUT);
        let comm = builder.transport(transport(way)).connect()?;
        script(&Rank::with(comm, &devices[rank], options)?)
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        let ranks: Vec<_> = (0..world_size)
            .map(|number| scope.spawn(move || rank(number)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
