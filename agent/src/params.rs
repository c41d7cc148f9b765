//! Validated parameters of the agent's controller.

use core::time::Duration;
use std::collections::BTreeMap;

use ballast_types::{BootId, ChassisId, Core, PowerModel, ServerId, VmClass, Watts};
use serde::{Deserialize, Serialize};

use crate::throttle::Floors;

/// How the agent finds the p-states that fit under its cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The paper's: low-priority cores to the floor, then back up in steps; see [`Steps`] for how large.
    Stepwise,
    /// Every core equally, as RAPL does: the paper's baseline.
    FullServer,
    /// Watches and reports, restricts nothing.
    None,
}

impl Policy {
    /// Its name in config and status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stepwise => "stepwise",
            Self::FullServer => "full-server",
            Self::None => "none",
        }
    }
}

/// What throttling acts on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Actuator {
    /// The p-states of a VM's cores; every VM has cores of its own.
    #[default]
    Pstate,
    /// The CPU bandwidth of a VM (`cpu.max` of its cgroup), which follows it to whatever core it runs
    /// on: the paper's production lesson (Section V, "Hypervisor support"). A VM of n cores has n units
    /// on the cores' ladder, and its quota is the sum of their shares of the highest frequency.
    CpuMax,
    /// The frequency of a VM (`cpu.uclamp.max` of its cgroup), which follows it too where the kernel and its
    /// governor obey that. Units and levels are those of `cpu-max`, but a share is one of frequency, not of time.
    Uclamp,
}

impl Actuator {
    /// Its name in config.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pstate => "pstate",
            Self::CpuMax => "cpu-max",
            Self::Uclamp => "uclamp",
        }
    }

    /// Whether VMs float over all cores, and are throttled wherever they run.
    pub const fn floats(self) -> bool {
        matches!(self, Self::CpuMax | Self::Uclamp)
    }
}

/// How the paper's policy answers a cap that falls, or a load that rises, within a capping event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Steps {
    /// In one write, to what fits by the server's power model, or to the floor; back up in steps that are
    /// a share of the cores, so that a large server is not slower than a small one.
    #[default]
    OneWrite,
    /// The paper's: `step_cores` a step in both directions, four times as many while the draw stays above
    /// the cap.
    Paper,
}

impl Steps {
    /// Its name in config.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneWrite => "one-write",
            Self::Paper => "paper",
        }
    }
}

/// From the floor to free takes at least this long, whatever the number of cores and the room.
const RECOVERY: Duration = Duration::from_secs(4);

/// And so many steps at least.
const MIN_STEPS: usize = 8;

/// Everything the controller needs to know beforehand. The daemon's config makes one, and checks it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Params {
    pub server: ServerId,
    /// This boot; echoed by the chassis.
    pub boot_id: BootId,
    /// The one chassis that is obeyed.
    pub chassis_id: ChassisId,
    pub policy: Policy,
    /// What throttling acts on. Where VMs float there is no `full-server`: it counts as `stepwise`.
    pub actuator: Actuator,
    /// Every core of the server, ascending by id, no duplicates.
    pub cores: Vec<Core>,
    /// So many of them were offline from the start: the power model is of the others (0).
    pub offline_cores: u16,
    /// The server's power model: for estimates in reports, and for how fast the draw may rise.
    pub model: PowerModel,
    /// How often the meter is read (200 ms).
    pub sample_period: Duration,
    /// Without a fresh reading for this long the server is blind; `None` after three sample periods.
    pub stale_after: Option<Duration>,
    /// Between two steps: the meter's lag plus one sample (400 ms).
    pub settle: Duration,
    /// At the floor and above the cap for this long without a live lease, or blind: the server's own limit
    /// (600 ms). Under a lease it waits for a message that knows of the draw.
    pub escalate_after: Duration,
    /// How low the p-states of a throttle class may go, by its order, in percent of the highest frequency;
    /// where nothing is told, to the end of the ladder (the default).
    pub floors: BTreeMap<u8, u8>,
    /// How low those of user-facing cores may go, when every other class is at its floor and that is not
    /// enough; `None` not at all (the default).
    pub user_facing_floor_percent: Option<u8>,
    /// Cores moved per step (4, the paper's N); at least that, where steps are a share of the cores.
    pub step_cores: u16,
    /// How a cap that falls within a capping event is answered.
    pub steps: Steps,
    /// Target = cap less this share of it, in parts per million (20 000 = 2 %).
    pub margin_ppm: u32,
    /// No step up while the draw is within this of the target (4 W: two standard deviations of a meter
    /// that is 1 % off at 200 W, so that noise alone seldom moves a core).
    pub deadband: Watts,
    /// How long the last resort stays on after the draw came under the target (2 s).
    pub server_limit_hold: Duration,
    /// The lowest limit that the server's own hardware may be set to; `None` if there is none to set.
    pub server_limit_floor: Option<Watts>,
    /// At the floor and above the cap for this long: a VM that prefers it is killed; `None` never (the
    /// default).
    pub kill_after: Option<Duration>,
    /// Why the shell around the controller writes nothing, and only logs what would be done; `None` when it
    /// acts (the default). The controller works as ever, on what it would have done, but reports that
    /// nothing can be shed, nothing is restricted and no cap is respected.
    pub dry_run: Option<String>,
    /// How long restrictions outlive this agent, should it die; told in reports. `None` where nobody
    /// watches over it (the default).
    pub orphan_hold: Option<Duration>,
    /// Tries of one action before it is given up (3).
    pub actuator_tries: u8,
    /// Between two tries (50 ms).
    pub retry_after: Duration,
}

