// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the configuration from a TOML file and from `IDEMPOTENCY_*` variables (CFG-1).
//!
//! Loading continues after a mistake, so one start of the program reports all mistakes.

use std::fmt;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use self::raw_value::{RawValue, shown};
use self::settings::{SETTINGS, Setting, closest};
use super::{FingerprintMode, IdempotencyConfig, NEEDS_JSON};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Scope;

mod raw_value;
mod settings;

const PREFIX: &str = "IDEMPOTENCY_";

/// Returns every setting under `idempotency.` with the variable that overrides it. Tools can use
/// this list to check or document a configuration. The list omits the keys below `scope."NAME"`,
/// which have no variables: a variable's name cannot spell every scope.
pub fn keys() -> impl Iterator<Item = (&'static str, String)> {
    SETTINGS.iter().map(|setting| (setting.key, setting.variable()))
}

impl IdempotencyConfig {
    /// Reads the `idempotency` table of the TOML file at `path`, if a path is given. Then reads the
    /// process environment, which takes precedence (CFG-1). A setting that appears in neither
    /// source keeps its default. Keys outside `idempotency` are ignored.
    ///
    /// A setting's variable is its name in upper case, with `_` for each dot and dash:
    /// `web.max-body-bytes` is `IDEMPOTENCY_WEB_MAX_BODY_BYTES`. Scopes can be configured only in
    /// the file. An unknown `IDEMPOTENCY_*` variable is logged as a warning.
    ///
    /// ```no_run
    /// use std::path::Path;
    /// # use retryproof_core as retryproof;
    /// use retryproof::IdempotencyConfig;
    ///
    /// let config = IdempotencyConfig::load(Some(Path::new("app.toml")))?;
    /// # Ok::<(), retryproof::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the file cannot be read or is not TOML, if it has an unknown
    /// setting, or if either source has a bad value. The message names each wrong key, its value
    /// and its source, but never shows the value of `store` or `identity-secret` (ID-4).
    pub fn load(path: Option<&Path>) -> Result<Self> {
        let text = path.map(read).transpose()?;
        let name = path.map(|path| path.display().to_string()).unwrap_or_default();
        // Converting the names lossily is safe, because the names of all settings are ASCII.
        let variables = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.into_string().ok()));
        Loading::all(text.as_deref().map(|text| File { name: &name, text }), variables)
    }

    /// Like [`load`](Self::load), but takes a TOML text (with the name of its source) and
    /// variables. This method reads neither the file system nor the environment. Use it in tests,
    /// and in programs that get their settings another way.
    ///
    /// ```
    /// # use retryproof_core as retryproof;
    /// use std::time::Duration;
    /// use retryproof::IdempotencyConfig;
    ///
    /// let file = r#"
    ///     [idempotency]
    ///     default-lease = "PT20S"
    ///     web.required = false
    ///     scope."payments".wait = "PT5S"
    /// "#;
    /// let variables = [("IDEMPOTENCY_DEFAULT_LEASE".to_owned(), "PT15S".to_owned())];
    /// let config = IdempotencyConfig::from_sources(Some(("app.toml", file)), variables)?;
    /// assert_eq!(config.default_lease, Duration::from_secs(15));
    /// assert!(!config.web.required);
    ///
    /// let wrong = Some(("app.toml", "idempotency.default-ttl = '24h'"));
    /// let message = IdempotencyConfig::from_sources(wrong, []).unwrap_err().to_string();
    /// assert!(message.contains(r#"idempotency.default-ttl = "24h" (app.toml, line 1)"#));
    /// # Ok::<(), retryproof::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`load`](Self::load).
    pub fn from_sources(
        file: Option<(&str, &str)>,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self> {
        let variables = variables.into_iter().map(|(name, value)| (name, Some(value)));
        Loading::all(file.map(|(name, text)| File { name, text }), variables)
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| {
        Error::new(
            ErrorKind::Config,
            format!("the configuration file {} cannot be read: {error}", path.display()),
        )
        .because(error)
    })
}

struct File<'a> {
    name: &'a str,
    text: &'a str,
}

impl File<'_> {
    /// Returns the position of `span` for messages: the file's name and the line.
    fn at(&self, span: std::ops::Range<usize>) -> String {
        let before = self.text.as_bytes().get(..span.start).unwrap_or(self.text.as_bytes());
        format!("{}, line {}", self.name, 1 + before.iter().filter(|byte| **byte == b'\n').count())
    }
}

