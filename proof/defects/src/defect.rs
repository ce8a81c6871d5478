// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Defect`]: the defects that can be planted.

macro_rules! defects {
    ($($defect:ident $name:literal $what:literal)*) => {
        /// A defect that breaks a promise.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Defect {
            $(#[doc = $what] $defect,)*
        }

        impl Defect {
            /// All defects.
            pub const ALL: &'static [Self] = &[$(Self::$defect),*];

            /// Returns the defect's name on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$defect => $name,)*
                }
            }

            /// Returns what is wrong.
            #[must_use]
            pub const fn what(self) -> &'static str {
                match self {
                    $(Self::$defect => $what,)*
                }
            }
        }
    };
}

defects! {
    NoWakeUp "no-wake-up" "Nothing wakes a waiter; it reads its record every 50 ms."
    NoPoll "no-poll" "Only changes in its own process wake a waiter."
    Deaf "deaf" "A waiter sleeps until the lease or its wait is over."
    NoHeartbeat "no-heartbeat" "No heartbeat is sent."
    LateHeartbeat "late-heartbeat" "A heartbeat is sent a tenth of a lease after the lease ended."
    TtlFromAcquire "ttl-from-acquire" "The ttl runs from the acquire."
    FingerprintDropped "fingerprint-dropped" "A waiter gets the result without its fingerprint."
    AlteredReplay "altered-replay" "A replay has one byte more than the stored value."
    TimeFenced "time-fenced" "A late completion is refused to the owner that is still recorded."
    EarlyTakeover "early-takeover" "A lease ends after half of its length."
    GetThenSet "get-then-set" "A free key is read and then taken, even if another owner took it in between."
    NoOwnerCheck "no-owner-check" "A holder's call is accepted from any owner."
    RepeatedToken "repeated-token" "All grants have the same token."
    EarlyPurge "early-purge" "A purge takes an unfinished record as soon as its lease is over."
    LostReplyRefused "lost-reply-refused" "A completion whose answer was lost counts as refused."
}

impl Defect {
    /// Returns the defect with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|defect| defect.name() == name)
    }

    /// Returns whether the defect is in the engine, whose calls are then changed before they are
    /// sent. The other defects are in the store.
    #[must_use]
    pub const fn is_of_engine(self) -> bool {
        matches!(self, Self::NoHeartbeat | Self::LateHeartbeat | Self::LostReplyRefused)
    }
}
