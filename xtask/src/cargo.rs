// SPDX-License-Identifier: MIT OR Apache-2.0
//! Child processes: a command line that can be shown to a person as well as run.

use std::env;
use std::fmt;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

/// Returns the folder for build output, from the workspace's root.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}

/// A `cargo` command line with extra environment variables; `Display` shows what a person types to
/// repeat it.
#[derive(Clone)]
pub(crate) struct Cargo {
    env: Vec<(&'static str, String)>,
    /// Variables that are not shown, because a person who repeats the command has set them already.
    unseen: Vec<(String, String)>,
    args: Vec<String>,
}

impl Cargo {
    pub(crate) fn new(line: &str) -> Self {
        Self {
            env: Vec::new(),
            unseen: Vec::new(),
            args: line.split_whitespace().map(String::from).collect(),
        }
    }

    pub(crate) fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.into());
        self
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    pub(crate) fn unseen(mut self, variables: &[(String, String)]) -> Self {
        self.unseen.extend_from_slice(variables);
        self
    }

    /// Adds to a flags variable that the caller may have set already.
    pub(crate) fn flags(self, name: &'static str, flags: &str) -> Self {
        let value = match env::var(name) {
            Ok(set) if !set.trim().is_empty() => format!("{set} {flags}"),
            _ => flags.into(),
        };
        self.env(name, value)
    }

    fn command(&self, root: &Path) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(&self.args).current_dir(root).stdin(Stdio::null());
        // `cargo run` sets variables that describe this program's package. A build script that
        // watches such a variable would run again, and its output would differ from that of a plain
        // `cargo test`.
        for (name, _) in env::vars_os() {
            let name = name.to_string_lossy();
            if [
                "CARGO_PKG_",
                "CARGO_MANIFEST_",
                "CARGO_BIN_NAME",
                "CARGO_CRATE_NAME",
                "CARGO_PRIMARY_PACKAGE",
            ]
            .iter()
            .any(|prefix| name.starts_with(prefix))
            {
                command.env_remove(&*name);
            }
        }
        command.envs(self.unseen.iter().map(|(name, value)| (name, value)));
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs the command with our own output, and returns whether it succeeded.
    pub(crate) fn run(&self, root: &Path) -> io::Result<bool> {
        Ok(self.command(root).status()?.success())
    }

    /// Runs the command without output: returns whether it succeeded, its standard output and its
    /// standard error.
    pub(crate) fn capture(&self, root: &Path) -> io::Result<(bool, String, String)> {
        let output = self.command(root).output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((output.status.success(), text(&output.stdout), text(&output.stderr)))
    }

    /// Runs the command, passes its output on as it arrives, and returns the lines that `keep`
    /// picked, without colours.
    pub(crate) fn watch(
        &self,
        root: &Path,
        keep: fn(&str) -> bool,
    ) -> io::Result<(bool, Vec<String>)> {
        let mut command = self.command(root);
        if io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none() {
            command.env("CARGO_TERM_COLOR", "always");
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdout = child
            .stdout
            .take()
            .map(|pipe| thread::spawn(move || pass_on(pipe, io::stdout(), keep)));
        let stderr = child
            .stderr
            .take()
            .map(|pipe| thread::spawn(move || pass_on(pipe, io::stderr(), keep)));
        let success = child.wait()?.success();
        let kept = [stdout, stderr]
            .into_iter()
            .flatten()
            .filter_map(|reader| reader.join().ok())
            .flatten()
            .collect();
        Ok((success, kept))
    }
}

fn pass_on(from: impl Read, mut to: impl Write, keep: fn(&str) -> bool) -> Vec<String> {
    let mut from = BufReader::new(from);
    let mut kept = Vec::new();
    let mut line = Vec::new();
    while matches!(from.read_until(b'\n', &mut line), Ok(n) if n > 0) {
        // If no reader is left for this program's output, ignore the error and continue to read the
        // child's pipe. Otherwise the child would block.
        drop(to.write_all(&line).and_then(|()| to.flush()));
        let plain = without_colour(&String::from_utf8_lossy(&line));
        if keep(plain.trim()) {
            kept.push(plain.trim().to_string());
        }
        line.clear();
    }
    kept
}

fn without_colour(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(c);
        }
    }
    plain
}

impl fmt::Display for Cargo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{name}=\"{value}\" ")?;
        }
        write!(f, "cargo {}", self.args.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_shows_as_a_person_types_it() {
        let doc = Cargo::new("doc --no-deps").env("RUSTDOCFLAGS", "-D warnings").arg("--locked");
        let doc = doc.unseen(&[("URL".into(), "x://y".into())]);
        assert_eq!(doc.to_string(), "RUSTDOCFLAGS=\"-D warnings\" cargo doc --no-deps --locked");
    }

    #[test]
    fn colour_is_stripped_before_a_line_is_judged() {
        assert_eq!(without_colour("\u{1b}[32;1m     Summary\u{1b}[0m [ 1s]"), "     Summary [ 1s]");
    }
}
