//! From arms to thresholds to runs.

use serde::{Deserialize, Serialize};

use super::super::{Arm, Moment, Site, Tally, badness};
use super::estimate::{Stratum, log_failures};
use super::{Job, Measured, Options};

/// Where the zeroth moment's runs are parted by badness: the worst hundredth, and the worst tenth but these.
const CUTS: [f64; 2] = [0.9, 0.99];
/// Which share of the runs each stratum gets, from the best.
const SHARES: [f64; 3] = [0.5, 0.3, 0.2];
/// The threshold at which badness is looked at, as a share of the capacity.
const BAD_AT: f64 = 0.6;
/// So far beside the SLAs the thresholds of all runs begin and end: few runs know little of what many will say.
const BESIDE: f64 = 5.0;
/// Thresholds of the first look: shares of the capacity; the second moment's are risks.
const ZEROTH: [f64; 5] = [0.3, 0.5, 0.7, 0.85, 1.001];
const FIRST: [f64; 5] = [0.5, 0.7, 0.9, 1.1, 1.4];
const SECOND: [f64; 5] = [0.001, 0.008, 0.05, 0.2, 0.6];
/// Thresholds of the second look, between two of the first.
const BETWEEN: usize = 3;

/// One arm of one set: its runs and thresholds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Race {
    pub(super) set: usize,
    pub(super) arm: usize,
    pub(super) policy: Arm,
    pub(super) strata: Vec<Stratum>,
    pub(super) thresholds: Vec<f64>,
    /// What was looked at: thresholds as they are interpolated, from the lowest, with their shares of failures.
    points: Vec<(f64, f64)>,
}

/// The races of all arms, step by step: the caller runs the jobs, on as many threads and machines as it likes.
#[derive(Clone, Debug)]
pub struct Tuner {
    options: Options,
    pub(super) races: Vec<Race>,
}

/// Runs `index`, `index + of`, … of every arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub index: u64,
    pub of: u64,
}

impl Tuner {
    /// What is run first. The badness of runs is computed here: `map` calls a function with 0 to n.
    pub fn new(options: &Options, map: impl Fn(&(dyn Fn(u64) -> f64 + Sync), u64) -> Vec<f64>) -> Self {
        let mut races = vec![];
        for (index, set) in options.sets.iter().enumerate() {
            let site: Site = set.site;
            let bad = |run: u64| badness(&site, BAD_AT * site.capacity, options.seed, run);
            for (arm, policy) in set.arms.iter().enumerate() {
                let strata = match policy.moment {
                    Moment::Zeroth => strata(&map(&bad, options.pool.max(set.runs)), set.runs),
                    _ => vec![Stratum { share: 1.0, runs: (0..set.runs).collect() }],
                };
                let thresholds = match policy.moment {
                    Moment::Zeroth => ZEROTH.map(|share| share * site.capacity),
                    Moment::First => FIRST.map(|share| share * site.capacity),
                    Moment::Second => SECOND,
                };
                races.push(Race {
                    set: index,
                    arm,
                    policy: *policy,
                    strata,
                    thresholds: thresholds.to_vec(),
                    points: vec![],
                });
            }
        }
        Self { options: options.clone(), races }
    }

    fn job(&self, race: &Race, threshold: usize, run: u64) -> Job {
        let site = self.options.sets[race.set].site;
        let (policy, at) = (race.policy, race.thresholds[threshold]);
        Job { set: race.set, arm: race.arm, site, policy, at, seed: self.options.seed, run }
    }

    /// Looks at each arm twice, and the thresholds become those around the wanted shares of failures. `run` runs jobs.
    pub fn look(&mut self, mut run: impl FnMut(&[Job]) -> Vec<Tally>) {
        let wanted = self.wanted();
        self.run_few(wanted.1, &mut run);
        for race in &mut self.races {
            race.thresholds = between(&race.points, wanted).map(|it| race.unscale(it)).collect();
        }
        self.run_few(wanted.1, &mut run);
        for race in &mut self.races {
            let capacity = self.options.sets[race.set].site.capacity;
            race.thresholds = race.grid(wanted, self.options.grid, capacity);
        }
    }

    /// The least share of failures that is looked for, and the highest.
    fn wanted(&self) -> (f64, f64) {
        let slas = &self.options.slas;
        let (lowest, highest) = (slas.first().copied(), slas.last().copied());
        (lowest.unwrap_or(1e-4) / BESIDE, highest.unwrap_or(1e-4) * BESIDE)
    }

    /// Few runs of every threshold from the lowest on. An arm is out of the race once more fails than is looked for.
    fn run_few(&mut self, highest: f64, run: &mut impl FnMut(&[Job]) -> Vec<Tally>) {
        let most = self.races.iter().map(|race| race.thresholds.len()).max();
        for threshold in 0..most.unwrap_or(0) {
            let jobs = self.few(threshold, highest);
            let done = run(&jobs);
            self.races.iter_mut().for_each(|race| race.take(&jobs, &done));
        }
    }