/// The configuration as read so far, and the problems found so far.
struct Loading {
    config: IdempotencyConfig,
    problems: Vec<String>,
    /// Each `fingerprint-ignore` in the file, with its key, value and place.
    ignoring: Vec<String>,
}

impl Loading {
    /// Reads both sources. A variable whose value is not UTF-8 has the value `None`.
    fn all(
        file: Option<File<'_>>,
        variables: impl Iterator<Item = (String, Option<String>)>,
    ) -> Result<IdempotencyConfig> {
        let mut loading = Self {
            config: IdempotencyConfig::default(),
            problems: Vec::new(),
            ignoring: Vec::new(),
        };
        if let Some(file) = file {
            loading.file(&file);
        }
        // Sort the variables, so that their mistakes are reported in the same order every time.
        let mut variables: Vec<_> =
            variables.filter(|(name, _)| name.starts_with(PREFIX)).collect();
        variables.sort();
        for (name, value) in &variables {
            loading.variable(name, value.as_deref());
        }
        loading.end()
    }

    fn file(&mut self, file: &File<'_>) {
        let document = match DeTable::parse(file.text) {
            Ok(document) => document.into_inner(),
            Err(error) => {
                // Report only the error's `message()`. The error's full text also quotes the line,
                // which can contain a password (ID-4).
                let place = error.span().map_or_else(|| file.name.to_owned(), |span| file.at(span));
                return self.problem(format_args!(
                    "{place}: the file is not valid TOML: {}",
                    error.message()
                ));
            }
        };
        for (key, value) in &document {
            if key.get_ref() == "idempotency" {
                match value.get_ref() {
                    DeValue::Table(table) => self.table(file, table, &mut Vec::new()),
                    _ => self.problem(format_args!(
                        "idempotency ({}): expected a table of settings",
                        file.at(key.span())
                    )),
                }
            }
        }
    }

