//! From VMs of the past to a model with its scores, beside what simpler rules reach.

use serde::{Deserialize, Serialize};

use super::boosted::{BoostedError, BoostedHazards, BoostedLogarithm, BoostedOptions};
use super::data::{Cleaned, LifetimeSplit, Lifetimes, TooFewLifetimes};
use super::feature::Column;
use super::kaplan_meier::KaplanMeier;
use super::model::LifetimeModel;
use super::score::{LifetimeScores, ScoredVm, gain, log_likelihood};
use super::tables::{self, TableCell};
use ballast_types::survival::SurvivalCurve;
use std::collections::BTreeMap;

/// Fewer VMs that ended are not learnt from, or scored on.
const MIN_ENDED: usize = 100;
/// A category of fewer VMs has the estimate of all.
const MIN_STRATUM: usize = 10;
/// A gain of so many standard errors is none of chance.
const SURE: f64 = 2.0;

/// A model with all that belongs to it: a section of the model file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LifetimeFile {
    pub about: LifetimeAbout,
    /// What answers: it has learnt from all VMs.
    pub model: LifetimeModel,
    /// What was scored: it has not seen the hold-out.
    pub trial: LifetimeModel,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LifetimeAbout {
    /// The first start, where the hold-out begins, and the last thing that is known, in Unix seconds.
    pub from_s: i64,
    pub cut_s: i64,
    pub until_s: i64,
    pub cleaned: Cleaned,
    /// The columns that say something about lifetimes, the widest first.
    pub columns: Vec<Column>,
    /// How many distinct ones the answering model has.
    pub curves: u64,
    /// Scores on the hold-out: the model first, then simpler ones.
    pub arms: Vec<LifetimeArm>,
    /// Whether the hold-out is likelier by the model than by the estimator of Kaplan and Meier, beyond chance. If not,
    /// the columns say nothing about lifetimes.
    pub better_than_kaplan_meier: bool,
}

/// How good one way to learn is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LifetimeArm {
    pub name: String,
    /// By how much a VM is likelier than by the estimator of Kaplan and Meier, in nats, and the standard error.
    pub gain: f64,
    pub gain_error: f64,
    pub scores: LifetimeScores,
}

/// What was learnt from the older VMs, and how good it is on the newest.
#[derive(Debug)]
pub struct LifetimeTrial<'a> {
    lifetimes: &'a Lifetimes,
    split: LifetimeSplit,
    order: Vec<usize>,
    pub model: LifetimeModel,
    /// The model first, then simpler ones.
    pub arms: Vec<LifetimeArm>,
}

/// Why new scores are worse than old ones on the same VMs, if they are: the gate before a model is replaced.
pub fn worse(new: &LifetimeScores, old: &LifetimeScores) -> Option<String> {
    // A loss that is no number is worse, too.
    let fine = new.log_loss <= old.log_loss;
    (!fine).then(|| {
        format!("log-loss {:.5} on the hold-out is above the old model's {:.5}", new.log_loss, old.log_loss)
    })
}

impl<'a> LifetimeTrial<'a> {
    /// Scores gradient boosting too, on the same VMs. This takes minutes.
    pub fn compare_boosted(&mut self, options: BoostedOptions) -> Result<(), BoostedError> {
        let (lifetimes, split) = (self.lifetimes, &self.split);
        let held_out = HeldOut { lifetimes, split };
        let all = tables::learn(lifetimes, &split.fit, split.cut_s, &[]).curve;
        let hazards = BoostedHazards::train(lifetimes, &split.fit, split.cut_s, &all, options)?;
        let logarithm = BoostedLogarithm::train(lifetimes, &split.fit, split.cut_s, options)?;
        let by_all = held_out.stratum(&split.fit);
        let base = held_out.likelihoods(|_| &by_all);

        let curves = held_out.curves(|row| hazards.curve(row));
        self.arms.push(held_out.arm("boosted hazards", |row| &curves[&held_out.key(row)], &base));
        let curves = held_out.curves(|row| logarithm.curve(row));
        self.arms.push(held_out.arm("boosted log10 lifetime", |row| &curves[&held_out.key(row)], &base));
        Ok(())
    }

    pub fn new(lifetimes: &'a Lifetimes) -> Result<Self, TooFewLifetimes> {
        let split = lifetimes.split();
        for rows in [&split.fit, &split.held_out] {
            let ended = rows.iter().filter(|row| lifetimes.rows()[**row as usize].span.ended()).count();
            if ended < MIN_ENDED {
                return Err(TooFewLifetimes { found: rows.len(), ended, needed: MIN_ENDED });
            }
        }

        let order = tables::choose(lifetimes, &split.fit, split.cut_s);
        let root = tables::learn(lifetimes, &split.fit, split.cut_s, &order);
        let model = LifetimeModel::new(lifetimes, &order, &root);
        let held_out = HeldOut { lifetimes, split: &split };
        let arms = held_out.arms(&order, &root);
        Ok(Self { lifetimes, split, order, model, arms })
    }

    /// Scores another model on the same VMs.
    pub fn score(&self, model: &LifetimeModel) -> LifetimeScores {
        let held_out = HeldOut { lifetimes: self.lifetimes, split: &self.split };
        let curve = |row| model.curves().get(model.curve_of(self.lifetimes, row));
        LifetimeScores::of(
            &held_out.scored(|row| curve(row).unwrap_or_else(|| unreachable!("its own curve"))),
        )
    }

