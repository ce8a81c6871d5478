// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connects the model to stateright: its states and actions, with its flags and sights as
//! properties.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use foldhash::quality::FixedState;
use model::{Action, Protocol, SIGHTS, Sight, Sights, State, WRONGS};
use stateright::{Checker, HasDiscoveries, Model, Property};

/// The only `eventually` property.
pub(crate) const ENDS: &str = "L1 L5 ACQ-6: in the end every call has ended";

/// A state with a hash that is equal for all states that differ only in names. The checker
/// distinguishes states by their hash. Therefore the clients keep their numbers along a path, and
/// each state represents many.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    state: State,
    name: u64,
}

impl Hash for Node {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.name);
    }
}

/// A protocol in the form that stateright checks.
pub(crate) struct Walk {
    protocol: Protocol,
    /// The sights that must be reachable in these bounds.
    expected: Sights,
    // The checker replaces a discovery with each later one. The first discovery has the shortest
    // path, so these flags let only the first one count.
    told_wrong: AtomicU32,
    told_sights: AtomicU32,
    /// The last state and the sights that the steps from it show. They are cached, because the
    /// properties read them one after the other for the same state.
    ahead: Mutex<Option<(State, Sights)>>,
}

impl Walk {
    fn node(&self, state: State) -> Node {
        Node { state, name: FixedState::default().hash_one(self.protocol.canonical(&state)) }
    }

    fn show(&self, state: &State) -> Sights {
        let mut cached = self.ahead.lock().unwrap();
        if let Some((of, sights)) = &*cached
            && of == state
        {
            return *sights;
        }
        let mut actions = Vec::new();
        self.protocol.actions(state, &mut actions);
        let turns = actions.into_iter().filter_map(|action| self.protocol.turn(state, action));
        let sights = turns.fold(Sights::default(), |all, turn| all | turn.sights);
        *cached = Some((*state, sights));
        sights
    }
}

fn never<const N: usize>(walk: &Walk, node: &Node) -> bool {
    let bit = 1 << N;
    !node.state.wrong.has(WRONGS[N]) || walk.told_wrong.fetch_or(bit, Ordering::Relaxed) & bit != 0
}

fn sometimes<const N: usize>(walk: &Walk, node: &Node) -> bool {
    let bit = 1 << N;
    walk.told_sights.load(Ordering::Relaxed) & bit == 0
        && walk.show(&node.state).has(SIGHTS[N])
        && walk.told_sights.fetch_or(bit, Ordering::Relaxed) & bit == 0
}

type Condition = fn(&Walk, &Node) -> bool;

macro_rules! for_each {
    ($function:ident: $($index:literal)*) => { [$($function::<$index>),*] };
}

const NEVER: [Condition; WRONGS.len()] =
    for_each!(never: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21);
const SOMETIMES: [Condition; SIGHTS.len()] =
    for_each!(sometimes: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24);

impl Model for Walk {
    type State = Node;
    type Action = Action;

    fn init_states(&self) -> Vec<Node> {
        vec![self.node(self.protocol.start())]
    }

    fn actions(&self, node: &Node, actions: &mut Vec<Action>) {
        self.protocol.actions(&node.state, actions);
    }

    fn next_state(&self, node: &Node, action: Action) -> Option<Node> {
        let next = self.node(self.protocol.step(&node.state, action)?);
        // A tick that changes nothing for any caller does not count as a step. Otherwise, every
        // state would have a next state, and no path would end.
        (next.name != node.name).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let never =
            WRONGS.iter().zip(NEVER).map(|(wrong, holds)| Property::always(wrong.name(), holds));
        let sometimes = SIGHTS
            .iter()
            .zip(SOMETIMES)
            .filter(|(sight, _)| self.expected.has(**sight))
            .map(|(sight, shows)| Property::sometimes(sight.name(), shows));
        let ends = Property::eventually(ENDS, |_: &Self, node: &Node| node.state.settled());
        never.chain(sometimes).chain([ends]).collect()
    }
}

/// The result of a walk.
pub(crate) struct Found {
    /// The number of distinct states, apart from names.
    pub(crate) states: usize,
    /// For each property that was violated or reached: the steps that lead there.
    pub(crate) paths: BTreeMap<&'static str, Vec<Action>>,
}

impl Found {
    /// Returns the names of the violated properties.
    pub(crate) fn violated(&self) -> Vec<&'static str> {
        let violations = WRONGS.iter().map(|wrong| wrong.name()).chain([ENDS]);
        violations.filter(|name| self.paths.contains_key(name)).collect()
    }

    /// Returns the names of the reached sights.
    pub(crate) fn reached(&self) -> Vec<&'static str> {
        SIGHTS
            .iter()
            .map(|sight| sight.name())
            .filter(|name| self.paths.contains_key(name))
            .collect()
    }
}

/// Walks every state of `protocol`.
pub(crate) fn exhaust(protocol: Protocol, expected: Sights) -> Found {
    // This condition is never met without a violation, so a walk of the correct protocol is
    // exhaustive.
    walk(protocol, expected, HasDiscoveries::AnyFailures)
}

/// Walks until `name` is violated, breadth first.
pub(crate) fn seek(protocol: Protocol, name: &'static str) -> Found {
    walk(protocol, Sights::default(), HasDiscoveries::AllOf(BTreeSet::from([name])))
}

fn walk(protocol: Protocol, expected: Sights, until: HasDiscoveries) -> Found {
    let walk = Walk {
        protocol,
        expected,
        told_wrong: AtomicU32::new(0),
        told_sights: AtomicU32::new(0),
        ahead: Mutex::new(None),
    };
    let checker = walk.checker().finish_when(until).spawn_bfs().join();
    let paths =
        checker.discoveries().into_iter().map(|(name, path)| (name, path.into_actions())).collect();
    Found { states: checker.unique_state_count(), paths }
}

/// Returns all sights except these.
pub(crate) fn sights_without(absent: &[Sight]) -> Sights {
    let expected = SIGHTS.iter().filter(|sight| !absent.contains(sight));
    expected.fold(Sights::default(), |all, &sight| all | sight.into())
}
