//! Tests the membership, order, errors and results of groups.

use ringtree::ddp::checkpoint::{Checkpoint, Checkpoints, Directory};
use ringtree::ddp::{DataParallel, Options, Parameter};
use ringtree::plan::internal::topology::in_sites_of;
use ringtree::plan::{Collective, Hosts};
use ringtree::sim::{World, sleep};
use ringtree::{Communicator, Dtype, Error, ErrorKind, ReduceOp, Result, simulate};
use std::time::Duration;

/// Gathers a number from each rank of `comm`, in the order of its ranks.
fn gathered(comm: &Communicator, own: usize) -> Result<Vec<u64>> {
    let mut all = vec![0; comm.world_size()];
    all[comm.rank()] = own as u64;
    comm.all_gather(&mut all).map(|()| all)
}

#[test]
fn split_orders_ranks_by_key_and_then_by_rank() {
    let groups = simulate(7, |comm| {
        let rank = comm.rank();
        let color = (rank != 4).then_some(rank % 2);
        // Rank 6 has the smallest key of ranks 0, 2 and 6. Ranks 1, 3 and 5 have equal keys.
        let key = if rank == 6 { 1 } else { 2 };
        match comm.split_optional(color, key)? {
            Some(group) => gathered(&group, rank).map(Some),
            None => Ok(None),
        }
    });
    for (rank, group) in groups.into_iter().enumerate() {
        let expected = match rank {
            4 => None,
            even if even % 2 == 0 => Some(vec![6, 0, 2]),
            _ => Some(vec![1, 3, 5]),
        };
        assert_eq!(group, Ok(expected), "rank {rank}");
    }
}

#[test]
fn subgroup_needs_only_its_members_and_keeps_list_order() {
    let ends = simulate(5, |comm| match comm.rank() {
        // Rank 0 assigns group IDs even while it computes and makes no call.
        0 => {
            sleep(comm, Duration::from_secs(2));
            Ok(Vec::new())
        }
        3 => Ok(Vec::new()),
        rank => gathered(&comm.subgroup(&[4, 1, 2])?, rank),
    });
    for rank in [1, 2, 4] {
        assert_eq!(ends[rank], Ok(vec![4, 1, 2]));
    }
}

#[test]
fn rank_zero_may_leave_as_soon_as_its_split_returns() {
    for seed in 0..20 {
        let mut world = World::new(4);
        world.network.seed = seed;
        let ends = world.run(|comm| {
            let color = (comm.rank() > 0).then_some(comm.rank() % 2);
            match comm.split_optional(color, 0)? {
                Some(group) => gathered(&group, comm.rank()),
                None => Ok(Vec::new()),
            }
        });
        assert_eq!(ends[1..], [Ok(vec![1, 3]), Ok(vec![2]), Ok(vec![1, 3])]);
    }
}

#[test]
fn nested_groups_and_duplicates_compute_independently() {
    let ends = simulate(8, |comm| {
        let half = comm.split(comm.rank() / 4, 0)?;
        let quarter = half.subgroup(match half.rank() {
            0 | 2 => &[2, 0],
            _ => &[1, 3],
        })?;
        let other = quarter.duplicate()?;
        let works = [
            half.start_all_reduce(vec![comm.rank() as u64], ReduceOp::Sum)?,
            quarter.start_all_reduce(vec![comm.rank() as u64], ReduceOp::Sum)?,
            other.start_all_reduce(vec![1u64], ReduceOp::Sum)?,
        ];
        let sums: Result<Vec<_>> = works
            .into_iter()
            .rev()
            .map(|work| Ok(work.wait()?))
            .collect();
        let peer = 1 - quarter.rank();
        let mut theirs = [0u64];
        match quarter.rank() {
            0 => {
                quarter.send(&[comm.rank() as u64], peer)?;
                quarter.recv(&mut theirs, peer)?;
            }
            _ => {
                quarter.recv(&mut theirs, peer)?;
                quarter.send(&[comm.rank() as u64], peer)?;
            }
        }
        Ok::<_, Error>((sums?.concat(), theirs[0]))
    });
    for (rank, end) in ends.into_iter().enumerate() {
        let (half, partner) = (rank as u64 / 4 * 16 + 6, rank as u64 ^ 2);
        let quarter = rank as u64 + partner;
        assert_eq!(end, Ok((vec![2, quarter, half], partner)), "rank {rank}");
    }
}

