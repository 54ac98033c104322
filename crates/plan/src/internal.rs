//! Re-exports for this repository's library, command and tests.
//!
//! This module is not part of the public API and can change in any version.

/// See `algorithms/mod.rs`.
pub mod algorithms {
    pub use crate::algorithms::*;
}

/// See `calibration.rs`.
pub mod calibration {
    pub use crate::calibration::*;
}

/// See `cost/mod.rs`.
pub mod cost {
    pub use crate::cost::*;
}

/// See `ir.rs`.
pub mod ir {
    pub use crate::ir::*;
}

/// See `error.rs`.
pub use crate::error::unknown_name;

/// See `layout.rs`.
pub mod layout {
    pub use crate::layout::*;
}

/// See `limits.rs`.
pub mod limits {
    pub use crate::limits::*;
}

/// See `parts.rs`.
pub mod parts {
    pub use crate::parts::*;
}

/// See `price.rs`.
pub mod price {
    pub use crate::price::*;
}

/// See `record.rs`.
pub mod record {
    pub use crate::record::*;
}

/// See `reproducible.rs`.
pub mod reproducible {
    pub use crate::reproducible::*;
}

/// See `spec.rs`.
pub mod spec {
    pub use crate::spec::*;
}

/// See `topology.rs`.
pub mod topology {
    pub use crate::topology::*;
}

/// See `tuning.rs`.
pub mod tuning {
    pub use crate::tuning::*;
}

/// See `units.rs`.
pub mod units {
    pub use crate::units::*;
}

/// See `select.rs`.
pub mod select {
    pub use crate::select::*;
}

/// See `export.rs`.
pub mod export {
    pub use crate::export::*;
}

/// See `verify/mod.rs`.
pub mod verify {
    pub use crate::verify::*;
}

/// See `draw/holdings.rs`.
#[cfg(feature = "draw")]
pub mod holdings {
    pub use crate::draw::holdings::*;
}

/// See `draw/player.rs`.
#[cfg(feature = "draw")]
pub mod player {
    pub use crate::draw::player::*;
}
