// SPDX-License-Identifier: MIT OR Apache-2.0
//! Suites `postgres`, `plain` and `standby`: compare the PostgreSQL store with bare prepared
//! statements of the same driver, on each [`Form`].
//!
//! The floor writes and reads a table of the same schema on the same server. Each statement is a
//! separate transaction, as durable as the store's. What the store adds is its SQL, its
//! connections, and the checks of the answer.
//!
//! This file is over 400 lines long because the floor, the tables that it shares with the store,
//! and what is measured on them belong together.

use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use retryproof::postgres::{PgConnectOptions, Pooler, PostgresConfig, PostgresStore};
use retryproof::store::Purge as _;
use sqlx_core::connection::ConnectOptions as _;
use sqlx_core::executor::Executor as _;
use sqlx_core::query::query;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::row::Row as _;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_postgres::{PgConnection, Postgres};
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, Semaphore, oneshot};

use crate::compare::{median, now, per_operation};
use crate::heap::HeapCounter;
use crate::report::{Plot, Report, Row};
use crate::servers::across::{self, HOLD};
use crate::servers::pages::{self, BufferPages};
use crate::servers::{
    Filled, HOT, SCOPE, Shape, Turn, VALUE, Way, execution, growth, key, measure, own_name, rate,
    replay, runtime, sorted_keys, text,
};

mod form;

pub(crate) use form::Form;

/// How many records are replayed in turn: enough that each record's last replay was long ago.
const STRANGE: u64 = 50_000;
const TASKS: usize = 64;
/// The limits of the floor's batches, which are the same as the store's: how many statements at a
/// time, and how many records in a statement.
const BATCHES: usize = 4;
const BATCH: usize = 32;
/// How many rows the purge deletes.
const OVER: u64 = 200_000;

/// The server, and the run's tables, which are dropped when the run ends.
pub(crate) struct Place {
    form: Form,
    url: String,
    bare_url: String,
    name: String,
    partitions: Option<usize>,
    control: Mutex<PgConnection>,
}

/// The floor on a table of the same schema, with one connection for each task.
struct Bare {
    connections: Vec<Mutex<PgConnection>>,
    insert: Arc<str>,
    update: Arc<str>,
    update_many: Arc<str>,
    select: Arc<str>,
    /// Updates that wait for a statement, each with the sender that wakes its task.
    queued: Mutex<Vec<(String, oneshot::Sender<()>)>>,
    slots: Semaphore,
}

fn options(url: &str) -> Result<PgConnectOptions, String> {
    let options = PgConnectOptions::from_str(url).map_err(text)?;
    Ok(options.disable_statement_logging().statement_cache_capacity(64).extra_float_digits(None))
}

fn config(url: &str, table: &str) -> Result<PostgresConfig, String> {
    // State that there is no pooler, because detecting one would cost a few more statements.
    Ok(PostgresConfig::from_url(url)
        .map_err(text)?
        .with_table_name(table)
        .with_pooler(Pooler::Session))
}

impl Place {
    pub(crate) async fn new(form: Form) -> Result<Self, String> {
        let (url, bare_url) = (form.url()?, form.bare_url()?);
        let control = Mutex::new(options(&bare_url)?.connect().await.map_err(text)?);
        Ok(Self { form, url, bare_url, name: own_name(), partitions: None, control })
    }

    /// Divides the tables that are created from now on.
    pub(crate) fn divided(self, partitions: Option<usize>) -> Self {
        Self { partitions, ..self }
    }

    fn table(&self, part: &str) -> String {
        format!("{}_{part}", self.name)
    }

    async fn migrated(&self, part: &str) -> Result<PostgresConfig, String> {
        let config = config(&self.url, &self.table(part))?;
        let config = match self.partitions {
            Some(partitions) => config.with_partitions(partitions),
            None => config,
        };
        config.migrate().await.map_err(text)?;
        Ok(config)
    }

    async fn store(&self, part: &str, connections: usize) -> Result<Arc<PostgresStore>, String> {
        let config = self.migrated(part).await?.with_max_connections(connections);
        Ok(Arc::new(PostgresStore::connect(config).await.map_err(text)?))
    }

