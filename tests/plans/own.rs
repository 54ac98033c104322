//! Tests custom algorithms.

use ringtree::ErrorKind;
use ringtree::plan::Entry;
use ringtree::plan::{Algorithm, ChunkRange, Collective, Request, Step};

fn all() -> Vec<ChunkRange> {
    vec![ChunkRange::new(0, 2)]
}

/// Builds plans that are right only if the number of ranks is a power of two. Otherwise,
/// contributions are combined twice.
fn by_doubling(request: &Request) -> Vec<Vec<Step>> {
    let (n, rank) = (request.world_size, request.rank);
    let distances = std::iter::successors(Some(1), |one| Some(2 * one));
    let round = |distance: usize| {
        let (to, from) = ((rank + distance) % n, (rank + n - distance) % n);
        let completes = 2 * distance >= n;
        vec![Step::send(to, all()), Step::reduce(from, all(), completes)]
    };
    distances.take_while(|one| *one < n).map(round).collect()
}

const ENTRY: Entry = Entry {
    collectives: &[Collective::AllReduce],
    chunks: |_| 2,
    build: by_doubling,
    ..Entry::PLAIN
};

#[test]
fn wrong_algorithm_is_not_registered() {
    let wrong = Entry {
        name: "by-doubling",
        ..ENTRY
    };
    let fault = "all-reduce by by-doubling over 3 ranks fails verification: rank 0, round 1, step \
                 1, chunk 0: the contribution of rank 0 is combined twice";
    assert_eq!(Algorithm::register(wrong).unwrap_err().to_string(), fault);
    assert!("by-doubling".parse::<Algorithm>().is_err());
    let taken = Entry {
        name: "ring",
        ..ENTRY
    };
    let refusal = "the library already has an algorithm named ring; use a different name";
    assert_eq!(Algorithm::register(taken).unwrap_err().to_string(), refusal);
}

#[test]
fn algorithm_panic_is_an_error_that_names_the_algorithm() {
    let entry = Entry {
        name: "panics-beyond-eight",
        build: |request| {
            assert!(request.world_size <= 8, "supports at most eight ranks");
            (ringtree::plan::REGISTRY[0].build)(&Request {
                pieces: 2,
                ..request.clone()
            })
        },
        cost: |request| {
            assert!(
                request.world_size <= 9,
                "has no cost for more than nine ranks"
            );
            (Entry::PLAIN.cost)(request)
        },
        ..ENTRY
    };
    let algorithm = Algorithm::register(entry).unwrap();
    for ranks in [9, 10] {
        let ends = ringtree::simulate(ranks, move |comm| {
            comm.use_algorithm(Some(algorithm))?;
            comm.all_reduce(&mut [1.0f32; 5], ringtree::ReduceOp::Sum)
        });
        for end in ends {
            let error = end.unwrap_err();
            let expected = "a function of algorithm panics-beyond-eight panicked";
            assert!(
                error.kind() == ErrorKind::Usage && error.to_string().contains(expected),
                "{error}"
            );
        }
    }
}

/// If the world has more ranks than the registration verified, each call is verified.
#[test]
fn algorithm_wrong_for_many_ranks_is_rejected_at_the_call() {
    let entry = Entry {
        name: "right-for-few",
        build: |request| match request.world_size {
            0..=8 => (ringtree::plan::REGISTRY[0].build)(&Request {
                pieces: 2,
                ..request.clone()
            }),
            _ => by_doubling(request),
        },
        ..ENTRY
    };
    let algorithm = Algorithm::register(entry).unwrap();
    assert_eq!("right-for-few".parse(), Ok(algorithm));
    assert_eq!(Algorithm::register(entry), Ok(algorithm));
    let sums = |ranks| {
        ringtree::simulate(ranks, move |comm| {
            comm.use_algorithm(Some(algorithm))?;
            let mut ones = [1.0f32; 5];
            comm.all_reduce(&mut ones, ringtree::ReduceOp::Sum)?;
            Ok::<_, ringtree::Error>(ones[4])
        })
    };
    assert!(sums(6).into_iter().all(|sum| sum.unwrap() == 6.0));
    for rejected in sums(9) {
        let error = rejected.unwrap_err().to_string();
        assert!(
            error.contains("right-for-few over 9 ranks fails verification"),
            "{error}"
        );
    }
}