    /// Learns the same way from all VMs, the newest too.
    pub fn learn_all(self) -> LifetimeFile {
        let Self { lifetimes, split, order, model: trial, arms } = self;
        let all: Vec<u32> = (0..lifetimes.rows().len() as u32).collect();
        let root = tables::learn(lifetimes, &all, lifetimes.horizon_s(), &order);
        let model = LifetimeModel::new(lifetimes, &order, &root);
        let best = &arms[0];
        let about = LifetimeAbout {
            from_s: lifetimes.rows()[0].start_s,
            cut_s: split.cut_s,
            until_s: lifetimes.horizon_s(),
            cleaned: *lifetimes.cleaned(),
            columns: model.columns().to_vec(),
            curves: model.curves().len() as u64,
            better_than_kaplan_meier: best.gain > SURE * best.gain_error,
            arms,
        };
        LifetimeFile { about, model, trial }
    }
}

struct HeldOut<'a> {
    lifetimes: &'a Lifetimes,
    split: &'a LifetimeSplit,
}

impl<'a> HeldOut<'a> {
    fn arms(&self, order: &[usize], root: &TableCell) -> Vec<LifetimeArm> {
        let all = self.stratum(&self.split.fit);
        let by_all = |_| &all;
        let by_tables = |row| root.curve(self.lifetimes, row, order);
        let base = self.likelihoods(by_all);
        let mut arms =
            vec![self.arm("hazard-tables", by_tables, &base), self.arm("kaplan-meier", by_all, &base)];

        // The column that is best on the hold-out itself: nobody could choose a better one.
        let strata = (0..self.lifetimes.columns().len()).map(|column| {
            let curves = self.strata(column);
            let by_column = |row| curves.get(&self.lifetimes.value(row, column)).unwrap_or(&all);
            (self.likelihoods(by_column).iter().sum::<f64>(), column, curves)
        });
        if let Some((_, column, curves)) = strata.max_by(|a, b| a.0.total_cmp(&b.0)) {
            let name = format!("kaplan-meier by {}", self.lifetimes.columns()[column].name());
            let by_column = |row| curves.get(&self.lifetimes.value(row, column)).unwrap_or(&all);
            arms.push(self.arm(&name, by_column, &base));
        }
        arms
    }

    fn arm<'c>(&self, name: &str, curve: impl Fn(u32) -> &'c SurvivalCurve, base: &[f64]) -> LifetimeArm {
        let groups: Vec<u32> = self.split.held_out.iter().map(|row| self.lifetimes.group(*row)).collect();
        let (gain, gain_error) = gain(&self.likelihoods(&curve), base, &groups);
        LifetimeArm {
            name: name.to_owned(),
            gain,
            gain_error,
            scores: LifetimeScores::of(&self.scored(curve)),
        }
    }

    fn scored<'c>(&self, curve: impl Fn(u32) -> &'c SurvivalCurve) -> Vec<ScoredVm<'c>> {
        let until_s = self.lifetimes.horizon_s();
        let one = |row: &u32| ScoredVm {
            curve: curve(*row),
            span: self.lifetimes.known_by(*row, until_s),
            seen_s: self.lifetimes.seen_s(*row, until_s),
            model_age_s: (self.lifetimes.rows()[*row as usize].start_s - self.split.cut_s) as f32,
        };
        self.split.held_out.iter().map(one).collect()
    }

    fn likelihoods<'c>(&self, curve: impl Fn(u32) -> &'c SurvivalCurve) -> Vec<f64> {
        let until_s = self.lifetimes.horizon_s();
        let one = |row: &u32| log_likelihood(curve(*row), self.lifetimes.known_by(*row, until_s));
        self.split.held_out.iter().map(one).collect()
    }

    fn key(&self, row: u32) -> Vec<u32> {
        (0..self.lifetimes.columns().len()).map(|column| self.lifetimes.value(row, column)).collect()
    }

    /// The curve of each combination of categories.
    fn curves(&self, curve: impl Fn(u32) -> SurvivalCurve) -> BTreeMap<Vec<u32>, SurvivalCurve> {
        let mut curves = BTreeMap::new();
        for row in &self.split.held_out {
            curves.entry(self.key(*row)).or_insert_with(|| curve(*row));
        }
        curves
    }

    /// The estimate of these rows as they were known at the cut.
    fn stratum(&self, rows: &[u32]) -> SurvivalCurve {
        let known = |row: &u32| {
            let span = self.lifetimes.known_by(*row, self.split.cut_s);
            (span.middle_s(), span.ended())
        };
        KaplanMeier::of(rows.iter().map(known)).curve()
    }

    fn strata(&self, column: usize) -> BTreeMap<u32, SurvivalCurve> {
        let mut rows: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for row in &self.split.fit {
            rows.entry(self.lifetimes.value(*row, column)).or_default().push(*row);
        }
        let enough = rows.into_iter().filter(|(_, rows)| rows.len() >= MIN_STRATUM);
        enough.map(|(value, rows)| (value, self.stratum(&rows))).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests;
