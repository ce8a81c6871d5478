// SPDX-License-Identifier: MIT OR Apache-2.0
//! `listener-rabbitmq last-words`: kills a listener with SIGKILL when an order is booked but not
//! yet acknowledged, then starts another listener.

use std::time::Duration;

use retryproof::OwnerId;
use tokio::time::{sleep, timeout};

use crate::BoxError;
use crate::broker::{self, Broker};
use crate::ledger::{self, OrderPaid};
use crate::shop::Shop;
use crate::storm::{Folder, Listeners, name};

const ORDERS: usize = 5;
/// The time limit of each step. Successful steps are faster.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn run() -> Result<(), BoxError> {
    let folder = Folder::new("last-words")?;
    let shop = Shop {
        db: folder.path().join("orders.db"),
        prefix: format!("last-words-{}", name(&OwnerId::new())),
        lease: Duration::from_secs(2),
        receipts: false,
        die_after: Some(3),
    };
    let url = broker::url()?;
    broker::declare(&url, &shop).await?;
    ledger::migrate(&shop.db)?;
    let broker = Broker::connect(&url).await?;
    let mut messages = Vec::new();
    for n in 1..=ORDERS {
        let order = OrderPaid { id: format!("o-{n}"), customer: "alice".into(), cents: 100 };
        messages.push((Some(order.id.clone()), serde_json::to_vec(&order)?));
    }
    broker.publish(&broker::exchange(&shop), &messages).await?;

    let mut first = Listeners::start(1, &shop, &url, folder.path())?;
    let status = timeout(PATIENCE, first.ended()).await??;
    println!("the first listener: {status}, killed after it had booked its 3rd order");
    let journal = || std::fs::read_to_string(folder.path().join("journal"));
    // The listener writes `executed` to the journal after it books an order and before it
    // acknowledges the message. If there are more bookings than such lines, the process died
    // between the two steps.
    let (booked, executed) =
        (booked(&shop)?, journal()?.lines().filter(|line| line.contains(" executed ")).count());
    println!("booked: {booked}; acknowledged: at most {executed}");
    if booked <= executed {
        return Err("the listener did not die between a booking and its acknowledgement".into());
    }

    let mut second =
        Listeners::start(1, &Shop { die_after: None, ..shop.clone() }, &url, folder.path())?;
    let queue = shop.ledger_queue();
    let emptied = async {
        while self::booked(&shop)? < ORDERS || broker.ready_or_put_off(&queue).await? > 0 {
            sleep(Duration::from_millis(50)).await;
        }
        Ok::<_, BoxError>(())
    };
    timeout(PATIENCE, emptied).await??;
    second.stop().await?;
    let replayed = journal()?.lines().filter(|line| line.contains(" replayed ")).count();
    if replayed == 0 {
        return Err("the second listener replayed nothing".into());
    }
    println!("the second listener got the order again and replayed it");
    let rows: i64 =
        ledger::open(&shop.db)?.query_row("SELECT count(*) FROM bookings", [], |row| row.get(0))?;
    println!("booked once: {} of {rows} orders", self::booked(&shop)?);
    broker.remove(&shop).await?;
    broker.close().await;
    Ok(())
}

fn booked(shop: &Shop) -> Result<usize, BoxError> {
    let count: i64 = ledger::open(&shop.db)?.query_row(
        "SELECT count(DISTINCT id) FROM bookings",
        [],
        |row| row.get(0),
    )?;
    Ok(usize::try_from(count)?)
}
