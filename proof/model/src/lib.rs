// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol of `retryproof` as one pure transition function, small enough to be checked in
//! every state.
//!
//! Nothing here names the public API, does I/O or depends on another crate. There are two layers:
//!
//! - [`Slot::step`] applies one of the six calls of a store to one identity's record, and returns
//!   the new record and the answer. The judge of the kill tests and of the simulation compares it
//!   with the answers of real stores ([`Slot::allowed`]). [`Slot::force`] applies an operator's
//!   intervention.
//! - [`Protocol::step`] adds the rest of the protocol: clients that acquire, wait, beat, complete,
//!   fail, are dropped and crash, a clock, lost answers and late messages. `tests/it` visits all of
//!   its states with stateright, and checks that none shows one of the [`WRONGS`], that all
//!   [`SIGHTS`] are reachable (otherwise the model shows nothing), and that every run ends in a
//!   state that is [`settled`](State::settled).
//!
//! [`Truth`] decides what is right: it is a history beside the record, and no transition reads it.
//! A [`Defect`] plants one bug; a checker that cannot find a planted bug would not find a real one
//! either.
//!
//! These abstractions limit what a green run proves: a store call is one atomic step; a lost
//! message arrives at most once, late, and only one is under way at a time; clients are not
//! scheduled fairly (this models pauses), so no promise about timing is checked except deadlines
//! (RUN-1 is not); all leases have one length, as do all ttls and all waits; joined transactions
//! (CMP-7) and a failover that loses writes are left out.
//!
//! The record as an oracle:
//!
//! ```
//! use model::{Answer, Fenced, Op, Owner, Slot, Value};
//!
//! let (first, second) = (Owner(1), Owner(2));
//! let ask = |owner| Op::Acquire { owner, lease: 3, ttl: 9, print: None };
//! let (slot, answer) = Slot::default().step(0, ask(first));
//! assert!(matches!(answer, Answer::Granted { took_over: false, .. }));
//! // ACQ-2: at the end of the lease, not before, the next caller takes over.
//! assert!(matches!(slot.step(2, ask(second)).1, Answer::Busy { remaining: 1, .. }));
//! let (slot, answer) = slot.step(3, ask(second));
//! assert!(matches!(answer, Answer::Granted { took_over: true, .. }));
//! // CMP-2: the completion of the owner it was taken from is refused.
//! let (_, answer) = slot.step(4, Op::Complete { owner: first, value: Value::Result(7), ttl: 9 });
//! assert_eq!(answer, Answer::Fenced(Fenced::Lost));
//! ```

mod action;
mod canonical;
mod defect;
mod force;
mod property;
mod slot;
mod state;
mod truth;
mod turn;

pub use action::{Action, Fate};
pub use defect::{DEFECTS, Defect};
pub use force::{Force, Forced, Verb};
pub use property::{SIGHTS, Sight, Sights, WRONGS, Wrong, Wrongs};
pub use slot::{Answer, Done, Fenced, Held, Op, Owner, Print, Record, Slot, Tick, Token, Value};
pub use state::{
    Bounds, Budget, CLIENTS, Client, IDENTITIES, Message, Outcome, Phase, Protocol, Stage, State,
    Wakeup,
};
pub use truth::{Accepted, Holder, Truth};
pub use turn::Turn;
