// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`ForTests`]: the servers of one run of the tests, or of the benchmarks.

use std::path::Path;

use super::site::Site;
use super::{SERVICES, Service, down, env, site, up};
use crate::Verdict;

/// The servers of one run of the tests, or of the benchmarks. The servers that the run started end
/// with this value; those that ran before continue to run.
pub(crate) struct ForTests<'a> {
    root: &'a Path,
    started: Vec<&'static Service>,
    /// The addresses of all services, except those in variables that the environment already has.
    pub(crate) variables: Vec<(String, String)>,
}

impl<'a> ForTests<'a> {
    /// Starts all services that are not running, except those whose variable the environment has.
    pub(crate) fn begin(root: &'a Path) -> (Self, Verdict) {
        Self::begin_with(root, |_| true)
    }

    /// Like [`begin`](Self::begin), but only for the services whose names `wanted` accepts.
    pub(crate) fn begin_with(root: &'a Path, wanted: impl Fn(&str) -> bool) -> (Self, Verdict) {
        let services = || SERVICES.iter().filter(|service| wanted(service.name));
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let variable =
            |service: &&Service| format!("RETRYPROOF_TEST_{}", service.name.to_uppercase());
        let absent: Vec<_> = services().filter(|service| !is_set(&variable(service))).collect();
        let mut servers = Self { root, started: Vec::new(), variables: Vec::new() };
        // Note the services before they start: if one fails, those that did start must be stopped
        // too.
        match Site::open(root) {
            Ok(site) => {
                let idle = |service: &&Service| site.running(service.name).is_empty();
                servers.started = services().filter(idle).collect();
            }
            Err(error) => return (servers, Verdict::Failed(error.to_string())),
        }
        let ran = services().count() - servers.started.len();
        let result = up(root, &absent);
        let text = std::fs::read_to_string(site::folder(root).join("env")).unwrap_or_default();
        servers.variables =
            env::parse(&text).into_iter().filter(|(name, _)| !is_set(name)).collect();
        let verdict = match result {
            Ok(started) => Verdict::Passed(format!(
                "{} services started, {ran} were already running",
                started.len()
            )),
            Err(why) => Verdict::Failed(why),
        };
        (servers, verdict)
    }
}

impl Drop for ForTests<'_> {
    fn drop(&mut self) {
        if !self.started.is_empty()
            && let Err(why) = down(self.root, &self.started)
        {
            println!("services: {why}");
        }
    }
}
