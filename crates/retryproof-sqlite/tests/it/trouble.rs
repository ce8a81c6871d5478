// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that cannot be opened, read or written: a typed error that names the remedy, nothing
//! half-written, no key shown (ID-4).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use retryproof_core::store::{Acquired, FencedWrite, Peeked};
use retryproof_core::{Error, ErrorKind, IdempotencyStore, OwnerId};
use retryproof_sqlite::{SqliteConfig, SqliteStore};

use crate::support::{
    CANARY, Dir, LONG, assert_masked, completion, execute, grant, id, replay, request,
};

fn open(path: impl AsRef<Path>) -> Error {
    let error = SqliteStore::open(path).expect_err("it cannot be opened");
    assert_eq!(error.operation(), Some("open"));
    error
}

#[test]
fn cfg_1_a_missing_directory_is_named() {
    let dir = Dir::new();
    let path = dir.path().join("nowhere").join("records.db");
    for error in [open(&path), SqliteConfig::new(&path).migrate().expect_err("no directory")] {
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let text = error.to_string();
        assert!(text.contains("directory") && text.contains("nowhere"), "{text}");
    }
}

#[test]
fn cfg_1_a_directory_is_no_file() {
    let dir = Dir::new();
    let error = open(dir.path());
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[test]
fn cmp_8_a_file_that_is_no_database_is_refused_and_left_alone() {
    let dir = Dir::new();
    let text = "this is a letter, not a database. ".repeat(100);
    std::fs::write(dir.file(), &text).expect("written");
    for error in
        [open(dir.file()), SqliteConfig::new(dir.file()).migrate().expect_err("no database")]
    {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("not a SQLite database"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(dir.file()).expect("read"), text);
}

#[tokio::test]
async fn cmp_8_a_damaged_file_fails_closed() {
    let dir = Dir::new();
    let store = dir.store();
    for at in 0..200 {
        execute(&store, &id(&format!("{CANARY} {at}")), &CANARY.repeat(50)).await;
    }
    drop(store);
    let mut bytes = std::fs::read(dir.file()).expect("read");
    // Damage all pages from the seventh on. The first page, which lists the tables, and the pages
    // of the version row stay intact.
    let page = 4_096;
    assert!(bytes.len() > 12 * page);
    bytes[6 * page..].fill(0x5a);
    std::fs::write(dir.file(), &bytes).expect("written");
    let Ok(store) = SqliteStore::open(dir.file()) else { return };
    let mut corrupt = 0;
    for at in 0..200 {
        match store.acquire(&id(&format!("{CANARY} {at}")), &request(OwnerId::new())).await {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                assert_masked(&error);
                corrupt += 1;
            }
            Ok(Acquired::Complete(_)) => {}
            Ok(other) => panic!("a finished action would run again: {other:?}"),
        }
    }
    assert!(corrupt > 100, "{corrupt}");
}

#[tokio::test]
async fn sto_5_calls_after_the_end_of_the_writing_thread_are_answered() {
    let (dir, panics) = (Dir::new(), Arc::new(AtomicBool::new(false)));
    let clock = {
        let panics = Arc::clone(&panics);
        move || {
            assert!(!panics.load(Ordering::SeqCst), "on purpose");
            1_700_000_000_000_000
        }
    };
    let store = SqliteStore::open_with(dir.config().with_wall_clock(clock)).expect("opened");
    let (name, owner) = (id("k"), OwnerId::new());
    grant(&store, &name, owner).await;
    panics.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let answer = tokio::time::timeout(LONG, store.extend(&name, owner, LONG)).await;
        let error = answer.expect("an answer").expect_err("the thread has ended");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

#[tokio::test]
async fn sto_5_an_error_that_is_no_lock_is_answered_without_a_second_try() {
    let dir = Dir::new();
    let minute = Duration::from_secs(60);
    let store = SqliteStore::open_with(dir.config().with_busy_timeout(minute)).expect("opened");
    dir.stranger().execute_batch("DROP TABLE retryproof_records").expect("dropped");
    let (name, owner) = (id("k"), OwnerId::new());
    let answer = tokio::time::timeout(minute / 2, store.acquire(&name, &request(owner))).await;
    assert!(answer.expect("no wait for the busy timeout").is_err());
}

#[tokio::test]
async fn cmp_8_a_row_that_we_did_not_write_fails_closed_and_stays() {
    let dir = Dir::new();
    let store = dir.store();
    let spoil = dir.stranger();
    for (at, change) in [
        "state = 7",
        "state = 'x'",
        "owner = x'00'",
        "owner = 'sixteen letters.'",
        "token = -1",
        "token = 'canary-4711'",
        "expires_at = 'canary-4711'",
        "fp = zeroblob(65)",
        "fp = x''",
        "fp = 7",
        "result = NULL",
        "result = 'canary-4711'",
    ]
    .into_iter()
    .enumerate()
    {
        let id = id(&format!("{CANARY} {at}"));
        execute(&store, &id, CANARY).await;
        let spoilt = spoil
            .execute(
                &format!("UPDATE retryproof_records SET {change} WHERE key = ?1"),
                [id.key().expose().as_bytes()],
            )
            .expect("spoilt");
        assert_eq!(spoilt, 1);
        let owner = OwnerId::new();
        for error in [
            store.acquire(&id, &request(owner)).await.map(drop).expect_err(change),
            store.peek(&id).await.map(drop).expect_err(change),
        ] {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{change}: {error}");
            assert!(
                error.to_string().contains(change.split(' ').next().expect("a column")),
                "{error}"
            );
            assert_masked(&error);
        }
        // A release or a completion by another owner does not read the value, so it may not notice
        // that only the value is damaged.
        for fenced in
            [store.release(&id, owner).await, store.complete(&id, owner, &completion("x")).await]
        {
            match fenced {
                Ok(FencedWrite::NotOwner) => {}
                Ok(other) => panic!("{change}: {other:?}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{change}: {error}"),
            }
        }
    }
    let left: i64 = spoil
        .query_row("SELECT count(*) FROM retryproof_records", [], |row| row.get(0))
        .expect("counted");
    assert_eq!(left, 12);
}

#[tokio::test]
async fn acq_10_a_missing_counter_refuses_grants() {
    let dir = Dir::new();
    let store = dir.store();
    execute(&store, &id("done"), "result").await;
    dir.stranger()
        .execute("DELETE FROM retryproof_records_meta WHERE name = 'fence'", [])
        .expect("deleted");
    let error =
        store.acquire(&id(CANARY), &request(OwnerId::new())).await.expect_err("no token to give");
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    assert_masked(&error);
    assert!(matches!(store.peek(&id(CANARY)).await, Ok(Peeked::Absent)));
    assert_eq!(replay(&store, &id("done")).await, "result");
}

#[tokio::test]
async fn acq_10_a_counter_at_its_end_gives_no_token_twice() {
    let dir = Dir::new();
    let store = dir.store();
    let at_the_end =
        format!("UPDATE retryproof_records_meta SET value = {} WHERE name = 'fence'", i64::MAX);
    dir.stranger().execute(&at_the_end, []).expect("written");
    for key in ["a", "b"] {
        let error =
            store.acquire(&id(key), &request(OwnerId::new())).await.expect_err("no token is left");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

#[tokio::test]
async fn sto_5_a_locked_file_is_unavailable_after_the_busy_timeout() {
    let dir = Dir::new();
    let config = dir.config().with_busy_timeout(Duration::from_millis(50));
    let store = SqliteStore::open_with(config.clone()).expect("opened");
    let (held, owner) = (id("held"), OwnerId::new());
    grant(&store, &held, owner).await;
    execute(&store, &id("done"), "result").await;
    let stranger = dir.stranger();
    stranger.execute_batch("BEGIN EXCLUSIVE").expect("locked");

    let fresh = id(CANARY);
    for error in [
        store.acquire(&fresh, &request(OwnerId::new())).await.map(drop).expect_err("locked"),
        store.extend(&held, owner, LONG).await.map(drop).expect_err("locked"),
        store.complete(&held, owner, &completion(CANARY)).await.map(drop).expect_err("locked"),
        store.release(&held, owner).await.map(drop).expect_err("locked"),
        SqliteConfig::migrate(&config).expect_err("locked"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.is_retryable() && error.to_string().contains("locked"), "{error}");
        assert_masked(&error);
    }
    // While the file is locked, completed keys are replayed, and duplicates of running calls are
    // reported as busy.
    assert_eq!(replay(&store, &id("done")).await, "result");
    assert!(matches!(store.peek(&held).await, Ok(Peeked::Busy(_))));

    stranger.execute_batch("ROLLBACK").expect("unlocked");
    assert!(matches!(store.peek(&fresh).await, Ok(Peeked::Absent)), "nothing half-written");
    assert_eq!(
        store.complete(&held, owner, &completion("late")).await.expect("completed"),
        FencedWrite::Applied
    );
}

/// Connections with a shared cache lock tables against reads, too.
#[tokio::test]
async fn sto_5_a_read_goes_on_when_the_lock_is_given_back_in_time() {
    let (dir, done) = (Dir::new(), id("done"));
    execute(&dir.store(), &done, "result").await;
    let shared = format!("file:{}?cache=shared", dir.file().display());
    let config = SqliteConfig::new(&shared).with_busy_timeout(Duration::from_millis(200));
    let store = SqliteStore::open_with(config).expect("opened");
    let stranger = rusqlite::Connection::open(&shared).expect("opened");
    stranger.execute_batch("BEGIN; UPDATE retryproof_records SET takeovers=0").expect("locked");
    let error = store.peek(&done).await.map(drop).expect_err("locked");
    assert!(error.is_retryable() && error.to_string().contains("locked"), "{error}");
    let mut call = Box::pin(replay(&store, &done));
    assert!(tokio::time::timeout(Duration::from_millis(20), &mut call).await.is_err());
    stranger.execute_batch("COMMIT").expect("unlocked");
    assert_eq!(call.await, "result");
}

#[tokio::test]
async fn sto_5_a_call_goes_on_when_the_lock_is_given_back_in_time() {
    for in_place in [false, true] {
        let dir = Dir::new();
        let store = SqliteStore::open_with(dir.config().with_in_place(in_place)).expect("opened");
        let stranger = dir.stranger();
        stranger.execute_batch("BEGIN EXCLUSIVE").expect("locked");
        let id = id("k");
        let mut call = Box::pin(grant(&store, &id, OwnerId::new()));
        // The call makes some attempts within this time limit, but cannot end while the file is
        // locked.
        let ended = tokio::time::timeout(Duration::from_millis(20), &mut call).await;
        assert!(ended.is_err());
        stranger.execute_batch("COMMIT").expect("unlocked");
        assert!(!call.await.took_over);
    }
}

#[tokio::test]
async fn cmp_9_a_value_over_the_limit_is_too_large() {
    let dir = Dir::new();
    let store = SqliteStore::open_with(dir.config().with_max_value(100)).expect("opened");
    assert_eq!(store.profile().max_value, 100);
    let (id, owner) = (id(CANARY), OwnerId::new());
    grant(&store, &id, owner).await;
    let error =
        store.complete(&id, owner, &completion(&CANARY.repeat(20))).await.expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    assert_masked(&error);
    let most = dir.store().profile().max_value;
    assert!(most > 100 << 20 && most < 1 << 30, "what SQLite takes: {most}");
}

#[test]
fn id_4_debug_shows_no_key() {
    let dir = Dir::new();
    assert!(format!("{:?}", dir.store()).contains("records.db"));
}

/// File permissions do not restrict root, so the test runs itself again as the user `nobody`.
#[cfg(unix)]
mod permissions {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    const AGAIN: &str = "RETRYPROOF_SQLITE_TEST_AS_NOBODY";

    fn mode(path: &Path, mode: u32) {
        set_permissions(path, Permissions::from_mode(mode)).expect("permissions are set");
    }

    /// Returns whether file permissions restrict this process.
    fn bound() -> bool {
        let dir = Dir::new();
        let file = dir.path().join("locked");
        std::fs::write(&file, "").expect("written");
        mode(&file, 0o000);
        std::fs::read(&file).is_err()
    }

    #[test]
    fn sto_5_missing_permissions_are_named() {
        if bound() {
            return check();
        }
        assert!(std::env::var_os(AGAIN).is_none(), "permissions restrict no user");
        let name = "trouble::permissions::sto_5_missing_permissions_are_named";
        // Run a copy of the test program, because other users may not have access to the original's
        // directory.
        let dir = Dir::new();
        mode(dir.path(), 0o755);
        let copy = dir.path().join("it");
        std::fs::copy(std::env::current_exe().expect("a path"), &copy).expect("copied");
        mode(&copy, 0o755);
        let output = Command::new(copy)
            .args([name, "--exact", "--nocapture"])
            .env(AGAIN, "1")
            .env_remove("TMPDIR")
            .current_dir("/")
            .uid(65_534)
            .gid(65_534)
            .output()
            .expect("it runs again");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn check() {
        let dir = Dir::new();
        drop(dir.store());
        // Closing the last connection has removed the write-ahead log.
        let unchanged = std::fs::read(dir.file()).expect("read");

        mode(&dir.file(), 0o444);
        let error = open(dir.file());
        assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
        assert!(
            error.to_string().contains("read-only") && error.to_string().contains("records.db"),
            "{error}"
        );

        mode(&dir.file(), 0o000);
        let error = open(dir.file());
        assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
        assert!(error.to_string().contains("could not be opened"), "{error}");

        mode(&dir.file(), 0o644);
        mode(dir.path(), 0o555);
        let error = open(dir.file());
        assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
        assert!(error.to_string().contains("directory"), "{error}");
        let error =
            SqliteConfig::new(dir.path().join("new.db")).migrate().expect_err("not writable");
        assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");

        mode(dir.path(), 0o755);
        assert_eq!(std::fs::read(dir.file()).expect("read"), unchanged);
    }
}

#[tokio::test]
async fn sto_5_a_read_only_file_is_refused_at_open() {
    let dir = Dir::new();
    drop(dir.store());
    let error = open(format!("file:{}?mode=ro", dir.file().display()));
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");
}
