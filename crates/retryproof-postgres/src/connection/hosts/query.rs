// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queries the roles of several hosts at the same time.

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::{HostAnswer, HostSelector};
use crate::connection::role::{HostVerdict, dial};

impl HostSelector {
    /// Queries the role of each host except `but`. A host that is slower than the others gets more
    /// time only while no primary has answered: on a busy machine, no host may be fast. The answer
    /// of an old primary does not count. The answers are in the order of the URL.
    pub(crate) async fn query_roles(&self, but: Option<usize>) -> Vec<HostAnswer> {
        let (soft, hard) = (self.dial_timeout, self.dial_timeout * 5 / 2);
        let soft_end = Instant::now() + soft;
        let hosts = (0..self.source.count()).filter(|host| Some(*host) != but);
        let (mut queries, mut answers) = (JoinSet::new(), Vec::new());
        for host in hosts.clone() {
            let options = self.source.options(host);
            queries.spawn(async move { HostAnswer { host, role: dial(options, hard).await } });
        }
        loop {
            let next = queries.join_next();
            let next = match self.best_of(&answers) {
                Some(_) => timeout_at(soft_end, next).await.unwrap_or(None),
                None => next.await,
            };
            let Some(answer) = next else { break };
            answers.extend(answer);
        }
        for host in hosts {
            if !answers.iter().any(|answer: &HostAnswer| answer.host == host) {
                answers.push(HostAnswer { host, role: Err(HostVerdict::Silent(soft)) });
            }
        }
        answers.sort_by_key(|answer| answer.host);
        answers
    }
}
