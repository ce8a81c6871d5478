// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads the settings, and names the source of each: the arguments, the file or the environment
//! (CFG-1).

use std::path::Path;

use retryproof::IdempotencyConfig;
use toml::de::{DeTable, DeValue};

use crate::exit::VerbError;

/// The settings, and the data that names the source of each setting.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) config: IdempotencyConfig,
    store_argument: bool,
    file: Option<SettingsFile>,
}

/// The keys that a file sets, and their lines.
#[derive(Debug)]
struct SettingsFile {
    name: String,
    keys: Vec<(String, usize)>,
}

impl Sources {
    /// Reads the settings as the library does. The argument `--store` overrides the store's URL
    /// from every other source.
    pub(crate) fn load(store: Option<&str>, file: Option<&Path>) -> Result<Self, VerbError> {
        let mut config = IdempotencyConfig::load(file)?;
        if let Some(store) = store {
            config.store = Some(store.to_owned());
        }
        let file = file.map(SettingsFile::read).transpose()?;
        Ok(Self { config, store_argument: store.is_some(), file })
    }

    /// Names the source of the setting `key`, whose environment variable is `variable`.
    pub(crate) fn of(&self, key: &str, variable: &str) -> String {
        if key == "store" && self.store_argument {
            return "--store".to_owned();
        }
        if std::env::var_os(variable).is_some() {
            return variable.to_owned();
        }
        self.in_file(key).unwrap_or_else(|| "default".to_owned())
    }

    /// Names the file and the line that set `key`, or returns `None` if no file sets it.
    pub(crate) fn in_file(&self, key: &str) -> Option<String> {
        let file = self.file.as_ref()?;
        let (_, line) = file.keys.iter().find(|(name, _)| name == key)?;
        Some(format!("{}, line {line}", file.name))
    }
}

impl SettingsFile {
    fn read(path: &Path) -> Result<Self, VerbError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| VerbError::usage(format!("{name} cannot be read: {error}")))?;
        Ok(Self { keys: keys_of(&text), name })
    }
}

/// Returns the settings in a TOML text that the library has accepted, with their lines.
fn keys_of(text: &str) -> Vec<(String, usize)> {
    let mut keys = Vec::new();
    if let Ok(document) = DeTable::parse(text) {
        for (name, value) in document.get_ref() {
            if let (true, DeValue::Table(table)) =
                (name.get_ref() == "idempotency", value.get_ref())
            {
                collect(text, table, "", &mut keys);
            }
        }
    }
    keys
}

fn collect(text: &str, table: &DeTable<'_>, path: &str, keys: &mut Vec<(String, usize)>) {
    for (name, value) in table {
        let path = match (path, name.get_ref()) {
            ("", name) => name.to_string(),
            // The name of a scope can contain dots, so the name is quoted.
            ("scope", name) => format!("scope.{name:?}"),
            (path, name) => format!("{path}.{name}"),
        };
        if let DeValue::Table(inner) = value.get_ref() {
            collect(text, inner, &path, keys);
        } else {
            let before = text.as_bytes().get(..name.span().start).unwrap_or_default();
            keys.push((path, 1 + before.iter().filter(|byte| **byte == b'\n').count()));
        }
    }
}

/// Returns a store URL without its user, password and options, which may be secret (ID-4). A
/// `sqlite:` URL has no secrets, so it is returned whole; a URL of another kind of store is hidden.
pub(crate) fn redacted(url: &str) -> String {
    const HIDDEN: &str = "(hidden)";
    let Some((scheme, rest)) = url.split_once(':') else { return HIDDEN.to_owned() };
    match scheme {
        "memory" if rest.is_empty() => return url.to_owned(),
        "sqlite" => return url.to_owned(),
        "postgres" | "postgresql" | "mysql" | "mariadb" | "redis" | "rediss" | "redis+sentinel"
        | "rediss+sentinel" | "redis+cluster" | "rediss+cluster" => {}
        _ => return HIDDEN.to_owned(),
    }
    let Some(rest) = rest.strip_prefix("//") else { return format!("{scheme}:{HIDDEN}") };
    // A password can contain any character. If an `@` or `?` could be part of the password,
    // everything after the scheme is hidden.
    let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
    let (login, host) = place.split_once('@').unwrap_or(("", place));
    let plain = |c: char| c.is_ascii_alphanumeric() || ".:,/_-[]".contains(c);
    if options.contains('@') || !host.chars().all(plain) {
        return format!("{scheme}://{HIDDEN}");
    }
    let login = if login.is_empty() { "" } else { "(hidden)@" };
    let options = if options.is_empty() { "" } else { "?(hidden)" };
    format!("{scheme}://{login}{host}{options}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_4_a_store_url_shows_its_host_and_no_secret() {
        for (url, shown) in [
            ("memory:", "memory:"),
            ("sqlite:/var/lib/records.db?table=pay", "sqlite:/var/lib/records.db?table=pay"),
            (
                "postgres://app:canary@db.internal:5432/shop",
                "postgres://(hidden)@db.internal:5432/shop",
            ),
            ("mysql://h/d?password=canary", "mysql://h/d?(hidden)"),
            ("redis+sentinel://:canary@a:1,b:2/main/0", "redis+sentinel://(hidden)@a:1,b:2/main/0"),
            ("redis+cluster://u:canary@a:1,b:2", "redis+cluster://(hidden)@a:1,b:2"),
            ("postgres://app:can?ary@h/d", "postgres://(hidden)"),
            ("postgres://app:can@ary@h/d", "postgres://(hidden)"),
            ("redis://h?sentinel-password=a@canary", "redis://(hidden)"),
            ("redis://h/can#ary", "redis://(hidden)"),
            ("canary", "(hidden)"),
            ("canary:x", "(hidden)"),
            ("postgres:canary", "postgres:(hidden)"),
        ] {
            assert_eq!(redacted(url), shown);
        }
    }

    #[test]
    fn the_lines_of_a_file_are_found() {
        let text = "[other]\nx = 1\n[idempotency]\nstore = \"memory:\"\nweb.required = false\n\
                    [idempotency.scope.\"a.b\"]\nttl = \"P1D\"\n";
        let keys = keys_of(text);
        let line = |key: &str| keys.iter().find(|(name, _)| name == key).map(|(_, line)| *line);
        assert_eq!(line("store"), Some(4));
        assert_eq!(line("web.required"), Some(5));
        assert_eq!(line("scope.\"a.b\".ttl"), Some(7));
        assert_eq!(line("x"), None);
    }
}
