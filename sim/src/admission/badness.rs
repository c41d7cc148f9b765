//! How bad a run will be, before it is run: a month is one step, and everything happens as expected.

use super::chance::{Chance, Purpose};
use super::deployment::Newcomer;
use super::run::Site;

/// A month, in hours.
const MONTH_H: f64 = 730.0;

/// The largest number of cores that is expected in any month, if deployments come at the beginning of their month while
/// fewer than `threshold` cores are expected, live as long as they can, and have the size that is expected of them.
///
/// Failures are in few runs. To find these is worth as much as ten times the runs.
pub fn badness(site: &Site, threshold: f64, seed: u64, run: u64) -> f64 {
    let mut arrivals = Chance::new(seed, Purpose::Arrivals, run, 0);
    let mut next = arrivals.exponential() / site.arrivals_per_h;
    let months = libm::ceil(site.hours / MONTH_H) as usize;
    let mut expected = vec![0.0; months];
    let mut index = 0;

    while next < site.hours {
        let month = (next / MONTH_H) as usize;
        let Newcomer { hidden, cores, life_h, .. } = Newcomer::draw(&site.law, seed, run, index);
        if expected[month] + f64::from(cores) < threshold {
            let settled = hidden.rate / hidden.mu * (1.0 + hidden.sigma);
            for (age, sum) in expected[month..].iter_mut().enumerate() {
                let age_h = age as f64 * MONTH_H;
                if age_h > life_h {
                    break;
                }
                let left = libm::exp(-hidden.mu * age_h);
                *sum += f64::from(cores) * left + settled * (1.0 - left);
            }
        }
        index += 1;
        next += arrivals.exponential() / site.arrivals_per_h;
    }
    expected.into_iter().fold(0.0, f64::max)
}