#[test]
fn groups_used_in_opposite_order_do_not_stall_each_other() {
    const COUNT: usize = 100_000;
    let mut world = World::new(2);
    // The links hold far less than a call moves, so their buffers cannot hide a stall.
    world.network.window_bytes = 64;
    let ends = world.run(|comm| {
        let (x, y) = (comm.duplicate()?, comm.subgroup(&[1, 0])?);
        let (first, second) = if comm.rank() == 0 { (&x, &y) } else { (&y, &x) };
        let one = first.start_all_reduce(vec![1u32; COUNT], ReduceOp::Sum)?;
        let two = second.start_all_reduce(vec![2u32; COUNT], ReduceOp::Sum)?;
        let two = two.wait()?;
        Ok::<_, Error>((one.wait()?[COUNT - 1], two[COUNT - 1]))
    });
    assert_eq!(ends, vec![Ok((3, 3)); 2]);
}

#[test]
fn invalid_member_lists_are_rejected_and_change_nothing() {
    let ends = simulate(3, |comm| {
        let check_rejected = |ranks: &[usize], what: &str| {
            let error = comm.subgroup(ranks).unwrap_err();
            let text = error.to_string();
            assert!(error.kind() == ErrorKind::Usage, "{text}");
            assert!(text.contains(what), "{text}");
        };
        let (own, next) = (comm.rank(), (comm.rank() + 1) % 3);
        check_rejected(&[own, next, own], "is listed twice");
        check_rejected(
            &[own, 3],
            "member 3 is out of range: valid ranks are 0 to 2",
        );
        check_rejected(&[next], "is not in the list");
        check_rejected(&[], "is not in the list");
        gathered(&comm.subgroup(&[2, 0, 1])?, own)
    });
    assert_eq!(ends, vec![Ok(vec![2, 0, 1]); 3]);
}

#[test]
fn group_creation_uses_timeout_of_handle() {
    let late_member = |is_untimed: bool| {
        let mut world = World::new(2);
        world.timeout = Duration::from_secs(10);
        world.run(move |comm| {
            if comm.rank() == 1 {
                sleep(comm, Duration::from_secs(3600));
            }
            let handle = match is_untimed {
                true => comm.without_timeout(),
                false => comm.with_timeout(Duration::from_secs(2)),
            };
            let end = handle.subgroup(&[0, 1]).map(|group| group.world_size());
            (end, comm.clock())
        })
    };
    for (end, _) in late_member(true) {
        assert_eq!(end, Ok(2));
    }
    let (end, at) = late_member(false).swap_remove(0);
    assert!(end.is_err_and(|error| error.kind() == ErrorKind::Deadline));
    assert!(at < Duration::from_secs(4), "{at:?}");
}

#[test]
fn missing_group_members_are_named_with_their_wait() {
    let mut world = World::new(5);
    world.timeout = Duration::from_secs(3);
    let ends = world.run(|comm| match comm.rank() {
        1 | 3 => {
            let end = comm.subgroup(&[1, 2, 3, 4]).map(|_| ());
            sleep(comm, Duration::from_secs(2));
            end
        }
        4 => {
            sleep(comm, Duration::from_secs(1));
            comm.subgroup(&[1, 2, 4, 3]).map(|_| ())
        }
        _ => {
            sleep(comm, Duration::from_secs(10));
            Ok(())
        }
    });
    let error = ends[1].as_ref().unwrap_err();
    assert!(
        error.kind() == ErrorKind::Deadline && error.missing() == [1, 3],
        "{error:?}"
    );
    let text = error.to_string();
    for part in [
        "rank 0 (world rank 1) timed out waiting for the group of world ranks 1, 2, 3, 4 after 3.0",
        "rank 1 (world rank 2) has not requested it",
        "rank 3 (world rank 4) is waiting for the group of world ranks 1, 2, 4, 3 instead",
    ] {
        let swapped = part.replace("rank 0 (world rank 1)", "rank 2 (world rank 3)");
        assert!(text.contains(part) || text.contains(&swapped), "{text}");
    }
    assert_eq!(ends[3], ends[1]);
    assert!(
        ends[4]
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Deadline),
        "{ends:?}"
    );
}

