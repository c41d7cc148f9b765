//! One pool, played again and again: under every policy, with every kind of foresight.

use std::sync::Arc;

use ballast_predict::lifetime::data::TooFewLifetimes;
use ballast_predict::lifetime::{LifetimeModel, VmLifetime};
use ballast_sim::cluster::{Noise, NoisyCurves};
use ballast_types::survival::Curves;
use serde::Serialize;

use super::lars::{Lars, LarsOptions, LarsRow};
use super::training::{ModelQuality, learn};
use super::trial::{Contestant, Score, Setting, TrialError, Unwatched};
use super::workload::{Foresight, Workload};
use super::{ORACLE, noisy};

/// One pool under one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    pub pool: String,
    pub number: u64,
    pub scenario: String,
    pub prediction: String,
    pub policy: Contestant,
    pub hosts: u32,
    pub score: Score,
}

#[derive(Clone, Debug, Default)]
pub struct Done {
    pub runs: Vec<Run>,
    pub models: Vec<ModelQuality>,
    pub drains: Vec<DrainRun>,
}

/// Rounds of drains on one pool under best fit, by what is foreseen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DrainRun {
    pub pool: String,
    pub number: u64,
    pub scenario: String,
    pub prediction: String,
    pub orders: Vec<LarsRow>,
}

/// Why a pool cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum LifetimesError {
    #[error("{pool} {number}: {error}")]
    Trial { pool: String, number: u64, error: Box<TrialError> },
    #[error("{pool} {number}: {error}")]
    Learn { pool: String, number: u64, error: TooFewLifetimes },
}

/// A pool, as it is played again and again.
pub(super) struct PoolJob {
    pool: String,
    number: u64,
    pub(super) done: Done,
}

pub(super) type Again<'w, W> = dyn Fn() -> W + 'w;

impl PoolJob {
    pub(super) fn new(pool: &str, number: u64) -> Self {
        Self { pool: pool.to_owned(), number, done: Done::default() }
    }

    pub(super) fn learn(
        &mut self,
        prediction: &str,
        table: Vec<VmLifetime>,
    ) -> Result<Arc<LifetimeModel>, LifetimesError> {
        let learnt = learn(&self.pool, self.number, prediction, table);
        let (model, quality) = learnt.map_err(|error| LifetimesError::Learn {
            pool: self.pool.clone(),
            number: self.number,
            error,
        })?;
        self.done.models.push(quality);
        Ok(Arc::new(model))
    }

    pub(super) fn baselines<W: Workload>(
        &mut self,
        setting: &Setting<'_>,
        scenario: &str,
        again: &Again<'_, W>,
    ) -> Result<(), LifetimesError> {
        for policy in [Contestant::BestFit, Contestant::FirstFit] {
            self.play(setting, scenario, "none", policy, (Foresight::Nothing, Arc::default()), again)?;
        }
        Ok(())
    }

    pub(super) fn with_oracle<W: Workload>(
        &mut self,
        setting: &Setting<'_>,
        scenario: &str,
        again: &Again<'_, W>,
    ) -> Result<(), LifetimesError> {
        for policy in Contestant::FORESEEING {
            self.play(setting, scenario, ORACLE, policy, (Foresight::Oracle, Arc::default()), again)?;
        }
        Ok(())
    }

    pub(super) fn with_model<W: Workload>(
        &mut self,
        setting: &Setting<'_>,
        scenario: &str,
        prediction: &str,
        model: &LifetimeModel,
        again: &Again<'_, W>,
    ) -> Result<(), LifetimesError> {
        let curves = Arc::new(model.curves().clone());
        for policy in Contestant::FORESEEING {
            let foresight = (Foresight::Model(model), Arc::clone(&curves));
            self.play(setting, scenario, prediction, policy, foresight, again)?;
        }
        Ok(())
    }

    /// Who weighs chances is told what the word of the predictor is worth; the others take it as it is.
    pub(super) fn with_noise<W: Workload>(
        &mut self,
        setting: &Setting<'_>,
        scenario: &str,
        accuracy: f64,
        noise: Noise,
        believed: &NoisyCurves,
        again: &Again<'_, W>,
    ) -> Result<(), LifetimesError> {
        let curves = Arc::new(believed.curves().clone());
        for policy in [Contestant::Nilas, Contestant::Lava, Contestant::LavaFlat, Contestant::ExpectedExit] {
            let foresight = match policy {
                Contestant::ExpectedExit => (Foresight::Believed(believed), Arc::clone(&curves)),
                _ => (Foresight::Noisy(noise), Arc::default()),
            };
            self.play(setting, scenario, &noisy(accuracy), policy, foresight, again)?;
        }
        Ok(())
    }

    /// Drains under best fit, by an oracle and by a model.
    pub(super) fn drains<W: Workload>(
        &mut self,
        setting: &Setting<'_>,
        scenario: &str,
        (prediction, model): (&str, &LifetimeModel),
        again: &Again<'_, W>,
    ) -> Result<(), LifetimesError> {
        let curves = Arc::new(model.curves().clone());
        let oracle = (ORACLE, Foresight::Oracle, Arc::default());
        for (prediction, foresight, curves) in [oracle, (prediction, Foresight::Model(model), curves)] {
            let mut lars = Lars::new(LarsOptions::from(setting.switch_ms));
            let policy = Contestant::BestFit;
            let played = setting.play(&self.pool, again(), policy, foresight, curves, &mut lars);
            played.map_err(|error| self.failed(error))?;
            self.done.drains.push(DrainRun {
                pool: self.pool.clone(),
                number: self.number,
                scenario: scenario.to_owned(),
                prediction: prediction.to_owned(),
                orders: lars.rows(),
            });
        }
        Ok(())
    }

    fn failed(&self, error: TrialError) -> LifetimesError {
        LifetimesError::Trial { pool: self.pool.clone(), number: self.number, error: Box::new(error) }
    }

    fn play<W: Workload>(
        &mut self,
        setting: &Setting<'_>,
        scenario: &str,
        prediction: &str,
        policy: Contestant,
        (foresight, curves): (Foresight<'_>, Arc<Curves>),
        again: &Again<'_, W>,
    ) -> Result<(), LifetimesError> {
        let score = setting.play(&self.pool, again(), policy, foresight, curves, &mut Unwatched);
        let score = score.map_err(|error| self.failed(error))?;
        self.done.runs.push(Run {
            pool: self.pool.clone(),
            number: self.number,
            scenario: scenario.to_owned(),
            prediction: prediction.to_owned(),
            policy,
            hosts: setting.hosts,
            score,
        });
        Ok(())
    }
}
