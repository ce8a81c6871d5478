// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulated sentinels, which name the server that a test sets, and two servers that both act as
//! the primary.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use retryproof_core::store::Peeked;
use retryproof_core::{IdempotencyStore, OwnerId};
use retryproof_redis::RedisStore;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::support::server::Server;
use crate::support::{LONG, ask, config, grant, id, read_command};

const PATIENCE: Duration = Duration::from_secs(20);

/// A sentinel that announces nothing.
struct Sentinel {
    port: u16,
    names: Arc<AtomicU16>,
    /// How many watchers have requested the address, on the connection of their subscription.
    looks: Arc<AtomicUsize>,
    hang_up: Arc<Notify>,
}

impl Sentinel {
    async fn naming(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let names = Arc::new(AtomicU16::new(server.port));
        let (looks, hang_up) = (Arc::<AtomicUsize>::default(), Arc::<Notify>::default());
        let this = Self { port, names, looks, hang_up };
        let (names, looks, hang_up) =
            (Arc::clone(&this.names), Arc::clone(&this.looks), Arc::clone(&this.hang_up));
        tokio::spawn(async move {
            while let Ok((line, _)) = listener.accept().await {
                let (names, looks, hang_up) =
                    (Arc::clone(&names), Arc::clone(&looks), Arc::clone(&hang_up));
                tokio::spawn(async move {
                    tokio::select! {
                        _ = serve(line, &names, &looks) => {}
                        () = hang_up.notified() => {}
                    }
                });
            }
        });
        this
    }

    fn name(&self, server: &Server) {
        self.names.store(server.port, Ordering::SeqCst);
    }

    /// Waits until `count` watchers have requested the address.
    async fn looked(&self, count: usize) {
        let looked = async {
            while self.looks.load(Ordering::SeqCst) < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, looked).await.expect("the watch looks");
    }
}

/// Answers the commands that the store sends.
async fn serve(line: TcpStream, names: &AtomicU16, looks: &AtomicUsize) -> std::io::Result<()> {
    let mut line = BufReader::new(line);
    let mut listens = false;
    loop {
        let words = read_command(&mut line).await?;
        let answer = match words[0].as_str() {
            "HELLO" => "%1\r\n$5\r\nproto\r\n:3\r\n".to_owned(),
            "SUBSCRIBE" => {
                listens = true;
                format!(">3\r\n$9\r\nsubscribe\r\n${}\r\n{}\r\n:1\r\n", words[1].len(), words[1])
            }
            "SENTINEL" => {
                let port = names.load(Ordering::SeqCst).to_string();
                format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
            }
            _ => "+OK\r\n".to_owned(),
        };
        line.get_mut().write_all(answer.as_bytes()).await?;
        if listens && words[0] == "SENTINEL" {
            looks.fetch_add(1, Ordering::SeqCst);
        }
    }
}

async fn store(sentinels: &[&Sentinel]) -> RedisStore {
    let nodes: Vec<_> =
        sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
    let config = config(&format!("redis+sentinel://{}/main", nodes.join(",")));
    RedisStore::connect(config).await.expect("it connects")
}

async fn keys(server: &Server) -> u64 {
    ask(&mut server.stranger().await, "DBSIZE").await
}

/// A store's calls and waiters never use two primaries at the same time.
#[tokio::test]
async fn acq_2_sto_1_a_move_that_another_connection_found_counts_for_all() {
    let (old, new) = (Server::start("").await, Server::start("").await);
    let sentinel = Sentinel::naming(&old).await;
    let store = store(&[&sentinel]).await;
    let token = grant(&store, &id("before"), OwnerId::new()).await.token;
    sentinel.looked(1).await;
    // From here on, the sentinel names the new primary, but it does not announce the change. The
    // first waiter opens the connection for notifications, and finds the new primary.
    sentinel.name(&new);
    let _ = timeout(Duration::from_millis(500), store.wait_for_change(&id("before"), token, LONG))
        .await;
    grant(&store, &id("after"), OwnerId::new()).await;
    assert_eq!(
        (keys(&old).await, keys(&new).await),
        (1, 1),
        "records at the old and at the new primary"
    );
}

#[tokio::test]
async fn sto_1_a_move_while_the_watch_was_lost_is_followed() {
    let (old, new) = (Server::start("").await, Server::start("").await);
    let sentinel = Sentinel::naming(&old).await;
    let store = store(&[&sentinel]).await;
    grant(&store, &id("before"), OwnerId::new()).await;
    sentinel.looked(1).await;
    sentinel.name(&new);
    sentinel.hang_up.notify_waiters();
    sentinel.looked(2).await;
    // The sentinel has sent its answer, but the store may need a moment to read it.
    let mut at = 0;
    while keys(&new).await == 0 {
        grant(&store, &id(&format!("after {at}")), OwnerId::new()).await;
        at += 1;
        assert!(at < 200, "the store does not leave the old primary, which still answers");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// One sentinel is cut off from the others, and its connection breaks again and again.
#[tokio::test]
async fn sto_1_a_sentinel_that_stays_behind_fetches_nobody_back() {
    let (old, new) = (Server::start("").await, Server::start("").await);
    let (first, behind) = (Sentinel::naming(&old).await, Sentinel::naming(&old).await);
    let store = store(&[&first, &behind]).await;
    first.looked(1).await;
    behind.looked(1).await;
    first.name(&new);
    first.hang_up.notify_waiters();
    first.looked(2).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    for round in 2..4 {
        behind.hang_up.notify_waiters();
        behind.looked(round).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        grant(&store, &id(&format!("after {round}")), OwnerId::new()).await;
    }
    assert_eq!(
        (keys(&old).await, keys(&new).await),
        (0, 2),
        "records at the old and at the new primary"
    );

    // A new store does the same: `first` leads it to the new primary, and `behind` does not lead it
    // back to the old one.
    let late = self::store(&[&first, &behind]).await;
    behind.looked(4).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    grant(&late, &id("late"), OwnerId::new()).await;
    assert_eq!(
        (keys(&old).await, keys(&new).await),
        (0, 3),
        "records at the old and at the new primary"
    );
}

/// No call waits for a connection to a server that is no longer the primary.
#[tokio::test]
async fn sto_1_a_dial_to_a_primary_that_has_moved_is_given_up() {
    let (old, hung, new) =
        (Server::start("").await, Server::start("").await, Server::start("").await);
    hung.signal("-STOP");
    let sentinel = Sentinel::naming(&old).await;
    let config = config(&format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port));
    let config = config.with_connect_timeout(3 * PATIENCE).with_call_timeout(3 * PATIENCE);
    let store = Arc::new(RedisStore::connect(config).await.expect("it connects"));
    sentinel.looked(1).await;
    sentinel.name(&hung);
    sentinel.hang_up.notify_waiters();
    sentinel.looked(2).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let call = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.peek(&id("k")).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!call.is_finished(), "the named primary hangs");
    sentinel.name(&new);
    sentinel.hang_up.notify_waiters();
    let answer = timeout(PATIENCE, call).await.expect("in time").expect("the call ends");
    assert!(matches!(answer, Ok(Peeked::Absent)), "the new primary answers: {answer:?}");
}
