// SPDX-License-Identifier: MIT OR Apache-2.0
//! `erase --subject` and `keys rotate`: an operator changes the keys of sealed results (SEAL-8).
//! Each change leaves two audit lines on stderr: the request, before the change, and its outcome.

use retryproof::seal::{DataSubject, Destruction, Seals};
use retryproof::{IdempotencyConfig, seals_with};
use serde_json::json;

use super::audit::{own_name, unwritten, write_line};
use super::confirm::confirm;
use crate::arguments::{EraseArguments, RotateArguments};
use crate::exit::{self, VerbError};
use crate::output::Printer;

/// Destroys the key of a subject.
pub(crate) async fn erase(
    arguments: &EraseArguments,
    config: &IdempotencyConfig,
    print: &Printer,
) -> Result<u8, VerbError> {
    let seals = seals(config)?;
    let Some(secret) = &config.identity_secret else {
        return Err(VerbError::usage("`--subject` needs the setting `identity-secret`"));
    };
    // Print the subject's digest, because the subject's name may be personal data (ID-4).
    let subject = DataSubject::named(secret, arguments.subject.as_deref().unwrap_or_default());
    if !arguments.yes {
        confirm(&format!(
            "destroy the key of the subject {subject}? Then all its sealed answers are gone in every \
             scope, their work does not run again, and later answers are not stored. [y/N] "
        ))?;
    }
    let operator = arguments.operator.clone().unwrap_or_else(own_name);
    let audit = |outcome| {
        let (subject, reason) = (subject.to_string(), &arguments.reason);
        write_line(&json!({
            "audit": "erase", "subject": subject, "operator": operator, "reason": reason,
            "outcome": outcome,
        }))
    };
    audit("requested").map_err(|error| unwritten("nothing was changed", &error))?;
    let destroyed = seals.destroy(&subject).await;
    // Ignore a failed write. A request whose outcome is missing from the log counts as unknown.
    let _ = audit(match destroyed {
        Ok(Destruction::Destroyed) => "applied",
        Ok(Destruction::Already) => "already_applied",
        Ok(Destruction::Absent) => "absent",
        Err(_) => "unknown",
    });
    let done = match destroyed? {
        Destruction::Destroyed => "done",
        Destruction::Already => "this was done before, so nothing was changed",
        Destruction::Absent => {
            let message = format!(
                "nothing was changed, because the subject {subject} has no key: no answer was \
                 sealed for the subject, or the subject was named in another way"
            );
            return Err(VerbError::new(exit::NOT_FOUND, message));
        }
    };
    let cache = retryproof_duration::format(config.seal.cache).to_string();
    print.one(
        &[
            ("subject", subject.to_string()),
            ("erase", done.to_owned()),
            ("noticed within", cache.clone()),
        ],
        &json!({
            "subject": subject.to_string(),
            "changed": done == "done",
            "noticed_within": cache,
        }),
    )?;
    Ok(exit::OK)
}

/// Wraps every key with the current master key.
pub(crate) async fn rotate(
    arguments: &RotateArguments,
    config: &IdempotencyConfig,
    print: &Printer,
) -> Result<u8, VerbError> {
    let seals = seals(config)?;
    if !arguments.yes {
        confirm(
            "wrap every key with the first master key? A program without that master key then \
             cannot open sealed answers. [y/N] ",
        )?;
    }
    let operator = arguments.operator.clone().unwrap_or_else(own_name);
    let audit = |outcome, keys: Option<usize>| {
        write_line(&json!({
            "audit": "keys rotate", "operator": operator, "reason": arguments.reason,
            "outcome": outcome, "keys": keys,
        }))
    };
    audit("requested", None).map_err(|error| unwritten("nothing was changed", &error))?;
    let rotated = seals.rotate().await;
    let (outcome, keys) = match &rotated {
        Ok(keys) => ("applied", Some(*keys)),
        Err(_) => ("incomplete", None),
    };
    let _ = audit(outcome, keys);
    let keys = rotated?;
    print.one(&[("keys wrapped", keys.to_string())], &json!({ "keys_wrapped": keys }))?;
    Ok(exit::OK)
}

fn seals(config: &IdempotencyConfig) -> Result<Seals, VerbError> {
    if config.seal.keys.is_none() {
        return Err(VerbError::usage(
            "no table of keys is configured; set `seal.keys` and `seal.master` as in your program",
        ));
    }
    Ok(seals_with(config)?)
}