    async fn bare(&self, part: &str, connections: usize) -> Result<Arc<Bare>, String> {
        self.migrated(part).await?;
        let table = self.table(part);
        let mut all = Vec::new();
        for _ in 0..connections {
            all.push(Mutex::new(options(&self.bare_url)?.connect().await.map_err(text)?));
        }
        Ok(Arc::new(Bare {
            connections: all,
            insert: format!(
                "INSERT INTO \"{table}\" (scope,key,state,owner,token,takeovers,expires_at,purge_bucket) \
                 VALUES ($1,$2,0,$3,$4,0,clock_timestamp()+interval '30 seconds',$5)"
            )
            .into(),
            update: format!(
                "UPDATE \"{table}\" SET state=1,expires_at=clock_timestamp()+interval '1 day',result=$3 \
                 WHERE scope=$1 AND key=$2"
            )
            .into(),
            // All values are equal, so the statement has one value for all records.
            update_many: format!(
                "UPDATE \"{table}\" SET state=1,expires_at=clock_timestamp()+interval '1 day',result=$3 \
                 WHERE scope=$1 AND key=ANY($2)"
            )
            .into(),
            queued: Mutex::default(),
            slots: Semaphore::new(BATCHES),
            select: format!(
                "SELECT state,owner,token,takeovers,expires_at,fp,result FROM \"{table}\" WHERE \
                 scope=$1 AND key=$2"
            )
            .into(),
        }))
    }

    async fn run(&self, sql: String) -> Result<u64, String> {
        let mut control = self.control.lock().await;
        Ok(control.execute(raw_sql(AssertSqlSafe(sql))).await.map_err(text)?.rows_affected())
    }

    async fn number(&self, sql: String) -> Result<i64, String> {
        let mut control = self.control.lock().await;
        let row = control.fetch_one(raw_sql(AssertSqlSafe(sql))).await.map_err(text)?;
        row.try_get(0).map_err(text)
    }

    /// Fills the table with complete records for the numbers below `records`, which expire after
    /// `rest`.
    async fn fill(&self, part: &str, records: u64, rest: &str) -> Result<(), String> {
        self.migrated(part).await?;
        let sql = format!(
            "INSERT INTO \"{}\" \
             (scope,key,state,owner,token,takeovers,expires_at,purge_bucket,result) SELECT \
             $1,k,1,decode(md5(k::text),'hex'),1,0,clock_timestamp()+interval \
             '{rest}',(extract(epoch FROM clock_timestamp()+interval \
             '{rest}')*1000000)::bigint/3600000000*3600000000,$3 FROM unnest($2::bytea[]) AS k",
            self.table(part)
        );
        let sql: Arc<str> = sql.into();
        let (began, step) = (now(), (records / 20).max(100_000));
        let (mut filled, mut shown) = (0, step);
        for chunk in sorted_keys(records).chunks(20_000) {
            let keys: Vec<&[u8]> = chunk.iter().map(String::as_bytes).collect();
            let insert = query::<Postgres>(AssertSqlSafe(Arc::clone(&sql)))
                .bind(SCOPE.as_bytes())
                .bind(keys)
                .bind(&VALUE[..]);
            self.control.lock().await.execute(insert).await.map_err(text)?;
            filled += chunk.len() as u64;
            if filled >= shown {
                let took = began.elapsed().as_secs();
                println!("filled {filled} of {records} records in {took} s");
                shown += step;
            }
        }
        if filled > step {
            println!("vacuum and analyze the table, and then measure");
        }
        self.run(format!("VACUUM ANALYZE \"{}\"", self.table(part))).await.map(drop)
    }

    async fn settle(&self) -> Result<(), String> {
        self.run("CHECKPOINT".into()).await.map(drop)
    }

    pub(crate) async fn clear(&self) -> Result<(), String> {
        for (kind, all, name) in [
            ("TABLE", "pg_tables WHERE schemaname=current_schema()", "tablename"),
            ("FUNCTION", "pg_proc WHERE pronamespace=current_schema()::regnamespace", "proname"),
        ] {
            let names = format!(
                "SELECT coalesce(string_agg(format('%I',{name}),','),'') FROM {all} AND \
                 starts_with({name}::text,'{}_')",
                self.name
            );
            let names: String = {
                let mut control = self.control.lock().await;
                let row = control.fetch_one(raw_sql(AssertSqlSafe(names))).await.map_err(text)?;
                row.try_get(0).map_err(text)?
            };
            if !names.is_empty() {
                self.run(format!("DROP {kind} {names}")).await?;
            }
        }
        Ok(())
    }
}

