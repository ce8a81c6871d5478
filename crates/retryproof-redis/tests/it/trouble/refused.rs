// SPDX-License-Identifier: MIT OR Apache-2.0
//! Servers that the store refuses, and the errors that name the reason; logins, rights and
//! warnings.

use std::time::Duration;

use retryproof_core::store::{FencedWrite, Inspect, Peeked};
use retryproof_core::{ErrorKind, IdempotencyStore, OwnerId};
use retryproof_redis::{RedisConfig, RedisStore};
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::support::server::Server;
use crate::support::{
    CANARY, LONG, ask, completion, config, connected, execute, grant, id, is, own_prefix,
    read_command, refused, replay, request, service,
};

#[tokio::test]
async fn sto_5_nobody_at_the_address_is_unavailable() {
    let error = refused(RedisConfig::new("127.0.0.1", 1).with_password(CANARY)).await;
    is(&error, ErrorKind::Unavailable, "127.0.0.1:1");
    is(
        &refused(RedisConfig::new("no-such-host.invalid", 6379)).await,
        ErrorKind::Unavailable,
        "no-such-host",
    );
}

#[tokio::test]
async fn sto_5_something_else_at_the_address_is_an_error_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    // The listener accepts connections and sends nothing.
    let error =
        refused(RedisConfig::new("127.0.0.1", port).with_call_timeout(Duration::from_millis(100)))
            .await;
    is(&error, ErrorKind::Unavailable, "in time");
    let talking = tokio::spawn(async move {
        while let Ok((mut line, _)) = listener.accept().await {
            let _ = line.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let error = refused(RedisConfig::new("127.0.0.1", port)).await;
    assert!(matches!(error.kind(), ErrorKind::Unexpected | ErrorKind::Unavailable), "{error}");
    talking.abort();
}

#[tokio::test]
async fn sto_5_a_wrong_login_is_named_and_not_shown() {
    let server = Server::start("requirepass right").await;
    let at = || RedisConfig::new("127.0.0.1", server.port);
    is(&refused(at()).await, ErrorKind::Config, "password");
    is(&refused(at().with_password(CANARY)).await, ErrorKind::Config, "password");
    is(
        &refused(at().with_user(CANARY).with_password("right")).await,
        ErrorKind::Config,
        "password",
    );
    RedisStore::connect(at().with_password("right")).await.expect("it connects");
    let url = format!("redis://default:right@127.0.0.1:{}", server.port);
    RedisStore::connect(RedisConfig::from_url(&url).expect("a URL")).await.expect("it connects");
    let open = Server::start("").await;
    let error = refused(RedisConfig::new("127.0.0.1", open.port).with_password(CANARY)).await;
    is(&error, ErrorKind::Config, "password");
}

/// A password that changes while the store runs has to cause an `Unavailable` error, because the
/// engine repeats a completion only after such an error. Without the repetition, the work would run
/// again.
#[tokio::test]
async fn cmp_3_a_password_that_changes_under_a_running_store_is_unavailable() {
    let server = Server::start("requirepass right").await;
    let config = RedisConfig::new("127.0.0.1", server.port).with_prefix(own_prefix());
    let store = RedisStore::connect(config.with_password("right")).await.expect("it connects");
    let owner = OwnerId::new();
    grant(&store, &id("held"), owner).await;

    server.told_with("right", "CONFIG SET requirepass other").await;
    server.told_with("other", "CLIENT KILL TYPE normal").await;
    let refused = store.complete(&id("held"), owner, &completion(CANARY)).await;
    is(&refused.map(drop).expect_err("refused"), ErrorKind::Unavailable, "accepted at `connect`");

    server.told_with("other", "CONFIG SET requirepass right").await;
    let completed = store.complete(&id("held"), owner, &completion(CANARY)).await;
    assert_eq!(completed.expect("completed"), FencedWrite::Applied);
}

#[tokio::test]
async fn sto_5_a_database_that_is_not_there_is_named() {
    let server = Server::start("databases 2").await;
    let at = |db| config(&server.url()).with_db(db);
    is(&refused(at(2)).await, ErrorKind::Config, "database = 2");
    let (here, there) = (config(&server.url()).with_db(1), config(&server.url()).with_db(0));
    let prefix = own_prefix();
    let here = RedisStore::connect(here.with_prefix(&prefix)).await.expect("it connects");
    let there = RedisStore::connect(there.with_prefix(&prefix)).await.expect("it connects");
    execute(&here, &id("k"), "here").await;
    assert!(matches!(there.peek(&id("k")).await, Ok(Peeked::Absent)), "databases are apart");
}

/// Answers the first batch of a connection, with an error for one of the scripts.
async fn refuse_script(line: TcpStream, at: usize) -> std::io::Result<()> {
    let mut line = BufReader::new(line);
    let mut scripts = 0;
    loop {
        let words = read_command(&mut line).await?;
        let answer = match words[0].as_str() {
            "HELLO" => "%2\r\n$5\r\nproto\r\n:3\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n",
            "ROLE" => "*1\r\n$6\r\nmaster\r\n",
            "SCRIPT" => {
                scripts += 1;
                if scripts == at { "-ERR Error compiling script\r\n" } else { "+OK\r\n" }
            }
            _ => "+OK\r\n",
        };
        line.get_mut().write_all(answer.as_bytes()).await?;
    }
}

#[tokio::test]
async fn sto_1_the_answer_to_every_script_is_read() {
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts");
    let scripts = std::fs::read_dir(scripts).expect("a folder").count();
    assert!(scripts >= 5, "{scripts} scripts");
    for at in 1..=scripts {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let answering = tokio::spawn(async move {
            while let Ok((line, _)) = listener.accept().await {
                tokio::spawn(refuse_script(line, at));
            }
        });
        let error = refused(RedisConfig::new("127.0.0.1", port)).await;
        is(&error, ErrorKind::Unsupported, "older than Redis 7.0");
        answering.abort();
    }
}

#[tokio::test]
async fn sto_1_a_sentinel_is_no_store() {
    let url = service("RETRYPROOF_TEST_SENTINEL", "sentinel");
    let nodes = url.strip_prefix("redis+sentinel://").expect("a URL of sentinels");
    let first = nodes.split([',', '/']).next().expect("a sentinel");
    is(
        &refused(config(&format!("redis://{first}"))).await,
        ErrorKind::Unsupported,
        "redis+sentinel://",
    );
    is(
        &refused(config(&format!("redis+sentinel://{first}/unwatched"))).await,
        ErrorKind::Config,
        "no service",
    );
    let server = Server::start("").await;
    let error = refused(config(&format!("redis+sentinel://127.0.0.1:{}/main", server.port))).await;
    is(&error, ErrorKind::Config, "not a sentinel");
    let locked = format!("requirepass right\nsentinel monitor main 127.0.0.1 {} 1", server.port);
    let locked = Server::sentinel(&locked).await;
    let at = format!("redis+sentinel://127.0.0.1:{}/main", locked.port);
    let wrong = format!("{at}?sentinel-password={CANARY}");
    for url in [&at, &wrong] {
        is(&refused(config(url)).await, ErrorKind::Config, "password");
    }
    let right = config(&format!("{at}?sentinel-password=right"));
    execute(&RedisStore::connect(right).await.expect("it connects"), &id("k"), "x").await;

    // Read the user's rights from the crate's README, so that the test checks that list.
    let page = include_str!("../../../README.md");
    let rights = page
        .split("At a sentinel, the user needs `")
        .nth(1)
        .and_then(|rest| rest.split('`').next())
        .expect("a list");
    locked.told_with("right", &format!("ACL SETUSER watcher on >pw -@all {rights}")).await;
    let enough = config(&format!("{at}?sentinel-user=watcher&sentinel-password=pw"));
    let store = RedisStore::connect(enough).await.expect("it connects");
    execute(&store, &id("k"), "x").await;
    // Wait until the store has subscribed at the sentinel.
    while !locked.told_with("right", "CLIENT LIST TYPE pubsub").await.contains("user=watcher") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn sto_5_a_missing_right_is_named() {
    let server = Server::start("").await;
    let login =
        |user: &str| config(&server.url()).with_user(user).with_password("pw").with_prefix("acl");
    // Read the user's rights from the crate's README, so that the test checks that list.
    let page = include_str!("../../../README.md");
    let listed = page
        .split("ACL SETUSER app ")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("a list");
    let words: Vec<_> = listed.split_whitespace().collect();
    let needed = &words.join(" ").replace(">secret", ">pw").replace("retryproof:*", "acl:*");
    let made = async |user: &str, rights: &str| {
        let mut conn = server.stranger().await;
        let () = ask(&mut conn, &format!("ACL SETUSER {user} reset {rights}")).await;
    };
    made("enough", needed).await;
    let store = RedisStore::connect(login("enough")).await.expect("it connects");
    let (a, owner) = (id("a"), OwnerId::new());
    let token = grant(&store, &a, owner).await.token;
    let waiter = store.wait_for_change(&a, token, LONG);
    let holder = async {
        assert_eq!(store.extend(&a, owner, LONG).await.expect("extended"), FencedWrite::Applied);
        assert_eq!(
            store.complete(&a, owner, &completion("x")).await.expect("completed"),
            FencedWrite::Applied
        );
    };
    let (waited, ()) = tokio::join!(waiter, holder);
    waited.expect("waited");
    assert_eq!(replay(&store, &a).await, "x");
    assert!(matches!(store.peek(&id("none")).await, Ok(Peeked::Absent)));
    let b = id("b");
    grant(&store, &b, owner).await;
    assert_eq!(store.release(&b, owner).await.expect("released"), FencedWrite::Applied);
    is(&store.stats().await.expect_err("no right to scan"), ErrorKind::Unexpected, "access list");
    made("more", &format!("{needed} +wait +config|get +strlen +scan")).await;
    let more = login("more").with_wait_replicas(1, Duration::from_millis(1));
    let more = RedisStore::connect(more).await.expect("it connects");
    assert_eq!(more.stats().await.expect("counted").records, 1);
    assert!(more.get(&a).await.expect("inspected").is_some());
    let error = more.acquire(&id(CANARY), &request(owner)).await.expect_err("there is no replica");
    is(&error, ErrorKind::Unavailable, "expected = 1");

    for without in ["+script|load", "+evalsha", "+set", "+time", "~acl:*"] {
        // The user's name and the key contain the canary, and no error may show either.
        let less = format!("{CANARY}-user");
        made(&less, &needed.replace(without, "")).await;
        is(&refused(login(&less).with_password(CANARY)).await, ErrorKind::Config, "password");
        let error = match RedisStore::connect(login(&less)).await {
            Ok(store) => {
                // Use a key without a record, because a duplicate of a completed call needs only
                // GET and PTTL, and these rights are not missing.
                let new = id(&format!("{CANARY} {without}"));
                store.acquire(&new, &request(OwnerId::new())).await.map(drop).expect_err(without)
            }
            Err(error) => error,
        };
        is(&error, ErrorKind::Unexpected, "access list");
    }
    // Without the right to the channel, waiters get no notifications, but everything else works.
    made("silent", &needed.replace("&acl:*", "resetchannels")).await;
    let silent = RedisStore::connect(login("silent")).await.expect("it connects");
    let c = id("c");
    let token = grant(&silent, &c, owner).await.token;
    let (waited, ()) = tokio::join!(silent.wait_for_change(&c, token, LONG), async {
        assert_eq!(
            silent.complete(&c, owner, &completion("y")).await.expect("completed"),
            FencedWrite::Applied
        );
    });
    waited.expect("a poll finds it");
    assert_eq!(replay(&silent, &c).await, "y");
}

#[tokio::test]
async fn id_4_debug_shows_no_password() {
    let server = Server::start(&format!("requirepass {CANARY}")).await;
    let config = RedisConfig::new("127.0.0.1", server.port).with_password(CANARY);
    assert!(!format!("{config:?}").contains(CANARY));
    let store = RedisStore::connect(config).await.expect("it connects");
    assert!(!format!("{store:?}").contains(CANARY), "{store:?}");
}

#[tokio::test]
async fn sto_3_a_server_that_may_evict_records_is_warned_about() {
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::fmt::MakeWriter;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("a log").extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    impl<'a> MakeWriter<'a> for Log {
        type Writer = Self;
        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
    let _here = tracing::subscriber::set_default(subscriber);
    let said = || String::from_utf8(log.0.lock().expect("a log").clone()).expect("text");
    let server = Server::start("maxmemory-policy noeviction").await;
    drop(connected(&server).await);
    assert!(!said().contains("evict"), "{}", said());
    for policy in ["allkeys-lru", "volatile-ttl"] {
        server.tell(&format!("CONFIG SET maxmemory-policy {policy}")).await;
        drop(connected(&server).await);
        assert!(said().contains("may evict records") && said().contains(policy), "{}", said());
    }
}
