// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Resource`]: the world outside of the store, which an action changes.
//!
//! A lease fences the record, not the world: a process that was stopped continues its work after
//! its lease has ended. A resource that checks the fencing token then refuses the work (ACQ-10). A
//! resource that relies on the lease accepts it, and a run with strong enough faults shows that.

use std::fs::{File, OpenOptions, create_dir_all};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use history::{Fun, Phase, Said, hash};
use retryproof::{Identity, Lease};

use crate::log::Log;

/// How long it takes to make an effect.
const WORK: Duration = Duration::from_millis(20);

/// What guards an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// Actions make no effects.
    None,
    /// The resource refuses a token that is older than one that it has seen.
    Token,
    /// Every caller that was granted the lease may write.
    Lease,
}

impl Guard {
    pub(crate) fn named(name: &str) -> Self {
        match name {
            "none" => Self::None,
            "lease" => Self::Lease,
            _ => Self::Token,
        }
    }
}

/// A folder with a file for each identity, which contains the largest token seen.
#[derive(Debug)]
pub(crate) struct Resource(PathBuf);

impl Resource {
    pub(crate) fn open(out: &Path) -> std::io::Result<Self> {
        let folder = out.join("resource");
        create_dir_all(&folder)?;
        Ok(Self(folder))
    }

    /// Makes an effect in the name of a lease, and logs whether the resource accepted it.
    pub(crate) async fn touch(&self, log: &Log, guard: Guard, identity: &Identity, lease: &Lease) {
        if guard == Guard::None {
            return;
        }
        // This pause stands for work between the grant and the effect. If the process is stopped
        // during the pause, another owner can take over.
        tokio::time::sleep(WORK).await;
        let token = lease.token().get();
        let name =
            hash(format!("{:?}", (identity.scope().as_str(), identity.key().expose())).as_bytes());
        let write = |file: &mut File| -> std::io::Result<()> {
            // The lock is released when the file is closed, even if the process dies.
            file.lock()?;
            let mut seen = String::new();
            file.read_to_string(&mut seen)?;
            let seen = seen.parse().unwrap_or(0);
            let applied = guard == Guard::Lease || token >= seen;
            let mut event = log.of(0, Fun::Effect, Phase::Ok, identity);
            event.token = Some(token);
            event.said = Some(if applied { Said::Applied } else { Said::Refused });
            if applied {
                file.rewind()?;
                // Replace the token in a single write of a fixed length: a kill between two
                // operations would leave an empty file.
                file.write_all(format!("{token:020}").as_bytes())?;
            }
            log.write(&event);
            Ok(())
        };
        let path = self.0.join(format!("{name:016x}"));
        let opened =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        if let Err(error) = opened.and_then(|mut file| write(&mut file)) {
            eprintln!("cannot update the resource: {error}");
        }
    }
}