impl Bare {
    async fn two_writes(&self, turn: Turn) -> Result<(), String> {
        let key = key(turn.number);
        let mut connection = self.connections[turn.task].lock().await;
        self.insert(&mut connection, turn).await?;
        let update = query::<Postgres>(AssertSqlSafe(Arc::clone(&self.update)))
            .bind(SCOPE.as_bytes())
            .bind(key.as_bytes())
            .bind(&VALUE[..]);
        match connection.execute(update).await.map_err(text)?.rows_affected() {
            1 => Ok(()),
            rows => Err(format!("{rows} rows were updated")),
        }
    }

    async fn insert(&self, connection: &mut PgConnection, turn: Turn) -> Result<(), String> {
        let key = key(turn.number);
        let owner = retryproof::OwnerId::new();
        let stamp = i64::try_from(turn.number).map_err(text)?;
        let insert = query::<Postgres>(AssertSqlSafe(Arc::clone(&self.insert)))
            .bind(SCOPE.as_bytes())
            .bind(key.as_bytes())
            .bind(&owner.as_bytes()[..])
            .bind(stamp)
            .bind(stamp >> 10);
        connection.execute(insert).await.map_err(text).map(drop)
    }

    /// Like [`two_writes`](Self::two_writes), but the updates of several tasks share a statement,
    /// as completions do in the store.
    async fn batched_writes(&self, turn: Turn) -> Result<(), String> {
        let mut connection = self.connections[turn.task].lock().await;
        self.insert(&mut connection, turn).await?;
        let (done, mut updated) = oneshot::channel();
        self.queued.lock().await.push((key(turn.number), done));
        while updated.is_empty() {
            let _slot = self.slots.acquire().await.map_err(text)?;
            let batch: Vec<_> = {
                let mut queued = self.queued.lock().await;
                let count = queued.len().min(BATCH);
                queued.drain(..count).collect()
            };
            // Another task's statement contains this task's update.
            if batch.is_empty() {
                break;
            }
            let keys: Vec<&[u8]> = batch.iter().map(|(key, _)| key.as_bytes()).collect();
            let update = query::<Postgres>(AssertSqlSafe(Arc::clone(&self.update_many)))
                .bind(SCOPE.as_bytes())
                .bind(keys)
                .bind(&VALUE[..]);
            let rows = connection.execute(update).await.map_err(text)?.rows_affected();
            if rows != batch.len() as u64 {
                return Err(format!("{rows} of {} rows were updated", batch.len()));
            }
            for (_, done) in batch {
                // Ignore any error: the task may be gone after a failed round.
                let _ = done.send(());
            }
        }
        (&mut updated).await.map_err(text)
    }

    async fn select(&self, turn: Turn, keys: u64) -> Result<(), String> {
        let key = key(turn.number % keys);
        let select = query::<Postgres>(AssertSqlSafe(Arc::clone(&self.select)))
            .bind(SCOPE.as_bytes())
            .bind(key.as_bytes());
        let mut connection = self.connections[turn.task].lock().await;
        let row = connection
            .fetch_optional(select)
            .await
            .map_err(text)?
            .ok_or("the record is missing")?;
        let bytes: Vec<u8> = row.try_get(6).map_err(text)?;
        if bytes.len() >= VALUE.len() { Ok(()) } else { Err("the value is too short".into()) }
    }

    async fn one(&self, turn: Turn) -> Result<(), String> {
        let mut connection = self.connections[turn.task].lock().await;
        let row =
            connection.fetch_one(query::<Postgres>("SELECT 1::bigint")).await.map_err(text)?;
        row.try_get::<i64, _>(0).map(drop).map_err(text)
    }

    fn writes(self: &Arc<Self>) -> Way {
        let bare = Arc::clone(self);
        Way::new(WRITES, move |turn| {
            let bare = Arc::clone(&bare);
            async move { bare.two_writes(turn).await }
        })
    }