#[test]
fn errors_name_group_rank_and_world_rank() {
    let ends = simulate(6, |comm| {
        if comm.rank() % 2 == 0 {
            return comm.barrier();
        }
        let group = comm.subgroup(&[5, 3, 1])?;
        let op = [ReduceOp::Sum, ReduceOp::Max][usize::from(comm.rank() == 3)];
        let ended = group.all_reduce(&mut [1.0f32; 9], op);
        comm.barrier().and(ended)
    });
    let error = ends[1].as_ref().unwrap_err();
    assert!(error.kind() == ErrorKind::Mismatch, "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("rank 1 (world rank 3) all-reduce #1 of 9 f32, max"),
        "{text}"
    );
    assert!(
        text.contains(" (world rank ") && text.contains("f32, sum"),
        "{text}"
    );
    assert!(ends[3] == ends[1] && ends[5] == ends[1], "{ends:?}");
}

#[test]
fn timeout_in_group_fails_only_that_group() {
    let mut world = World::new(4);
    world.timeout = Duration::from_secs(2);
    let ends = world.run(|comm| {
        let pair = comm.split(comm.rank() / 2, 0)?;
        if comm.rank() == 3 {
            sleep(comm, Duration::from_secs(3));
        }
        let ended = pair.barrier();
        let agreed = ringtree::internal::ddp::agreed_mark(&pair, Duration::from_secs(1));
        assert_eq!(agreed.is_some(), ended.is_err());
        if comm.rank() < 2 {
            sleep(comm, Duration::from_secs(3));
        }
        comm.barrier().map(|()| ended)
    });
    let ends: Vec<_> = ends.into_iter().map(Result::unwrap).collect();
    assert_eq!(ends[..2], [Ok(()), Ok(())]);
    let error = ends[2].as_ref().unwrap_err();
    assert!(
        error.kind() == ErrorKind::Deadline && error.missing() == [1],
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.starts_with("rank 0 (world rank 2) timed out in barrier #1"),
        "{text}"
    );
    assert!(
        text.contains("rank 1 (world rank 3) has made no call yet"),
        "{text}"
    );
    assert_eq!(ends[3], ends[2]);
}

#[test]
fn rank_that_leaves_group_too_early_is_named() {
    let ends = simulate(3, |comm| {
        let group = comm.subgroup(&[2, 0, 1])?;
        group.barrier()?;
        if comm.rank() == 2 {
            drop(group);
            return comm.barrier();
        }
        let ended = group.barrier();
        comm.barrier().and(ended)
    });
    assert_eq!(ends[2], Ok(()));
    for end in &ends[..2] {
        let error = end.as_ref().unwrap_err();
        assert!(
            error.kind() == ErrorKind::PeerLost && error.peer() == Some(0),
            "{error:?}"
        );
        let message = error.to_string();
        assert!(
            message.starts_with("rank 0 (world rank 2) left after call #1"),
            "{message}"
        );
    }
}

#[test]
fn marks_are_separate_for_each_group() {
    let ends = simulate(4, |comm| {
        let group = comm.split(comm.rank() % 2, 3 - comm.rank())?;
        ringtree::internal::ddp::mark(comm, 9);
        ringtree::internal::ddp::mark(&group, 5 + comm.rank() as u64);
        group.barrier()?;
        if comm.rank() == 3 {
            group.abort(&Error::new(ErrorKind::System, "rank 3 aborts"));
        }
        let ended = group.barrier();
        let agreed = ringtree::internal::ddp::agreed_mark(&group, Duration::from_secs(5));
        Ok::<_, Error>((agreed, ended.is_err(), comm.barrier()))
    });
    for (rank, end) in ends.into_iter().enumerate() {
        let agreed = (rank % 2 == 1).then_some(6);
        assert_eq!(end, Ok((agreed, rank % 2 == 1, Ok(()))), "rank {rank}");
    }
}

#[test]
fn group_info_counts_hosts_of_its_members() {
    let counts = simulate(4, |comm| {
        let pair = comm.split(comm.rank() / 2, 0)?;
        Ok::<_, Error>((comm.info().hosts, pair.info().hosts))
    });
    assert_eq!(counts, vec![Ok((4, 2)); 4]);
}

