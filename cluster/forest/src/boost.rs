//! Gradient boosting, second order.
//!
//! J. Friedman, *Greedy function approximation: a gradient boosting machine*, Annals of Statistics 29, 2001;
//! the gain and the leaf's Newton step as in T. Chen and C. Guestrin, *XGBoost*, KDD 2016, section 2.2.

use std::num::NonZeroUsize;

use crate::bins::{Column, bin};
use crate::ensemble::{MAX_TREES, Parts, shares};
use crate::grow::{Entry, Grower, Grown, Plan};
use crate::loss::{Gradient, Logistic, Loss, Softmax, Squared};
use crate::parallel::for_each;
use crate::rng::{Purpose, Stream};
use crate::split::Demands;
use crate::sums::{GradientRow, GradientUnit, Gradients, fixed_point};
use crate::train::{Features, Target, TrainError, Weights, check_groups, check_leaves, check_target, within};
use crate::tree::{MAX_DEPTH, Tree};
use crate::{Ensemble, FeatureTable, MAX_CLASSES};

/// How boosting is to go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoostOptions<'a> {
    /// The most rounds, 0 to 100,000 (trees altogether); one tree for every score in each. Default 100.
    pub rounds: u32,
    /// The most questions of a tree, 1 to 20; default 6.
    pub max_depth: u32,
    /// The most leaves of a tree, 2 to 1,048,576: the leaf that gains most is split next. Default: as many as the
    /// depth allows, level by level.
    pub max_leaves: Option<u32>,
    /// How much of a step is taken, above 0, at most 1; default 0.1.
    pub learning_rate: f32,
    /// Added to the second derivatives of a leaf, at least 0; default 1.
    pub l2: f32,
    /// The least weight of a leaf; a row without a weight weighs 1. At least 1; default 20.
    pub min_leaf: u32,
    /// A split must lower the loss by more than half of this; at least 0 (default).
    pub min_gain: f32,
    /// The share of rows that every round learns from, above 0, at most 1 (default).
    pub subsample: f32,
    /// How many features are tried at a node; default [`Features::All`].
    pub features: Features,
    /// When to stop before the last round; default never.
    pub early_stopping: Option<EarlyStopping>,
    /// The group of every row, numbered below the number of rows; default: each row is one of its own. Rows
    /// of a group are held out, or not held out, together.
    pub groups: Option<&'a [u32]>,
}

/// Training ends where rows that are held out gain nothing more, and keeps the rounds up to the best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EarlyStopping {
    /// The share of rows held out, drawn by the seed: above 0, below 1.
    pub hold_out: f32,
    /// So many rounds without a better loss end the training; at least 1.
    pub patience: u32,
}

impl Default for BoostOptions<'_> {
    fn default() -> Self {
        Self {
            rounds: 100,
            max_depth: 6,
            max_leaves: None,
            learning_rate: 0.1,
            l2: 1.0,
            min_leaf: 20,
            min_gain: 0.0,
            subsample: 1.0,
            features: Features::All,
            early_stopping: None,
            groups: None,
        }
    }
}

impl BoostOptions<'_> {
    fn check(&self, features: usize) -> Result<(), TrainError> {
        within("rounds", f64::from(self.rounds), 0.0..=MAX_TREES as f64, "0 to 100000")?;
        within("max_depth", f64::from(self.max_depth), 1.0..=f64::from(MAX_DEPTH), "1 to 20")?;
        check_leaves(self.max_leaves)?;
        let (above_0, rate) = (f64::MIN_POSITIVE, f64::from(self.learning_rate));
        within("learning_rate", rate, above_0..=1.0, "above 0, at most 1")?;
        within("l2", f64::from(self.l2), 0.0..=f64::from(f32::MAX), "finite, at least 0")?;
        within("min_leaf", f64::from(self.min_leaf), 1.0.., "at least 1")?;
        let gain = f64::from(self.min_gain);
        within("min_gain", gain, 0.0..=f64::from(f32::MAX), "finite, at least 0")?;
        within("subsample", f64::from(self.subsample), above_0..=1.0, "above 0, at most 1")?;
        within("features", self.features.of(features) as f64, 1.0.., "at least 1")?;
        if let Some(EarlyStopping { hold_out, patience }) = self.early_stopping {
            within("hold_out", f64::from(hold_out), above_0..1.0, "above 0, below 1")?;
            within("patience", f64::from(patience), 1.0.., "at least 1")?;
        }
        Ok(())
    }
}

