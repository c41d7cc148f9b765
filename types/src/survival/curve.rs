//! One survival curve.

use serde::{Deserialize, Serialize};

use super::grid::{BINS, EDGES, HORIZON_S, bin_of, edge_s};

/// No uptime or lifetime counts as longer: ten years.
const FAR_S: f32 = 315_360_000.0;
/// Below this share nobody has seen enough VMs: a curve then falls no faster than 1/t.
const FLOOR: f64 = 1e-6;
/// The tail beyond the grid falls no faster than t to this power.
const STEEPEST: f64 = 8.0;

/// The share of VMs that live at least so long, at each edge of the grid: 1 at the first, never rising, never 0.
///
/// Within a bin the share falls linearly. Beyond the grid it goes on as in the last bin, as a power of the uptime.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<f32>", into = "Vec<f32>")]
pub struct SurvivalCurve {
    shares: [f32; EDGES],
}

/// Why values are no survival curve.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("no survival curve: {0}")]
pub struct CurveError(String);

impl CurveError {
    pub(super) fn repeated(number: usize, first: usize) -> Self {
        Self(format!("curve {number} is curve {first} again"))
    }
}

impl SurvivalCurve {
    /// The curve of these hazards: of the VMs that live at the beginning of a bin, which share ends in it.
    ///
    /// A hazard outside 0 to 1 counts as the nearer end, and NaN as 0. A curve never reaches 0: below one in a million
    /// a share falls no faster than 1/t, so that a VM which outlives every other has a remaining lifetime.
    pub fn from_hazards(hazards: &[f64; BINS]) -> Self {
        let mut shares = [1.0; EDGES];
        let mut share = 1.0_f64;
        for (bin, hazard) in hazards.iter().enumerate() {
            let lived = f64::from(edge_s(bin).max(edge_s(1) / 2.0) / edge_s(bin + 1));
            let least = share.min(FLOOR) * lived;
            let ends = if hazard.is_nan() { 0.0 } else { hazard.clamp(0.0, 1.0) };
            share = (share * (1.0 - ends)).max(least);
            shares[bin + 1] = share as f32;
        }

        Self { shares }
    }

    /// The shares at the edges of the grid.
    pub fn shares(&self) -> &[f32; EDGES] {
        &self.shares
    }

    /// The share of VMs that live at least so long; above 0, at most 1.
    pub fn at(&self, uptime_s: f32) -> f32 {
        let uptime_s = bounded(uptime_s);
        let bin = bin_of(uptime_s);
        if bin == BINS {
            let beyond = f64::from(edge_s(BINS) / uptime_s);
            return (f64::from(self.shares[BINS]) * libm::pow(beyond, self.tail())) as f32;
        }

        let (from, to) = (self.shares[bin], self.shares[bin + 1]);
        let within = (uptime_s - edge_s(bin)) / (edge_s(bin + 1) - edge_s(bin));
        (from + (to - from) * within).max(to)
    }

    /// The share of VMs of this uptime that live so much longer; 0 to 1.
    pub fn conditional(&self, uptime_s: f32, longer_s: f32) -> f32 {
        let uptime_s = bounded(uptime_s);
        (self.at(uptime_s + longer_s.max(0.0)) / self.at(uptime_s)).min(1.0)
    }

    /// Expected remaining lifetime of a VM of this uptime, in seconds, where what exceeds 14 days counts as 14 days.
    /// It is exact and takes about a microsecond; [`Curves`](super::Curves) looks it up.
    pub fn remaining_s(&self, uptime_s: f32) -> f32 {
        let uptime_s = bounded(uptime_s);
        let area = self.area(uptime_s, uptime_s + HORIZON_S);
        (area / f64::from(self.at(uptime_s))).clamp(0.0, f64::from(HORIZON_S)) as f32
    }

