//! Tests that invalid calls return errors that explain the cause, and that training continues if
//! possible.

use super::{HOOKS, model};
use half::f16;
use ringtree::ddp::{
    DataParallel, DistributedSampler, LocalSteps, NonFinite, Options, Outer, Parameter,
};
use ringtree::internal::ddp::{
    BucketInfo, Exchange, Hook, Next, Values, restore, set_gradient_sync,
};
use ringtree::{Communicator, Dtype, Error, ErrorKind, ReduceOp, Result};

fn assert_usage_error<R: std::fmt::Debug>(result: Result<R>, expected: &str) {
    let Err(error) = result else {
        panic!("not an error: {result:?}");
    };
    assert!(error.kind() == ErrorKind::Usage, "{error:?}");
    let message = error.to_string();
    assert!(message.contains(expected), "no '{expected}' in: {message}");
}

fn two(comm: &Communicator, options: Options) -> Result<DataParallel> {
    let parameters = vec![
        Parameter::new("weight", &[3], Dtype::F32),
        Parameter::new("bias", &[1], Dtype::Bf16),
    ];
    DataParallel::new(comm, parameters, options.allow_unused())
}

#[test]
fn gradient_marked_ready_inside_no_sync_is_not_complete() {
    let ends = ringtree::simulate(2, |comm| {
        let mut model = two(comm, Options::new())?;
        for is_last in [false, true] {
            set_gradient_sync(&mut model, is_last);
            let gradient = model.gradient_mut::<f32>(0)?;
            if gradient.is_first {
                gradient.elements.fill(0.0);
            }
            gradient.elements[1] += 1.0;
            model.ready(0)?;
        }
        model.wait()?;
        Ok::<_, Error>(model.gradient::<f32>(0)?.map(<[_]>::to_vec))
    });
    assert_eq!(ends, vec![Ok(Some(vec![0.0, 2.0, 0.0])); 2]);
}

#[test]
fn missing_gradients_are_an_error_on_every_rank() {
    for (is_reported, expected) in [
        (true, "for 2 of 3 parameters: w0, w2; if the model"),
        (false, "no rank reported a gradient in this step"),
    ] {
        let ends = ringtree::simulate(3, |comm| {
            let parameter = |at| Parameter::new(&format!("w{at}"), &[1], Dtype::F32);
            let parameters = (0..3).map(parameter);
            let mut model = DataParallel::new(comm, parameters, Options::new())?;
            if is_reported && comm.rank() == 2 {
                model.report(1, &[1.0f32])?;
            }
            model.wait()
        });
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        assert_usage_error(ends[0].clone(), expected);
    }
}

#[test]
fn gradient_skipped_by_some_ranks_is_an_error_unless_allowed() {
    for (is_allowed, is_sharded, skipped, is_marked_ready) in [
        (false, false, 0, false),
        (false, false, 35, true),
        (false, true, 39, false),
        (true, false, 35, false),
        (true, false, 0, true),
    ] {
        let options = || {
            let options = Options::new().uneven_data();
            let options = if is_allowed {
                options.allow_unused()
            } else {
                options
            };
            if is_sharded {
                options.sharded()
            } else {
                options
            }
        };
        let ends = ringtree::simulate(4, |comm| {
            let parameter = |at| Parameter::new(&format!("w{at}"), &[1], Dtype::F32);
            let parameters = (0..40).map(parameter);
            let mut model = DataParallel::new(comm, parameters, options())?;
            // Rank 0 has no data, which is not an error.
            for step in 0..if comm.rank() == 0 { 0 } else { 2 } {
                for number in 0..40 {
                    if step == 0 || comm.rank() == 1 || number != skipped {
                        model.report(number, &[8.0f32])?;
                    } else if is_marked_ready {
                        model.ready(number)?;
                    }
                }
                model.wait()?;
            }
            model.join(|_| Ok(()))?;
            Ok::<_, Error>(model.gradient::<f32>(skipped)?.map(<[_]>::to_vec))
        });
        if is_allowed {
            assert_eq!(ends, vec![Ok(Some(vec![2.0])); 4]);
            continue;
        }
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        let expected =
            format!("2 reported no gradient for w{skipped} [1] f32 in step 1, but rank 1");
        assert_usage_error(ends[0].clone(), &expected);
    }
}

