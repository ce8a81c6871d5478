// SPDX-License-Identifier: MIT OR Apache-2.0
//! Books an invoice for each paid order, once per order, however often NATS JetStream delivers it.
//!
//! - `listener-nats` (or `listener-nats listen`): the consumer. Several consumers share the work.
//! - `listener-nats publish`: publishes paid orders, each of them twice.
//! - `listener-nats storm`: publishes thousands of orders twice while it kills consumers and cuts
//!   connections, and then accounts for every order.

mod app;
mod invoices;
mod storm;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use retryproof_testkit::broker::service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "\
usage: listener-nats [listen|publish|storm] [options]

  listen    books invoices for paid orders (the default), until Ctrl-C or SIGTERM
              --db FILE         invoices and records in a SQLite file; default invoices.db
              --lease SECONDS   how long a consumer that died keeps an order; default 30
  publish   publishes paid orders, each of them twice
              --orders N        default 10
  storm     kills consumers and cuts connections while orders arrive, and prints a summary
              --orders N        how many, each published twice; default 10000
              --workers N       consumers at once; default 3
              --kills N         how often a consumer is killed; default 20
              --cuts N          how often all connections are cut; default 20
              --keep            keeps the database and the consumers' log, and prints their paths
  all       --url URL           the server; else the variable NATS_URL, else what `cargo xtask services up nats`
                                started, else nats://127.0.0.1:4222
            --name NAME         of stream and subjects; default orders
";

/// The parsed command line.
enum Command {
    Listen { db: PathBuf, lease: Duration },
    Publish { orders: usize },
    Storm(storm::Plan),
    Help,
}

struct Arguments {
    command: Command,
    url: String,
    name: String,
}

fn parse(args: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut args = args.peekable();
    let verb = match args.peek().map(String::as_str) {
        Some("listen" | "publish" | "storm") => args.next().unwrap_or_default(),
        _ => "listen".to_owned(),
    };
    let (mut url, mut name, mut orders, mut help) = (None, "orders".to_owned(), None, false);
    let (mut db, mut lease) = (PathBuf::from("invoices.db"), 30);
    let mut plan = storm::Plan::default();
    while let Some(option) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{option} needs a value"));
        match (verb.as_str(), option.as_str()) {
            (_, "help" | "--help" | "-h") => help = true,
            (_, "--url") => url = Some(value()?),
            (_, "--name") => name = value()?,
            ("listen", "--db") => db = value()?.into(),
            ("listen", "--lease") => lease = number(&option, &value()?)?,
            ("publish" | "storm", "--orders") => orders = Some(number(&option, &value()?)?),
            ("storm", "--workers") => plan.workers = number(&option, &value()?)?,
            ("storm", "--kills") => plan.kills = number(&option, &value()?)?,
            ("storm", "--cuts") => plan.cuts = number(&option, &value()?)?,
            ("storm", "--keep") => plan.keep = true,
            _ => return Err(format!("`{verb}` has no option {option:?}")),
        }
    }
    plan.orders = orders.unwrap_or(plan.orders);
    if plan.orders == 0 || plan.workers == 0 {
        return Err("--orders and --workers take at least 1".to_owned());
    }
    let command = match verb.as_str() {
        _ if help => Command::Help,
        "publish" => Command::Publish { orders: orders.unwrap_or(10) },
        "storm" => Command::Storm(plan),
        _ => Command::Listen { db, lease: Duration::from_secs(lease) },
    };
    Ok(Arguments { command, url: url.unwrap_or_else(server), name })
}

fn number<T: std::str::FromStr>(option: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{value:?} is not a valid value for {option}"))
}

/// Returns the default address of the server.
fn server() -> String {
    let set = std::env::var("NATS_URL").ok().filter(|url| !url.is_empty());
    let started = || service(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."), "RETRYPROOF_TEST_NATS");
    set.or_else(started).unwrap_or_else(|| "nats://127.0.0.1:4222".to_owned())
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprint!("listener-nats: {problem}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let done = match arguments.command {
        Command::Listen { db, lease } => {
            app::listen(&arguments.url, &arguments.name, &db, lease).await
        }
        Command::Publish { orders } => app::publish(&arguments.url, &arguments.name, orders).await,
        Command::Storm(plan) => match storm::run(plan, &arguments.url).await {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
        Command::Help => {
            print!("{USAGE}");
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("listener-nats: {error}");
            ExitCode::FAILURE
        }
    }
}
