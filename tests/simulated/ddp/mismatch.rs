//! Tests that, if ranks register different models, every rank gets an error that quotes the
//! differences.

use ringtree::ddp::{BucketSize, DataParallel, HalfHook, Options, Parameter};
use ringtree::{Dtype, ErrorKind};

type Setup = fn() -> (Vec<Parameter>, Options);

fn usual() -> (Vec<Parameter>, Options) {
    let parameters = vec![
        Parameter::new("embedding", &[6, 4], Dtype::F32),
        Parameter::new("bias", &[4], Dtype::F32),
    ];
    (parameters, Options::new())
}

/// Differences, each with the model of the odd rank and parts of the expected message.
const ODD: &[(&str, Setup, &[&str])] = &[
    (
        "a name",
        || {
            let (mut parameters, options) = usual();
            parameters[1].name = "offset".into();
            (parameters, options)
        },
        &["offset [4] f32", "bias [4] f32"],
    ),
    (
        "a shape",
        || {
            let (mut parameters, options) = usual();
            parameters[0].shape = vec![4, 6];
            (parameters, options)
        },
        &["embedding [4, 6] f32", "embedding [6, 4] f32"],
    ),
    (
        "a type",
        || {
            let (mut parameters, options) = usual();
            parameters[1].dtype = Dtype::Bf16;
            (parameters, options)
        },
        &["bias [4] bf16", "bias [4] f32"],
    ),
    (
        "the order",
        || {
            let (mut parameters, options) = usual();
            parameters.reverse();
            (parameters, options)
        },
        &["bias [4] f32", "embedding [6, 4] f32", "same order"],
    ),
    (
        "one more",
        || {
            let (mut parameters, options) = usual();
            parameters.push(Parameter::new("extra", &[1], Dtype::F32));
            (parameters, options)
        },
        &["extra [1] f32", "nothing"],
    ),
    (
        "one less",
        || {
            let (mut parameters, options) = usual();
            parameters.pop();
            (parameters, options)
        },
        &["nothing", "bias [4] f32"],
    ),
    (
        "the hook",
        || (usual().0, usual().1.hook(HalfHook::bf16())),
        &["hook bf16", "hook plain"],
    ),
    (
        "the size of buckets",
        || (usual().0, usual().1.buckets(BucketSize::Bytes(1000))),
        &["Bytes(1000)", "Auto"],
    ),
    (
        "uneven data",
        || (usual().0, usual().1.uneven_data()),
        &["uneven data: true", "uneven data: false"],
    ),
];

#[test]
fn different_registration_is_named_on_every_rank() {
    for (what, odd, expected) in ODD {
        for culprit in [1, 2] {
            let ends = ringtree::simulate(3, |comm| {
                let is_odd = comm.rank() == culprit;
                let (parameters, options) = if is_odd { odd() } else { usual() };
                DataParallel::new(comm, parameters, options).map(drop)
            });
            for end in &ends {
                let Err(error) = end else {
                    panic!("{what}: {end:?}");
                };
                assert!(error.kind() == ErrorKind::Mismatch, "{error:?}");
                let message = error.to_string();
                let named = format!("rank {culprit} has");
                assert!(message.contains(&named), "{what}: {message}");
                for part in *expected {
                    assert!(message.contains(part), "{what}: no '{part}' in: {message}");
                }
                assert_eq!(end, &ends[0]);
            }
        }
    }
}

#[test]
fn broadcast_of_weights_with_different_lengths_is_a_mismatch() {
    let ends = ringtree::simulate(3, |comm| {
        let (parameters, options) = usual();
        let model = DataParallel::new(comm, parameters, options)?;
        let (mut long, mut short) = ([1.0f32; 6], [2.0f32; 4]);
        let mut weights: [&mut [f32]; 2] = [&mut long, &mut short];
        weights.rotate_left(usize::from(comm.rank() == 1));
        model.broadcast(&mut weights)
    });
    for end in ends {
        let error = end.unwrap_err();
        assert!(error.kind() == ErrorKind::Mismatch, "{error:?}");
        let expected = "rank 1 has slice 0 of 4 elements, but rank 0 has slice 0 of 6 elements";
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn parameter_name_may_contain_any_character() {
    let ends = ringtree::simulate(2, |comm| {
        let (mut parameters, options) = usual();
        parameters[0].name = "two\nlines".into();
        DataParallel::new(comm, parameters, options).map(drop)
    });
    assert_eq!(ends, vec![Ok(()); 2]);
}

#[test]
fn difference_on_rank_0_names_rank_1() {
    let ends = ringtree::simulate(3, |comm| {
        let (mut parameters, options) = usual();
        if comm.rank() == 0 {
            parameters[0].name = "tokens".into();
        }
        DataParallel::new(comm, parameters, options).map(drop)
    });
    for end in ends {
        let message = end.unwrap_err().to_string();
        assert!(
            message.contains("rank 1 has parameter embedding"),
            "{message}"
        );
        assert!(message.contains("rank 0 has parameter tokens"), "{message}");
    }
}
