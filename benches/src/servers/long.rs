// SPDX-License-Identifier: MIT OR Apache-2.0
//! Suite `growth`: compares the cost of an operation with five million records to that with ten
//! thousand. Filling the tables takes minutes, so the suite runs only when it is named.

use crate::heap::HeapCounter;
use crate::report::Report;
use crate::{mariadb, postgres, redis};

use super::runtime;

const RECORDS: u64 = 5_000_000;

pub(crate) fn run() -> Result<Report, String> {
    let runtime = runtime()?;
    let mut report = Report::new("growth", "Five million records");
    let place = runtime.block_on(postgres::Place::new())?;
    let measured =
        postgres::grown_by_pages(&mut report, &runtime, &place, RECORDS, "5 M PostgreSQL");
    measured.and(runtime.block_on(place.clear()))?;
    let place = runtime.block_on(mariadb::Place::new())?;
    let measured = mariadb::grown(&mut report, &runtime, &place, RECORDS, "5 M MariaDB");
    measured.and(runtime.block_on(place.clear()))?;
    let place = runtime.block_on(redis::Place::new())?;
    let measured = redis::grown(&mut report, &runtime, &place, RECORDS, "5 M Redis");
    measured.and(runtime.block_on(place.clear()))?;
    report.note(
        "This suite uses the servers and floors of the suites `postgres`, `mariadb` and `redis`, \
         in turn with 10,000 and with five million records. *500 keys*: the same 500 keys are read \
         again and again, as retries would do. *Any key*: each read picks any record of the table \
         that was not read recently, so reads slow down once the table outgrows the caches of the \
         processor and of the server. The bare read slows down too: the row above each replay \
         shows by how much. *Huge pages*: PostgreSQL keeps its shared buffers of up to 4 GiB on \
         pages of 2 MiB, as its manual advises. The machine has to reserve such pages (`sysctl \
         vm.nr_hugepages=2300`); the suite then restarts the server for either case. Before the \
         measurement, Redis has rewritten its log and moved the records to its larger table.",
    );
    Ok(report)
}

pub(crate) fn child(_: &[String], _: HeapCounter) -> Result<(), String> {
    Err("the suite growth measures nothing in a child".into())
}
