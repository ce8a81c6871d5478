// SPDX-License-Identifier: MIT OR Apache-2.0
//! States that differ only in names can count as one: they lead to the same states and show the
//! same things.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use model::{Action, Bounds, Budget, Protocol, Sights, State, Wakeup};

/// Returns the states after `state`, apart from names, with all that the steps show.
fn ahead(protocol: &Protocol, state: &State) -> HashMap<State, Sights> {
    let mut actions = Vec::new();
    protocol.actions(state, &mut actions);
    let mut leads_to: HashMap<State, Sights> = HashMap::new();
    for action in actions {
        let Some(turn) = protocol.turn(state, action) else { continue };
        *leads_to.entry(protocol.canonical(&turn.state)).or_default() |= turn.sights;
    }
    leads_to
}

fn names_do_not_matter(bounds: Bounds) {
    let protocol = Protocol::new(bounds);
    let (mut seen, mut renamed) = (HashSet::new(), 0);
    let mut left = VecDeque::from([protocol.start()]);
    let mut actions = Vec::new();
    while let Some(state) = left.pop_front() {
        let name = protocol.canonical(&state);
        if !seen.insert(name) {
            continue;
        }
        assert_eq!(protocol.canonical(&name), name);
        assert_eq!(name.settled(), state.settled());
        assert_eq!(ahead(&protocol, &state), ahead(&protocol, &name), "{state:#?}");
        renamed += usize::from(name != state);
        protocol.actions(&state, &mut actions);
        left.extend(actions.drain(..).filter_map(|action| protocol.step(&state, action)));
    }
    // More than half of the states must differ from their canonical form. Otherwise, the test has
    // compared states mostly with themselves.
    assert!(renamed * 2 > seen.len(), "{renamed} of {} states have other names", seen.len());
}

#[test]
fn names_do_not_matter_in_small_worlds() {
    let nothing = Budget { calls: 3, strangers: 0, tombstones: 0, crashes: 0, losses: 0 };
    for bounds in [
        Bounds {
            budget: Budget { calls: 2, strangers: 1, tombstones: 1, crashes: 1, losses: 1 },
            ..Bounds::new(2)
        },
        Bounds {
            budget: Budget { calls: 2, losses: 2, ..nothing },
            late_acquires: true,
            ..Bounds::new(2)
        },
        Bounds { budget: nothing, wakeup: Wakeup::One, ..Bounds::new(3) },
        Bounds { budget: nothing, identities: 2, skew: 2, ..Bounds::new(2) },
    ] {
        names_do_not_matter(bounds);
    }
}

/// The step itself decides whether an action is possible: whatever the list of actions contains or
/// leaves out, an impossible action is no step.
#[test]
fn the_list_of_actions_leaves_nothing_out() {
    let bounds = Bounds {
        budget: Budget { calls: 2, strangers: 0, tombstones: 1, crashes: 1, losses: 1 },
        ..Bounds::new(2)
    };
    let protocol = Protocol::new(bounds);
    let start = protocol.start();
    let (mut seen, mut left) = (HashSet::from([start]), VecDeque::from([start]));
    let mut known: HashSet<Action> = HashSet::new();
    let mut states = Vec::new();
    let mut actions = Vec::new();
    while let Some(state) = left.pop_front() {
        states.push(state);
        protocol.actions(&state, &mut actions);
        known.extend(actions.iter().copied());
        for action in actions.drain(..) {
            let next = protocol.step(&state, action).map(|next| protocol.canonical(&next));
            left.extend(next.filter(|next| seen.insert(*next)));
        }
    }
    for state in states {
        protocol.actions(&state, &mut actions);
        let listed: HashSet<Action> = actions.drain(..).collect();
        let missed: BTreeSet<String> = known
            .iter()
            .filter(|action| !listed.contains(action) && protocol.step(&state, **action).is_some())
            .map(|action| format!("{action:?}"))
            .collect();
        assert_eq!(missed, BTreeSet::new(), "{state:#?}");
    }
}
