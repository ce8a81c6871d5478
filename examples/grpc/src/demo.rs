// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends a payment, its retry, and a different payment under the same key to a private server.

use retryproof::{IdempotencyEngine, MemoryStore};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::BoxError;
use crate::client::{Client, is_replay};
use crate::payments::Ledger;
use crate::proto::ChargeRequest;
use crate::server::serve;

/// Runs the demo and reports each step.
///
/// # Errors
/// If the server cannot be started.
pub async fn run(mut tell: impl FnMut(String)) -> Result<(), BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let ledger = Ledger::default();
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let server =
        tokio::spawn(serve(listener, engine, ledger.clone(), async { drop(stopped.await) }));

    let mut client = Client::connect(format!("http://{address}")).await?;
    let charge = ChargeRequest { account: "alice".into(), cents: 4_200 };
    for attempt in ["first", "retry"] {
        let answer = client.charge_surely("order-17", &charge).await?;
        let replay = if is_replay(&answer) { ", replayed" } else { "" };
        tell(format!(
            "{attempt}: receipt {} of {} cents{replay}",
            answer.get_ref().number,
            charge.cents
        ));
    }
    let other = ChargeRequest { cents: 9_900, ..charge };
    if let Err(status) = client.charge_surely("order-17", &other).await {
        tell(format!(
            "another amount under the same key: {:?}, {}",
            status.code(),
            status.message()
        ));
    }
    tell(format!("the ledger has {} entry", ledger.receipts().len()));

    drop(client);
    let _ = stop.send(());
    server.await?
}
