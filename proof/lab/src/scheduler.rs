//! Figure 7: the power rule's weight × who predicts; and what that means for power.
//!
//! Source: Kumbhare et al., arXiv 2010.15388, Section IV-E.

use ballast_placement::rules::Alpha;
use ballast_placement::{Policy, Ties};
use clap::Args;
use serde::Serialize;
use thiserror::Error;

use super::options::{Seeds, named, usual};
use super::{OptionError, Shape, Spread};
use ballast_cli::common::numbers::{share, within};
use ballast_sim::cluster::Workload;
use ballast_sim::cluster::exceeded;
use ballast_sim::cluster::{Arm, Class, P95, Prediction, Quarter};
use ballast_sim::cluster::{EngineError, Reason};
use ballast_sim::cluster::{Month, Setup, Site, run};

/// Added to the seed for the budget's calibration, which so never sees a load that is measured.
const CALIBRATION: u64 = 1 << 32;
/// Added to every seed where the rules' weights are chosen: nothing else is measured or calibrated there.
const CHOICE: u64 = 1 << 33;
/// The share of chassis-hours that the arm `none` is above the budget.
const ABOVE: f64 = 0.01;

/// The paper's cluster: 20 racks of 3 chassis of 12 servers.
#[derive(Args, Clone, Debug, PartialEq, Serialize)]
#[command(mut_arg("seeds", |arg| arg.default_value("5")))]
pub struct Options {
    #[command(flatten)]
    pub seeds: Seeds,
    #[command(flatten)]
    pub shape: Shape,
    /// Which predictors are compared, with commas between
    #[arg(long, value_name = "NAME,…", value_delimiter = ',',
        default_value = "none,spread,unknown,criticality-only,model,oracle",
        value_parser = named(Arm::ALL, Arm::name))]
    pub arms: Vec<Arm>,
    /// Weights of the chassis score against the server score; the arm none has none
    #[arg(long, value_name = "F,…", value_delimiter = ',', default_value = "0,0.2,0.4,0.6,0.8,1",
        value_parser = share)]
    pub alphas: Vec<f64>,
    /// The packing rule's weight
    #[arg(long, value_name = "N", default_value_t = Policy::POWER.best_fit,
        value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub packing_weight: u32,
    /// The power rule's weight
    #[arg(long, value_name = "N", default_value_t = Policy::POWER.power,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub power_weight: u32,
    /// How ties are broken: id, or hash and a seed
    #[arg(long, value_name = "id|hash[:SEED]", default_value_t = Policy::POWER.ties)]
    pub ties: Ties,
    /// The average share of cores that VMs request
    #[arg(long, value_name = "F", default_value_t = 0.65,
        value_parser = |text: &str| within(text, 0.01, 2.0))]
    pub load: f64,
    /// The number of days
    #[arg(long, value_name = "N", default_value_t = 30,
        value_parser = clap::value_parser!(u16).range(1..=366))]
    pub days: u16,
    /// Chassis in the cluster, of 12 servers with 40 cores each
    #[arg(long, value_name = "N", default_value_t = 60,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub chassis: u32,
    #[arg(skip = 12u32)]
    pub servers: u32,
    #[arg(skip = 40u16)]
    pub cores: u16,
}

impl Default for Options {
    fn default() -> Self {
        usual()
    }
}

impl Options {
    fn site(&self) -> Result<Site, OptionError> {
        let Self { chassis, servers, cores, load, days, .. } = *self;
        Ok(Site { chassis, servers, cores, load, days, model: self.shape.model()? })
    }

    /// An arm with this weight of the chassis score.
    fn case(&self, arm: Arm, alpha: Alpha) -> Case {
        let Self { packing_weight, power_weight, ties, .. } = *self;
        let policy = match arm {
            Arm::None => Policy::BEST_FIT,
            _ => Policy { best_fit: packing_weight, power: power_weight, alpha, ..Policy::POWER },
        };
        let setup = Setup { prediction: arm.prediction(), policy: Policy { ties, ..policy } };
        Case { name: arm.name().to_owned(), arm, setup, load: self.load, seeds: 0 }
    }

    /// Figure 7: every arm with every weight of the chassis score.
    pub fn figure7(&self) -> Result<Vec<Case>, OptionError> {
        let alphas = self
            .alphas
            .iter()
            .map(|alpha| Alpha::new(*alpha).ok_or_else(|| OptionError::new("alphas", alpha, "0 to 1")));
        let alphas = alphas.collect::<Result<Vec<_>, _>>()?;
        let arm = |arm: &Arm| {
            let alphas = match arm {
                Arm::None | Arm::Unknown => &[Alpha::PAPER][..],
                Arm::Spread => &[Alpha::CHASSIS],
                _ => &alphas,
            };
            alphas.iter().map(|alpha| self.case(*arm, *alpha)).collect::<Vec<_>>()
        };
        Ok(self.arms.iter().flat_map(arm).collect())
    }

