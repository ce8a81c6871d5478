// SPDX-License-Identifier: MIT OR Apache-2.0
//! `payments demo`: sends a payment and its retry over a real socket, and shows both answers side
//! by side.

use crate::client::{Delivery, pay};
use crate::ledger::{Ledger, Order};
use crate::server::Server;
use crate::{BoxError, storm};

pub(crate) async fn run() -> Result<(), BoxError> {
    let folder = storm::Folder::new("demo")?;
    let (db, log) = (
        format!("sqlite:{}", folder.path().join("payments.db").display()),
        folder.path().join("server.log"),
    );
    let server =
        Server::start(([127, 0, 0, 1], 0).into(), &db, &storm::Plan::default(), &log).await?;
    println!("A payment service runs at http://{} on SQLite.\n", server.address);
    let order =
        Order { account: "alice".into(), amount: 4_200, reference: "one bicycle bell".into() };

    println!("1. The client pays, with Idempotency-Key: order-17");
    let first = pay(server.address, "order-17", &order, None).await?;
    show(&first, "executed");

    println!("2. The answer is lost on the way, so the client sends the same request again");
    let retry = pay(server.address, "order-17", &order, None).await?;
    show(&retry, "replayed: the stored answer, byte for byte");

    println!("3. A bug sends another amount under the same key");
    let other = Order { amount: 99, ..order.clone() };
    let refused = pay(server.address, "order-17", &other, None).await?;
    show(&refused, "refused: nothing ran");

    let charges = Ledger::open(&db).await?.all("").await?;
    println!(
        "The ledger has {} charge: {} cents from {}.",
        charges.len(),
        order.amount,
        order.account
    );
    server.kill().await?;
    if !retry.replayed
        || retry.answer != first.answer
        || charges.len() != 1
        || refused.answer.status != 422
    {
        return Err("a promise did not hold: please report this".into());
    }
    println!(
        "\nNext: `cargo run -p payments` serves it for curl and browsers; `cargo run -p payments \
         -- storm` kills it."
    );
    Ok(())
}

fn show(delivery: &Delivery, what: &str) {
    let replayed = if delivery.replayed { "   Idempotent-Replayed: true" } else { "" };
    println!("     -> {}{replayed}   ({what})", delivery.answer.status);
    println!("        {}\n", String::from_utf8_lossy(&delivery.answer.body));
}
