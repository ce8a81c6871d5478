// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must never happen, and what must be reachable, each with the ids of its rules and
//! invariants.

use std::ops::{BitOr, BitOrAssign};

macro_rules! named {
    (
        $(#[$meta:meta])* $kind:ident, $(#[$set_meta:meta])* $set:ident, $(#[$all_meta:meta])* $all:ident [$count:literal]:
        $($(#[$item_meta:meta])* $item:ident = $name:literal,)*
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $kind {
            $(#[doc = $name] $item,)*
        }

        $(#[$all_meta])*
        pub const $all: [$kind; $count] = [$($kind::$item,)*];

        impl $kind {
            /// Returns the property in words, with the ids of its rules.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($kind::$item => $name,)* }
            }

            /// Returns this property if `fine` is false, otherwise the empty set.
            #[must_use]
            pub fn unless(self, fine: bool) -> $set {
                if fine { $set::default() } else { self.into() }
            }
        }

        $(#[$set_meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $set(pub u32);

        impl $set {
            /// Returns whether the set is empty.
            #[must_use]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// Returns whether the set contains `one`.
            #[must_use]
            pub const fn has(self, one: $kind) -> bool {
                self.0 & (1 << one as u32) != 0
            }

            /// Returns the members of the set, in the order of the list.
            pub fn iter(self) -> impl Iterator<Item = $kind> {
                $all.into_iter().filter(move |&one| self.has(one))
            }
        }

        impl From<$kind> for $set {
            fn from(one: $kind) -> Self {
                Self(1 << one as u32)
            }
        }

        impl BitOr for $set {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl BitOrAssign for $set {
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }
    };
}

named! {
    /// Something that must never happen.
    Wrong,
    /// A set of [`WRONGS`].
    Wrongs,
    /// All [`Wrong`]s. Each is an `always` property: it is violated in no state.
    WRONGS[22]:
    TookOverEarly = "S1 S2 ACQ-2 ACQ-7: only one owner takes over a lease, when it has ended by \
        the store's clock",
    StaleAccepted = "S3 CMP-2: a completion or release is refused if its owner is no longer \
        recorded",
    Revived = "S17 RUN-3: an extension changes only the owner's own lease",
    TwoValues = "S4 CMP-3: the store accepts only one value in an epoch",
    ResultChanged = "S5 S6 CMP-1 CMP-6: a result stays unchanged during its ttl",
    ReplayDiffers = "S7 CMP-6: a replay returns the accepted value, within its ttl",
    RanAfterCompletion = "S8 CMP-6: nothing is granted within the ttl of a result",
    RecordUntrue = "S13 CMP-5: the record shows what the accepted calls did, and a refused call \
         changed nothing",
    FailureCompleted = "S16 RUN-4 RUN-5: an action that failed or was dropped never completes \
        its record",
    ReleasedAfterReturn = "S16 CMP-4: an action that returned is never released",
    TokenOrder = "ACQ-9 ACQ-10: a new token is larger than all earlier ones, and an owner keeps \
        its token",
    AttemptUntold = "ACQ-12: a grant says whether it took over",
    OwnRefused = "CMP-2 CMP-3 ACQ-9: the recorded owner is never refused, even if its call is \
        late or repeated",
    RecordedUntrue = "S10 S18 CMP-3 CMP-4 HTTP-6: a call reports that its result is recorded \
        only if this is true",
    RanUngranted = "S10 S11 ACQ-1 FP-1: no action runs without a grant, in particular not after \
        a mismatch",
    PrintUnjudged = "S11 FP-1 FP-2: a call with another fingerprint does not get the result",
    Bled = "S12 ID-1 ID-2: a call gets only results of its own identity",
    InFlightUntrue = "ACQ-1 ACQ-2: a call is answered busy or in flight only while a lease runs",
    DeadlinePassed = "L1 ACQ-6: a waiter does not look again after its deadline",
    SleeperForgotten = "L2 L3 ACQ-3 ACQ-4 ACQ-5: a caller that sleeps sees a running lease, or \
         another caller is awake and will look",
    BeatAfterEnd = "L6 RUN-3 RUN-5 RUN-6: no heartbeat takes effect after the action ends or is \
        dropped, or after max-hold",
    PurgedLive = "STO-4: purge removes only expired records, and unfinished ones only after \
        lease and ttl",
}

named! {
    /// Something that must be reachable; otherwise a green run proves nothing.
    Sight,
    /// A set of [`SIGHTS`].
    Sights,
    /// All [`Sight`]s. Each is a `sometimes` property: some step shows it.
    SIGHTS[25]:
    Takeover = "ACQ-2 ACQ-12: an expired lease is taken over",
    TakeoverInWait = "ACQ-2: a waiter takes over during its wait",
    ReleasedToWaiter = "ACQ-3: a waiter is granted a released lease",
    Regrant = "ACQ-9: a retry of an acquire in doubt finds that the lease was granted",
    Replay = "ACQ-1: a duplicate gets the result at once",
    ReplayAfterWait = "ACQ-1: a waiter gets the result",
    InFlight = "ACQ-1: a duplicate is answered in flight",
    Mismatch = "FP-1: a duplicate with another fingerprint is refused",
    MismatchAfterWait = "FP-1 FP-2: a waiter with another fingerprint is refused",
    NotReplayable = "CMP-9: a duplicate finds a tombstone",
    LostLease = "RUN-2: a heartbeat finds that the lease is lost",
    LateBeat = "RUN-1: a heartbeat after the lease's end finds the lease still recorded",
    LateCompletion = "CMP-2: a completion after the end of the lease is accepted",
    Refused = "CMP-2: a completion is refused",
    RefusedReplayed = "CMP-2: a refused completion is answered with the taker's result",
    RefusedInFlight = "CMP-2: a refused completion is answered in flight",
    RefusedAlone = "CMP-2 CMP-4: a refused completion finds no record",
    Confirmed = "CMP-3: a retry of a completion in doubt finds that the result was recorded",
    Unrecorded = "CMP-4: the policy decides what the caller of a completion in doubt gets",
    RecordedLater = "CMP-3: a completion is recorded in the background",
    StaleArrived = "RUN-3 CMP-2: a late message is refused",
    Purged = "STO-4: a record is purged",
    AgainAfterTtl = "CMP-6: an action runs again after the ttl of its result",
    Returned = "ACQ-9 ACQ-11: a late acquire gives the lease to an owner that had lost it, while \
         its action runs",
    WakePassedOn = "ACQ-5: a dropped waiter passes its wake-up on",
}
