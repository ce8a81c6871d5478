// SPDX-License-Identifier: MIT OR Apache-2.0
//! Suite `memory`: compares the memory store with a bare map behind a mutex (the floor) and with
//! dashmap (a peer).
//!
//! The suite takes about five minutes. Its ten million records need 4 GiB of memory, and are left
//! out if the machine has too little.

use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use retryproof::store::Peeked;
use retryproof::{Fingerprint, IdempotencyStore, MemoryStore};

use crate::callgrind;
use crate::compare::{Contender, Median, interleave, now, per_operation};
use crate::heap::{self, HeapCounter};
use crate::report::{Plot, Report, Row};

mod work;

use work::{Ask, DAY, Floor, Item, Keeper, Peer, Reader, Time, VALUE, item, items};

/// The number of identities that a hot run repeats: with all their data, they fit into the
/// processor's fastest cache.
const HOT: u64 = 32;
/// The number of identities over which counted work repeats. It is so large that their distribution
/// over shards and chains does not matter.
const MANY: u64 = MANY_ITEMS as u64;
const MANY_ITEMS: usize = 256;
const MILLION: u64 = 1_000_000;
/// The bytes that ten million records need, with a reserve for other programs.
const NEEDED: u64 = 6 << 30;
/// The shortest ttl: it is over when the next call reads the clock.
const BLINK: Duration = Duration::from_nanos(1);

const OURS: &str = "retryproof";
const FLOOR: &str = "map + mutex";
const PEER: &str = "dashmap";
const READER: &str = "dashmap, a read with our hash";

struct Field {
    ours: MemoryStore,
    floor: Floor,
    peer: Peer,
    reader: Reader,
}

impl Field {
    fn new(time: Time) -> Self {
        let reader = Reader(Peer::new(time));
        Self { ours: time.store(), floor: Floor::new(time), peer: Peer::new(time), reader }
    }

