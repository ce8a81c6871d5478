// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effect: a mail, which here is a line in a file.

use std::fs::OpenOptions;
use std::future::Future;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use crate::BoxError;
use crate::job::Invoice;

/// Sends mails.
pub trait Mailer: Clone + Send + Sync + 'static {
    /// Sends one.
    fn send(&self, invoice: &Invoice) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// Appends mails to a file, each after a while, as a mail server would.
#[derive(Debug, Clone)]
pub struct FileMailer {
    /// The file.
    pub path: PathBuf,
    /// How long a mail takes.
    pub takes: Duration,
}

impl Mailer for FileMailer {
    async fn send(&self, invoice: &Invoice) -> Result<(), BoxError> {
        tokio::time::sleep(self.takes).await;
        let Invoice { order, customer, cents, message_id } = invoice;
        // One write, so that lines stay whole.
        let line = format!("{order}\t{customer}\t{cents}\t{message_id}\n");
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path)?
            .write_all(line.as_bytes())?;
        Ok(())
    }
}
