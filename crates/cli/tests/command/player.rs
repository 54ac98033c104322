//! Tests the page that plays plans: its size, its texts, its clock, and the states that a browser
//! must show.

use ringtree::plan::draw::Caption;
use ringtree::plan::internal::algorithms;
use ringtree::plan::internal::cost::{Traffic, schedule};
use ringtree::plan::internal::holdings::Holdings;
use ringtree::plan::internal::player::{Played, html};
use ringtree::plan::internal::select::parts;
use ringtree::plan::internal::spec::reduces;
use ringtree::plan::internal::topology::of_sizes;
use ringtree::plan::internal::verify::contributors;
use ringtree::plan::{Collective, Hosts, Plan, Request, Topology, choose, predicted_s};
use ringtree::tuning::TuningTable;
use serde_json::{Value, json};

const BYTES: usize = 1 << 20;

/// Returns the plans of a call in the form that a page plays, or `None` if the algorithm rejects
/// the call.
fn played(topology: &Topology, request: &Request) -> Option<Played> {
    let (table, algorithm) = (TuningTable::default(), request.algorithm);
    let choice = choose(
        request.collective,
        topology,
        BYTES,
        1,
        &table,
        Some(algorithm),
    )
    .ok()?;
    let request = Request {
        pieces: choice.pieces,
        ..request.clone()
    };
    let caption = Caption {
        bytes: BYTES,
        time_s: predicted_s(&request, BYTES, &table).unwrap(),
        traffic: Traffic::of(&request, BYTES).unwrap(),
    };
    Some(Played {
        plans: algorithms::plans(&request).unwrap(),
        caption,
        schedule: schedule(&request, BYTES, 1, &table).unwrap(),
        parts: parts(&request, BYTES, &table).unwrap(),
    })
}

/// Returns every algorithm for every collective over `world_size` ranks, each on its own host.
fn all(world_size: usize) -> Vec<Played> {
    let topology = Topology::apart(world_size);
    let of_collective = |collective: &Collective| {
        let requests = algorithms::REGISTRY.iter().map(|entry| Request {
            collective: *collective,
            algorithm: entry.algorithm,
            world_size,
            rank: 0,
            root: 0,
            pieces: 1,
            hosts: Hosts::APART,
        });
        let plays = requests.filter_map(|request| played(&topology, &request));
        plays.collect::<Vec<_>>()
    };
    Collective::ALL.iter().flat_map(of_collective).collect()
}

/// Returns the data that the script of a page reads.
fn data(page: &str) -> Value {
    let begin = "<script id=\"plan-data\" type=\"application/json\">";
    let (_, rest) = page.split_once(begin).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn two_plans_of_sixteen_ranks_fit_in_200_kb() {
    for one in all(16) {
        let request = &one.plans[0].request;
        let name = format!("{} by {}", request.collective, request.algorithm);
        let page = html("a heading", "", &[one.clone(), one]).unwrap();
        assert!(page.len() <= 200_000, "{name}: {} bytes", page.len());
    }
}

#[test]
fn player_supports_every_algorithm_for_1_and_64_ranks() {
    for world_size in [1, 64] {
        let plays = all(world_size);
        assert!(plays.len() > 30);
        for one in plays {
            let time_s = one.caption.time_s;
            let data = data(&html("a heading", "", &[one]).unwrap());
            let ends_s = data["plans"][0]["ends_s"].as_array().unwrap();
            let ends_s: Vec<f64> = ends_s.iter().map(|end| end.as_f64().unwrap()).collect();
            assert!(ends_s.is_sorted());
            assert!(ends_s.last().is_none_or(|last| *last == time_s));
        }
    }
}

#[test]
fn every_algorithm_has_a_definition() {
    for entry in algorithms::REGISTRY {
        let length = entry.meaning.chars().count();
        assert!(entry.meaning.ends_with('.'), "{}", entry.name);
        assert!(length <= 140, "{}: {length} characters", entry.name);
    }
}

#[test]
fn texts_cannot_break_out_of_their_elements() {
    let one = all(2).remove(0);
    let heading = "</script><script>alert(1)</script> & \"b\"";
    let page = html(heading, "<!-- {{script}}", &[one]).unwrap();
    assert_eq!(page.matches("</script>").count(), 2);
    assert_eq!(page.matches("<script").count(), 2);
    let data = data(&page);
    assert_eq!(data["heading"], heading);
    assert_eq!(data["costs"], "<!-- {{script}}");
    let places = page.match_indices("http").map(|(at, _)| &page[at..at + 26]);
    assert!(places.eq(["http://www.w3.org/2000/svg"]), "unexpected URL");
}

#[test]
fn plans_with_too_many_transfers_return_an_error() {
    let mut one = all(16).remove(0);
    let request = Request {
        collective: Collective::Broadcast,
        algorithm: ringtree::plan::Algorithm::Chain,
        pieces: 400,
        ..one.plans[0].request.clone()
    };
    one.plans = algorithms::plans(&request).unwrap();
    let refusal = html("a heading", "", &[one]).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "chain in 400 pieces has 6000 transfers, but --draw html plays at most 4096; pass fewer \
         pieces with --chunks"
    );
}

