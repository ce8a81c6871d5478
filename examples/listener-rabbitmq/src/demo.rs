// SPDX-License-Identifier: MIT OR Apache-2.0
//! `listener-rabbitmq demo`: publishes each order twice, adds messages that cannot be handled, and
//! shows what happens to each message.

use std::time::Duration;

use retryproof::OwnerId;
use retryproof::listener::Reason;
use retryproof::rabbitmq::RabbitmqListener;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::broker::{self, Broker};
use crate::ledger::{self, OrderPaid};
use crate::shop::{Shop, stopped};
use crate::storm::Folder;
use crate::{BoxError, storm};

pub(crate) async fn run() -> Result<(), BoxError> {
    let folder = Folder::new("demo")?;
    let shop = Shop {
        db: folder.path().join("orders.db"),
        prefix: format!("demo-{}", storm::name(&OwnerId::new())),
        lease: Duration::from_secs(2),
        ..Shop::default()
    };
    let (ledger, receipts) = shop.listeners().await?;
    let broker = Broker::connect(&broker::url()?).await?;

    println!(
        "published: three orders, each twice; one message without a key; one message that is not \
         an order; one order that was changed but has a known key\n"
    );
    let orders = [("o-1", "alice", 4_200), ("o-2", "bob", 1_250), ("o-3", "carol", 99)]
        .map(|(id, customer, cents)| OrderPaid { id: id.into(), customer: customer.into(), cents });
    let mut messages = Vec::new();
    for order in orders.iter().chain(&orders) {
        messages.push((Some(order.id.clone()), serde_json::to_vec(order)?));
    }
    messages.push((None, serde_json::to_vec(&orders[0])?));
    messages.push((Some("o-4".to_owned()), b"no order".to_vec()));
    broker.publish(&broker::exchange(&shop), &messages).await?;

    let both = [&ledger.listener, &receipts.listener];
    let (stop, stopping) = watch::channel(false);
    let running = async {
        tokio::try_join!(
            ledger.run(stopped(stopping.clone())),
            receipts.run(stopped(stopping.clone()))
        )
    };
    let showing = async {
        let done = |listener: &RabbitmqListener| listener.counters().read().acks == 6;
        while !both.iter().all(|listener| done(listener)) {
            sleep(Duration::from_millis(20)).await;
        }
        let changed = OrderPaid { cents: 1, ..orders[0].clone() };
        let changed = [(Some("o-1".to_owned()), serde_json::to_vec(&changed)?)];
        broker.publish(&broker::exchange(&shop), &changed).await?;
        while !both.iter().all(|listener| listener.counters().read().dead_letters >= 2)
            || ledger.listener.counters().count_of(Reason::Mismatch) == 0
        {
            sleep(Duration::from_millis(20)).await;
        }
        stop.send_replace(true);
        Ok::<_, BoxError>(())
    };
    let (ran, shown) =
        timeout(Duration::from_secs(60), async { tokio::join!(running, showing) }).await?;
    ran?;
    shown?;

    println!("\nin the ledger:");
    let books = ledger::open(&shop.db)?;
    let mut rows = books.prepare("SELECT id, customer, cents FROM bookings ORDER BY booking")?;
    let rows = rows.query_map([], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, i64>(2)?))
    })?;
    for row in rows {
        let (id, customer, cents) = row?;
        println!("  {id}  {customer:<6} {:>4}.{:02}", cents / 100, cents % 100);
    }
    println!("\nin the ledger's dead letters:");
    for (body, why) in broker.take_all(&format!("{}.dead", shop.ledger_queue())).await? {
        println!("  {why:<21} {}", String::from_utf8_lossy(&body));
    }
    broker.remove(&shop).await?;
    broker.close().await;
    Ok(())
}
