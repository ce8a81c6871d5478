// SPDX-License-Identifier: MIT OR Apache-2.0
//! Suite `mariadb`: compares the MySQL store on MariaDB with bare prepared statements of the same
//! driver.
//!
//! The floor writes and reads a table of the same schema on the same server. Each statement is a
//! separate transaction, with the durability and the isolation level of the store's statements.
//!
//! This file is over 400 lines long because the floor, the tables that it shares with the store,
//! and what is measured on them belong together.

use std::fmt::Write as _;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use retryproof::mysql::{MysqlConfig, MysqlStore};
use retryproof::store::{AcquireRequest, Acquired, Completion, FencedWrite};
use retryproof::{Blob, IdempotencyStore as _, Identity, OwnerId};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, MySql, Row as _, query, raw_sql};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use crate::heap::HeapCounter;
use crate::report::{Plot, Report, Row};
use crate::servers::across::{self, HOLD};
use crate::servers::{
    Filled, HOT, LEASE, SCOPE, Shape, Turn, VALUE, Way, growth, key, measure, own_name, rate,
    replay, runtime, sorted_keys, text, url,
};

const SUITE: &str = "mariadb";
/// How many records are replayed in turn: enough that each record's last replay was long ago.
const STRANGE: u64 = 100_000;
const TASKS: usize = 64;

const WRITES: &str = "two bare durable writes";
const SELECT: &str = "bare SELECT by key";

/// The server, and the run's tables, which are dropped when the run ends.
pub(crate) struct Place {
    url: String,
    name: String,
    control: Mutex<MySqlConnection>,
    tables: std::sync::Mutex<Vec<String>>,
}

/// The floor on a table of the same schema, with one connection for each task.
struct Bare {
    connections: Vec<Mutex<MySqlConnection>>,
    insert: Arc<str>,
    update: Arc<str>,
    select: Arc<str>,
}

/// Opens a connection with the settings of the store's connections.
async fn connect(url: &str) -> Result<MySqlConnection, String> {
    let options = MySqlConnectOptions::from_str(url).map_err(text)?;
    let options = options
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .timezone(None)
        .set_names(false)
        .disable_statement_logging();
    let mut connection = options.connect().await.map_err(text)?;
    let settings = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SET SESSION autocommit=1, \
                    sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'";
    connection.execute(raw_sql(settings)).await.map_err(text)?;
    Ok(connection)
}

impl Place {
    pub(crate) async fn new() -> Result<Self, String> {
        let url = url("mariadb")?;
        let control = Mutex::new(connect(&url).await?);
        Ok(Self { url, name: own_name(), control, tables: std::sync::Mutex::default() })
    }

    fn table(&self, part: &str) -> String {
        format!("{}_{part}", self.name)
    }

    async fn migrated(&self, part: &str) -> Result<MysqlConfig, String> {
        let table = self.table(part);
        let config = MysqlConfig::from_url(&self.url).map_err(text)?.with_table_name(&table);
        config.migrate().await.map_err(text)?;
        let mut tables = self.tables.lock().map_err(text)?;
        if !tables.contains(&table) {
            tables.push(table);
        }
        Ok(config)
    }

    async fn store(&self, part: &str, connections: usize) -> Result<Arc<MysqlStore>, String> {
        let config = self.migrated(part).await?.with_max_connections(connections);
        Ok(Arc::new(MysqlStore::connect(config).await.map_err(text)?))
    }

    async fn bare(&self, part: &str, connections: usize) -> Result<Arc<Bare>, String> {
        self.migrated(part).await?;
        let table = self.table(part);
        let mut all = Vec::new();
        for _ in 0..connections {
            all.push(Mutex::new(connect(&self.url).await?));
        }
        Ok(Arc::new(Bare {
            connections: all,
            insert: format!(
                "INSERT INTO `{table}` (scope,k,state,owner,token,takeovers,expires_at,purge_after) \
                 VALUES (?,?,0,?,?,0,UTC_TIMESTAMP(6)+INTERVAL 30 SECOND,UTC_TIMESTAMP(6)+INTERVAL 1 DAY)"
            )
            .into(),
            update: format!(
                "UPDATE `{table}` SET state=1,expires_at=UTC_TIMESTAMP(6)+INTERVAL 1 \
                 DAY,result=? WHERE scope=? AND k=?"
            )
            .into(),
            select: format!("SELECT fp,result FROM `{table}` WHERE scope=? AND k=?").into(),
        }))
    }

