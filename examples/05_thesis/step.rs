//! Describes the training step: models, timetable and links.

use ringtree::plan::Algorithm;
use ringtree::plan::LinkCost;
use ringtree::tuning::TuningTable;
use std::time::Duration;

/// Number of layers of a model.
pub(crate) const LAYERS: u32 = 12;
/// Number of layers whose gradients form one bucket.
pub(crate) const LAYERS_PER_BUCKET: u32 = 4;
/// Number of all-reduces per step.
pub(crate) const BUCKETS: u32 = LAYERS / LAYERS_PER_BUCKET;

/// Time for which a message occupies its sender, and then its receiver.
pub(crate) const OVERHEAD: Duration = Duration::from_micros(25);

/// A model whose gradients are averaged in each step.
#[derive(Debug)]
pub(crate) struct Model {
    /// The model's name in files and pictures.
    pub(crate) name: &'static str,
    /// Number of `f32` elements per layer.
    layer_elements: usize,
}

/// A link takes 5 times its latency to transfer a bucket of the small model, and 81 times its
/// latency for a bucket of the large one. From 6 ranks on for the small model, and from 82 on for
/// the large one, the latency of a ring therefore exceeds the time for its bytes.
pub(crate) const MODELS: [Model; 2] = [
    Model {
        name: "small",
        layer_elements: 2 << 10,
    },
    Model {
        name: "large",
        layer_elements: 32 << 10,
    },
];

impl Model {
    /// Returns the number of elements in a bucket.
    pub(crate) fn bucket_elements(&self) -> usize {
        LAYERS_PER_BUCKET as usize * self.layer_elements
    }

    /// Returns the size of a bucket in bytes.
    pub(crate) fn bucket_bytes(&self) -> usize {
        self.bucket_elements() * size_of::<f32>()
    }
}

/// The algorithms; `None` lets the library choose.
pub(crate) const WAYS: [(&str, Option<Algorithm>); 5] = [
    ("ring", Some(Algorithm::Ring)),
    ("binomial", Some(Algorithm::Binomial)),
    ("recursive-doubling", Some(Algorithm::RecursiveDoubling)),
    ("circulant", Some(Algorithm::Circulant)),
    ("auto", None),
];

/// A full-duplex link; each rank has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// Time from sending the first byte of a message to its arrival.
    pub(crate) alpha: Duration,
    /// Bytes per second in each direction.
    pub(crate) bytes_per_s: f64,
}

impl Link {
    /// Creates a link with latency `alpha` and `rate_mbit` Mbit/s.
    pub(crate) fn new(alpha: Duration, rate_mbit: f64) -> Self {
        let bytes_per_s = rate_mbit * 1e6 / 8.0;
        Self { alpha, bytes_per_s }
    }

    /// Returns the tuning table for such links. Folding costs nothing in virtual time.
    #[must_use]
    pub(crate) fn tuning(&self) -> TuningTable {
        TuningTable {
            tcp: LinkCost {
                alpha_s: self.alpha.as_secs_f64(),
                overhead_s: OVERHEAD.as_secs_f64(),
                beta_s_per_byte: 1.0 / self.bytes_per_s,
                gamma_s_per_byte: 0.0,
            },
            ..TuningTable::default()
        }
    }

    /// Returns the duration of backward for one layer: 1.8 times the time that a link needs for the
    /// layer's bytes. Backward can therefore hide an all-reduce whose only cost is the bytes.
    #[must_use]
    pub(crate) fn backward_per_layer(&self, model: &Model) -> Duration {
        let layer_bytes = model.bucket_bytes() as f64 / f64::from(LAYERS_PER_BUCKET);
        Duration::from_secs_f64(1.8 * layer_bytes / self.bytes_per_s)
    }

    /// Returns the duration of forward, which is as long as backward takes for four layers.
    #[must_use]
    pub(crate) fn forward(&self, model: &Model) -> Duration {
        self.backward_per_layer(model) * LAYERS_PER_BUCKET
    }

    /// Returns the time at which the last gradient of bucket `bucket` is ready. Bucket 0 contains
    /// the gradients of the last layers.
    #[must_use]
    pub(crate) fn ready(&self, model: &Model, bucket: u32) -> Duration {
        self.forward(model) + self.backward_per_layer(model) * LAYERS_PER_BUCKET * (bucket + 1)
    }

    /// Returns the duration of a step without any communication.
    #[must_use]
    pub(crate) fn compute(&self, model: &Model) -> Duration {
        self.ready(model, BUCKETS - 1)
    }
}
