// SPDX-License-Identifier: MIT OR Apache-2.0
//! Subscribes to the consumers' acknowledgements and counts them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_nats::jetstream::Context;
use futures_util::StreamExt;
use tokio::sync::watch;

use crate::BoxError;
use crate::app::CONSUMER;

/// The answers to one message of the stream.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MessageAnswers {
    /// The highest delivery count in any answer.
    pub(crate) deliveries: u64,
    pub(crate) given_back: usize,
}

/// Collects the answers. If a consumer is killed before it answers, there is no answer to collect.
#[derive(Debug)]
pub(crate) struct AckMonitor {
    messages: Arc<Mutex<HashMap<u64, MessageAnswers>>>,
    answers: watch::Receiver<usize>,
}

impl AckMonitor {
    pub(crate) async fn listen(jetstream: &Context, stream: &str) -> Result<Self, BoxError> {
        let client = jetstream.client();
        let mut said = client.subscribe(format!("$JS.ACK.{stream}.{CONSUMER}.>")).await?;
        client.flush().await?;
        let messages = Arc::new(Mutex::new(HashMap::new()));
        let (count, answers) = watch::channel(0);
        let noted = Arc::clone(&messages);
        tokio::spawn(async move {
            while let Some(answer) = said.next().await {
                // The subject is `$JS.ACK.STREAM.CONSUMER.DELIVERIES.SEQUENCE.…`.
                let mut parts = answer.subject.split('.').skip(4).map(str::parse::<u64>);
                let (Some(Ok(deliveries)), Some(Ok(sequence))) = (parts.next(), parts.next())
                else {
                    continue;
                };
                let mut noted: MutexGuard<'_, HashMap<u64, MessageAnswers>> = lock(&noted);
                let heard = noted.entry(sequence).or_default();
                heard.deliveries = heard.deliveries.max(deliveries);
                heard.given_back += usize::from(answer.payload.starts_with(b"-NAK"));
                if answer.payload.starts_with(b"+ACK") {
                    count.send_modify(|answers| *answers += 1);
                }
            }
        });
        Ok(Self { messages, answers })
    }

    /// Returns the number of acknowledgements.
    pub(crate) fn answers(&self) -> usize {
        *self.answers.borrow()
    }

    pub(crate) async fn more_than(&self, answers: usize) {
        drop(self.answers.clone().wait_for(|heard| *heard > answers).await);
    }

    pub(crate) fn messages(&self) -> HashMap<u64, MessageAnswers> {
        lock(&self.messages).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