    fn batches(self: &Arc<Self>) -> Way {
        let bare = Arc::clone(self);
        Way::new(BATCHED, move |turn| {
            let bare = Arc::clone(&bare);
            async move { bare.batched_writes(turn).await }
        })
    }

    fn selects(self: &Arc<Self>, keys: u64) -> Way {
        let bare = Arc::clone(self);
        Way::new(SELECT, move |turn| {
            let bare = Arc::clone(&bare);
            async move { bare.select(turn, keys).await }
        })
    }

    fn ones(self: &Arc<Self>) -> Way {
        let bare = Arc::clone(self);
        Way::new("SELECT 1", move |turn| {
            let bare = Arc::clone(&bare);
            async move { bare.one(turn).await }
        })
    }
}

const WRITES: &str = "two bare durable writes";
const BATCHED: &str = "the same writes, the second in batches";
const SELECT: &str = "bare SELECT by key";

pub(crate) fn run(form: Form) -> Result<Report, String> {
    let runtime = runtime()?;
    let place = runtime.block_on(Place::new(form))?;
    let mut report = Report::new(form.suite(), form.title());
    let measured = all(&mut report, &runtime, &place);
    let cleared = runtime.block_on(place.clear());
    measured.and(cleared)?;
    let version = runtime.block_on(
        place.number("SELECT current_setting('server_version_num')::bigint/10000".into()),
    )?;
    if form != Form::Alone {
        report.note(form.note(version));
        return Ok(report);
    }
    report.note(format!(
        "PostgreSQL {version} as `cargo xtask services up postgres` starts it, on the same disk as \
         the build: `fsync` and `synchronous_commit` are on, and `shared_buffers` is a quarter of \
         the memory (at most 4 GiB). Scopes have 16 bytes, keys 36 bytes in random order, like \
         UUIDs, and values 200 bytes. The floor uses the same driver (`sqlx`) with one connection \
         for each task, as the store does, and prepared statements in autocommit with the same \
         durability, on a table with the same schema and indexes. Its execution is one INSERT and \
         one UPDATE by primary key; its replay is one SELECT of the same columns by primary key. \
         The store and the floor take turns in one loop. Each round gives a ratio of the two, and \
         the table shows the median of these ratios. One thread runs the client's tasks. In the \
         rows with one task, a process of the scheduler's idle class keeps each core awake. \
         Without it, a virtual core that sleeps between two calls wakes up late and with cold \
         caches; in earlier runs, this randomly doubled the store's or the floor's times. \
         Under load, the store sends the completions of several calls in one statement. The floor \
         of *executions, {TASKS} tasks, again* does so too: up to {BATCHES} statements at a time, \
         each with up to {BATCH} updates."
    ));
    report.note(
        "*Known key*: the process has seen the record complete, and reads it by primary key. \
         *First contact*: the process has not seen it, and the statement that would grant a \
         lease finds it. A waiter's time runs from just before another process sends the \
         completing call until the waiter has the decoded result. The statements row for 1,000 \
         callers counts every statement that ran in the whole database, including those for \
         connecting. Its goal is 1,000 first looks, three times the polls of one waiter for each \
         process, and the statements for connecting."
            .to_owned(),
    );
    Ok(report)
}

fn all(report: &mut Report, runtime: &Runtime, place: &Place) -> Result<(), String> {
    one_task(report, runtime, place)?;
    many_tasks(report, runtime, place)?;
    waiters(report, runtime, place)?;
    if place.form != Form::Alone {
        return Ok(());
    }
    footprint(report, runtime, place)?;
    purge(report, runtime, place)?;
    grown(report, runtime, place, 1_000_000, "1 M")
}

