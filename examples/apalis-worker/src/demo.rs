// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes an outbox that delivers each job twice, and again after a restart.

use std::path::Path;
use std::time::Duration;

use retryproof::IdempotencyEngine;

use crate::BoxError;
use crate::job::read_outbox;
use crate::mail::FileMailer;
use crate::patience::Patience;
use crate::worker::{Tally, work};

/// Processes an outbox once. `store` is the URL of the store.
///
/// # Errors
/// If the outbox or the store cannot be opened.
pub async fn run(outbox: &Path, mails: &Path, store: &str) -> Result<Tally, BoxError> {
    retryproof::migrate(store).await?;
    let engine = IdempotencyEngine::new(retryproof::connect(store).await?);
    let mailer = FileMailer { path: mails.to_owned(), takes: Duration::from_millis(20) };
    let patience = Patience { retries: 3, pause: Duration::from_millis(200) };
    work(engine, mailer, read_outbox(outbox)?, patience).await
}

/// Runs the demo in a folder and reports each step.
///
/// # Errors
/// If the folder cannot be written.
pub async fn demo(folder: &Path, mut tell: impl FnMut(String)) -> Result<(), BoxError> {
    let (outbox, mails) = (folder.join("outbox.jsonl"), folder.join("mails.tsv"));
    let lines: String = [17, 18, 19, 17, 18, 19]
        .iter()
        .map(|order| format!("{{\"order\":\"{order}\",\"customer\":\"alice\",\"cents\":4200}}\n"))
        .collect();
    std::fs::write(&outbox, lines)?;
    let store = format!("sqlite:{}", folder.join("records.db").display());
    for start in ["first start", "second start"] {
        let Tally { done, failed } = run(&outbox, &mails, &store).await?;
        let sent = std::fs::read_to_string(&mails)?.lines().count();
        tell(format!("{start}: {done} jobs done, {failed} given up; {sent} mails sent in all"));
    }
    Ok(())
}
