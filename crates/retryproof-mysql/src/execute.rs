// SPDX-License-Identifier: MIT OR Apache-2.0
//! One statement on a connection of the pool: in one round trip when nothing stands in its way, and
//! what is done when something does.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::Param;
use retryproof_core::{Error, ErrorKind, Identity};
use tokio::time::{Instant, sleep};

use crate::connection::{Answer, Want};
use crate::error::{Class, Trouble, classify};
use crate::pool::Lane;
use crate::record::Record;
use crate::statement::{Statement, size};
use crate::store::{MysqlStore, PACKET_OVERHEAD, key_of};

/// How often a statement that lost a race is sent again, and how long the pause before it is at
/// most.
const RACES: (u32, Duration) = (20, Duration::from_millis(20));

impl MysqlStore {
    /// One statement in one round trip. What lost a race is sent again, and what met a dead
    /// connection once more on a new one: every statement of ours may be repeated, for the owner in
    /// it settles what it finds (ACQ-9, CMP-3).
    pub(crate) async fn run(
        &self,
        lane: Lane,
        sql: &Arc<str>,
        params: &[Param<'_>],
        want: Want,
    ) -> Result<Answer, Trouble> {
        self.send(lane, sql, params, want, true, self.config.statement_timeout).await
    }

    /// As [`run`](Self::run), `within` a time limit of its own; unless it is `kept`, the connection
    /// forgets the statement afterwards.
    pub(crate) async fn send(
        &self,
        lane: Lane,
        sql: &Arc<str>,
        params: &[Param<'_>],
        want: Want,
        kept: bool,
        within: Duration,
    ) -> Result<Answer, Trouble> {
        let (mut races, mut renewed) = (0, false);
        loop {
            let mut loan = self.pool.lend(lane).await?;
            let most = loan.session.server.max_packet;
            if size(params) + sql.len() > most {
                loan.give_back();
                return Err(too_large(size(params), most).into());
            }
            let end = Instant::now() + within;
            let Some(answer) =
                self.pulse.until(end, loan.session.run(sql, params, want, kept)).await
            else {
                // The connection goes with the loan, in the middle of its answer.
                return Err(Trouble {
                    class: Class::Broken,
                    error: Error::unavailable(
                        "the MySQL server did not answer a statement in time",
                    )
                    .with("after", format_args!("{within:?}")),
                });
            };
            let trouble = match answer {
                Ok(answer) => {
                    loan.give_back();
                    return Ok(answer);
                }
                Err(error) => classify(error),
            };
            match trouble.class {
                // One that has served may have died while nobody looked, with all others; a new one
                // that breaks means trouble.
                Class::Broken if loan.reused && !renewed => {
                    loan.distrust();
                    renewed = true;
                }
                Class::Race if races < RACES.0 => {
                    loan.give_back();
                    races += 1;
                    sleep(self.wake.jitter(RACES.1 * races / RACES.0)).await;
                }
                Class::Broken => return Err(trouble),
                // Another server may be the primary by now: the next call connects anew.
                Class::ReadOnly => {
                    loan.distrust();
                    return Err(trouble);
                }
                Class::Race | Class::Locked | Class::Final => {
                    loan.give_back();
                    return Err(trouble);
                }
            }
        }
    }

    /// Reads a record by a plain SELECT: no lock, nothing written (ACQ-8).
    pub(crate) async fn read(
        &self,
        lane: Lane,
        statement: Statement,
        id: &Identity,
    ) -> Result<Option<Record>, Trouble> {
        let answer = self.run(lane, self.sql.of(statement), &key_of(id), Want::Rows).await?;
        Ok(answer.rows.first().map(Record::of).transpose()?)
    }
}

/// CMP-9.
pub(crate) fn too_large(bytes: usize, packet: usize) -> Error {
    Error::new(
        ErrorKind::TooLarge,
        "the value is larger than the server takes; raise its `max_allowed_packet`, or make results smaller",
    )
    .with("bytes", bytes)
    .with("limit", packet.saturating_sub(PACKET_OVERHEAD))
}
