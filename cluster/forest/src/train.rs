//! What every training needs: its input checked, and errors that say what is wrong.

use crate::sums::fixed_point;
use crate::tree::MAX_DEPTH;
use crate::{FeatureTable, MAX_CLASSES};

/// What a model learns to say about a row.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// Its class.
    Classes {
        /// The class of every row, from 0.
        labels: &'a [u32],
        /// How many there are: 2 to [`MAX_CLASSES`].
        classes: u32,
    },
    /// Its value.
    Values(&'a [f32]),
}

/// How many features are tried at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Features {
    /// All of them.
    All,
    /// So many as the square root of their number, rounded down, at least one; chosen anew for every node.
    Sqrt,
    /// So many, at least one; all where there are not more.
    Count(usize),
}

impl Features {
    /// How many of `all`.
    pub(crate) fn of(self, all: usize) -> usize {
        match self {
            Self::All => all,
            Self::Sqrt => all.isqrt(),
            Self::Count(count) => count,
        }
    }
}

/// Why nothing was trained.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TrainError {
    /// Labels, values or weights are not one for every row.
    #[error("{count} {what} for {rows} rows")]
    Length {
        /// Which of labels, values and weights.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// Rows of the table.
        rows: usize,
    },
    /// A row's label is not below the number of classes.
    #[error("row {row}: class {label}; allowed: 0 to {}", i64::from(*classes) - 1)]
    Label {
        /// Which row, from 0.
        row: usize,
        /// The label that the row has.
        label: u32,
        /// How many classes there are.
        classes: u32,
    },
    /// A row's value is not finite, or its weight is negative or not finite.
    #[error(
        "row {row}: {what} {value}; allowed: finite{}",
        if *what == "weight" { ", not negative" } else { "" }
    )]
    Value {
        /// Whether it is a value or a weight.
        what: &'static str,
        /// Which row, from 0.
        row: usize,
        /// The value or weight of the row.
        value: f32,
    },
    /// A row's group is not below the number of rows.
    #[error("row {row}: group {group}; allowed: 0 to {}", *rows as i64 - 1)]
    Group {
        /// Which row, from 0.
        row: usize,
        /// The group that the row has.
        group: u32,
        /// Rows of the table.
        rows: usize,
    },
    /// No row has any weight, or none is left to learn from.
    #[error("no row with a weight above 0 to learn from")]
    NoRows,
    /// An option is out of its range.
    #[error("{name} = {value}; allowed: {allowed}")]
    Option {
        /// The name of the option.
        name: &'static str,
        /// The value that was given.
        value: f64,
        /// The range of values that are allowed.
        allowed: &'static str,
    },
    /// The model that came out is not sound: a loss of one's own gave numbers that are not finite.
    #[error("training gave no sound model: {0}")]
    Unsound(String),
}

/// Refuses an option that is not within its range.
pub(crate) fn within(
    name: &'static str,
    value: f64,
    range: impl core::ops::RangeBounds<f64>,
    allowed: &'static str,
) -> Result<(), TrainError> {
    match range.contains(&value) {
        true => Ok(()),
        false => Err(TrainError::Option { name, value, allowed }),
    }
}

/// Refuses a number of leaves that no tree can have.
pub(crate) fn check_leaves(leaves: Option<u32>) -> Result<(), TrainError> {
    let most = f64::from(1 << MAX_DEPTH);
    leaves.map_or(Ok(()), |leaves| within("max_leaves", f64::from(leaves), 2.0..=most, "2 to 1048576"))
}

/// Refuses a target that does not fit the table.
pub(crate) fn check_target(table: &FeatureTable, target: Target<'_>) -> Result<(), TrainError> {
    match target {
        Target::Classes { labels, classes } => {
            let range = 2.0..=f64::from(MAX_CLASSES);
            within("classes", f64::from(classes), range, "2 to 32")?;
            check_length("labels", labels.len(), table)?;

            match labels.iter().position(|label| *label >= classes) {
                Some(row) => Err(TrainError::Label { row, label: labels[row], classes }),
                None => Ok(()),
            }
        }
        Target::Values(values) => {
            check_length("values", values.len(), table)?;
            match values.iter().position(|value| !value.is_finite()) {
                Some(row) => Err(TrainError::Value { what: "value", row, value: values[row] }),
                None => Ok(()),
            }
        }
    }
}

/// Refuses groups that are not one for every row, or not numbered below their number.
pub(crate) fn check_groups(table: &FeatureTable, groups: Option<&[u32]>) -> Result<(), TrainError> {
    let Some(groups) = groups else { return Ok(()) };
    check_length("groups", groups.len(), table)?;
    let rows = table.rows();
    match groups.iter().position(|group| *group as usize >= rows) {
        Some(row) => Err(TrainError::Group { row, group: groups[row], rows }),
        None => Ok(()),
    }
}

fn check_length(what: &'static str, count: usize, table: &FeatureTable) -> Result<(), TrainError> {
    match count == table.rows() {
        true => Ok(()),
        false => Err(TrainError::Length { what, count, rows: table.rows() }),
    }
}

/// Weights in fixed point.
pub(crate) struct Weights {
    /// Of every row; 0 where a row does not count.
    pub(crate) rows: Vec<i32>,
    /// What weight 1 is.
    pub(crate) one: f64,
}

impl Weights {
    /// Bits of the largest weight: rows may be drawn many times.
    const BITS: i32 = 20;

    pub(crate) fn new(table: &FeatureTable, weights: Option<&[f32]>) -> Result<Self, TrainError> {
        let Some(weights) = weights else {
            let one = fixed_point(1.0, Self::BITS);
            return Ok(Self { rows: vec![one as i32; table.rows()], one });
        };
        check_length("weights", weights.len(), table)?;
        if let Some(row) = weights.iter().position(|weight: &f32| !(*weight >= 0.0 && weight.is_finite())) {
            return Err(TrainError::Value { what: "weight", row, value: weights[row] });
        }
        let most = weights.iter().copied().fold(0.0, f32::max);
        let one = fixed_point(f64::from(most), Self::BITS);
        let rows: Vec<i32> =
            weights.iter().map(|weight| libm::rint(f64::from(*weight) * one) as i32).collect();
        match rows.iter().any(|weight| *weight > 0) {
            true => Ok(Self { rows, one }),
            false => Err(TrainError::NoRows),
        }
    }

    pub(crate) fn of(&self, row: usize) -> f64 {
        f64::from(self.rows[row]) / self.one
    }

    /// The least weight of a leaf, in fixed point.
    pub(crate) fn min_leaf(&self, min_leaf: u32) -> i64 {
        // A cast of what is too large gives the largest number.
        ((f64::from(min_leaf) * self.one) as i64).max(1)
    }
}
