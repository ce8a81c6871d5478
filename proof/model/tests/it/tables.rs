// SPDX-License-Identifier: MIT OR Apache-2.0
//! The README's tables are generated from the transition functions, so that they are always
//! correct.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use model::{
    Action, Answer, Bounds, Budget, Client, Done, Fate, Fenced, Held, Op, Outcome, Owner, Phase,
    Protocol, Record, Slot, Stage, Token, Value, Wakeup,
};

/// Checks that the README contains `body` between the two marks of `section`. With `MODEL_BLESS=1`,
/// writes it there first.
pub(crate) fn assert_in_readme(section: &str, body: &str) {
    // Tests run concurrently, so one must not read the file while another writes it.
    let _one_at_a_time = README.lock().unwrap_or_else(PoisonError::into_inner);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let readme = std::fs::read_to_string(path).unwrap();
    let (start, end) =
        (format!("<!-- made: {section} -->\n"), format!("<!-- end: {section} -->\n"));
    let (before, rest) = readme.split_once(&start).unwrap();
    let (stands, after) = rest.split_once(&end).unwrap();
    if stands != body && std::env::var_os("MODEL_BLESS").is_some() {
        std::fs::write(path, [before, &start, body, &end, after].concat()).unwrap();
        return;
    }
    assert_eq!(stands, body, "README.md, {section}: MODEL_BLESS=1 updates it");
}

static README: Mutex<()> = Mutex::new(());

const NOW: u16 = 10;
const MINE: Owner = Owner(1);

/// Returns every kind of record that a caller with the owner `MINE` can find.
fn records() -> Vec<(&'static str, Slot)> {
    let held = |owner, expires, keep_until| {
        Record::InProgress(Held {
            owner,
            token: Token(3),
            expires,
            keep_until,
            print: None,
            took_over: false,
        })
    };
    let done = |owner, expires| {
        Record::Complete(Done { owner, value: Value::Result(7), print: None, expires })
    };
    let (expires, keep_until) = (NOW + 1, NOW + 4);
    let taken =
        Held { owner: MINE, token: Token(3), expires, keep_until, print: None, took_over: true };
    let taken = Record::InProgress(taken);
    let rows = [
        ("absent", Record::Absent),
        ("in progress, mine, lease runs", held(MINE, NOW + 1, NOW + 4)),
        ("in progress, mine by a takeover, lease runs", taken),
        ("in progress, mine, lease over", held(MINE, NOW, NOW + 4)),
        ("in progress, mine, lease and ttl over", held(MINE, NOW, NOW)),
        ("in progress, another's, lease runs", held(Owner(2), NOW + 2, NOW + 4)),
        ("in progress, another's, lease over", held(Owner(2), NOW, NOW + 4)),
        ("in progress, another's, lease and ttl over", held(Owner(2), NOW, NOW)),
        ("complete, mine, ttl runs", done(MINE, NOW + 2)),
        ("complete, mine, ttl over", done(MINE, NOW)),
        ("complete, another's, ttl runs", done(Owner(2), NOW + 2)),
        ("complete, another's, ttl over", done(Owner(2), NOW)),
    ];
    rows.map(|(name, record)| (name, Slot { record, last: Token(3) })).to_vec()
}

fn cell(before: Slot, (after, answer): (Slot, Answer)) -> String {
    let said = match answer {
        Answer::Granted { token, took_over: true } if token == before.last => {
            "granted, same token, took over"
        }
        Answer::Granted { token, .. } if token == before.last => "granted, same token",
        Answer::Granted { took_over: true, .. } => "granted, took over",
        Answer::Granted { .. } => "granted",
        Answer::Busy { .. } => "busy",
        Answer::Complete { .. } => "complete",
        Answer::Absent => "absent",
        Answer::Fenced(Fenced::Done) => "done",
        Answer::Fenced(Fenced::AlreadyDone) => "already done",
        Answer::Fenced(Fenced::Lost) => "lost",
        Answer::Purged(true) => "purged",
        Answer::Purged(false) => "kept",
    };
    let became = match (before.record, after.record) {
        (old, new) if old == new => "",
        (_, Record::Absent) => " → absent",
        (Record::InProgress(old), Record::InProgress(new)) if old.owner == new.owner => {
            " → lease anew"
        }
        (_, Record::InProgress(_)) => " → in progress, mine",
        (_, Record::Complete(_)) => " → complete, mine",
    };
    format!("{said}{became}")
}

#[test]
fn the_readme_shows_the_record() {
    let ops = [
        Op::Acquire { owner: MINE, lease: 2, ttl: 4, print: None },
        Op::Look,
        Op::Extend { owner: MINE, lease: 3 },
        Op::Complete { owner: MINE, value: Value::Result(7), ttl: 4 },
        Op::Release { owner: MINE },
        Op::Purge,
    ];
    let mut table = String::from(
        "| Record | acquire | look | extend | complete | release | purge |\n|---|---|---|---|---|---|---|\n",
    );
    for (name, slot) in records() {
        let cells = ops.map(|op| cell(slot, slot.step(NOW, op)));
        table += &format!("| {name} | {} |\n", cells.join(" | "));
    }
    assert_in_readme("record", &table);
}

