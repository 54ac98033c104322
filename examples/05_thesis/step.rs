//! The training step that every algorithm is to carry: a model, a timetable, a set of buckets.

use ringtree::plan::price::LinkCost;
use ringtree::{Algorithm, TuningTable};
use std::time::Duration;

/// The model: layers of 128 KiB of f32 gradients, 1.5 MiB together.
pub(crate) const LAYERS: u32 = 12;
/// Elements of a layer.
pub(crate) const LAYER_ELEMENTS: usize = 32 << 10;
/// The gradients of so many layers travel together.
pub(crate) const LAYERS_PER_BUCKET: u32 = 4;
/// All-reduces of a step.
pub(crate) const BUCKETS: u32 = LAYERS / LAYERS_PER_BUCKET;
/// Elements of a bucket.
pub(crate) const BUCKET_ELEMENTS: usize = LAYERS_PER_BUCKET as usize * LAYER_ELEMENTS;
/// Bytes of a bucket.
pub(crate) const BUCKET_BYTES: usize = BUCKET_ELEMENTS * size_of::<f32>();
/// How long forward takes.
pub(crate) const FORWARD: Duration = Duration::from_millis(80);
/// How long backward takes for one layer: about twice the layer's bytes at 1 Gbit/s, so that an
/// all-reduce that paid for bytes alone would hide behind it.
pub(crate) const BACKWARD_PER_LAYER: Duration = Duration::from_millis(20);

/// The algorithms compared; none is the chooser.
pub(crate) const WAYS: [(&str, Option<Algorithm>); 5] = [
    ("ring", Some(Algorithm::Ring)),
    ("binomial", Some(Algorithm::Binomial)),
    ("recursive-doubling", Some(Algorithm::RecursiveDoubling)),
    ("circulant", Some(Algorithm::Circulant)),
    ("auto", None),
];

/// The time in which a step would be over if communication cost nothing.
#[must_use]
pub(crate) fn compute() -> Duration {
    FORWARD + BACKWARD_PER_LAYER * LAYERS
}

/// When the last gradient of a bucket is there. Buckets are numbered in this order: the last
/// layers' comes first.
#[must_use]
pub(crate) fn ready(bucket: u32) -> Duration {
    FORWARD + BACKWARD_PER_LAYER * LAYERS_PER_BUCKET * (bucket + 1)
}

/// What the links are like: all alike, full duplex, one port a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// A message's first byte arrives so long after it was sent.
    pub(crate) alpha: Duration,
    /// What a port carries.
    pub(crate) bytes_per_s: f64,
}

impl Link {
    /// The link as the chooser is told of it. Folding is free, in virtual time as here.
    #[must_use]
    pub(crate) fn tuning(&self) -> TuningTable {
        TuningTable {
            tcp: LinkCost {
                alpha_s: self.alpha.as_secs_f64(),
                overhead_s: 0.0,
                beta_s_per_byte: 1.0 / self.bytes_per_s,
                gamma_s_per_byte: 0.0,
            },
            ..TuningTable::default()
        }
    }
}

/// One step of so many ranks by one algorithm.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Point {
    /// How many ranks.
    pub(crate) ranks: usize,
    /// One of the names in [`WAYS`].
    pub(crate) way: String,
    /// From the common start until the last rank has all gradients.
    pub(crate) step_ms: f64,
    /// What communication adds to computing.
    pub(crate) exposed_ms: f64,
}

impl Point {
    /// The point of a step that took `step`.
    #[must_use]
    pub(crate) fn new(ranks: usize, way: &str, step: Duration) -> Self {
        Self {
            ranks,
            way: way.into(),
            step_ms: step.as_secs_f64() * 1e3,
            exposed_ms: step.saturating_sub(compute()).as_secs_f64() * 1e3,
        }
    }
}
