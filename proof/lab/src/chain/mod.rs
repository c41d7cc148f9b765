//! The whole chain, from VMs' use to the budget of their chassis, with an oracle for every stage.
//!
//! ```text
//!  fleet ─use─▶ labels ─▶ model ─▶ placement ─draws─▶ plan ─▶ held-out weeks under the budget
//!   truth ·······▲··········▲·········▲················▲            with the real controllers
//! ```
//! | module | what it knows |
//! |---|---|
//! | `learn` | what is told of every VM: by the labeller, the trainer with its gate, and the model's answers |
//! | `placed` | where VMs go, and what every server then has to do |
//! | `replay` | a chassis's half hours under a budget, with the chassis manager and the agents |
//! | `plan` | the budget that is planned, and the one that holds |
//!
//! Every stage is the code that users run; only the fleet is made up. An oracle is put in the place of one
//! stage, or of all.

mod learn;
mod placed;
mod plan;
mod replay;
#[cfg(test)]
mod tests;

use ballast_placement::Policy;
use ballast_placement::rules::Alpha;
use ballast_predict::fleet::{self, START_S, SyntheticFleet, Uses};
use ballast_predict::train::TrainError;
use ballast_predict::vm::DAY_S;
use ballast_sim::world::Violation;
use ballast_types::{Utilisation, VmClass, Watts};
use clap::Args;
use serde::Serialize;
use thiserror::Error;

use super::Spread;
use super::options::Seeds;
use ballast_cli::common::numbers::within;
use learn::{Knowledge, Labeller, Share};
use placed::{Cluster, Needs};

/// Servers of a chassis, and cores of a server.
const SERVERS: u32 = 12;
const CORES: u32 = 40;

#[derive(Args, Clone, Debug, PartialEq, Serialize)]
#[command(mut_arg("seeds", |arg| arg.default_value("20")))]
pub struct Options {
    /// How many VMs arrive in all
    #[arg(long, value_name = "N", default_value_t = 15_000,
        value_parser = clap::value_parser!(u32).range(5_000..=1_000_000))]
    pub vms: u32,
    /// Days of history before the first VM is placed
    #[arg(long, value_name = "N", default_value_t = 28,
        value_parser = clap::value_parser!(u32).range(14..=366))]
    pub learn_days: u32,
    /// Days after these until draws are planned from: the cluster becomes one that this chain has filled
    #[arg(long, value_name = "N", default_value_t = 28,
        value_parser = clap::value_parser!(u32).range(1..=366))]
    pub settle_days: u32,
    /// Days whose draws are planned from
    #[arg(long, value_name = "N", default_value_t = 21,
        value_parser = clap::value_parser!(u32).range(4..=366))]
    pub plan_days: u32,
    /// Days after these that the budget is held against
    #[arg(long, value_name = "N", default_value_t = 7,
        value_parser = clap::value_parser!(u32).range(1..=366))]
    pub held_out_days: u32,
    /// Days from one training to the next
    #[arg(long, value_name = "N", default_value_t = 14,
        value_parser = clap::value_parser!(u32).range(1..=366))]
    pub retrain_days: u32,
    /// The share of cores that is allocated on average: there are as many chassis as that takes
    #[arg(long, value_name = "F", default_value_t = 0.65, value_parser = |text: &str| within(text, 0.1, 0.9))]
    pub load: f64,
    #[command(flatten)]
    pub seeds: Seeds,
}

impl Options {
    /// Seconds at which placing, planning and holding out begin, and the end.
    fn times(&self) -> [i64; 4] {
        let mut at = START_S;
        [self.learn_days, self.settle_days, self.plan_days, self.held_out_days].map(|days| {
            at += i64::from(days) * DAY_S;
            at
        })
    }
}

/// A chain, by the stage where it knows the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The fair baseline: allocated cores are balanced over chassis, and whoever is slowed might be user-facing.
    Baseline,
    /// The chain as it ships: our labels, our models, our plan.
    Chain,
    /// Models learn from true classes.
    Labels,
    /// Of every VM its true class and bucket of P95 are told.
    Model,
    /// VMs are placed by their true class and P95.
    Placement,
    /// The budget is the lowest that holds in the weeks to come.
    Plan,
    All,
}

