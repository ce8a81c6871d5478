// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of a Redis Cluster: its nodes, its slots, and each primary (OPS-5, STO-8).

use std::collections::{BTreeMap, BTreeSet};

use redis::{Cmd, Value};
use retryproof_core::store::StoreFinding;
use retryproof_core::{Error, ErrorKind, Result};

use super::{ask, check_server, command};
use crate::cluster::slots::{SLOTS, SlotRange, ranges};
use crate::config::{Address, RedisConfig};
use crate::connection::{Connection, Connector};
use crate::statement::cluster_slots;

impl RedisConfig {
    pub(super) async fn diagnose_cluster(
        &self,
        connector: &Connector,
        seeds: &[Address],
    ) -> Result<Vec<StoreFinding>> {
        let mut findings = Vec::new();
        let (mut failure, mut map) = (None, None);
        for at in seeds {
            match connector.connect_unchecked(at).await {
                Ok(connection) if map.is_none() => {
                    let answer = ask(&connection, &cluster_slots()).await?;
                    let Some(read) = ranges(&answer, at) else {
                        return self.without_map(&connection, &answer).await;
                    };
                    map = Some(read);
                }
                Ok(_) => {}
                Err(error) => {
                    findings.push(unreachable(at, &error));
                    failure = Some(error);
                }
            }
        }
        let Some(map) = map else { return Err(failure.unwrap_or_else(no_host)) };
        findings.extend(coverage(&map));
        let mut moving = BTreeMap::new();
        let mut of_nodes: Vec<(StoreFinding, Vec<&Address>)> = Vec::new();
        let primaries: BTreeSet<_> = map.iter().map(|range| &range.primary).collect();
        for at in primaries.iter().copied() {
            let mut found = Vec::new();
            match connector.connect_unchecked(at).await {
                Ok(connection) => {
                    let moves = moving_slots(&ask(&connection, &cluster_nodes()).await?);
                    if moves > 0 {
                        moving.insert(at, moves);
                    }
                    self.check_node(&connection, connector.scripts(), &mut found).await?;
                }
                Err(error) if seeds.contains(at) => drop(error),
                Err(error) => found.push(unreachable(at, &error)),
            }
            for finding in found {
                match of_nodes.iter_mut().find(|(known, _)| *known == finding) {
                    Some((_, nodes)) => nodes.push(at),
                    None => of_nodes.push((finding, vec![at])),
                }
            }
        }
        findings.extend(movement(&moving));
        findings.extend(of_nodes.into_iter().map(|(mut finding, nodes)| {
            if nodes.len() < primaries.len() {
                let nodes: Vec<_> = nodes.iter().map(|at| format!("`{at}`")).collect();
                finding.problem = format!("On {}: {}", nodes.join(", "), finding.problem);
            }
            finding
        }));
        Ok(findings)
    }

    /// Returns the findings about a server that does not report the slots.
    async fn without_map(
        &self,
        connection: &Connection,
        answer: &Value,
    ) -> Result<Vec<StoreFinding>> {
        let mut findings = Vec::new();
        check_server(connection, true, &mut findings).await?;
        if findings.is_empty() {
            let error = match answer {
                Value::ServerError(error) => error.code().to_owned(),
                _ => "another answer".to_owned(),
            };
            findings.push(StoreFinding::error(
                "slots",
                format!("The server does not report the cluster's slots ({error})."),
                "Give the user the right `+cluster|slots`.",
            ));
        }
        Ok(findings)
    }
}

fn no_host() -> Error {
    Error::new(ErrorKind::Config, "no node of the cluster is configured")
}

fn unreachable(at: &Address, error: &Error) -> StoreFinding {
    StoreFinding::warning(
        "hosts",
        format!("The node `{at}` cannot be reached ({error})."),
        "Correct the address in the URL or the address that the node announces, or start the node.",
    )
}

/// Describes the cluster, and reports the slots that have no primary.
fn coverage(map: &[SlotRange]) -> Vec<StoreFinding> {
    let primaries: BTreeSet<_> = map.iter().map(|range| &range.primary).collect();
    let replicas: BTreeSet<_> = map.iter().flat_map(|range| &range.replicas).collect();
    let mut findings = vec![StoreFinding::note(
        "cluster",
        format!(
            "The store is a Redis Cluster with {} primaries and {} replicas.",
            primaries.len(),
            replicas.len()
        ),
        "No action is needed.",
    )];
    let covered: usize = map.iter().map(SlotRange::slots).sum();
    let uncovered = usize::from(SLOTS).saturating_sub(covered);
    if uncovered > 0 {
        findings.push(StoreFinding::error(
            "slots",
            format!(
                "{uncovered} of {SLOTS} slots have no primary, so calls with their keys fail, or \
                 all calls (`cluster-require-full-coverage`)."
            ),
            "Assign the slots (`redis-cli --cluster fix`), or start the missing nodes.",
        ));
    }
    findings
}

/// Reports the slots that are being moved between primaries.
fn movement(moving: &BTreeMap<&Address, usize>) -> Option<StoreFinding> {
    if moving.is_empty() {
        return None;
    }
    let nodes: Vec<_> = moving.iter().map(|(at, slots)| format!("`{at}`: {slots}")).collect();
    Some(StoreFinding::warning(
        "moving-slots",
        format!(
            "Slots are being moved (migrating or importing; {}). If a primary fails over in the \
             middle of a move, Redis 7.0 forgets the move: completed records that have moved are \
             granted again, and the node that receives the slot can refuse all calls.",
            nodes.join(", ")
        ),
        "Do not let a primary fail over while slots move; finish the move, or repair it with \
         `redis-cli --cluster fix`.",
    ))
}

fn cluster_nodes() -> Cmd {
    let mut cmd = command("CLUSTER");
    cmd.arg("NODES");
    cmd
}

/// Counts the slots that the answering node is moving. It lists them in its own line of the answer
/// to CLUSTER NODES, as `[SLOT->-NODE]` or `[SLOT-<-NODE]`.
fn moving_slots(answer: &Value) -> usize {
    let text = match answer {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::VerbatimString { text, .. } => text.clone(),
        _ => return 0,
    };
    let own = text.lines().find(|line| line.contains("myself")).unwrap_or_default();
    own.split(' ').filter(|word| word.starts_with('[')).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sto_8_moving_slots_are_counted() {
        let line = "07c3 127.0.0.1:30001@31001 myself,master - 0 0 1 connected 0-5460 [93->-292f] \
                    [77-<-e7d1]";
        let other = "e7d1 127.0.0.1:30002@31002 master - 0 1 2 connected 5461-16383 [1->-x]";
        let text = |text: String| Value::BulkString(text.into_bytes());
        assert_eq!(moving_slots(&text(format!("{other}\n{line}\n"))), 2);
        assert_eq!(moving_slots(&text(line.split(" [").next().unwrap().to_owned())), 0);
        assert_eq!(moving_slots(&Value::Nil), 0);
    }
}
