// SPDX-License-Identifier: MIT OR Apache-2.0
//! The recorded expansions compile, and do what the attribute promises. A test of the macro's own
//! crate proves, with the same files, that they *are* the expansions.

mod prelude {
    pub(super) use std::sync::Arc;

    pub(super) use axum::Json;
    pub(super) use axum::extract::State;
    pub(super) use axum::http::HeaderMap;
    use axum::http::StatusCode;
    use axum::response::{IntoResponse, Response};
    pub(super) use retryproof::sqlite::SqliteTx;
    pub(super) use retryproof::{
        BytesCodec, IdempotencyEngine, JoinedEngine, Lease, MemoryStore, Rejected, blocking,
    };
    use serde::{Deserialize, Serialize};

    pub(super) mod framework {
        pub(in super::super) use ::retryproof;
    }

    #[derive(Debug)]
    pub(super) struct Failure(Rejected);

    impl From<Rejected> for Failure {
        fn from(rejected: Rejected) -> Self {
            Self(rejected)
        }
    }

    impl Failure {
        pub(super) fn is_unknown(&self) -> bool {
            matches!(self.0, Rejected::NotReplayable)
        }
    }

    impl IntoResponse for Failure {
        fn into_response(self) -> Response {
            (StatusCode::INTERNAL_SERVER_ERROR, self.0.to_string()).into_response()
        }
    }

    #[derive(Deserialize)]
    pub(super) struct Order {
        pub(super) id: u64,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    pub(super) struct Receipt {
        pub(super) order: u64,
        pub(super) run: usize,
    }

    pub(super) struct Event {
        pub(super) id: String,
    }

    /// Counts the orders that were written.
    #[derive(Clone, Default)]
    pub(super) struct Ledger(Arc<std::sync::Mutex<Vec<String>>>);

    impl Ledger {
        pub(super) fn charge(
            &self,
            order: &Order,
            tenant: Option<usize>,
        ) -> Result<Receipt, Failure> {
            Ok(Receipt { order: order.id, run: self.write(format!("{} {tenant:?}", order.id)) })
        }

        pub(super) async fn note(&self, event: &Event) -> Result<(), Failure> {
            self.write(event.id.clone());
            Ok(())
        }

        pub(super) fn write(&self, line: String) -> usize {
            let mut lines = self.0.lock().expect("no panic while locked");
            lines.push(line);
            lines.len()
        }

        pub(super) fn lines(&self) -> usize {
            self.0.lock().expect("no panic while locked").len()
        }
    }

    pub(super) struct Orders {
        pub(super) engine: IdempotencyEngine,
        pub(super) ledger: Ledger,
    }

    impl Orders {
        pub(super) fn new() -> Self {
            Self { engine: IdempotencyEngine::new(MemoryStore::new()), ledger: Ledger::default() }
        }
    }

    impl AsRef<IdempotencyEngine> for Orders {
        fn as_ref(&self) -> &IdempotencyEngine {
            &self.engine
        }
    }

    pub(super) type Context = Orders;

    pub(super) trait Shelf {
        fn put(&self, order: Order) -> Result<Receipt, Failure>;
    }

    impl Shelf for Ledger {
        fn put(&self, order: Order) -> Result<Receipt, Failure> {
            self.charge(&order, None)
        }
    }
}

#[path = "../expand/blocking.out.rs"]
mod blocking;
#[path = "../expand/endpoint.out.rs"]
mod endpoint;
#[path = "../expand/endpoint_under_another_path.out.rs"]
mod endpoint_under_another_path;
#[path = "../expand/endpoint_without_arguments.out.rs"]
mod endpoint_without_arguments;
#[path = "../expand/function.out.rs"]
mod function;
#[path = "../expand/joined.out.rs"]
mod joined;
#[expect(
    clippy::needless_borrow,
    reason = "an expansion does not know its receiver's type; as one, it is not linted"
)]
#[path = "../expand/lease.out.rs"]
mod lease;
#[expect(
    clippy::needless_borrow,
    reason = "an expansion does not know its receiver's type; as one, it is not linted"
)]
#[path = "../expand/method.out.rs"]
mod method;
#[path = "../expand/method_with_default_scope.out.rs"]
mod method_with_default_scope;

