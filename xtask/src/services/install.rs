// SPDX-License-Identifier: MIT OR Apache-2.0
//! The servers' programs: found on this machine, or else installed by its package manager, which
//! starts none of them.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Service, account};
use crate::Verdict;

/// The folders that are searched for programs.
pub(super) struct Tools(Vec<PathBuf>);

impl Tools {
    fn search() -> Self {
        let mut folders: Vec<PathBuf> =
            std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
        folders.extend(["/usr/sbin", "/usr/local/sbin", "/usr/bin"].map(PathBuf::from));
        // Debian installs PostgreSQL outside of PATH, in one folder for each major version.
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let mut majors: Vec<u32> =
            versions.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        majors.sort_unstable_by(|a, b| b.cmp(a));
        folders.extend(
            majors.iter().map(|major| PathBuf::from(format!("/usr/lib/postgresql/{major}/bin"))),
        );
        // This folder contains RabbitMQ's own programs. PATH has only wrappers of them.
        folders.push(PathBuf::from("/usr/lib/rabbitmq/bin"));
        Self(folders)
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        let executable = |path: &PathBuf| {
            fs::metadata(path).is_ok_and(|is| is.is_file() && is.permissions().mode() & 1 != 0)
        };
        self.0.iter().map(|folder| folder.join(program)).find(executable)
    }

    pub(super) fn path(&self, program: &str) -> io::Result<String> {
        let found = self
            .find(program)
            .ok_or_else(|| io::Error::other(format!("{program} is not installed")));
        found.map(|path| path.to_string_lossy().into_owned())
    }

    fn lacking(&self, services: &[&Service]) -> Vec<&'static str> {
        let mut programs: Vec<&str> =
            services.iter().flat_map(|service| service.programs.iter().copied()).collect();
        programs.sort_unstable();
        programs.dedup();
        programs.retain(|program| self.find(program).is_none());
        programs
    }
}

/// Finds all programs that `services` need, and installs missing ones if possible.
pub(super) fn tools(services: &[&Service]) -> Result<Tools, String> {
    let tools = Tools::search();
    let lacking = tools.lacking(services);
    if lacking.is_empty() {
        return Ok(tools);
    }
    let mut packages: Vec<&str> = services
        .iter()
        .filter(|service| service.programs.iter().any(|program| lacking.contains(program)))
        .flat_map(|service| service.packages.iter().copied())
        .collect();
    packages.sort_unstable();
    packages.dedup();
    let by_hand = format!(
        "these programs are not installed: {}; on Debian, as root, run `apt-get install \
         --no-install-recommends {}` \
         (this command does so if it runs as root); on other systems, \
         install packages that contain these programs, and put the programs on PATH",
        lacking.join(", "),
        packages.join(" ")
    );
    let is_root = account::me().is_ok_and(|me| me == 0);
    if !is_root || tools.find("apt-get").is_none() || tools.find("dpkg").is_none() {
        return Err(by_hand);
    }
    println!("  installing {} with apt-get", packages.join(", "));
    install(&packages).map_err(|error| format!("{by_hand}\n  {error}"))?;
    let tools = Tools::search();
    match tools.lacking(services)[..] {
        [] => Ok(tools),
        ref still => Err(format!(
            "installed {}, but these programs are still missing: {}",
            packages.join(", "),
            still.join(", ")
        )),
    }
}

fn install(packages: &[&str]) -> io::Result<()> {
    let _quiet = Quiet::begin(Path::new("/"))?;
    let lists = fs::read_dir("/var/lib/apt/lists").into_iter().flatten().flatten();
    if !lists.into_iter().any(|entry| entry.file_name().to_string_lossy().contains("_Packages")) {
        apt(&["update"])?;
    }
    let install = [&["install", "-y", "--no-install-recommends"][..], packages].concat();
    apt(&install).or_else(|_| {
        // The package lists may be old, and name files that the archive no longer has.
        apt(&["update"])?;
        apt(&install)
    })
}

fn apt(arguments: &[&str]) -> io::Result<()> {
    let mut command = Command::new("apt-get");
    command.args([
        "-q",
        "-o",
        "Dpkg::Use-Pty=0",
        "-o",
        "DPkg::Lock::Timeout=300",
        "-o",
        "Acquire::Retries=3",
    ]);
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    let status = command.status()?;
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("`apt-get {}`: {status}", arguments.join(" "))))
}

/// While this value exists, installed packages start no service, and PostgreSQL's package creates
/// no cluster. Dropping it restores the machine's files.
struct Quiet {
    policy: PathBuf,
    /// Where the machine's own file is kept while this value exists.
    aside: PathBuf,
    cluster: PathBuf,
    /// Folders that this value created, the innermost first.
    made: Vec<PathBuf>,
}

