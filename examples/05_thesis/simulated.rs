//! Runs the step in virtual time. Each rank's engine executes its plans on real bytes.

use super::step::{BUCKETS, LAYERS_PER_BUCKET, Link, Model, OVERHEAD};
use ringtree::plan::{
    Algorithm, Choice, Collective, PlanError, Topology, TuningTable, choose, choose_concurrent,
};
use ringtree::sim::World;
use ringtree_kit::checkers::{exact, no_hang, order};
use ringtree_kit::cluster::Cluster;
use ringtree_kit::script::{Call, Script, Step};
use std::time::Duration;

/// Time after which a step is considered hung.
const LONG: Duration = Duration::from_secs(3600);

/// Returns the step of one rank: forward, then backward from the last layer to the first. The
/// all-reduce of a bucket starts when the bucket's last gradient is ready, and the optimizer waits
/// for all buckets.
fn script(model: &Model, link: &Link) -> Vec<Step> {
    let call = Call::new(Collective::AllReduce, model.bucket_elements());
    let mut steps = vec![Step::Compute(link.forward(model))];
    for bucket in 0..BUCKETS {
        let layer = Step::Compute(link.backward_per_layer(model));
        steps.extend((0..LAYERS_PER_BUCKET).map(|_| layer));
        steps.push(Step::Start(bucket, call));
    }
    steps.extend((0..BUCKETS).map(Step::Wait));
    steps
}

/// Runs the step on `ranks` ranks and returns the exposed communication in milliseconds.
///
/// # Errors
/// Returns a message if a call fails, hangs, completes out of order or leaves a wrong element.
pub(crate) fn exposed_ms(
    ranks: usize,
    algorithm: Option<Algorithm>,
    model: &Model,
    link: &Link,
) -> Result<f64, String> {
    let mut world = World::new(ranks);
    world.network.latency = link.alpha;
    world.network.overhead = OVERHEAD;
    world.network.bandwidth_bytes_per_s = link.bytes_per_s;
    world.tuning = link.tuning();
    world.algorithm = Some(choice(ranks, algorithm, model, &world.tuning)?.algorithm);
    let outcome = Cluster::new(world)
        .run(&Script::same(ranks, script(model, link)))
        .map_err(|error| error.to_string())?;
    for record in &outcome.records {
        if let Some(Err(error)) = &record.result {
            return Err(error.to_string());
        }
    }
    exact::check(&outcome)?;
    order::check(&outcome)?;
    no_hang::check(&outcome, LONG)?;
    let exposed = outcome.end().saturating_sub(link.compute(model));
    Ok(exposed.as_secs_f64() * 1e3)
}

/// Returns the predicted exposed communication in milliseconds if each bucket waits for the
/// previous one.
///
/// # Errors
/// Returns a message if the algorithm does not implement all-reduce.
pub(crate) fn predicted_ms(
    ranks: usize,
    algorithm: Option<Algorithm>,
    model: &Model,
    link: &Link,
) -> Result<f64, String> {
    let table = link.tuning();
    let algorithm = choice(ranks, algorithm, model, &table)?.algorithm;
    let bucket_s = choice(ranks, Some(algorithm), model, &table)?.predicted_s;
    let end_s = (0..BUCKETS).fold(0.0, |free_s: f64, bucket| {
        free_s.max(link.ready(model, bucket).as_secs_f64()) + bucket_s
    });
    Ok((end_s - link.compute(model).as_secs_f64()) * 1e3)
}

/// Returns the algorithm and the cost that the library chooses for all buckets, which may be in
/// flight simultaneously, or the cost of the given algorithm for one bucket.
///
/// # Errors
/// Returns an error if no algorithm implements the all-reduce.
pub(crate) fn choice(
    ranks: usize,
    algorithm: Option<Algorithm>,
    model: &Model,
    table: &TuningTable,
) -> Result<Choice, PlanError> {
    let apart = Topology::apart(ranks);
    let (sum, bytes) = (Collective::AllReduce, model.bucket_bytes());
    match algorithm {
        None => choose_concurrent(
            BUCKETS as usize,
            sum,
            &apart,
            bytes,
            size_of::<f32>(),
            table,
        ),
        named => choose(sum, &apart, bytes, size_of::<f32>(), table, named),
    }
}
