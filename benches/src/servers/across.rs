// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiters in other processes: how soon they have a result, and how many statements a thousand of
//! them send.
//!
//! The other processes are children, which run this program again. They read commands as lines, and
//! stamp their answers with the host's monotonic clock, which is the same for all processes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use retryproof::{IdempotencyContext, IdempotencyEngine, Outcome, SharedStore};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;

use super::{LEASE, SCOPE, text};
use crate::compare::{median, now};
use crate::report::{Report, Row};

/// The longest time that a waiter waits.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many keys are waited for at a time, and how often this is repeated.
const KEYS: usize = 8;
const GROUPS: usize = 40;
/// The number of waiters on one key, and of the processes that contain them.
pub(crate) const WAITERS: u64 = 1_000;
pub(crate) const PROCESSES: u64 = 4;
/// How long the running call makes the others wait.
pub(crate) const HOLD: Duration = Duration::from_secs(3);

fn nanos() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn context(key: &str) -> Result<IdempotencyContext, String> {
    let builder = IdempotencyContext::builder(SCOPE, key);
    builder.lease(LEASE).wait_timeout(PATIENCE).build().map_err(text)
}

/// Runs as the child process: answers each line of its input until the input ends.
pub(crate) fn serve(runtime: &Runtime, store: SharedStore) -> Result<(), String> {
    let engine = runtime.block_on(async { IdempotencyEngine::new(store) });
    println!("@ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(text)?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["wait", key] => {
                let (engine, key) = (engine.clone(), key.to_owned());
                runtime.spawn(async move {
                    let answer = match wait(&engine, &key).await {
                        Ok(at) => format!("@{key} {at}"),
                        Err(problem) => format!("@{key} FAILED {problem}"),
                    };
                    println!("{answer}");
                });
            }
            ["crowd", key, count] => {
                let count = count.parse::<u64>().map_err(text)?;
                let (runs, results) = runtime.block_on(crowd(&engine, key, count))?;
                println!("@{runs} {results}");
            }
            _ => return Err(format!("unknown line: {line}")),
        }
    }
    Ok(())
}

/// Waits for the result, and returns the time at which it arrived.
async fn wait(engine: &IdempotencyEngine, key: &str) -> Result<i64, String> {
    let ran =
        || async { Err::<String, _>(std::io::Error::other("the action ran in the wrong process")) };
    match engine.execute(context(key)?, ran).await {
        Ok(Outcome::Replayed(value)) if value.len() == 200 => Ok(nanos()),
        Ok(other) => Err(format!("expected a replay, got {other:?}")),
        Err(error) => Err(text(error)),
    }
}

/// Runs `count` callers; returns how often the action ran, and how many callers got its result.
async fn crowd(engine: &IdempotencyEngine, key: &str, count: u64) -> Result<(u64, u64), String> {
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..count {
        let (engine, ctx) = (engine.clone(), context(key)?);
        callers.spawn(async move {
            let action = || async {
                tokio::time::sleep(HOLD).await;
                Ok::<_, std::io::Error>("x".repeat(200))
            };
            engine.execute(ctx, action).await
        });
    }
    let (mut runs, mut results) = (0, 0);
    while let Some(ended) = callers.join_next().await {
        let outcome = ended.map_err(text)?.map_err(text)?;
        runs += u64::from(matches!(outcome, Outcome::Executed(_)));
        results += u64::from(outcome.into_value().is_some_and(|value| value.len() == 200));
    }
    Ok((runs, results))
}

/// A child process with its input and output.
pub(crate) struct Other {
    process: Child,
    to: Arc<Mutex<ChildStdin>>,
    from: BufReader<ChildStdout>,
}

