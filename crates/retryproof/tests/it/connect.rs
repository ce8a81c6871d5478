// SPDX-License-Identifier: MIT OR Apache-2.0
//! STO-1, STO-3, CFG-1: which store a URL selects, which URLs are refused, and that only `migrate`
//! creates tables.

use retryproof::{
    Error, ErrorKind, IdempotencyConfig, IdempotencyContext, IdempotencyEngine, Outcome,
    SharedStore,
};

async fn refusal(url: &str) -> Error {
    let error = retryproof::connect(url).await.expect_err(url);
    let migrating = retryproof::migrate(url).await.expect_err(url);
    assert_eq!(error.kind(), migrating.kind(), "{url}");
    for text in
        [error.to_string(), format!("{error:?}"), migrating.to_string(), format!("{migrating:?}")]
    {
        assert!(!text.contains("canary"), "ID-4: {text}");
    }
    error
}

fn configured(store: Option<&str>) -> IdempotencyConfig {
    let mut config = IdempotencyConfig::default();
    config.store = store.map(str::to_owned);
    config
}

async fn run(store: SharedStore, value: u32) -> Outcome<u32> {
    let ctx = IdempotencyContext::builder("connect", "key-1").build().unwrap();
    let outcome =
        IdempotencyEngine::new(store).execute(ctx, || async { Ok::<_, Error>(value) }).await;
    outcome.unwrap()
}

#[tokio::test]
async fn sto_1_memory_is_had_by_its_name_only() {
    let store = retryproof::connect("memory:").await.unwrap();
    assert!(store.can_purge(), "with every capability that it has");
    assert_eq!(run(store, 1).await, Outcome::Executed(1));
    assert_eq!(
        run(retryproof::connect("memory:").await.unwrap(), 2).await,
        Outcome::Executed(2),
        "each is its own"
    );
    retryproof::migrate("memory:").await.unwrap();
    assert_eq!(
        run(retryproof::connect_with(&configured(Some("memory:"))).await.unwrap(), 3).await,
        Outcome::Executed(3)
    );
}

#[tokio::test]
async fn cfg_1_the_keys_of_memory_bound_the_store() {
    let mut config = configured(Some("memory:"));
    config.memory.max_records = Some(0);
    let engine = IdempotencyEngine::new(retryproof::connect_with(&config).await.unwrap());
    let ctx = || IdempotencyContext::builder("connect", "key-1").build().unwrap();
    let full = |error: Error| assert_eq!(error.kind(), ErrorKind::Full, "STO-1: {error}");
    engine.try_acquire(&ctx()).await.map(drop).map_err(full).unwrap_err();
    config.memory.max_records = Some(1);
    config.memory.max_bytes = Some(1);
    let engine = IdempotencyEngine::new(retryproof::connect_with(&config).await.unwrap());
    engine.try_acquire(&ctx()).await.map(drop).map_err(full).unwrap_err();
}

#[tokio::test]
async fn sto_1_no_store_is_picked_by_itself() {
    for url in ["", "hello", ":", ":memory:", "records.db", "/var/records.db", "memory"] {
        let error = refusal(url).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{url}: {error}");
        assert!(
            error.to_string().contains("sqlite:records.db"),
            "it says what to use instead: {error}"
        );
        let says = if url.is_empty() { "no store is named" } else { "has no scheme" };
        assert!(error.to_string().contains(says), "{url}: {error}");
        for (is_on, form) in [
            (cfg!(feature = "sqlite"), "`sqlite:FILE`"),
            (cfg!(feature = "postgres"), "`postgres://USER:PASSWORD@HOST:PORT/DATABASE`"),
            (cfg!(feature = "redis"), "`redis://HOST:PORT/DB`"),
        ] {
            let off = format!("{form} with the feature");
            assert!(error.to_string().contains(form), "{error}");
            assert_eq!(
                error.to_string().contains(&off),
                !is_on,
                "it names the enabled features: {error}"
            );
        }
    }
    let error = retryproof::connect_with(&IdempotencyConfig::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("idempotency.store"), "{error}");
    assert!(retryproof::migrate_with(&IdempotencyConfig::default()).await.is_err());
}

#[tokio::test]
async fn sto_1_id_4_an_unknown_url_is_refused_without_its_password() {
    for (url, says) in [
        ("etcd://app:canary@db/records", "`etcd`"),
        ("redis+ring://:canary@h", "`redis+ring`"),
        ("SQLITE:records.db", "`SQLITE`"),
        ("POSTGRES://app:canary@db/records", "`POSTGRES`"),
        ("app-canary@db:5432/records", "`(hidden)`"),
        ("memoryofacanaryormore:", "`(hidden)`"),
        ("memory:canary", "without anything after it"),
        ("memory://", "without anything after it"),
    ] {
        let error = refusal(url).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{url}");
        assert!(error.to_string().contains(says), "{error}");
    }
    let error = refusal("etcd:x").await.to_string();
    for known in [
        "memory:",
        "sqlite:FILE",
        "postgres://",
        "mysql://",
        "redis://",
        "redis+sentinel://",
        "redis+cluster://",
    ] {
        assert!(error.contains(known), "it says what to use instead: {error}");
    }
}

