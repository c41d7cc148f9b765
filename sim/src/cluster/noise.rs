//! A predictor of lifetimes that is right about so many VMs, and far off about others.
//!
//! Source: LAVA, arXiv 2412.09840, appendix G.1.

use ballast_placement::ExpectedEnd;
use ballast_types::Instant;
use ballast_types::survival::{BINS, CurveId, Curves, EDGES, HORIZON_S, SurvivalCurve, bin_of, edge_s};

use crate::rng::{Purpose, Stream};

/// By so many decades a prediction is off that is right, and one that is not.
const OFF: [f64; 2] = [0.001, 3.0];
/// No prediction is shorter, in seconds.
const SHORTEST_S: f64 = 1.0;

/// Lifetimes times 10 to a normal number of standard deviation 0.001, or 3 where the predictor is wrong; at most 14 days.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    accuracy: f64,
    seed: u64,
}

impl Noise {
    /// One that is right about this share of the VMs; `None` where that is none.
    pub fn new(accuracy: f64, seed: u64) -> Option<Self> {
        (0.0..=1.0).contains(&accuracy).then_some(Self { accuracy, seed })
    }

    /// What is predicted of a VM that has so long to live. One that outlives its prediction is predicted again:
    /// `drawn` says how often that has been.
    pub fn predicted_s(&self, vm: u64, drawn: u32, left_s: f64) -> f64 {
        let mut luck = Stream::new(self.seed, Purpose::Foresight, vm, drawn.into());
        let off = OFF[usize::from(luck.uniform() >= self.accuracy)];
        let predicted_s = left_s * libm::exp10(off * luck.normal());
        predicted_s.clamp(SHORTEST_S, f64::from(HORIZON_S))
    }

    /// The same as a point in time.
    pub fn end(&self, vm: u64, drawn: u32, now_ms: u64, left_ms: u64) -> ExpectedEnd {
        let predicted_s = self.predicted_s(vm, drawn, left_ms as f64 / 1e3);
        ExpectedEnd::At(Instant::from_millis(now_ms.saturating_add((predicted_s * 1e3) as u64)))
    }
}

/// What is to be believed of a VM by a prediction, of whoever knows how often the predictor is right, and how long VMs
/// live.
#[derive(Clone, Debug)]
pub struct NoisyCurves {
    noise: Noise,
    curves: Curves,
    /// By the bin of the prediction.
    by_prediction: Vec<CurveId>,
}

impl NoisyCurves {
    /// `lives` are so many VMs, or shares of VMs, by the bin of their lifetime; the last is beyond the grid.
    pub fn new(noise: Noise, lives: &[f64; EDGES]) -> Self {
        let mut curves = Curves::default();
        let curve = |predicted: usize| {
            let believed: [f64; EDGES] =
                std::array::from_fn(|bin| (lives[bin] + 1e-9) * noise.likelihood(predicted, bin));
            curves.intern(curve_of(&believed))
        };
        let by_prediction = (0..EDGES).map(curve).collect();
        Self { noise, curves, by_prediction }
    }

    pub fn curves(&self) -> &Curves {
        &self.curves
    }

    /// What is believed of a VM that will live so long.
    pub fn end(&self, vm: u64, lifetime_s: f64) -> ExpectedEnd {
        let predicted_s = self.noise.predicted_s(vm, 0, lifetime_s);
        ExpectedEnd::Curve(self.by_prediction[bin_of(predicted_s as f32)])
    }
}

impl Noise {
    /// How likely a prediction of this bin is for a VM that lives until the middle of that.
    fn likelihood(&self, predicted: usize, lives: usize) -> f64 {
        // Whatever is predicted above 14 days is said to be 14 days.
        let last = bin_of(HORIZON_S);
        let is_right = predicted == lives.min(last);
        let middle = libm::log10(middle_s(lives));
        let below = |edge: usize| normal_below((libm::log10(edge_s(edge).max(1.0).into()) - middle) / OFF[1]);
        let from = if predicted == 0 { 0.0 } else { below(predicted) };
        let to = if predicted >= last { 1.0 } else { below(predicted + 1) };
        self.accuracy * f64::from(u8::from(is_right)) + (1.0 - self.accuracy) * (to - from).max(0.0)
    }
}

fn middle_s(bin: usize) -> f64 {
    match bin {
        BINS.. => f64::from(edge_s(BINS)) * 2.0,
        _ => f64::midpoint(edge_s(bin).into(), edge_s(bin + 1).into()),
    }
}

/// The share of a standard normal below.
fn normal_below(at: f64) -> f64 {
    0.5 * libm::erfc(-at * core::f64::consts::FRAC_1_SQRT_2)
}

fn curve_of(lives: &[f64; EDGES]) -> SurvivalCurve {
    let mut left: f64 = lives.iter().sum();
    SurvivalCurve::from_hazards(&std::array::from_fn(|bin| {
        let ends = lives[bin] / left.max(f64::MIN_POSITIVE);
        left -= lives[bin];
        ends
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_predictions_are_right_and_the_others_are_decades_off() {
        let noise = Noise::new(0.8, 1).unwrap();
        let off = |vm: u64| libm::log10(noise.predicted_s(vm, 0, 3600.0) / 3600.0);
        let right = (0..10_000).filter(|vm| off(*vm).abs() < 0.005).count();
        assert!((7_900..8_100).contains(&right), "{right}");
        let far = (0..10_000).filter(|vm| off(*vm) < -1.0).count();
        // A third of the wrong ones is a decade or more too short.
        assert!((600..870).contains(&far), "{far}");
        assert!((0..10_000).all(|vm| noise.predicted_s(vm, 1, 1e9) <= f64::from(HORIZON_S)));
        assert!(Noise::new(1.1, 0).is_none() && Noise::new(f64::NAN, 0).is_none());
    }

    #[test]
    fn what_is_believed_is_right_in_the_mean() {
        let noise = Noise::new(0.7, 5).unwrap();
        // Nine of ten live for an hour, one for ten days.
        let (hour, days) = (3_600.0, 864_000.0);
        let mut lives = [0.0; EDGES];
        lives[bin_of(hour as f32)] = 0.9;
        lives[bin_of(days as f32)] = 0.1;
        let curves = NoisyCurves::new(noise, &lives);
        // Of those that are believed to live for five days with some chance, that share does.
        let (mut believed, mut long, mut said) = (0.0, 0.0, 0.0);
        for vm in 0..20_000 {
            let life_s = if vm % 10 == 0 { days } else { hour };
            let ExpectedEnd::Curve(id) = curves.end(vm, life_s) else { unreachable!() };
            let chance = f64::from(curves.curves().get(id).unwrap().at(432_000.0));
            if chance > 0.3 {
                believed += chance;
                said += 1.0;
                long += f64::from(u8::from(life_s == days));
            }
        }
        assert!(said > 1_000.0 && (believed / said - long / said).abs() < 0.03, "{believed} {long} {said}");
    }
}