    /// After how many more seconds only `share` of the VMs of this uptime still lives, at most ten years: 0.5 gives the
    /// median remaining lifetime.
    pub fn quantile_s(&self, uptime_s: f32, share: f32) -> f32 {
        let uptime_s = bounded(uptime_s);
        let target = self.at(uptime_s) * share.clamp(0.0, 1.0);
        let bin = bin_of(uptime_s);
        let end = match (bin..BINS).find(|bin| self.shares[bin + 1] <= target) {
            Some(bin) => {
                let (from, to) = (self.shares[bin], self.shares[bin + 1]);
                let within = if from > to { ((from - target) / (from - to)).max(0.0) } else { 0.0 };
                edge_s(bin) + (edge_s(bin + 1) - edge_s(bin)) * within
            }
            None => {
                let falls = f64::from(self.shares[BINS] / target.max(f32::MIN_POSITIVE));
                let times = libm::pow(falls, 1.0 / self.tail().max(f64::MIN_POSITIVE));
                (f64::from(edge_s(BINS)) * times).min(f64::from(uptime_s) + f64::from(FAR_S)) as f32
            }
        };

        (end - uptime_s).max(0.0)
    }

    /// To which power of the uptime the share falls beyond the grid.
    fn tail(&self) -> f64 {
        let falls = f64::from(self.shares[BINS - 1] / self.shares[BINS]);
        let longer = f64::from(edge_s(BINS) / edge_s(BINS - 1));
        (libm::log(falls) / libm::log(longer)).clamp(0.0, STEEPEST)
    }

    /// The area below the curve.
    fn area(&self, from_s: f32, to_s: f32) -> f64 {
        let (mut area, mut from) = (0.0, from_s);
        while from < to_s && from < edge_s(BINS) {
            let to = edge_s(bin_of(from) + 1).min(to_s);
            area += f64::from(to - from) * f64::midpoint(self.at(from).into(), self.at_left(to).into());
            from = to;
        }
        if from >= to_s {
            return area;
        }

        // Of a power of the uptime.
        let (power, at) = (1.0 - self.tail(), f64::from(self.at(from)));
        let longer = f64::from(to_s) / f64::from(from);
        let times = if power.abs() < 1e-9 {
            libm::log(longer)
        } else {
            libm::expm1(power * libm::log(longer)) / power
        };
        area + at * f64::from(from) * times
    }

    /// The share at the end of a bin, without the power of the tail.
    fn at_left(&self, uptime_s: f32) -> f32 {
        if uptime_s >= edge_s(BINS) { self.shares[BINS] } else { self.at(uptime_s) }
    }
}

/// An uptime that curves have; no number counts as 0.
fn bounded(uptime_s: f32) -> f32 {
    if uptime_s.is_nan() { 0.0 } else { uptime_s.clamp(0.0, FAR_S) }
}

impl TryFrom<Vec<f32>> for SurvivalCurve {
    type Error = CurveError;

    fn try_from(shares: Vec<f32>) -> Result<Self, CurveError> {
        let count = shares.len();
        let shares: [f32; EDGES] =
            shares.try_into().map_err(|_| CurveError(format!("{count} shares; {EDGES} are needed")))?;
        if shares[0] != 1.0 {
            return Err(CurveError(format!("the first share is {}; 1 is needed", shares[0])));
        }
        if let Some(edge) = (1..EDGES).find(|n| !(shares[*n] > 0.0 && shares[*n] <= shares[*n - 1])) {
            let (share, before) = (shares[edge], shares[edge - 1]);
            return Err(CurveError(format!("share {edge} is {share}; above 0, at most {before} is needed")));
        }

        Ok(Self { shares })
    }
}

