// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulated nodes, which give the answers that a test sets.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use retryproof_core::store::{Acquired, Inspect, Peeked};
use retryproof_core::{ErrorKind, IdempotencyStore, OwnerId};
use retryproof_redis::RedisStore;
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::support::{CANARY, assert_masked, config, id, is, read_command, request};

const GRANTED: &str = "$17\r\nG0000000000000042\r\n";

/// A node that serves all slots, according to its own answer, unless the test sets another answer.
#[derive(Clone)]
struct Node {
    port: u16,
    /// The answers to the next commands that concern a key or ask for it, then `last` for ever.
    answers: Arc<Mutex<VecDeque<String>>>,
    last: Arc<Mutex<String>>,
    /// Those commands.
    seen: Arc<Mutex<Vec<String>>>,
    /// The port of the node that serves all slots.
    owner: Arc<Mutex<u16>>,
}

impl Node {
    async fn start(last: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let node = Self {
            port,
            answers: Arc::default(),
            last: Arc::new(Mutex::new(last.to_owned())),
            seen: Arc::default(),
            owner: Arc::new(Mutex::new(port)),
        };
        let this = node.clone();
        tokio::spawn(async move {
            while let Ok((line, _)) = listener.accept().await {
                let node = this.clone();
                tokio::spawn(async move { node.serve(line).await });
            }
        });
        node
    }

    async fn serve(&self, line: TcpStream) -> std::io::Result<()> {
        let mut line = BufReader::new(line);
        let mut asks = false;
        loop {
            let words = read_command(&mut line).await?;
            let answer = match words[0].as_str() {
                "HELLO" => {
                    "*4\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$4\r\nmode\r\n$7\r\ncluster\r\n".into()
                }
                "ROLE" => "*1\r\n$6\r\nmaster\r\n".into(),
                "CLUSTER" => {
                    let owner = *self.owner.lock().expect("a port");
                    format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:{owner}\r\n")
                }
                "CONFIG" | "SELECT" | "CLIENT" => "+OK\r\n".into(),
                // A new connection loads the scripts.
                "SCRIPT" if !asks => "+OK\r\n".into(),
                name => {
                    self.seen.lock().expect("commands").push(name.to_owned());
                    let next = self.answers.lock().expect("answers").pop_front();
                    next.unwrap_or_else(|| self.last.lock().expect("an answer").clone())
                }
            };
            asks = words[0] == "ASKING";
            line.get_mut().write_all(answer.as_bytes()).await?;
        }
    }

    fn answer(&self, answers: &[&str]) {
        self.answers.lock().expect("answers").extend(answers.iter().map(|text| text.to_string()));
    }

    fn answer_from_now_on(&self, answer: &str) {
        answer.clone_into(&mut self.last.lock().expect("an answer"));
    }

    fn serves(&self, owner: &Self) {
        *self.owner.lock().expect("a port") = owner.port;
    }

    /// Returns the commands since the last call.
    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().expect("commands"))
    }
}

async fn store(node: &Node) -> RedisStore {
    let store = RedisStore::connect(
        config(&format!("redis+cluster://127.0.0.1:{}", node.port))
            .with_call_timeout(Duration::from_secs(1)),
    )
    .await
    .expect("it connects");
    node.answer_from_now_on(GRANTED);
    node.seen();
    store
}

async fn granted(store: &RedisStore, key: &str) {
    match store.acquire(&id(key), &request(OwnerId::new())).await {
        Ok(Acquired::Granted(_)) => {}
        other => panic!("not granted: {other:?}"),
    }
}

fn to(code: &str, port: u16) -> String {
    format!("-{code} 1 127.0.0.1:{port}\r\n")
}

#[tokio::test]
async fn sto_8_moved_is_followed_and_remembered() {
    let (old, new) = (Node::start("$-1\r\n").await, Node::start(GRANTED).await);
    let store = store(&old).await;
    old.answer_from_now_on(&to("MOVED", new.port));
    old.serves(&new);
    granted(&store, "k").await;
    assert_eq!((old.seen().len(), new.seen().len()), (1, 1));
    granted(&store, "k").await;
    assert_eq!((old.seen().len(), new.seen().len()), (0, 1), "the slot is remembered");
    // Another slot: the whole map has been read again.
    tokio::time::sleep(Duration::from_millis(100)).await;
    granted(&store, "another").await;
    assert_eq!((old.seen().len(), new.seen().len()), (0, 1), "all slots are known");
}

/// For some time after the death of a primary, the other nodes still send its calls there.
#[tokio::test]
async fn sto_8_moved_to_a_dead_node_is_no_tight_loop() {
    let node = Node::start("$-1\r\n").await;
    let store = store(&node).await;
    node.answer_from_now_on(&to("MOVED", 1));
    let began = Instant::now();
    let error = store.acquire(&id(CANARY), &request(OwnerId::new())).await.expect_err("dead");
    is(&error, ErrorKind::Unavailable, "server = 127.0.0.1:");
    assert!(began.elapsed() < Duration::from_millis(1_500), "{:?}", began.elapsed());
    let tries = node.seen().len();
    assert!((2..40).contains(&tries), "{tries} tries in a second");
    // The node is promoted while the call is waiting.
    let call = granted(&store, "k");
    let promoted = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        node.answer_from_now_on(GRANTED);
    };
    tokio::join!(call, promoted);
}

