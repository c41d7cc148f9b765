//! What the scheduler is told of when VMs end.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context as _;
use ballast_placement::ExpectedEnd;
use ballast_predict::lifetime::{LifetimeFeatures, LifetimeFile};
use ballast_sim::cluster::{Arrival, Arrivals, Foresight, LifetimeSource, Noise, NoisyCurves};
use ballast_types::survival::{Curves, EDGES, bin_of};

use crate::common::table;

/// Seed of a noisy predictor of whom none is told.
const SEED: u64 = 1;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum LifetimesArg {
    None,
    Oracle,
    Noisy(Noise),
    Model(PathBuf),
}

impl FromStr for LifetimesArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let noisy = |text: &str| {
            let (accuracy, seed) = match text.split_once(':') {
                Some((accuracy, seed)) => (accuracy, seed.parse().ok()?),
                None => (text, SEED),
            };
            Noise::new(accuracy.parse().ok()?, seed).map(Self::Noisy)
        };
        let parsed = match text.split_once(':') {
            None if text == "none" => Some(Self::None),
            None if text == "oracle" => Some(Self::Oracle),
            Some(("noisy", rest)) => noisy(rest),
            Some(("model", file)) if !file.is_empty() => Some(Self::Model(file.into())),
            _ => None,
        };
        parsed.ok_or_else(|| {
            "none, oracle, noisy:ACCURACY[:SEED] with an accuracy from 0 to 1, or model:FILE is needed"
                .to_owned()
        })
    }
}

impl LifetimesArg {
    /// What a source tells, and the curves that it names. `arrivals` opens the trace once more: who weighs chances, as
    /// `weighs` says, and is told by a noisy predictor knows how long VMs live, and how often the predictor is right.
    pub(super) fn source(
        &self,
        weighs: bool,
        arrivals: impl FnOnce() -> anyhow::Result<Arrivals<'static>>,
    ) -> anyhow::Result<(LifetimeSource<'static>, Arc<Curves>)> {
        let points = |source| Ok((source, Arc::default()));
        match self {
            Self::None => points(LifetimeSource::Unknown),
            Self::Oracle => points(LifetimeSource::Oracle),
            Self::Noisy(noise) if !weighs => points(LifetimeSource::Noisy(*noise)),
            Self::Noisy(noise) => {
                let believed = NoisyCurves::new(*noise, &lives(arrivals()?)?);
                let curves = Arc::new(believed.curves().clone());
                Ok((LifetimeSource::Believed(believed), curves))
            }
            Self::Model(path) => {
                let read = || {
                    let file = LifetimeFile::decode(&table::bytes(path)?)?;
                    anyhow::Ok(file.model)
                };
                let model = read().with_context(|| format!("--lifetimes model:{}", path.display()))?;
                let curves = Arc::new(model.curves().clone());
                let foresight: Foresight<'static> = Box::new(move |vm, batch_vms| {
                    ExpectedEnd::Curve(model.curve(&features(vm, batch_vms), (vm.at_ms / 1000) as i64))
                });
                Ok((LifetimeSource::Foreseen(foresight), curves))
            }
        }
    }
}

/// What a trace says of a VM at its arrival.
fn features(vm: &Arrival, batch_vms: u32) -> LifetimeFeatures {
    LifetimeFeatures {
        cores: Some(vm.resources.cores.cores()),
        memory_gb: Some(vm.resources.memory.gb()),
        batch_vms: Some(batch_vms),
        ..LifetimeFeatures::default()
    }
}

/// How many VMs of a trace live how long, by bins; what runs on when the trace ends lives for longer than all bins.
fn lives(arrivals: Arrivals<'_>) -> anyhow::Result<[f64; EDGES]> {
    let mut lives = [0.0; EDGES];
    for vm in arrivals {
        let lifetime_ms = vm?.lifetime_ms;
        let bin = lifetime_ms.map_or(EDGES - 1, |lifetime_ms| bin_of(lifetime_ms as f32 / 1e3));
        lives[bin] += 1.0;
    }
    Ok(lives)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_none_is_refused_with_what_is_allowed() {
        let noise = |accuracy, seed| LifetimesArg::Noisy(Noise::new(accuracy, seed).unwrap());
        for (text, arg) in [
            ("none", LifetimesArg::None),
            ("oracle", LifetimesArg::Oracle),
            ("noisy:0.8", noise(0.8, SEED)),
            ("noisy:1:77", noise(1.0, 77)),
            ("model:a:b", LifetimesArg::Model("a:b".into())),
        ] {
            assert_eq!(text.parse(), Ok(arg), "{text}");
        }
        for text in
            ["", "Oracle", "noisy", "noisy:", "noisy:1.1", "noisy:NaN", "noisy:.5:-1", "model:", "oracle:1"]
        {
            assert!(text.parse::<LifetimesArg>().unwrap_err().contains("model:FILE"), "{text}");
        }
    }
}