fn phase_name(phase: Phase) -> String {
    match phase {
        Phase::Idle => "idle".into(),
        Phase::Claiming { .. } => "claiming".into(),
        Phase::Waiting { stage, refused, .. } => {
            let whose = if refused { "waiting, refused" } else { "waiting" };
            let stage = match stage {
                Stage::Awake => "awake",
                Stage::Asleep { .. } => "asleep",
                Stage::Deaf { .. } => "deaf",
            };
            format!("{whose}, {stage}")
        }
        Phase::AcquireDoubt { .. } => "acquire in doubt".into(),
        Phase::Granted => "granted".into(),
        Phase::Running { beating: true } => "running, beating".into(),
        Phase::Running { beating: false } => "running, not beating".into(),
        Phase::Acted { .. } => "acted".into(),
        Phase::CompleteDoubt { .. } => "completion in doubt".into(),
        Phase::Ended { outcome, refused } => {
            let mark = if refused { " (refused)" } else { "" };
            let outcome = match outcome {
                Outcome::Executed { recorded: true } => "executed, recorded",
                Outcome::Executed { recorded: false } => "executed, not recorded",
                Outcome::Replayed => "replayed",
                Outcome::NotReplayable => "not replayable",
                Outcome::InFlight => "in flight",
                Outcome::Mismatch => "mismatch",
                Outcome::Failed => "failed",
                Outcome::Dropped => "dropped",
            };
            format!("*{outcome}{mark}*")
        }
        Phase::Dead => "dead".into(),
    }
}

/// Returns the client that acts and what it does, or `None` for events from outside.
fn action_name(action: Action) -> Option<(u8, &'static str)> {
    let lost = |fate, answered, lost| if fate == Fate::Answered { answered } else { lost };
    Some(match action {
        Action::Begin { client, fate, .. } => {
            (client, lost(fate, "begins", "begins, call or answer lost"))
        }
        Action::Ask { client, fate } => (client, lost(fate, "asks", "asks, call or answer lost")),
        Action::GiveUpAcquire { client, .. } => (client, "gives up: releases"),
        Action::Drop { client, .. } => (client, "is dropped: releases what it has"),
        Action::Start { client } => (client, "starts the action"),
        Action::Beat { client, fate } => (client, lost(fate, "beats", "beats, call lost")),
        Action::StopBeats { client } => (client, "reaches max-hold"),
        Action::Return { client, .. } => (client, "action returns"),
        Action::Fail { client, .. } => (client, "action fails: releases"),
        Action::Abandon { client } => (client, "is dropped late, or holds"),
        Action::Complete { client, fate } => {
            (client, lost(fate, "completes", "completes, call or answer lost"))
        }
        Action::GiveUp { client } => (client, "policy answers"),
        Action::Wake { client } => (client, "is handed the one wake-up"),
        Action::Crash { client } => (client, "crashes"),
        Action::Tick
        | Action::Deliver
        | Action::Purge { .. }
        | Action::Sleep { .. }
        | Action::Claim { .. } => {
            return None;
        }
    })
}

/// Returns every step of a client in any state of two small worlds, by the kinds of its phases.
fn client_steps() -> BTreeMap<(Phase, &'static str), BTreeSet<String>> {
    let budget = Budget { calls: 3, strangers: 1, tombstones: 1, crashes: 1, losses: 1 };
    let mut steps: BTreeMap<(Phase, &'static str), BTreeSet<String>> = BTreeMap::new();
    for wakeup in [Wakeup::Every, Wakeup::One] {
        let protocol = Protocol::new(Bounds { wakeup, budget, ..Bounds::new(2) });
        let mut seen = HashSet::from([protocol.start()]);
        let mut ahead = VecDeque::from([protocol.start()]);
        let mut actions = Vec::new();
        while let Some(state) = ahead.pop_front() {
            protocol.actions(&state, &mut actions);
            for action in actions.drain(..) {
                let Some(next) = protocol.step(&state, action) else { continue };
                if let Some((client, name)) = action_name(action) {
                    let phase_of = |clients: &[Client]| clients[usize::from(client)].phase;
                    let (from, to) = (kind(phase_of(&state.clients)), phase_of(&next.clients));
                    steps.entry((from, name)).or_default().insert(phase_name(to));
                }
                let next = protocol.canonical(&next);
                if seen.insert(next) {
                    ahead.push_back(next);
                }
            }
        }
    }
    steps
}

/// Returns the phase without what the table does not show, so that equal kinds are merged. Kinds
/// are in the order of a call.
fn kind(phase: Phase) -> Phase {
    match phase {
        Phase::Waiting { stage: Stage::Awake, refused, .. } => {
            Phase::Waiting { deadline: 0, stage: Stage::Awake, refused }
        }
        Phase::Waiting { refused, .. } => {
            Phase::Waiting { deadline: 0, stage: Stage::Asleep { until: 0 }, refused }
        }
        Phase::AcquireDoubt { .. } => Phase::AcquireDoubt { deadline: 0 },
        Phase::Acted { .. } => Phase::Acted { tombstone: false },
        Phase::CompleteDoubt { .. } => Phase::CompleteDoubt { tombstone: false },
        Phase::Ended { .. } => Phase::Idle,
        phase => phase,
    }
}

#[test]
fn the_readme_shows_the_client() {
    let mut table = String::from("| Client | step | leads to |\n|---|---|---|\n");
    for ((from, action), to) in client_steps() {
        let to: Vec<_> = to.into_iter().collect();
        table += &format!("| {} | {action} | {} |\n", phase_name(from), to.join("; "));
    }
    assert_in_readme("client", &table);
}
