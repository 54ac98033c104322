//! Tests the simulated network. The tests check the cost model's times, the order of bytes, back
//! pressure and closing. They also check that the seed determines everything.

use super::*;

const MEGABYTE_PER_S: f64 = 1e6;

fn shaped(latency: Duration) -> NetworkConfig {
    NetworkConfig {
        latency,
        bandwidth_bytes_per_s: MEGABYTE_PER_S,
        ..NetworkConfig::default()
    }
}

fn faulty(seed: u64) -> NetworkConfig {
    let faults = Faults {
        delay_max: Duration::from_millis(3),
        stall_probability: 0.2,
        stall_max: Duration::from_millis(5),
        short_io: true,
        ..Faults::default()
    };
    NetworkConfig {
        seed,
        faults,
        ..shaped(Duration::from_micros(50))
    }
}

fn byte_at(offset: usize) -> u8 {
    (offset * 31 + offset / 251) as u8
}

/// A stream of predictable bytes between two ranks. If `behind` is set, the flow forwards the bytes
/// that the flow with that index has delivered.
struct Flow {
    from: usize,
    to: usize,
    bytes: usize,
    sent: usize,
    received: usize,
    behind: Option<usize>,
    ended_at: Duration,
}

fn flow(from: usize, to: usize, bytes: usize) -> Flow {
    let (sent, received, behind, ended_at) = (0, 0, None, Duration::ZERO);
    Flow {
        from,
        to,
        bytes,
        sent,
        received,
        behind,
        ended_at,
    }
}

fn write(network: &mut Network, from: usize, to: usize, data: &[u8]) -> io::Result<usize> {
    network.write(0, from, to, &[IoSlice::new(data)])
}

fn read(network: &mut Network, at: usize, from: usize, into: &mut [u8]) -> io::Result<usize> {
    network.read(0, at, from, &mut [IoSliceMut::new(into)])
}

fn unless_blocked(result: io::Result<usize>) -> usize {
    match result {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        Err(error) => panic!("{error}"),
    }
}

fn poll_sender(network: &mut Network, flow: &mut Flow, available: usize) {
    while flow.sent < available {
        let end = available.min(flow.sent + 100_000);
        let data: Vec<u8> = (flow.sent..end).map(byte_at).collect();
        match unless_blocked(write(network, flow.from, flow.to, &data)) {
            0 => return,
            bytes => flow.sent += bytes,
        }
    }
}

fn poll_receiver(network: &mut Network, flow: &mut Flow) {
    let mut into = vec![0; 40_000];
    while flow.received < flow.bytes {
        let bytes = unless_blocked(read(network, flow.to, flow.from, &mut into));
        if bytes == 0 {
            return;
        }
        for (place, &byte) in into[..bytes].iter().enumerate() {
            assert_eq!(
                byte,
                byte_at(flow.received + place),
                "byte {}",
                flow.received + place
            );
        }
        flow.received += bytes;
        flow.ended_at = network.now();
    }
}

/// Polls all ranks once, then only touched ranks, until every flow is complete. Returns the virtual
/// time at that point.
fn drive(network: &mut Network, flows: &mut [Flow]) -> Duration {
    let mut touched: Vec<usize> = (0..network.world_size()).collect();
    loop {
        for rank in std::mem::take(&mut touched) {
            for place in 0..flows.len() {
                if flows[place].to == rank {
                    poll_receiver(network, &mut flows[place]);
                }
                if flows[place].from == rank {
                    let behind = flows[place].behind.map(|other| flows[other].received);
                    let available = behind.unwrap_or(flows[place].bytes);
                    poll_sender(network, &mut flows[place], available);
                }
            }
        }
        if flows.iter().all(|flow| flow.received == flow.bytes) {
            return network.now();
        }
        touched = network.take_touched();
        if touched.is_empty() {
            assert!(
                network.advance().is_some(),
                "the network is idle, but the flows are not complete"
            );
        }
    }
}

#[test]
fn seven_sequential_sends_of_5_mb_take_35_s() {
    let mut network = Network::new(shaped(Duration::ZERO), 8);
    for peer in 1..8 {
        drive(&mut network, &mut [flow(0, peer, 5_000_000)]);
        assert_eq!(network.now(), Duration::from_secs(5 * peer as u64));
    }
    assert_eq!(network.bytes_sent(0), 35_000_000);
    assert_eq!(network.bytes_sent(1), 0);
}

#[test]
fn two_connections_share_a_port_and_end_together() {
    for flows in [
        [flow(0, 1, 1_000_000), flow(0, 2, 1_000_000)],
        [flow(1, 0, 1_000_000), flow(2, 0, 1_000_000)],
    ] {
        let mut flows = flows;
        let mut network = Network::new(shaped(Duration::ZERO), 3);
        let end = drive(&mut network, &mut flows);
        assert_eq!(end, Duration::from_secs(2));
        assert!(
            flows
                .iter()
                .all(|flow| flow.ended_at > Duration::from_millis(1600))
        );
    }
}