    /// Few runs of each stratum, for one threshold of the arms that may yet keep to a share of failures.
    fn few(&self, threshold: usize, highest: f64) -> Vec<Job> {
        let racing = self.races.iter().filter(|race| race.may_keep(threshold, highest));
        let jobs = racing.flat_map(|race| {
            let few = self.options.sets[race.set].runs / 4;
            let runs = first_runs(race, self.options.pilot_runs.min(few));
            runs.into_iter().map(move |run| self.job(race, threshold, run))
        });
        jobs.collect()
    }

    pub fn thresholds(&self) -> Vec<Vec<f64>> {
        self.races.iter().map(|race| race.thresholds.clone()).collect()
    }

    /// Takes thresholds that were looked for elsewhere, in the place of looking: whether these are some for every arm.
    pub fn set_thresholds(&mut self, thresholds: &[Vec<f64>]) -> bool {
        let some = |it: &Vec<f64>| !it.is_empty() && it.iter().all(|it| it.is_finite());
        if thresholds.len() != self.races.len() || !thresholds.iter().all(some) {
            return false;
        }
        for (race, thresholds) in self.races.iter_mut().zip(thresholds) {
            race.thresholds.clone_from(thresholds);
        }
        true
    }

    /// All runs of all arms, or a part of them.
    pub fn jobs(&self, part: Part) -> Vec<Job> {
        let jobs = self.races.iter().flat_map(|race| {
            let thresholds = 0..race.thresholds.len();
            race.runs(part).flat_map(move |run| thresholds.clone().map(move |it| self.job(race, it, run)))
        });
        jobs.collect()
    }

    /// Whether this is all of a part: of every arm its runs, and for each what every threshold came to.
    pub fn is_part(&self, part: Part, measured: &[Vec<Measured>]) -> bool {
        let whole = |(race, measured): (&Race, &Vec<Measured>)| {
            measured.iter().map(|it| it.run).eq(race.runs(part))
                && measured.iter().all(|it| it.tallies.len() == race.thresholds.len())
        };
        measured.len() == self.races.len() && self.races.iter().zip(measured).all(whole)
    }

    /// What these jobs came to, arm by arm and run by run.
    pub fn measured(&self, jobs: &[Job], done: Vec<Tally>) -> Vec<Vec<Measured>> {
        let mut all: Vec<Vec<Measured>> = vec![vec![]; self.races.len()];
        for (job, tally) in jobs.iter().zip(done) {
            let Some(race) = self.races.iter().position(|it| (it.set, it.arm) == (job.set, job.arm)) else {
                continue;
            };
            match all[race].last_mut().filter(|it| it.run == job.run) {
                Some(measured) => measured.tallies.push(tally),
                None => all[race].push(Measured { run: job.run, tallies: vec![tally] }),
            }
        }
        all
    }
}

impl Race {
    fn runs(&self, part: Part) -> impl Iterator<Item = u64> {
        let all = self.strata.iter().flat_map(|stratum| stratum.runs.iter().copied());
        all.filter(move |run| run % part.of == part.index)
    }

    /// Whether no lower threshold than this one fails more often than that.
    fn may_keep(&self, threshold: usize, highest: f64) -> bool {
        let at = self.thresholds.get(threshold).map(|it| self.scale(*it));
        at.is_some_and(|at| self.points.iter().all(|(lower, failed)| *lower >= at || *failed < highest))
    }

    /// Takes what few runs of one threshold came to.
    fn take(&mut self, jobs: &[Job], done: &[Tally]) {
        let own = || jobs.iter().zip(done).filter(|(job, _)| (job.set, job.arm) == (self.set, self.arm));
        let Some((job, _)) = own().next() else { return };
        let seen: Vec<(u64, f64)> = own().map(|(job, tally)| (job.run, tally.failed_share())).collect();
        self.points.push((self.scale(job.at), mean(&self.strata, &seen)));
        self.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }

    /// Thresholds in so many steps from one share of failures to the other.
    fn grid(&self, (lowest, highest): (f64, f64), steps: usize, capacity: f64) -> Vec<f64> {
        let (low, high) = (at(&self.points, lowest), at(&self.points, highest));
        let step = |i: usize| low + (high - low) * i as f64 / (steps - 1) as f64;
        let mut thresholds: Vec<f64> = (0..steps).map(|i| self.unscale(step(i))).collect();
        if self.policy.moment == Moment::Zeroth {
            // Everything that fits: the ceiling.
            thresholds.retain(|it| *it < capacity);
            thresholds.push(1.001 * capacity);
        }
        thresholds
    }

