// SPDX-License-Identifier: MIT OR Apache-2.0
//! `grpc-payments demo`, or `serve [ADDRESS [STORE]]` and, in another terminal,
//! `charge KEY ACCOUNT CENTS [ADDRESS]`.

use grpc_payments::client::{Client, is_replay};
use grpc_payments::payments::Ledger;
use grpc_payments::proto::ChargeRequest;
use grpc_payments::{BoxError, demo, server};
use retryproof::IdempotencyEngine;
use tokio::net::TcpListener;

const ADDRESS: &str = "127.0.0.1:4808";
const USAGE: &str =
    "usage: grpc-payments demo | serve [ADDRESS [STORE]] | charge KEY ACCOUNT CENTS [ADDRESS]";

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::WARN).init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["demo"] => demo::run(|line| println!("{line}")).await,
        ["serve"] => serve(ADDRESS, "memory:").await,
        ["serve", address] => serve(address, "memory:").await,
        ["serve", address, store] => serve(address, store).await,
        ["charge", key, account, cents] => charge(key, account, cents, ADDRESS).await,
        ["charge", key, account, cents, address] => charge(key, account, cents, address).await,
        _ => Err(USAGE.into()),
    }
}

async fn serve(address: &str, store: &str) -> Result<(), BoxError> {
    retryproof::migrate(store).await?;
    let engine = IdempotencyEngine::new(retryproof::connect(store).await?);
    let listener = TcpListener::bind(address).await?;
    println!("pay.v1.Payments is served on {}; press Ctrl-C to stop", listener.local_addr()?);
    server::serve(listener, engine, Ledger::default(), async {
        drop(tokio::signal::ctrl_c().await)
    })
    .await
}

async fn charge(key: &str, account: &str, cents: &str, address: &str) -> Result<(), BoxError> {
    let charge = ChargeRequest { account: account.to_owned(), cents: cents.parse()? };
    let mut client = Client::connect(format!("http://{address}")).await?;
    let answer = client.charge_surely(key, &charge).await?;
    let word = if is_replay(&answer) { "replayed" } else { "charged" };
    println!("{word}: receipt {}", answer.get_ref().number);
    Ok(())
}