    fn all(&self) -> [(&'static str, &dyn Keeper); 4] {
        [(FLOOR, &self.floor), (OURS, &self.ours), (PEER, &self.peer), (READER, &self.reader)]
    }

    fn one(&self, name: &str) -> Option<&dyn Keeper> {
        Some(match name {
            "ours" => &self.ours,
            "floor" => &self.floor,
            "peer" => &self.peer,
            "reader" => &self.reader,
            _ => return None,
        })
    }
}

pub(crate) fn run() -> Result<Report, String> {
    let mut report = Report::new("memory", "The memory store");
    instructions(&mut report)?;
    allocations(&mut report)?;
    times(&mut report)?;
    report.note(format!(
        "The scope has 16 bytes, the key 36 and the value {VALUE}. There is no fingerprint unless \
         a row says so. A first execution is an acquire and a completion of a fresh key; *again* \
         is the same on a key whose last result is past its ttl. Identities are created \
         beforehand, and each contains its keyed hash. The floor is a `HashMap` behind one \
         `std::sync::Mutex`, with the same hash function. `{PEER}` is a `DashMap` with its default \
         hash function, SipHash; its acquire is one atomic `entry`. Both maps use scope and key as \
         the key, check an owner and a time on every call, and return the value without copying \
         it. They do nothing else: no bounds, no reclaiming, no waiters, no tokens. {READER:?} \
         does even less: it knows that the call is a duplicate, and only looks the value up. Every \
         contender reads the clock on every call, which takes about 25 ns, so the goal is set for \
         rows in which the clock stands still. *Hot* rows cycle through {HOT} identities; *cold* \
         rows read a million identities in random order. Instructions are counted by callgrind, as \
         the difference of two counts of the same work, including the loop around it.",
    ));
    report.note(
        "Bytes are those requested from the allocator. The allocator's own overhead is not \
         included; the row of the resident size includes it. The index grows by one bucket for \
         each record, so the bytes of a record do not depend on the number of records.",
    );
    Ok(report)
}

/// Adds the instructions per operation, as callgrind counts them.
fn instructions(report: &mut Report) -> Result<(), String> {
    let works = [
        ("replay", "replay, instructions", Some(260.0)),
        ("replay-fingerprint", "replay with a fingerprint, instructions", None),
        ("look", "look, instructions", None),
        ("execute", "first execution, instructions", Some(1_300.0)),
        ("again", "execution again, instructions", Some(1_300.0)),
    ];
    let mut plots = Vec::new();
    for (work, what, goal) in works {
        let count =
            |who: &str| callgrind::instructions(&["memory", work, who], 20 * MANY, 200 * MANY);
        let Some(ours) = count("ours")? else {
            report.row(Row::missing(what, "valgrind is not installed"));
            continue;
        };
        let mut row = Row::new(what, ours, "");
        let plot = Plot::new(what, "per operation").bar(OURS, ours);
        if let Some(goal) = goal
            && let (Some(floor), Some(peer)) = (count("floor")?, count("peer")?)
        {
            row = row.beside(FLOOR, ours / floor).value_at_most(goal);
            plots.push(plot.bar(FLOOR, floor).bar(PEER, peer).goal(goal));
            report.row(row);
            row = Row::new(format!("{what}, {PEER}"), peer, "").beside(OURS, peer / ours);
            if work == "replay" {
                row = row.ratio_at_least(2.0);
            }
        }
        report.row(row);
    }
    plots.into_iter().for_each(|plot| report.plot(plot));
    Ok(())
}

/// Adds allocations per operation and bytes per record, from the counting allocator of a child.
fn allocations(report: &mut Report) -> Result<(), String> {
    let count = heap::counted(&["memory", "allocations"])?;
    let get = |name: &str| {
        count.get(name).copied().ok_or(format!("the counting child did not report `{name}`"))
    };
    report.row(Row::new("replay, allocations", get("replay")?, "").value_at_most(0.0));
    report.row(Row::new("first execution, allocations", get("execute")?, "").value_at_most(2.0));
    report.row(Row::new("execution again, allocations", get("again")?, "").value_at_most(2.0));
    let fill = |who: &str, records: u64, figure: &str| -> Result<f64, String> {
        let told = heap::counted(&["memory", "fill", who, &records.to_string()])?;
        told.get(figure).copied().ok_or(format!("the counting child did not report `{figure}`"))
    };
    let (million, peer) = (fill("ours", MILLION, "bytes")?, fill("peer", MILLION, "bytes")?);
    let row = Row::new("bytes per record at 1 M", million, "B").beside(PEER, million / peer);
    report.row(row.value_at_most(330.0));
    if let Ok(resident) = fill("ours", MILLION, "resident") {
        report.row(Row::new("resident bytes per record at 1 M", resident, "B"));
    }
    let what = "bytes per record at 10 M";
    if heap::available().is_none_or(|bytes| bytes < NEEDED) {
        report.row(Row::missing(what, "this machine has no 6 GiB to spare"));
        return Ok(());
    }
    let ten = fill("ours", 10 * MILLION, "bytes")?;
    report.row(Row::new(what, ten, "B").beside("at 1 M", ten / million).ratio_at_most(1.05));
    Ok(())
}

/// Measures the nanoseconds of our store, in turn with the floor and the peers.
fn times(report: &mut Report) -> Result<(), String> {
    let (keep, blink_of) = (Ask::new(DAY), Ask::new(BLINK));
    let field = Field::new(Time::default());
    let hot = items(0..HOT);
    let blink = items(HOT..3 * HOT);
    for (_, keeper) in field.all() {
        for id in &hot {
            if !keeper.execute(id, &keep) {
                return Err("a fresh key was not granted".into());
            }
        }
    }
    let replay = |keeper: &dyn Keeper, _: u64, n: u64| assert!(keeper.replay(at(&hot, n), &keep));
    // Each thread has its own keys. If two threads used the same key, the run would measure
    // refusals.
    let again = |keeper: &dyn Keeper, thread: u64, n: u64| {
        assert!(keeper.execute(at(&blink, 2 * (n % HOT) + thread), &blink_of));
    };
    let still = Field::new(Time::still());
    for (_, keeper) in still.all() {
        hot.iter().for_each(|item| assert!(keeper.execute(item, &keep)));
    }
    for (threads, name) in [(1, "1 thread"), (2, "2 threads")] {
        let medians = race(&field, threads, &replay);
        rows(report, &format!("replay hot, {name}"), &medians, None);
        let medians = race(&still, threads, &replay);
        rows(report, &format!("the same, clock held still, {name}"), &medians, Some(2.0));
        let medians = race(&field, threads, &again);
        rows(report, &format!("execution again, {name}"), &medians, None);
    }
    drop((field, still));
    cold(report)
}

/// Replays a million records in each store, in an order that no cache predicts.
fn cold(report: &mut Report) -> Result<(), String> {
    let keep = Ask::new(DAY);
    let many = items(0..MILLION);
    let field = Field::new(Time::default());
    for (_, keeper) in field.all() {
        for id in &many {
            if !keeper.execute(id, &keep) {
                return Err("a fresh key was not granted".into());
            }
        }
    }
    // Create the identities again, because a real duplicate has its own copy of the key.
    let many = items(0..MILLION);
    let replay = |keeper: &dyn Keeper, thread: u64, n: u64| {
        let n = (n + thread * MILLION).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        assert!(keeper.replay(at(&many, n), &keep));
    };
    for threads in [1, 2] {
        let medians = race(&field, threads, &replay);
        let plural = if threads == 1 { "" } else { "s" };
        rows(report, &format!("replay cold, {threads} thread{plural}"), &medians, None);
    }
    Ok(())
}

fn at(ids: &[Item], n: u64) -> &Item {
    #[expect(clippy::cast_possible_truncation, reason = "only its remainder counts")]
    let n = n as usize;
    &ids[n % ids.len()]
}

/// Measures nanoseconds per operation of each thread, all contenders in turn. One thread runs short
/// batches, which other users of the machine seldom interrupt. More threads need longer batches,
/// because starting threads takes time.
fn race(field: &Field, threads: u64, work: &(dyn Fn(&dyn Keeper, u64, u64) + Sync)) -> Vec<Median> {
    let (rounds, operations) = if threads == 1 { (501, 5_000) } else { (61, 50_000) };
    let contenders = field.all().map(|(name, keeper)| {
        let mut numbers = 0..operations;
        Contender::new(name, move || {
            let began = now();
            if threads == 1 {
                numbers.clone().for_each(|n| work(keeper, 0, n));
            } else {
                std::thread::scope(|scope| {
                    for thread in 0..threads {
                        let numbers = numbers.clone();
                        scope.spawn(move || numbers.for_each(|n| work(keeper, thread, n)));
                    }
                });
            }
            numbers = numbers.end..numbers.end + operations;
            per_operation(began, operations)
        })
    });
    interleave(rounds, contenders.into())
}

/// Adds our row with its ratio to the floor, the peer's row with its ratio to ours, and a plot.
fn rows(report: &mut Report, what: &str, medians: &[Median], goal: Option<f64>) {
    let [floor, ours, peer, reader] = medians else { return };
    report.row(Row::new(what, ours.cost, "ns").beside(FLOOR, ours.ratio));
    let row = Row::new(format!("{what}, {PEER}"), peer.cost, "ns").beside(OURS, peer.times(ours));
    report.row(if let Some(goal) = goal { row.ratio_at_least(goal) } else { row });
    let mut plot = Plot::new(what, "ns");
    for (name, median) in [(OURS, ours), (FLOOR, floor), (PEER, peer), (READER, reader)] {
        plot = plot.bar(name, median.cost);
    }
    report.plot(plot);
}

/// `WORK WHO COUNT` makes COUNT calls of WORK, for callgrind; `allocations` and `fill WHO COUNT`
/// print figures of the counting allocator.
pub(crate) fn child(args: &[String], heap: HeapCounter) -> Result<(), String> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("`{text}`: {error}"));
    match args[..] {
        ["allocations"] => {
            for work in ["replay", "execute", "again"] {
                let mut bench = Bench::new("ours")?;
                // The first calls fill slabs that later calls reuse.
                bench.work(work, 0..20 * MANY)?;
                let before = heap().ok_or("the counting allocator is not installed")?;
                bench.work(work, 20 * MANY..200 * MANY)?;
                heap::answer(work, heap().unwrap_or_default().since(before, 180 * MANY).0);
            }
            Ok(())
        }
        ["fill", who, count] => fill(who, number(count)?, heap),
        [work, who, count] => {
            let mut bench = Bench::new(who)?;
            bench.work(work, 0..number(count)?)?;
            // Do not drop the records, because the count would include the work of freeing them.
            std::mem::forget(bench);
            Ok(())
        }
        _ => Err(format!("unknown arguments `{}`", args.join(" "))),
    }
}

