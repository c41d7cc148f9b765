//! What the chassis is made of.

use core::time::Duration;

use ballast_types::{Core, CoreId, OnExtreme, PowerModel, ServerId, VmClass, VmId, Watts};
use serde::{Deserialize, Serialize};

use crate::load::{BatchSpec, Profile, QueueSpec};

/// A chassis: servers, power supplies, what they share, and how it is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlantSpec {
    /// The servers, in slot order.
    pub servers: Vec<ServerSpec>,
    pub supplies: Vec<SupplySpec>,
    pub shared: SharedSpec,
    pub meter: SensorSpec,
    pub supply_meter: SensorSpec,
    /// Whether RAPL, slot limits and the supplies' overload alert act. Without them nothing but
    /// software restrains a core.
    pub hardware_caps: bool,
    /// What the true draw, at the supplies' input, is judged against.
    pub budget: Watts,
}

impl PlantSpec {
    /// A chassis of these servers, measured by `meter`. Its supplies lose nothing and nothing else draws:
    /// the paper's figures are the servers' draws, and its share of a server is its budget over twelve.
    pub fn lossless(servers: Vec<ServerSpec>, meter: SensorSpec, budget: Watts) -> Self {
        let none = Watts::ZERO;
        let full = servers.iter().map(|s| Watts::from_f64(s.model.full_w).unwrap_or(none)).sum();
        let supply = SupplySpec {
            rated: full,
            loss: Loss { fixed: 0.0, linear: 0.0, square: 0.0 },
            standby: false,
            standby_draw: none,
        };
        Self {
            servers,
            supplies: vec![supply; 2],
            shared: SharedSpec { fans_idle: none, fans_full: none, switch: none },
            meter,
            supply_meter: meter,
            hardware_caps: true,
            budget,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerSpec {
    pub id: ServerId,
    /// Its draw over load and frequency.
    pub model: PowerModel,
    /// CPU packages; the cores are spread over them evenly, in order.
    pub sockets: u16,
    pub cores: Vec<Core>,
    pub vms: Vec<VmLoad>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmLoad {
    pub id: VmId,
    pub class: VmClass,
    /// Lower is throttled first; for the agent, the plant does not look at it.
    pub throttle_order: u8,
    pub cores: Vec<CoreId>,
    /// How many CPUs it has, if it shares these cores with the others of its class; absent if they are its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u16>,
    /// What may be done to it when throttling is not enough; for the agent too.
    #[serde(default)]
    pub on_extreme: OnExtreme,
    pub load: Load,
}

impl VmLoad {
    pub fn cpus(&self) -> usize {
        self.vcpus.map_or(self.cores.len(), usize::from)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    Queue(QueueSpec),
    Batch(BatchSpec),
    /// Follows a line: the demand at the highest frequency. At a lower one the same work takes
    /// longer, so utilisation rises, to 1 at most.
    Profile(Profile),
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SupplySpec {
    /// What it can draw from its feed, at most.
    pub rated: Watts,
    pub loss: Loss,
    /// Whether it starts in standby: it takes load only when an active one fails.
    pub standby: bool,
    pub standby_draw: Watts,
}

/// Conversion loss as shares of the rating, with `x` = output ÷ rating: `fixed + linear·x + square·x²`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// Lost whenever it runs.
    pub fixed: f64,
    /// Lost in proportion to load.
    pub linear: f64,
    /// Lost in its resistance.
    pub square: f64,
}

impl Loss {
    /// 89.6 % efficient at a tenth of the rating, 93.9 % at 40 %, 92.3 % at full load: between 80 PLUS
    /// Gold and Platinum.
    pub const TYPICAL: Self = Self { fixed: 0.009, linear: 0.02, square: 0.055 };
}

impl SupplySpec {
    pub const fn active(rated: Watts) -> Self {
        Self { rated, loss: Loss::TYPICAL, standby: false, standby_draw: Watts::from_whole(4) }
    }

    pub const fn standby(rated: Watts) -> Self {
        Self { standby: true, ..Self::active(rated) }
    }

    /// What it draws when it delivers `output` watts.
    pub fn input_w(&self, output: f64) -> f64 {
        let rated = self.rated.as_f64();
        if rated <= 0.0 {
            return output;
        }
        let x = output / rated;
        output + rated * (self.loss.fixed + x * (self.loss.linear + x * self.loss.square))
    }
}

/// What the servers share, behind the supplies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedSpec {
    /// All fans while the servers idle.
    pub fans_idle: Watts,
    /// All fans while every server is at full load.
    pub fans_full: Watts,
    pub switch: Watts,
}

impl SharedSpec {
    /// What it draws while the servers draw `dc_w`, of `idle_w` when all idle and `full_w` at full load.
    pub fn draw_w(&self, dc_w: f64, idle_w: f64, full_w: f64) -> f64 {
        let load = ((dc_w - idle_w) / (full_w - idle_w).max(1.0)).clamp(0.0, 1.0);
        let (idle, full) = (self.fans_idle.as_f64(), self.fans_full.as_f64());
        idle + load * (full - idle) + self.switch.as_f64()
    }
}

/// A meter: what it shows was true `lag` ago, averaged over one `refresh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SensorSpec {
    /// From the end of the averaging window to the reading.
    pub lag: Duration,
    pub refresh: Duration,
    /// Standard deviation of its error, in parts per million of the value.
    pub noise_ppm: u32,
    /// Readings are whole multiples of this.
    pub quantum: Watts,
}

impl Default for SensorSpec {
    fn default() -> Self {
        Self {
            lag: Duration::from_millis(200),
            refresh: Duration::from_millis(200),
            noise_ppm: 10_000,
            quantum: Watts::from_milli(100),
        }
    }
}
