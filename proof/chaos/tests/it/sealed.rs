// SPDX-License-Identifier: MIT OR Apache-2.0
//! No key, no answer and no subject is in a dump or in the files of a store with sealed results; a
//! rotation during calls loses nothing; an erased subject's answers are tombstones (SEAL-1, SEAL-4,
//! SEAL-7). The same search finds every key and answer of a store that does not seal.

use std::process::Command;

fn nothing_is_shown(store: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chaos"));
    let output = command.args(["sealed", "--store", store]).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let expected = "100 sealed answers: 0 canaries in a dump, 0 in files; 10 keys rotated; \
                    20 tombstones; 0 lost\n\
                    100 unsealed answers and their keys: 200 canaries in a dump, ";
    let wrong = String::from_utf8_lossy(&output.stderr);
    // The rest of the line, the number found in files, varies. The program judges it.
    let said = said.get(..expected.len()).unwrap_or(&said);
    assert_eq!((output.status.code(), said), (Some(0), expected), "{wrong}");
}

macro_rules! stores {
    ($($test:ident: $store:literal;)*) => {$(
        #[test]
        fn $test() {
            nothing_is_shown($store);
        }
    )*};
}

stores! {
    seal_1_seal_7_sqlite_shows_nothing_and_loses_nothing: "sqlite";
    seal_1_seal_7_postgres_shows_nothing_and_loses_nothing: "postgres";
    seal_1_seal_7_mariadb_shows_nothing_and_loses_nothing: "mariadb";
    seal_1_seal_7_redis_shows_nothing_and_loses_nothing: "redis";
}
