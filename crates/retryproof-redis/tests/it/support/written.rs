// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts the writes that reach a server's keys, including those that do not change a key.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind};

use super::ask;

/// A connection to which the server reports every write to a key with the prefix.
pub(crate) struct Written {
    connection: MultiplexedConnection,
    told: Arc<AtomicU64>,
}

impl Written {
    pub(crate) async fn below(url: &str, prefix: &str) -> Self {
        let told = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&told);
        let config = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Invalidate {
                counter.fetch_add(1, Ordering::SeqCst);
            }
            Ok::<(), Infallible>(())
        });
        let link = if url.contains('?') { '&' } else { '?' };
        let client = Client::open(format!("{url}{link}protocol=resp3")).expect("a URL");
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .expect("a connection");
        let track = format!("CLIENT TRACKING ON BCAST PREFIX {prefix}");
        let _: String = ask(&mut connection, &track).await;
        Self { connection, told }
    }

    /// Returns the number of writes so far. The answer to the PING comes after the reports of all
    /// earlier writes.
    pub(crate) async fn count(&self) -> u64 {
        let _: String = ask(&mut self.connection.clone(), "PING").await;
        self.told.load(Ordering::SeqCst)
    }
}