/// Trains a boosted ensemble: of two classes with the logistic loss, of more with softmax, of values with
/// the squared error.
///
/// The same input and seed give the same ensemble, with however many threads. A row's weight counts as if
/// the row were there so many times; a row of weight 0 only takes part in the choice of bins.
///
/// # Errors
///
/// Options out of range, or a target or weights that do not fit the table.
pub fn train_boosted(
    table: &FeatureTable,
    target: Target<'_>,
    weights: Option<&[f32]>,
    options: &BoostOptions<'_>,
    seed: u64,
    threads: NonZeroUsize,
) -> Result<Ensemble, TrainError> {
    check_target(table, target)?;
    let run = |loss: &dyn Loss| train_with_loss(table, loss, weights, options, seed, threads);
    match target {
        Target::Values(values) => run(&Squared(values)),
        Target::Classes { labels, classes: 2 } => run(&Logistic(labels)),
        Target::Classes { labels, classes } => run(&Softmax { labels, classes: classes as usize }),
    }
}

/// [`train_boosted`] with a loss of one's own.
///
/// # Errors
///
/// As [`train_boosted`]; and a loss that gives numbers that are not finite, or a wrong number of outputs.
pub fn train_with_loss(
    table: &FeatureTable,
    loss: &dyn Loss,
    weights: Option<&[f32]>,
    options: &BoostOptions<'_>,
    seed: u64,
    threads: NonZeroUsize,
) -> Result<Ensemble, TrainError> {
    options.check(table.columns())?;
    let outputs = loss.outputs();
    within("outputs", outputs as f64, 1.0..=f64::from(MAX_CLASSES), "1 to 32")?;
    let trees = f64::from(options.rounds) * outputs as f64;
    within("rounds", trees, 0.0..=MAX_TREES as f64, "at most 100000 trees")?;
    check_groups(table, options.groups)?;
    let weights = Weights::new(table, weights)?;
    let columns = bin(table, threads);
    let (learnt, unseen) = hold_out(&weights, options, seed)?;
    let start = loss.start(&mut learnt.iter().map(|&row| (row as usize, weights.of(row as usize) as f32)));

    if start.len() != outputs || !start.iter().all(|value| value.is_finite()) {
        let error = format!("start values {start:?}; allowed: {outputs}, finite");
        return Err(TrainError::Unsound(error));
    }

    let scores = start.repeat(table.rows());
    let mut training = Training {
        columns: &columns,
        loss,
        weights: &weights,
        options,
        outputs,
        learnt,
        unseen,
        scores,
        seed,
        threads,
    };

    let Run { trees, gains, unseen_loss } = training.run()?;
    let parts = Parts {
        features: table.columns() as u32,
        outputs: match loss.link() {
            crate::Link::Logistic => 2,
            _ => outputs as u32,
        },
        link: loss.link(),
        start,
        gains: shares(&gains),
        unseen_loss: unseen_loss.map(|loss| (loss as f32).min(f32::MAX)),
        trees,
    };

    Ensemble::try_from(parts).map_err(|error| TrainError::Unsound(error.to_string()))
}

/// The rows to learn from, and those that are held out.
fn hold_out(
    weights: &Weights,
    options: &BoostOptions<'_>,
    seed: u64,
) -> Result<(Vec<u32>, Vec<u32>), TrainError> {
    let share = options.early_stopping.map_or(0.0, |stop| f64::from(stop.hold_out));
    let mut chance = Stream::new(seed, Purpose::HoldOut, 0, 0);

    // A group has the number of a row at most.
    let held_out: Vec<bool> = weights.rows.iter().map(|_| share > 0.0 && chance.uniform() < share).collect();
    let weighed = (0..weights.rows.len()).filter(|&row| weights.rows[row] > 0);
    let (unseen, learnt): (Vec<u32>, _) = weighed.map(|row| row as u32).partition(|&row| {
        held_out[options.groups.map_or(row as usize, |groups| groups[row as usize] as usize)]
    });

    if learnt.is_empty() || (share > 0.0 && unseen.is_empty()) {
        return Err(TrainError::NoRows);
    }

    Ok((learnt, unseen))
}

