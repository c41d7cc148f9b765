//! What rows add up to, and what a split of them is worth.
//!
//! All sums are of whole numbers (fixed point), so they are exact: neither the order of rows, nor threads,
//! nor the subtraction of one child from its parent changes a bit.

/// Sums over rows, such as those of one bin.
pub(crate) trait Sums: Copy + Default + Send + Sync {
    /// What one row adds.
    type Row: Copy + Default + Send + Sync;
    /// What turns the whole numbers into an impurity.
    type Unit: Copy + Send + Sync;

    fn add_row(&mut self, row: Self::Row);
    fn add(&mut self, other: &Self);
    fn subtract(&mut self, other: &Self);
    /// Weight of the rows, in fixed point.
    fn weight(&self) -> i64;
    /// How well one leaf serves these rows: higher is better, and no split makes the sum lower.
    fn score(&self, unit: Self::Unit) -> f64;
    /// Whether no split can be of use.
    fn pure(&self) -> bool;
}

/// One row of a regression or of a boosting round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GradientRow {
    /// Negative gradient times weight: where the score should go.
    pub(crate) gradient: i32,
    /// Second derivative times weight.
    pub(crate) curvature: i32,
    pub(crate) weight: i32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gradients {
    pub(crate) gradient: i64,
    pub(crate) curvature: i64,
    weight: i64,
}

/// What 1 is worth in sums of gradients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GradientUnit {
    pub(crate) gradient: f64,
    pub(crate) curvature: f64,
    /// Added to the sum of curvatures.
    pub(crate) l2: f64,
}

impl Gradients {
    /// The value of a leaf: one Newton step.
    pub(crate) fn step(&self, unit: GradientUnit) -> f64 {
        let curvature = self.curvature as f64 * unit.curvature + unit.l2;
        if curvature > 0.0 { self.gradient as f64 * unit.gradient / curvature } else { 0.0 }
    }
}

impl Sums for Gradients {
    type Row = GradientRow;
    type Unit = GradientUnit;

    fn add_row(&mut self, row: GradientRow) {
        self.gradient += i64::from(row.gradient);
        self.curvature += i64::from(row.curvature);
        self.weight += i64::from(row.weight);
    }

    fn add(&mut self, other: &Self) {
        self.gradient += other.gradient;
        self.curvature += other.curvature;
        self.weight += other.weight;
    }

    fn subtract(&mut self, other: &Self) {
        self.gradient -= other.gradient;
        self.curvature -= other.curvature;
        self.weight -= other.weight;
    }

    fn weight(&self) -> i64 {
        self.weight
    }

    fn score(&self, unit: GradientUnit) -> f64 {
        self.gradient as f64 * unit.gradient * self.step(unit)
    }

    fn pure(&self) -> bool {
        false
    }
}

/// One row of a classification forest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct VoteRow {
    pub(crate) class: u32,
    pub(crate) weight: i32,
}

/// Weight by class. `N` is a power of two, not below the number of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Votes<const N: usize>(pub(crate) [i64; N]);

impl<const N: usize> Default for Votes<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> Sums for Votes<N> {
    type Row = VoteRow;
    /// Weight of 1.
    type Unit = f64;

    fn add_row(&mut self, row: VoteRow) {
        // The mask spares a bounds check.
        self.0[row.class as usize & (N - 1)] += i64::from(row.weight);
    }

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a += b);
    }

    fn subtract(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a -= b);
    }

    fn weight(&self) -> i64 {
        self.0.iter().sum()
    }

    /// The Gini impurity's counterpart: `weight - weight × impurity`.
    fn score(&self, unit: f64) -> f64 {
        let weight = self.weight() as f64;
        let squares: f64 = self.0.iter().map(|n| (*n as f64) * (*n as f64)).sum();
        if weight > 0.0 { squares / weight * unit } else { 0.0 }
    }

    fn pure(&self) -> bool {
        self.0.iter().filter(|n| **n != 0).count() <= 1
    }
}

/// The power of two by which numbers up to `max` fit `bits` bits.
pub(crate) fn fixed_point(max: f64, bits: i32) -> f64 {
    match max > 0.0 && max.is_finite() {
        true => libm::ldexp(1.0, bits - 1 - libm::ilogb(max)),
        false => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_score_is_gini() {
        let votes = Votes::<4>([3, 1, 0, 0]);
        // Gini: 1 - (9 + 1) / 16.
        assert!((votes.score(1.0) - (4.0 - 4.0 * 0.375)).abs() < 1e-12);
        assert_eq!((votes.weight(), votes.pure(), Votes::<4>([0, 2, 0, 0]).pure()), (4, false, true));
        assert_eq!(Votes::<2>::default().score(1.0), 0.0);
    }

    #[test]
    fn a_step_is_newtons() {
        let unit = GradientUnit { gradient: 0.5, curvature: 0.25, l2: 1.0 };
        let mut sums = Gradients::default();
        sums.add_row(GradientRow { gradient: -8, curvature: 4, weight: 1 });
        assert_eq!((sums.step(unit), sums.score(unit)), (-2.0, 8.0));
        assert_eq!(Gradients::default().step(GradientUnit { l2: 0.0, ..unit }), 0.0);
    }

    #[test]
    fn fixed_point_fills_the_bits_and_no_more() {
        for max in [1.0, 0.75, 1.5, 1e-30, 3e38, 1e-45, 1e100] {
            let scaled = max * fixed_point(max, 20);
            assert!((524_288.0..1_048_576.0).contains(&scaled), "{max}: {scaled}");
        }
        assert_eq!((fixed_point(0.0, 20), fixed_point(f64::INFINITY, 20)), (1.0, 1.0));
    }
}