    /// Reads `idempotency` or a table inside it. `path` holds the names that lead from
    /// `idempotency` to the table.
    fn table<'a>(&mut self, file: &File<'_>, table: &'a DeTable<'_>, path: &mut Vec<&'a str>) {
        for (key, value) in table {
            let place = || file.at(key.span());
            path.push(key.get_ref());
            let known = Setting::at(path);
            match (known, value.get_ref()) {
                (Some(setting), value) => self.set(setting, &RawValue::Toml(value), &place()),
                (None, DeValue::Table(inner)) if settings::is_table(path) => {
                    if let ["scope", name] = path[..]
                        && let Err(problem) = self.name_scope(name)
                    {
                        self.problem(format_args!(
                            "idempotency.{} ({}): {problem}",
                            spelled(path),
                            place()
                        ));
                    } else {
                        self.table(file, inner, path);
                    }
                }
                (None, value) if matches!(path[..], ["scope", _, _]) => {
                    self.scope(path, value, &place())
                }
                (None, _) if settings::is_table(path) => {
                    self.problem(format_args!(
                        "idempotency.{} ({}): expected a table of settings",
                        spelled(path),
                        place()
                    ));
                }
                (None, _) => {
                    let hint = closest(&spelled(path));
                    self.problem(format_args!(
                        "idempotency.{} ({}): there is no such setting{hint}",
                        spelled(path),
                        place()
                    ));
                }
            }
            path.pop();
        }
    }

    fn variable(&mut self, name: &str, value: Option<&str>) {
        if let Some(setting) = SETTINGS.iter().find(|setting| setting.variable() == name) {
            return match value {
                Some(value) => self.set(setting, &RawValue::Variable(value), name),
                None => self.problem(format_args!(
                    "idempotency.{} ({name}): the value is not UTF-8",
                    setting.key
                )),
            };
        }
        if name.starts_with("IDEMPOTENCY_SCOPE_") {
            tracing::warn!(
                variable = name,
                "an environment variable has no effect, because a scope can be configured only in \
                 the configuration file; move the setting to the file (CFG-1)"
            );
        } else {
            tracing::warn!(
                variable = name,
                "an environment variable has no effect, because no setting has this name; correct \
                 the name, or remove the variable (CFG-1)"
            );
        }
    }

    fn set(&mut self, setting: &Setting, value: &RawValue<'_>, place: &str) {
        // Check the value together with the defaults of all other settings, so that any problem
        // comes from this value.
        let mut trial = IdempotencyConfig::default();
        let tried = (setting.set)(&mut trial, value).and_then(|()| {
            trial.check().map_err(|refusal| format!("expected {}", refusal.expected))
        });
        match tried.and_then(|()| (setting.set)(&mut self.config, value)) {
            Ok(()) => {}
            Err(problem) => {
                let is_secret = matches!(
                    setting.key,
                    "store" | "identity-secret" | "seal.keys" | "seal.master"
                );
                let value = if is_secret { "(hidden)".to_owned() } else { shown(value) };
                self.problem(format_args!(
                    "idempotency.{} = {value} ({place}): {problem}",
                    setting.key
                ));
            }
        }
    }

    /// Adds a scope to the configuration, even if it has no settings (RUN-9).
    fn name_scope(&mut self, name: &str) -> Result<(), &'static str> {
        Scope::new(name).map_err(|_| {
            "a scope must have 1 to 255 bytes, and must not be blank or contain control characters"
        })?;
        self.config.scopes.entry(name.to_owned()).or_default();
        Ok(())
    }

    /// Sets `scope."NAME".PART` to `value`, or records why `value` is wrong.
    fn scope(&mut self, path: &[&str], value: &DeValue<'_>, place: &str) {
        let [_, name, part] = path else { return };
        let value = RawValue::Toml(value);
        let set = || {
            let mut trial = IdempotencyConfig::default();
            let own = trial.scopes.entry((*name).to_owned()).or_default();
            match *part {
                "ttl" => own.ttl = Some(value.duration()?),
                "lease" => own.lease = Some(value.duration()?),
                "wait" => own.wait_timeout = Some(value.duration()?),
                "enabled" => own.enabled = Some(value.flag()?),
                "store" => own.stored = Some(value.statuses()?),
                "mismatch-status" => own.mismatch_status = Some(value.status()?),
                "fingerprint-ignore" => own.fingerprint_ignore = value.pointers()?,
                "fingerprint-while-in-flight" => {
                    own.fingerprint_while_in_flight = Some(value.flag()?);
                }
                "shadow" => own.shadow = Some(value.flag()?),
                _ => {
                    return Err("there is no such setting; a scope has `ttl`, `lease`, `wait`, \
                                `enabled`, `shadow`, `store`, `mismatch-status`, \
                                `fingerprint-ignore` and `fingerprint-while-in-flight`"
                        .to_owned());
                }
            }
            trial.check().map_err(|refusal| format!("expected {}", refusal.expected))?;
            Ok(trial.scopes)
        };
        match set() {
            Ok(scopes) => {
                for (name, new) in scopes {
                    if !new.fingerprint_ignore.is_empty() {
                        let (key, value) = (spelled(path), &new.fingerprint_ignore);
                        self.ignoring.push(format!("idempotency.{key} = {value:?} ({place})"));
                    }
                    self.config.scopes.entry(name).or_default().take_from(new);
                }
            }
            Err(problem) => self.problem(format_args!(
                "idempotency.{} = {} ({place}): {problem}",
                spelled(path),
                shown(&value)
            )),
        }
    }

    fn problem(&mut self, problem: fmt::Arguments<'_>) {
        self.problems.push(problem.to_string());
    }

    fn end(mut self) -> Result<IdempotencyConfig> {
        // `fingerprint-ignore` and `web.fingerprint` can come from different sources, so they are
        // compared after all sources are read.
        if self.config.web.fingerprint != FingerprintMode::Json {
            let needing = self.ignoring.drain(..).map(|setting| format!("{setting}: {NEEDS_JSON}"));
            self.problems.extend(needing);
        }
        match &self.problems[..] {
            [] => {
                self.config.validate()?;
                Ok(self.config)
            }
            [one] => Err(Error::new(ErrorKind::Config, one.clone())),
            many => Err(Error::new(
                ErrorKind::Config,
                format!("{} problems: {}", many.len(), many.join("; ")),
            )),
        }
    }
}

/// Formats a path in TOML syntax, for example `scope."payments".ttl`.
fn spelled(path: &[&str]) -> String {
    let bare = |name: &str| {
        !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let names: Vec<_> = path
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let scope = at == 1 && path[0] == "scope";
            if bare(name) && !scope { (*name).to_owned() } else { format!("{name:?}") }
        })
        .collect();
    names.join(".")
}
