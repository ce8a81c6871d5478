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
    Ok(report)
}

pub(crate) fn child(_: &[String], _: HeapCounter) -> Result<(), String> {
    Err("growth: nothing is measured in a child".into())
}
