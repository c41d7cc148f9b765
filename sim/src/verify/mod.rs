//! A plan, checked: held-out draws under its budget, with the real controllers in virtual time.
//!
//! The planner counts by arithmetic: a reading above the budget is an event, and what has to be shed is
//! shed. Here the chassis manager and the agents hold the budget on the plant, while the chassis would
//! draw what was read. What then happens stands beside what the plan promised.
//!
//! | module | what it knows |
//! |---|---|
//! | `trials` | plans of the past against what came after them: which buffer held |
//! | `load` | a chassis's draw as loads of VMs on its servers, and what the policy means for their cores |
//! | `replay` | which stretches of time can see capping at all; these are run |
//! | `measured` | what they came to |
//! | `verdict` | what was promised, and whether it was kept |
//!
//! # How it is counted
//!
//! - A **unit** is the plan's unit of time (a minute, where nothing else is said) of one chassis, with a
//!   reading. A unit without one is neither replayed nor counted.
//! - A unit is an **event** if any core of a VM was held below its highest frequency in it, for as little
//!   as 10 ms and by whatever held it: its agent, the server's own limit, a slot's, or a supply's alert. It
//!   counts once, as the planner counts: as *user-facing* if a core of a user-facing VM was among them, else
//!   as *batch*. So a unit counts too in which nothing but the 30 s after an event were left of it.
//! - Rates are events over units.
//! - What an event **sheds** is the mean, over its unit, of the draw that was read less the draw that was
//!   left.
//!
//! # What is assumed
//!
//! Within a unit the draw is what was read: swings that are shorter than a unit are not in the telemetry.
//! All of it is dynamic power of VMs. Where servers' loads were measured ([`ServerLoads`]) each server and class
//! has its measured part of it, unit by unit; else it is in the proportion of the plan's classes (cores and
//! utilisations), the same on every server unless an imbalance is asked for. VMs have as many cores as the plan
//! says, or more where the highest load needs them. Non-user-facing VMs that the policy does not cap first
//! count as user-facing. A core that is slowed works longer for the same demand ([`Demand::Open`]), so that
//! less is shed than the planner, which leaves utilisation as it was, expects; [`Demand::Closed`] is its
//! assumption. The watts are the servers' own: nothing is lost and nothing else draws.

mod load;
mod measured;
mod replay;
mod trials;
mod verdict;

#[cfg(test)]
pub(crate) mod tests;

use core::time::Duration;

use ballast_planner::{Approach, Chassis, ClassLoad, Plan};
use ballast_types::Watts;
use ballast_types::wire::SharePolicy;
use serde::Serialize;

pub use measured::Measured;
pub use replay::replay;
pub use trials::{BackTest, Past, Trial, buffer_that_holds, peaks};
pub use verdict::{Promise, Verdict, What};

/// What is to be kept: a plan, and what it was made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Planned {
    /// Rates, floors, and whom it caps.
    pub approach: Approach,
    pub plan: Plan,
    pub chassis: Chassis,
    pub period: Duration,
}

impl Planned {
    /// What the chassis draws while idle. A budget under it cannot be kept, by whatever is done: then the
    /// servers' curves are not those of the telemetry.
    pub fn idle(&self) -> Watts {
        let idle_w = f64::from(self.chassis.servers) * self.chassis.server.idle_w;
        Watts::from_f64(idle_w).unwrap_or(Watts::MAX)
    }
}

/// One chassis's draws, a unit of time each, in order; a unit may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draws {
    name: String,
    /// In milliwatts; 0 is missing.
    milli: Vec<u32>,
    loads: Option<ServerLoads>,
}

/// How busy each server of a chassis was, by class, in the units of its [`Draws`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ServerLoads {
    /// By server and unit: user-facing VMs and others, as shares of its cores in steps of 1 / [`FULL`].
    servers: Vec<Vec<[u16; 2]>>,
}

/// A share of 1; above it stands what is missing.
const FULL: u16 = u16::MAX - 1;

impl ServerLoads {
    /// By server and unit: shares of the server's cores that user-facing VMs and others keep busy; together no
    /// more than all cores. NaN is missing.
    pub fn new(servers: impl IntoIterator<Item = Vec<[f32; 2]>>) -> Self {
        let steps = |share: f32| match share {
            share if share.is_nan() => u16::MAX,
            share => libm::roundf(share.clamp(0.0, 1.0) * f32::from(FULL)) as u16,
        };
        let server = |units: Vec<[f32; 2]>| units.into_iter().map(|both| both.map(steps)).collect();
        Self { servers: servers.into_iter().map(server).collect() }
    }