    /// What the fair baseline is worth: best fit that breaks ties by id, and the arms at the paper's weight.
    pub fn baseline(&self) -> Vec<Case> {
        let none = self.case(Arm::None, Alpha::PAPER);
        let policy = Policy { ties: Ties::Id, ..none.setup.policy };
        let by_id =
            Case { name: "best fit, ties by id".to_owned(), setup: Setup { policy, ..none.setup }, ..none };
        let alpha = |arm| if arm == Arm::Spread { Alpha::CHASSIS } else { Alpha::PAPER };
        core::iter::once(by_id).chain(Arm::ALL.map(|arm| self.case(arm, alpha(arm)))).collect()
    }

    /// The rules' weights against each other, on loads that nothing else is measured with.
    pub fn weights(&self) -> Vec<Case> {
        let none = Case { name: "none".to_owned(), ..self.case(Arm::None, Alpha::PAPER) };
        let weighed = WEIGHTS.iter().flat_map(|(best_fit, power)| {
            [Arm::Model, Arm::Oracle].map(|arm| {
                let case = self.case(arm, Alpha::PAPER);
                let policy = Policy { best_fit: *best_fit, power: *power, ..case.setup.policy };
                let setup = Setup { policy, ..case.setup };
                Case { name: format!("{best_fit}:{power}"), setup, ..case }
            })
        });
        core::iter::once(none).chain(weighed).map(|case| Case { seeds: CHOICE, ..case }).collect()
    }

    /// What is told, part by part between the arms.
    pub fn knowledge(&self) -> Vec<Case> {
        let case = |(name, class, p95, quarter): &(&str, Class, P95, Quarter)| {
            let case = self.case(Arm::Model, Alpha::PAPER);
            let prediction = Prediction { class: *class, p95: *p95, quarter: *quarter };
            Case { name: (*name).to_owned(), setup: Setup { prediction, ..case.setup }, ..case }
        };
        KNOWLEDGE.iter().map(case).collect()
    }

    /// Clusters that are asked for more, until they refuse.
    pub fn fuller(&self) -> Vec<Case> {
        let arms = |load: &f64| {
            [Arm::None, Arm::Model, Arm::Oracle]
                .map(|arm| Case { load: *load, ..self.case(arm, Alpha::PAPER) })
        };
        FULLER.iter().flat_map(arms).collect()
    }
}

/// Packing to power, from the least packing on.
const WEIGHTS: [(u32, u32); 6] = [(1, 2), (1, 1), (2, 1), (4, 1), (8, 1), (16, 1)];
/// Shares of cores that are asked for.
const FULLER: [f64; 3] = [0.95, 1.0, 1.05];
const KNOWLEDGE: [(&str, Class, P95, Quarter); 11] = {
    use Quarter::{Middle, UpperEnd};
    [
        ("model", Class::Model, P95::Model, UpperEnd),
        ("model, quarter's middle", Class::Model, P95::Model, Middle),
        ("model's class, no P95 (criticality-only)", Class::Model, P95::Unknown, UpperEnd),
        ("model's class, right quarter", Class::Model, P95::Right, UpperEnd),
        ("class 98 % right, model's P95", Class::Accuracy, P95::Model, UpperEnd),
        ("class 98 % right, no P95", Class::Accuracy, P95::Unknown, UpperEnd),
        ("right class, model's P95", Class::Right, P95::Model, UpperEnd),
        ("right class, no P95", Class::Right, P95::Unknown, UpperEnd),
        ("oracle", Class::Right, P95::Right, UpperEnd),
        ("oracle, quarter's middle", Class::Right, P95::Right, Middle),
        ("right class, exact P95", Class::Right, P95::Exact, UpperEnd),
    ]
};

/// A scheduler on a load; one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    pub name: String,
    /// Who predicts, or who comes nearest to it.
    pub arm: Arm,
    pub setup: Setup,
    /// The share of cores that is asked for.
    pub load: f64,
    /// Added to every seed.
    pub seeds: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    site: Site,
    setup: Setup,
    seed: u64,
    budget_w: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    month: Month,
    /// The budget of a chassis that it exceeds in 1 % of chassis-hours.
    budget_1pct_w: f64,
}

