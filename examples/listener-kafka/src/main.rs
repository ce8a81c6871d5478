// SPDX-License-Identifier: MIT OR Apache-2.0
//! Books a receipt for each paid order, once per order, however often Kafka delivers it.
//!
//! - `listener-kafka listen --brokers HOST:PORT`: a member of the consumer group. Several members
//!   share the partitions.
//! - `listener-kafka publish --brokers HOST:PORT`: publishes paid orders, each of them twice.
//! - `listener-kafka demo` (the default): publishes and listens on librdkafka's own mock cluster
//!   inside this process, with members that die.

mod app;
mod demo;
mod receipts;

use std::path::PathBuf;
use std::process::ExitCode;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "\
usage: listener-kafka [demo|listen|publish] [options]

  demo      (the default) publishes each order twice while members of the group die, and prints a summary. Uses
            librdkafka's mock cluster, unless --brokers names a real one
              --orders N        how many, each published twice; default 300
              --deaths N        how many members die; default 3
  listen    books receipts for paid orders, until Ctrl-C or SIGTERM
              --db FILE         receipts and records in a SQLite file; default receipts.db
  publish   publishes paid orders, each of them twice
              --orders N        default 10
  all       --brokers LIST      as HOST:PORT,HOST:PORT; else the variable KAFKA_BROKERS
            --topic NAME        default orders.paid; dead letters go to NAME.dead
";

/// The parsed command line.
enum Command {
    Demo { orders: usize, deaths: usize },
    Listen { db: PathBuf },
    Publish { orders: usize },
    Help,
}

struct Arguments {
    command: Command,
    brokers: Option<String>,
    topic: String,
}

fn parse(args: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut args = args.peekable();
    let verb = match args.peek().map(String::as_str) {
        Some("demo" | "listen" | "publish") => args.next().unwrap_or_default(),
        _ => "demo".to_owned(),
    };
    let mut brokers = std::env::var("KAFKA_BROKERS").ok().filter(|brokers| !brokers.is_empty());
    let (mut topic, mut orders, mut deaths, mut help) = ("orders.paid".to_owned(), None, 3, false);
    let mut db = PathBuf::from("receipts.db");
    while let Some(option) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{option} needs a value"));
        match (verb.as_str(), option.as_str()) {
            (_, "help" | "--help" | "-h") => help = true,
            (_, "--brokers") => brokers = Some(value()?),
            (_, "--topic") => topic = value()?,
            ("listen", "--db") => db = value()?.into(),
            ("demo" | "publish", "--orders") => orders = Some(number(&option, &value()?)?),
            ("demo", "--deaths") => deaths = number(&option, &value()?)?,
            _ => return Err(format!("`{verb}` has no option {option:?}")),
        }
    }
    let command = match verb.as_str() {
        _ if help => Command::Help,
        "listen" => Command::Listen { db },
        "publish" => Command::Publish { orders: orders.unwrap_or(10) },
        _ => Command::Demo { orders: orders.unwrap_or(300), deaths },
    };
    Ok(Arguments { command, brokers, topic })
}

fn number<T: std::str::FromStr>(option: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{value:?} is not a valid value for {option}"))
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprint!("listener-kafka: {problem}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let named =
        arguments.brokers.clone().ok_or_else(|| "set `--brokers HOST:PORT`, or try `demo`".into());
    let done: Result<bool, BoxError> = match arguments.command {
        Command::Demo { orders, deaths } => {
            demo::run(orders, deaths, arguments.brokers, &arguments.topic).await
        }
        Command::Listen { db } => match named {
            Ok(brokers) => app::listen(&brokers, &arguments.topic, &db).await.map(|()| true),
            Err(error) => Err(error),
        },
        Command::Publish { orders } => match named {
            Ok(brokers) => app::publish(&brokers, &arguments.topic, orders).await.map(|()| true),
            Err(error) => Err(error),
        },
        Command::Help => {
            print!("{USAGE}");
            Ok(true)
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("listener-kafka: {error}");
            ExitCode::FAILURE
        }
    }
}