#[test]
fn ports_are_full_duplex_and_pairs_are_independent() {
    let mut network = Network::new(shaped(Duration::ZERO), 4);
    let million = 1_000_000;
    let mut flows = [
        flow(0, 1, million),
        flow(1, 0, million),
        flow(2, 3, million),
    ];
    assert_eq!(drive(&mut network, &mut flows), Duration::from_secs(1));
}

#[test]
fn backlog_of_one_sender_does_not_delay_another() {
    let mut network = Network::new(shaped(Duration::ZERO), 4);
    let mut flows = [
        flow(0, 1, 200_000),
        flow(0, 2, 200_000),
        flow(3, 2, 200_000),
    ];
    drive(&mut network, &mut flows);
    assert_eq!(
        flows[2].ended_at,
        Duration::from_millis(200),
        "rank 0 sends to rank 1 first, so rank 2's port is free for rank 3"
    );
    assert_eq!(flows[1].ended_at, Duration::from_millis(400));
}

#[test]
fn pipelined_chain_adds_one_packet_time_per_hop() {
    let mut network = Network::new(shaped(Duration::ZERO), 4);
    let mut flows = [
        flow(0, 1, 1_000_000),
        flow(1, 2, 1_000_000),
        flow(2, 3, 1_000_000),
    ];
    flows[1].behind = Some(0);
    flows[2].behind = Some(1);
    let end = drive(&mut network, &mut flows);
    assert!(end > Duration::from_millis(1001), "{end:?}");
    assert!(
        end <= Duration::from_micros(1_000_000 + 2 * 16_384),
        "{end:?}"
    );
}

