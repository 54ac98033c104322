//! The step in virtual time: every rank's engine runs its plans on real bytes.

use super::step::{
    BACKWARD_PER_LAYER, BUCKET_BYTES, BUCKET_ELEMENTS, BUCKETS, FORWARD, LAYERS_PER_BUCKET, Link,
    Point, compute, ready,
};
use ringtree::plan::select::choose;
use ringtree::plan::{Algorithm, Collective, Topology};
use ringtree::sim::checkers::{exact, no_hang, order};
use ringtree::sim::cluster::Cluster;
use ringtree::sim::script::{Call, Script, Step};
use ringtree::sim::simulate::World;
use std::time::Duration;

/// No step takes longer.
const LONG: Duration = Duration::from_secs(120);

/// What one rank does in a step: forward, then backward from the last layer to the first; a
/// bucket's all-reduce starts with its last gradient, and the optimizer waits for all of them.
fn script(call: Call) -> Vec<Step> {
    let mut steps = vec![Step::Compute(FORWARD)];
    for bucket in 0..BUCKETS {
        steps.extend((0..LAYERS_PER_BUCKET).map(|_| Step::Compute(BACKWARD_PER_LAYER)));
        steps.push(Step::Start(bucket, call));
    }
    steps.extend((0..BUCKETS).map(Step::Wait));
    steps
}

/// Executes the step on `ranks` ranks.
///
/// # Errors
/// A sentence: a call failed, hung, came out of order or left a wrong element.
pub(crate) fn execute(
    ranks: usize,
    (way, algorithm): (&str, Option<Algorithm>),
    link: &Link,
) -> Result<Point, String> {
    let mut world = World::new(ranks);
    world.network.latency = link.alpha;
    world.network.bandwidth_bytes_per_s = link.bytes_per_s;
    world.tuning = link.tuning();
    world.algorithm = algorithm;
    let script = Script::same(
        ranks,
        script(Call::new(Collective::AllReduce, BUCKET_ELEMENTS)),
    );
    let outcome = Cluster::new(world)
        .run(&script)
        .map_err(|error| error.to_string())?;
    for record in &outcome.records {
        if let Some(Err(error)) = &record.result {
            return Err(error.to_string());
        }
    }
    exact::check(&outcome)?;
    order::check(&outcome)?;
    no_hang::check(&outcome, LONG)?;
    Ok(Point::new(ranks, way, outcome.end()))
}

/// Milliseconds of communication that the closed forms expect to be exposed, if a bucket starts
/// when the one before it is done.
///
/// # Errors
/// A sentence, if the algorithm does not carry out an all-reduce.
pub(crate) fn priced_ms(
    ranks: usize,
    algorithm: Option<Algorithm>,
    link: &Link,
) -> Result<f64, String> {
    let one = choose(
        Collective::AllReduce,
        &Topology::apart(ranks),
        BUCKET_BYTES,
        size_of::<f32>(),
        &link.tuning(),
        algorithm,
    )?;
    let end_s = (0..BUCKETS).fold(0.0, |free_s: f64, bucket| {
        free_s.max(ready(bucket).as_secs_f64()) + one.predicted_s
    });
    Ok((end_s - compute().as_secs_f64()) * 1e3)
}

/// What the chooser takes for a bucket.
///
/// # Errors
/// A sentence, if nothing carries out an all-reduce.
pub(crate) fn chosen(ranks: usize, link: &Link) -> Result<&'static str, String> {
    let table = link.tuning();
    let one = choose(
        Collective::AllReduce,
        &Topology::apart(ranks),
        BUCKET_BYTES,
        size_of::<f32>(),
        &table,
        None,
    )?;
    Ok(one.algorithm.name())
}