    /// Thresholds as they are interpolated: risks by their logarithm.
    pub(super) fn scale(&self, threshold: f64) -> f64 {
        if self.policy.moment == Moment::Second { libm::log(threshold) } else { threshold }
    }

    pub(super) fn unscale(&self, scaled: f64) -> f64 {
        if self.policy.moment == Moment::Second { libm::exp(scaled).min(1.0) } else { scaled }
    }
}

/// Runs by their badness, the worst more often.
fn strata(badness: &[f64], runs: u64) -> Vec<Stratum> {
    let mut order: Vec<u64> = (0..badness.len() as u64).collect();
    order.sort_by(|a, b| badness[*a as usize].total_cmp(&badness[*b as usize]));
    let n = order.len();
    let cuts = [0, (CUTS[0] * n as f64) as usize, (CUTS[1] * n as f64) as usize, n];
    let stratum = |k: usize| {
        let mut all = order[cuts[k]..cuts[k + 1]].to_vec();
        let share = all.len() as f64 / n as f64;

        // The lowest numbers: no more badness decides within a stratum.
        all.sort_unstable();
        all.truncate(((SHARES[k] * runs as f64) as usize).max(2));
        Stratum { share, runs: all }
    };
    (0..3).map(stratum).filter(|it| !it.runs.is_empty()).collect()
}

fn first_runs(race: &Race, pilot: u64) -> Vec<u64> {
    let each = (pilot as usize / race.strata.len()).max(2);
    race.strata.iter().flat_map(|stratum| stratum.runs.iter().take(each).copied()).collect()
}

/// The mean over strata of what was seen of their runs.
fn mean(strata: &[Stratum], seen: &[(u64, f64)]) -> f64 {
    let of = |stratum: &Stratum| {
        let own: Vec<f64> = seen.iter().filter(|it| stratum.runs.contains(&it.0)).map(|it| it.1).collect();
        stratum.share * own.iter().sum::<f64>() / own.len().max(1) as f64
    };
    strata.iter().map(of).sum()
}

/// Evenly between the last threshold with too few failures and the first with too many.
fn between(points: &[(f64, f64)], (lowest, highest): (f64, f64)) -> impl Iterator<Item = f64> {
    let high = points.iter().position(|it| it.1 >= highest).unwrap_or(points.len() - 1);
    let low = points[..high].iter().rposition(|it| it.1 <= lowest).unwrap_or(0);
    let (low, high) = (points[low].0, points[high].0);
    (1..=BETWEEN).map(move |i| low + (high - low) * i as f64 / (BETWEEN + 1) as f64)
}

/// Where the share of failures is the wanted one, by lines through the points. Where it is nowhere so high, the highest
/// threshold or a little beyond it, by the last line.
fn at(points: &[(f64, f64)], wanted: f64) -> f64 {
    let goal = log_failures(wanted);
    let mut best = points.first().map_or(0.0, |it| it.0);
    for pair in points.windows(2) {
        let [(x0, y0), (x1, y1)] = [pair[0], pair[1]].map(|(x, y)| (x, log_failures(y)));
        if y1 > y0 {
            let share = (goal - y0) / (y1 - y0);
            best = x0 + (x1 - x0) * share.clamp(0.0, 1.5);
            if share <= 1.0 {
                return best;
            }
        }
    }
    let last = points.last().filter(|it| it.1 < wanted);
    last.map_or(best, |it| it.0.max(best))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of SUB-A nothing fails until almost everything may come, and then much does.
    #[test]
    fn a_cliff_is_looked_at_from_near() {
        let seen = |threshold: f64| if threshold > 0.96 { 0.055 } else { 0.0 };
        let wanted = (1e-4 / BESIDE, 1e-3 * BESIDE);
        let mut points: Vec<(f64, f64)> = ZEROTH.iter().map(|it| (*it, seen(*it))).collect();
        points.extend(between(&points.clone(), wanted).map(|it| (it, seen(it))));
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        for wanted in [wanted.0, wanted.1] {
            let at = at(&points, wanted);
            assert!((0.92..=0.97).contains(&at), "{wanted}: {at} of {points:?}");
        }
    }

    #[test]
    fn where_nothing_fails_or_everything_does_the_nearest_thresholds_are_looked_at() {
        let flat = |failed| ZEROTH.map(|it| (it, failed));
        let near = |points: &[(f64, f64)]| between(points, (1e-4, 1e-3)).collect::<Vec<_>>();
        assert!(near(&flat(0.0)).iter().all(|it| *it > 0.85), "{:?}", near(&flat(0.0)));
        assert!(near(&flat(0.5)).iter().all(|it| *it <= 0.3), "{:?}", near(&flat(0.5)));

        // Who never fails gets the widest threshold, and who always does the narrowest.
        assert_eq!((at(&flat(0.0), 1e-4), at(&flat(0.5), 1e-4)), (ZEROTH[4], ZEROTH[0]));
    }
}
