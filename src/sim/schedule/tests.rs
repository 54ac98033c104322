//! Tests the scheduler of simulated ranks.

use super::*;
use crate::sim::network::NetworkConfig;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicUsize, Ordering};

const RANKS: usize = 5;

fn baton(seed: u64) -> Baton {
    let network = Network::new(NetworkConfig::default(), RANKS);
    Baton::new(Arc::new(Mutex::new(network)), seed)
}

fn send(baton: &Baton, from: usize, to: usize, byte: u8) {
    lock(&baton.network)
        .write(0, from, to, &[IoSlice::new(&[byte])])
        .unwrap();
}

/// Returns the next byte, or `None` at the end of the stream.
fn receive(baton: &Baton, at: usize, from: usize) -> Result<Option<u8>, Deadlock> {
    loop {
        let mut byte = [0];
        let read = lock(&baton.network).read(0, at, from, &mut [IoSliceMut::new(&mut byte)]);
        match read {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(byte[0])),
            Err(_) => baton.wait(at, Duration::MAX)?,
        }
    }
}

#[test]
fn token_ring_advances_virtual_time() {
    let baton = baton(1);
    let received = baton.run(|rank| {
        if rank == 0 {
            send(&baton, 0, 1, 1);
        }
        let token = receive(&baton, rank, (rank + RANKS - 1) % RANKS)
            .unwrap()
            .unwrap();
        if rank != 0 {
            send(&baton, rank, (rank + 1) % RANKS, token + 1);
        }
        token
    });
    assert_eq!(received, [5, 1, 2, 3, 4]);
    assert_eq!(baton.now(), Duration::from_micros(50));
}

/// Returns the ranks in the order in which they ran. Checks that only one ran at a time.
fn interleaving(seed: u64) -> Vec<usize> {
    let baton = baton(seed);
    let inside = AtomicUsize::new(0);
    let steps = Mutex::new(Vec::new());
    baton.run(|rank| {
        for _ in 0..4 {
            assert_eq!(
                inside.fetch_add(1, Ordering::SeqCst),
                0,
                "two ranks run at the same time"
            );
            steps.lock().unwrap().push(rank);
            thread::yield_now();
            inside.fetch_sub(1, Ordering::SeqCst);
            baton.wait(rank, Duration::ZERO).unwrap();
        }
    });
    steps.into_inner().unwrap()
}

#[test]
fn one_rank_runs_at_a_time_in_seeded_order() {
    assert_eq!(interleaving(1), interleaving(1));
    assert_ne!(interleaving(1), interleaving(2));
    assert_eq!(interleaving(3).len(), 4 * RANKS);
}

#[test]
fn wait_lasts_until_its_deadline() {
    let baton = baton(0);
    let woken = baton.run(|rank| {
        baton
            .wait(rank, Duration::from_secs(3600 * (RANKS - rank) as u64))
            .unwrap();
        baton.now().as_secs() / 3600
    });
    assert_eq!(woken, [5, 4, 3, 2, 1]);
}

#[test]
fn deadlock_is_reported_on_all_waiting_ranks() {
    let baton = baton(9);
    let results = baton.run(|rank| match rank {
        4 => Ok(None),
        _ => receive(&baton, rank, (rank + 1) % 4),
    });
    let deadlock = Deadlock {
        waiting: vec![0, 1, 2, 3],
        at: Duration::ZERO,
    };
    assert!(deadlock.to_string().contains("[0, 1, 2, 3]"));
    assert_eq!(results[..4], vec![Err(deadlock); 4]);
    assert_eq!(results[4], Ok(None));
}

#[test]
fn panic_names_rank_and_other_ranks_see_it_die() {
    let baton = baton(4);
    let saw_end = AtomicUsize::new(0);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        baton.run(|rank| {
            assert_ne!(rank, 2, "rank 2 fails on purpose");
            if receive(&baton, rank, 2) == Ok(None) {
                saw_end.fetch_add(1, Ordering::SeqCst);
            }
        })
    }));
    let message = panic_message(outcome.unwrap_err().as_ref());
    assert!(message.starts_with("rank 2 panicked: "), "{message}");
    assert!(message.contains("rank 2 fails on purpose"), "{message}");
    assert_eq!(saw_end.into_inner(), RANKS - 1);
}
