use super::*;
use std::collections::BTreeMap;

type Variables = BTreeMap<String, String>;

/// Returns the environments in `tests/launchers/recorded.txt`: for each case, those of its ranks,
/// or a single one of a process that is not a rank.
fn recorded() -> BTreeMap<&'static str, BTreeMap<Option<usize>, Variables>> {
    let text = include_str!("../../../tests/launchers/recorded.txt");
    let mut cases: BTreeMap<_, BTreeMap<_, Variables>> = BTreeMap::new();
    for section in text.split("\n== ").skip(1) {
        let (head, lines) = section.split_once('\n').unwrap();
        let (case, rank) = head.split_once(' ').unwrap();
        let lines = lines.lines().filter_map(|line| line.split_once('='));
        let lines: Variables = lines
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        cases.entry(case).or_default().insert(rank, lines);
    }
    let with_common = |(case, mut ranks): (_, BTreeMap<&str, Variables>)| {
        let common = ranks.remove("*").unwrap_or_default();
        let all = ranks.into_iter().map(|(rank, own)| {
            let all = common.clone().into_iter().chain(own).collect();
            (rank.parse().ok(), all)
        });
        (case, all.collect())
    };
    cases.into_iter().map(with_common).collect()
}

fn find_in(variables: &Variables) -> Result<Option<Placement>> {
    find(&|name| variables.get(name).cloned())
}

fn of(variables: &[(&str, &str)]) -> Variables {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    variables.iter().map(owned).collect()
}

#[test]
fn every_recorded_rank_is_found_and_all_agree_where_to_meet() {
    let mut count = 0;
    for (case, ranks) in recorded() {
        if ranks.contains_key(&None) || case.ends_with("pmiport") {
            continue;
        }
        let mut meetings = Vec::new();
        let mut world_size = 0;
        for (rank, variables) in &ranks {
            let found = find_in(variables).unwrap_or_else(|error| panic!("{case}: {error}"));
            let placement = found.unwrap_or_else(|| panic!("{case}: nothing found"));
            assert_eq!(Some(placement.rank), *rank, "{case}");
            let (local, locals) = (placement.local_rank, placement.local_world_size);
            let place = format!("{case}: {placement:?}");
            // In a heterogeneous step, the number of local ranks is unknown.
            assert_eq!(locals.is_none(), case == "het", "{place}");
            assert!(locals.is_none() || local < locals, "{place}");
            assert!(locals <= Some(placement.world_size), "{place}");
            world_size = placement.world_size;
            meetings.push(match placement.meeting {
                Meeting::Pmi(_) => Meeting::Pmi(0),
                meeting => meeting,
            });
            count += 1;
        }
        assert_eq!(world_size, ranks.len(), "{case}");
        meetings.dedup();
        // Each host has its own directory, but with several hosts it is not used.
        assert_eq!(meetings.len(), 1, "{case}: {meetings:?}");
    }
    assert!(count > 100, "{count}");
}

#[test]
fn recorded_ranks_meet_where_their_launcher_allows() {
    let at_first_node = Meeting::Address {
        address: "n01:21003".to_owned(),
        step: "2.0".to_owned(),
    };
    let expected = [
        ("torchrun_in_srun", TORCHRUN, Meeting::Master),
        ("nested_run_2", TORCHRUN, Meeting::Master),
        ("srun_resv_ports", "Slurm", at_first_node),
        ("srun_in_ringtree_run", TORCHRUN, Meeting::Master),
        ("srun_mpi_pmi2", "PMI", Meeting::Pmi(0)),
        ("hydra4_2hosts", "PMI", Meeting::Pmi(0)),
        ("salloc_hydra", "PMI", Meeting::Pmi(0)),
        ("openmpi4_2hosts", "Open MPI", Meeting::Pmix),
        ("salloc_openmpi5", "Open MPI", Meeting::Pmix),
    ];
    let recorded = recorded();
    for (case, launcher, meeting) in expected {
        let placement = find_in(&recorded[case][&Some(0)]).unwrap().unwrap();
        let met = match placement.meeting {
            Meeting::Pmi(_) => Meeting::Pmi(0),
            met => met,
        };
        assert_eq!((placement.launcher, met), (launcher, meeting), "{case}");
    }
    for case in ["openmpi4_n3", "openmpi5_n3"] {
        let placement = find_in(&recorded[case][&Some(0)]).unwrap().unwrap();
        assert!(
            matches!(placement.meeting, Meeting::Directory { .. }),
            "{case}"
        );
    }
    for case in ["srun_arbitrary", "srun_arbitrary2", "het"] {
        let placement = find_in(&recorded[case][&Some(0)]).unwrap().unwrap();
        assert!(matches!(placement.meeting, Meeting::Unknown(_)), "{case}");
    }
}

#[test]
fn error_for_process_that_is_not_a_rank_names_the_command() {
    let refused = [
        ("sbatch_body", "srun"),
        ("salloc_body", "srun"),
        ("salloc_interactive", "srun"),
        ("k8s_trainjob_torch", "ringtree run"),
        ("k8s_lws_worker", "ringtree run"),
        ("k8s_pytorchjob_v1", "ringtree run"),
        ("hydra4_pmiport", "-pmi-port"),
    ];
    let recorded = recorded();
    for (case, command) in refused {
        for variables in recorded[case].values() {
            let set = |name: &str| variables.get(name).cloned();
            let error = match find(&set) {
                Ok(None) => not_started(&set),
                Ok(found) => panic!("{case}: {found:?}"),
                Err(error) => error,
            };
            assert!(error.to_string().contains(command), "{case}: {error}");
        }
    }
}