use prelude::*;
use retryproof::http::IdempotencyFilter;
use retryproof::http::axum::Handler;

#[tokio::test]
async fn ann_1_ann_5_recorded_functions_run_once() {
    let orders = Arc::new(Orders::new());
    for _ in 0..2 {
        orders.on_created(&Event { id: "a".to_owned() }).await.expect("a run");
        assert_eq!(
            Arc::clone(&orders).render(Event { id: "a".to_owned() }).await.expect("a run"),
            b"a!"
        );
        let receipt = function::consume(&orders, "acme", Order { id: 7 }).await.expect("a run");
        assert_eq!(receipt, Receipt { order: 7, run: 3 });
    }
    assert_eq!(orders.ledger.lines(), 3);
    let event = Event { id: "a".to_owned() };
    let step = orders.on_charge(&event).await.expect("a run");
    assert_eq!((step.len(), orders.on_charge(&event).await.expect("a replay")), (64, step));
}

#[test]
fn ann_1_recorded_blocking_functions_run_once() {
    let engine =
        prelude::blocking::Engine::new(MemoryStore::new()).expect("a thread for the heartbeat");
    let ledger = Ledger::default();
    for _ in 0..2 {
        let receipt = blocking::import(&engine, &ledger, Order { id: 7 }).expect("a run");
        assert_eq!(receipt, Receipt { order: 7, run: 1 });
    }
}

#[test]
fn ann_1_cmp_7_recorded_joined_functions_run_once() {
    use retryproof::sqlite::{SqliteConfig, SqliteStore, SqliteTxSource};

    let file = std::env::temp_dir().join(format!("retryproof-expand-{}.db", std::process::id()));
    SqliteConfig::new(&file).migrate().expect("a file");
    let open = || SqliteStore::open(&file).expect("a store");
    let source = SqliteTxSource::open(&file).expect("a connection");
    let orders = Orders::new();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let till =
            IdempotencyEngine::new(open()).joined(source.clone()).expect("a store that can join");
        for _ in 0..2 {
            let event = Event { id: "a".to_owned() };
            assert_eq!(orders.on_paid(&till, &event).await.expect("a run"), 1);
        }
    });
    let engine = prelude::blocking::Engine::new(open()).expect("a thread for the heartbeat");
    let till = engine.joined(source).expect("a store that can join");
    for _ in 0..2 {
        let receipt = joined::book(&till, &orders.ledger, Order { id: 7 }).expect("a run");
        assert_eq!(receipt, Receipt { order: 7, run: 2 });
        assert_eq!(lease::enter(&till, Order { id: 7 }).expect("a run").len(), 64);
    }
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
    }
}

/// The endpoints are mounted with the program's own state, or with the filter as the state.
#[tokio::test]
async fn ann_3_recorded_endpoints_are_handlers() {
    #[derive(Clone)]
    struct App(IdempotencyFilter, Ledger);
    impl axum::extract::FromRef<App> for IdempotencyFilter {
        fn from_ref(app: &App) -> Self {
            app.0.clone()
        }
    }
    impl axum::extract::FromRef<App> for Ledger {
        fn from_ref(app: &App) -> Self {
            app.1.clone()
        }
    }
    fn handler<M, S>(_: impl Handler<M, S>, _: &S) {}

    let engine = IdempotencyEngine::new(MemoryStore::new());
    let filter = IdempotencyFilter::builder(engine).callers_share_keys().build().expect("a filter");
    handler(endpoint_without_arguments::tick, &filter);
    handler(endpoint_under_another_path::echo, &filter);
    let app = App(filter, Ledger::default());
    handler(endpoint::pay, &app);
    let State(ledger) = State(app.1.clone());
    let receipt = endpoint::pay::call(State(ledger), HeaderMap::new(), Json(Order { id: 7 })).await;
    assert_eq!(receipt.expect("a charge").0, Receipt { order: 7, run: 1 });
}
