//! Tests the parts of `benches/nccl.rs` that need neither NCCL nor a GPU: settings, cases, results.

#[path = "../../../../benches/nccl/arrangement.rs"]
mod arrangement;
#[path = "../../../../benches/nccl/table.rs"]
mod table;

use arrangement::{Case, Gpus, Path, RANKS, Version, cases};
use ringtree::plan::Collective;
use std::collections::{BTreeSet, HashMap};
use table::{Row, Table, Timed, median};

fn version(code: usize) -> Version {
    Version::from_code(code)
}

#[test]
fn nccl_version_codes_are_parsed_and_compared() {
    for (code, text) in [
        (2_708, "2.7.8"),
        (2_804, "2.8.4"),
        (20_906, "2.9.6"),
        (22_809, "2.28.9"),
        (23_007, "2.30.7"),
        (23_203, "2.32.3"),
    ] {
        assert_eq!(version(code).to_string(), text);
    }
    assert!(version(2_804) < version(20_906) && version(22_907) < version(23_000));
}

#[test]
fn ipc_on_shared_gpu_needs_nccl_2_30() {
    assert_eq!(Path::Sockets.refusal(Gpus::Shared, version(21_805)), None);
    assert_eq!(Path::Ipc.refusal(Gpus::Each, version(21_805)), None);
    assert_eq!(Path::Ipc.refusal(Gpus::Shared, version(23_000)), None);
    let why = Path::Ipc.refusal(Gpus::Shared, version(22_809)).unwrap();
    assert!(why.contains("2.28.9") && why.contains("2.30"), "{why}");
}

#[test]
fn ranks_have_separate_hosts_only_over_sockets() {
    let paths = [(Path::Sockets, "sockets", RANKS), (Path::Ipc, "ipc", 1)];
    let ways = paths.map(|path| [Gpus::Each, Gpus::Shared].map(|gpus| (gpus, path)));
    for (gpus, (path, name, hosts)) in ways.into_iter().flatten() {
        assert_eq!(path.name(), name);
        let nccl: Vec<HashMap<_, _>> = (0..RANKS)
            .map(|rank| path.of_nccl(gpus, rank, 132).into_iter().collect())
            .collect();
        let own: Vec<HashMap<_, _>> = (0..RANKS)
            .map(|rank| path.of_ringtree(rank, "127.0.0.1:9").into_iter().collect())
            .collect();
        let distinct = |all: &[HashMap<String, String>], name: &str| {
            let values: BTreeSet<_> = all.iter().map(|one| one[name].clone()).collect();
            values.len()
        };
        assert_eq!(distinct(&nccl, "NCCL_HOSTID"), hosts);
        assert_eq!(distinct(&own, "RINGTREE_HOST_ID"), hosts);
        assert_eq!(distinct(&own, "RANK"), RANKS);
        let shares = nccl[0].contains_key("NCCL_MULTI_RANK_GPU_ENABLE");
        assert_eq!(shares, path == Path::Ipc && gpus == Gpus::Shared);
        let demands_mapped = own[0].contains_key("RINGTREE_DEVICE_PATH");
        assert_eq!(demands_mapped, path == Path::Ipc);
        assert_eq!(gpus.of_rank(1), usize::from(gpus == Gpus::Each));
        assert_eq!(nccl[0].contains_key("NCCL_NET"), path == Path::Sockets);
    }
}

#[test]
fn kernels_of_all_ranks_fit_on_gpu_simultaneously() {
    for multiprocessors in [1, 4, 16, 46, 132, 1000] {
        let settings = Path::Ipc.of_nccl(Gpus::Shared, 0, multiprocessors);
        let ctas = settings.iter().find(|(name, _)| name == "NCCL_MAX_CTAS");
        let ctas: usize = ctas.unwrap().1.parse().unwrap();
        assert!(ctas >= 1);
        assert!(
            ctas == 1 || ctas * RANKS <= multiprocessors,
            "{ctas} of {multiprocessors}"
        );
    }
}

