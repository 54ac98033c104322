//! Groups of a communicator's ranks: simulated ones, with deaths at every step, and real processes
//! over TCP, shared memory and both.

mod deaths;
mod processes;
mod simulated;
