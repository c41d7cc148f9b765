//! Random forests.
//!
//! L. Breiman, *Random forests*, Machine Learning 45, 2001. Every tree learns from rows drawn with
//! replacement and tries some features at every node; the trees' class shares are averaged.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use crate::bins::{Column, bin};
use crate::ensemble::{Link, MAX_TREES, Parts, shares};
use crate::grow::{Entry, Grower, Plan};
use crate::parallel::for_each;
use crate::rng::{Purpose, Stream};
use crate::split::Demands;
use crate::sums::{GradientRow, GradientUnit, Gradients, Sums, VoteRow, Votes, fixed_point};
use crate::train::{Features, Target, TrainError, Weights, check_groups, check_leaves, check_target, within};
use crate::tree::{MAX_DEPTH, Tree};
use crate::{Ensemble, FeatureTable};

/// How a forest is to grow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForestOptions<'a> {
    /// Number of trees, 1 to 100,000; default 100.
    pub trees: u32,
    /// The most questions before an answer, 1 to 20; default 12. Deeper trees are a little better and far
    /// larger: they outgrow the caches, and a row takes ten times as long.
    pub max_depth: u32,
    /// The most leaves of a tree, 2 to 1,048,576: the leaf that gains most is split next. Default: as many as the
    /// depth allows, level by level.
    pub max_leaves: Option<u32>,
    /// The least weight of a leaf; a row without a weight weighs 1. At least 1; default 5.
    pub min_leaf: u32,
    /// How many features are tried at a node; default [`Features::Sqrt`]. Where none of them can split the
    /// node, the others are tried too.
    pub features: Features,
    /// Whether every tree draws rows of its own, with replacement (default), or learns from all.
    pub bootstrap: bool,
    /// The group of every row, numbered below the number of rows; default: each row is one of its own. Rows
    /// of a group are drawn, or not drawn, together: they share what no other row knows.
    pub groups: Option<&'a [u32]>,
}

impl Default for ForestOptions<'_> {
    fn default() -> Self {
        let features = Features::Sqrt;
        Self {
            trees: 100,
            max_depth: 12,
            max_leaves: None,
            min_leaf: 5,
            features,
            bootstrap: true,
            groups: None,
        }
    }
}

/// Trains a random forest: of classes it answers the mean vote shares, of values the mean.
///
/// The same input and seed give the same forest, with however many threads. A row's weight counts as if
/// the row were there so many times, except that it is drawn or not drawn as one; a row of weight 0 only
/// takes part in the choice of bins.
///
/// # Errors
///
/// Options out of range, or a target or weights that do not fit the table.
pub fn train_forest(
    table: &FeatureTable,
    target: Target<'_>,
    weights: Option<&[f32]>,
    options: &ForestOptions<'_>,
    seed: u64,
    threads: NonZeroUsize,
) -> Result<Ensemble, TrainError> {
    Ok(train_forest_out_of_bag(table, target, weights, options, seed, threads)?.0)
}

/// [`train_forest`], and what the trees that did not draw a row say about it: rows × outputs values, `NaN`
/// where all trees drew the row.
///
/// # Errors
///
/// As [`train_forest`].
pub fn train_forest_out_of_bag(
    table: &FeatureTable,
    target: Target<'_>,
    weights: Option<&[f32]>,
    options: &ForestOptions<'_>,
    seed: u64,
    threads: NonZeroUsize,
) -> Result<(Ensemble, Vec<f32>), TrainError> {
    check_target(table, target)?;
    within("trees", f64::from(options.trees), 1.0..=MAX_TREES as f64, "1 to 100000")?;
    within("max_depth", f64::from(options.max_depth), 1.0..=f64::from(MAX_DEPTH), "1 to 20")?;
    check_leaves(options.max_leaves)?;
    within("min_leaf", f64::from(options.min_leaf), 1.0.., "at least 1")?;
    let features = options.features.of(table.columns());
    within("features", features as f64, 1.0.., "at least 1")?;
    check_groups(table, options.groups)?;
    let weights = Weights::new(table, weights)?;
    let columns = bin(table, threads);
    let common = Common { columns: &columns, weights: &weights, options, features, seed, threads };
    let (parts, unseen) = match target {
        Target::Values(values) => common.regress(values),
        Target::Classes { labels, classes } => match classes {
            2 => common.classify::<2>(labels, classes),
            3..=4 => common.classify::<4>(labels, classes),
            5..=8 => common.classify::<8>(labels, classes),
            9..=16 => common.classify::<16>(labels, classes),
            _ => common.classify::<32>(labels, classes),
        },
    };

    let ensemble = Ensemble::try_from(parts).map_err(|e| TrainError::Unsound(e.to_string()))?;

    Ok((ensemble, unseen))
}

/// Bits that a fixed point leaves to the number of times a row is drawn.
const DRAWN_BITS: i32 = 5;