impl Params {
    /// The documented defaults: `stepwise`, the paper's power model, a server limit down to 150 W.
    pub fn defaults(server: ServerId, boot_id: BootId, chassis_id: ChassisId, cores: Vec<Core>) -> Self {
        Self {
            server,
            boot_id,
            chassis_id,
            policy: Policy::Stepwise,
            actuator: Actuator::Pstate,
            cores,
            offline_cores: 0,
            model: PowerModel::PAPER,
            sample_period: Duration::from_millis(200),
            stale_after: None,
            settle: Duration::from_millis(400),
            escalate_after: Duration::from_millis(600),
            floors: BTreeMap::new(),
            user_facing_floor_percent: None,
            step_cores: 4,
            steps: Steps::OneWrite,
            margin_ppm: 20_000,
            deadband: Watts::from_whole(4),
            server_limit_hold: Duration::from_secs(2),
            server_limit_floor: Some(Watts::from_whole(150)),
            kill_after: None,
            dry_run: None,
            orphan_hold: None,
            actuator_tries: 3,
            retry_after: Duration::from_millis(50),
        }
    }

    /// Steps from the floor to free: they take 4 s at least, and are eight at least, however slow the meter is.
    pub(crate) fn recovery_steps(&self) -> usize {
        // A sample is up to a period old when it is read, and so is the change that it judges.
        let step = self.settle.saturating_add(self.sample_period);
        let steps = RECOVERY.as_nanos() / step.as_nanos().max(1);
        usize::try_from(steps).unwrap_or(usize::MAX).max(MIN_STEPS)
    }

    /// How many cores the server has, without those that are offline.
    pub(crate) fn online_cores(&self) -> u16 {
        let cores = u16::try_from(self.cores.len()).unwrap_or(u16::MAX);
        cores.saturating_sub(self.offline_cores)
    }

    /// How low each class may go.
    pub(crate) fn floors(&self) -> Floors<'_> {
        Floors { by_order: &self.floors, user_facing: self.user_facing_floor_percent }
    }

    /// The policy in force: `full-server` lowers cores, and floating VMs have none of their own.
    pub(crate) fn effective_policy(&self) -> Policy {
        match self.policy {
            Policy::FullServer if self.floating() => Policy::Stepwise,
            policy => policy,
        }
    }

    /// Whether every core is throttled alike.
    pub(crate) fn equal(&self) -> bool {
        self.effective_policy() == Policy::FullServer
    }

    /// Whether VMs are throttled and not cores.
    pub(crate) fn floating(&self) -> bool {
        self.actuator.floats()
    }

    /// Whether a floating VM of this class may be throttled.
    pub(crate) fn has_units(&self, class: VmClass) -> bool {
        let allowed = class == VmClass::NonUserFacing || self.user_facing_floor_percent.is_some();
        allowed && !self.cores.is_empty()
    }

    /// The throttle's units at start: the cores, or none while no VM is known.
    pub(crate) fn units(&self) -> Vec<Core> {
        if self.floating() { Vec::new() } else { self.cores.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_types::{CoreId, KiloHertz, Ladder};
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, StrDeserializer};

    #[test]
    fn user_facing_vms_have_units_where_they_may_be_throttled() {
        let ladder = Ladder::new(&[KiloHertz::from_mhz(1000)]).unwrap();
        let cores = vec![Core { id: CoreId(0), ladder }];
        let ids = (ServerId::new("s").unwrap(), BootId::new("b").unwrap(), ChassisId::new("c").unwrap());
        let mut params = Params::defaults(ids.0, ids.1, ids.2, cores);
        let (low, high) = (VmClass::NonUserFacing, VmClass::UserFacing);
        for (floor, cores, expected) in [
            (None, 1, [(low, true), (high, false)]),
            (Some(80), 1, [(low, true), (high, true)]),
            (Some(80), 0, [(low, false), (high, false)]),
        ] {
            params.user_facing_floor_percent = floor;
            params.cores.truncate(cores);
            for (class, has) in expected {
                assert_eq!(params.has_units(class), has, "{floor:?}, {cores} cores: {class:?}");
            }
        }
    }

    #[test]
    fn a_policy_has_the_same_name_in_config_and_status() {
        for policy in [Policy::Stepwise, Policy::FullServer, Policy::None] {
            let name: StrDeserializer<'_, Error> = policy.name().into_deserializer();
            assert_eq!(Policy::deserialize(name), Ok(policy));
        }
    }
}
