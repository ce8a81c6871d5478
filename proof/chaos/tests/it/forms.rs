// SPDX-License-Identifier: MIT OR Apache-2.0
//! An older and a newer program use one store while workers are killed, in both orders (REC-1): no
//! rule is violated, no start is refused, and a program that the tables exclude is told which side
//! to upgrade.
//!
//! With `RETRYPROOF_FORMS_SECS=60`, each run lasts that long.

use crate::chaos;

fn holds(store: &str, order: &str) {
    let secs = std::env::var("RETRYPROOF_FORMS_SECS").unwrap_or_else(|_| "8".into());
    let options = ["--store", store, "--secs", &secs, "--faults", "kill", "--forms", order];
    let ran = chaos(&format!("forms-{store}-{order}"), &options);
    ran.holds();
    let refused = ran.said.contains("refused: ") && ran.said.contains("upgrade this program");
    assert_eq!(refused, store != "redis", "{}", ran.said);
}

macro_rules! stores {
    ($($store:ident)*) => {$(
        mod $store {
            #[test]
            fn rec_1_newer_programs_join_older_ones() {
                super::holds(stringify!($store), "up");
            }

            #[test]
            fn rec_1_older_programs_join_newer_ones() {
                super::holds(stringify!($store), "down");
            }
        }
    )*};
}

stores!(sqlite postgres mariadb redis);