#[tokio::test]
async fn sto_8_ask_is_followed_for_one_command_each() {
    let (source, target) = (Node::start("$-1\r\n").await, Node::start("+OK\r\n").await);
    let store = store(&source).await;
    source.answer_from_now_on(&to("ASK", target.port));
    target.answer(&["+OK\r\n", GRANTED]);
    granted(&store, "k").await;
    assert_eq!(target.seen(), ["ASKING", "EVALSHA"]);
    // The target does not have the script: it is loaded first, and ASKING stands right before the
    // call.
    let missing = "-NOSCRIPT No matching script\r\n";
    target.answer(&["+OK\r\n", missing, "+OK\r\n", "+OK\r\n", "+OK\r\n", GRANTED]);
    granted(&store, "k").await;
    assert_eq!(target.seen(), ["ASKING", "EVALSHA", "ASKING", "SCRIPT", "ASKING", "EVALSHA"]);
    // A look reads the time to live and the value at the same node.
    source.answer(&[":-2\r\n", &to("ASK", target.port)]);
    target.answer(&["+OK\r\n", ":-2\r\n", "+OK\r\n", "$-1\r\n"]);
    assert!(matches!(store.peek(&id("k")).await, Ok(Peeked::Absent)));
    assert_eq!(target.seen(), ["ASKING", "PTTL", "ASKING", "GET"]);
    // The next call begins at the source again.
    source.seen();
    source.answer(&[GRANTED]);
    granted(&store, "k").await;
    assert_eq!((source.seen().len(), target.seen().len()), (1, 0));
}

#[tokio::test]
async fn sto_8_a_cluster_that_is_not_ready_is_waited_for() {
    let node = Node::start("$-1\r\n").await;
    let store = store(&node).await;
    for answer in [
        "-CLUSTERDOWN The cluster is down\r\n",
        "-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-MASTERDOWN Link with MASTER is down\r\n",
    ] {
        node.answer(&[answer; 3]);
        granted(&store, "k").await;
        assert_eq!(node.seen().len(), 4, "{answer}");
        node.answer_from_now_on(answer);
        let began = Instant::now();
        let error = store.acquire(&id(CANARY), &request(OwnerId::new())).await;
        let error = error.expect_err("not ready in time");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("server = 127.0.0.1:"), "{error}");
        assert_masked(&error);
        assert!(began.elapsed() < Duration::from_millis(1_500), "{:?}", began.elapsed());
        node.answer_from_now_on(GRANTED);
        node.seen();
    }
    // An error that does not pass is returned at once, and names the node.
    node.answer(&["-NOREPLICAS Not enough good replicas to write.\r\n", ":-2\r\n", "$-1\r\n"]);
    let error = store.acquire(&id(CANARY), &request(OwnerId::new())).await.expect_err("read-only");
    is(&error, ErrorKind::Unavailable, &format!("server = 127.0.0.1:{}", node.port));
    assert_eq!(node.seen(), ["EVALSHA", "PTTL", "GET"]);
}

#[tokio::test]
async fn sto_8_ops_1_a_scan_of_a_cluster_that_is_not_ready_names_the_node() {
    let node = Node::start("$-1\r\n").await;
    let store = store(&node).await;
    let key = format!("t:{{1:s:{CANARY}}}");
    let step = format!("*2\r\n$1\r\n0\r\n*1\r\n${}\r\n{key}\r\n", key.len());
    // SCAN has no key, so a node answers it even if the cluster is down. With the empty answer, the
    // node hangs.
    let down = "-CLUSTERDOWN The cluster is down\r\n";
    for answer in [down, ""] {
        node.answer_from_now_on(answer);
        node.answer(&[&step]);
        let error = store.scan(None, 10).await.expect_err("not ready in time");
        is(&error, ErrorKind::Unavailable, &format!("server = 127.0.0.1:{}", node.port));
        node.answer(&[&step]);
        let error = store.stats().await.expect_err("not ready in time");
        is(&error, ErrorKind::Unavailable, &format!("server = 127.0.0.1:{}", node.port));
    }
    // The cluster becomes ready while the scan waits.
    node.answer(&[&step]);
    node.answer(&[down; 8]);
    node.answer(&["*2\r\n$1\r\n1\r\n$1\r\n0\r\n", ":-2\r\n", ":0\r\n", "$0\r\n\r\n"]);
    let page = store.scan(None, 10).await.expect("scanned");
    assert!(page.records.is_empty() && page.next.is_none(), "the record is gone by then");
}
