// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors and warnings about hosts: why a host cannot be used, and what is wrong with several of
//! them (STO-7).

use retryproof_core::{Error, ErrorKind};

use super::{HostAnswer, HostSelector, PrimaryHost};
use crate::connection::role::{HostVerdict, Role};
use crate::error::classify_at_connect;

impl HostSelector {
    /// Returns why a host with this role is not the primary; `None` if it can be.
    pub(crate) fn verdict(&self, role: Role) -> Option<HostVerdict> {
        if role.is_standby {
            return Some(HostVerdict::Standby);
        }
        if role.is_read_only {
            return Some(HostVerdict::ReadOnly);
        }
        let newest = self.known.lock().primary?.role;
        if newest.cluster != role.cluster {
            return Some(HostVerdict::Unrelated);
        }
        let (timeline, newest) = (role.timeline, newest.timeline);
        (timeline < newest).then_some(HostVerdict::Outdated { timeline, newest })
    }

    /// Returns each host with the reason why it cannot be used.
    pub(crate) fn describe(&self, answers: &[HostAnswer]) -> String {
        let each = answers.iter().map(|answer| {
            let host = self.node(answer.host);
            match &answer.role {
                Err(verdict) => format!("{host} {verdict}"),
                Ok((_, role)) => match self.verdict(*role) {
                    Some(verdict) => format!("{host} {verdict}"),
                    None => format!("{host} is a primary on timeline {}", role.timeline),
                },
            }
        });
        each.collect::<Vec<_>>().join("; ")
    }

    /// Returns the error for hosts of which none can be used. If each host refused the login, for
    /// example, that is the error.
    pub(crate) fn no_primary(&self, answers: &[HostAnswer]) -> Error {
        let mut refusals = answers.iter().map(|answer| match &answer.role {
            Err(HostVerdict::Failed(error)) => Some(classify_at_connect(error))
                .filter(|error| error.kind() != ErrorKind::Unavailable),
            _ => None,
        });
        let refusal = refusals.next().flatten().filter(|_| refusals.all(|one| one.is_some()));
        let error = refusal.unwrap_or_else(|| {
            Error::unavailable(
                "no host in the URL is a primary that accepts writes; a failover may be under way, \
                 or a host may be missing in the URL",
            )
        });
        error.with("hosts", self.describe(answers))
    }

    pub(super) fn strangers(&self, answers: &[HostAnswer]) -> Error {
        let clusters = answers.iter().filter_map(|answer| {
            let (_, role) = answer.role.as_ref().ok()?;
            Some(format!("{} {:016x}", self.node(answer.host), role.cluster))
        });
        Error::new(
            ErrorKind::Config,
            "the hosts in the URL do not belong together: they have different system identifiers; \
             name only a primary and its standbys",
        )
        .with("hosts", clusters.collect::<Vec<_>>().join("; "))
    }

    /// Whether a second server that accepts writes differs from the one of the last warning.
    fn is_new_second(&self, second: PrimaryHost) -> bool {
        self.known.lock().second.replace(second) != Some(second)
    }

    /// Warns of another server that accepts writes, and, at the first comparison, of hosts that
    /// did not report their roles.
    pub(super) fn warn(&self, answers: &[HostAnswer], best: PrimaryHost, is_first: bool) {
        let primary = self.node(best.host);
        for answer in answers.iter().filter(|answer| answer.host != best.host) {
            let host = self.node(answer.host);
            match &answer.role {
                // A later primary is not the second one, and a server with two names is one server.
                Ok((_, role))
                    if role.is_writable()
                        && *role != best.role
                        && role.timeline <= best.role.timeline
                        && self.is_new_second(PrimaryHost { host: answer.host, role: *role }) =>
                {
                    let (timeline, newest) = (role.timeline, best.role.timeline);
                    tracing::warn!(
                        %host, timeline, %primary, newest,
                        "a second server accepts writes, probably an old primary; the store does \
                         not use it, but other programs may; stop it, and make it a standby"
                    );
                }
                Err(reason) if is_first => {
                    tracing::warn!(
                        %host, %reason, %primary,
                        "a host in the URL did not report its role; the store uses the others"
                    );
                }
                _ => {}
            }
        }
    }
}
