//! Ranks of one host whose GPUs are different ones.

use crate::ranks::{Way, device, on_devices};
use crate::{SEGMENT_BYTES, every_case};
use ringtree::Error;
use ringtree::comm::attach::AttachOptions;
use ringtree::device::Device;
use ringtree::device::fake::Options;
use std::sync::Arc;

/// The GPU of a rank: the first two reach each other, the others nobody.
pub(crate) fn gpu(rank: usize) -> Options {
    Options {
        gpu: rank as u8,
        peers: match rank {
            0 => &[1],
            1 => &[0],
            _ => &[],
        },
        ..Options::default()
    }
}

fn three(options: impl Fn(usize) -> Options) -> Option<Vec<Arc<dyn Device>>> {
    (0..3).map(|rank| device(options(rank))).collect()
}

fn attach() -> AttachOptions {
    AttachOptions::new().segment_bytes(SEGMENT_BYTES)
}

/// What the ranks' segments travel over; everything they compute is right.
fn ways(devices: &[Arc<dyn Device>], options: AttachOptions) -> Vec<String> {
    let ends = on_devices(Way::Mapped, devices, options, |rank| {
        for case in every_case(devices.len()) {
            assert_eq!(rank.check(&case)?, 0, "{case:?}");
        }
        rank.comm.synchronize()?;
        Ok(rank.comm.device_transport().unwrap())
    });
    ends.into_iter().map(Result::unwrap).collect()
}

#[test]
fn those_that_reach_each_other_share_their_memory_where_it_is_asked_for() {
    let devices = three(gpu).unwrap();
    assert_eq!(ways(&devices, attach()), ["shm"; 3]);
    let shared = ways(&devices, attach().peer_access(true));
    assert_eq!(shared, ["cuda+shm", "cuda+shm", "shm"]);
}

#[test]
fn streams_that_pause_change_nothing_between_gpus() {
    let pausing = |rank| Options {
        pauses: Some(9),
        ..gpu(rank)
    };
    if let Some(devices) = three(pausing) {
        let shared = ways(&devices[..2], attach().peer_access(true));
        assert_eq!(shared, ["cuda"; 2]);
    }
}

/// Reading one way is not enough: segments go both ways.
#[test]
fn one_that_is_reached_but_does_not_reach_goes_through_the_hosts() {
    let one_way = |rank| Options {
        peers: if rank == 0 { &[1, 2] } else { &[] },
        ..gpu(rank)
    };
    // The pretended driver has no such GPUs.
    if std::env::var_os(crate::pretended::REQUIRED).is_none() {
        let devices = three(one_way).unwrap();
        assert_eq!(ways(&devices, attach().peer_access(true)), ["shm"; 3]);
    }
}

#[test]
fn ranks_that_attach_with_other_options_are_named() {
    let devices = three(gpu).unwrap();
    let ends = on_devices(Way::Mapped, &devices, attach(), |rank| {
        let options = attach().peer_access(rank.comm.rank() != 2);
        Ok(rank.comm.attach_with(&rank.device, options))
    });
    for end in ends {
        let Ok(Err(Error::Mismatch(text))) = end else {
            panic!("{end:?}");
        };
        assert!(
            text.contains("rank 2") && text.contains("without peer access"),
            "{text}"
        );
    }
}
