use super::*;
use crate::sim::network::NetworkConfig;

fn stream(network: &Arc<Mutex<Network>>, rank: usize, peer: usize) -> (Membership, SimStream) {
    let membership = Membership {
        network: Arc::clone(network),
        group: 0,
        rank,
    };
    let stream = membership.stream(peer);
    (membership, stream)
}

#[test]
fn dropped_end_closes_stream_after_written_bytes() {
    let network = Arc::new(Mutex::new(Network::new(NetworkConfig::default(), 2)));
    let (_left_membership, mut left) = stream(&network, 0, 1);
    let (right_membership, mut right) = stream(&network, 1, 0);
    let mut into = [0; 9];
    let nothing = right.read(&mut into).unwrap_err();
    assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    let slices = [
        IoSlice::new(b"head"),
        IoSlice::new(b""),
        IoSlice::new(b"tail!"),
    ];
    assert_eq!(left.write_vectored(&slices).unwrap(), 9);
    drop(left);
    while lock(&network).advance().is_some() {}
    let (front, back) = into.split_at_mut(2);
    let mut slices = [IoSliceMut::new(front), IoSliceMut::new(back)];
    assert_eq!(right.read_vectored(&mut slices).unwrap(), 9);
    assert_eq!(&into, b"headtail!");
    assert_eq!(right.read(&mut into).unwrap(), 0);
    assert_eq!(
        right.write(b"x").unwrap_err().kind(),
        io::ErrorKind::BrokenPipe
    );
    // A stream to a rank that has left ends immediately.
    drop(right_membership);
    let (_late_membership, mut late) = stream(&network, 0, 1);
    while lock(&network).advance().is_some() {}
    assert_eq!(late.read(&mut into).unwrap(), 0);
}
