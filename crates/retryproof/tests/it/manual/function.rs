// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of the attribute's manual: they compile, and run once.
use std::sync::atomic::{AtomicU32, Ordering};

use retryproof::sqlite::{SqliteConfig, SqliteStore, SqliteTx, SqliteTxSource};
use retryproof::store::{OwnedTx, TxSource};
use retryproof::{IdempotencyEngine, JoinedEngine, MemoryStore, Rejected, idempotent};
use serde::{Deserialize, Serialize};

#[derive(Debug)]
struct HandlerError(#[expect(dead_code, reason = "a failed test prints it")] Rejected);

impl From<Rejected> for HandlerError {
    fn from(rejected: Rejected) -> Self {
        Self(rejected)
    }
}

struct OrderCreated {
    id: u64,
    customer: String,
}

#[derive(Default)]
struct Mail(AtomicU32);

impl Mail {
    async fn thank(&self, customer: &str) -> Result<(), HandlerError> {
        assert_eq!(customer, "ada");
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

struct Orders {
    engine: IdempotencyEngine,
    mail: Mail,
}

impl AsRef<IdempotencyEngine> for Orders {
    fn as_ref(&self) -> &IdempotencyEngine {
        &self.engine
    }
}

impl Orders {
    #[idempotent(key = event.id, scope = "orders.created", ttl = "P7D", wait_timeout = "PT0S")]
    async fn on_created(&self, event: &OrderCreated) -> Result<(), HandlerError> {
        self.mail.thank(&event.customer).await
    }
}

struct Order {
    id: u64,
    amount: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Receipt {
    run: u32,
}

#[derive(Default)]
struct Ledger(AtomicU32);

impl Ledger {
    async fn charge(&self, _tenant: &str, _order: &Order) -> Result<Receipt, HandlerError> {
        Ok(Receipt { run: self.0.fetch_add(1, Ordering::Relaxed) + 1 })
    }
}

struct Context {
    engine: IdempotencyEngine,
    ledger: Ledger,
}

#[idempotent(key = format!("{tenant}/{}", order.id), fingerprint = order.amount, engine = ctx.engine)]
async fn consume(ctx: &Context, tenant: &str, order: Order) -> Result<Receipt, HandlerError> {
    ctx.ledger.charge(tenant, &order).await
}

struct Till {
    joined: JoinedEngine<SqliteTx>,
}

impl AsRef<JoinedEngine<SqliteTx>> for Till {
    fn as_ref(&self) -> &JoinedEngine<SqliteTx> {
        &self.joined
    }
}

impl Till {
    #[idempotent(key = order.id, scope = "till", completion = "joined")]
    async fn charge(&self, order: &Order, #[tx] tx: &mut SqliteTx) -> Result<i64, HandlerError> {
        tx.execute("INSERT INTO ledger VALUES (?1)", [order.id as i64]).expect("a charge");
        Ok(tx.last_insert_rowid())
    }
}

async fn till() -> Result<(), HandlerError> {
    let file = std::env::temp_dir().join(format!("retryproof-till-{}.db", std::process::id()));
    SqliteConfig::new(&file).migrate().expect("a file");
    let source = SqliteTxSource::open(&file).expect("a connection");
    let tx = source.begin().await.expect("a transaction");
    tx.execute_batch("CREATE TABLE ledger (id INTEGER)").expect("a table");
    tx.commit_tx().await.expect("a commit");
    let engine = IdempotencyEngine::new(SqliteStore::open(&file).expect("a store"));
    let till = Till { joined: engine.joined(source).expect("a store that can join") };
    for _ in 0..2 {
        assert_eq!(till.charge(&Order { id: 7, amount: 100 }).await?, 1);
    }
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
    }
    Ok(())
}

#[tokio::test]
async fn ann_1_the_functions_of_the_manual_run_once() -> Result<(), HandlerError> {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let orders = Orders { engine: engine.clone(), mail: Mail::default() };
    let ctx = Context { engine, ledger: Ledger::default() };
    for _ in 0..2 {
        orders.on_created(&OrderCreated { id: 7, customer: "ada".to_owned() }).await?;
        assert_eq!(consume(&ctx, "acme", Order { id: 7, amount: 100 }).await?, Receipt { run: 1 });
    }
    assert_eq!(orders.mail.0.load(Ordering::Relaxed), 1);
    till().await
}