    async fn run(&self, sql: String) -> Result<u64, String> {
        let mut control = self.control.lock().await;
        Ok(control.execute(raw_sql(AssertSqlSafe(sql))).await.map_err(text)?.rows_affected())
    }

    /// Reads a counter of the server.
    async fn counter(&self, name: &str) -> Result<u64, String> {
        let sql = format!(
            "SELECT CAST(VARIABLE_VALUE AS SIGNED) FROM information_schema.GLOBAL_STATUS WHERE \
             VARIABLE_NAME='{name}'"
        );
        let mut control = self.control.lock().await;
        let row = control.fetch_one(query::<MySql>(AssertSqlSafe(sql))).await.map_err(text)?;
        row.try_get::<i64, _>(0).map(i64::unsigned_abs).map_err(text)
    }

    /// Fills the table with complete records for the numbers below `records`.
    async fn fill(&self, part: &str, records: u64) -> Result<(), String> {
        self.migrated(part).await?;
        let table = self.table(part);
        for chunk in sorted_keys(records).chunks(2_000) {
            let mut sql = format!(
                "INSERT INTO `{table}` \
                 (scope,k,state,owner,token,takeovers,expires_at,purge_after,result) VALUES "
            );
            for (at, key) in chunk.iter().enumerate() {
                let comma = if at == 0 { "" } else { "," };
                // The key has only hex digits and hyphens, so nothing needs an escape.
                let _ = write!(
                    sql,
                    "{comma}('{SCOPE}','{key}',1,UNHEX(MD5('{key}')),1,0,UTC_TIMESTAMP(6)+INTERVAL 1 DAY,\
                     UTC_TIMESTAMP(6)+INTERVAL 1 DAY,REPEAT('x',{}))",
                    VALUE.len()
                );
            }
            self.run(sql).await?;
        }
        Ok(())
    }

    pub(crate) async fn clear(&self) -> Result<(), String> {
        let tables = std::mem::take(&mut *self.tables.lock().map_err(text)?);
        for table in tables {
            self.run(format!("DROP TABLE IF EXISTS `{table}`, `{table}_meta`")).await?;
        }
        Ok(())
    }
}

impl Bare {
    async fn two_writes(&self, turn: Turn) -> Result<(), String> {
        let key = key(turn.number);
        let owner = OwnerId::new();
        let stamp = i64::try_from(turn.number).map_err(text)?;
        let mut connection = self.connections[turn.task].lock().await;
        let insert = query::<MySql>(AssertSqlSafe(Arc::clone(&self.insert)))
            .bind(SCOPE.as_bytes())
            .bind(key.as_bytes())
            .bind(&owner.as_bytes()[..])
            .bind(stamp);
        connection.execute(insert).await.map_err(text)?;
        let update = query::<MySql>(AssertSqlSafe(Arc::clone(&self.update)))
            .bind(&VALUE[..])
            .bind(SCOPE.as_bytes())
            .bind(key.as_bytes());
        match connection.execute(update).await.map_err(text)?.rows_affected() {
            1 => Ok(()),
            rows => Err(format!("{rows} rows were updated")),
        }
    }

    async fn select(&self, turn: Turn, keys: u64) -> Result<(), String> {
        let key = key(turn.number % keys);
        let select = query::<MySql>(AssertSqlSafe(Arc::clone(&self.select)))
            .bind(SCOPE.as_bytes())
            .bind(key.as_bytes());
        let mut connection = self.connections[turn.task].lock().await;
        let row = connection
            .fetch_optional(select)
            .await
            .map_err(text)?
            .ok_or("the record is missing")?;
        let bytes: Vec<u8> = row.try_get(1).map_err(text)?;
        if bytes.len() >= VALUE.len() { Ok(()) } else { Err("the value is too short".into()) }
    }

    fn writes(self: &Arc<Self>) -> Way {
        let bare = Arc::clone(self);
        Way::new(WRITES, move |turn| {
            let bare = Arc::clone(&bare);
            async move { bare.two_writes(turn).await }
        })
    }

