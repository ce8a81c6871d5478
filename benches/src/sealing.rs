// SPDX-License-Identifier: MIT OR Apache-2.0
//! Suite `sealing`: what hashed identities and sealed results add to a call of the engine, on a store
//! in memory. Counts instructions only, because they do not depend on what else the machine does.

use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use retryproof::seal::{MasterKeys, MemoryKeyTable, Seals};
use retryproof::{
    IdempotencyContext, IdempotencyEngine, IdentitySecret, MemoryStore, Outcome, Scope, SharedStore,
};

use crate::callgrind;
use crate::heap::HeapCounter;
use crate::report::{Plot, Report, Row};

/// The contenders, the floor first.
const WHO: [&str; 3] = ["plain", "hashed", "sealed"];
const WORKS: [(&str, &str); 2] = [("execute", "first execution"), ("replay", "replay")];
/// The number of keys that a replay repeats.
const KEYS: u64 = 256;
const DAY: Duration = Duration::from_secs(86_400);

pub(crate) fn run() -> Result<Report, String> {
    let mut report = Report::new("sealing", "Sealed results");
    for (work, what) in WORKS {
        let mut plain = None;
        let mut plot = Plot::new(format!("{what}, instructions"), "per call");
        for who in WHO {
            let row = format!("{what}, instructions: {who}");
            let Some(own) = callgrind::instructions(&["sealing", work, who], 2_000, 20_000)? else {
                report.row(Row::missing(row, "valgrind is not installed"));
                continue;
            };
            report.row(Row::new(row, own, "").beside("plain", own / *plain.get_or_insert(own)));
            plot = plot.bar(who, own);
        }
        if plain.is_some() {
            report.plot(plot);
        }
    }
    report.note(
        "Each call is an `execute` of an engine on the memory store, with a value of 200 bytes, a \
         key of 36 bytes, no fingerprint and a context that was built beforehand. *Plain*: the \
         store keeps keys and results as they are. *Hashed*: with an identity secret, so each call \
         computes HMAC-SHA-256 of its identity, which valgrind runs in software. *Sealed*: also \
         with sealed results, under one key, which is in the cache.",
    );
    Ok(report)
}

/// `WORK WHO COUNT` makes COUNT calls, for callgrind.
pub(crate) fn child(args: &[String], _: HeapCounter) -> Result<(), String> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let [work, who, count] = args[..] else {
        return Err(format!("unknown arguments `{}`", args.join(" ")));
    };
    let count = count.parse::<u64>().map_err(|error| format!("`{count}`: {error}"))?;
    calls(work, who, count)
}

fn context(number: u64) -> Result<IdempotencyContext, String> {
    let scope = Scope::new("payments.created").map_err(|error| error.to_string())?;
    let ctx = IdempotencyContext::builder(scope, format!("{number:036}")).ttl(DAY).lease(DAY);
    ctx.build().map_err(|error| error.to_string())
}

fn calls(work: &str, who: &str, count: u64) -> Result<(), String> {
    let engine = engine(who).map_err(|error| error.to_string())?;
    let fresh = match work {
        "execute" => true,
        "replay" => false,
        other => return Err(format!("unknown work `{other}`")),
    };
    let contexts = (0..count).map(|call| context(if fresh { call } else { call % KEYS }));
    let contexts: Vec<_> = contexts.collect::<Result<_, _>>()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start a runtime: {error}"))?;
    runtime.block_on(async {
        let one = async |ctx| {
            let value = "x".repeat(200);
            let outcome = engine.execute(ctx, || async move { Ok::<_, Infallible>(value) }).await;
            outcome.map_err(|error| error.to_string())
        };
        if !fresh {
            for number in 0..KEYS {
                let _ = one(context(number)?).await?;
            }
        }
        for ctx in contexts {
            let outcome = one(ctx).await?;
            if matches!(black_box(&outcome), Outcome::Executed(_)) != fresh {
                return Err("a call had an unexpected outcome".to_owned());
            }
        }
        Ok(())
    })
}

fn engine(who: &str) -> retryproof::Result<IdempotencyEngine> {
    let store = MemoryStore::builder();
    if who == "plain" {
        return Ok(IdempotencyEngine::new(store.build()));
    }
    let secret = IdentitySecret::new("s".repeat(32))?;
    let store = SharedStore::from(store.identity_secret(secret).build());
    if who == "hashed" {
        return Ok(IdempotencyEngine::new(store));
    }
    let master = MasterKeys::parse(&format!("one:{}", "0f".repeat(32)))?;
    let seals = Seals::caching(MemoryKeyTable::new(), master, DAY);
    Ok(IdempotencyEngine::new(store.sealed_by(Arc::new(seals))?))
}
