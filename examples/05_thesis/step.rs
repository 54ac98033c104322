//! The training step that every algorithm is to carry: models, a timetable, links.

use ringtree::plan::price::LinkCost;
use ringtree::{Algorithm, TuningTable};
use std::time::Duration;

/// Layers of a model.
pub(crate) const LAYERS: u32 = 12;
/// The gradients of so many layers travel together.
pub(crate) const LAYERS_PER_BUCKET: u32 = 4;
/// All-reduces of a step.
pub(crate) const BUCKETS: u32 = LAYERS / LAYERS_PER_BUCKET;

/// How long a message keeps its sender busy, and its receiver.
pub(crate) const OVERHEAD: Duration = Duration::from_micros(25);

/// A model whose gradients are averaged in every step.
#[derive(Debug)]
pub(crate) struct Model {
    /// Its name in files and pictures.
    pub(crate) name: &'static str,
    /// Elements of a layer, of four bytes each.
    layer_elements: usize,
}

/// Four layers of the small model are sent in about the time of one message's latency. A bucket of
/// the large one takes 17 latencies, so up to 17 ranks its bytes outweigh a ring's messages.
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
    /// Elements of a bucket.
    pub(crate) fn bucket_elements(&self) -> usize {
        LAYERS_PER_BUCKET as usize * self.layer_elements
    }

    /// Bytes of a bucket.
    pub(crate) fn bucket_bytes(&self) -> usize {
        self.bucket_elements() * size_of::<f32>()
    }
}

/// The algorithms compared; none is the chooser.
pub(crate) const WAYS: [(&str, Option<Algorithm>); 5] = [
    ("ring", Some(Algorithm::Ring)),
    ("binomial", Some(Algorithm::Binomial)),
    ("recursive-doubling", Some(Algorithm::RecursiveDoubling)),
    ("circulant", Some(Algorithm::Circulant)),
    ("auto", None),
];

/// What the links are like, all alike, full duplex, one port a rank; and how long computing takes
/// beside them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// A message's first byte arrives so long after it was sent.
    pub(crate) alpha: Duration,
    /// What a port carries.
    pub(crate) bytes_per_s: f64,
}

impl Link {
    /// A link of that latency and so many Mbit/s.
    pub(crate) fn new(alpha: Duration, rate_mbit: f64) -> Self {
        let bytes_per_s = rate_mbit * 1e6 / 8.0;
        Self { alpha, bytes_per_s }
    }

    /// The link as the chooser is told of it. Folding is free, in virtual time as here.
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

    /// How long backward takes for one layer: about twice what the layer's bytes take, so that an
    /// all-reduce that paid for bytes alone would hide behind it.
    #[must_use]
    pub(crate) fn backward_per_layer(&self, model: &Model) -> Duration {
        let layer_bytes = model.bucket_bytes() as f64 / f64::from(LAYERS_PER_BUCKET);
        Duration::from_secs_f64(1.8 * layer_bytes / self.bytes_per_s)
    }

    /// How long forward takes: as long as backward of four layers.
    #[must_use]
    pub(crate) fn forward(&self, model: &Model) -> Duration {
        self.backward_per_layer(model) * LAYERS_PER_BUCKET
    }

    /// When the last gradient of a bucket is there. Buckets are numbered in this order: the last
    /// layers' comes first.
    #[must_use]
    pub(crate) fn ready(&self, model: &Model, bucket: u32) -> Duration {
        self.forward(model) + self.backward_per_layer(model) * LAYERS_PER_BUCKET * (bucket + 1)
    }

    /// The time in which a step would be over if communication cost nothing.
    #[must_use]
    pub(crate) fn compute(&self, model: &Model) -> Duration {
        self.ready(model, BUCKETS - 1)
    }
}
