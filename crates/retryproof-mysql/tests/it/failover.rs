// SPDX-License-Identifier: MIT OR Apache-2.0
//! A failover behind the store's address (STO-10): the primary turns read-only while its
//! connections stay open, and its replica becomes the primary.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use retryproof_core::{ErrorKind, ExecuteError, IdempotencyContext, IdempotencyEngine, Outcome};
use retryproof_mysql::{MysqlConfig, MysqlStore};
use sqlx::{Executor as _, Row as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::server::Server;
use crate::support::{CANARY, assert_masked, sql};

/// An address that leads to a server, and later to another one. Open connections stay with their
/// server, as behind DNS.
struct Address {
    at: SocketAddr,
    port: Arc<AtomicU16>,
}

impl Address {
    async fn of(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let at = listener.local_addr().expect("bound");
        let port = Arc::new(AtomicU16::new(server.port()));
        let target = Arc::clone(&port);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let port = target.load(Ordering::SeqCst);
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
                    tokio::io::copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
        Self { at, port }
    }

    fn lead_to(&self, server: &Server) {
        self.port.store(server.port(), Ordering::SeqCst);
    }
}

/// A primary and a replica that follows it.
async fn pair() -> (Server, Server) {
    let log = ["--log-bin=bin", "--log-slave-updates", "--gtid-strict-mode=1"];
    let of = |id: &'static str| [&log[..], &[id]].concat();
    let (first, second) = (of("--server-id=1"), of("--server-id=2"));
    let (primary, replica) = tokio::join!(Server::start(&first), Server::start(&second));
    // Each server has created the user `app` itself.
    sql(&mut primary.root().await, "RESET MASTER").await;
    let mut root = replica.root().await;
    let from = format!(
        "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={}, MASTER_USER='root', \
         MASTER_USE_GTID=slave_pos",
        primary.port()
    );
    for text in ["RESET MASTER", "SET GLOBAL read_only=1", &from, "START SLAVE"] {
        sql(&mut root, text).await;
    }
    (primary, replica)
}

/// Makes the replica the primary, with everything that the old one has written.
async fn promote(old: &Server, replica: &Server) {
    let position = "SELECT CAST(@@gtid_binlog_pos AS CHAR)";
    let position: String =
        old.root().await.fetch_one(position).await.expect("answered").get::<String, _>(0);
    let mut root = replica.root().await;
    sql(&mut root, &format!("DO MASTER_GTID_WAIT('{position}', 60)")).await;
    for text in ["STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only=0"] {
        sql(&mut root, text).await;
    }
}

fn context(key: &str) -> IdempotencyContext {
    let context = IdempotencyContext::builder("mysql.failover", key).wait_timeout(Duration::ZERO);
    context.lease(Duration::from_secs(20)).build().expect("valid")
}

/// The call that ends after the failover stores its result on the new primary, through a store
/// whose open connections lead to the old one. Until then, nothing new runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_10_a_server_that_turns_read_only_during_a_call_is_left_and_nothing_is_lost() {
    let (old, new) = pair().await;
    let password = format!("SET PASSWORD FOR 'app'@'%' = PASSWORD('{CANARY}')");
    sql(&mut old.root().await, &password).await;
    let address = Address::of(&old).await;
    let url = format!("mysql://app:{CANARY}@{}/app", address.at);
    let config = MysqlConfig::from_url(&url).expect("a valid URL");
    config.migrate().await.expect("migrated");
    let store = MysqlStore::connect(config).await.expect("connected");
    let engine = IdempotencyEngine::new(store);
    let runs = AtomicUsize::new(0);
    let act = || async {
        runs.fetch_add(1, Ordering::SeqCst);
        Ok::<_, String>("result".to_owned())
    };
    let done = engine.execute(context("done"), act).await.expect("executed");
    assert_eq!(done, Outcome::Executed("result".to_owned()));

    let during = engine
        .execute(context("during"), || async {
            sql(&mut old.root().await, "SET GLOBAL read_only=1").await;
            for _ in 0..2 {
                let refused = engine.execute(context(CANARY), act).await;
                let Err(ExecuteError::Store(error)) = refused else { panic!("{refused:?}") };
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                let text = error.to_string();
                assert!(text.contains(&format!(":{}", old.port())), "{text} names no server");
                assert!(text.contains("read-only"), "{text}");
                assert_masked(&error);
            }
            let replayed = engine.execute(context("done"), act).await.expect("replayed");
            assert_eq!(replayed, Outcome::Replayed("result".to_owned()));
            promote(&old, &new).await;
            address.lead_to(&new);
            act().await
        })
        .await
        .expect("executed");
    assert_eq!(during, Outcome::Executed("result".to_owned()));
    assert_eq!(runs.load(Ordering::SeqCst), 2, "a call that was refused has run");

    // The new primary has the result, and the store needs no restart.
    let direct = MysqlConfig::from_url(&new.url("app", CANARY)).expect("a valid URL");
    let direct = IdempotencyEngine::new(MysqlStore::connect(direct).await.expect("connected"));
    for key in ["done", "during"] {
        let replayed = direct.execute(context(key), act).await.expect("replayed");
        assert_eq!(replayed, Outcome::Replayed("result".to_owned()), "{key}");
    }
    let fresh = engine.execute(context(CANARY), act).await.expect("executed");
    assert_eq!(fresh, Outcome::Executed("result".to_owned()));
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    let left =
        "SELECT CAST(COUNT(*) AS SIGNED) FROM information_schema.PROCESSLIST WHERE USER='app'";
    let left = old.root().await.fetch_one(left).await.expect("answered").get::<i64, _>(0);
    assert_eq!(left, 0, "connections to the old primary");
}