#[test]
fn packet_takes_latency_plus_port_time_once() {
    let mut network = Network::new(shaped(Duration::from_millis(7)), 2);
    network.record_transfers();
    write(&mut network, 0, 1, &[0; 1000]).unwrap();
    assert_eq!(network.next_event_at(), Some(Duration::from_millis(7)));
    network.advance_to(Duration::from_micros(7999));
    assert_eq!(
        read(&mut network, 1, 0, &mut [0]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    assert!(network.take_touched().is_empty());
    assert_eq!(network.advance(), Some(Duration::from_millis(8)));
    assert_eq!(network.take_touched(), [1]);
    assert_eq!(read(&mut network, 1, 0, &mut [0; 2000]).unwrap(), 1000);
    assert_eq!(network.advance(), None);
    let (start, end) = (Duration::ZERO, Duration::from_millis(8));
    assert_eq!(
        network.transfers(),
        [Transfer {
            start,
            end,
            from: 0,
            to: 1,
            bytes: 1000
        }]
    );
}

#[test]
fn full_window_blocks_writer_until_reader_reads() {
    let config = NetworkConfig {
        window_bytes: 1000,
        quantum_bytes: 400,
        ..shaped(Duration::ZERO)
    };
    let mut network = Network::new(config, 2);
    assert_eq!(write(&mut network, 0, 1, &[1; 1500]).unwrap(), 1000);
    let blocked = write(&mut network, 0, 1, &[1]).unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::WouldBlock);
    while network.advance().is_some() {}
    assert_eq!(network.take_touched(), [1], "arrival frees no space");
    assert!(write(&mut network, 0, 1, &[1]).is_err());
    assert_eq!(read(&mut network, 1, 0, &mut [0; 400]).unwrap(), 400);
    assert_eq!(network.take_touched(), [0]);
    assert_eq!(write(&mut network, 0, 1, &[1; 500]).unwrap(), 400);
}

fn faulty_run(seed: u64) -> (Vec<Transfer>, Duration) {
    let mut network = Network::new(faulty(seed), 4);
    network.record_transfers();
    let mut flows = [
        flow(0, 1, 100_000),
        flow(2, 1, 100_000),
        flow(1, 3, 100_000),
    ];
    let end = drive(&mut network, &mut flows);
    (network.transfers().to_vec(), end)
}

#[test]
fn seed_determines_run_and_faults_keep_bytes_in_order() {
    assert_eq!(faulty_run(1), faulty_run(1));
    assert_ne!(faulty_run(1), faulty_run(2));
    for seed in 3..20 {
        faulty_run(seed);
    }
}

#[test]
fn stalled_rank_is_touched_after_its_stall() {
    let mut config = shaped(Duration::ZERO);
    config.faults.stall_probability = 1.0;
    config.faults.stall_max = Duration::from_secs(1);
    let mut network = Network::new(config, 2);
    network.set_timer(1, Duration::from_secs(2));
    assert_eq!(network.advance(), Some(Duration::from_secs(2)));
    assert!(network.is_stalled(1));
    assert!(network.take_touched().is_empty());
    let end = network.advance().unwrap();
    assert!(
        end > Duration::from_secs(2) && end <= Duration::from_secs(3),
        "{end:?}"
    );
    assert!(!network.is_stalled(1));
    assert_eq!(network.take_touched(), [1]);
    assert_eq!(network.advance(), None);
}

#[test]
fn new_timer_replaces_old_timer() {
    let mut network = Network::new(shaped(Duration::ZERO), 2);
    network.set_timer(0, Duration::from_secs(1));
    network.set_timer(0, Duration::from_secs(4));
    network.set_timer(1, Duration::from_secs(2));
    network.cancel_timer(1);
    assert_eq!(network.advance(), Some(Duration::from_secs(4)));
    assert_eq!(network.take_touched(), [0]);
    assert_eq!(network.next_event_at(), None);
}

#[test]
fn dead_rank_delivers_sent_bytes_before_end() {
    let mut network = Network::new(shaped(Duration::from_millis(1)), 3);
    write(&mut network, 0, 1, &[9; 50_000]).unwrap();
    write(&mut network, 1, 0, &[9; 10]).unwrap();
    network.close_rank(0);
    assert!(network.is_closed(0));
    assert_eq!(
        write(&mut network, 1, 0, &[1]).unwrap(),
        1,
        "rank 1 does not know of the death yet"
    );
    let (mut total, mut into) = (0, vec![0; 7000]);
    loop {
        match read(&mut network, 1, 0, &mut into) {
            Ok(0) => break,
            Ok(bytes) => total += bytes,
            Err(_) => assert!(network.advance().is_some(), "the stream never ended"),
        }
    }
    assert_eq!(total, 50_000);
    assert_eq!(
        write(&mut network, 1, 0, &[1]).unwrap_err().kind(),
        ErrorKind::BrokenPipe
    );
    assert_eq!(
        read(&mut network, 1, 0, &mut into).unwrap(),
        0,
        "the end of the stream can be read again"
    );
}

#[test]
fn death_wakes_waiting_rank_without_traffic() {
    let mut network = Network::new(shaped(Duration::from_millis(1)), 3);
    assert!(read(&mut network, 1, 0, &mut [0]).is_err());
    network.close_rank(0);
    assert!(
        read(&mut network, 2, 0, &mut [0]).is_err(),
        "rank 2 first connects to rank 0 after rank 0 has died"
    );
    assert_eq!(network.advance(), Some(Duration::from_millis(1)));
    assert_eq!(network.take_touched(), [1, 2]);
    assert_eq!(read(&mut network, 1, 0, &mut [0]).unwrap(), 0);
    assert_eq!(read(&mut network, 2, 0, &mut [0]).unwrap(), 0);
    assert!(write(&mut network, 2, 0, &[0]).is_err());
}

#[test]
fn groups_have_separate_connections() {
    let mut network = Network::new(shaped(Duration::ZERO), 2);
    network.write(7, 0, 1, &[IoSlice::new(b"seven")]).unwrap();
    while network.advance().is_some() {}
    assert!(read(&mut network, 1, 0, &mut [0; 8]).is_err());
    let mut into = [0; 8];
    assert_eq!(
        network
            .read(7, 1, 0, &mut [IoSliceMut::new(&mut into)])
            .unwrap(),
        5
    );
    assert_eq!(&into[..5], b"seven");
    let own = write(&mut network, 1, 1, &[0]).unwrap_err();
    assert_eq!(own.kind(), ErrorKind::InvalidInput);
}

#[test]
fn control_messages_keep_order_and_use_no_port_time() {
    let mut network = Network::new(faulty(3), 2);
    write(&mut network, 0, 1, &[0; 100_000]).unwrap();
    for number in 0..50 {
        network.send_control(0, 1, 4, vec![number]);
    }
    network.advance_to(Duration::from_micros(50) + Duration::from_millis(3));
    for number in 0..50 {
        assert_eq!(network.receive_control(1), Some((0, 4, vec![number])));
    }
    assert_eq!(network.receive_control(1), None);
    network.close_rank(1);
    network.send_control(0, 1, 4, vec![1]);
    while network.advance().is_some() {}
    assert_eq!(network.receive_control(1), None, "a dead rank gets nothing");
}

#[test]
fn network_creates_only_used_connections() {
    let mut network = Network::new(shaped(Duration::ZERO), 4096);
    assert!(network.pipes.is_empty());
    let mut flows: Vec<Flow> = (0..4096)
        .map(|rank| flow(rank, (rank + 1) % 4096, 100))
        .collect();
    assert_eq!(drive(&mut network, &mut flows), Duration::from_micros(100));
    assert_eq!(network.pipes.len(), 2 * 4096);
}
