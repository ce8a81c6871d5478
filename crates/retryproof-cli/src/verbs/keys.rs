// SPDX-License-Identifier: MIT OR Apache-2.0
//! `erase --subject` and `keys rotate`: an operator changes the keys of sealed results (SEAL-8).
//! Each change is audited: the request before the change, and the outcome afterwards (OPS-10).

use retryproof::seal::{DataSubject, Destruction, Seals};
use retryproof::{IdempotencyConfig, connect_with, seals_with};
use serde_json::{Value, json};

use super::audit::Trail;
use super::confirm::confirm;
use crate::arguments::{EraseArguments, RotateArguments};
use crate::exit::{self, VerbError};
use crate::interrupt::Interrupt;
use crate::output::Printer;

/// Destroys the key of a subject.
pub(crate) async fn erase(
    arguments: &EraseArguments,
    config: &IdempotencyConfig,
    print: &Printer,
) -> Result<u8, VerbError> {
    let seals = seals(config).await?;
    let Some(secret) = &config.identity_secret else {
        return Err(VerbError::usage("`--subject` needs the setting `identity-secret`"));
    };
    // Print the subject's digest, because the subject's name may be personal data (ID-4).
    let subject = DataSubject::named(secret, arguments.subject.as_deref().unwrap_or_default());
    let store = connect_with(config).await?;
    let trail = Trail::new(&store, "erase", arguments.operator.as_deref(), &arguments.reason)?
        .with_subject(&subject);
    let interrupt = Interrupt::new();
    if !arguments.yes {
        confirm(
            &interrupt,
            &format!(
                "destroy the key of the subject {subject}? This destroys all sealed answers of the \
                 subject in every scope: their work does not run again, and the subject's later \
                 answers are not stored. [y/N] "
            ),
        )
        .await?;
    }
    trail.request("nothing was changed").await?;
    let destroyed = interrupt.or(seals.destroy(&subject)).await;
    let destroyed = destroyed
        .map_err(|end| end.about("it is unknown whether the key was destroyed"))
        .and_then(|destroyed| Ok(destroyed?));
    let outcome = match destroyed {
        Ok(Destruction::Destroyed) => "applied",
        Ok(Destruction::Already) => "already_applied",
        Ok(Destruction::Absent) => "absent",
        Err(_) => "unknown",
    };
    trail.outcome(outcome, Value::Null).await;
    let done = match destroyed? {
        Destruction::Destroyed => "done",
        Destruction::Already => "this was done before, so nothing was changed",
        Destruction::Absent => {
            let message = format!(
                "nothing was changed, because the subject {subject} has no key: no answer was \
                 sealed for the subject, or the program names the subject differently"
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
    let seals = seals(config).await?;
    let store = connect_with(config).await?;
    let operator = arguments.operator.as_deref();
    let trail = Trail::new(&store, "keys rotate", operator, &arguments.reason)?;
    let interrupt = Interrupt::new();
    if !arguments.yes {
        confirm(
            &interrupt,
            "wrap every key with the first master key? A program without that master key then \
             cannot open sealed answers. [y/N] ",
        )
        .await?;
    }
    trail.request("nothing was changed").await?;
    let rotated = interrupt.or(seals.rotate()).await.and_then(|keys| Ok(keys?));
    let (outcome, keys) = match &rotated {
        Ok(keys) => ("applied", Some(*keys)),
        Err(_) => ("incomplete", None),
    };
    trail.outcome(outcome, json!({ "keys": keys })).await;
    let keys = rotated?;
    print.one(&[("keys wrapped", keys.to_string())], &json!({ "keys_wrapped": keys }))?;
    Ok(exit::OK)
}

async fn seals(config: &IdempotencyConfig) -> Result<Seals, VerbError> {
    if config.seal.keys.is_none() {
        return Err(VerbError::usage(
            "no table of keys is configured; set `seal.keys` and `seal.master` as in your program",
        ));
    }
    Ok(seals_with(config).await?)
}