fn one_task(report: &mut Report, runtime: &Runtime, place: &Place) -> Result<(), String> {
    let (store, bare, strange) = runtime.block_on(async {
        place.fill("strange", STRANGE, "1 day").await?;
        let strange = (place.store("strange", 4).await?, place.bare("strange", 1).await?);
        Ok::<_, String>((place.store("one", 4).await?, place.bare("floor", 1).await?, strange))
    })?;
    let shape = Shape { rounds: 101, tasks: 1, each: 20 };
    let ways = vec![bare.writes(), Way::executions("execution", &store)];
    let writes = measure(runtime, shape, ways)?;
    report.row(Row::new(WRITES, writes[0].cost, "us"));
    report.row(
        Row::new("execution, 1 task", writes[1].cost, "us")
            .beside(WRITES, writes[1].ratio)
            .ratio_at_most(1.15),
    );
    runtime.block_on(async {
        for number in 0..500 {
            replay(&*strange.0, number).await?;
        }
        Ok::<_, String>(())
    })?;
    let shape = Shape { each: 100, ..shape };
    let ways = vec![strange.1.selects(500), Way::replays("replay", &strange.0, 500)];
    let known = measure(runtime, shape, ways)?;
    let ways = vec![
        strange.1.ones(),
        strange.1.selects(STRANGE),
        Way::replays("replay", &strange.0, STRANGE),
    ];
    let first = measure(runtime, shape, ways)?;
    report.row(Row::new(SELECT, known[0].cost, "us"));
    let row = Row::new("replay, known key, 1 task", known[1].cost, "us");
    report.row(row.beside(SELECT, known[1].ratio).ratio_at_most(1.15));
    report.row(Row::new("SELECT 1", first[0].cost, "us"));
    let row = Row::new("replay, first contact, 1 task", first[2].cost, "us");
    report.row(row.beside("SELECT 1", first[2].ratio).ratio_at_most(2.0));
    let row = Row::new("the same", first[2].cost, "us");
    report.row(row.beside("bare SELECT by key, the same keys", first[2].times(&first[1])));
    report.plot(
        Plot::new("Execution, one task", "x two bare durable writes")
            .bar("execution", writes[1].ratio)
            .bar(WRITES, 1.0)
            .goal(1.15),
    );
    report.plot(
        Plot::new("Replay, one task", "us")
            .bar("replay, known key", known[1].cost)
            .bar("replay, first contact", first[2].cost)
            .bar(SELECT, known[0].cost)
            .bar("SELECT 1", first[0].cost),
    );
    Ok(())
}

fn many_tasks(report: &mut Report, runtime: &Runtime, place: &Place) -> Result<(), String> {
    let (store, bare, strange) = runtime.block_on(async {
        let strange = (place.store("strange", TASKS).await?, place.bare("strange", TASKS).await?);
        Ok::<_, String>((
            place.store("many", TASKS).await?,
            place.bare("floors", TASKS).await?,
            strange,
        ))
    })?;
    let shape = Shape { rounds: 31, tasks: TASKS, each: 8 };
    let ways = vec![bare.writes(), Way::executions("execution", &store), bare.batches()];
    let writes = measure(runtime, shape, ways)?;
    report.row(
        rate(format!("executions, {TASKS} tasks"), &writes[1], &writes[0]).ratio_at_least(0.9),
    );
    // The store completes in batches under load, so the floor is also shown with batches.
    report.row(rate(format!("executions, {TASKS} tasks, again"), &writes[1], &writes[2]));
    report.row(rate(format!("{BATCHED}, {TASKS} tasks"), &writes[2], &writes[0]));
    let shape = Shape { each: 40, ..shape };
    let known = measure(
        runtime,
        shape,
        vec![strange.1.selects(500), Way::replays("replay", &strange.0, 500)],
    )?;
    report.row(rate(format!("replays, known key, {TASKS} tasks"), &known[1], &known[0]));
    let first = measure(
        runtime,
        shape,
        vec![strange.1.ones(), Way::replays("replay", &strange.0, STRANGE)],
    )?;
    report.row(rate(format!("replays, first contact, {TASKS} tasks"), &first[1], &first[0]));
    report.plot(
        Plot::new(format!("{TASKS} tasks on {TASKS} connections"), "operations a second")
            .bar("executions", 1e6 / writes[1].cost)
            .bar(WRITES, 1e6 / writes[0].cost)
            .bar(BATCHED, 1e6 / writes[2].cost)
            .bar("replays, known key", 1e6 / known[1].cost)
            .bar(SELECT, 1e6 / known[0].cost),
    );
    Ok(())
}