/// Why there is no budget.
#[derive(Debug, Error)]
pub enum CalibrationError {
    #[error(transparent)]
    Options(#[from] OptionError),
    #[error(transparent)]
    Month(#[from] EngineError),
}

/// The budget of a chassis, in watts, that the arm `none` exceeds in 1 % of chassis-hours, on a load of its
/// own.
pub fn calibrate(options: &Options) -> Result<f64, CalibrationError> {
    let site = options.site()?;
    let first = options.seeds.seed;
    let load = workload(&site, first.wrapping_add(CALIBRATION));
    let Case { setup, .. } = options.case(Arm::None, Alpha::PAPER);
    Ok(exceeded(run(&site, &setup, &load, None)?.draws_w, ABOVE))
}

fn workload(site: &Site, seed: u64) -> Workload {
    let cores = site.chassis * site.servers * u32::from(site.cores);
    Workload::generate(seed, cores, site.load, site.days)
}

/// All months that [`rows`] needs of these cases, under this budget.
pub fn jobs(options: &Options, cases: &[Case], budget_w: f64) -> Result<Vec<Job>, OptionError> {
    let site = options.site()?;
    let jobs = cases.iter().flat_map(|case| {
        let site = Site { load: case.load, ..site };
        let seeds = options.seeds.all().into_iter().map(|seed| seed.wrapping_add(case.seeds));
        seeds.map(move |seed| Job { site, setup: case.setup, seed, budget_w })
    });
    Ok(jobs.collect())
}

impl Job {
    pub fn run(&self) -> Result<Done, EngineError> {
        let load = workload(&self.site, self.seed);
        let mut month = run(&self.site, &self.setup, &load, Some(self.budget_w))?;
        // Of tens of thousands of figures one is asked for.
        let budget_1pct_w = exceeded(core::mem::take(&mut month.draws_w), ABOVE);
        Ok(Done { month, budget_1pct_w })
    }
}

/// One arm with one weight; medians over the seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SchedulerResult {
    pub arm: Arm,
    /// The weight of the chassis score; `None` without the power rule.
    pub alpha: Option<f64>,
    /// Deployments refused, as a share of those asked for.
    pub failure_rate: f64,
    /// Servers without a VM, as a share of all.
    pub empty_server_ratio: f64,
    pub chassis_score_std: f64,
    pub server_score_std: f64,
    /// Chassis-hours above the budget, in the whole cluster.
    pub capping_events_per_week: f64,
    /// Hours of user-facing cores that a server's own limit would throttle in them, over all days.
    pub user_facing_throttled_core_h: f64,
    /// The budget of a chassis, in watts, that would be exceeded in 1 % of chassis-hours.
    pub budget_1pct_w: f64,
    /// The lowest and the highest of the seeds.
    pub budget_1pct_w_range: (f64, f64),
    /// That of each seed, in the order of the seeds, to be compared seed by seed.
    pub budget_1pct_w_by_seed: Vec<f64>,
    /// Watts that the low-priority cores of a server with VMs can shed, 10th percentile over server-hours.
    pub sheddable_w_p10: f64,
    /// Deployments refused because all servers together had too few cores.
    pub failures_for_cores: f64,
    /// Deployments refused although there were enough.
    pub failures_for_fragmentation: f64,
    /// The lowest and the highest of the seeds: chassis and server scores' deviations.
    pub chassis_score_std_range: (f64, f64),
    /// The same of the servers'.
    pub server_score_std_range: (f64, f64),
    pub seeds: usize,
}

/// Puts the months of these cases together, which are in the order of [`jobs`].
pub fn rows(options: &Options, cases: &[Case], done: &[Done]) -> Vec<SchedulerResult> {
    let (seeds, weeks) = (usize::from(options.seeds.seeds), f64::from(options.days) / 7.0);
    let row = |(case, months): (&Case, &[Done])| {
        let over = |of: &dyn Fn(&Month) -> f64| Spread::of(months.iter().map(|d| of(&d.month)));
        let failures =
            |reason| over(&|m: &Month| m.failures.get(&reason).copied().unwrap_or(0) as f64).median;
        let (chassis, server) = (over(&|m| m.chassis_score_std), over(&|m| m.server_score_std));
        let budget = Spread::of(months.iter().map(|d| d.budget_1pct_w));

        SchedulerResult {
            arm: case.arm,
            alpha: (case.arm != Arm::None).then(|| case.setup.policy.alpha.get()),
            failure_rate: over(&Month::failure_rate).median,
            empty_server_ratio: over(&|m| m.empty_server_ratio).median,
            chassis_score_std: chassis.median,
            server_score_std: server.median,
            capping_events_per_week: over(&|m| m.capped_hours as f64 / weeks).median,
            user_facing_throttled_core_h: over(&|m| m.user_facing_throttled_core_h).median,
            budget_1pct_w: budget.median,
            budget_1pct_w_range: (budget.min, budget.max),
            budget_1pct_w_by_seed: months.iter().map(|d| d.budget_1pct_w).collect(),
            sheddable_w_p10: over(&|m| m.sheddable_w_p10).median,
            failures_for_cores: failures(Reason::Cores),
            failures_for_fragmentation: failures(Reason::Fragmentation),
            chassis_score_std_range: (chassis.min, chassis.max),
            server_score_std_range: (server.min, server.max),
            seeds,
        }
    };

    cases.iter().zip(done.chunks(seeds.max(1))).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Options {
        Options { chassis: 5, days: 3, seeds: Seeds::first(2), ..Options::default() }
    }

    #[test]
    fn the_rule_balances_chassis_and_spares_user_facing_cores() {
        let options = Options { alphas: vec![0.0, 0.8], ..small() };
        let budget_w = calibrate(&options).unwrap();
        let cases = options.figure7().unwrap();
        let jobs = jobs(&options, &cases, budget_w).unwrap();
        assert_eq!(jobs.len(), 2 * 9);
        let done: Vec<_> = jobs.iter().map(|job| job.run().unwrap()).collect();
        let rows = rows(&options, &cases, &done);
        let of =
            |arm, alpha: Option<f64>| rows.iter().find(|r| r.arm == arm && r.alpha == alpha).unwrap().clone();
        let (none, model) = (of(Arm::None, None), of(Arm::Model, Some(0.8)));

        // Where nothing is known the rule says nothing, and all is as without it.
        let unknown = SchedulerResult { arm: Arm::None, alpha: None, ..of(Arm::Unknown, Some(0.8)) };
        assert_eq!(unknown, none);
        let oracle = of(Arm::Oracle, Some(0.8));
        assert!(model.chassis_score_std < 0.5 * none.chassis_score_std, "{model:?} {none:?}");
        assert!(model.chassis_score_std < 0.7 * of(Arm::Model, Some(0.0)).chassis_score_std);
        assert!(oracle.server_score_std < model.server_score_std, "{oracle:?} {model:?}");
        assert!(model.server_score_std < none.server_score_std, "{model:?} {none:?}");
        assert!(model.capping_events_per_week <= none.capping_events_per_week);
        assert!(model.budget_1pct_w < none.budget_1pct_w, "{model:?} {none:?}");

        // The same again gives the same, and in any order.
        assert_eq!(jobs[3].run().unwrap(), done[3]);
    }

    #[test]
    fn the_other_cases_change_one_thing_each() {
        let options = small();
        let weights = options.weights();
        let rules = |case: &Case| (case.setup.policy.best_fit, case.setup.policy.power);
        assert_eq!(rules(&weights[0]), (1, 0));
        let named: Vec<_> = weights[1..].iter().map(|c| (&*c.name, rules(c))).collect();
        assert_eq!(named[0], ("1:2", (1, 2)));
        assert_eq!((named[6], named.len()), (("4:1", (4, 1)), 12));
        let cases = options.knowledge();
        let of = |name: &str| cases.iter().find(|case| case.name == name).unwrap().setup.prediction;

        for arm in [Arm::Model, Arm::Oracle] {
            assert_eq!(of(arm.name()), arm.prediction());
        }
        assert_eq!(of("model's class, no P95 (criticality-only)"), Arm::CriticalityOnly.prediction());

        // Twice as much is asked for as there is.
        let full = [Case { load: 2.0, ..options.fuller()[1].clone() }];
        let over = jobs(&options, &full, 1e9).unwrap();
        let done: Vec<_> = over.iter().map(|job| job.run().unwrap()).collect();
        assert!(rows(&options, &full, &done)[0].failure_rate > 0.1);

        // Seeds that weights are chosen by are used for nothing else.
        let seeds = |cases: &[Case]| -> Vec<u64> {
            jobs(&options, cases, 1e9).unwrap().iter().map(|job| job.seed).collect()
        };
        let measured = seeds(&options.figure7().unwrap());
        let choosing = seeds(&weights);
        assert!(choosing.iter().all(|seed| !measured.contains(seed) && *seed != 1 + CALIBRATION));

        // What is measured is what ships.
        let shipped = options.case(Arm::Model, Alpha::PAPER).setup.policy;
        assert_eq!(shipped, Policy::POWER);
    }
}
