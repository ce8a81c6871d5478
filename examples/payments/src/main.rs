// SPDX-License-Identifier: MIT OR Apache-2.0
//! A payment service whose `POST /payments` charges once per `Idempotency-Key`, however often it is
//! retried.
//!
//! - `payments` (or `payments serve`): the service on SQLite, or on PostgreSQL, with a checkout
//!   page at `/`.
//! - `payments demo`: starts the service, pays once, retries, and shows both answers.
//! - `payments storm`: sends retries, cuts connections and kills the service with SIGKILL, and
//!   prints an account at the end.

mod app;
mod checkout;
mod client;
mod demo;
mod ledger;
mod logs;
mod operate;
mod server;
mod storm;

use std::net::SocketAddr;
use std::process::ExitCode;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The variable with the URL of the database for `serve`. The storm sets this variable and
/// [`RECORDS`] for its servers, so that process lists do not show a password.
const STORE: &str = "PAYMENTS_STORE";

/// The variable with the URL of another store for the records.
const RECORDS: &str = "PAYMENTS_RECORDS";

const USAGE: &str = "\
usage: payments [serve|demo|storm] [options]

  serve   runs the service (the default)
            --listen ADDR     default 127.0.0.1:4807; port 0 picks a free one
            --db FILE         ledger and records in a SQLite file; default payments.db
            --store URL       ledger and records in the database of that URL: sqlite:FILE, or
                              postgres://USER:PASSWORD@HOST/DATABASE; also the variable PAYMENTS_STORE
            --records URL     the records in another store, for example redis://HOST; charge and
                              record are then two commits; also the variable PAYMENTS_RECORDS
            --apart           charge and record in two commits instead of one
            --operate ADDR    metrics, spans and the page for operators on a second port; port 0 picks
                              a free one
            --no-page         turns off the checkout page at / and the headers with which it loses answers
  demo    shows one payment and its retry as a client sees them
  storm   sends thousands of payments while connections are cut and the server is killed; prints a summary
            --keys N          how many payments; default 3000
            --clients N       how many clients at once; default 48
            --kills N         how often the server is killed; default 8
            --apart           charge and record in two commits instead of one
            --store URL       the database; default a new SQLite file
            --records URL     the records in another store; charge and record are then two commits
            --operate ADDR    the servers' metrics, spans and page for operators, on this port
            --keep            leaves the database and the server's log behind, and says where
";

/// The parsed command line.
enum Command {
    Serve(app::Service),
    Demo,
    Storm(storm::Plan),
    Help,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut listen = SocketAddr::from(([127, 0, 0, 1], 4807));
    let mut store = std::env::var(STORE).unwrap_or_else(|_| "sqlite:payments.db".to_owned());
    let mut records = std::env::var(RECORDS).ok();
    let (mut apart, mut page, mut operate) = (false, true, None);
    let mut plan = storm::Plan::default();
    let mut args = args.by_ref().peekable();
    let verb = match args.peek().map(String::as_str) {
        Some("serve" | "demo" | "storm") => args.next().unwrap_or_default(),
        Some("help" | "--help" | "-h") => return Ok(Command::Help),
        _ => "serve".to_owned(),
    };
    while let Some(option) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{option} needs a value"));
        match (verb.as_str(), option.as_str()) {
            ("serve", "--listen") => listen = number(&option, &value()?)?,
            ("serve", "--db") => store = format!("sqlite:{}", value()?),
            ("serve", "--store") => store = known(value()?)?,
            ("storm", "--store") => plan.store = Some(known(value()?)?),
            ("serve", "--records") => records = Some(value()?),
            ("storm", "--records") => plan.records = Some(value()?),
            ("serve", "--apart") => apart = true,
            ("serve", "--operate") => operate = Some(number(&option, &value()?)?),
            ("storm", "--operate") => plan.operate = Some(number(&option, &value()?)?),
            ("serve", "--no-page") => page = false,
            ("storm", "--apart") => plan.apart = true,
            ("storm", "--keys") => plan.keys = number(&option, &value()?)?,
            ("storm", "--clients") => plan.clients = number(&option, &value()?)?,
            ("storm", "--kills") => plan.kills = number(&option, &value()?)?,
            ("storm", "--keep") => plan.keep = true,
            (_, "--help" | "-h") => return Ok(Command::Help),
            _ => return Err(format!("`{verb}` has no option {option:?}")),
        }
    }
    if plan.keys == 0 || plan.clients == 0 {
        return Err("--keys and --clients take at least 1".to_owned());
    }
    apart |= records.is_some();
    plan.apart |= plan.records.is_some();
    Ok(match verb.as_str() {
        "demo" => Command::Demo,
        "storm" => Command::Storm(plan),
        _ => Command::Serve(app::Service { listen, store, records, apart, page, operate }),
    })
}

/// Checks that the ledger's database can join transactions. The error does not show the URL, which
/// may contain a password.
fn known(url: String) -> Result<String, String> {
    match url.split_once(':') {
        Some(("sqlite" | "postgres" | "postgresql", _)) => Ok(url),
        _ => Err(
            "--store takes sqlite:FILE or postgres://…, a store whose transactions can be joined"
                .to_owned(),
        ),
    }
}

fn number<T: std::str::FromStr>(option: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{value:?} is not a valid value for {option}"))
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match parse(std::env::args().skip(1)) {
        Ok(Command::Serve(service)) => app::serve(service).await,
        Ok(Command::Demo) => demo::run().await,
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
            eprint!("payments: {problem}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("payments: {error}");
            ExitCode::FAILURE
        }
    }
}
