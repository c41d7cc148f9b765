//! Differences between policies on the same pools, with their intervals.

use serde::Serialize;

use super::measures::Figures;
use super::pool_job::Run;
use super::trial::Contestant;

/// A mean over pools, with its 95 % t interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Paired {
    pub mean: f64,
    /// Half of the interval's width; `None` of one pool.
    pub interval: Option<f64>,
    /// Of how many pools the difference is above 0.
    pub wins: usize,
    pub pools: usize,
    /// In the order of the pools, in percentage points or whatever is compared.
    pub each: Vec<f64>,
}

/// One policy against best fit, on all pools of one scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LifetimeRow {
    pub pool: String,
    pub scenario: String,
    pub prediction: String,
    pub policy: Contestant,
    /// Empty hosts, in points against best fit.
    pub empty_pp: f64,
    pub interval_pp: Option<f64>,
    /// Of the gap between best fit and the bound, how much is closed; and in the second half of the time.
    pub gap_percent: f64,
    pub second_half_pp: f64,
    pub second_half_gap_percent: f64,
    pub wins: usize,
    pub pools: usize,
    pub by_pool_pp: Vec<f64>,
    /// Means over the pools.
    pub empty_percent: f64,
    pub bound_percent: f64,
    pub packing_density: f64,
    pub failed: u64,
    /// In points against best fit, with their intervals.
    pub empty_to_free_pp: f64,
    pub half_host_unusable_pp: f64,
    pub half_host_unusable_interval_pp: Option<f64>,
    pub stranded_cores_pp: f64,
    pub stranded_memory_pp: f64,
    /// By powering down, for each host of the pool; against best fit, and how many VMs wait for a host.
    pub saved_w_per_host: f64,
    pub saved_w_per_host_more: f64,
    pub waited_vms_per_day: f64,
}

/// 97.5 % quantiles of Student's t with 1 to 30 degrees of freedom.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

impl Paired {
    /// Of the differences of each pool.
    pub fn of(each: Vec<f64>) -> Self {
        let count = each.len() as f64;
        let mean = each.iter().sum::<f64>() / count;
        let wins = each.iter().filter(|value| **value > 0.0).count();
        let squares: f64 = each.iter().map(|value| (value - mean) * (value - mean)).sum();
        // Above 30 the quantile nears the normal's like this, within 0.001.
        let t = |free: usize| T.get(free - 1).copied().unwrap_or(1.960 + 2.46 / free as f64);
        let interval =
            (each.len() > 1).then(|| t(each.len() - 1) * libm::sqrt(squares / (count - 1.0) / count));
        Self { mean, interval, wins, pools: each.len(), each }
    }

    /// Whether the mean is above 0 with its interval.
    pub fn is_positive(&self) -> bool {
        self.interval.is_some_and(|interval| self.mean - interval > 0.0)
    }
}

/// Hosts without a VM, in percent.
pub fn empty_percent(run: &Run) -> f64 {
    100.0 * run.score.whole.empty
}

/// Free cores that VMs of half a host cannot use, in percent.
pub fn half_host_unusable_percent(run: &Run) -> f64 {
    100.0 * run.score.whole.half_host_unusable
}

fn saved_w_per_host(run: &Run) -> f64 {
    run.score.power.saved_w / f64::from(run.hosts)
}

/// Which runs: pool, scenario, prediction.
type Key<'k> = (&'k str, &'k str, &'k str);

pub struct PairedTable<'a> {
    runs: &'a [Run],
    pub days: f64,
}

impl<'a> PairedTable<'a> {
    pub fn new(runs: &'a [Run], days: f64) -> Self {
        Self { runs, days }
    }

