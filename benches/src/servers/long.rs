// SPDX-License-Identifier: MIT OR Apache-2.0
//! Suite `growth`: compares the cost of an operation with five million records to that with ten
//! thousand. Filling the tables takes minutes, so the suite runs only when it is named. With
//! options, it measures a PostgreSQL table of another size, or with partitions.

use std::ops::RangeInclusive;

use crate::heap::HeapCounter;
use crate::report::Report;
use crate::{mariadb, postgres, redis};

use super::runtime;

const RECORDS: u64 = 5_000_000;
/// The sizes that an option can name. The smallest is that of the table for comparison.
const SIZES: RangeInclusive<u64> = 10_000..=20_000_000;

/// The table that the options name.
#[derive(Debug, PartialEq, Eq)]
struct Size {
    records: u64,
    partitions: Option<usize>,
}

impl Size {
    fn parse(options: &[String]) -> Result<Self, String> {
        let mut size = Self { records: RECORDS, partitions: None };
        for pair in options.chunks(2) {
            let [option, value] = [0, 1].map(|at| pair.get(at).map_or("", String::as_str));
            match (option, value.parse::<u64>()) {
                ("--records", Ok(records)) if SIZES.contains(&records) => size.records = records,
                // `migrate` knows the bounds.
                ("--partitions", Ok(partitions)) => {
                    size.partitions = Some(usize::try_from(partitions).unwrap_or(usize::MAX));
                }
                _ => {
                    return Err(format!(
                        "growth {option} {value}: expected `--records` with a number from {} to \
                         {}, or `--partitions` with a number from 2 to 128",
                        SIZES.start(),
                        SIZES.end()
                    ));
                }
            }
        }
        Ok(size)
    }
}

/// Measures a PostgreSQL table of the size that the options name, and prints the figures. They are
/// not kept, because the page of the benchmarks compares tables of one size.
pub(crate) fn sized(options: &[String]) -> Result<(), String> {
    let Size { records, partitions } = Size::parse(options)?;
    let form = partitions.map_or("no partitions".into(), |count| format!("{count} partitions"));
    println!("growth: a PostgreSQL table with {records} records and {form}");
    let runtime = runtime()?;
    let mut report = Report::new("growth", format!("{records} records, {form}"));
    let place = runtime.block_on(postgres::Place::new(postgres::Form::Alone))?.divided(partitions);
    let many = format!("{records}");
    let measured = postgres::grown_by_pages(&mut report, &runtime, &place, records, &many);
    measured.and(runtime.block_on(place.clear()))?;
    print!("{}", report.to_text());
    println!("The figures are not kept: BENCHMARKS.md compares tables of {RECORDS} records.");
    Ok(())
}

pub(crate) fn run() -> Result<Report, String> {
    let runtime = runtime()?;
    let mut report = Report::new("growth", "Five million records");
    let place = runtime.block_on(postgres::Place::new(postgres::Form::Alone))?;
    let measured =
        postgres::grown_by_pages(&mut report, &runtime, &place, RECORDS, "5 M PostgreSQL");
    measured.and(runtime.block_on(place.clear()))?;
    let place = runtime.block_on(mariadb::Place::new())?;
    let measured = mariadb::grown(&mut report, &runtime, &place, RECORDS, "5 M MariaDB");
    measured.and(runtime.block_on(place.clear()))?;
    let place = runtime.block_on(redis::Place::new(redis::Nodes::One))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(options: &str) -> Result<Size, String> {
        Size::parse(&options.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_name_the_size_and_the_form_of_the_table() {
        let size = |records, partitions| Ok(Size { records, partitions });
        assert_eq!(parsed("--records 20000000 --partitions 16"), size(20_000_000, Some(16)));
        assert_eq!(parsed("--records 10000"), size(10_000, None));
        assert_eq!(parsed("--partitions 4"), size(RECORDS, Some(4)));
    }

    #[test]
    fn other_options_are_refused_by_name() {
        for bad in ["--records 9999", "--records 20000001", "--records x", "--rows 10000"] {
            let error = parsed(bad).expect_err(bad);
            assert!(error.contains(bad), "{error}");
        }
        assert!(parsed("--records").expect_err("no value").contains("--records"));
    }
}
