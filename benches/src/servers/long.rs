// SPDX-License-Identifier: MIT OR Apache-2.0
//! Suite `growth`: the cost of an operation with five million records beside that with ten thousand. To fill the tables takes minutes,
//! so it runs only when it is named.

use crate::heap::HeapCounter;
use crate::report::Report;
use crate::{mariadb, postgres, redis};

use super::runtime;

const RECORDS: u64 = 5_000_000;

pub(crate) fn run() -> Result<Report, String> {
    let runtime = runtime()?;
    let mut report = Report::new("growth", "Five million records");
    let place = runtime.block_on(postgres::Place::new())?;
    let measured = postgres::grown(&mut report, &runtime, &place, RECORDS, "5 M PostgreSQL");
    measured.and(runtime.block_on(place.clear()))?;
    let place = runtime.block_on(mariadb::Place::new())?;
    let measured = mariadb::grown(&mut report, &runtime, &place, RECORDS, "5 M MariaDB");
    measured.and(runtime.block_on(place.clear()))?;
    let place = runtime.block_on(redis::Place::new())?;
    let measured = redis::grown(&mut report, &runtime, &place, RECORDS, "5 M Redis");
    measured.and(runtime.block_on(place.clear()))?;
    report.note(
        "The servers and floors of the suites `postgres`, `mariadb` and `redis`, of 10,000 and of five million records in turn. *500 keys*: the same few hundred keys are asked for again and again, as \
         retries do; *any key*: each read goes to a record of the whole table that nobody has read lately, so it grows with what the processor's and the server's caches hold, the bare read's as the \
         replay's: the row above each replay shows by how much.",
    );
    Ok(report)
}

pub(crate) fn child(_: &[String], _: HeapCounter) -> Result<(), String> {
    Err("growth: nothing is measured in a child".into())
}
