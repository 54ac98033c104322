use super::*;

/// Returns a rank with these properties: host, boot, network, user.
pub(crate) fn peer(properties: [u32; 4]) -> Peer {
    Peer {
        address: ([127, 0, 0, 1], 1).into(),
        host_name: format!("h{}", properties[0]),
        host_id: format!("id{}", properties[0]),
        site: String::new(),
        place: Ok(Place {
            boot_id: format!("boot{}", properties[1]),
            network: u64::from(properties[2]),
            users: 1,
            user: properties[3],
            socket: "s".into(),
            token: Token([0; 16]),
        }),
        pid: 1,
        process: None,
    }
}

pub(crate) fn unable_to_share() -> Peer {
    Peer {
        place: Err("memfd_create: no".into()),
        ..peer([0; 4])
    }
}

/// Returns ranks on these hosts. On host 9, no rank can share memory.
pub(crate) fn hosts(hosts: &[u32]) -> Vec<Peer> {
    let one = |host: &u32| match host {
        9 => unable_to_share(),
        host => peer([*host, *host, 0, 0]),
    };
    hosts.iter().map(one).collect()
}

#[test]
fn ranks_share_memory_only_if_all_properties_match() {
    assert_eq!(local_ranks(&[peer([1; 4]), peer([1; 4])], 1), [0, 1]);
    for property in 0..4 {
        let mut other = [1; 4];
        other[property] = 2;
        let peers = [peer([1; 4]), peer(other), peer([1; 4])];
        assert_eq!(local_ranks(&peers, 0), [0, 2], "property {property}");
        assert_eq!(local_ranks(&peers, 1), [1], "property {property}");
        assert_eq!(super::hosts(&peers), [0, 1, 0], "property {property}");
    }
}

#[test]
fn ranks_on_one_host_must_have_same_site() {
    let mut peers = hosts(&[1, 2, 1, 3]);
    assert_eq!(super::sites(&peers), Ok(vec![0; 4]));
    for (rank, site) in ["a", "", "a", ""].into_iter().enumerate() {
        peers[rank].site = site.into();
    }
    assert_eq!(super::sites(&peers), Ok(vec![0, 1, 0, 1]));
    peers[2].site = "b".into();
    let line = super::sites(&peers).unwrap_err();
    let words = "RINGTREE_SITE is \"a\" on rank 0 but \"b\" on rank 2, although both are on \
                 host h1";
    assert!(line.starts_with(words), "{line}");
}

#[test]
fn ranks_that_cannot_share_are_not_grouped() {
    let peers = [unable_to_share(), unable_to_share(), peer([0; 4])];
    for rank in 0..3 {
        assert_eq!(local_ranks(&peers, rank), [rank]);
    }
    assert_eq!(super::hosts(&peers), [0, 1, 2]);
}
