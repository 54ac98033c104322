//! Records a timeline that shows how communication overlaps with backward.
//!
//! Four processes train a synthetic model of 12 layers over loopback TCP. The timeline shows what
//! each rank computes and which buckets are on its links.
//!
//! ```text
//! cargo run --release --example 06_trace -- trace.json overlap.svg
//! ```
//!
//! Without arguments, the files are created in the directory for temporary files. Open the first
//! file in <https://ui.perfetto.dev>. The second file is a picture of the step of median length.
//!
//! The example simulates a device, which computes without the processor, by sleeping. Backward
//! takes 1.2 times as long as this machine's links need for the gradients, so it can hide the
//! communication.

mod drawing;

use drawing::overlap::overlap;
use ringtree::ddp::{BucketSize, DataParallel, Options, Parameter, Span, Timeline, Trace};
use ringtree::launch::spawn_self;
use ringtree::{Communicator, Dtype, Error, Result};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const RANKS: usize = 4;
const STEPS: usize = 11;
const LAYERS: usize = 12;
/// Number of elements in a layer's weights: 4 MiB, the size of a bucket.
const LAYER_ELEMENTS: usize = 1 << 20;
/// Number of steps that only communicate, to measure how long the links need for the gradients.
const STEPS_MEASURED: usize = 5;
/// Duration of backward, as a multiple of the time that the links need.
const BACKWARD_SHARE: f64 = 1.2;
/// Durations of forward and of the optimizer, as fractions of the duration of backward.
const FORWARD_SHARE: f64 = 1.0 / 3.0;
const OPTIMIZER_SHARE: f64 = 1.0 / 12.0;

fn main() -> ExitCode {
    let mut files = std::env::args().skip(1);
    let mut file = |name| {
        let in_scratch = || std::env::temp_dir().join(name).display().to_string();
        files.next().unwrap_or_else(in_scratch)
    };
    let (json, svg) = (&file("ringtree-trace.json"), &file("ringtree-overlap.svg"));
    let end = if !ringtree::launch::is_rank() {
        spawn_self(RANKS).map(|code| ExitCode::from(u8::try_from(code).unwrap_or(1)))
    } else {
        one_rank(json, svg).map(|()| ExitCode::SUCCESS)
    };
    end.unwrap_or_else(|error| {
        eprintln!("06_trace: {error}");
        ExitCode::FAILURE
    })
}

fn one_rank(json: &str, svg: &str) -> Result<()> {
    let comm = Communicator::from_env()?;
    let trace = Trace::new(&comm)?;
    let layer = |index| Parameter::new(&format!("layer {index}"), &[LAYER_ELEMENTS], Dtype::F32);
    let options = Options::new().buckets(BucketSize::Bytes(4 * LAYER_ELEMENTS));
    let mut model = DataParallel::new(&comm, (1..=LAYERS).map(layer), options)?;
    let off = Trace::off();
    let mut fastest = Duration::MAX;
    for step in 0..STEPS_MEASURED {
        let start = comm.clock();
        train_step(&off, &mut model, step, Duration::ZERO)?;
        fastest = fastest.min(comm.clock() - start);
    }
    let mut backward_s = [fastest.as_secs_f64() * BACKWARD_SHARE];
    comm.broadcast(&mut backward_s, 0)?;
    for step in 0..STEPS {
        train_step(
            &trace,
            &mut model,
            step,
            Duration::from_secs_f64(backward_s[0]),
        )?;
    }
    if let Some(timeline) = trace.write(json)? {
        let picture = picture(&timeline);
        std::fs::write(svg, picture)
            .map_err(|error| Error::io(format_args!("writing {svg}"), &error))?;
        println!("{json}: open it in https://ui.perfetto.dev\n{svg}: one step");
    }
    Ok(())
}

fn train_step(
    trace: &Trace,
    model: &mut DataParallel,
    step: usize,
    backward: Duration,
) -> Result<()> {
    let start = trace.clock();
    let mut deadline = Instant::now() + backward.mul_f64(FORWARD_SHARE);
    trace.measure("forward", "forward", || sleep_until(deadline));
    model.start_backward();
    for index in (0..LAYERS).rev() {
        deadline += backward / LAYERS as u32;
        let name = format!("layer {}", index + 1);
        trace.measure("backward", name, || sleep_until(deadline));
        // In a real program, backward writes the gradient here.
        model.gradient_mut::<f32>(index)?;
        model.ready(index)?;
    }
    trace.measure("wait", "wait", || model.wait())?;
    trace.buckets(model);
    deadline = Instant::now() + backward.mul_f64(OPTIMIZER_SHARE);
    trace.measure("optimizer", "optimizer", || sleep_until(deadline));
    trace.span("step", format_args!("step {step}"), start, trace.clock());
    Ok(())
}

fn sleep_until(deadline: Instant) {
    std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
}

/// Draws the step that has median length on rank 0. The picture extends from the time at which the
/// first rank begins the step to the time at which the last rank ends it.
fn picture(timeline: &Timeline) -> String {
    let of_rank = |rank: usize| timeline.ranks[rank].spans.iter();
    let mut steps: Vec<_> = of_rank(0).filter(|span| span.track == "step").collect();
    steps.sort_by_key(|step| step.end - step.start);
    let name = &steps[STEPS / 2].name;
    let all = (0..RANKS).flat_map(of_rank);
    let alike: Vec<_> = all.filter(|span| span.name == *name).collect();
    let start = alike.iter().map(|step| step.start).min();
    let end = alike.iter().map(|step| step.end).max();
    let window = start.unwrap_or_default()..end.unwrap_or_default();

    let inside = |span: &&Span| window.start <= span.start && span.end <= window.end;
    // Time for which rank 0 has buckets on its links. Overlapping spans count only once.
    let mut busy = Duration::ZERO;
    let mut counted_until = window.start;
    let buckets = of_rank(0).filter(|span| span.track == "communication");
    for span in buckets.filter(inside) {
        busy += span.end.saturating_sub(span.start.max(counted_until));
        counted_until = counted_until.max(span.end);
    }
    let mut waits = of_rank(0).filter(|span| span.track == "wait");
    let waited = waits.rfind(inside);
    let waited = waited.map_or(Duration::ZERO, |wait| wait.end - wait.start);
    let note = format!(
        "A step of {RANKS} processes over loopback TCP: {} MiB of gradients, {LAYERS} buckets. \
         Rank 0 has buckets on its links for {:.0} ms, and waits for {:.0} ms.",
        (LAYERS * LAYER_ELEMENTS * 4) >> 20,
        busy.as_secs_f64() * 1e3,
        waited.as_secs_f64() * 1e3
    );
    let title = "Gradients travel while backward runs";
    overlap(timeline, title, &note, window)
}