    /// User-facing VMs' and others' shares of every server's cores; `None` where one is missing.
    pub fn at(&self, unit: usize) -> Option<Vec<[f64; 2]>> {
        let share = |steps: u16| (steps <= FULL).then(|| f64::from(steps) / f64::from(FULL));
        let both = |units: &Vec<[u16; 2]>| {
            let [user_facing, others] = *units.get(unit)?;
            Some([share(user_facing)?, share(others)?])
        };
        self.servers.iter().map(both).collect()
    }

    /// The load of the whole chassis in a unit, where all of it is known.
    pub fn sum(&self, unit: usize) -> Option<ClassLoad> {
        let servers = self.at(unit)?;
        let sum = |class: usize| servers.iter().map(|both| both[class]).sum();
        Some(ClassLoad { user_facing: sum(0), others: sum(1) })
    }
}

impl Draws {
    /// Of the chassis `name`. A draw that no chassis has (not above 0 W, or above 4 MW) is missing.
    pub fn new(name: &str, draws: impl IntoIterator<Item = Option<Watts>>) -> Self {
        let milli = |draw: Option<Watts>| draw.map_or(0, |w| u32::try_from(w.milli()).unwrap_or(0));
        Self { name: name.to_owned(), milli: draws.into_iter().map(milli).collect(), loads: None }
    }

    /// The same with what the servers were busy with: the replay then has each class where it was.
    pub fn with_loads(self, loads: ServerLoads) -> Self {
        Self { loads: (!loads.servers.is_empty()).then_some(loads), ..self }
    }

    pub fn loads(&self) -> Option<&ServerLoads> {
        self.loads.as_ref()
    }

    pub fn between(&self, from: usize, until: usize) -> Self {
        let until = until.min(self.len());
        let from = from.min(until);
        let cut = |units: &Vec<[u16; 2]>| units.get(from..until).unwrap_or_default().to_vec();
        let loads = self.loads.as_ref();
        Self {
            name: self.name.clone(),
            milli: self.milli[from..until].to_vec(),
            loads: loads.map(|loads| ServerLoads { servers: loads.servers.iter().map(cut).collect() }),
        }
    }

    /// The load at the highest draw before this unit, of those whose load is known.
    pub fn peak(&self, before: usize) -> Option<ClassLoad> {
        let loads = self.loads()?;
        let known = |unit: usize| Some((self.get(unit)?, loads.sum(unit)?));
        (0..before.min(self.len())).filter_map(known).max_by_key(|(draw, _)| *draw).map(|(_, load)| load)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many units there are, missing ones included.
    pub fn len(&self) -> usize {
        self.milli.len()
    }

    pub fn is_empty(&self) -> bool {
        self.milli.is_empty()
    }

    /// The draw of unit `unit`; `None` where it is missing.
    pub fn get(&self, unit: usize) -> Option<Watts> {
        self.milli.get(unit).filter(|mw| **mw > 0).map(|mw| Watts::from_milli((*mw).into()))
    }

    pub fn iter(&self) -> impl Iterator<Item = Watts> {
        (0..self.len()).filter_map(|unit| self.get(unit))
    }
}

/// What VMs do whose cores are slowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Demand {
    /// The same work comes, and takes longer: utilisation rises, to 1 at most.
    #[default]
    Open,
    /// Non-user-facing VMs stay as busy as they were and get less done; user-facing ones as above.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Options {
    /// Of all chance: meters, latencies, imbalance.
    pub seed: u64,
    pub shares: SharePolicy,
    pub demand: Demand,
    /// Repeatability of every meter: the standard deviation of a reading's own error, in millionths. An
    /// error that stays is in the telemetry as it is in the control. (2,500)
    pub meter_noise_ppm: u32,
    /// How far a server's dynamic power may lie from the chassis's mean, as a share of it, 0 to 1. (0)
    pub imbalance: f64,
    /// Replay every unit, also those that cannot see capping: it takes long, and changes nothing.
    pub everything: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            shares: SharePolicy::Even,
            demand: Demand::Open,
            meter_noise_ppm: 2_500,
            imbalance: 0.0,
            everything: false,
        }
    }
}
