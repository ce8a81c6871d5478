// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections that are cut, stalled or refused in the middle of a call, and stopped servers: the
//! call is sent again or fails in time, and the next one works.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{Acquired, FencedWrite, LiveLease, Peeked};
use retryproof_core::{ErrorKind, IdempotencyStore, OwnerId};
use retryproof_redis::{RedisConfig, RedisStore};
use retryproof_testkit::wire::WireProxy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::support::server::Server;
use crate::support::{
    CANARY, LONG, assert_masked, completion, execute, grant, id, own_prefix, replay, request,
};

const PATIENCE: Duration = Duration::from_secs(20);

struct Line {
    server: Server,
    proxy: WireProxy,
    config: RedisConfig,
}

impl Line {
    async fn new() -> Self {
        let server = Server::start("").await;
        let proxy =
            WireProxy::to(SocketAddr::from(([127, 0, 0, 1], server.port))).await.expect("a proxy");
        let config = RedisConfig::new("127.0.0.1", proxy.addr().port()).with_prefix(own_prefix());
        Self { server, proxy, config }
    }

    async fn store(&self) -> RedisStore {
        RedisStore::connect(self.config.clone()).await.expect("it connects")
    }

    /// Returns a store that connects without the proxy.
    async fn direct(&self) -> RedisStore {
        let url = self.server.url();
        let config = RedisConfig::from_url(&url).expect("a URL").with_prefix(own_prefix());
        RedisStore::connect(config).await.expect("it connects")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_9_a_call_is_sent_again_over_a_new_line() {
    let line = Line::new().await;
    let store = Arc::new(line.store().await);
    // The connection is cut before the call. The call succeeds over a new connection.
    line.proxy.cut();
    execute(&*store, &id("before"), "x").await;

    // Each kind of call starts on a stalled connection, which is then cut. In most rounds, the call
    // has been sent by then, but not answered.
    let owner = OwnerId::new();
    for round in 0..20 {
        let id = id(&format!("k{round}"));
        let during = async |call: std::pin::Pin<Box<dyn Future<Output = Answer> + Send>>| {
            line.proxy.stall(true);
            let call = tokio::spawn(call);
            tokio::time::sleep(Duration::from_millis(round % 4)).await;
            line.proxy.cut();
            line.proxy.stall(false);
            call.await.expect("the call ends")
        };
        let (s, i) = (Arc::clone(&store), id.clone());
        match during(Box::pin(
            async move { Answer::Acquired(s.acquire(&i, &request(owner)).await) },
        ))
        .await
        {
            Answer::Acquired(Ok(Acquired::Granted(grant))) => assert!(!grant.took_over),
            other => panic!("round {round}: {other:?}"),
        }
        let (s, i) = (Arc::clone(&store), id.clone());
        match during(Box::pin(async move { Answer::Fenced(s.extend(&i, owner, LONG).await) })).await
        {
            Answer::Fenced(Ok(FencedWrite::Applied)) => {}
            other => panic!("round {round}: {other:?}"),
        }
        let (s, i) = (Arc::clone(&store), id.clone());
        match during(Box::pin(async move {
            Answer::Fenced(s.complete(&i, owner, &completion("x")).await)
        }))
        .await
        {
            Answer::Fenced(Ok(FencedWrite::Applied | FencedWrite::AlreadyApplied)) => {}
            other => panic!("round {round}: {other:?}"),
        }
        assert_eq!(replay(&*store, &id).await, "x");
    }
}

#[derive(Debug)]
enum Answer {
    Acquired(retryproof_core::Result<Acquired>),
    Fenced(retryproof_core::Result<FencedWrite>),
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_5_a_refused_line_is_unavailable_at_once_and_heals() {
    let line = Line::new().await;
    let store = line.store().await;
    line.proxy.refuse(true);
    line.proxy.cut();
    for _ in 0..3 {
        let started = Instant::now();
        let error =
            store.acquire(&id(CANARY), &request(OwnerId::new())).await.expect_err("no line");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_masked(&error);
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
    line.proxy.refuse(false);
    execute(&store, &id("after"), "x").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_5_a_silent_line_fails_in_time_and_heals() {
    let line = Line::new().await;
    let config = line.config.clone().with_call_timeout(Duration::from_secs(1));
    let config = config.with_connect_timeout(Duration::from_secs(1));
    let store = RedisStore::connect(config).await.expect("it connects");
    line.proxy.stall(true);
    let started = Instant::now();
    for _ in 0..3 {
        let error =
            store.acquire(&id(CANARY), &request(OwnerId::new())).await.expect_err("silence");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("in time"), "{error}");
        assert_masked(&error);
    }
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    line.proxy.stall(false);
    execute(&store, &id("after"), "x").await;
}

/// A call ends within its own time limit even if it waits for a connection to a server that does
/// not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_5_a_call_includes_the_wait_for_a_connection() {
    let line = Line::new().await;
    let config = line.config.clone().with_call_timeout(Duration::from_secs(1));
    let store = RedisStore::connect(config.with_connect_timeout(Duration::from_secs(10)))
        .await
        .expect("it connects");
    line.proxy.stall(true);
    // The first call is sent over the open connection. The next calls need a new connection.
    for _ in 0..3 {
        let started = Instant::now();
        let error = store.peek(&id(CANARY)).await.expect_err("silence");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("in time"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
    line.proxy.stall(false);
    execute(&store, &id("after"), "x").await;
}

/// Callers share one attempt to connect while the server is unavailable, so none of them waits for
/// several attempts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_5_many_callers_of_a_silent_server_fail_in_time() {
    let line = Line::new().await;
    let config = line.config.clone().with_call_timeout(Duration::from_secs(1));
    let store = Arc::new(
        RedisStore::connect(config.with_connect_timeout(Duration::from_secs(1))).await.expect("ok"),
    );
    line.proxy.stall(true);
    let started = Instant::now();
    let callers: Vec<_> = (0..200)
        .map(|at| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for _ in 0..3 {
                    let _ = store.peek(&id(&format!("k{at}"))).await.expect_err("silence");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("the caller ends");
    }
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    line.proxy.stall(false);
    execute(&*store, &id("after"), "x").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_5_a_stopped_server_fails_in_time_and_heals() {
    let line = Line::new().await;
    let config = line.config.clone().with_call_timeout(Duration::from_secs(1));
    let store =
        RedisStore::connect(config.with_connect_timeout(Duration::from_secs(1))).await.expect("ok");
    line.server.signal("-STOP");
    let error =
        store.acquire(&id(CANARY), &request(OwnerId::new())).await.expect_err("it is stopped");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    line.server.signal("-CONT");
    execute(&store, &id("after"), "x").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_9_a_server_killed_and_started_again_keeps_what_it_has_on_disk() {
    let mut server = Server::start("appendonly yes\nappendfsync always").await;
    let config = RedisConfig::from_url(&server.url()).expect("a URL").with_prefix(own_prefix());
    let store = RedisStore::connect(config).await.expect("it connects");
    let owner = OwnerId::new();
    let token = grant(&store, &id("held"), owner).await.token;
    for at in 0..50 {
        execute(&store, &id(&format!("k{at}")), &format!("result {at}")).await;
    }
    server.kill();
    let error = store.acquire(&id(CANARY), &request(OwnerId::new())).await.expect_err("it is down");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.run().await;
    for at in 0..50 {
        assert_eq!(replay(&store, &id(&format!("k{at}"))).await, format!("result {at}"));
    }
    assert!(
        matches!(store.peek(&id("held")).await, Ok(Peeked::Busy(LiveLease { token: seen, .. })) if seen == token)
    );
    assert_eq!(store.release(&id("held"), owner).await.expect("released"), FencedWrite::Applied);
    assert!(grant(&store, &id("held"), OwnerId::new()).await.token > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_4_a_waiter_outlives_its_line() {
    let line = Line::new().await;
    let waiting = Arc::new(line.store().await);
    for cut_first in [true, false] {
        let (id, owner) = (id(&format!("cut first: {cut_first}")), OwnerId::new());
        let token = grant(&*waiting, &id, owner).await.token;
        let waiter = tokio::spawn({
            let (store, id) = (Arc::clone(&waiting), id.clone());
            async move {
                loop {
                    store.wait_for_change(&id, token, LONG).await.expect("a wait is answered");
                    match store.peek(&id).await.expect("a look is answered") {
                        Peeked::Busy(_) => {}
                        Peeked::Complete(_) => return,
                        Peeked::Absent => panic!("it was completed"),
                    }
                }
            }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        if cut_first {
            line.proxy.cut();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(
            waiting.complete(&id, owner, &completion("x")).await.expect("completed"),
            FencedWrite::Applied
        );
        if !cut_first {
            line.proxy.cut();
        }
        tokio::time::timeout(PATIENCE, waiter)
            .await
            .expect("it is woken")
            .expect("the waiter ends");
    }
    drop(line.direct().await);
}

/// A connection that stalls right after it was opened is dropped together with the call that opened
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_5_a_new_connection_that_stalls_is_not_used_again() {
    let line = Line::new().await;
    let config = line.config.clone().with_call_timeout(Duration::from_secs(1));
    let store = Arc::new(RedisStore::connect(config).await.expect("it connects"));
    // Count the round trips of a call that opens a connection.
    line.proxy.cut();
    let before = line.proxy.flights();
    let _ = store.peek(&id("any")).await.expect("a new connection");
    let all = line.proxy.flights() - before;

    // Delay each round trip, so that there is time to stall the connection between the handshake
    // and the call's own round trip.
    line.proxy.delay(Duration::from_millis(60));
    line.proxy.cut();
    let before = line.proxy.flights();
    let call = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.peek(&id("any")).await })
    };
    while line.proxy.flights() < before + all - 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    line.proxy.stall(true);
    let error = call.await.expect("no panic").expect_err("it stalls");
    assert!(error.is_retryable(), "{error}");
    line.proxy.stall(false);

    let lines = line.proxy.lines();
    let _ = store.peek(&id("any")).await.expect("a new connection");
    assert_eq!(line.proxy.lines(), lines + 1);
}

/// A proxy in front of a server. While `told` is set, a request on an open connection reaches the
/// server, but the connection ends without the answer. Every new connection gets the bytes in
/// `told` instead of an answer, and ends.
struct Breaking {
    config: RedisConfig,
    told: watch::Sender<Option<&'static [u8]>>,
}

impl Breaking {
    async fn new(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (told, tells) = watch::channel(None);
        let target = server.port;
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(break_off(client, target, tells.clone()));
            }
        });
        let config = RedisConfig::new("127.0.0.1", port).with_prefix(own_prefix());
        Self { config, told }
    }
}

async fn break_off(
    mut client: TcpStream,
    target: u16,
    tells: watch::Receiver<Option<&'static [u8]>>,
) -> std::io::Result<()> {
    let told = *tells.borrow();
    if let Some(told) = told {
        let _ = client.read(&mut [0; 1_024]).await?;
        client.write_all(told).await?;
        client.shutdown().await?;
        // Read to the end, because closing a connection with unread data would reset it.
        while client.read(&mut [0; 1_024]).await? > 0 {}
        return Ok(());
    }
    let mut server = TcpStream::connect(("127.0.0.1", target)).await?;
    let (mut request, mut answer) = ([0; 4_096], [0; 4_096]);
    loop {
        tokio::select! {
            read = client.read(&mut request) => match read? {
                0 => return Ok(()),
                read => server.write_all(&request[..read]).await?,
            },
            read = server.read(&mut answer) => match read? {
                0 => return Ok(()),
                // The server has answered the request.
                _ if tells.borrow().is_some() => return Ok(()),
                read => client.write_all(&answer[..read]).await?,
            },
        }
    }
}

#[tokio::test]
async fn acq_9_a_lost_answer_is_unavailable_whatever_the_second_attempt_meets() {
    let server = Server::start("").await;
    let half: &[u8] = b"%7\r\n$6\r\nserver\r\n$5\r\nre";
    for (key, told) in [("half", half), ("other", b"HTTP/1.1 400 Bad Request\r\n\r\n")] {
        let line = Breaking::new(&server).await;
        let store = RedisStore::connect(line.config.clone()).await.expect("it connects");
        line.told.send_replace(Some(told));
        let answer = store.acquire(&id(key), &request(OwnerId::new())).await;
        let error = answer.map(drop).expect_err("the answer is lost");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{key}: {error}");
        line.told.send_replace(None);
        let taken = store.acquire(&id(key), &request(OwnerId::new())).await.expect("it recovers");
        assert!(matches!(taken, Acquired::Busy(_)), "{key}: the lost call has taken effect");
    }
}

#[tokio::test]
async fn sto_5_a_server_that_hangs_up_in_the_middle_of_an_answer_is_unavailable() {
    let server = Server::start("").await;
    let line = Breaking::new(&server).await;
    for told in [&b"%7\r\n$6\r\nserver\r\n$5\r\nre"[..], b"+O"] {
        line.told.send_replace(Some(told));
        let error = RedisStore::connect(line.config.clone()).await.expect_err("no server");
        let told = String::from_utf8_lossy(told);
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{told}: {error}");
    }
}