fn waiters(report: &mut Report, runtime: &Runtime, place: &Place) -> Result<(), String> {
    let store = runtime.block_on(async {
        let config = place.migrated("across").await?;
        PostgresStore::connect(config).await.map_err(text)
    })?;
    let name = place.table("across");
    let (suite, goal) = (place.form.suite(), place.form.wake_up());
    across::wake_up(report, runtime, suite, &name, store.into_shared(), goal)?;
    let polls = match place.form {
        // With notifications, a waiter polls after 250 ms, 500 ms and then each second, and
        // announces itself now and then.
        Form::Alone | Form::Standby => 3 + HOLD.as_secs(),
        // The pauses between polls grow to 50 ms.
        Form::Plain => HOLD.as_secs() * 20 + 5,
    };
    across::crowds(report, suite, &name, polls, 60, || runtime.block_on(transactions(place)))
}

/// Returns the number of transactions in the database so far. A server process reports its
/// transactions when it ends or has been idle for a while.
async fn transactions(place: &Place) -> Result<u64, String> {
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    place.run("SELECT pg_stat_clear_snapshot()".into()).await?;
    let sql =
        "SELECT xact_commit+xact_rollback FROM pg_stat_database WHERE datname=current_database()";
    place.number(sql.into()).await.map(i64::unsigned_abs)
}