    fn selects(self: &Arc<Self>, keys: u64) -> Way {
        let bare = Arc::clone(self);
        Way::new(SELECT, move |turn| {
            let bare = Arc::clone(&bare);
            async move { bare.select(turn, keys).await }
        })
    }
}

pub(crate) fn run() -> Result<Report, String> {
    let runtime = runtime()?;
    let place = runtime.block_on(Place::new())?;
    let mut report = Report::new(SUITE, "The MySQL store, on MariaDB");
    let measured = all(&mut report, &runtime, &place);
    let cleared = runtime.block_on(place.clear());
    measured.and(cleared)?;
    report.note(
        "MariaDB as `cargo xtask services up mariadb` starts it, on the same disk as the build: \
         `innodb_flush_log_at_trx_commit=1`, and a buffer pool of a quarter of the memory (at most \
         4 GiB). Scopes have 16 bytes, keys 36 bytes in random order, like UUIDs, and values 200 \
         bytes. The floor uses the same driver (`sqlx`) with one connection for each task, as the \
         store does, and prepared statements in autocommit with the same durability and isolation, \
         on a table with the same schema and indexes. Its execution is one INSERT and one UPDATE \
         by primary key; its replay is one SELECT of fingerprint and result by primary key. The \
         store and the floor take turns in one loop. Each round gives a ratio of the two, and the \
         table shows the median of these ratios. One thread runs the client's tasks. In the rows \
         with one task, a process of the scheduler's idle class keeps each core awake. Without it, \
         a virtual core that sleeps between two calls wakes up late and with cold caches; in \
         earlier runs, this randomly doubled the store's or the floor's times."
            .to_owned(),
    );
    report.note(
        "*Known key*: the process has seen the record complete, and reads it by primary key. \
         *First contact*: the process has not seen it, and the upsert, which locks the row, finds \
         it. A waiter's time runs from just before another process sends the completing call \
         until the waiter has the decoded result. The server sends no notifications, so a waiter \
         polls, with pauses that grow to 40 ms. The statements row for 1,000 callers counts every \
         statement that the server executed. Its goal is 1,000 first looks and three times the \
         polls of one waiter for each process."
            .to_owned(),
    );
    Ok(report)
}

fn all(report: &mut Report, runtime: &Runtime, place: &Place) -> Result<(), String> {
    one_task(report, runtime, place)?;
    many_tasks(report, runtime, place)?;
    hot_keys(report, runtime, place)?;
    waiters(report, runtime, place)?;
    grown(report, runtime, place, 1_000_000, "1 M")
}

