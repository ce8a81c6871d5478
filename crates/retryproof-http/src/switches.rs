// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Switches`]: the settings of a scope that affect the filter. They choose the statuses that are
//! stored (HTTP-19), the status of a mismatch (HTTP-20), and the members that fingerprints leave
//! out (FP-5). The engine, not the filter, checks whether the scope is switched off (CTX-5), and
//! whether fingerprints are compared while the first call runs (FP-6).

use std::collections::HashMap;
use std::sync::Arc;

use retryproof_core::config::StoredStatuses;
use retryproof_core::{IdempotencyConfig, Scope};

use crate::protocol::fingerprint::IgnoredMembers;
use crate::protocol::problem::Code;

/// The switches of each scope whose configuration sets at least one of them.
#[derive(Debug, Default)]
pub(crate) struct Switches(HashMap<String, ScopeSwitches>);

#[derive(Debug)]
struct ScopeSwitches {
    stored: Option<StoredStatuses>,
    mismatch_status: Option<u16>,
    ignored: Option<Arc<IgnoredMembers>>,
}

/// The switches that a policy sets in the code. The configuration of a scope overrides these
/// switches (CTX-3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PolicySwitches {
    pub(crate) stored: Option<StoredStatuses>,
    pub(crate) mismatch_status: Option<u16>,
}

impl Switches {
    pub(crate) fn new(config: &IdempotencyConfig) -> Self {
        let scopes = config.scopes.iter().map(|(name, own)| {
            let pointers = &own.fingerprint_ignore;
            let ignored = (!pointers.is_empty()).then(|| Arc::new(IgnoredMembers::new(pointers)));
            let (stored, mismatch_status) = (own.stored, own.mismatch_status);
            (name.clone(), ScopeSwitches { stored, mismatch_status, ignored })
        });
        let has_switch = |own: &ScopeSwitches| {
            own.stored.is_some() || own.mismatch_status.is_some() || own.ignored.is_some()
        };
        Self(scopes.filter(|(_, own)| has_switch(own)).collect())
    }

    #[inline]
    fn of(&self, scope: &Scope) -> Option<&ScopeSwitches> {
        if self.0.is_empty() { None } else { self.0.get(scope.as_str()) }
    }

    /// Whether the filter stores an unmarked response with this status (HTTP-19).
    pub(crate) fn stores(&self, scope: &Scope, policy: PolicySwitches, status: u16) -> bool {
        let configured = self.of(scope).and_then(|own| own.stored);
        configured.or(policy.stored).is_none_or(|stored| stored.stores(status))
    }

    /// Returns the status of the problem `fingerprint-mismatch` (HTTP-20).
    pub(crate) fn mismatch_status(&self, scope: &Scope, policy: PolicySwitches) -> u16 {
        let configured = self.of(scope).and_then(|own| own.mismatch_status);
        configured.or(policy.mismatch_status).unwrap_or(Code::FingerprintMismatch.status())
    }

    /// Returns the members that the fingerprints of this scope leave out (FP-5).
    #[inline]
    pub(crate) fn ignored(&self, scope: &Scope) -> Option<&Arc<IgnoredMembers>> {
        self.of(scope)?.ignored.as_ref()
    }

    /// Whether any scope leaves members out of its fingerprints.
    pub(crate) fn ignore_members(&self) -> bool {
        self.0.values().any(|own| own.ignored.is_some())
    }

    /// Whether any scope has its own list of statuses to store.
    pub(crate) fn choose_statuses(&self) -> bool {
        self.0.values().any(|own| own.stored.is_some())
    }
}
