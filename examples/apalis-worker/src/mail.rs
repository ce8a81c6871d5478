// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effect: a mail. In this example, a mail is a line in a file.

use std::fs::OpenOptions;
use std::future::Future;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use crate::BoxError;
use crate::job::Invoice;

/// Sends mails.
pub trait Mailer: Clone + Send + Sync + 'static {
    /// Sends the mail for an invoice.
    fn send(&self, invoice: &Invoice) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// Appends mails to a file. Each mail takes a while, as with a real mail server.
#[derive(Debug, Clone)]
pub struct FileMailer {
    /// The file.
    pub path: PathBuf,
    /// How long sending a mail takes.
    pub takes: Duration,
}

impl Mailer for FileMailer {
    async fn send(&self, invoice: &Invoice) -> Result<(), BoxError> {
        tokio::time::sleep(self.takes).await;
        let Invoice { order, customer, cents, message_id } = invoice;
        // Write the line in one call, so that lines of different writers do not mix.
        let line = format!("{order}\t{customer}\t{cents}\t{message_id}\n");
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path)?
            .write_all(line.as_bytes())?;
        Ok(())
    }
}
