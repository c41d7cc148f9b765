//! A trained model.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use crate::parallel::for_each;
use crate::table::MAX_FEATURES;
use crate::tree::Tree;
use crate::walk::Walk;
use crate::{FeatureTable, TableError};

/// The most classes a model can tell apart.
pub const MAX_CLASSES: u32 = 32;

/// The most trees of a model.
pub const MAX_TREES: usize = 100_000;

/// How the sums over trees become an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// The mean over the trees: vote shares of a classification forest, or its value.
    Mean,
    /// The sum itself: one value for every output.
    Identity,
    /// The logistic function of the sum: probabilities of two classes.
    Logistic,
    /// Softmax of one sum for every class: their probabilities.
    Softmax,
}

/// A random forest or a boosted ensemble: answers class probabilities, or values.
///
/// It is written and read with serde. Reading checks everything: what is damaged is an error.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct Ensemble {
    parts: Parts,
    walk: Walk,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parts {
    pub(crate) features: u32,
    pub(crate) outputs: u32,
    pub(crate) link: Link,
    /// Where the sums begin; none for [`Link::Mean`].
    pub(crate) start: Vec<f32>,
    /// Every feature's share of what all splits have gained.
    pub(crate) gains: Vec<f32>,
    pub(crate) unseen_loss: Option<f32>,
    pub(crate) trees: Vec<Tree>,
}

/// Why stored data is not an [`Ensemble`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a damaged model: {0}")]
pub struct DamagedModel(String);

impl Parts {
    /// Values of a tree's leaf.
    fn width(&self) -> usize {
        match self.link {
            // Of two classes the share of the second says all.
            Link::Mean if self.outputs > 2 => self.outputs as usize,
            _ => 1,
        }
    }

    /// Sums that are kept for a row.
    fn sums(&self) -> usize {
        match self.link {
            Link::Mean => self.width(),
            Link::Logistic => 1,
            Link::Identity | Link::Softmax => self.outputs as usize,
        }
    }

    fn check(&self) -> Result<(), String> {
        let Self { features, outputs, link, start, gains, unseen_loss, trees } = self;
        let within = |name, value: usize, least, most| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(format!("{name} = {value}; allowed: {least} to {most}")),
        };

        within("features", *features as usize, 1, MAX_FEATURES)?;
        let (least, most) = match link {
            Link::Mean | Link::Identity => (1, MAX_CLASSES),
            Link::Logistic => (2, 2),
            Link::Softmax => (2, MAX_CLASSES),
        };

        within("outputs", *outputs as usize, least, most as usize)?;
        let starts = if *link == Link::Mean { 0 } else { self.sums() };
        within("start values", start.len(), starts, starts)?;
        within("gains", gains.len(), *features as usize, *features as usize)?;
        within("trees", trees.len(), usize::from(*link == Link::Mean), MAX_TREES)?;

        if trees.len() % (self.sums() / self.width()) != 0 {
            return Err(format!("{} trees are no whole rounds", trees.len()));
        }
        if !start.iter().chain(unseen_loss).all(|value| value.is_finite()) {
            return Err("a start value or loss that is not finite".into());
        }
        if !gains.iter().all(|share| (0.0..=1.0).contains(share)) {
            return Err("gains that are no shares of one".into());
        }
        let mut nodes = 1;

        for (number, tree) in trees.iter().enumerate() {
            let sound = tree.depth(*features as usize, self.width());
            sound.map_err(|error| format!("tree {number}: {error}"))?;
            if *link == Link::Mean && *outputs > 1 {
                let shares = tree.values.iter().all(|share| (0.0..=1.0).contains(share));
                let all_one = |leaf: &[f32]| (leaf.iter().sum::<f32>() - 1.0).abs() < 1e-3;
                if !shares || (self.width() > 1 && !tree.values.chunks(self.width()).all(all_one)) {
                    return Err(format!("tree {number}: votes that are no shares of one"));
                }
            }

            nodes += tree.splits.len() * 2 + 1;
        }

        within("nodes", nodes, 1, u32::MAX as usize)
    }
}

/// Every feature's share of all gains; all 0 where nothing was gained.
pub(crate) fn shares(gains: &[f64]) -> Vec<f32> {
    let all: f64 = gains.iter().sum();
    gains.iter().map(|gain| if all > 0.0 { (gain / all) as f32 } else { 0.0 }).collect()
}

