// SPDX-License-Identifier: MIT OR Apache-2.0
//! A short notation for histories. A line is `[pN] FROM-TO FN ..`, with times in milliseconds; `?`
//! stands for an unknown end.

use history::{Event, Fun, Line, Manifest, Phase, Run, Said};

pub(crate) fn manifest() -> Manifest {
    Manifest {
        run: "script".into(),
        seed: 1,
        revision: "none".into(),
        store: "script".into(),
        secs: 600,
        workers: 2,
        lease_ms: (40, 2_000),
        faults: Vec::new(),
        operation_timeout_ms: 1_000,
        slack_ms: 500,
        share: 1.0,
        poll_ms: 50,
        wake_ms: 5,
        pushes: false,
        races: 0,
        guard: "token".into(),
        planted: None,
    }
}

/// Returns the rules that a history breaks, each named once.
pub(crate) fn broken(script: &str) -> Vec<&'static str> {
    let judgement = history::judge(&run(script));
    let mut rules: Vec<_> = judgement.violations.iter().map(|violation| violation.rule).collect();
    rules.dedup();
    rules
}

pub(crate) fn run(script: &str) -> Run {
    run_of(manifest(), script)
}

pub(crate) fn run_of(manifest: Manifest, script: &str) -> Run {
    let mut run = Run::new(manifest);
    for (number, event) in (0..).zip(events(script)) {
        run.take(event, Line { file: 0, number }).unwrap();
    }
    run.close();
    run
}

pub(crate) fn events(script: &str) -> Vec<Event> {
    let mut events = Vec::new();
    let lines =
        script.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    for (op, line) in (1..).zip(lines) {
        sentence(op, line, &mut events);
    }
    events.sort_by_key(|event| event.mono_ns);
    events
}

fn word<T: serde::de::DeserializeOwned>(word: &str) -> Option<T> {
    serde_json::from_value(serde_json::Value::String(word.into())).ok()
}

fn sentence(op: u64, line: &str, events: &mut Vec<Event>) {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let proc = words[0].strip_prefix('p').and_then(|number| number.parse().ok());
    if proc.is_some() {
        words.remove(0);
    }
    let proc = proc.unwrap_or(1);
    let (from, to) = words[0].split_once('-').unwrap_or((words[0], words[0]));
    let at = |ms: &str| ms.parse::<u64>().unwrap() * 1_000_000;
    let fun: Fun = word(words[1]).unwrap_or_else(|| panic!("no function: {line}"));
    let positional: Vec<&str> =
        words[2..].iter().copied().filter(|word| !word.contains('=')).collect();
    let named = |name: &str| {
        words[2..]
            .iter()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
            .map(str::to_owned)
    };
    let number = |name: &str| named(name).map(|number| number.parse::<u64>().unwrap());
    let us = |name: &str, default: u64| Some(number(name).unwrap_or(default) * 1_000);
    let said = positional.iter().find_map(|text| word::<Said>(text));
    let token = positional.iter().find_map(|text| text.parse().ok()).or(number("token"));
    let call =
        positional.iter().find_map(|text| text.strip_prefix('c')?.parse().ok()).or(number("call"));
    let mut event = Event::new((proc, 1), op, fun, Phase::Invoke, at(from));
    let identity = (named("scope").unwrap_or("s".into()), named("key").unwrap_or("k".into()));
    (event.scope, event.key) = (Some(identity.0.clone()), Some(identity.1.clone()));
    let bears = named("of").map(|of| match of.split_once('@') {
        Some((token, key)) => (identity.0.clone(), key.to_owned(), token.parse().unwrap()),
        None => (identity.0.clone(), identity.1.clone(), of.parse().unwrap()),
    });
    let value = number("v");
    let (fp, stored) = (number("fp"), number("stored"));
    match fun {
        fun if fun.is_force() => {
            (event.token, event.even_if_live) = (token, positional.contains(&"even"));
            if fun == Fun::ForceResolve {
                (event.ttl_us, event.value_hash) = (us("ttl", 100_000), value);
            }
            let end = Event { phase: Phase::Ok, said, token: number("token"), ..event.clone() };
            events.push(event);
            if to != "?" {
                let remaining_us = number("left").map(|ms| ms * 1_000);
                events.push(Event { mono_ns: at(to), remaining_us, ..end });
            }
        }
        Fun::Acquire | Fun::Look | Fun::Extend | Fun::Complete | Fun::Release | Fun::Wait => {
            event.owner = positional[0]
                .chars()
                .next()
                .filter(char::is_ascii_uppercase)
                .map(|name| format!("{:032x}", name as u32));
            event.call = call;
            match fun {
                Fun::Acquire => {
                    (event.lease_us, event.ttl_us, event.fp_hash) =
                        (us("lease", 100), us("ttl", 100_000), fp)
                }
                Fun::Extend => event.lease_us = us("lease", 100),
                Fun::Complete => {
                    (event.ttl_us, event.value_hash) = (us("ttl", 100_000), value);
                    event.said = positional.contains(&"as_tombstone").then_some(Said::Tombstone);
                }
                _ => {}
            }
            let mut end = Event { mono_ns: if to == "?" { 0 } else { at(to) }, ..event.clone() };
            events.push(event);
            if to == "?" {
                return;
            }
            // The caller gave up at the time `to`, without an answer.
            if positional.contains(&"unsent") {
                events.push(Event { phase: Phase::Info, ..end });
                return;
            }
            end.phase = Phase::Ok;
            (end.said, end.token) = (said, token);
            (end.value_hash, end.bears, end.fp_hash) = (value, bears, stored);
            end.remaining_us = number("left").map(|ms| ms * 1_000);
            events.push(end);
        }
        Fun::Respond => {
            event.op = call.unwrap();
            (event.fp_hash, event.wait_us) = (fp, us("wait", 0));
            event.propagate = positional.contains(&"propagate");
            event.note = named("kind");
            let mut end = Event { note: named("note"), ..event.clone() };
            events.push(event);
            if to == "?" {
                return;
            }
            (end.mono_ns, end.phase, end.said) = (at(to), Phase::Ok, said);
            (end.recorded, end.fenced) = (named("recorded"), positional.contains(&"fenced"));
            (end.value_hash, end.bears) = (value, bears);
            events.push(end.clone());
            if positional.contains(&"twice") {
                events.push(end);
            }
        }
        Fun::Fault => {
            event.note = Some(positional[0].into());
            event.victim = number("victim").and_then(|number| u32::try_from(number).ok());
            event.lossy = positional.contains(&"lossy");
            event.moved_us = named("moved").map(|ms| ms.parse::<i64>().unwrap() * 1_000);
            let real = named("real").and_then(|real| {
                let (since, until) = real.split_once("..")?;
                Some((at(since), at(until)))
            });
            let (since_ns, until_ns) = real.unzip();
            let end = Event { phase: Phase::Ok, mono_ns: at(to), ..event.clone() };
            events.push(Event { since_ns, until_ns, ..end });
            events.push(event);
        }
        _ => {
            let begins = positional.contains(&"begins");
            event.phase = if begins { Phase::Invoke } else { Phase::Ok };
            (event.said, event.token, event.call) = (said, token, call);
            event.value_hash = number("bytes");
            event.remaining_us = number("left").map(|ms| ms * 1_000);
            event.note = named("note");
            event.since_ns = number("since").map(|ms| ms * 1_000_000);
            event.lossy = positional.contains(&"lossy");
            event.victim = number("victim").and_then(|number| u32::try_from(number).ok());
            events.push(event);
        }
    }
}
