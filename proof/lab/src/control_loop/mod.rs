//! The control loop beside other controllers: an oracle, a plain PI, Dynamo's bands, on loads that use up the budget.
//!
//! Every run has the same plant, sensors and polls. Only who sets the p-states differs.

mod loads;
mod measure;
mod random;
mod sweep;
#[cfg(test)]
mod tests;

use core::time::Duration;

use ballast_agent_core::Policy;
use ballast_cli::common::numbers;
use ballast_sim::baseline::{Baseline, Rule};
use ballast_sim::plant::PlantSpec;
use ballast_sim::scenario::{Control, Controller, Scenario};
use ballast_sim::world::{Checks, Violation};
use clap::Args;
use serde::Serialize;

pub use loads::Load;
pub use measure::{Figures, SETTLED_S};
pub use random::{RandomResult, draw_faultless, random_rows, run_random};
pub use sweep::{Change, without_effect};

use crate::options::{Seeds, named};

/// Who sets the batch cores' p-states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// The highest p-states that fit, knowing the load.
    Oracle,
    /// Its p-states a reaction time late.
    LateOracle,
    /// A plain PI controller at 99 % of the budget.
    Pi,
    /// The same with more integral action at 98.5 %.
    PiLower,
    /// Dynamo's bands.
    Bands,
    /// The product as it ships.
    Ballast,
    /// The product with `preset = "paper"`.
    Paper,
}

impl Contender {
    pub const ALL: [Self; 7] =
        [Self::Oracle, Self::LateOracle, Self::Pi, Self::PiLower, Self::Bands, Self::Ballast, Self::Paper];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Oracle => "oracle",
            Self::LateOracle => "late-oracle",
            Self::Pi => "pi",
            Self::PiLower => "pi-lower",
            Self::Bands => "bands",
            Self::Ballast => "ballast",
            Self::Paper => "paper",
        }
    }

    fn scenario(self, plant: PlantSpec, seed: u64, length: Duration) -> Scenario {
        let baseline = match self {
            Self::Ballast => return Control::new(Policy::Stepwise).scenario(plant, seed, length),
            Self::Paper => return Control::PAPER.scenario(plant, seed, length),
            Self::Oracle => Baseline::Oracle(plant.budget),
            Self::LateOracle => Baseline::LateOracle(plant.budget),
            Self::Pi => Baseline::Central(Rule::Pi { kp: 2.0, ki: 0.4, set_point: 0.99 }),
            Self::PiLower => Baseline::Central(Rule::Pi { kp: 1.5, ki: 0.6, set_point: 0.985 }),
            Self::Bands => Baseline::Central(Rule::Bands { cap: 0.99, target: 0.95, uncap: 0.9 }),
        };
        let scenario = Scenario::new(plant, Policy::None, seed, length);
        Scenario { controller: Controller::Baseline(baseline), ..scenario }
    }
}

/// What to measure.
#[derive(Args, Clone, Debug, PartialEq, Serialize)]
pub struct Options {
    /// Which loads are run, with commas between
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "moving,lasting,steps",
        value_parser = named(Load::ALL, Load::name))]
    pub loads: Vec<Load>,
    /// Highest draws with all batch cores at their lowest frequency, in percent of the budget
    #[arg(long, value_name = "PERCENT,…", value_delimiter = ',', default_value = "93,85",
        value_parser = |text: &str| numbers::within(text, 50.0, 150.0))]
    pub floors: Vec<f64>,
    /// Servers of each chassis, from 1 to 1000
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "12",
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub servers: Vec<u16>,
    /// Which controllers are compared, with commas between
    #[arg(long, value_name = "NAME,…", value_delimiter = ',',
        default_value = "oracle,late-oracle,pi,pi-lower,bands,ballast,paper",
        value_parser = named(Contender::ALL, Contender::name))]
    pub policies: Vec<Contender>,
    #[command(flatten)]
    pub seeds: Seeds,
    /// The length of a run, in seconds
    #[arg(long, value_name = "S", default_value_t = 200.0,
        value_parser = |text: &str| numbers::within(text, 31.0, 86_400.0))]
    pub seconds: f64,
    /// Time between two readings of the power supplies, in seconds
    #[arg(long, value_name = "S", default_value_t = 0.2,
        value_parser = |text: &str| numbers::within(text, 0.01, 60.0))]
    pub refresh_s: f64,
    /// Run all loads with 4, 12, 48 and 200 servers and floors of 93, 85, 75, 103 and 110 %
    #[arg(long, conflicts_with_all = ["loads", "floors", "servers", "sweep", "random"])]
    pub all: bool,
    /// Halve and double each number of the product's loops in turn, with ballast alone
    #[arg(long, conflicts_with = "random")]
    pub sweep: bool,
    /// Instead of the table, N runs drawn from seeds without faults and with floors of at most 95 %
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub random: Option<u32>,
}

