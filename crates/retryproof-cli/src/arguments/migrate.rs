// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of `migrate`.

use clap::Args;
use clap::builder::TypedValueParser;
use retryproof::config::PARTITION_BOUNDS;

/// The arguments of `migrate`.
#[derive(Debug, Args)]
pub(crate) struct MigrateArguments {
    /// Prints the tables as SQL for another migration tool, and changes nothing.
    #[arg(long)]
    pub(crate) print: bool,
    /// Divides a new record table of a PostgreSQL store into so many hash partitions, from 2 to
    /// 128. A table that exists without partitions, or with another number of them, is refused and
    /// stays as it is. Without this option, the setting `postgres.partitions` decides.
    #[arg(long, value_name = "NUMBER", value_parser = partitions(), allow_negative_numbers = true)]
    pub(crate) partitions: Option<usize>,
}

fn partitions() -> impl TypedValueParser<Value = usize> {
    let bounds = |bound: &usize| i64::try_from(*bound).unwrap_or(i64::MAX);
    clap::value_parser!(u16)
        .range(bounds(PARTITION_BOUNDS.start())..=bounds(PARTITION_BOUNDS.end()))
        .map(usize::from)
}
