//! Twelve servers that share a budget: the paper's Figure 6.

use core::time::Duration;

use ballast_agent_core::Policy;
pub use ballast_types::wire::SharePolicy as Shares;
use ballast_types::{PowerModel, VmClass, Watts};
use clap::Args;
use serde::Serialize;

use super::load::{self, Kind, Work};
use super::medians::Medians;
use super::options::{Seeds, minutes, named, usual};
use super::trial::{self, Judged, LONGEST, Measured};
use super::{Arrivals, Contender, OptionError, Shape, watts, within};
use ballast_cli::common::numbers::{positive, share};
use ballast_sim::baseline::Baseline;
use ballast_sim::plant::{PlantSpec, SensorSpec};
use ballast_sim::scenario::{Controller, Scenario};
use ballast_sim::world::Violation;

const SERVERS: usize = 12;
const USER_FACING_CORES: u16 = 4;
const BATCH_CORES: u16 = 6;

/// For how long batch VMs are calm before they all begin in full at once, in seconds. Controllers see the
/// draw from the start: a load that is there from the start is no surprise to them, a rise is.
const QUIET_S: f64 = 20.0;

/// Which VMs are on which server: always 36 user-facing VMs of 4 cores and 36 batch VMs of 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Three of each kind on every server.
    Balanced,
    /// Nine user-facing on each of four servers; batch on the other eight, five on four of them and four
    /// on the rest.
    Imbalanced,
}

impl Placement {
    pub const ALL: [Self; 2] = [Self::Balanced, Self::Imbalanced];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::Imbalanced => "imbalanced",
        }
    }
}

#[derive(Args, Clone, Debug, PartialEq, Serialize)]
#[command(mut_arg("seeds", |arg| arg.default_value("3")))]
pub struct Options {
    #[command(flatten)]
    pub seeds: Seeds,
    /// How long the batch work takes without throttling; it begins in full 20 s into the run
    #[arg(long, value_name = "MIN", default_value_t = 26.0, value_parser = minutes)]
    pub minutes: f64,
    #[command(flatten)]
    pub shape: Shape,
    /// Where VMs are, with commas between
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "balanced,imbalanced",
        value_parser = named(Placement::ALL, Placement::name))]
    pub placements: Vec<Placement>,
    /// Which policies are compared, with commas between
    #[arg(long = "policies", value_name = "NAME,…", value_delimiter = ',',
        default_value = "none,full-server,stepwise,thunderbolt,oracle",
        value_parser = named(Contender::ALL, Contender::name))]
    pub contenders: Vec<Contender>,
    /// How the chassis manager splits the budget, with commas between
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "even,critical-first",
        value_parser = named(Shares::ALL, Shares::name))]
    pub shares: Vec<Shares>,
    /// The chassis's budget at the supplies' input, in watts
    #[arg(long, value_name = "W", default_value_t = 2450.0, value_parser = positive)]
    pub budget_w: f64,
    /// How user-facing requests come
    #[arg(long, value_name = "NAME", default_value = "steady",
        value_parser = named(Arrivals::ALL, Arrivals::name))]
    pub arrivals: Arrivals,
    /// Share of the batch work that scales with the clock
    #[arg(long, value_name = "F", default_value_t = 0.6, value_parser = share)]
    pub batch_share: f64,
}

impl Default for Options {
    fn default() -> Self {
        usual()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    plan: Plan,
    asked: Requested,
    seed: u64,
}

/// What all runs have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Plan {
    model: PowerModel,
    arrivals: Arrivals,
    batch_share: f64,
    batch_s: f64,
    budget: Watts,
}