/// The most times a tree draws a row.
const MAX_DRAWN: u8 = (1 << DRAWN_BITS) - 1;

struct Common<'a> {
    columns: &'a [Column],
    weights: &'a Weights,
    options: &'a ForestOptions<'a>,
    features: usize,
    seed: u64,
    threads: NonZeroUsize,
}

/// What differs between classes and values.
struct Kind<'a, S: Sums> {
    /// What a row adds that was drawn with this weight.
    stat: &'a (dyn Fn(usize, i32) -> S::Row + Sync),
    /// Appends a leaf's values.
    leaf: &'a (dyn Fn(&S, &mut Vec<f32>) + Sync),
    unit: S::Unit,
    /// Values of a leaf.
    width: usize,
    /// The largest absolute value of a leaf.
    max: f64,
}

/// What trees said about rows they did not learn from. Whole numbers, for trees end in any order.
struct Unseen {
    sums: Vec<i64>,
    trees: Vec<u32>,
}

impl Common<'_> {
    fn classify<const N: usize>(&self, labels: &[u32], classes: u32) -> (Parts, Vec<f32>) {
        let width = if classes == 2 { 1 } else { classes as usize };
        let stat = |row: usize, weight| VoteRow { class: labels[row], weight };
        let leaf = |votes: &Votes<N>, values: &mut Vec<f32>| {
            let weight = votes.weight() as f64;
            let shares = &votes.0[usize::from(classes == 2)..classes as usize];
            values.extend(shares.iter().map(|votes| (*votes as f64 / weight) as f32));
        };

        let unit = 1.0 / self.weights.one;
        let kind = Kind { stat: &stat, leaf: &leaf, unit, width, max: 1.0 };
        let (mut parts, shares) = self.train(&kind);
        parts.outputs = classes;
        let unseen: Vec<f32> = match width {
            1 => shares.iter().flat_map(|share| [1.0 - share, *share]).collect(),
            _ => shares,
        };

        let loss = |row: usize, shares: &[f32]| {
            -libm::log(f64::from(shares[labels[row] as usize]).max(crate::score::MIN_SHARE))
        };
        parts.unseen_loss = self.mean_loss(&unseen, classes as usize, loss);

        (parts, unseen)
    }

    fn regress(&self, values: &[f32]) -> (Parts, Vec<f32>) {
        let one = self.weights.one;
        let counted = || (0..values.len()).filter(|row| self.weights.rows[*row] > 0);
        let weight: f64 = counted().map(|row| self.weights.of(row)).sum();
        let mean = counted().map(|row| self.weights.of(row) * f64::from(values[row])).sum::<f64>() / weight;
        // A row's deviation times its weight, with room for rows that are drawn many times.
        let most = counted().map(|row| (f64::from(values[row]) - mean).abs() * self.weights.of(row));
        let scale = fixed_point(most.fold(0.0, f64::max), 31 - DRAWN_BITS);
        let stat = |row: usize, weight: i32| {
            let deviation = (f64::from(values[row]) - mean) * (f64::from(weight) / one);
            let gradient = libm::rint(deviation * scale) as i32;
            GradientRow { gradient, curvature: weight, weight }
        };

        let unit = GradientUnit { gradient: 1.0 / scale, curvature: 1.0 / one, l2: 0.0 };
        let leaf = |sums: &Gradients, values: &mut Vec<f32>| values.push((mean + sums.step(unit)) as f32);
        let most = values.iter().fold(0.0, |most: f64, value| most.max(f64::from(value.abs())));
        let kind = Kind { stat: &stat, leaf: &leaf, unit, width: 1, max: most };
        let (mut parts, unseen) = self.train(&kind);
        let loss = |row: usize, answer: &[f32]| {
            let error = f64::from(answer[0]) - f64::from(values[row]);
            error * error
        };

        parts.unseen_loss = self.mean_loss(&unseen, 1, loss);

        (parts, unseen)
    }

    /// All trees, and what they said about rows they had not drawn.
    fn train<S: Sums>(&self, kind: &Kind<'_, S>) -> (Parts, Vec<f32>) {
        let rows = self.weights.rows.len();
        let mut trees = vec![(Tree::default(), Vec::new()); self.options.trees as usize];
        let nothing = || Unseen { sums: vec![0; rows * kind.width], trees: vec![0; rows] };
        let scale = fixed_point(kind.max, 40);

        // One for each thread that has ever been at work at the same time.
        let idle: Mutex<Vec<(Grower<'_, S>, Unseen)>> = Mutex::new(Vec::new());
        let lock = || idle.lock().unwrap_or_else(PoisonError::into_inner);
        for_each(trees.iter_mut().enumerate(), self.threads, |(number, tree)| {
            let taken = lock().pop();
            let (mut grower, mut unseen) = taken.unwrap_or_else(|| (Grower::new(self.columns), nothing()));
            *tree = self.one(kind, number as u64, &mut grower, &mut unseen, scale);
            lock().push((grower, unseen));
        });

        let mut idle = idle.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter();
        let mut unseen = idle.next().map_or_else(nothing, |(_, unseen)| unseen);

        for (_, other) in idle {
            unseen.sums.iter_mut().zip(other.sums).for_each(|(a, b)| *a += b);
            unseen.trees.iter_mut().zip(other.trees).for_each(|(a, b)| *a += b);
        }

        let mut gains = vec![0.0; self.columns.len()];

        for (_, tree) in &trees {
            gains.iter_mut().zip(tree).for_each(|(sum, gain)| *sum += gain);
        }
        let parts = Parts {
            features: self.columns.len() as u32,
            outputs: 1,
            link: Link::Mean,
            start: Vec::new(),
            gains: shares(&gains),
            unseen_loss: None,
            trees: trees.into_iter().map(|(tree, _)| tree).collect(),
        };

        let mean = |(sum, trees): (&i64, u32)| (*sum as f64 / (f64::from(trees) * scale)) as f32;
        let counts = unseen.trees.iter().flat_map(|n| core::iter::repeat_n(*n, kind.width));

        (parts, unseen.sums.iter().zip(counts).map(mean).collect())
    }

    /// One tree, and the gains of its features.
    fn one<S: Sums>(
        &self,
        kind: &Kind<'_, S>,
        number: u64,
        grower: &mut Grower<'_, S>,
        unseen: &mut Unseen,
        scale: f64,
    ) -> (Tree, Vec<f64>) {
        let weights = &self.weights.rows;
        let counts = self.draw(number);
        let drawn = |row: usize| counts[row] > 0 && weights[row] > 0;
        let entry = |row: usize| Entry {
            row: row as u32,
            stat: (kind.stat)(row, weights[row] * i32::from(counts[row])),
        };

        let mut entries: Vec<_> = (0..weights.len()).filter(|row| drawn(*row)).map(entry).collect();
        let min_leaf = self.weights.min_leaf(self.options.min_leaf);
        let plan = Plan {
            max_depth: self.options.max_depth,
            max_leaves: self.options.max_leaves,
            demands: Demands { unit: kind.unit, min_leaf, min_gain: 0.0 },
            features: self.features,
            chance: Stream::new(self.seed, Purpose::Features, number, 0),
            // The other threads grow other trees.
            threads: NonZeroUsize::MIN,
        };

        let mut grown = grower.grow(&mut entries, plan);
        let mut values = Vec::with_capacity(grown.leaves.len() * kind.width);
        grown.leaves.iter().for_each(|(_, sums)| (kind.leaf)(sums, &mut values));
        grown.tree.values = values;

        for row in (0..weights.len()).filter(|row| counts[*row] == 0) {
            let leaf = grown.tree.leaf(&grown.bins, self.columns, row);
            let said = &grown.tree.values[leaf * kind.width..][..kind.width];
            let sums = &mut unseen.sums[row * kind.width..][..kind.width];
            let fixed = |value: f32| libm::rint(f64::from(value) * scale) as i64;
            sums.iter_mut().zip(said).for_each(|(sum, value)| *sum += fixed(*value));
            unseen.trees[row] += 1;
        }

        (grown.tree, grown.gains)
    }

    /// How often a tree draws each row. One that has no weight is not drawn.
    fn draw(&self, number: u64) -> Vec<u8> {
        let rows = self.weights.rows.len();
        if !self.options.bootstrap {
            return vec![1; rows];
        }
        let units = self
            .options
            .groups
            .map_or(rows, |groups| groups.iter().max().map_or(0, |last| *last as usize + 1));
        let mut counts = vec![0u8; units];
        let mut chance = Stream::new(self.seed, Purpose::Bootstrap, number, 0);
        for _ in 0..units {
            let unit = chance.below(units as u32) as usize;
            // Hardly ever reached: of 2³² rows one is drawn so often with a chance of 10⁻²⁶.
            counts[unit] = (counts[unit] + 1).min(MAX_DRAWN);
        }
        match self.options.groups {
            None => counts,
            Some(groups) => groups.iter().map(|group| counts[*group as usize]).collect(),
        }
    }

    /// The weighted mean of a loss over rows about which any tree could say something.
    fn mean_loss(&self, unseen: &[f32], outputs: usize, loss: impl Fn(usize, &[f32]) -> f64) -> Option<f32> {
        let (mut sum, mut weights) = (0.0, 0.0);
        for (row, answer) in unseen.chunks(outputs).enumerate().filter(|(_, a)| !a[0].is_nan()) {
            sum += self.weights.of(row) * loss(row, answer);
            weights += self.weights.of(row);
        }
        (weights > 0.0).then_some(((sum / weights) as f32).min(f32::MAX))
    }
}