#[tokio::test]
async fn sto_1_a_store_whose_feature_is_off_names_the_feature() {
    for (is_on, feature, urls) in [
        (cfg!(feature = "sqlite"), "`sqlite-bundled`", &["sqlite:records.db", "sqlite:"][..]),
        (
            cfg!(feature = "postgres"),
            "`postgres`",
            &["postgres://app:canary@h/d", "postgresql://app:canary@h/d", "postgres:"],
        ),
        (
            cfg!(feature = "mysql"),
            "`mysql`",
            &["mysql://app:canary@h/d", "mariadb://app:canary@h/d"],
        ),
        (cfg!(feature = "mysql-tls"), "`mysql", &["mysql://app:canary@h/d?ssl-mode=required"]),
        (
            cfg!(feature = "redis"),
            "`redis`",
            &[
                "redis://:canary@h",
                "redis+sentinel://:canary@h/main",
                "redis+cluster://:canary@h,i",
            ],
        ),
        (
            cfg!(feature = "redis-tls"),
            "`redis-tls`",
            &[
                "rediss://:canary@h",
                "rediss+sentinel://:canary@h/main",
                "rediss+cluster://:canary@h,i",
            ],
        ),
    ] {
        for url in urls.iter().filter(|_| !is_on) {
            let error = refusal(url).await;
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{url}");
            assert!(error.to_string().contains(feature), "{error}");
        }
    }
}

#[cfg(all(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "redis"))]
mod parameters;
#[cfg(all(feature = "postgres", feature = "mysql", feature = "redis"))]
mod servers;

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::path::{Path, PathBuf};

    use super::*;

    /// A folder that is removed with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir()
                .join(format!("retryproof-connect-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn url(&self, file: &str) -> String {
            format!("sqlite:{}", self.0.join(file).display())
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn is_empty(folder: &Path) -> bool {
        std::fs::read_dir(folder).unwrap().next().is_none()
    }

    #[tokio::test]
    async fn sto_1_a_sqlite_file_outlives_its_store() {
        let folder = Folder::new("outlives");
        let url = folder.url("records.db");
        retryproof::migrate(&url).await.unwrap();
        retryproof::migrate(&url).await.unwrap();
        let store = retryproof::connect(&url).await.unwrap();
        assert!(
            store.can_purge() && store.stats().await.unwrap().is_some(),
            "with every capability that it has"
        );
        assert_eq!(run(store, 1).await, Outcome::Executed(1));
        assert_eq!(run(retryproof::connect(&url).await.unwrap(), 2).await, Outcome::Replayed(1));
        let absolute = url.replacen("sqlite:", "sqlite://", 1);
        assert_eq!(
            run(retryproof::connect(&absolute).await.unwrap(), 3).await,
            Outcome::Replayed(1),
            "{absolute}"
        );
    }

    #[tokio::test]
    async fn sto_3_connect_makes_nothing_and_says_what_to_call() {
        let folder = Folder::new("nothing");
        let error = retryproof::connect(&folder.url("records.db")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert!(error.to_string().contains("migrate"), "{error}");
        assert!(is_empty(&folder.0), "STO-3");
    }

    #[tokio::test]
    async fn sto_1_a_bad_sqlite_url_is_refused_and_makes_nothing() {
        let folder = Folder::new("bad");
        for (url, kind) in [
            ("sqlite:".to_owned(), ErrorKind::Config),
            ("sqlite://".to_owned(), ErrorKind::Config),
            ("sqlite:?table=x".to_owned(), ErrorKind::Config),
            ("sqlite::memory:".to_owned(), ErrorKind::Config),
            (folder.url("a.db?mode=ro"), ErrorKind::Config),
            (folder.url("a.db?table=drop table x"), ErrorKind::Config),
            (folder.url("a.db?table=sqlite_x"), ErrorKind::Config),
            (folder.url("a.db?synchronous=off"), ErrorKind::Config),
            (folder.url("no/such/folder/a.db"), ErrorKind::Config),
        ] {
            let error = refusal(&url).await;
            assert_eq!(error.kind(), kind, "{url}: {error}");
        }
        assert!(is_empty(&folder.0));
    }

    #[cfg(feature = "seal")]
    #[tokio::test]
    async fn id_5_seal_8_a_refused_migration_makes_no_table_of_keys() {
        let folder = Folder::new("refused");
        let mut config = configured(Some(&folder.url("app.db")));
        let secret = |byte: u8| Some(retryproof::IdentitySecret::new([byte; 32]).unwrap());
        config.identity_secret = secret(1);
        retryproof::migrate_with(&config).await.unwrap();
        config.identity_secret = secret(2);
        config.seal.keys = Some(folder.url("keys.db"));
        std::fs::write(folder.0.join("master"), format!("one:{}", "a1".repeat(32))).unwrap();
        config.seal.master = Some(folder.0.join("master").display().to_string());
        let error = retryproof::migrate_with(&config).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(!folder.0.join("keys.db").exists());
        config.identity_secret = secret(1);
        retryproof::migrate_with(&config).await.unwrap();
        assert!(folder.0.join("keys.db").exists());
    }

    #[tokio::test]
    async fn cfg_1_the_keys_of_sqlite_reach_the_store() {
        let folder = Folder::new("keys");
        let url = folder.url("app.db");
        let mut config = configured(Some(&url));
        config.sqlite.table_name = Some("payment_records".to_owned());
        config.sqlite.synchronous = Some(retryproof::config::Synchronous::Normal);
        retryproof::migrate_with(&config).await.unwrap();
        assert_eq!(
            run(retryproof::connect_with(&config).await.unwrap(), 1).await,
            Outcome::Executed(1)
        );
        let error = retryproof::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "the default table was not created: {error}");
        let by_url = format!("{url}?table=payment_records&synchronous=normal");
        assert_eq!(run(retryproof::connect(&by_url).await.unwrap(), 2).await, Outcome::Replayed(1));

        for (parameter, key) in
            [("table=payment_records", "table-name"), ("synchronous=normal", "synchronous")]
        {
            config.store = Some(format!("{url}?{parameter}"));
            let error = retryproof::connect_with(&config).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(key), "said twice: {error}");
        }
    }
}

#[cfg(all(feature = "blocking", feature = "sqlite"))]
mod blocking;
