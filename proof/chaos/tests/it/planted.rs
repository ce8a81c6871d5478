// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stores with a defect, on every server: the run that finds nothing without the defect finds it.

use crate::{Ran, chaos};

/// Makes a run on a store with a defect, with leases so short that another owner often takes over
/// from a holder. The run has to break one of the `rules`.
#[track_caller]
fn caught(store: &str, (defect, faults): (&str, &str), rules: &[&str]) {
    let options = [
        "--store",
        store,
        "--secs",
        "8",
        "--lease-ms",
        "40..120",
        "--faults",
        faults,
        "--plant",
        defect,
    ];
    let ran = chaos(&format!("{store}-{defect}"), &options);
    assert_eq!(ran.code, Some(1), "{}", ran.said);
    let broken = |ran: &Ran| rules.iter().map(|rule| ran.broken(rule)).sum::<u64>();
    assert!(broken(&ran) > 0, "{}", ran.said);
}

macro_rules! stores {
    ($($store:ident)*) => {$(
        mod $store {
            use super::caught;

            #[test]
            fn cmp_2_a_store_that_does_not_check_owners_is_caught() {
                caught(stringify!($store), ("no-owner-check", "stop"), &["S3"]);
            }

            #[test]
            fn acq_2_a_takeover_before_expiry_is_caught() {
                caught(stringify!($store), ("early-takeover", "kill,stop"), &["S2"]);
            }

            #[test]
            fn acq_2_a_takeover_in_two_steps_is_caught() {
                caught(stringify!($store), ("get-then-set", "kill,stop"), &["S2", "S3", "S4"]);
            }
        }
    )*};
}

stores!(sqlite postgres mariadb redis);