/// Returns the plans, shortened to the first `rounds` rounds in which any rank has a step.
fn beginning(plans: &[Plan], rounds: usize) -> Vec<Plan> {
    let is_any = |round: &usize| plans.iter().any(|plan| !plan.rounds[*round].is_empty());
    let end = match rounds {
        0 => 0,
        _ => {
            1 + (0..plans[0].rounds.len())
                .filter(is_any)
                .nth(rounds - 1)
                .unwrap()
        }
    };
    let cut = |plan: &Plan| Plan {
        rounds: plan.rounds[..end].to_vec(),
        ..plan.clone()
    };
    plans.iter().map(cut).collect()
}

/// Returns the state after each round: the part of each chunk that is present, as the pictures'
/// replay computes it, and the ranks that contributed to each chunk, as the verifier computes them.
/// Scratch chunks are included.
fn states(plans: &[Plan]) -> Value {
    let states = Holdings::of(plans).unwrap().states;
    let after = |(round, state): (usize, _)| {
        let ringtree::plan::internal::holdings::State { parts, .. } = state;
        let holds = contributors(&beginning(plans, round)).unwrap();
        json!({"parts": parts, "holds": holds})
    };
    states.into_iter().enumerate().map(after).collect()
}

#[test]
fn pictures_match_verifier_after_every_round() {
    for world_size in [2, 5, 8] {
        for one in all(world_size) {
            let plans = &one.plans;
            let (collective, chunks) = (plans[0].request.collective, plans[0].chunks);
            if !reduces(collective) {
                continue;
            }
            for state in states(plans).as_array().unwrap() {
                for rank in 0..world_size {
                    for chunk in 0..chunks {
                        let held = state["holds"][rank][chunk].as_array().unwrap().len();
                        let part = state["parts"][rank][chunk].as_f64().unwrap();
                        // The pictures show a partial sum as absent once it has been passed on.
                        let is_passed = part == 0.0 && collective != Collective::Barrier;
                        let expected = held as f64 / world_size as f64;
                        assert!(is_passed || (part - expected).abs() < 1e-6, "{collective}");
                    }
                }
            }
        }
    }
}

/// Arguments of `ringtree plan` for the pages whose states a browser must show
/// (`tests/player/run`).
const PAGES: [&str; 12] = [
    "all-reduce --algorithm circulant --ranks 7",
    "all-reduce --algorithm ring,circulant --ranks 7 --bytes 64K",
    "all-reduce --algorithm bruck-fold --ranks 6 --bytes 1K",
    "all-reduce --algorithm circulant,hierarchical --ranks-per-host 3,5,2",
    "all-reduce --algorithm rabenseifner --ranks 13",
    "broadcast --algorithm binomial,chain --ranks 8 --root 5",
    "reduce --algorithm double-tree --ranks 11 --root 3",
    "reduce-scatter --algorithm circulant/3 --ranks 16",
    "all-to-all --algorithm pairwise,bruck --ranks 7 --bytes 7K",
    "scatter --algorithm binomial --ranks 3 --root 1",
    "barrier --algorithm dissemination --ranks 33",
    "all-gather --algorithm bruck --ranks 64",
];

/// Writes the pages and the states of their plans into the directory RINGTREE_TEST_PAGES. Without
/// the variable, only generates the pages.
#[test]
fn browser_test_pages_include_their_states() {
    let folder = std::env::var_os("RINGTREE_TEST_PAGES").map(std::path::PathBuf::from);
    for (number, line) in PAGES.iter().enumerate() {
        let page = crate::plan::stdout(&format!("{line} --draw html"));
        let plans = data(&page)["plans"].as_array().unwrap().clone();
        let names = plans.iter().map(|plan| plan["algorithm"].as_str().unwrap());
        let expected: Vec<Value> = names
            .zip(&plans)
            .map(|(name, plan)| states(&plans_of_line(line, name, plan)))
            .collect();
        if let Some(folder) = &folder {
            std::fs::create_dir_all(folder).unwrap();
            let path = |kind| folder.join(format!("{number:02}.{kind}"));
            std::fs::write(path("html"), &page).unwrap();
            std::fs::write(
                path("json"),
                json!({"line": line, "plans": expected}).to_string(),
            )
            .unwrap();
        }
    }
}

/// Returns the plans that the library creates for a command line.
fn plans_of_line(line: &str, algorithm: &str, plan: &Value) -> Vec<Plan> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let after = |name| {
        words
            .iter()
            .position(|word| *word == name)
            .map(|at| words[at + 1])
    };
    let hosts = match after("--ranks-per-host") {
        Some(sizes) => {
            let sizes: Vec<usize> = sizes.split(',').map(|size| size.parse().unwrap()).collect();
            of_sizes(&sizes)
        }
        None => Hosts::APART,
    };
    let ranks = after("--ranks").map_or(10, |ranks| ranks.parse().unwrap());
    algorithms::plans(&Request {
        collective: words[0].parse().unwrap(),
        algorithm: algorithm.parse().unwrap(),
        world_size: ranks,
        rank: 0,
        root: after("--root").map_or(0, |root| root.parse().unwrap()),
        pieces: usize::try_from(plan["pieces"].as_u64().unwrap()).unwrap(),
        hosts,
    })
    .unwrap()
}
