// SPDX-License-Identifier: MIT OR Apache-2.0
//! Suites `redis` and `cluster`: compare the Redis store with bare commands of the same driver, on
//! one server and on a cluster.
//!
//! The floor sends the two writes and the one read that no store can avoid, over shared connections
//! as the store does: `SET NX PX`, `SET PX`, and `GET` of a value as long as a record.
//!
//! This file is over 400 lines long because the floor, the records that it shares with the store,
//! and what is measured on them belong together.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, Value};
use retryproof::redis::{RedisConfig, RedisStore};
use tokio::runtime::Runtime;

use crate::heap::HeapCounter;
use crate::report::{Plot, Report, Row};
use crate::servers::across::{self, HOLD};
use crate::servers::{
    Filled, HOT, SCOPE, Shape, Turn, VALUE, Way, growth, key, measure, own_name, rate, replay,
    runtime, text,
};

mod nodes;

pub(crate) use nodes::Nodes;
use nodes::{Floor, connection};

/// How many records are replayed in turn: enough that each record's last replay was long ago.
const STRANGE: u64 = 100_000;
const TASKS: usize = 64;
const MANY: usize = 512;

/// How long an answer may take. Each call has a timer, as in the store.
const PATIENCE: Duration = Duration::from_secs(10);
const WRITES: &str = "two raw writes";
const GET: &str = "GET";

/// The databases of the server that this suite uses. The tests use database 0.
const FEW: u32 = 13;
const FULL: u32 = 14;

/// The header of a complete record; `crates/retryproof-redis/src/record.rs` describes it.
const HEAD: &str = "rp2C0123456789abcdef0000000000000001\0\0\0\0\
    000000000000000";

/// The servers, and the prefix of the run's keys.
pub(crate) struct Place {
    nodes: Nodes,
    url: String,
    prefix: String,
    /// A connection to each primary.
    control: Vec<MultiplexedConnection>,
}

/// The floor's commands.
struct Bare {
    floor: Floor,
    prefix: String,
}

impl Place {
    pub(crate) async fn new(nodes: Nodes) -> Result<Self, String> {
        let control = nodes.primaries().await?;
        Ok(Self { nodes, url: nodes.url()?, prefix: own_name(), control })
    }

    /// Returns the URL of a database. A cluster has only the database 0.
    fn at(&self, db: u32) -> String {
        match self.nodes {
            Nodes::One => format!("{}/{db}", self.url.trim_end_matches('/')),
            Nodes::Cluster => self.url.clone(),
        }
    }

    async fn store(&self, db: u32) -> Result<Arc<RedisStore>, String> {
        let config = RedisConfig::from_url(&self.at(db))
            .map_err(text)?
            .with_prefix(&self.prefix)
            .with_call_timeout(PATIENCE);
        Ok(Arc::new(RedisStore::connect(config).await.map_err(text)?))
    }

    async fn bare(&self, db: u32) -> Result<Arc<Bare>, String> {
        let floor = self.nodes.floor(&self.at(db)).await?;
        Ok(Arc::new(Bare { floor, prefix: self.prefix.clone() }))
    }

    /// Fills the database with complete records for the numbers below `records`.
    async fn fill(&self, db: u32, records: u64) -> Result<(), String> {
        let floor = self.nodes.floor(&self.at(db)).await?;
        let value: Vec<u8> = [HEAD.as_bytes(), &VALUE].concat();
        for from in (0..records).step_by(1_000) {
            let flight = (from..(from + 1_000).min(records)).map(|number| {
                let mut cmd = Cmd::new();
                cmd.arg("SET")
                    .arg(record(&self.prefix, number))
                    .arg(&value)
                    .arg("PX")
                    .arg(86_400_000);
                cmd
            });
            floor.send_all(flight.collect()).await?;
        }
        Ok(())
    }

