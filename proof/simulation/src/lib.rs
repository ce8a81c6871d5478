// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs engines on one store in virtual time, from a seed.
//!
//! [`Simulation::run`] creates a random world from its seed: 2 to 8 processes, each with its own
//! engine and callers, a network between them and one memory store, and faults. It runs the world
//! on a paused clock and one thread, so ten seconds of leases take some milliseconds, and the same
//! seed gives the same history, event by event. [`history`] judges that history by the rules of the
//! kill tests.
//!
//! The code of the callers, of their actions and of the recording of store calls is compiled from
//! the sources of the kill tests (`proof/chaos`). This crate replaces only what these sources use:
//! the clock, the log and the resource outside of the store.

#[path = "../../chaos/src/act.rs"]
mod act;
#[path = "../../chaos/src/call.rs"]
mod call;
#[path = "../../chaos/src/client.rs"]
mod client;
mod link;
mod log;
mod mono;
mod numbered;
mod process;
#[path = "../../chaos/src/random.rs"]
mod random;
#[path = "../../chaos/src/recording.rs"]
mod recording;
mod resource;
mod run;
mod setting;
#[path = "../../chaos/src/settle.rs"]
mod settle;
mod sweep;
mod world;

pub use run::Simulation;
pub use sweep::{Failure, Totals, silence_planned_panics, sweep};