impl Options {
    /// The same with what `--all` stands for.
    fn expanded(&self) -> Self {
        if !self.all {
            return self.clone();
        }
        let loads = Load::ALL.to_vec();
        let floors = vec![93.0, 85.0, 75.0, 103.0, 110.0];
        Self { loads, floors, servers: vec![4, 12, 48, 200], ..self.clone() }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    load: Load,
    /// In percent of the budget.
    floor: f64,
    servers: u16,
    policy: Contender,
    change: Option<Change>,
    seed: u64,
    seconds: f64,
    refresh_s: f64,
}

/// One controller under one load; figures over the seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoopResult {
    pub load: &'static str,
    /// Highest draw with all batch cores at their lowest frequency, in percent of the budget.
    pub floor_percent: f64,
    pub servers: u16,
    pub policy: &'static str,
    /// The number of the product's loop that was changed, with its factor; none without `--sweep`.
    pub change: Option<String>,
    #[serde(flatten)]
    pub figures: Figures,
}

impl Job {
    fn scenario(&self) -> Scenario {
        let mut plant = self.load.plant(self.servers.into(), self.seconds, self.seed, self.floor / 100.0);
        let refresh = Duration::from_secs_f64(self.refresh_s);
        plant.supply_meter.refresh = refresh;
        let length = Duration::from_secs_f64(self.seconds);
        let mut scenario = self.policy.scenario(plant, self.seed, length);
        scenario.chassis.sensor_refresh = refresh;
        scenario.checks = Checks::NONE;
        if let Some(change) = &self.change {
            change.apply(&mut scenario);
        }
        scenario
    }

    /// Runs it, and gives its figures.
    ///
    /// # Errors
    /// Returns the broken promise that ended the run.
    pub fn run(&self) -> Result<Figures, Violation> {
        let mut draw = measure::Draw::default();
        let report = self.scenario().run(&mut [&mut draw]).kept()?;
        Ok(draw.figures(&report))
    }
}

/// All runs that [`rows`] needs: the seeds of a row one after the other.
pub fn jobs(options: &Options) -> anyhow::Result<Vec<Job>> {
    let options = options.expanded();
    let mut policies = options.policies.clone();
    policies.retain(|policy| !options.sweep || *policy == Contender::Ballast);
    let any = Job {
        load: Load::ALL[0],
        floor: 0.0,
        servers: 0,
        policy: Contender::Ballast,
        change: None,
        seed: 0,
        seconds: options.seconds,
        refresh_s: options.refresh_s,
    };
    let jobs = each(&[any], &options.loads, |job, load| job.load = load);
    let jobs = each(&jobs, &options.floors, |job, floor| job.floor = floor);
    let jobs = each(&jobs, &options.servers, |job, servers| job.servers = servers);
    let jobs = each(&jobs, &policies, |job, policy| job.policy = policy);
    let jobs = each(&jobs, &sweep::changes(options.sweep)?, |job, change| job.change = change);
    Ok(each(&jobs, &options.seeds.all(), |job, seed| job.seed = seed))
}

/// Every job with every value, the values of a job one after the other.
fn each<T: Clone>(jobs: &[Job], values: &[T], set: fn(&mut Job, T)) -> Vec<Job> {
    let mut all = Vec::with_capacity(jobs.len() * values.len());
    for job in jobs {
        for value in values {
            let mut job = job.clone();
            set(&mut job, value.clone());
            all.push(job);
        }
    }
    all
}

pub fn rows(options: &Options, jobs: &[Job], runs: &[Figures]) -> Vec<LoopResult> {
    let seeds = usize::from(options.seeds.seeds);
    let chunks = jobs.chunks(seeds).zip(runs.chunks(seeds));
    let rows = chunks.filter_map(|(jobs, runs)| jobs.first().map(|job| (job, runs)));
    rows.map(|(job, runs)| LoopResult {
        load: job.load.name(),
        floor_percent: job.floor,
        servers: job.servers,
        policy: job.policy.name(),
        change: job.change.as_ref().map(Change::name),
        figures: Figures::over(runs),
    })
    .collect()
}