    /// The runs of one policy, by pool. Who looks at no lifetimes has none of any prediction.
    fn runs(&self, (pool, scenario, prediction): Key<'_>, policy: Contestant) -> Vec<&'a Run> {
        let prediction = if Contestant::FORESEEING.contains(&policy) { prediction } else { "none" };
        let mut runs: Vec<&Run> = self
            .runs
            .iter()
            .filter(|run| (run.pool.as_str(), run.scenario.as_str()) == (pool, scenario))
            .filter(|run| run.prediction == prediction && run.policy == policy)
            .collect();
        runs.sort_by_key(|run| run.number);
        runs
    }

    /// One policy's measure less another's on the same pools; `None` where one was not run.
    pub fn difference(
        &self,
        key: Key<'_>,
        policy: Contestant,
        against: Contestant,
        measure: fn(&Run) -> f64,
    ) -> Option<Paired> {
        let (of, than) = (self.runs(key, policy), self.runs(key, against));
        let paired = of.len() == than.len() && of.iter().zip(&than).all(|(a, b)| a.number == b.number);
        if of.is_empty() || !paired {
            return None;
        }
        Some(Paired::of(of.iter().zip(&than).map(|(a, b)| measure(a) - measure(b)).collect()))
    }

    /// Of the gap between best fit and the bound, how much a policy closes, in percent.
    pub fn gap_percent(&self, key: Key<'_>, policy: Contestant, figures: fn(&Run) -> &Figures) -> f64 {
        let sum = |policy, measure: fn(&Figures) -> f64| {
            self.runs(key, policy).iter().map(|run| measure(figures(run))).sum::<f64>()
        };
        let [empty, best_fit] =
            [policy, Contestant::BestFit].map(|policy| sum(policy, |figures| figures.empty));
        let bound = sum(Contestant::BestFit, |figures| figures.bound);
        100.0 * (empty - best_fit) / (bound - best_fit)
    }

    pub fn rows(&self) -> Vec<LifetimeRow> {
        let mut rows: Vec<LifetimeRow> = Vec::new();
        for run in self.runs {
            let is_there = rows.iter().any(|row| {
                (&row.pool, &row.scenario) == (&run.pool, &run.scenario)
                    && (&row.prediction, row.policy) == (&run.prediction, run.policy)
            });
            if !is_there {
                rows.extend(self.row((&run.pool, &run.scenario, &run.prediction), run.policy));
            }
        }
        rows
    }

    fn row(&self, key: Key<'_>, policy: Contestant) -> Option<LifetimeRow> {
        let runs = self.runs(key, policy);
        let less = |measure| self.difference(key, policy, Contestant::BestFit, measure);
        let empty = less(empty_percent)?;
        let second_half = less(|run| 100.0 * run.score.second_half.empty)?;
        let unusable = less(half_host_unusable_percent)?;
        let saved = less(saved_w_per_host)?;
        let mean =
            |measure: fn(&Run) -> f64| runs.iter().map(|run| measure(run)).sum::<f64>() / runs.len() as f64;
        Some(LifetimeRow {
            pool: key.0.to_owned(),
            scenario: key.1.to_owned(),
            prediction: key.2.to_owned(),
            policy,
            empty_pp: empty.mean,
            interval_pp: empty.interval,
            gap_percent: self.gap_percent(key, policy, |run| &run.score.whole),
            second_half_pp: second_half.mean,
            second_half_gap_percent: self.gap_percent(key, policy, |run| &run.score.second_half),
            wins: empty.wins,
            pools: empty.pools,
            by_pool_pp: empty.each,
            empty_percent: mean(empty_percent),
            bound_percent: mean(|run| 100.0 * run.score.whole.bound),
            packing_density: mean(|run| run.score.whole.density),
            failed: runs.iter().map(|run| run.score.whole.failed).sum(),
            empty_to_free_pp: less(|run| 100.0 * run.score.whole.empty_to_free)?.mean,
            half_host_unusable_pp: unusable.mean,
            half_host_unusable_interval_pp: unusable.interval,
            stranded_cores_pp: less(|run| 100.0 * run.score.whole.stranded_cores)?.mean,
            stranded_memory_pp: less(|run| 100.0 * run.score.whole.stranded_memory)?.mean,
            saved_w_per_host: mean(saved_w_per_host),
            saved_w_per_host_more: saved.mean,
            waited_vms_per_day: mean(|run| run.score.power.waited_vms as f64) / self.days,
        })
    }
}
