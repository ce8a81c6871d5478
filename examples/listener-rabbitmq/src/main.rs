// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two listeners on one fanout exchange of RabbitMQ book each paid order once, however often it is
//! delivered.
//!
//! - `listener-rabbitmq` (or `listener-rabbitmq demo`): creates the queues, publishes a few orders
//!   twice and two messages that no consumer can handle, and shows what happens to each.
//! - `listener-rabbitmq listen`: the listeners alone, until SIGTERM or Ctrl-C.
//! - `listener-rabbitmq last-words`: kills a listener when an order is booked but not yet
//!   acknowledged, and shows what the next listener does.
//! - `listener-rabbitmq storm`: publishes thousands of orders, kills listeners and cuts their
//!   connections, and prints an account at the end.

mod broker;
mod demo;
mod last_words;
mod ledger;
mod shop;
mod storm;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use shop::Shop;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The variable with the broker's URL. The storm sets this variable for its listeners, so that
/// process lists do not show the password.
const BROKER: &str = "RABBITMQ_URL";

const USAGE: &str = "\
usage: listener-rabbitmq [demo|listen|last-words|storm] [options]

  demo    (the default) publishes a few orders twice, and shows what happens to them
  listen  books orders until it is stopped
            --db FILE         ledger and records in that SQLite file; default orders.db
            --prefix NAME     the prefix of the exchange and the queues; default shop
            --lease SECONDS   how long the orders of a killed listener stay taken; default 30
            --no-receipts     runs only the ledger, without receipts
            --die-after=N     kills itself after it has booked its Nth order, before it acknowledges the order
  last-words  kills a listener between a booking and its acknowledgement, and starts another one
  storm   publishes orders twice while listeners are killed and cut off, and prints a summary
            --orders N        default 10000
            --kills N         how often a listener is killed; default 20
            --cuts N          how often all connections are cut; default 20
            --listeners N     how many processes listen at once; default 3
            --keep            keeps the database and the journal, and prints their paths

RABBITMQ_URL names the broker. Without it, the broker is the one that `cargo xtask services up rabbitmq` started.
";

enum Command {
    Demo,
    Listen(Shop),
    LastWords,
    Storm(storm::Plan),
    Help,
}

fn parse(args: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut shop = Shop::default();
    let mut plan = storm::Plan::default();
    let mut args = args.peekable();
    let verb = match args.peek().map(String::as_str) {
        Some("demo" | "listen" | "last-words" | "storm") => args.next().unwrap_or_default(),
        Some("help" | "--help" | "-h") => return Ok(Command::Help),
        _ => "demo".to_owned(),
    };
    while let Some(option) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{option} needs a value"));
        match (verb.as_str(), option.as_str()) {
            ("listen", "--db") => shop.db = PathBuf::from(value()?),
            ("listen", "--prefix") => shop.prefix = value()?,
            ("listen", "--lease") => shop.lease = Duration::from_secs(number(&option, &value()?)?),
            ("listen", "--no-receipts") => shop.receipts = false,
            ("listen", option) if option.starts_with("--die-after=") => {
                shop.die_after = Some(number("--die-after", &option["--die-after=".len()..])?);
            }
            ("storm", "--orders") => plan.orders = number(&option, &value()?)?,
            ("storm", "--kills") => plan.kills = number(&option, &value()?)?,
            ("storm", "--cuts") => plan.cuts = number(&option, &value()?)?,
            ("storm", "--listeners") => plan.listeners = number(&option, &value()?)?,
            ("storm", "--keep") => plan.keep = true,
            (_, "--help" | "-h") => return Ok(Command::Help),
            _ => return Err(format!("`{verb}` has no option {option:?}")),
        }
    }
    if plan.orders == 0 || plan.listeners == 0 {
        return Err("--orders and --listeners take at least 1".to_owned());
    }
    Ok(match verb.as_str() {
        "listen" => Command::Listen(shop),
        "last-words" => Command::LastWords,
        "storm" => Command::Storm(plan),
        _ => Command::Demo,
    })
}

fn number<T: std::str::FromStr>(option: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{value:?} is not a valid value for {option}"))
}

#[tokio::main]
async fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| "warn,lapin=off".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let done = match parse(std::env::args().skip(1)) {
        Ok(Command::Demo) => demo::run().await,
        Ok(Command::Listen(shop)) => shop.listen().await,
        Ok(Command::LastWords) => last_words::run().await,
        Ok(Command::Storm(plan)) => match storm::run(plan).await {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
        Ok(Command::Help) => {
            print!("{USAGE}");
            Ok(())
        }
        Err(problem) => {
            eprint!("listener-rabbitmq: {problem}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("listener-rabbitmq: {error}");
            ExitCode::FAILURE
        }
    }
}