/// Fills a store with records, and prints the size of a record. Each key is created for one call
/// and then dropped.
fn fill(who: &str, records: u64, heap: HeapCounter) -> Result<(), String> {
    let field = Field::new(Time::default());
    let keeper = field.one(who).ok_or("who?")?;
    let keep = Ask::new(DAY);
    let before = heap().ok_or("the counting allocator is not installed")?;
    let resident = heap::resident();
    for n in 0..records {
        if !keeper.execute(&item(n), &keep) {
            return Err("a fresh key was not granted".into());
        }
    }
    heap::answer("bytes", heap().unwrap_or_default().since(before, records).1);
    if let (Some(before), Some(after)) = (resident, heap::resident()) {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        heap::answer("resident", after.saturating_sub(before) as f64 / records as f64);
    }
    Ok(())
}

/// One contender, with everything that its work needs prepared.
struct Bench<'a> {
    field: Field,
    who: &'a str,
    keep: Ask,
    blink: Ask,
    hot: Vec<Item>,
    fresh: Vec<Item>,
}

impl<'a> Bench<'a> {
    fn new(who: &'a str) -> Result<Self, String> {
        let bench = Self {
            field: Field::new(Time::default()),
            who,
            keep: Ask::new(DAY),
            blink: Ask::new(BLINK),
            hot: items(0..MANY),
            fresh: items(1_000_000..1_000_000 + 200 * MANY),
        };
        let keeper = bench.field.one(who).ok_or("who?")?;
        for id in &bench.hot {
            keeper.execute(id, &bench.keep);
        }
        Ok(bench)
    }