    /// Waits until the server has rewritten its log, which a fill triggers, and has moved the
    /// records to a larger hash table. Until then, each look-up reads two tables. The server moves
    /// records for a millisecond in each of its cycles, so this method raises the frequency of the
    /// cycles while it waits.
    async fn settle(&self, records: u64) -> Result<(), String> {
        let ask = |words: &'static [&str]| {
            let mut cmd = Cmd::new();
            for word in words {
                cmd.arg(*word);
            }
            cmd
        };
        let mut control = self.control[0].clone();
        for _ in 0..600 {
            let info: String =
                ask(&["INFO", "persistence"]).query_async(&mut control).await.map_err(text)?;
            let is_idle = |what: &str| {
                info.lines().any(|line| line.trim() == format!("{what}_in_progress:0"))
            };
            if !is_idle("aof_rewrite") || !is_idle("rdb_bgsave") {
                tokio::time::sleep(Duration::from_millis(500)).await;
                continue;
            }
            let (_, before): (String, String) =
                ask(&["CONFIG", "GET", "hz"]).query_async(&mut control).await.map_err(text)?;
            let often = ask(&["CONFIG", "SET", "hz", "500"]);
            often.exec_async(&mut control).await.map_err(text)?;
            tokio::time::sleep(Duration::from_micros(records * 8)).await;
            return ask(&["CONFIG", "SET", "hz"])
                .arg(before)
                .exec_async(&mut control)
                .await
                .map_err(text);
        }
        Err("the server did not finish rewriting its log within five minutes".into())
    }

    /// Returns how many commands the primaries have run so far.
    async fn calls(&self) -> Result<u64, String> {
        let mut all = 0;
        for control in &self.control {
            let mut cmd = Cmd::new();
            cmd.arg("INFO").arg("stats");
            let info: String = cmd.query_async(&mut control.clone()).await.map_err(text)?;
            let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
            let count = line.and_then(|count| count.trim().parse::<u64>().ok());
            all += count.ok_or("the answer to INFO has no count")?;
        }
        Ok(all)
    }

    /// Removes only the keys of the run.
    pub(crate) async fn clear(&self) -> Result<(), String> {
        let mut connections = self.control.clone();
        if self.nodes == Nodes::One {
            for db in [FEW, FULL] {
                connections.push(connection(&self.at(db)).await?);
            }
        }
        for mut connection in connections {
            let mut cursor = 0_u64;
            loop {
                let mut scan = Cmd::new();
                scan.arg("SCAN")
                    .arg(cursor)
                    .arg("MATCH")
                    .arg(format!("{}:*", self.prefix))
                    .arg("COUNT")
                    .arg(5_000);
                let (next, keys): (u64, Vec<Vec<u8>>) =
                    scan.query_async(&mut connection).await.map_err(text)?;
                // A cluster refuses a command with keys of several slots.
                let mut flight = ::redis::pipe();
                for key in keys {
                    flight.cmd("UNLINK").arg(key).ignore();
                }
                flight.exec_async(&mut connection).await.map_err(text)?;
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Returns the key of a record, as `crates/retryproof-redis/src/record/key.rs` builds it.
fn record(prefix: &str, number: u64) -> String {
    format!("{prefix}:{{{}:{SCOPE}:{}}}", SCOPE.len(), key(number))
}

impl Bare {
    async fn two_writes(&self, turn: Turn) -> Result<(), String> {
        let key = record(&self.prefix, turn.number);
        let owner = retryproof::OwnerId::new();
        let mut cmd = Cmd::with_capacity(6, 128);
        cmd.arg("SET").arg(&key).arg(&owner.as_bytes()[..]).arg("NX").arg("PX").arg(30_000);
        let first = self.floor.send(&cmd).await?;
        let mut cmd = Cmd::with_capacity(5, 320);
        cmd.arg("SET").arg(&key).arg(&VALUE[..]).arg("PX").arg(86_400_000);
        let second = self.floor.send(&cmd).await?;
        match (first, second) {
            (Value::Okay, Value::Okay) => Ok(()),
            other => Err(format!("expected two writes, got {other:?}")),
        }
    }

    async fn get(&self, turn: Turn, keys: u64) -> Result<(), String> {
        let mut cmd = Cmd::with_capacity(2, 96);
        cmd.arg("GET").arg(record(&self.prefix, turn.number % keys));
        match self.floor.send(&cmd).await? {
            Value::BulkString(value) if value.len() >= VALUE.len() => Ok(()),
            other => Err(format!("expected a value, got {other:?}")),
        }
    }

    fn writes(self: &Arc<Self>) -> Way {
        let bare = Arc::clone(self);
        Way::new(WRITES, move |turn| {
            let bare = Arc::clone(&bare);
            async move { bare.two_writes(turn).await }
        })
    }

    fn gets(self: &Arc<Self>, keys: u64) -> Way {
        let bare = Arc::clone(self);
        Way::new(GET, move |turn| {
            let bare = Arc::clone(&bare);
            async move { bare.get(turn, keys).await }
        })
    }
}

pub(crate) fn run(nodes: Nodes) -> Result<Report, String> {
    let runtime = runtime()?;
    let place = runtime.block_on(Place::new(nodes))?;
    let mut report = Report::new(nodes.suite(), nodes.title());
    let measured = all(&mut report, &runtime, &place);
    let cleared = runtime.block_on(place.clear());
    measured.and(cleared)?;
    if nodes == Nodes::Cluster {
        report.note(nodes::NOTE.to_owned());
        return Ok(report);
    }
    report.note(
        "One Redis server as `cargo xtask services up redis` starts it, with an append-only file \
         that is flushed every second. Scopes have 16 bytes, keys 36 bytes in random order, like \
         UUIDs, and values 200 bytes. The floor uses the same driver (`redis`) over one shared \
         connection, as the store does, with the same durability. Its execution is a `SET NX PX` \
         of the owner and a `SET PX` of the value; its replay is one `GET` of a value as long as \
         the record. The store and the floor take turns in one loop. Each round gives a ratio of \
         the two, and the table shows the median of these ratios. One thread runs the client's \
         tasks. In the rows with one task, a process of the scheduler's idle class keeps each core \
         awake. Without it, a virtual core that sleeps between two calls wakes up late and with \
         cold caches; in earlier runs, this randomly doubled the store's or the floor's times."
            .to_owned(),
    );
    report.note(
        "*Known key*: the process has seen the record complete, and sends a `GET`. *First \
         contact*: the process has not seen it, and the script that would grant a lease finds \
         it. A waiter's time runs from just before another process sends the completing call \
         until the waiter has the decoded result. The statements row for 1,000 callers counts \
         every command that the server ran, including those inside scripts. Its goal is three \
         commands for each first look, three times the polls of one waiter for each process, and \
         the commands for connecting."
            .to_owned(),
    );
    Ok(report)
}

fn all(report: &mut Report, runtime: &Runtime, place: &Place) -> Result<(), String> {
    let (store, bare) = runtime.block_on(async {
        place.fill(0, STRANGE).await?;
        Ok::<_, String>((place.store(0).await?, place.bare(0).await?))
    })?;
    one_task(report, runtime, &store, &bare)?;
    many_tasks(report, runtime, &store, &bare)?;
    waiters(report, runtime, place)?;
    if place.nodes == Nodes::Cluster {
        return Ok(());
    }
    grown(report, runtime, place, 1_000_000, "1 M")
}

fn one_task(
    report: &mut Report,
    runtime: &Runtime,
    store: &Arc<RedisStore>,
    bare: &Arc<Bare>,
) -> Result<(), String> {
    let shape = Shape { rounds: 101, tasks: 1, each: 100 };
    let writes = measure(runtime, shape, vec![bare.writes(), Way::executions("execution", store)])?;
    report.row(Row::new(WRITES, writes[0].cost, "us"));
    report.row(
        Row::new("execution, 1 task", writes[1].cost, "us")
            .beside(WRITES, writes[1].ratio)
            .ratio_at_most(1.25),
    );
    runtime.block_on(async {
        for number in 0..500 {
            replay(&**store, number).await?;
        }
        Ok::<_, String>(())
    })?;
    let shape = Shape { each: 200, ..shape };
    let known = measure(runtime, shape, vec![bare.gets(500), Way::replays("replay", store, 500)])?;
    let first =
        measure(runtime, shape, vec![bare.gets(STRANGE), Way::replays("replay", store, STRANGE)])?;
    report.row(Row::new(GET, known[0].cost, "us"));
    let row = Row::new("replay, known key, 1 task", known[1].cost, "us");
    report.row(row.beside(GET, known[1].ratio).ratio_at_most(1.10));
    let row = Row::new("replay, first contact, 1 task", first[1].cost, "us");
    report.row(row.beside(GET, first[1].ratio).ratio_at_most(1.10));
    report.plot(
        Plot::new("Execution, one task", "x two raw writes")
            .bar("execution", writes[1].ratio)
            .bar(WRITES, 1.0)
            .goal(1.25),
    );
    report.plot(
        Plot::new("Replay, one task", "x GET")
            .bar("replay, known key", known[1].ratio)
            .bar("replay, first contact", first[1].ratio)
            .bar(GET, 1.0)
            .goal(1.10),
    );
    Ok(())
}

fn many_tasks(
    report: &mut Report,
    runtime: &Runtime,
    store: &Arc<RedisStore>,
    bare: &Arc<Bare>,
) -> Result<(), String> {
    for tasks in [TASKS, MANY] {
        let shape = Shape { rounds: 31, tasks, each: 4_096 / tasks as u64 };
        let writes =
            measure(runtime, shape, vec![bare.writes(), Way::executions("execution", store)])?;
        let row = rate(format!("executions, {tasks} tasks"), &writes[1], &writes[0]);
        // The server is the bottleneck at 64 tasks, and a script costs it more than a plain write.
        report.row(if tasks == TASKS { row.ratio_at_least(0.45) } else { row });
        let shape = Shape { each: 8_192 / tasks as u64, ..shape };
        let known =
            measure(runtime, shape, vec![bare.gets(500), Way::replays("replay", store, 500)])?;
        let ways = vec![bare.gets(STRANGE), Way::replays("replay", store, STRANGE)];
        let first = measure(runtime, shape, ways)?;
        for (what, medians) in [("known key", &known), ("first contact", &first)] {
            let row = rate(format!("replays, {what}, {tasks} tasks"), &medians[1], &medians[0]);
            report.row(if tasks == MANY { row.ratio_at_least(0.8) } else { row });
        }
        report.plot(
            Plot::new(format!("{tasks} tasks on one connection"), "operations a second")
                .bar("executions", 1e6 / writes[1].cost)
                .bar(WRITES, 1e6 / writes[0].cost)
                .bar("replays, known key", 1e6 / known[1].cost)
                .bar("replays, first contact", 1e6 / first[1].cost)
                .bar(GET, 1e6 / known[0].cost),
        );
    }
    Ok(())
}

fn waiters(report: &mut Report, runtime: &Runtime, place: &Place) -> Result<(), String> {
    let config = RedisConfig::from_url(&place.url).map_err(text)?.with_prefix(&place.prefix);
    let store = runtime.block_on(RedisStore::connect(config)).map_err(text)?;
    across::wake_up(report, runtime, place.nodes.suite(), &place.prefix, store.into_shared(), 5.0)?;
    // A waiter polls after 250 ms, after 500 ms and then once a second. Each poll takes two
    // commands. A first look is one script with two commands.
    let polls = 2 * (3 + HOLD.as_secs());
    let first_looks = 2 * across::WAITERS / across::PROCESSES;
    let connecting = 40 * place.control.len() as u64;
    let beside = first_looks + connecting;
    across::crowds(report, place.nodes.suite(), &place.prefix, polls, beside, || {
        runtime.block_on(place.calls())
    })
}

/// Measures the same operations with 10,000 and with many records, each in a separate database.
pub(crate) fn grown(
    report: &mut Report,
    runtime: &Runtime,
    place: &Place,
    records: u64,
    many: &str,
) -> Result<(), String> {
    let filled = |db: u32, records: u64| async move {
        place.fill(db, records).await?;
        let (store, bare) = (place.store(db).await?, place.bare(db).await?);
        Ok::<_, String>(Filled {
            writes: bare.writes(),
            execution: Way::executions("execution", &store),
            read: bare.gets(records),
            replay: Way::replays("replay", &store, records),
            read_again: bare.gets(HOT),
            again: Way::replays("replay", &store, HOT),
        })
    };
    let both = runtime.block_on(async {
        let both = [filled(FEW, 10_000).await?, filled(FULL, records).await?];
        place.settle(records).await?;
        Ok::<_, String>(both)
    })?;
    growth(report, runtime, many, both)
}

pub(crate) fn child(nodes: Nodes, args: &[String], _: HeapCounter) -> Result<(), String> {
    let [prefix] = args else { return Err("redis: the child takes the prefix of its keys".into()) };
    let runtime = runtime()?;
    let config = RedisConfig::from_url(&nodes.url()?).map_err(text)?.with_prefix(prefix);
    let store = runtime.block_on(RedisStore::connect(config)).map_err(text)?;
    across::serve(&runtime, store.into_shared())
}