impl Stage {
    pub const ALL: [Self; 7] =
        [Self::Baseline, Self::Chain, Self::Labels, Self::Model, Self::Placement, Self::Plan, Self::All];
    /// Those with one oracle, in the order of the chain.
    pub const ONE: [Self; 4] = [Self::Labels, Self::Model, Self::Placement, Self::Plan];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Chain => "chain",
            Self::Labels => "labels",
            Self::Model => "model",
            Self::Placement => "placement",
            Self::Plan => "plan",
            Self::All => "all",
        }
    }

    pub const fn oracle(self) -> bool {
        !matches!(self, Self::Baseline | Self::Chain)
    }

    fn knows(self, stage: Self) -> bool {
        self == stage || self == Self::All
    }

    const fn labeller(self) -> Labeller {
        match self {
            Self::Labels | Self::All => Labeller::Truth,
            _ => Labeller::Ours,
        }
    }
}

/// Why a chain did not come to its end.
#[derive(Debug, Error)]
pub enum ChainError {
    #[error("seed {seed}: {error}; more --vms are needed")]
    Train { seed: u64, error: TrainError },
    #[error("seed {seed}: {error}")]
    Controller { seed: u64, error: Violation },
    #[error("seed {seed}: no draw to plan from")]
    NoDraw { seed: u64 },
}

/// What one chain came to on one fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub stage: Stage,
    pub planned: Watts,
    /// The same, raised until the held-out weeks keep the promise.
    pub held: Watts,
    /// The buffer of the plan, as a share of the lowest budget.
    pub buffer: f64,
    pub chassis: u32,
    /// VMs that found no place, as a share of all.
    pub refused: f64,
    /// Of what labels and models said.
    pub labels: Share,
    pub told: Share,
    /// Models that the gate kept out.
    pub kept_out: u32,
    /// What the held-out weeks came to under the budget that holds.
    pub measured: replay::Measured,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    pub seed: u64,
}

impl Job {
    pub fn run(&self, options: &Options) -> Result<Vec<Outcome>, ChainError> {
        let seed = self.seed;
        let [placed_s, .., end_s] = options.times();
        let days = ((end_s - START_S) / DAY_S) as u32;
        let drift = Some(fleet::Drift::default());
        let mut made = fleet::make(&fleet::Options { seed, vms: options.vms as usize, days, drift });
        let uses = Uses::of(&made, seed);

        for (place, vm) in made.vms.iter_mut().enumerate() {
            vm.avg_cpu = Some(uses.vm(place).mean_percent());
        }

        let cluster = Cluster::new(&made, options);
        let told = |labeller| {
            learn::told(&made, &uses, labeller, options, seed, placed_s)
                .map_err(|error| ChainError::Train { seed, error })
        };
        let (ours, truth) = (told(Labeller::Ours)?, told(Labeller::Truth)?);
        let mut outcomes = Vec::new();

        for stage in Stage::ALL {
            let knowledge = match stage.labeller() {
                Labeller::Ours => &ours,
                Labeller::Truth => &truth,
            };
            let chain = Chain { seed, options, fleet: &made, uses: &uses, cluster, stage, knowledge };
            outcomes.push(chain.run()?);
        }
        Ok(outcomes)
    }
}

/// What a scheduler and the agents are told of a VM.
type Predicted = (Option<VmClass>, Option<Utilisation>);

#[derive(Clone, Copy)]
struct Chain<'a> {
    seed: u64,
    options: &'a Options,
    fleet: &'a SyntheticFleet,
    uses: &'a Uses,
    cluster: Cluster,
    stage: Stage,
    knowledge: &'a Knowledge,
}

impl Chain<'_> {
    fn run(&self) -> Result<Outcome, ChainError> {
        let stage = self.stage;
        let [placed_s, planned_s, ..] = self.options.times();
        let policy = match stage {
            Stage::Baseline => Policy { alpha: Alpha::CHASSIS, ..Policy::POWER },
            _ => Policy::POWER,
        };
        let placed = self.cluster.place(self.fleet, policy, placed_s, |vm| self.placed_by(vm));
        let needs = Needs::of(self, &placed, planned_s);
        let budget = plan::budget(self, &placed, &needs)?;
        let (labels, kept_out) = match stage {
            Stage::Baseline => (Share::default(), 0),
            _ => (self.knowledge.labels, self.knowledge.kept_out),
        };

        Ok(Outcome {
            stage,
            planned: budget.planned,
            held: budget.held,
            buffer: budget.buffer,
            chassis: self.cluster.chassis,
            refused: placed.refused,
            labels,
            told: needs.told(plan::held_out(self.options)),
            kept_out,
            measured: budget.measured,
        })
    }

    /// What the agents and the planner know.
    fn told(&self, vm: usize) -> Predicted {
        match self.stage {
            Stage::Baseline => (None, None),
            stage if stage.knows(Stage::Model) => {
                let upper = self.fleet.vms[vm].bucket().map_or(100, |bucket| bucket.upper_percent());
                (Some(self.fleet.purposes[vm].class), Utilisation::from_ratio(f64::from(upper) / 100.0))
            }
            _ => self.knowledge.told[vm],
        }
    }

    fn placed_by(&self, vm: usize) -> Predicted {
        match self.stage {
            // As if every core were busy: so chassis are balanced without a prediction.
            Stage::Baseline => (None, Some(Utilisation::FULL)),
            stage if stage.knows(Stage::Placement) => {
                let p95 = self.fleet.vms[vm].p95_cpu.map(|p95| p95 / 100.0);
                (Some(self.fleet.purposes[vm].class), p95.and_then(Utilisation::from_ratio))
            }
            _ => self.told(vm),
        }
    }
}