impl From<SurvivalCurve> for Vec<f32> {
    fn from(curve: SurvivalCurve) -> Self {
        curve.shares.to_vec()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Any hazards: those of VMs, and 0, 1, and what is none.
    pub(crate) fn hazards() -> impl Strategy<Value = [f64; BINS]> {
        let one = prop_oneof![6 => 0.0..0.4, 1 => Just(0.0), 1 => Just(1.0), 1 => any::<f64>()];
        proptest::collection::vec(one, BINS).prop_map(|list| std::array::from_fn(|bin| list[bin]))
    }

    /// Lives of 1/t: half of the VMs live twice as long.
    fn harmonic() -> SurvivalCurve {
        SurvivalCurve::from_hazards(&std::array::from_fn(|bin| {
            if bin < 4 { 0.0 } else { 1.0 - f64::from(edge_s(bin) / edge_s(bin + 1)) }
        }))
    }

    #[test]
    fn a_known_curve_answers_what_a_person_computes() {
        let curve = harmonic();
        let near =
            |value: f32, expected: f32| assert!((value / expected - 1.0).abs() < 0.01, "{value} {expected}");
        near(curve.at(6_400.0), 0.01);
        near(curve.at(16_777_216.0), 64.0 / 16_777_216.0);
        near(curve.conditional(1e5, 1e5), 0.5);
        // The integral of u/(u + t) over 14 days, with and beyond the grid.
        for uptime_s in [1e4_f32, 86_400.0, 8e6, 3e7] {
            near(curve.remaining_s(uptime_s), uptime_s * (1.0 + HORIZON_S / uptime_s).ln());
            near(curve.quantile_s(uptime_s, 0.25), 3.0 * uptime_s);
        }
    }

    #[test]
    fn who_never_ends_and_who_ends_at_once_are_finite() {
        let ever = SurvivalCurve::from_hazards(&[0.0; BINS]);
        assert_eq!(
            (ever.at(1e30), ever.remaining_s(0.0), ever.remaining_s(1e30)),
            (1.0, HORIZON_S, HORIZON_S)
        );
        assert_eq!((ever.quantile_s(0.0, 0.5), ever.quantile_s(1e30, 0.5)), (FAR_S, FAR_S));
        let never = SurvivalCurve::from_hazards(&[1.0; BINS]);
        assert!(never.remaining_s(0.0) < 16.0 && never.remaining_s(1e6) > 0.0);
    }

    #[test]
    fn what_is_no_curve_is_refused() {
        let refused = |shares: Vec<f32>| SurvivalCurve::try_from(shares).unwrap_err().to_string();
        assert!(refused(vec![1.0]).contains("1 shares; 73"));
        assert!(refused(vec![0.5; EDGES]).contains("first share is 0.5"));
        for bad in [0.0, 1.1, f32::NAN] {
            let mut shares = vec![1.0; EDGES];
            shares[40] = bad;
            assert!(refused(shares).contains("share 40"), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn shares_never_rise_and_conditional_curves_are_proper(
            hazards in hazards(),
            uptime_s in prop_oneof![0.0_f32..1e7, any::<f32>()],
            mut longer in proptest::collection::vec(prop_oneof![0.0_f32..2e6, any::<f32>()], 8),
        ) {
            let curve = SurvivalCurve::from_hazards(&hazards);
            prop_assert!(curve.shares().windows(2).all(|two| two[0] >= two[1] && two[1] > 0.0));
            prop_assert_eq!(curve.conditional(uptime_s, 0.0), 1.0);
            longer.sort_by(|a, b| a.max(0.0).total_cmp(&b.max(0.0)));
            let shares: Vec<f32> = longer.iter().map(|longer| curve.conditional(uptime_s, *longer)).collect();
            prop_assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{:?}", shares);
            prop_assert!(shares.windows(2).all(|two| two[0] >= two[1]), "{:?} {:?}", longer, shares);
        }

        #[test]
        fn remaining_lifetimes_are_finite_and_a_quantile_is_the_inverse(
            hazards in hazards(),
            uptime_s in prop_oneof![0.0_f32..2e7, any::<f32>()],
            share in 0.0_f32..=1.0,
        ) {
            let curve = SurvivalCurve::from_hazards(&hazards);
            let remaining = curve.remaining_s(uptime_s);
            prop_assert!((0.0..=HORIZON_S).contains(&remaining), "{}", remaining);
            let after = curve.quantile_s(uptime_s, share);
            prop_assert!((0.0..=FAR_S).contains(&after));
            // A second beside it the share is on the other side.
            let wide = 1.0 + 1e-5 * (uptime_s.abs().min(FAR_S) + after);
            if after + uptime_s.max(0.0) < 0.99 * FAR_S {
                prop_assert!(curve.conditional(uptime_s, after + wide) <= share + 1e-4);
            }
        }

        #[test]
        fn a_curve_is_read_as_it_was_written(hazards in hazards()) {
            let curve = SurvivalCurve::from_hazards(&hazards);
            let text = serde_json::to_string(&curve).unwrap();
            prop_assert_eq!(serde_json::from_str::<SurvivalCurve>(&text).unwrap(), curve);
        }
    }
}
