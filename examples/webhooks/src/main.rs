// SPDX-License-Identifier: MIT OR Apache-2.0
//! `webhooks serve` receives events; `webhooks send` signs and delivers one. Both take the shared
//! secret from `WEBHOOK_SECRET`.
//!
//! ```sh
//! export WEBHOOK_SECRET=whsec_an_example_for_trying_out
//! cargo run -p webhooks -- serve &
//! cargo run -p webhooks -- send --id evt_1 --times 3     # one is handled, two are duplicates
//! curl http://127.0.0.1:4810/paid
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::net::TcpListener;
use webhooks::inbox;
use webhooks::sender::Sender;
use webhooks::signature::Secret;
use webhooks::verify::Trusted;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "\
usage: webhooks serve [--listen ADDR] [--db FILE]
       webhooks send [--url URL] [--id ID] [--order NUMBER] [--cents N] [--times N]
WEBHOOK_SECRET must contain the secret that both share, of at least 16 bytes
";

struct Options {
    listen: SocketAddr,
    db: PathBuf,
    url: String,
    id: String,
    order: String,
    cents: i64,
    times: u32,
}

enum Verb {
    Serve,
    Send,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<(Verb, Options), String> {
    let verb = match args.next().as_deref() {
        Some("serve") => Verb::Serve,
        Some("send") => Verb::Send,
        other => return Err(format!("unknown command {:?}", other.unwrap_or_default())),
    };
    let mut options = Options {
        listen: SocketAddr::from(([127, 0, 0, 1], 4810)),
        db: "webhooks.db".into(),
        url: "http://127.0.0.1:4810/webhooks/payments".to_owned(),
        id: "evt_1".to_owned(),
        order: "order-17".to_owned(),
        cents: 4_200,
        times: 1,
    };
    while let Some(option) = args.next() {
        let value = args.next().ok_or_else(|| format!("{option} needs a value"))?;
        let refused = || format!("{value:?} is not a valid value for {option}");
        match (&verb, option.as_str()) {
            (Verb::Serve, "--listen") => options.listen = value.parse().map_err(|_| refused())?,
            (Verb::Serve, "--db") => options.db = value.into(),
            (Verb::Send, "--url") => options.url = value,
            (Verb::Send, "--id") => options.id = value,
            (Verb::Send, "--order") => options.order = value,
            (Verb::Send, "--cents") => options.cents = value.parse().map_err(|_| refused())?,
            (Verb::Send, "--times") => options.times = value.parse().map_err(|_| refused())?,
            _ => return Err(format!("unknown argument {option:?}")),
        }
    }
    Ok((verb, options))
}

async fn serve(options: Options, secret: Secret) -> Result<(), BoxError> {
    let (router, filter) = inbox::receiver(&options.db, Trusted::with([secret])).await?;
    let listener = TcpListener::bind(options.listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, router).with_graceful_shutdown(stop).await?;
    filter.shutdown(Duration::from_secs(10)).await;
    Ok(())
}

async fn send(options: Options, secret: Secret) -> Result<(), BoxError> {
    let sender = Sender::new(reqwest::Client::new(), options.url, secret);
    let event = serde_json::json!({
        "id": options.id, "type": "payment.succeeded", "order": options.order, "cents": options.cents
    });
    for _ in 0..options.times {
        let delivered = sender.deliver(&event.to_string()).await;
        let answers: Vec<String> = delivered
            .answers
            .iter()
            .map(|answer| answer.map_or("no answer".to_owned(), |status| status.to_string()))
            .collect();
        let how = if delivered.replayed { "it was handled before" } else { "it was handled now" };
        println!(
            "{}: {}",
            answers.join(", "),
            if delivered.taken() { how } else { "it was not accepted" }
        );
        if !delivered.taken() {
            return Err("the sender gave up".into());
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let secret =
        std::env::var("WEBHOOK_SECRET").ok().and_then(|secret| Secret::new(secret.as_bytes()));
    let parsed = parse(std::env::args().skip(1)).and_then(|(verb, options)| {
        Ok((
            verb,
            options,
            secret.ok_or("WEBHOOK_SECRET is not set, or it is shorter than 16 bytes")?,
        ))
    });
    let done = match parsed {
        Ok((Verb::Serve, options, secret)) => serve(options, secret).await,
        Ok((Verb::Send, options, secret)) => send(options, secret).await,
        Err(problem) => {
            eprint!("webhooks: {problem}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("webhooks: {error}");
            ExitCode::FAILURE
        }
    }
}