impl TryFrom<Parts> for Ensemble {
    type Error = DamagedModel;

    fn try_from(parts: Parts) -> Result<Self, DamagedModel> {
        parts.check().map_err(DamagedModel)?;
        let walk = Walk::new(&parts.trees, parts.features as usize, parts.sums(), parts.width());
        Ok(Self { parts, walk })
    }
}

impl From<Ensemble> for Parts {
    fn from(ensemble: Ensemble) -> Self {
        ensemble.parts
    }
}

impl PartialEq for Ensemble {
    fn eq(&self, other: &Self) -> bool {
        self.parts == other.parts
    }
}

impl Ensemble {
    /// What is said about one row, into `out`: the probabilities of all classes, or the value.
    ///
    /// Missing values are `NaN`. Nothing is allocated.
    ///
    /// # Panics
    ///
    /// `row` has not [`Ensemble::features`] values, or `out` has not room for exactly [`Ensemble::outputs`].
    pub fn predict(&self, row: &[f32], out: &mut [f32]) {
        assert_eq!(row.len(), self.features(), "one value for every feature");
        assert_eq!(out.len(), self.outputs(), "room for every output");
        let mut sums = [0.0; MAX_CLASSES as usize];
        let sums = &mut sums[..self.parts.sums()];
        sums.iter_mut().zip(&self.parts.start).for_each(|(sum, start)| *sum = f64::from(*start));
        self.walk.add(row, sums);

        if self.parts.link == Link::Mean {
            let trees = self.parts.trees.len() as f64;
            sums.iter_mut().for_each(|sum| *sum /= trees);
        }

        match (self.parts.link, &mut *out) {
            (Link::Mean, [zero, one]) => (*zero, *one) = ((1.0 - sums[0]) as f32, sums[0] as f32),
            (Link::Logistic, [zero, one]) => {
                let share = crate::loss::logistic(sums[0]);
                (*zero, *one) = ((1.0 - share) as f32, share as f32);
            }
            (Link::Softmax, out) => crate::loss::softmax(sums, out),
            (_, out) => out.iter_mut().zip(sums).for_each(|(out, sum)| *out = *sum as f32),
        }
    }

    /// [`Ensemble::predict`] of every row, one after the other: rows × outputs values.
    ///
    /// # Errors
    ///
    /// The table has another number of columns than the model has features.
    pub fn predict_all(&self, table: &FeatureTable, threads: NonZeroUsize) -> Result<Vec<f32>, TableError> {
        if table.columns() != self.features() {
            let (columns, features) = (table.columns(), self.features());
            return Err(TableError::Features { columns, features });
        }

        let outputs = self.outputs();
        let mut all = vec![0.0; table.rows() * outputs];
        const CHUNK: usize = 1024;
        for_each(all.chunks_mut(CHUNK * outputs).enumerate(), threads, |(chunk, out)| {
            let mut row = vec![0.0; table.columns()];
            for (n, out) in out.chunks_mut(outputs).enumerate() {
                table.read_row(chunk * CHUNK + n, &mut row);
                self.predict(&row, out);
            }
        });

        Ok(all)
    }

    /// How many numbers an answer has: the number of classes, or one for every value.
    pub fn outputs(&self) -> usize {
        self.parts.outputs as usize
    }

    /// How many features a row has.
    pub fn features(&self) -> usize {
        self.parts.features as usize
    }

    /// How many trees there are.
    pub fn trees(&self) -> usize {
        self.parts.trees.len()
    }

    /// Every feature's share of what all splits gained on the training rows: adds up to 1, or is all 0 where
    /// no tree has a split.
    pub fn importance(&self) -> Vec<f64> {
        self.parts.gains.iter().map(|share| f64::from(*share)).collect()
    }

    /// The mean loss on rows that were not learnt from: out of bag (forest), or held out for early stopping
    /// (boosting). Log-loss in nats for classes, squared error for values, or the loss boosted by. `None`
    /// where every row was learnt from.
    pub fn unseen_loss(&self) -> Option<f64> {
        self.parts.unseen_loss.map(f64::from)
    }
}