const MARK: &str = "# written by `cargo xtask services up`, which removes it again";

impl Quiet {
    fn begin(system: &Path) -> io::Result<Self> {
        let mut quiet = Self {
            policy: system.join("usr/sbin/policy-rc.d"),
            aside: system.join("usr/sbin/policy-rc.d.before-retryproof"),
            cluster: system.join("etc/postgresql-common/createcluster.d/retryproof.conf"),
            made: Vec::new(),
        };
        quiet.restore(); // undoes the changes of a process that was killed
        if quiet.policy.exists() {
            fs::rename(&quiet.policy, &quiet.aside)?;
        }
        fs::write(&quiet.policy, format!("#!/bin/sh\n{MARK}\nexit 101\n"))?;
        fs::set_permissions(&quiet.policy, fs::Permissions::from_mode(0o755))?;
        let folders = quiet.cluster.ancestors().skip(1);
        quiet.made = folders.take_while(|folder| !folder.exists()).map(Path::to_path_buf).collect();
        for folder in quiet.made.iter().rev() {
            fs::create_dir(folder)?;
        }
        fs::write(&quiet.cluster, format!("{MARK}\ncreate_main_cluster = false\n"))?;
        Ok(quiet)
    }

    fn restore(&self) {
        let ours = fs::read_to_string(&self.policy).is_ok_and(|text| text.contains(MARK));
        let undone = if self.aside.exists() {
            fs::rename(&self.aside, &self.policy)
        } else if ours {
            fs::remove_file(&self.policy)
        } else {
            Ok(())
        };
        if let Err(error) = undone {
            println!("  cannot restore {}: {error}", self.policy.display());
        }
        if self.cluster.exists() {
            drop(fs::remove_file(&self.cluster));
        }
        for folder in &self.made {
            drop(fs::remove_dir(folder)); // stays if a package has put a file into it
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        self.restore();
    }
}

/// Prometheus, of which the tests use only the tool `promtool`, which checks the alerts, and no
/// server.
const PROMETHEUS: Service =
    Service { name: "prometheus", programs: &["promtool"], packages: &["prometheus"], on: None };

/// Returns the path of `promtool`, which is installed first if it is missing.
pub(crate) fn promtool() -> Result<String, String> {
    let tools = tools(&[&PROMETHEUS])?;
    tools.path("promtool").map_err(|error| error.to_string())
}

/// Patroni and etcd, which only long kill tests need. Each run starts its own.
const PATRONI: Service = Service {
    name: "patroni",
    programs: &["initdb", "postgres", "patroni", "etcd"],
    packages: &["postgresql", "patroni", "etcd-server"],
    on: None,
};

/// Installs Patroni and etcd if they are missing, and starts nothing.
pub(super) fn patroni() -> Verdict {
    match tools(&[&PATRONI]) {
        Ok(_) => Verdict::Passed("patroni and etcd are installed; kill tests start them".into()),
        Err(why) => Verdict::Failed(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_left_as_it_was() {
        let system = std::env::temp_dir().join(format!("xtask-quiet-{}", std::process::id()));
        let policy = system.join("usr/sbin/policy-rc.d");
        fs::create_dir_all(system.join("usr/sbin")).expect("a folder");
        fs::create_dir_all(system.join("etc")).expect("a folder");
        let read = || fs::read_to_string(&policy).ok();

        let quiet = Quiet::begin(&system).expect("begun");
        assert!(read().is_some_and(|text| text.contains("exit 101")));
        assert!(quiet.cluster.exists());
        drop(quiet);
        assert_eq!(read(), None);
        assert!(!system.join("etc/postgresql-common").exists());

        fs::write(&policy, "the machine's own").expect("written");
        std::mem::forget(Quiet::begin(&system).expect("begun and killed"));
        assert!(read().is_some_and(|text| text.contains(MARK)));
        drop(Quiet::begin(&system).expect("begun again"));
        assert_eq!(read().as_deref(), Some("the machine's own"));
        fs::remove_dir_all(&system).expect("removed");
    }

    #[test]
    fn a_program_is_found_where_it_can_be_run_and_a_missing_one_is_named() {
        let tools = Tools::search();
        assert!(tools.path("sh").is_ok_and(|path| path.ends_with("/sh")));
        let why = tools.path("no-such-program").expect_err("missing");
        assert_eq!(why.to_string(), "no-such-program is not installed");
        let service =
            Service { name: "x", programs: &["sh", "no-such-program"], packages: &["y"], on: None };
        assert_eq!(tools.lacking(&[&service, &service]), ["no-such-program"]);
    }
}