#[test]
fn non_finite_gradient_is_named_and_its_step_skipped() {
    for policy in [NonFinite::Skip, NonFinite::Fail] {
        for dtype in [Dtype::F32, Dtype::F16] {
            let ends = ringtree::simulate(4, |comm| {
                let parameters = ["first", "second"].map(|name| Parameter::new(name, &[3], dtype));
                let options = Options::new().non_finite(policy);
                let mut model = DataParallel::new(comm, parameters, options)?;
                for step in 0..3 {
                    for number in 0..2 {
                        let is_bad = step == 1 && comm.rank() >= 2 && number == 1;
                        let last = if is_bad { f32::INFINITY } else { 1.0 };
                        match dtype {
                            Dtype::F32 => model.report(number, &[1.0, 2.0, last])?,
                            _ => model.report(number, &[1.0, last, 1.0].map(f16::from_f32))?,
                        }
                    }
                    model.wait()?;
                    let expected = (step == 1).then_some((2, 1));
                    assert_eq!(model.non_finite(), expected);
                    assert_eq!(model.unused().len(), if step == 1 { 2 } else { 0 });
                }
                Ok::<_, Error>((model.steps(), model.skipped()))
            });
            match policy {
                NonFinite::Fail => {
                    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
                    let expected = format!("the gradient of second [3] {} on rank 2", dtype);
                    assert_usage_error(ends[0].clone(), &expected);
                }
                _ => assert_eq!(ends, vec![Ok((3, 1)); 4]),
            }
        }
    }
}

#[test]
fn data_set_without_samples_is_rejected() {
    assert_usage_error(DistributedSampler::new(0, 1, 0, 2), "no samples");
}

#[test]
fn rank_that_aborts_a_step_does_not_block_the_others() {
    let ends = ringtree::simulate(3, |comm| {
        let mut model = two(comm, Options::new())?;
        if comm.rank() == 1 {
            model.abort(&Error::new(
                ErrorKind::System,
                "rank 1 cannot read its data",
            ));
        }
        model.report(0, &[1.0f32; 3]).and_then(|()| model.wait())
    });
    let expected = Err(Error::new(ErrorKind::System, "rank 1 cannot read its data"));
    assert_eq!(ends, vec![expected; 3]);
}

#[test]
fn local_weights_of_wrong_length_are_an_error_on_every_rank() {
    for is_wrong_at_first in [true, false] {
        let ends = ringtree::simulate(3, |comm| {
            let parameters = [Parameter::new("weight", &[4], Dtype::F32)];
            let count = if comm.rank() == 1 { 3 } else { 4 };
            let mut weights = [vec![1.0f32; if is_wrong_at_first { count } else { 4 }]];
            let outer = Outer {
                every: 2,
                ..Outer::default()
            };
            let mut local = LocalSteps::new(comm, &parameters, &mut weights[..], outer)?;
            weights[0].truncate(count);
            assert!(!local.step(&mut weights[..])?);
            local.step(&mut weights[..]).map(drop)
        });
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        assert_usage_error(ends[0].clone(), "but 3 weights were passed");
    }
}

