// SPDX-License-Identifier: MIT OR Apache-2.0
//! An erased answer is in no logical dump, and 10,000 retries run nothing (OPS-4).

use std::process::Command;

fn nothing_is_left(store: &str, before: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chaos"));
    let output = command.args(["erased", "--store", store]).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let expected = format!("erased 100 answers: {before}; 10000 retries ran 0 actions\n");
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &said[..]), (Some(0), &expected[..]), "{wrong}");
}

#[test]
fn ops_4_nothing_runs_again_after_an_erase_in_memory() {
    nothing_is_left("memory", "the store has no dump");
}

macro_rules! stores {
    ($($test:ident: $store:literal;)*) => {$(
        #[test]
        fn $test() {
            nothing_is_left($store, "the dump had 100 answers before, 0 after");
        }
    )*};
}

stores! {
    ops_4_a_dump_of_sqlite_has_no_erased_answer: "sqlite";
    ops_4_a_dump_of_postgres_has_no_erased_answer: "postgres";
    ops_4_a_dump_of_mariadb_has_no_erased_answer: "mariadb";
    ops_4_a_dump_of_redis_has_no_erased_answer: "redis";
}
