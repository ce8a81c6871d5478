// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol of `retryproof` as one pure transition function, small enough to be checked in
//! every state.
//!
//! Nothing here names the public API, does I/O or depends on another crate. Two layers:
//!
//! - [`Slot::step`] is one identity's record under the six calls of a store: what each call answers
//!   and leaves behind. A property test of a real store plays the same calls on both and compares
//!   ([`Slot::allowed`]). [`Slot::force`] is what an operator may do to it.
//! - [`Protocol::step`] is the whole protocol over it: clients that acquire, wait, beat, complete,
//!   fail, are dropped and crash, a clock, lost answers and late messages. `tests/it` walks all of
//!   its states with stateright and judges them by [`WRONGS`] (never), [`SIGHTS`] (reachable, or
//!   the model shows nothing) and [`State::settled`] (in the end).
//!
//! What is right is decided by [`Truth`], a history kept beside the record and never read by a
//! transition. A [`Defect`] plants one bug; a checker that cannot find it would not find ours.
//!
//! Abstractions, which limit what a green run proves: a store call is one atomic step; a lost
//! message arrives at most once, late, and one is under way at a time; clients are not scheduled
//! fairly (that is how a pause is modelled), so no promise on timing beyond deadlines is checked
//! (RUN-1 is not); leases, ttls and waits have one length each; a joined transaction (CMP-7) and a
//! failover that loses writes are not in it.
//!
//! Record against an oracle:
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
