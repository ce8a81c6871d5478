// SPDX-License-Identifier: MIT OR Apache-2.0
//! The findings about the hosts of a URL that names several (STO-7).

use std::time::Duration;

use retryproof_core::store::StoreFinding;
use retryproof_core::{Error, Result};
use sqlx_core::row::Row as _;
use sqlx_postgres::PgConnection;
use tokio::time::timeout;

use crate::connection::fetch_row;
use crate::connection::hosts::{HostAnswer, HostSelector};
use crate::error::{Failure, classify};

/// Whether commits on this server wait for no standby.
const IS_ALONE: &str = "SELECT current_setting('synchronous_standby_names')=''";

/// Returns a connection to the primary, or to a standby if there is no primary. Adds the findings
/// about the hosts.
pub(super) async fn examine(
    hosts: &HostSelector,
    findings: &mut Vec<StoreFinding>,
) -> Result<PgConnection> {
    let opened = hosts.connect().await;
    if !hosts.can_move() {
        return opened.map(|opened| opened.conn).map_err(Failure::at_connect);
    }
    let answers = hosts.query_roles(None).await;
    let described = hosts.describe(&answers);
    let conn = match opened {
        Ok(opened) => opened.conn,
        // The checks of a standby's settings are useful too. Its role is another finding.
        Err(failure) => {
            let mut answered = answers.into_iter().filter_map(|answer| answer.role.ok());
            let (conn, _) = answered.next().ok_or_else(|| failure.at_connect())?;
            let what = format!("None of the hosts is a primary that accepts writes: {described}.");
            findings.push(StoreFinding::error(
                "hosts",
                what,
                "Promote a standby, or add the primary to the URL.",
            ));
            return Ok(conn);
        }
    };
    findings.push(StoreFinding::note(
        "hosts",
        format!("{described}."),
        "None: the store uses the primary on the highest timeline.",
    ));
    check_others(hosts, answers, findings).await?;
    Ok(conn)
}

/// Waits for a connection, at most as long as the limit.
pub(super) async fn in_time<T>(
    limit: Duration,
    connecting: impl Future<Output = Result<T>>,
) -> Result<T> {
    let late = |_| Err(Error::unavailable("the server did not open a connection in time"));
    timeout(limit, connecting).await.unwrap_or_else(late)
}

async fn check_others(
    hosts: &HostSelector,
    answers: Vec<HostAnswer>,
    findings: &mut Vec<StoreFinding>,
) -> Result<()> {
    let primary = hosts.primary().unwrap_or_default();
    let (mut is_primary_alone, mut alone) = (true, Vec::new());
    for HostAnswer { host, role: found } in answers {
        let node = hosts.node(host);
        match found {
            Err(reason) => findings.push(StoreFinding::warning(
                "hosts",
                format!(
                    "{node} {reason}, so the store could not use this host after a failover to it."
                ),
                "Start the server, let the store's user log in there, or correct the URL.",
            )),
            Ok((_, role)) if role.is_writable() && node != primary => {
                findings.push(StoreFinding::error(
                    "hosts",
                    format!(
                        "{node} accepts writes too, on timeline {}: a program that cannot reach \
                         {primary} uses this server, and runs work again.",
                        role.timeline
                    ),
                    "Stop this server, and make it a standby of the primary (`pg_rewind` or \
                     `pg_basebackup`). Let the tool that promotes a standby fence the old primary.",
                ));
            }
            Ok((mut conn, _)) => {
                let row = fetch_row(&mut conn, IS_ALONE.to_owned()).await;
                let row = row.map_err(|error| classify(&error))?;
                let is_alone = row.is_some_and(|row| row.try_get(0).unwrap_or(false));
                if node == primary {
                    is_primary_alone = is_alone;
                } else if is_alone {
                    alone.push(node);
                }
            }
        }
    }
    if !is_primary_alone && !alone.is_empty() {
        findings.push(StoreFinding::warning(
            "replication",
            format!(
                "`synchronous_standby_names` is set on the primary, but is empty on {}: once \
                 promoted, this server commits without waiting for a standby, so the next failover \
                 may lose the last commits.",
                alone.join(", ")
            ),
            "Set `synchronous_standby_names` on every host before a failover.",
        ));
    }
    Ok(())
}