#[test]
fn group_knows_which_ranks_share_host() {
    fn predicted_s(comm: &Communicator) -> Result<f64> {
        comm.use_algorithm(Some(ringtree::plan::Algorithm::Hierarchical))?;
        let choice = comm.plan_for(Collective::AllReduce, 100_000, Dtype::F32, 0)?;
        Ok(choice.predicted_s)
    }
    let alone = |hosts: &[usize]| {
        let mut world = World::new(hosts.len());
        world.hosts = Hosts::of(hosts);
        world.run(predicted_s)[0].clone()
    };
    // Two hosts of four ranks: a column has two ranks on each host.
    let mut world = World::new(8);
    world.hosts = Hosts::each(4);
    let ends = world.run(|comm| {
        let column = comm.split(comm.rank() % 2, 0)?;
        assert_eq!(column.local_rank(), comm.rank() % 4);
        assert_eq!(
            (column.info().transport, column.tuning().table()),
            ("sim", comm.tuning().table())
        );
        assert_eq!(column.timeout(), comm.timeout());
        predicted_s(&column)
    });
    assert_eq!(ends, vec![alone(&[0, 0, 1, 1]); 8]);
    // In the first group, the ranks alternate between the hosts. The second group has three ranks
    // on one host and one rank on the other.
    let ends = world.run(|comm| predicted_s(&comm.subgroup(&[0, 4, 1, 5, 2, 6, 3, 7])?));
    assert_eq!(ends, vec![alone(&[0, 0, 0, 0, 1, 1, 1, 1]); 8]);
    let part = [2, 5, 0, 3];
    let ends = world.run(|comm| match part.contains(&comm.rank()) {
        true => predicted_s(&comm.subgroup(&part)?),
        false => alone(&[0, 1, 0, 0]),
    });
    assert_eq!(ends, vec![alone(&[0, 0, 0, 1]); 8]);
    assert_ne!(alone(&[0, 0, 0, 1]), alone(&[0, 0, 1, 1]));
    // Four hosts of two ranks at two sites: each rank of a column is on a different host.
    world.hosts = in_sites_of(Hosts::each(2), &[2, 2]);
    let part = [6, 4, 2, 0];
    let ends = world.run(|comm| match part.contains(&comm.rank()) {
        true => predicted_s(&comm.subgroup(&part)?),
        false => Ok(0.0),
    });
    let mut column = World::new(4);
    column.hosts = in_sites_of(Hosts::APART, &[2, 2]);
    assert_eq!(ends[0], column.run(predicted_s)[0]);
    assert_ne!(ends[0], alone(&[0, 1, 2, 3]));
}

#[test]
fn survivors_can_create_group() {
    let mut world = World::new(4);
    world.network.faults.deaths = vec![(2, Duration::from_millis(1))];
    let ends = world.run(|comm| {
        let failed = loop {
            if let Err(error) = comm.all_reduce(&mut [1.0f32; 10], ReduceOp::Sum) {
                break error;
            }
        };
        assert_eq!(failed.peer(), Some(2), "{failed}");
        if comm.rank() == 2 {
            return Ok(Vec::new());
        }
        gathered(&comm.subgroup(&[0, 1, 3])?, comm.rank())
    });
    for rank in [0, 1, 3] {
        assert_eq!(ends[rank], Ok(vec![0, 1, 3]));
    }
}

#[test]
fn training_step_and_checkpoint_stay_in_grid_column() {
    let folder = tempfile::tempdir().unwrap();
    let ends = simulate(4, |comm| {
        let data = comm.split(comm.rank() % 2, 0)?;
        let parameters = vec![Parameter::new("weights", &[3], Dtype::F32)];
        let mut model = DataParallel::new(&data, parameters, Options::new())?;
        let mut weights = vec![comm.rank() as f32; 3];
        model.broadcast(&mut [&mut weights])?;
        model.report(0, &[comm.rank() as f32; 3])?;
        model.wait()?;
        let slopes = model.gradient::<f32>(0)?.unwrap();
        weights
            .iter_mut()
            .zip(slopes)
            .for_each(|(one, slope)| *one += slope);
        let path = folder.path().join(format!("column {}", comm.rank() % 2));
        let store = Checkpoints::new(Directory::new(path), 2);
        let mut state = Checkpoint::default();
        if data.rank() == 0 {
            state.insert("model/weights", &[3], &weights)?;
        }
        store.save_from(&data, &state)?;
        let found = store.load_and_broadcast(&data)?.expect("it was saved");
        assert_eq!(found.checkpoint.values::<f32>("model/weights")?, weights);
        Ok::<_, Error>(weights)
    });
    // In the columns {0, 2} and {1, 3}, the result is the sum of the lowest rank's weights and the
    // mean of the rank numbers.
    let expected = |rank: usize| vec![(rank % 2 * 2 + 1) as f32; 3];
    for (rank, end) in ends.into_iter().enumerate() {
        assert_eq!(end, Ok(expected(rank)), "rank {rank}");
    }
}