/// A chain over all seeds; medians. Gains are compared seed by seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChainRow {
    pub stage: Stage,
    pub oracle: bool,
    /// What the budget of a chassis is lower by than the baseline's, in watts.
    pub watts: f64,
    /// The lowest and the highest of the seeds.
    pub watts_range: (f64, f64),
    pub watts_by_seed: Vec<f64>,
    /// What the chain loses without this oracle, in watts.
    pub lost_w: f64,
    /// The lowest and the highest of the seeds.
    pub lost_w_range: (f64, f64),
    /// The budget of a chassis that held.
    pub budget_w: f64,
    pub planned_w: f64,
    /// Seeds whose planned budget held as it was.
    pub kept: usize,
    pub buffer: f64,
    /// Of the cores' time in the held-out weeks: what was told of it.
    pub user_facing_recall: f64,
    pub batch_precision: f64,
    pub batch_recall: f64,
    /// Of VMs with a label to learn from.
    pub label_user_facing_recall: f64,
    pub label_batch_precision: f64,
    pub label_batch_recall: f64,
    /// In the held-out weeks under the budget that held.
    pub capped_rate: f64,
    pub user_facing_slowed: f64,
    pub over_budget_s_max: f64,
    pub refused: f64,
    pub models_kept_out: u32,
    pub chassis: f64,
    pub seeds: usize,
}

/// One row a stage, of what every seed came to.
pub fn rows(seeds: &[Vec<Outcome>]) -> Vec<ChainRow> {
    let of = |stage: Stage| -> Vec<&Outcome> {
        seeds.iter().flat_map(|all| all.iter().find(|outcome| outcome.stage == stage)).collect()
    };
    let less = |of: &[&Outcome], than: &[&Outcome]| -> Vec<f64> {
        of.iter().zip(than).map(|(of, than)| (than.held - of.held).as_f64()).collect()
    };
    let (baseline, chain) = (of(Stage::Baseline), of(Stage::Chain));

    let row = |stage: Stage| {
        let own = of(stage);
        let over = |value: &dyn Fn(&Outcome) -> f64| Spread::of(own.iter().map(|outcome| value(outcome)));
        let median = |value: &dyn Fn(&Outcome) -> f64| over(value).median;
        let watts_by_seed = less(&own, &baseline);
        let (watts, lost) = (Spread::of(watts_by_seed.iter().copied()), Spread::of(less(&own, &chain)));
        ChainRow {
            stage,
            oracle: stage.oracle(),
            watts: watts.median,
            watts_range: (watts.min, watts.max),
            watts_by_seed,
            lost_w: lost.median,
            lost_w_range: (lost.min, lost.max),
            budget_w: median(&|o| o.held.as_f64()),
            planned_w: median(&|o| o.planned.as_f64()),
            kept: own.iter().filter(|o| o.held <= o.planned).count(),
            buffer: median(&|o| o.buffer),
            user_facing_recall: median(&|o| o.told.user_facing_recall()),
            batch_precision: median(&|o| o.told.batch_precision()),
            batch_recall: median(&|o| o.told.batch_recall()),
            label_user_facing_recall: median(&|o| o.labels.user_facing_recall()),
            label_batch_precision: median(&|o| o.labels.batch_precision()),
            label_batch_recall: median(&|o| o.labels.batch_recall()),
            capped_rate: median(&|o| o.measured.capped_rate()),
            user_facing_slowed: median(&|o| o.measured.user_facing_slowed()),
            over_budget_s_max: over(&|o| o.measured.over_budget_s_max).max,
            refused: over(&|o| o.refused).max,
            models_kept_out: own.iter().map(|o| o.kept_out).sum(),
            chassis: median(&|o| f64::from(o.chassis)),
            seeds: own.len(),
        }
    };
    Stage::ALL.map(row).to_vec()
}
