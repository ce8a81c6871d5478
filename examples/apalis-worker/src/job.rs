// SPDX-License-Identifier: MIT OR Apache-2.0
//! The job, and the scope and key that identify its work.

use std::path::Path;

use apalis::prelude::Task;
use retryproof::Lease;
use retryproof::tower::Identify;
use serde::{Deserialize, Serialize};

use crate::BoxError;

/// One line of the outbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invoice {
    /// The order to pay. Each order has one invoice.
    pub order: String,
    /// The customer who pays.
    pub customer: String,
    /// The amount in cents.
    pub cents: u64,
    /// The key of the mail. If another worker takes over the job, the key stays the same, so a mail
    /// server can recognise the repeated mail.
    #[serde(skip)]
    pub message_id: String,
}

/// Reads an outbox, which has one JSON object per line.
///
/// # Errors
/// If the file cannot be read, or a line is not an invoice.
pub fn read_outbox(path: &Path) -> Result<Vec<Invoice>, BoxError> {
    let text = std::fs::read_to_string(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(at, line)| {
            serde_json::from_str(line)
                .map_err(|error| format!("line {} of the outbox: {error}", at + 1).into())
        })
        .collect()
}

/// Identifies a job by its order. A task id cannot identify the job, because each delivery gets a
/// new task id.
#[derive(Debug, Clone, Copy)]
pub struct ByOrder;

impl Identify<Task<Invoice>> for ByOrder {
    type Context = (&'static str, String);

    fn identify(&self, task: &Task<Invoice>) -> Self::Context {
        ("invoices", task.args.order.clone())
    }

    fn granted(&self, task: &mut Task<Invoice>, lease: &Lease) {
        task.args.message_id = lease.downstream_key("mail");
    }
}