impl Other {
    /// Starts a child of the suite and waits until it has connected. `name` identifies its tables
    /// or keys.
    pub(crate) fn start(suite: &str, name: &str) -> Result<Self, String> {
        let program = std::env::current_exe()
            .map_err(|error| format!("cannot find this program's path: {error}"))?;
        let mut process = Command::new(program)
            .args(["child", suite, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(text)?;
        let (Some(to), Some(from)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("the child has no pipes".into());
        };
        let mut other = Self { process, to: Arc::new(Mutex::new(to)), from: BufReader::new(from) };
        match other.hear()?.as_str() {
            "ready" => Ok(other),
            said => Err(format!("the child is not ready: {said}")),
        }
    }

    fn say(to: &Mutex<ChildStdin>, line: &str) -> Result<(), String> {
        let mut to = to.lock().map_err(|_| "the writer of an earlier line panicked")?;
        writeln!(to, "{line}").map_err(text)
    }

    fn hear(&mut self) -> Result<String, String> {
        loop {
            let mut line = String::new();
            if self.from.read_line(&mut line).map_err(text)? == 0 {
                return Err("the child ended; see its output above".into());
            }
            if let Some(answer) = line.trim_end().strip_prefix('@') {
                return Ok(answer.to_owned());
            }
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Measures the time from just before this process sends the completion until a waiter in another
/// process has the result: median and 99th percentile.
pub(crate) fn wake_up(
    report: &mut Report,
    runtime: &Runtime,
    suite: &str,
    name: &str,
    store: SharedStore,
    goal: f64,
) -> Result<(), String> {
    let mut other = Other::start(suite, name)?;
    let engine = runtime.block_on(async { IdempotencyEngine::new(store) });
    let mut delays = Vec::new();
    for group in 0..GROUPS {
        let holders: Vec<_> = (0..KEYS)
            .map(|at| {
                let (engine, to) = (engine.clone(), Arc::clone(&other.to));
                let key = format!("wake-{group}-{at}");
                // The pauses differ, so that they are not in step with a waiter's polls. If the
                // store has no notifications, a waiter reaches its longest poll interval, 40 ms,
                // within each pause.
                let pause = 120 + (group * 37 + at * 61) % 97;
                runtime.spawn(async move {
                    let since = AtomicI64::new(0);
                    let action = || async {
                        Other::say(&to, &format!("wait {key}")).map_err(std::io::Error::other)?;
                        tokio::time::sleep(Duration::from_millis(pause as u64)).await;
                        since.store(nanos(), Ordering::Relaxed);
                        Ok::<_, std::io::Error>("x".repeat(200))
                    };
                    let outcome = engine.execute(context(&key)?, action).await.map_err(text)?;
                    match outcome {
                        Outcome::Executed(_) => Ok((key.clone(), since.load(Ordering::Relaxed))),
                        other => Err(format!("expected an execution, got {other:?}")),
                    }
                })
            })
            .collect();
        let mut begun = std::collections::BTreeMap::new();
        for holder in holders {
            let (key, since) = runtime.block_on(holder).map_err(text)??;
            begun.insert(key, since);
        }
        for _ in 0..KEYS {
            let answer = other.hear()?;
            let (key, at) = answer.split_once(' ').ok_or("the answer has no time")?;
            let since = begun.get(key).ok_or("no caller belongs to the answer")?;
            let at = at.parse::<i64>().map_err(|_| answer.clone())?;
            delays.push((at - since) as f64 / 1e6);
        }
    }
    delays.sort_by(f64::total_cmp);
    let p99 = delays[delays.len() * 99 / 100];
    let row = Row::new("waiter in another process has the result, p50", median(delays), "ms");
    report.row(row.value_at_most(goal));
    report.row(Row::new("waiter in another process has the result, p99", p99, "ms"));
    Ok(())
}

/// Runs a thousand callers of one key in four processes, and counts how often the action runs and
/// how many statements they send. `calls` reads how many statements the server has executed,
/// `beside` is how many a process sends to connect, and `polls` is how many one waiter sends in
/// [`HOLD`].
pub(crate) fn crowds(
    report: &mut Report,
    suite: &str,
    name: &str,
    polls: u64,
    beside: u64,
    mut calls: impl FnMut() -> Result<u64, String>,
) -> Result<(), String> {
    let before = calls()?;
    let mut others =
        (0..PROCESSES).map(|_| Other::start(suite, name)).collect::<Result<Vec<_>, _>>()?;
    let begin = now();
    for other in &others {
        Other::say(&other.to, &format!("crowd crowd {}", WAITERS / PROCESSES))?;
    }
    let (mut runs, mut results) = (0, 0);
    for other in &mut others {
        let answer = other.hear()?;
        let (ran, got) = answer.split_once(' ').ok_or("the answer is too short")?;
        runs += ran.parse::<u64>().map_err(|_| answer.clone())?;
        results += got.parse::<u64>().map_err(|_| answer.clone())?;
    }
    let took = begin.elapsed();
    // End the other processes first, because a server that counts for each of its own processes
    // reports a count only when that process ends.
    drop(others);
    let sent = calls()?.saturating_sub(before) as f64;
    if results != WAITERS {
        return Err(format!("only {results} of {WAITERS} callers have the result"));
    }
    let most = WAITERS + PROCESSES * (3 * polls + beside) + 2;
    report.row(
        Row::new("1,000 callers of one key in 4 processes: runs", runs as f64, "")
            .value_at_most(1.0),
    );
    let row = Row::new("the same: statements that the server saw", sent, "");
    report.row(row.value_at_most(most as f64));
    report.row(Row::new("the same, a second", sent / took.as_secs_f64(), "/s"));
    Ok(())
}
