//! Draws with the upper quantiles that the paper's Table IV implies.
//!
//! The paper does not publish its telemetry. Its eight results leave one consistent choice of the draws' upper
//! quantiles and of what capping sheds ([`Quantiles::PAPER`]). Everything below them is made: a level of every
//! chassis, a day and a week in every load, and noise that fades in two hours.

use super::weeks::WEEK_S;
use super::{Chance, draws_of, stream};
use ballast_sim::verify::Draws;

/// What draws are made to: shares of the provisioned power.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantiles {
    /// The middle of the normal body.
    pub mean: f64,
    /// Exceeded by 1 % of the readings.
    pub q99: f64,
    /// Exceeded by 0.1 %.
    pub q999: f64,
    pub max: f64,
}

impl Quantiles {
    /// What the deltas of Table IV imply with the closed form of the lowest budget and a buffer of 10 %.
    pub const PAPER: Self = Self { mean: 0.55, q99: 0.7991, q999: 0.8527, max: 0.87 };
}

/// How much is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub chassis: u32,
    pub weeks: u32,
    /// From one reading to the next, in seconds.
    pub period_s: u32,
}

const DAY_S: f64 = 24.0 * 3600.0;
/// How long noise takes to fade, in seconds.
const FADES_S: f64 = 2.0 * 3600.0;
/// Deviations of chassis' levels, of the day, and of noise. Only their proportions matter.
const LEVEL: f64 = 0.6;
const DAILY: f64 = 0.8;
const NOISE: f64 = 0.6;
/// What weekends take off.
const WEEKEND: f64 = 0.5;
/// Chassis' days begin within so many hours of each other.
const PHASES_S: f64 = 4.0 * 3600.0;

/// Seeded draws of chassis that are provisioned for `provisioned_w` and draw no less than `idle_w`.
///
/// Latent loads are mapped onto draws by one monotone function for all chassis: a straight line through the
/// mean and the 99 % quantile, which leaves the body as normal as it is, and straight lines from there through
/// the two upper quantiles. No draws without readings.
pub fn draws(seed: u64, size: Size, to: &Quantiles, provisioned_w: f64, idle_w: f64) -> Vec<Draws> {
    let units = (u64::from(size.weeks) * u64::from(WEEK_S / size.period_s.max(1))) as usize;
    let loads: Vec<Vec<f32>> =
        (0..size.chassis).map(|number| latent(seed, number, units, size.period_s)).collect();
    let Some(curve) = Curve::through(&loads, to) else { return Vec::new() };
    let watts = |load: &f32| (provisioned_w * curve.share(f64::from(*load))).max(idle_w);
    let one = |(number, loads): (usize, &Vec<f32>)| draws_of(number, loads.iter().map(watts));
    loads.iter().enumerate().map(one).collect()
}

/// One chassis's load, in no unit.
fn latent(seed: u64, chassis: u32, units: usize, period_s: u32) -> Vec<f32> {
    let mut chance = stream(seed, Chance::Draws, chassis);
    let level = LEVEL * chance.normal();
    let phase_s = PHASES_S * (chance.uniform() - 0.5);
    let stays = libm::exp(-f64::from(period_s) / FADES_S);
    let moves = libm::sqrt(1.0 - stays * stays);
    let mut noise = chance.normal();
    let one = |unit: usize| {
        let t_s = unit as f64 * f64::from(period_s);
        let day = libm::sin(2.0 * core::f64::consts::PI * (t_s + phase_s) / DAY_S);
        let weekend = if (t_s / DAY_S) % 7.0 >= 5.0 { WEEKEND } else { 0.0 };
        noise = stays * noise + moves * chance.normal();
        (level + DAILY * day - weekend + NOISE * noise) as f32
    };
    (0..units).map(one).collect()
}

/// From loads to shares of the provisioned power: straight between knots, and beyond them.
struct Curve([(f64, f64); 4]);

impl Curve {
    /// The curve that gives these loads these quantiles, as [`ballast_planner::Histogram::exceeded_by`] counts
    /// them. None without loads.
    fn through(chassis: &[Vec<f32>], to: &Quantiles) -> Option<Self> {
        let mut all: Vec<f32> = chassis.iter().flatten().copied().collect();
        if all.is_empty() {
            return None;
        }
        let mean = all.iter().map(|load| f64::from(*load)).sum::<f64>() / all.len() as f64;
        let mut exceeded_by = |one_in: usize| {
            let rank = all.len() - 1 - all.len() / one_in;
            f64::from(*all.select_nth_unstable_by(rank, f32::total_cmp).1)
        };
        let [q99, q999, max] = [100, 1_000, usize::MAX].map(&mut exceeded_by);
        Some(Self([(mean, to.mean), (q99, to.q99), (q999, to.q999), (max, to.max)]))
    }

    fn share(&self, load: f64) -> f64 {
        let above = self.0[1..3].iter().take_while(|(knot, _)| load >= *knot).count();
        let [(x, y), (next_x, next_y)] = [self.0[above], self.0[above + 1]];
        // Few readings may have several knots in one place.
        if next_x > x { y + (next_y - y) * (load - x) / (next_x - x) } else { next_y }
    }
}
