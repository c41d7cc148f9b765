//! Servers' curves, by hardware generation.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use ballast_types::PowerModel;
use clap::Args;

use crate::common::profile::Profile;
use crate::common::server::ServerArgs;

/// How a server draws.
#[derive(Args, Debug)]
pub(super) struct CurveArgs {
    /// Servers' curves, by ballast profile: of one hardware generation, or without its name of all that have
    /// no other
    #[arg(long, value_name = "[GENERATION=]FILE", num_args = 1..)]
    profile: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Curve {
    pub(super) model: PowerModel,
    pub(super) from: String,
}

#[derive(Debug)]
pub(super) struct Curves {
    named: BTreeMap<String, Curve>,
    /// Of every generation that is not named.
    others: Option<Curve>,
}

impl CurveArgs {
    pub(super) fn curves(&self) -> anyhow::Result<Curves> {
        let mut curves = Curves { named: BTreeMap::new(), others: None };
        for given in &self.profile {
            let (generation, file) = match given.split_once('=') {
                Some((generation, file)) => (Some(generation), file),
                None => (None, given.as_str()),
            };

            let curve = read(Path::new(file))?;
            let before = match generation {
                Some(name) => curves.named.insert(name.to_owned(), curve),
                None => curves.others.replace(curve),
            };

            if let Some(before) = before {
                bail!("--profile {given}: the same servers have {} already", before.from);
            }
        }

        let told = self.server.is_told();

        match &curves.others {
            Some(others) if told => {
                bail!("--idle-w, --full-w and the like, and --profile {}: one of both", others.from)
            }
            None if told || curves.named.is_empty() => {
                let from = if told { "as told" } else { "the paper's server" };
                curves.others = Some(Curve { model: self.server.model(), from: from.to_owned() });
            }
            _ => {}
        }

        Ok(curves)
    }
}

fn read(file: &Path) -> anyhow::Result<Curve> {
    let profile = Profile::load(file).context("--profile")?;
    let off = profile.fit.map(|fit| format!(", off by at most {:.1} %", fit.residuals.max_percent));
    let from = format!("{}: {}{}", file.display(), profile.kind.words(), off.unwrap_or_default());
    Ok(Curve { model: profile.model(), from })
}

impl Curves {
    /// Those of a generation, which is empty where the history names none.
    pub(super) fn of(&self, generation: &str) -> anyhow::Result<&Curve> {
        let found = self.named.get(generation).or(self.others.as_ref());
        found.with_context(|| {
            let names: Vec<_> = self.named.keys().map(|name| format!("{name:?}")).collect();
            format!(
                "generation {generation:?} has no curves, only {} have: --profile {generation}=FILE, or \
                 --profile FILE for all others",
                names.join(", ")
            )
        })
    }

    /// Generations that have curves of their own and are not among `known`.
    pub(super) fn unused<'a>(&'a self, known: impl Fn(&str) -> bool + 'a) -> impl Iterator<Item = &'a str> {
        self.named.keys().map(String::as_str).filter(move |name| !known(name))
    }
}