struct Training<'a> {
    columns: &'a [Column],
    loss: &'a dyn Loss,
    weights: &'a Weights,
    options: &'a BoostOptions<'a>,
    outputs: usize,
    /// Rows that are learnt from, and those that are held out, each in order.
    learnt: Vec<u32>,
    unseen: Vec<u32>,
    /// Of every row, one for every output.
    scores: Vec<f32>,
    seed: u64,
    threads: NonZeroUsize,
}

struct Run {
    trees: Vec<Tree>,
    gains: Vec<f64>,
    /// Of held-out rows, after the best round.
    unseen_loss: Option<f64>,
}

/// Rows that one thread takes at a time.
const CHUNK: usize = 4096;

impl Training<'_> {
    fn run(&mut self) -> Result<Run, TrainError> {
        let mut grower = Grower::new(self.columns);
        let mut rounds: Vec<Vec<(Tree, Vec<f64>)>> = Vec::new();
        let mut best = self.unseen_loss().map(|loss| (loss, 0));

        for round in 0..self.options.rounds {
            let grown = self.round(&mut grower, u64::from(round))?;

            // Where no score found a split in all rows, no later round will.
            let done = grown.iter().all(|(tree, _)| tree.splits.is_empty()) && self.options.subsample == 1.0;
            rounds.push(grown);

            if let (Some((least, at)), Some(loss)) = (&mut best, self.unseen_loss()) {
                if loss < *least {
                    (*least, *at) = (loss, rounds.len());
                }
                let patience = self.options.early_stopping.map_or(u32::MAX, |stop| stop.patience);
                if rounds.len() - *at >= patience as usize {
                    break;
                }
            }

            if done && self.options.features == Features::All {
                break;
            }
        }

        if let Some((_, at)) = best {
            rounds.truncate(at);
        }
        let mut gains = vec![0.0; self.columns.len()];
        let mut trees = Vec::new();

        for (tree, gained) in rounds.into_iter().flatten() {
            gains.iter_mut().zip(gained).for_each(|(sum, gain)| *sum += gain);
            trees.push(tree);
        }

        Ok(Run { trees, gains, unseen_loss: best.map(|(loss, _)| loss) })
    }

    /// The trees of one round, one for every output; scores move on.
    fn round(
        &mut self,
        grower: &mut Grower<'_, Gradients>,
        round: u64,
    ) -> Result<Vec<(Tree, Vec<f64>)>, TrainError> {
        let mut chance = Stream::new(self.seed, Purpose::Subsample, round, 0);
        let share = f64::from(self.options.subsample);
        let taken: Vec<u32> =
            self.learnt.iter().copied().filter(|_| share >= 1.0 || chance.uniform() < share).collect();
        let gradients = self.gradients(&taken);
        let mut grown = Vec::new();

        for output in 0..self.outputs {
            let (mut entries, unit) = self.entries(&taken, &gradients, output)?;
            let plan = Plan {
                max_depth: self.options.max_depth,
                max_leaves: self.options.max_leaves,
                demands: Demands {
                    unit,
                    min_leaf: self.weights.min_leaf(self.options.min_leaf),
                    min_gain: f64::from(self.options.min_gain),
                },
                features: self.options.features.of(self.columns.len()),
                chance: Stream::new(self.seed, Purpose::Features, round, output as u64),
                threads: self.threads,
            };

            let mut tree = grower.grow(&mut entries, plan);
            let rate = f64::from(self.options.learning_rate);
            let value = |sums: &Gradients| (rate * sums.step(unit)) as f32;
            tree.tree.values = tree.leaves.iter().map(|(_, sums)| value(sums)).collect();
            self.move_on(&tree, &entries, taken.len() < self.learnt.len(), output);
            grown.push((tree.tree, tree.gains));
        }

        Ok(grown)
    }

    /// Derivatives by every score of these rows, for weight 1.
    fn gradients(&self, rows: &[u32]) -> Vec<Gradient> {
        let mut gradients = vec![Gradient::default(); rows.len() * self.outputs];
        let chunks = gradients.chunks_mut(CHUNK * self.outputs).zip(rows.chunks(CHUNK));
        for_each(chunks, self.threads, |(out, rows)| {
            for (out, row) in out.chunks_exact_mut(self.outputs).zip(rows) {
                let row = *row as usize;
                self.loss.gradients(row, self.scores_of(row), out);
            }
        });
        gradients
    }

    fn scores_of(&self, row: usize) -> &[f32] {
        &self.scores[row * self.outputs..][..self.outputs]
    }

    /// What a tree for one output learns from.
    fn entries(
        &self,
        rows: &[u32],
        gradients: &[Gradient],
        output: usize,
    ) -> Result<(Vec<Entry<GradientRow>>, GradientUnit), TrainError> {
        let own = || gradients.iter().skip(output).step_by(self.outputs);
        let weighted = || {
            let weights = rows.iter().map(|row| self.weights.of(*row as usize));
            own().zip(weights).map(|(g, w)| (f64::from(g.first) * w, f64::from(g.second).max(0.0) * w))
        };

        let (mut first, mut second) = (0.0, 0.0);

        for (a, b) in weighted() {
            if !(a.is_finite() && b.is_finite()) {
                let error = format!("derivatives {a}, {b}; allowed: finite");
                return Err(TrainError::Unsound(error));
            }

            first = f64::max(first, a.abs());
            second = f64::max(second, b);
        }

        let (first, second) = (fixed_point(first, 30), fixed_point(second, 30));
        let entry = |(row, (a, b)): (&u32, (f64, f64))| {
            let stat = GradientRow {
                gradient: libm::rint(-a * first) as i32,
                curvature: libm::rint(b * second) as i32,
                weight: self.weights.rows[*row as usize],
            };

            Entry { row: *row, stat }
        };

        let entries = rows.iter().zip(weighted()).map(entry).collect();
        let l2 = f64::from(self.options.l2);

        Ok((entries, GradientUnit { gradient: 1.0 / first, curvature: 1.0 / second, l2 }))
    }

    /// Adds a tree to the scores: rows it learnt from lie leaf by leaf, others are walked.
    fn move_on(
        &mut self,
        grown: &Grown<Gradients>,
        entries: &[Entry<GradientRow>],
        sampled: bool,
        output: usize,
    ) {
        let outputs = self.outputs;
        let values = &grown.tree.values;
        if sampled {
            let rows = self.learnt.iter().chain(&self.unseen);
            for row in rows.map(|row| *row as usize) {
                let leaf = grown.tree.leaf(&grown.bins, self.columns, row);
                self.scores[row * outputs + output] += values[leaf];
            }

            return;
        }

        for ((range, _), value) in grown.leaves.iter().zip(values) {
            for entry in &entries[range.clone()] {
                self.scores[entry.row as usize * outputs + output] += value;
            }
        }

        for row in self.unseen.iter().map(|row| *row as usize) {
            let leaf = grown.tree.leaf(&grown.bins, self.columns, row);
            self.scores[row * outputs + output] += values[leaf];
        }
    }

    /// The mean loss of rows that are held out; `None` where none is.
    fn unseen_loss(&self) -> Option<f64> {
        let mut sums = vec![(0.0, 0.0); self.unseen.len().div_ceil(CHUNK)];
        for_each(sums.iter_mut().zip(self.unseen.chunks(CHUNK)), self.threads, |(sum, rows)| {
            for row in rows.iter().map(|row| *row as usize) {
                let weight = self.weights.of(row);
                sum.0 += weight * self.loss.loss(row, self.scores_of(row));
                sum.1 += weight;
            }
        });
        let (loss, weight) = sums.iter().fold((0.0, 0.0), |all, sum| (all.0 + sum.0, all.1 + sum.1));
        (weight > 0.0).then(|| loss / weight)
    }
}
