// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Options`]: which part of the table to run.

use defects::Defect;

pub(crate) const USAGE: &str = "\
usage: cargo xtask bite [--stores LIST] [--layers LIST] [--defects LIST] [--secs N]
  --stores LIST   some of memory,sqlite,postgres,mariadb,redis (default: all)
  --layers LIST   some of kit,simulation,kill (default: all)
  --defects LIST  names of defects (default: all)
  --secs N        how long a kill test makes faults (default: 30 with a server, else 15)";

/// A part of the proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layer {
    /// The conformance kit of stores.
    Kit,
    /// Engines on the memory store, in virtual time.
    Simulation,
    /// Worker processes that are killed.
    Kill,
}

impl Layer {
    const ALL: [Self; 3] = [Self::Kit, Self::Simulation, Self::Kill];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kit => "kit",
            Self::Simulation => "simulation",
            Self::Kill => "kill test",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layer| layer.name().split(' ').next() == Some(name))
    }
}

/// The part of the table to run.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) stores: Vec<String>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) defects: Vec<Defect>,
    /// The length of a kill test, if it is not the usual one.
    pub(crate) secs: Option<u64>,
}

const STORES: [&str; 5] = ["memory", "sqlite", "postgres", "mariadb", "redis"];

impl Options {
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            stores: STORES.map(String::from).to_vec(),
            layers: Layer::ALL.to_vec(),
            defects: Defect::ALL.to_vec(),
            secs: None,
        };
        while let Some(option) = args.next() {
            let value = args.next().ok_or_else(|| format!("{option} needs a value"))?;
            let unknown = |name: &str| format!("{option}: {name:?} is unknown");
            match option.as_str() {
                "--stores" => {
                    options.stores = all(&value, |name| {
                        let known = STORES.contains(&name).then(|| name.to_owned());
                        known.ok_or_else(|| unknown(name))
                    })?;
                }
                "--layers" => {
                    options.layers =
                        all(&value, |name| Layer::named(name).ok_or_else(|| unknown(name)))?;
                }
                "--defects" => {
                    options.defects =
                        all(&value, |name| Defect::named(name).ok_or_else(|| unknown(name)))?;
                }
                "--secs" => options.secs = Some(value.parse().map_err(|_| unknown(&value))?),
                _ => return Err(format!("unknown option {option}")),
            }
        }
        Ok(options)
    }
}

fn all<T>(list: &str, one: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    list.split(',').filter(|name| !name.is_empty()).map(one).collect()
}
