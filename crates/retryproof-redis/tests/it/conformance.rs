// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance kit (STO-2) on real servers: one alone, the primary of a Sentinel group, and a
//! cluster.

use std::sync::Arc;

use retryproof_redis::{RedisConfig, RedisStore};
use retryproof_testkit::{StoreSetup, Subject};

use crate::support::{Written, ask, key_of, own_prefix, service, stranger};

async fn subject(variable: &'static str, name: &'static str) -> Subject {
    let prefix = own_prefix();
    let config =
        RedisConfig::from_url(&service(variable, name)).expect("a good URL").with_prefix(&prefix);
    let config = config.with_max_value(4 << 20);
    let store = RedisStore::connect(config.clone()).await.expect("the store connects");
    let identities = {
        let config = config.clone();
        move |setup: StoreSetup| {
            let config = config.clone().with_prefix(setup.name);
            let config = match setup.secret {
                Some(secret) => config.with_identity_secret(secret),
                None => config,
            };
            async move {
                if setup.migrates {
                    config.migrate().await?;
                }
                Ok(RedisStore::connect(config).await?.into_shared())
            }
        }
    };
    let another = move || {
        let config = config.clone();
        async move { RedisStore::connect(config).await.expect("it connects again").into_shared() }
    };
    let mut written = Vec::new();
    for url in primary_urls(variable, name).await {
        written.push(Written::below(&url, &prefix).await);
    }
    let written = Arc::new(written);
    let writes = move || {
        let written = Arc::clone(&written);
        async move {
            let mut count = 0;
            for written in written.iter() {
                count += written.count().await;
            }
            count
        }
    };
    let corrupt = move |id: retryproof_core::Identity| {
        let key = key_of(&prefix, &id);
        async move {
            let mut spoilt = 0;
            for url in primary_urls(variable, name).await {
                let mut conn = stranger(&url).await;
                let mut spoil = redis::cmd("SETRANGE");
                let spoil = spoil.arg(&key).arg(2).arg("9").query_async::<i64>(&mut conn);
                // The primaries of a cluster that do not have the key refuse the command.
                spoilt += u32::from(spoil.await.is_ok());
            }
            assert_eq!(spoilt, 1, "the record is spoilt");
        }
    };
    Subject::of(store)
        .with_inspect()
        .with_force()
        .with_wake_ups()
        .with_another(another)
        .with_identities(identities)
        .with_corrupt(corrupt)
        .with_writes(writes)
        .build()
}

/// Returns the URLs of the primaries, for connections that are not the store's.
async fn primary_urls(variable: &str, name: &str) -> Vec<String> {
    let url = service(variable, name);
    if let Some(nodes) = url.strip_prefix("redis+cluster://") {
        let mut primaries = Vec::new();
        for node in nodes.split(',') {
            let url = format!("redis://{node}");
            let info: String = ask(&mut stranger(&url).await, "INFO replication").await;
            if info.contains("role:master") {
                primaries.push(url);
            }
        }
        return primaries;
    }
    let Some(rest) = url.strip_prefix("redis+sentinel://") else { return vec![url] };
    let (nodes, group) = rest.split_once('/').expect("a service");
    let node = nodes.split(',').next().expect("a sentinel");
    let mut conn = stranger(&format!("redis://{node}")).await;
    let group = group.split('?').next().unwrap_or(group);
    let at: Vec<String> =
        ask(&mut conn, &format!("SENTINEL get-master-addr-by-name {group}")).await;
    vec![format!("redis://{}:{}", at[0], at[1])]
}

mod standalone {
    use super::*;

    async fn standalone() -> Subject {
        subject("RETRYPROOF_TEST_REDIS", "redis").await
    }

    retryproof_testkit::conformance! { time = real, factory = standalone }
}

mod sentinel {
    use super::*;

    async fn sentinel() -> Subject {
        subject("RETRYPROOF_TEST_SENTINEL", "sentinel").await
    }

    retryproof_testkit::conformance! { time = real, factory = sentinel }
}

mod cluster {
    use super::*;

    async fn cluster() -> Subject {
        subject("RETRYPROOF_TEST_CLUSTER", "cluster").await
    }

    retryproof_testkit::conformance! { time = real, factory = cluster }
}
