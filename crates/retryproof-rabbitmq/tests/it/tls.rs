// SPDX-License-Identifier: MIT OR Apache-2.0
//! `amqps://`: a broker with a valid certificate is used, and a build without TLS refuses the URL
//! with a message.

use retryproof_core::ErrorKind;
use retryproof_rabbitmq::{RabbitmqListener, Topology};

use crate::support::{CANARY, url};

/// The URL is rejected; otherwise the password would be sent in clear text.
#[cfg(not(feature = "tls"))]
#[tokio::test]
async fn id_4_a_url_that_asks_for_tls_is_refused_and_the_feature_named() {
    let url =
        url().replace("amqp://", "amqps://").replace("guest:guest", &format!("guest:{CANARY}"));
    let of_topology = Topology::new("q").declare(&url).await.expect_err("refused");
    let of_listener = RabbitmqListener::builder(&url, "q", "s")
        .dead_letters("q.dead")
        .build()
        .expect_err("refused");
    for error in [of_topology, of_listener] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        assert!(error.to_string().contains("`rabbitmq-tls`"), "{error:?}");
        assert!(!format!("{error} {error:?}").contains(CANARY), "{error:?}");
    }
}

#[cfg(feature = "tls")]
mod with_tls {
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use retryproof_core::IdempotencyEngine;
    use retryproof_core::listener::{Backoff, Reason, Verdict};
    use retryproof_memory::MemoryStore;
    use retryproof_rabbitmq::Delivery;

    use super::*;
    use crate::support::{Running, TestQueues, service};

    fn authority() -> Vec<u8> {
        std::fs::read(service("RETRYPROOF_TEST_RABBITMQ_TLS_ROOT")).expect("read")
    }

    #[tokio::test]
    async fn lst_2_over_tls_messages_are_handled_put_off_and_skipped_as_without() {
        let url = service("RETRYPROOF_TEST_RABBITMQ_TLS");
        assert!(url.starts_with("amqps://"));
        let queues = TestQueues::bare().await;
        Topology::new(&queues.queue)
            .root_certificates(authority())
            .declare(&url)
            .await
            .expect("declared");
        let engine = IdempotencyEngine::new(MemoryStore::new());
        let runs = Arc::new(AtomicUsize::new(0));
        let listener = queues.listener_at(&url).root_certificates(authority());
        let soon = Backoff::new(Duration::from_millis(1), Duration::from_millis(1));
        let listener = listener.backoff(soon).build().expect("built");
        let counted = Arc::clone(&runs);
        let running = Running::start(listener, move |delivery: Delivery| {
            let (call, runs) =
                (engine.call(delivery.context().expect("a key")), Arc::clone(&counted));
            async move {
                let run = async || {
                    if runs.fetch_add(1, Ordering::SeqCst) == 0 { Err("once") } else { Ok(()) }
                };
                Verdict::of(&call.execute(run).await)
            }
        });
        // This body takes more than one TLS record.
        let body = "paid".repeat(50_000);
        queues.publish("k", &body).await;
        running.answered(Reason::Failed, 1).await; // sent over the connection for copies
        running.answered(Reason::Executed, 1).await;
        queues.publish("k", &body).await;
        running.answered(Reason::Replayed, 1).await;
        assert_eq!(runs.load(Ordering::SeqCst), 2);
        running.stop().await.expect("stopped");
        assert_eq!((queues.ready(&queues.queue).await, queues.ready(&queues.dead()).await), (0, 0));
        queues.clean().await;
    }

    #[tokio::test]
    async fn id_4_a_broker_that_cannot_be_known_or_speaks_no_tls_is_given_no_password_and_said_so()
    {
        let tls = service("RETRYPROOF_TEST_RABBITMQ_TLS")
            .replace("guest:guest", &format!("guest:{CANARY}"));
        let plain = url().replace("amqp://guest:guest", &format!("amqps://guest:{CANARY}"));
        // The first broker has a certificate that the host does not trust. The second has no TLS.
        for (url, roots) in [(&tls, None), (&plain, Some(authority()))] {
            let mut listener = RabbitmqListener::builder(url, "q", "s").dead_letters("q.dead");
            if let Some(roots) = roots {
                listener = listener.root_certificates(roots);
            }
            let listener = listener.build().expect("built");
            let error = listener
                .run(|_| async { Ok(Verdict::failed()) }, pending())
                .await
                .expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Config, "{error:?}");
            assert!(error.to_string().contains("certificate"), "{error:?}");
            assert!(!format!("{error} {error:?}").contains(CANARY), "{error:?}");
        }
    }

    #[test]
    fn sto_1_root_certificates_that_cannot_be_read_are_refused() {
        for bad in ["", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
        {
            let listener = RabbitmqListener::builder("amqps://localhost", "q", "s")
                .dead_letters("q.dead")
                .root_certificates(bad);
            let error = listener.build().expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains("root certificate"), "{error}");
        }
    }
}
