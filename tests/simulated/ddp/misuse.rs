//! Calls that make no sense are refused in words, and what can go on goes on.

use super::{HOOKS, model};
use half::f16;
use ringtree::ddp::{
    DataParallel, DistributedSampler, LocalSteps, NonFinite, Options, Outer, Parameter,
};
use ringtree::internal::ddp::{
    BucketInfo, Exchange, Hook, Next, Values, restore, set_synchronising,
};
use ringtree::{Communicator, Dtype, Error, ErrorKind, ReduceOp, Result};

fn explained<R: std::fmt::Debug>(result: Result<R>, expected: &str) {
    let Err(error) = result else {
        panic!("not refused: {result:?}");
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
fn a_gradient_is_not_complete_inside_no_sync_even_if_said_so() {
    let ends = ringtree::simulate(2, |comm| {
        let mut model = two(comm, Options::new())?;
        for is_last in [false, true] {
            set_synchronising(&mut model, is_last);
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
fn a_parameter_that_no_rank_used_and_a_step_without_a_report_are_refused_on_all_ranks() {
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
        explained(ends[0].clone(), expected);
    }
}

#[test]
fn a_gradient_that_some_ranks_leave_out_is_named_on_all_ranks_unless_that_is_allowed() {
    for (is_allowed, is_sharded, left_out, is_said) in [
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
            // Rank 0 has no data at all, which is no error.
            for step in 0..if comm.rank() == 0 { 0 } else { 2 } {
                for number in 0..40 {
                    if step == 0 || comm.rank() == 1 || number != left_out {
                        model.report(number, &[8.0f32])?;
                    } else if is_said {
                        model.ready(number)?;
                    }
                }
                model.wait()?;
            }
            model.join(|_| Ok(()))?;
            Ok::<_, Error>(model.gradient::<f32>(left_out)?.map(<[_]>::to_vec))
        });
        if is_allowed {
            assert_eq!(ends, vec![Ok(Some(vec![2.0])); 4]);
            continue;
        }
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        let expected =
            format!("2 reported no gradient for w{left_out} [1] f32 in step 1, but rank 1");
        explained(ends[0].clone(), &expected);
    }
}

#[test]
fn a_gradient_that_is_not_finite_is_named_and_its_step_left_out_on_all_ranks() {
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
                    explained(ends[0].clone(), &expected);
                }
                _ => assert_eq!(ends, vec![Ok((3, 1)); 4]),
            }
        }
    }
}

#[test]
fn a_data_set_without_samples_is_refused() {
    explained(DistributedSampler::new(0, 1, 0, 2), "no samples");
}

#[test]
fn who_gives_up_in_a_step_is_not_waited_for() {
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
fn local_weights_of_another_length_on_one_rank_are_told_on_all() {
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
        explained(ends[0].clone(), "but 3 weights were passed");
    }
}

#[test]
fn a_refused_call_changes_nothing() {
    for hook in HOOKS {
        let ends = ringtree::simulate(2, |comm| {
            let mut model = two(comm, (hook.set)(Options::new()))?;
            for _step in 0..2 {
                explained(model.report(2, &[0.0f32]), "parameter 2 is out of range");
                explained(
                    model.report("bais", &[0.0f32]),
                    "no parameter is named 'bais'",
                );
                explained(
                    model.report(0, &[0.0f32; 4]),
                    "weight [3] f32 has 4 elements",
                );
                explained(
                    model.report(0, &[0.0f64; 3]),
                    "weight [3] f32 does not have type f64",
                );
                explained(
                    model.gradient_mut::<f32>(1),
                    "bias [1] bf16 does not have type f32",
                );
                explained(model.gradient::<f32>(0), "call `wait` first");
                explained(model.join(|_| Ok(())), "uneven_data");
                model.no_sync(|model| model.report(0, &[1.0f32; 3]))?;
                model.report(0, &[1.0f32; 3])?;
                explained(model.report(0, &[5.0f32; 3]), "already complete");
                explained(model.ready(0), "already complete");
                explained(model.gradient_mut::<f32>(0), "already complete");
                explained(
                    model.no_sync(|model| model.report(0, &[5.0f32; 3])),
                    "already complete",
                );
                explained(restore(&mut model, 7, Some((vec![0, 0], 1))), "once");
                model.wait()?;
                assert_eq!(model.gradient::<f32>(0)?, Some(&[2.0; 3][..]));
                assert_eq!(model.gradient::<half::bf16>(1)?, None, "nobody used it");
                explained(model.gradient::<f64>(0), "does not have type f64");
            }
            Ok::<_, Error>(model.steps())
        });
        assert_eq!(ends, [Ok(2), Ok(2)], "{hook:?}");
    }
}

#[test]
fn what_cannot_be_registered_is_named() {
    let ends = ringtree::simulate(2, |comm| {
        let mut parameters = model();
        parameters.push(Parameter::new("count", &[1], Dtype::I32));
        let integer = DataParallel::new(comm, parameters, Options::new()).map(drop);
        explained(integer, "count [1] i32");
        let mut parameters = model();
        parameters.push(Parameter::new("scale", &[1], Dtype::F32));
        let twice = DataParallel::new(comm, parameters, Options::new()).map(drop);
        explained(twice, "named scale");
        // Nothing was sent, so the ranks can go on.
        let mut model = two(comm, Options::new())?;
        model.report(0, &[1.0f32; 3]).and_then(|()| model.wait())
    });
    assert_eq!(ends, [Ok(()), Ok(())]);
}

#[test]
fn joining_in_the_middle_of_a_step_is_refused() {
    let ends = ringtree::simulate(2, |comm| {
        let mut model = two(comm, Options::new().uneven_data())?;
        model.report(0, &[1.0f32; 3])?;
        explained(model.join(|_| Ok(())), "between two steps");
        model.wait()?;
        model.join(|_| Ok(()))
    });
    assert_eq!(ends, [Ok(()), Ok(())]);
}

/// A hook that returns too few gradients, or never ends.
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
fn a_broken_hook_is_named_and_no_gradient_comes_from_it() {
    for (is_endless, expected) in [
        (false, "2 gradients, expected 3"),
        (true, "more than its 1 stages"),
    ] {
        ringtree::simulate(2, |comm| {
            let mut model = two(comm, Options::new().hook(Broken { is_endless })).unwrap();
            model.report(0, &[1.0f32; 3]).unwrap();
            explained(model.wait(), expected);
            explained(model.gradient::<f32>(0), expected);
            explained(model.report(0, &[1.0f32; 3]), expected);
        });
    }
}
