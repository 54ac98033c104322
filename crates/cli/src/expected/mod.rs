//! Computes the expected results of collectives with known inputs. [`exact`] generates the inputs
//! of every rank and the result of a reduction, and [`result`] compares a buffer with the expected
//! result after a call.

pub mod exact;
pub mod result;