#[test]
fn cases_round_trip_as_lines_and_blocks_fill_buffer() {
    let all = cases();
    for collective in [
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::AllGather,
        Collective::ReduceScatter,
    ] {
        let sizes: Vec<_> = all
            .iter()
            .filter(|case| case.collective == collective)
            .collect();
        assert!(sizes.is_sorted_by(|a, b| a.bytes < b.bytes) && !sizes.is_empty());
    }
    assert!(
        all.iter().any(|case| case.bytes == 8) && all.iter().any(|case| case.bytes == 256 << 20)
    );
    for case in all {
        assert_eq!(Case::from_line(&case.to_line()), Some(case));
        assert_eq!(case.count() * 4, case.bytes);
        let (input, output) = match case.collective {
            Collective::AllGather => (case.block(), case.count()),
            Collective::ReduceScatter => (case.count(), case.block()),
            _ => (case.count(), case.count()),
        };
        assert_eq!((case.input(), case.output()), (input, output));
        assert_eq!(case.is_in_place(), input == output);
        assert_eq!(case.block() * RANKS, case.count());
    }
    for line in ["", "all-reduce", "all-reduce x", "sum 8"] {
        assert_eq!(Case::from_line(line), None, "{line}");
    }
}

#[test]
fn median_averages_two_middle_values() {
    assert_eq!(median(vec![]), None);
    assert_eq!(median(vec![3.0]), Some(3.0));
    assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(vec![9.0, 1.0, 2.0, 4.0]), Some(3.0));
}

fn table() -> Table {
    let timed = |time_s| Some(Timed { time_s, wrong: 0 });
    let row = |collective, nccl, ringtree| Row {
        case: Case {
            collective,
            bytes: 1 << 20,
        },
        nccl,
        ringtree,
    };
    Table {
        path: Path::Sockets,
        gpus: Gpus::Shared,
        title: format!("{}, {}", Path::Sockets.name(), Gpus::Shared.name()),
        nccl: "NCCL 2.30.7".into(),
        ringtree: "ringtree on \"host\" buffers".into(),
        rows: vec![
            row(Collective::AllReduce, timed(1e-3), timed(5e-4)),
            row(Collective::AllGather, timed(1e-3), None),
        ],
    }
}

#[test]
fn every_ratio_carries_its_remark() {
    let remark = Gpus::Shared.remark();
    let text = table().text();
    let lines: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("all-"))
        .collect();
    assert!(
        lines[0].contains(&format!(" 0.50  {remark}")) && lines[0].ends_with(": met"),
        "{text}"
    );
    assert!(lines[1].ends_with('-'), "{text}");
    assert!(!text.contains("WRONG"));

    let csv = table().csv();
    let columns = Table::CSV_HEADER.split(',').count();
    for line in csv.lines() {
        assert!(line.ends_with(&format!("\"{remark}\"")), "{line}");
        // The title contains one quoted comma; no other cell contains one.
        assert_eq!(line.split(',').count(), columns + 1, "{line}");
    }
    assert!(
        csv.contains("\"ringtree on \"\"host\"\" buffers\""),
        "{csv}"
    );
    // The bus bandwidth counts 2(n-1)/n of a buffer for an all-reduce and (n-1)/n for an
    // all-gather, as nccl-tests does.
    assert!(
        csv.contains(",1000.0000,1.0486,0,") && csv.contains(",1000.0000,0.5243,0,"),
        "{csv}"
    );
}

#[test]
fn goal_applies_to_large_buffers_over_sockets() {
    let case = |bytes| Case {
        collective: Collective::AllReduce,
        bytes,
    };
    let (small, large) = (case(512 << 10), case(1 << 20));
    assert_eq!(Path::Sockets.meets_goal(small, 2.0), None);
    assert_eq!(Path::Ipc.meets_goal(large, 2.0), None);
    assert_eq!(Path::Sockets.meets_goal(large, 1.0), Some(true));
    assert_eq!(Path::Sockets.meets_goal(large, 1.01), Some(false));
    let mut slow = table();
    slow.rows[0].ringtree.as_mut().unwrap().time_s = 2e-3;
    assert!(slow.csv().contains(",2.0000,missed,"), "{}", slow.csv());
    assert!(slow.text().contains("NCCL's time: missed"));
}

#[test]
fn wrong_elements_are_counted_and_shown() {
    let mut table = table();
    table.rows[0].ringtree.as_mut().unwrap().wrong = 3;
    assert_eq!(table.wrong(), 3);
    assert!(table.text().contains("3 elements WRONG"));
}