fn one_task(report: &mut Report, runtime: &Runtime, place: &Place) -> Result<(), String> {
    let (store, bare, strange) = runtime.block_on(async {
        place.fill("strange", STRANGE).await?;
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
    let ways = vec![strange.1.selects(STRANGE), Way::replays("replay", &strange.0, STRANGE)];
    let first = measure(runtime, shape, ways)?;
    report.row(Row::new(SELECT, known[0].cost, "us"));
    let row = Row::new("replay, known key, 1 task", known[1].cost, "us");
    report.row(row.beside(SELECT, known[1].ratio).ratio_at_most(1.15));
    let row = Row::new("replay, first contact, 1 task", first[1].cost, "us");
    report.row(row.beside(SELECT, first[1].ratio).ratio_at_most(1.15));
    report.plot(
        Plot::new("Execution, one task", "x two bare durable writes")
            .bar("execution", writes[1].ratio)
            .bar(WRITES, 1.0)
            .goal(1.15),
    );
    report.plot(
        Plot::new("Replay, one task", "x bare SELECT by key")
            .bar("replay, known key", known[1].ratio)
            .bar("replay, first contact", first[1].ratio)
            .bar(SELECT, 1.0)
            .goal(1.15),
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
    let writes =
        measure(runtime, shape, vec![bare.writes(), Way::executions("execution", &store)])?;
    report.row(rate(format!("executions, {TASKS} tasks"), &writes[1], &writes[0]));
    let shape = Shape { each: 30, ..shape };
    let known = measure(
        runtime,
        shape,
        vec![strange.1.selects(500), Way::replays("replay", &strange.0, 500)],
    )?;
    report.row(rate(format!("replays, known key, {TASKS} tasks"), &known[1], &known[0]));
    let ways = vec![strange.1.selects(STRANGE), Way::replays("replay", &strange.0, STRANGE)];
    let first = measure(runtime, shape, ways)?;
    report.row(rate(format!("replays, first contact, {TASKS} tasks"), &first[1], &first[0]));
    report.plot(
        Plot::new(format!("{TASKS} tasks on {TASKS} connections"), "operations a second")
            .bar("executions", 1e6 / writes[1].cost)
            .bar(WRITES, 1e6 / writes[0].cost)
            .bar("replays, known key", 1e6 / known[1].cost)
            .bar(SELECT, 1e6 / known[0].cost),
    );
    Ok(())
}

/// Runs 16 tasks on 4 keys: acquires, takeovers of short leases, completions and releases. A
/// deadlock must count as a lost race, and must not reach a caller as an error.
fn hot_keys(report: &mut Report, runtime: &Runtime, place: &Place) -> Result<(), String> {
    const ROUNDS: u64 = 300;
    runtime.block_on(async {
        let store = place.store("hot", 16).await?;
        let before = place.counter("INNODB_DEADLOCKS").await?;
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..16 {
            let store = Arc::clone(&store);
            tasks.spawn(async move {
                let mut surfaced = 0_u64;
                for round in 0..ROUNDS {
                    let id = Identity::of(SCOPE, format!("hot-{}", round % 4)).map_err(text)?;
                    let short = Duration::from_millis(2);
                    let request = AcquireRequest::new(
                        OwnerId::new(),
                        if round % 3 == 0 { short } else { LEASE },
                        short,
                    );
                    let ended = match store.acquire(&id, &request).await {
                        Ok(Acquired::Granted(_)) if round % 3 == 0 => Ok(FencedWrite::Applied),
                        Ok(Acquired::Granted(_)) if (round + task) % 2 == 0 => {
                            store.release(&id, request.owner).await
                        }
                        Ok(Acquired::Granted(_)) => {
                            let done = Completion::new(Blob::from(VALUE.to_vec()), short, None);
                            store.complete(&id, request.owner, &done).await
                        }
                        Ok(_) => Ok(FencedWrite::NotOwner),
                        Err(error) => Err(error),
                    };
                    surfaced += u64::from(ended.is_err());
                }
                Ok::<_, String>(surfaced)
            });
        }
        let mut surfaced = 0;
        while let Some(ended) = tasks.join_next().await {
            surfaced += ended.map_err(text)??;
        }
        let inside = place.counter("INNODB_DEADLOCKS").await?.saturating_sub(before);
        let row = Row::new("errors of 16 tasks on 4 keys, 4,800 rounds", surfaced as f64, "");
        report.row(row.value_at_most(0.0));
        report.row(Row::new("the same: deadlocks that the server counted", inside as f64, ""));
        Ok(())
    })
}

fn waiters(report: &mut Report, runtime: &Runtime, place: &Place) -> Result<(), String> {
    let store = runtime.block_on(async {
        let config = place.migrated("across").await?;
        MysqlStore::connect(config).await.map_err(text)
    })?;
    let name = place.table("across");
    across::wake_up(report, runtime, SUITE, &name, store.into_shared(), 30.0)?;
    // A waiter polls after 2 ms, 4 ms and so on, up to 40 ms.
    let polls = u64::try_from(HOLD.as_millis()).map_err(text)? / 40 + 5;
    across::crowds(report, SUITE, &name, polls, 20, || {
        runtime.block_on(place.counter("COM_STMT_EXECUTE"))
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
    let filled = |part: &'static str, records: u64| async move {
        place.fill(part, records).await?;
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
        Ok::<_, String>([filled("few", 10_000).await?, filled("full", records).await?])
    })?;
    growth(report, runtime, many, both)
}

pub(crate) fn child(args: &[String], _: HeapCounter) -> Result<(), String> {
    let [table] = args else { return Err("mariadb: the child takes the name of a table".into()) };
    let runtime = runtime()?;
    let config = MysqlConfig::from_url(&url("mariadb")?).map_err(text)?.with_table_name(table);
    let store = runtime.block_on(MysqlStore::connect(config)).map_err(text)?;
    across::serve(&runtime, store.into_shared())
}