    fn work(&mut self, work: &str, range: std::ops::Range<u64>) -> Result<(), String> {
        match self.who {
            "ours" => self.run(|field| &field.ours, work, range),
            "floor" => self.run(|field| &field.floor, work, range),
            "peer" => self.run(|field| &field.peer, work, range),
            _ => self.run(|field| &field.reader, work, range),
        }
    }

    /// The calls do not go through `dyn Keeper`, so only the work and a loop are counted.
    fn run<K: Keeper>(
        &mut self,
        pick: fn(&Field) -> &K,
        work: &str,
        range: std::ops::Range<u64>,
    ) -> Result<(), String> {
        let Self { field, keep, blink, hot, fresh, .. } = self;
        let keeper = pick(field);
        let (start, count) =
            (usize::try_from(range.start), usize::try_from(range.end - range.start));
        let (Ok(start), Ok(count)) = (start, count) else {
            return Err("the range is too large".into());
        };
        match work {
            "replay" => rounds(hot, count, |id| keeper.replay(id, keep)),
            "execute" => rounds(&fresh[start..start + count], count, |id| keeper.execute(id, keep)),
            "again" => rounds(&fresh[..MANY_ITEMS], count, |id| keeper.execute(id, blink)),
            "look" => rounds(hot, count, |id| {
                let answer =
                    pin!(field.ours.peek(&id.id)).poll(&mut Context::from_waker(Waker::noop()));
                matches!(black_box(&answer), Poll::Ready(Ok(Peeked::Complete(_))))
            }),
            "replay-fingerprint" => {
                keep.request.fingerprint = Fingerprint::new(&[1; 33]).ok();
                keep.done.fingerprint = keep.request.fingerprint;
                rounds(&fresh[..MANY_ITEMS], MANY_ITEMS, |id| keeper.execute(id, keep));
                rounds(&fresh[..MANY_ITEMS], count, |id| keeper.replay(id, keep));
            }
            other => return Err(format!("unknown work `{other}`")),
        }
        Ok(())
    }
}

/// Does `work` `count` times, rounded down to whole rounds over the `ids`; the loop itself costs a
/// few instructions.
#[inline(always)]
fn rounds(ids: &[Item], count: usize, work: impl Fn(&Item) -> bool) {
    for _ in 0..count / ids.len() {
        for id in ids {
            assert!(work(id));
        }
    }
}
