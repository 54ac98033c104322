use super::*;
use crate::sys::shared::{Division, OwnRegion, PeerRegion};

#[test]
fn all_ranks_agree_on_memory_sharing() {
    let mut settings = world(5, PATIENCE);
    for (settings, host) in settings.iter_mut().zip(["a", "b", "a", "b", "c"]) {
        settings.host_id = Some(host.into());
    }
    let joined: Vec<Joined> = join_all(settings, |_| 0)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let local_ranks = joined.iter().map(|joined| joined.membership.local_ranks());
    let expected = [vec![0, 2], vec![1, 3], vec![0, 2], vec![1, 3], vec![4]];
    assert!(local_ranks.eq(expected));
    for (rank, joined) in joined.iter().enumerate() {
        assert_eq!(joined.membership.hosts(), [0, 1, 0, 1, 4]);
        assert_eq!(joined.membership.local.is_some(), rank < 4);
    }
    thread::scope(|scope| {
        for joined in &joined[..4] {
            scope.spawn(|| {
                let division = Division {
                    words: 512,
                    bytes: 0,
                };
                let (_region, own) = OwnRegion::new(division).unwrap();
                let membership = &joined.membership;
                let local = membership.local.as_ref().unwrap();
                let handed = local.exchange(0, &own, Some(4096), PATIENCE).unwrap();
                let [(_, file)] = &handed[..] else {
                    panic!("expected one local rank, got {handed:?}");
                };
                PeerRegion::map(file, division).unwrap();
            });
        }
    });
}

#[test]
fn tcp_transport_disables_memory_sharing() {
    for transport in [
        TransportChoice::Auto,
        TransportChoice::Shm,
        TransportChoice::Tcp,
    ] {
        let mut settings = world(2, PATIENCE);
        for settings in &mut settings {
            settings.transport = transport;
        }
        for joined in join_all(settings, |_| 0) {
            let membership = joined.unwrap().membership.clone();
            let shares = transport != TransportChoice::Tcp;
            assert_eq!(membership.hosts(), [0, usize::from(!shares)]);
            assert_eq!(membership.local.is_some(), shares);
        }
    }
}

#[test]
fn shm_transport_requires_that_all_ranks_can_share() {
    let mut settings = world(3, PATIENCE);
    for settings in &mut settings {
        settings.transport = TransportChoice::Shm;
    }
    settings[2].host_id = Some("elsewhere".into());
    for result in join_all(settings, |_| 0) {
        let line = join_line(result);
        assert!(
            line.contains("rank 2 ") && line.contains("elsewhere"),
            "{line}"
        );
    }
}

#[test]
fn transport_mismatch_is_reported_to_all_ranks() {
    let mut settings = world(2, PATIENCE);
    settings[1].transport = TransportChoice::Tcp;
    for result in join_all(settings, |_| 0) {
        let line = join_line(result);
        assert!(line.contains("RINGTREE_TRANSPORT differs"), "{line}");
    }
}