#[cfg(feature = "launch")]
#[test]
fn recorded_nodes_are_found() {
    let recorded = recorded();
    let node_in = |case: &str, rank: Option<usize>| {
        let variables = &recorded[case][&rank];
        node::node(|name| variables.get(name).cloned()).unwrap()
    };
    let found = |case, rank| {
        let node = node_in(case, rank)?;
        Some((node.nodes?, node.node_rank?, node.endpoint?))
    };
    let pod = |endpoint: &str| Some((2, 1, endpoint.to_owned()));
    assert_eq!(
        found("k8s_trainjob_torch", None),
        pod("train-node-0-0.train:29500")
    );
    assert_eq!(
        found("k8s_lws_worker", None),
        pod("train-0.train.default:29500")
    );
    assert_eq!(node_in("k8s_indexed_job", None).unwrap().node_rank, Some(1));
    let ranks = node_in("k8s_trainjob_torch", None).unwrap().ranks;
    assert_eq!(ranks.as_deref(), Some("4"));
    let (nodes, node_rank, endpoint) = found("srun_task_per_node", Some(1)).unwrap();
    assert!(endpoint.starts_with("n01:"), "{endpoint}");
    assert_eq!((nodes, node_rank), (2, 1));
    for case in ["srun_n2_t3", "hydra4_2hosts", "openmpi4_2hosts", "srun_one"] {
        assert_eq!(node_in(case, Some(0)), None, "{case}");
    }
}

#[test]
fn contradicting_launchers_are_refused() {
    let open_mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
    let slurm = [
        ("SLURM_PROCID", "2"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_STEP_NODELIST", "n1"),
    ];
    let own = [("RANK", "1"), ("WORLD_SIZE", "4")];
    let local = [("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")];
    let pmi = [("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("PMI_FD", "5")];
    let outcome = |parts: &[&[(&str, &str)]]| {
        find_in(&of(&parts.concat())).map(|found| {
            let found = found.unwrap();
            (found.launcher, found.rank)
        })
    };
    assert_eq!(outcome(&[&own, &open_mpi]), Ok((TORCHRUN, 1)));
    assert_eq!(outcome(&[&own, &local, &slurm]), Ok((TORCHRUN, 1)));
    // The variables of Slurm describe the daemon of the MPI launcher.
    assert_eq!(outcome(&[&open_mpi, &slurm]), Ok(("Open MPI", 1)));
    for both in [
        &[&own[..], &slurm[..]],
        &[&own, &pmi],
        &[&open_mpi, &pmi],
        &[&pmi, &slurm],
    ] {
        let error = outcome(both).unwrap_err().to_string();
        assert!(error.contains("contradict each other"), "{error}");
    }
    // A single rank may have started a launcher, whose ranks must not take themselves for it.
    let alone = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
    let own_alone = [
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "1"),
    ];
    for nested in [&[&alone[..], &slurm[..]], &[&own_alone, &open_mpi]] {
        let error = outcome(nested).unwrap_err().to_string();
        assert!(error.contains("contradict each other"), "{error}");
    }
    // A launcher that started only one process does not conflict with others.
    let single = [
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_TASKS", "1"),
    ];
    assert_eq!(outcome(&[&own, &single]), Ok((TORCHRUN, 1)));
}

#[test]
fn malformed_variables_are_named() {
    let slurm = |name: &str, value: &str| {
        let mut variables = of(&[
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_ID", "3"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_STEP_NODELIST", "n[1-2]"),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
            ("SLURM_NODEID", "0"),
        ]);
        variables.insert(name.to_owned(), value.to_owned());
        find_in(&variables)
    };
    let wrong = [
        ("SLURM_PROCID", "one"),
        ("SLURM_STEP_NUM_TASKS", ""),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x99999999999999999999)"),
        ("SLURM_STEP_NODELIST", "n["),
        ("SLURM_STEP_NODELIST", ","),
        ("SLURM_NODEID", "7"),
    ];
    for (name, value) in wrong {
        let error = slurm(name, value).unwrap_err().to_string();
        let name = if name == "SLURM_NODEID" {
            "SLURM_STEP_TASKS_PER_NODE"
        } else {
            name
        };
        assert!(error.contains(name), "{name}={value}: {error}");
    }
    let hosts = [
        ("n[01-03,07]", "n01"),
        ("gpu-a,gpu-b", "gpu-a"),
        ("r[2-3]n[05,09],x", "r2n05"),
        ("rack[1]-node[10-11].local", "rack1-node10.local"),
    ];
    for (list, first) in hosts {
        let placement = slurm("SLURM_STEP_NODELIST", list).unwrap().unwrap();
        let Meeting::Address { address, .. } = placement.meeting else {
            panic!("{placement:?}");
        };
        assert_eq!(address.rsplit_once(':').unwrap().0, first);
    }
}