#[test]
fn rejected_call_changes_nothing() {
    for hook in HOOKS {
        let ends = ringtree::simulate(2, |comm| {
            let mut model = two(comm, (hook.set)(Options::new()))?;
            for _step in 0..2 {
                assert_usage_error(model.report(2, &[0.0f32]), "parameter 2 is out of range");
                assert_usage_error(
                    model.report("bais", &[0.0f32]),
                    "no parameter is named 'bais'",
                );
                assert_usage_error(
                    model.report(0, &[0.0f32; 4]),
                    "weight [3] f32 has 4 elements",
                );
                assert_usage_error(
                    model.report(0, &[0.0f64; 3]),
                    "weight [3] f32 does not have type f64",
                );
                assert_usage_error(
                    model.gradient_mut::<f32>(1),
                    "bias [1] bf16 does not have type f32",
                );
                assert_usage_error(model.gradient::<f32>(0), "call `wait` first");
                assert_usage_error(model.join(|_| Ok(())), "uneven_data");
                model.no_sync(|model| model.report(0, &[1.0f32; 3]))?;
                model.report(0, &[1.0f32; 3])?;
                assert_usage_error(model.report(0, &[5.0f32; 3]), "already complete");
                assert_usage_error(model.ready(0), "already complete");
                assert_usage_error(model.gradient_mut::<f32>(0), "already complete");
                assert_usage_error(
                    model.no_sync(|model| model.report(0, &[5.0f32; 3])),
                    "already complete",
                );
                assert_usage_error(restore(&mut model, 7, Some((vec![0, 0], 1))), "once");
                model.wait()?;
                assert_eq!(model.gradient::<f32>(0)?, Some(&[2.0; 3][..]));
                assert_eq!(model.gradient::<half::bf16>(1)?, None, "no rank used it");
                assert_usage_error(model.gradient::<f64>(0), "does not have type f64");
            }
            Ok::<_, Error>(model.steps())
        });
        assert_eq!(ends, [Ok(2), Ok(2)], "{hook:?}");
    }
}

#[test]
fn parameter_that_cannot_be_registered_is_named() {
    let ends = ringtree::simulate(2, |comm| {
        let mut parameters = model();
        parameters.push(Parameter::new("count", &[1], Dtype::I32));
        let integer = DataParallel::new(comm, parameters, Options::new()).map(drop);
        assert_usage_error(integer, "count [1] i32");
        let mut parameters = model();
        parameters.push(Parameter::new("scale", &[1], Dtype::F32));
        let twice = DataParallel::new(comm, parameters, Options::new()).map(drop);
        assert_usage_error(twice, "named scale");
        // Nothing was sent, so the ranks can continue.
        let mut model = two(comm, Options::new())?;
        model.report(0, &[1.0f32; 3]).and_then(|()| model.wait())
    });
    assert_eq!(ends, [Ok(()), Ok(())]);
}

#[test]
fn join_during_a_step_is_rejected() {
    let ends = ringtree::simulate(2, |comm| {
        let mut model = two(comm, Options::new().uneven_data())?;
        model.report(0, &[1.0f32; 3])?;
        assert_usage_error(model.join(|_| Ok(())), "between two steps");
        model.wait()?;
        model.join(|_| Ok(()))
    });
    assert_eq!(ends, [Ok(()), Ok(())]);
}

/// A hook that returns too few gradients, or requests exchanges without end.
struct Broken {
    is_endless: bool,
}

impl Hook for Broken {
    fn name(&self) -> String {
        "broken".into()
    }

    fn start(&mut self, _: &BucketInfo, gradients: Vec<f32>) -> Exchange {
        Exchange::AllReduce(gradients.into(), ReduceOp::Avg, None)
    }

    fn resume(&mut self, _: &BucketInfo, _: usize, values: Values) -> Next {
        if self.is_endless {
            return Next::Exchange(Exchange::AllGather(values));
        }
        Next::Done(vec![0.0; values.count() - 1])
    }
}

#[test]
fn broken_hook_is_an_error_and_yields_no_gradient() {
    for (is_endless, expected) in [
        (false, "2 gradients, expected 3"),
        (true, "more than its 1 stages"),
    ] {
        ringtree::simulate(2, |comm| {
            let mut model = two(comm, Options::new().hook(Broken { is_endless })).unwrap();
            model.report(0, &[1.0f32; 3]).unwrap();
            assert_usage_error(model.wait(), expected);
            assert_usage_error(model.gradient::<f32>(0), expected);
            assert_usage_error(model.report(0, &[1.0f32; 3]), expected);
        });
    }
}
