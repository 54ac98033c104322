//! Tests groups of a communicator's ranks. The ranks are simulated, with deaths at every step, or
//! are real processes over TCP, shared memory, and both.

mod deaths;
mod processes;
mod simulated;
