//! The product-limit estimator: the reference that learns nothing of a VM.
//!
//! E. Kaplan and P. Meier, *Nonparametric estimation from incomplete observations*, JASA 53, 1958.

use ballast_types::survival::{BINS, SurvivalCurve, edge_s};

/// The survival of some VMs, as a step at each time at which one ended.
#[derive(Clone, Debug, PartialEq)]
pub struct KaplanMeier {
    /// When, and which share lived on.
    steps: Vec<(f32, f64)>,
}

impl KaplanMeier {
    /// Of lifetimes in seconds, each with whether it ended then or was last seen then.
    pub fn of(lifetimes: impl IntoIterator<Item = (f32, bool)>) -> Self {
        let mut list: Vec<(f32, bool)> = lifetimes.into_iter().collect();
        list.sort_by(|a, b| a.0.total_cmp(&b.0));

        let (mut steps, mut share, mut there) = (Vec::new(), 1.0, list.len());
        for same in list.chunk_by(|a, b| a.0 == b.0) {
            let ends = same.iter().filter(|(_, ended)| *ended).count();
            if ends > 0 {
                share *= 1.0 - ends as f64 / there as f64;
                steps.push((same[0].0, share));
            }
            there -= same.len();
        }

        Self { steps }
    }

    /// The share that lives longer than this.
    pub fn after(&self, time_s: f32) -> f64 {
        let passed = self.steps.partition_point(|(at, _)| *at <= time_s);
        passed.checked_sub(1).map_or(1.0, |last| self.steps[last].1)
    }

    /// The share that lives at least so long.
    pub fn until(&self, time_s: f32) -> f64 {
        let passed = self.steps.partition_point(|(at, _)| *at < time_s);
        passed.checked_sub(1).map_or(1.0, |last| self.steps[last].1)
    }

    /// The same at the edges of the grid. After the last end it stays where it is.
    pub fn curve(&self) -> SurvivalCurve {
        let hazard = |bin| {
            let (from, to) = (self.until(edge_s(bin)), self.until(edge_s(bin + 1)));
            if from > 0.0 { 1.0 - to / from } else { 0.0 }
        };
        let mut hazards = [0.0; BINS];
        hazards.iter_mut().enumerate().for_each(|(bin, value)| *value = hazard(bin));
        SurvivalCurve::from_hazards(&hazards)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weeks of remission with 6-mercaptopurine: E. Freireich et al., Blood 21, 1963; the example of many textbooks.
    /// Negative: still in remission.
    const WEEKS: [i32; 21] =
        [6, 6, 6, -6, 7, -9, 10, -10, -11, 13, 16, -17, -19, -20, 22, 23, -25, -32, -32, -34, -35];

    #[test]
    fn the_textbook_example() {
        let estimate = KaplanMeier::of(WEEKS.map(|weeks| (weeks.abs() as f32, weeks > 0)));
        let textbook = [
            (5, 1.0),
            (6, 0.857),
            (7, 0.807),
            (10, 0.753),
            (13, 0.690),
            (16, 0.627),
            (22, 0.538),
            (35, 0.448),
        ];
        for (weeks, share) in textbook {
            assert!((estimate.after(weeks as f32) - share).abs() < 5e-4, "{weeks}");
        }
        assert!((estimate.until(6.0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn on_the_grid_it_has_the_same_shares() {
        let hours = WEEKS.map(|weeks| (weeks.abs() as f32 * 3600.0, weeks > 0));
        let (estimate, curve) = (KaplanMeier::of(hours), KaplanMeier::of(hours).curve());
        for bin in 0..=BINS {
            let expected = estimate.until(edge_s(bin));
            assert!((f64::from(curve.shares()[bin]) - expected).abs() < 1e-6, "{bin}");
        }
        assert_eq!(KaplanMeier::of([]).after(1e9), 1.0);
        // All have ended: the curve stays above 0.
        assert!(KaplanMeier::of([(100.0, true)]).curve().at(1e6) > 0.0);
    }
}