impl Plan {
    /// A run ends at the latest here, in seconds.
    fn longest_s(&self) -> f64 {
        LONGEST * (QUIET_S + self.batch_s)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Requested {
    placement: Placement,
    contender: Contender,
    /// `None` where nobody shares.
    shares: Option<Shares>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    asked: Requested,
    seed: u64,
    measured: Measured,
}

/// One contender under one placement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ChassisResult {
    pub placement: &'static str,
    /// Who kept the draw down.
    pub policy: &'static str,
    /// How the budget was split; `null` where nobody splits it.
    pub shares: Option<&'static str>,
    #[serde(flatten)]
    pub(crate) figures: Medians,
}

/// Every row of `contenders` under `placement`, in order.
fn asked(options: &Options, placement: Placement) -> Vec<Requested> {
    let mut all = Vec::new();
    for contender in options.contenders.iter().copied() {
        let asked = |shares| Requested { placement, contender, shares };
        match contender {
            Contender::Stepwise | Contender::Manager => {
                all.extend(options.shares.iter().map(|shares| asked(Some(*shares))));
            }
            _ => all.push(asked(None)),
        }
    }
    all
}

/// All runs that [`rows`] needs: `none` and `oracle` are always among them.
pub fn jobs(options: &Options) -> Result<Vec<Job>, OptionError> {
    let model = options.shape.model()?;
    let (idle_w, full_w) = (SERVERS as f64 * model.half_idle_w, SERVERS as f64 * model.full_w);
    let plan = Plan {
        model,
        arrivals: options.arrivals,
        batch_share: within("batch_share", options.batch_share, 0.0, 1.0)?,
        batch_s: 60.0 * within("minutes", options.minutes, 0.01, 10_000.0)?,
        budget: watts("budget_w", options.budget_w, idle_w, full_w)?,
    };

    let mut jobs = Vec::new();

    for seed in options.seeds.all() {
        for placement in options.placements.iter().copied() {
            let mut all = asked(options, placement);
            for contender in [Contender::None, Contender::Oracle] {
                let judge = Requested { placement, contender, shares: None };
                if !all.contains(&judge) {
                    all.push(judge);
                }
            }

            jobs.extend(all.into_iter().map(|asked| Job { plan, asked, seed }));
        }
    }

    Ok(jobs)
}

fn vms(placement: Placement, n: usize) -> Vec<Kind> {
    let (user_facing, batch) = match (placement, n) {
        (Placement::Balanced, _) => (3, 3),
        (Placement::Imbalanced, 0..4) => (9, 0),
        (Placement::Imbalanced, 4..8) => (0, 5),
        (Placement::Imbalanced, _) => (0, 4),
    };
    let kind = |class, cores| Kind { class, cores };
    let mut vms = vec![kind(VmClass::UserFacing, USER_FACING_CORES); user_facing];
    vms.extend(vec![kind(VmClass::NonUserFacing, BATCH_CORES); batch]);
    vms
}

impl Job {
    /// Makes the run. This fails when a controller breaks a promise that holds for every contender.
    pub fn run(&self) -> Result<Run, Violation> {
        let budget_w = self.plan.budget.as_f64();
        let measured = trial::run(self.scenario(), &[budget_w], QUIET_S, self.plan.batch_s)?;
        Ok(Run { asked: self.asked, seed: self.seed, measured })
    }

    pub(super) fn plant(&self) -> PlantSpec {
        let Self { plan, asked, seed } = self;
        let work = Work {
            arrivals: plan.arrivals,
            batch_share: plan.batch_share,
            service_ms: load::SERVICE_MS,
            batch_s: plan.batch_s,
            quiet_s: QUIET_S,
            length_s: plan.longest_s(),
            seed: *seed,
        };
        let server = |n| work.server(n, plan.model, &vms(asked.placement, n));
        let servers = (0..SERVERS).map(server).collect();
        PlantSpec::lossless(servers, SensorSpec::default(), plan.budget)
    }

    fn scenario(&self) -> Scenario {
        let Self { plan, asked, seed } = self;
        let length = Duration::from_secs_f64(plan.longest_s());
        let mut scenario = Scenario::new(self.plant(), Policy::Stepwise, *seed, length);
        scenario.controller = self.controller();
        // Its budget is that of the servers alone, and the manager is told so.
        scenario.chassis.shared_floor = Some(Watts::ZERO);
        scenario.chassis.shares = asked.shares.unwrap_or(scenario.chassis.shares);
        scenario
    }

    fn controller(&self) -> Controller {
        let budget = self.plan.budget;
        let baseline = match self.asked.contender {
            Contender::Stepwise | Contender::Manager => return Controller::Manager,
            Contender::FullServer => Baseline::FullServer { share: budget.per(SERVERS as u64) },
            Contender::Thunderbolt => Baseline::Thunderbolt,
            Contender::Oracle => Baseline::Oracle(budget),
            Contender::None => Baseline::Nobody,
        };
        Controller::Baseline(baseline)
    }
}

/// What the runs came to: by placement as in the options, then by contender, then by shares.
pub fn rows(options: &Options, runs: &[Run]) -> Vec<ChassisResult> {
    let (seeds, placements) = (options.seeds.all(), options.placements.iter());
    let all = placements.flat_map(|placement| asked(options, *placement));
    all.map(|asked| row(asked, &seeds, runs)).collect()
}

fn row(asked: Requested, seeds: &[u64], runs: &[Run]) -> ChassisResult {
    let seeds = seeds.iter().filter_map(|seed| {
        Judged::of(asked.contender, 0, |contender| {
            let shares = asked.shares.filter(|_| contender == asked.contender);
            let wanted = Requested { contender, shares, ..asked };
            runs.iter().find(|r| r.asked == wanted && r.seed == *seed).map(|r| &r.measured)
        })
    });

    ChassisResult {
        placement: asked.placement.name(),
        policy: asked.contender.name(),
        shares: asked.shares.map(Shares::name),
        figures: Medians::of("over_budget", &seeds.collect::<Vec<_>>()),
    }
}
