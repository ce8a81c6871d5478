// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the checks of the other modules on servers, which several machines can share.

use retryproof::OwnerId;

use crate::advice::an_ended_lease_shows_its_end;
use crate::bad_input::a_key_of_another_type_is_refused;
use crate::hashed::hashed_records_are_found_and_changed;
use crate::kills::one_run_at_a_time;
use crate::operate::records_are_listed_and_changed;
use crate::scan::positions_lead_through_all_records;
use crate::support::{Place, code, err, out};
use crate::top::scopes_are_counted;
use crate::transfer::move_through;

/// Returns the URL of a server that `cargo xtask services up` has started, from the environment
/// variable or else from the file that the command wrote.
pub(crate) fn service(variable: &str, name: &str) -> String {
    if let Ok(url) = std::env::var(variable) {
        return url;
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/services/env");
    let written = std::fs::read_to_string(file).unwrap_or_default();
    written
        .lines()
        .find_map(|line| line.strip_prefix(variable)?.strip_prefix('='))
        .map(str::to_owned)
        .unwrap_or_else(|| panic!("no {name} for this test: run `cargo xtask services up {name}`"))
}

/// Returns a name that only this test uses.
pub(crate) fn own_name() -> String {
    let id = OwnerId::new();
    let digits: String = id.as_bytes().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("cli_{digits}")
}

fn postgres_url() -> String {
    let url = service("RETRYPROOF_TEST_POSTGRES", "postgres");
    format!("{url}?table={}", own_name())
}

fn mariadb_url() -> String {
    let url = service("RETRYPROOF_TEST_MARIADB", "mariadb");
    format!("{url}?table={}", own_name())
}

fn redis_url() -> String {
    let url = service("RETRYPROOF_TEST_REDIS", "redis");
    format!("{url}?prefix={}", own_name())
}

pub(crate) fn postgres() -> Place {
    Place::on(postgres_url())
}

pub(crate) fn mariadb() -> Place {
    Place::on(mariadb_url())
}

pub(crate) fn redis() -> Place {
    Place::on(redis_url())
}

/// Creates a store with hashed identities on each server.
pub(crate) fn hashed_on_servers() -> [Place; 3] {
    [postgres_url(), mariadb_url(), redis_url()].map(Place::hashed_on)
}

#[test]
fn id_5_hashed_records_are_found_and_changed_on_every_server() {
    for place in hashed_on_servers() {
        hashed_records_are_found_and_changed(&place);
    }
}

#[test]
fn rec_2_an_ended_lease_shows_its_end_on_every_server() {
    for place in [postgres(), mariadb(), redis()] {
        an_ended_lease_shows_its_end(&place);
    }
}

#[test]
fn acq_1_one_run_at_a_time_on_postgres() {
    one_run_at_a_time(&postgres());
}

#[test]
fn acq_1_one_run_at_a_time_on_redis() {
    one_run_at_a_time(&redis());
}

#[test]
fn ops_3_records_are_listed_and_changed_on_every_server() {
    for place in [postgres(), mariadb(), redis()] {
        records_are_listed_and_changed(&place);
    }
}

#[test]
fn ops_2_a_list_continues_at_a_printed_position_on_every_server() {
    for (place, is_exact) in [(postgres(), true), (mariadb(), true), (redis(), false)] {
        positions_lead_through_all_records(&place, is_exact);
    }
}

#[test]
fn ops_7_records_move_from_store_to_store() {
    move_through(&[Place::sqlite(), postgres(), mariadb(), redis(), Place::sqlite()]);
}

#[test]
fn ops_8_top_counts_the_records_of_every_server() {
    for place in [postgres(), mariadb(), redis()] {
        scopes_are_counted(&place);
    }
}

#[test]
fn cmp_8_a_key_of_another_type_is_refused_on_redis() {
    a_key_of_another_type_is_refused(&redis());
}

/// MariaDB accepts no value that is larger than one packet, which is 16 MiB by default.
#[test]
fn cmp_9_output_larger_than_a_server_accepts_keeps_its_exit_code() {
    let place = mariadb();
    let script = "echo run >> runs; head -c 17000000 /dev/zero; exit 3";
    let options = ["--max-output", "99999999"];
    let first = place.run(&options, script).output().unwrap();
    assert_eq!((code(&first), first.stdout.len()), (3, 17_000_000));
    let said = err(&first);
    assert!(said.contains("is larger than the store accepts (16"), "{said}");
    assert!(said.contains("a duplicate gets only the exit code"), "{said}");
    let again = place.run(&options, script).output().unwrap();
    assert_eq!((code(&again), out(&again)), (3, String::new()), "{}", err(&again));
    assert_eq!(place.read("runs"), "run\n");
}

#[test]
fn every_verb_works_on_every_server() {
    for (place, name) in [(postgres(), "postgres"), (mariadb(), "mysql"), (redis(), "redis")] {
        let ran = place.run(&[], "echo done; exit 2").output().unwrap();
        assert_eq!(code(&ran), 2, "{name}: {}", err(&ran));
        let get = place.retryproof(["get", "work", "k", "--body", "--output", "jsonl"]).output();
        let get = get.unwrap();
        assert_eq!(code(&get), 0, "{name}: {}", err(&get));
        let record: serde_json::Value = serde_json::from_str(&out(&get)).unwrap();
        assert_eq!(record["state"], "complete", "{name}");
        assert_eq!(record["body"]["stdout"]["text"], "done\n", "{name}");
        let stats = place.retryproof(["stats", "--output", "json"]).output().unwrap();
        let stats: serde_json::Value = serde_json::from_str(&out(&stats)).unwrap();
        assert_eq!(stats["store"], name);
        assert_eq!((&stats["records"], &stats["in_progress"]), (&1.into(), &0.into()), "{name}");
        let purge = place.retryproof(["purge", "--output", "json"]).output().unwrap();
        assert_eq!(code(&purge), 0, "{name}: {}", err(&purge));
        let schema = place.retryproof(["migrate", "--print"]).output().unwrap();
        assert_eq!(code(&schema), 0, "{name}: {}", err(&schema));
        let table = place.url.split("table=").nth(1);
        assert!(table.is_none_or(|table| out(&schema).contains(table)), "{name}: {}", out(&schema));
    }
}

#[test]
fn sto_3_migrate_divides_a_new_table_into_partitions() {
    let url = postgres_url();
    let with = |arguments: &[&str]| {
        crate::support::bare().args(arguments).args(["--store", &url]).output().unwrap()
    };
    let printed = with(&["migrate", "--print", "--partitions", "3"]);
    assert_eq!(code(&printed), 0, "{}", err(&printed));
    assert_eq!(out(&printed).matches("PARTITION OF").count(), 3, "{}", out(&printed));
    for _ in 0..2 {
        let migrated = with(&["migrate", "--partitions", "3"]);
        assert_eq!(code(&migrated), 0, "{}", err(&migrated));
    }
    let other = with(&["migrate", "--partitions", "4"]);
    assert_eq!(code(&other), 2, "{}", err(&other));
    assert!(err(&other).contains("another number of hash partitions"), "{}", err(&other));
    let again = with(&["migrate"]);
    assert_eq!(code(&again), 0, "{}", err(&again));
    let stats = with(&["stats", "--output", "json"]);
    let stats: serde_json::Value = serde_json::from_str(&out(&stats)).unwrap();
    assert!(stats["store_bytes"].as_u64() > Some(0), "{stats}");
    let doctor = with(&["doctor"]);
    assert_eq!(code(&doctor), 0, "{}", out(&doctor));
}

#[test]
fn sto_3_cfg_1_partitions_are_refused_by_name_where_they_have_no_place() {
    let postgres = "postgres://app:canary@127.0.0.1:1/shop";
    for number in ["0", "1", "129", "-1", "x", ""] {
        let arguments = ["migrate", "--store", postgres, "--partitions", number];
        let refused = crate::support::bare().args(arguments).output().unwrap();
        assert_eq!(code(&refused), 2, "{number}: {}", err(&refused));
        assert!(err(&refused).contains("--partitions"), "{number}: {}", err(&refused));
    }
    let stores =
        ["sqlite:a.db", "mysql://app:canary@127.0.0.1:1/shop", "redis://:canary@h", "memory:"];
    for store in stores {
        for print in [&["--print"][..], &[]] {
            let arguments = ["migrate", "--store", store, "--partitions", "4"];
            let refused = crate::support::bare().args(arguments).args(print).output().unwrap();
            assert_eq!(code(&refused), 2, "{store}: {}", err(&refused));
            let said = err(&refused);
            assert!(said.contains("`--partitions`") && said.contains("PostgreSQL"), "{said}");
            assert!(!said.contains("canary"), "{said}");
        }
    }
    let twice =
        ["migrate", "--store", "postgres://127.0.0.1:1/d?partitions=4", "--partitions", "4"];
    let refused = crate::support::bare().args(twice).output().unwrap();
    assert_eq!(code(&refused), 2, "{}", err(&refused));
    assert!(err(&refused).contains("idempotency.postgres.partitions"), "{}", err(&refused));
}

#[test]
fn sto_5_a_server_that_is_away_has_its_exit_code_and_shows_no_password() {
    // Port 1 refuses connections.
    for url in ["postgres://app:canary@127.0.0.1:1/shop", "redis://:canary@127.0.0.1:1"] {
        let stats = crate::support::bare().args(["stats", "--store", url]).output().unwrap();
        assert_eq!(code(&stats), 3, "{}", err(&stats));
        assert!(!err(&stats).contains("canary"), "{}", err(&stats));
        let run = ["run", "--store", url, "work", "k", "--", "true"];
        let run = crate::support::bare().args(run).output().unwrap();
        assert_eq!(code(&run), 125, "{}", err(&run));
    }
}