/// Measures what replays and executions write: log bytes and index entries.
fn footprint(report: &mut Report, runtime: &Runtime, place: &Place) -> Result<(), String> {
    runtime.block_on(async {
        let store = place.store("strange", 4).await?;
        let position = "SELECT (pg_current_wal_insert_lsn()-'0/0')::bigint";
        let mut least = i64::MAX;
        // The log belongs to the whole server, so some of these measurements include other writes.
        // Only the smallest one counts, because writes of replays would be in all of them.
        for take in 0..8 {
            place.settle().await?;
            replay(&*store, take * 1_000).await?;
            let before = place.number(position.into()).await?;
            for number in 0..1_000 {
                replay(&*store, take * 1_000 + number).await?;
            }
            least = least.min(place.number(position.into()).await? - before);
            if least == 0 {
                break;
            }
        }
        report
            .row(Row::new("log bytes of 1,000 replays", least as f64, "bytes").value_at_most(0.0));
        let hot = place.store("hot", 4).await?;
        for number in 0..5_000 {
            execution(&*hot, number).await?;
        }
        let statistics = |column: &str| {
            let sql = format!(
                "SELECT {column} FROM pg_stat_user_tables WHERE relname='{}'",
                place.table("hot")
            );
            async move {
                place.run("SELECT pg_stat_clear_snapshot()".into()).await?;
                place.number(sql).await
            }
        };
        let share = "CASE WHEN n_tup_upd<4000 THEN 0 ELSE n_tup_hot_upd*100000/n_tup_upd END";
        let mut thousandths = 0;
        for _ in 0..60 {
            thousandths = statistics(share).await?;
            if thousandths > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        report.row(
            Row::new("completions that touch no index (HOT)", thousandths as f64 / 1_000.0, "%")
                .value_at_least(95.0),
        );
        Ok(())
    })
}

/// Measures how fast a purge deletes expired records, and how much it delays a caller.
fn purge(report: &mut Report, runtime: &Runtime, place: &Place) -> Result<(), String> {
    runtime.block_on(async {
        place.fill("over", OVER, "-2 days").await?;
        let store = place.store("over", 8).await?;
        let mut quiet = Vec::new();
        for number in 0..300 {
            let begin = now();
            execution(&*store, (1 << 50) + number).await?;
            quiet.push(per_operation(begin, 1) / 1_000.0);
        }
        let purging = tokio::spawn({
            let store = Arc::clone(&store);
            async move {
                let begin = now();
                let gone = store.purge(usize::MAX).await.map_err(text)?;
                Ok::<_, String>((gone, begin.elapsed()))
            }
        });
        let mut busy = Vec::new();
        let mut number = (1 << 50) + 1_000;
        while !purging.is_finished() {
            let begin = now();
            execution(&*store, number).await?;
            number += 1;
            busy.push(per_operation(begin, 1) / 1_000.0);
        }
        let (gone, took) = purging.await.map_err(text)??;
        if u64::try_from(gone).map_err(text)? < OVER {
            return Err(format!("{gone} of {OVER} expired records were purged"));
        }
        report.row(Row::new(
            "purge, executions meanwhile",
            gone as f64 / took.as_secs_f64(),
            "records/s",
        ));
        let (quiet, busy) = (median(quiet), median(busy));
        report.row(
            Row::new("execution during a purge, p50", busy, "us").beside("before it", busy / quiet),
        );
        Ok(())
    })
}

/// Measures the same operations with 10,000 and with many records.
pub(crate) fn grown(
    report: &mut Report,
    runtime: &Runtime,
    place: &Place,
    records: u64,
    many: &str,
) -> Result<(), String> {
    runtime.block_on(place.fill_both(records))?;
    grown_tables(report, runtime, place, records, many)
}

/// Measures as [`grown`] does, with the server's shared buffers on pages of the usual size, and
/// again on huge pages. Restarts the server, unless the machine has reserved too few huge pages.
pub(crate) fn grown_by_pages(
    report: &mut Report,
    runtime: &Runtime,
    place: &Place,
    records: u64,
    many: &str,
) -> Result<(), String> {
    runtime.block_on(place.fill_both(records))?;
    let needed = runtime.block_on(
        place.number("SELECT current_setting('shared_memory_size_in_huge_pages')::bigint".into()),
    )?;
    if let Some(why) = pages::missing(needed) {
        // The server is on pages of the usual size, because there are too few huge pages for it.
        grown_tables(report, runtime, place, records, many)?;
        report.row(Row::missing(format!("the same at {many} records, huge pages"), why));
        return Ok(());
    }
    let mut both = || {
        for (on, many) in [
            (BufferPages::Usual, many.to_owned()),
            (BufferPages::Huge, format!("{many}, huge pages,")),
        ] {
            runtime.block_on(place.restart_on(on))?;
            grown_tables(report, runtime, place, records, &many)?;
        }
        Ok(())
    };
    let measured = both();
    // Give the server its own setting back, which applies after the server's next start.
    let reset = runtime.block_on(place.run("ALTER SYSTEM RESET huge_pages".into()));
    measured.and(reset.map(drop))
}

impl Place {
    async fn fill_both(&self, records: u64) -> Result<(), String> {
        self.fill("few", 10_000, "1 day").await?;
        self.fill("full", records, "1 day").await
    }

    async fn restart_on(&self, pages: BufferPages) -> Result<(), String> {
        self.run(format!("ALTER SYSTEM SET huge_pages='{}'", pages.setting())).await?;
        pages::restart()?;
        let options = options(&self.bare_url)?;
        let connect = async || options.connect().await.map_err(text);
        *self.control.lock().await = pages::until_served(connect).await?;
        Ok(())
    }
}

/// Measures as [`grown`] does, on tables that are already filled.
fn grown_tables(
    report: &mut Report,
    runtime: &Runtime,
    place: &Place,
    records: u64,
    many: &str,
) -> Result<(), String> {
    let filled = |part: &'static str, records: u64| async move {
        let (store, bare) = (place.store(part, 4).await?, place.bare(part, 1).await?);
        Ok::<_, String>(Filled {
            writes: bare.writes(),
            execution: Way::executions("execution", &store),
            read: bare.selects(records),
            replay: Way::replays("replay", &store, records),
            read_again: bare.selects(HOT),
            again: Way::replays("replay", &store, HOT),
        })
    };
    let both = runtime.block_on(async {
        let both = [filled("few", 10_000).await?, filled("full", records).await?];
        place.settle().await?;
        Ok::<_, String>(both)
    })?;
    growth(report, runtime, many, both)
}

pub(crate) fn child(form: Form, args: &[String], _: HeapCounter) -> Result<(), String> {
    let [table] = args else { return Err("postgres: the child takes the name of a table".into()) };
    let runtime = runtime()?;
    let config = config(&form.url()?, table)?;
    let store = runtime.block_on(PostgresStore::connect(config)).map_err(text)?;
    across::serve(&runtime, store.into_shared())
}
