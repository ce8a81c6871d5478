// SPDX-License-Identifier: MIT OR Apache-2.0
//! The job, and which unit of work it is.

use std::path::Path;

use apalis::prelude::Task;
use retryproof::Lease;
use retryproof::tower::Identify;
use serde::{Deserialize, Serialize};

use crate::BoxError;

/// One line of the outbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invoice {
    /// The order that is to be paid; there is one invoice for each.
    pub order: String,
    /// Who pays.
    pub customer: String,
    /// How much.
    pub cents: u64,
    /// The key of the mail. It stays the same when another worker takes the job over from one that
    /// died, so that a mail server recognises the mail.
    #[serde(skip)]
    pub message_id: String,
}

/// Reads an outbox: one JSON object in each line.
///
/// # Errors
/// When the file cannot be read, or a line is no invoice.
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

/// A job is its order. A task id would not do: the outbox makes a new one for each delivery.
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
