//! What a collective must leave in buffers whose inputs are known: [`exact`] makes the inputs of
//! every rank and the result of a reduction, [`promise`] compares a buffer after a call.

pub mod exact;
pub mod promise;
