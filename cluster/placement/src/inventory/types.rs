//! Hosts and VMs by their names, as they are told, kept and shown.

use core::time::Duration;
use std::collections::BTreeMap;

use ballast_types::{Instant, Utilisation, VmClass};
use serde::{Deserialize, Serialize};

use crate::{Demand, ExpectedEnd, HostState, MemoryKb, MilliCores, Resources, Totals};

/// How much more than there is of something may be given away: from 0.1 to 16 times as much, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Ratio(u16);

impl Ratio {
    /// What there is, and no more.
    pub const ONE: Self = Self(1000);

    /// To the next thousandth; `None` below 0.1, above 16, and for NaN.
    pub fn new(ratio: f64) -> Option<Self> {
        (0.1..=16.0).contains(&ratio).then(|| Self(libm::round(ratio * 1e3) as u16))
    }

    /// As a number.
    pub fn get(self) -> f64 {
        f64::from(self.0) / 1e3
    }

    fn of(self, amount: u64) -> u64 {
        (u128::from(amount) * u128::from(self.0) / 1000) as u64
    }
}

impl Default for Ratio {
    fn default() -> Self {
        Self::ONE
    }
}
impl TryFrom<f64> for Ratio {
    type Error = String;
    fn try_from(ratio: f64) -> Result<Self, String> {
        Self::new(ratio).ok_or_else(|| format!("{ratio}: 0.1 to 16"))
    }
}
impl From<Ratio> for f64 {
    fn from(ratio: Ratio) -> Self {
        ratio.get()
    }
}

/// What the VMs of a host may take together, by what it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Overcommit {
    /// How many times its cores.
    pub cores: Ratio,
    /// How many times its memory.
    pub memory: Ratio,
}

impl Overcommit {
    /// The room of a host that has so much.
    pub(super) fn room(self, capacity: Resources) -> Resources {
        let milli = self.cores.of(u64::from(capacity.cores.milli()));
        let kb = self.memory.of(capacity.memory.kb());
        // Beyond what any host can have it has as much as can be.
        Resources {
            cores: MilliCores::from_milli(milli).unwrap_or(MilliCores::MAX),
            memory: MemoryKb::from_kb(kb).unwrap_or(MemoryKb::MAX),
            extras: capacity.extras,
        }
    }
}

/// What is told of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSpec {
    /// Its chassis: hosts of one name share a power budget.
    pub chassis: String,
    /// What fails with it: hosts of one name may fail together. Its chassis, where nothing is told.
    pub fault_domain: Option<String>,
    /// Cores and memory that the host has in all.
    pub capacity: Resources,
    /// What else it has, by name: GPUs, GB of disk, Mbit/s of network.
    pub extras: BTreeMap<String, u32>,
    /// How much of cores and memory its VMs may take together.
    pub overcommit: Overcommit,
    /// So many VMs it may have, whatever they take.
    pub max_vms: Option<u32>,
    /// Whether VMs may come.
    pub state: HostState,
}

impl HostSpec {
    /// An open host that gives its VMs what it has.
    pub fn new(chassis: impl Into<String>, capacity: Resources) -> Self {
        Self {
            chassis: chassis.into(),
            fault_domain: None,
            capacity,
            extras: BTreeMap::new(),
            overcommit: Overcommit::default(),
            max_vms: None,
            state: HostState::Open,
        }
    }
}

/// What is asked for a VM, and what is known or predicted of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmSpec {
    /// What it was asked for with.
    pub deployment: Option<String>,
    /// The customer whose VM it is.
    pub tenant: Option<String>,
    /// The cores and the memory that it takes of a host.
    pub resources: Resources,
    /// What else it takes, by name.
    pub extras: BTreeMap<String, u32>,
    /// Whether the class or the P95 was given, or is predicted with confidence.
    pub known: bool,
    /// Who it works for.
    pub class: VmClass,
    /// The 95th percentile of its CPU utilisation.
    pub p95: Utilisation,
    /// Its CPU demand, where known.
    pub demand: Option<Demand>,
    /// How long it will live in all, where somebody has told that: counted from when it came.
    pub lifetime: Option<Duration>,
    /// No two VMs of its deployment on one host.
    pub spread: bool,
    /// No fault domain has so many more VMs of its deployment than another; 0 asks for nothing.
    pub domain_skew: u8,
    /// What else its lifetime is predicted by.
    pub traits: VmTraits,
}

/// What a lifetime is predicted by, beside a VM's size and tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmTraits {
    /// The name of its size or family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_type: Option<String>,
    /// How many VMs were asked for together, this one with them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_vms: Option<u32>,
    /// Whatever else is known: zone, priority, a category.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl VmTraits {
    /// Without any.
    pub const NONE: Self = Self { vm_type: None, batch_vms: None, labels: BTreeMap::new() };
}

impl VmSpec {
    /// A VM of which nothing is predicted: user-facing, at full utilisation, of unknown lifetime.
    pub const fn new(resources: Resources) -> Self {
        Self {
            deployment: None,
            tenant: None,
            resources,
            extras: BTreeMap::new(),
            known: false,
            class: VmClass::UserFacing,
            p95: Utilisation::FULL,
            demand: None,
            lifetime: None,
            spread: false,
            domain_skew: 0,
            traits: VmTraits::NONE,
        }
    }
}

/// A VM by its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedVm {
    /// Unique among the VMs that are placed.
    pub name: String,
    /// What is asked for it.
    pub spec: VmSpec,
}

/// A host by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedHost {
    /// A name that no other host has.
    pub name: String,
    /// What is told of it.
    pub spec: HostSpec,
}

/// A VM and its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    /// The VM, by its name.
    pub vm: NamedVm,
    /// The name of its host.
    pub host: String,
    /// The time at which it came.
    pub since: Instant,
}

/// All that an inventory knows, in the order of names: [`super::Inventory::replace`] makes one of it that answers alike.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// All hosts, in the order of names.
    pub hosts: Vec<NamedHost>,
    /// All VMs, in the order of names.
    pub vms: Vec<Placed>,
}

/// A host as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct HostView<'a> {
    /// Its name in the inventory.
    pub name: &'a str,
    /// What is told of it.
    pub spec: &'a HostSpec,
    /// What its VMs may take together.
    pub room: Resources,
    /// What is left of that.
    pub free: Resources,
    /// What its VMs take: more than its room, where they were found there.
    pub taken: Totals,
    /// How many VMs it has.
    pub vms: u32,
    /// η for a user-facing VM: 0.5 is balanced.
    pub server_score: f64,
    /// κ of its chassis: 1 less the P95 load of its cores.
    pub chassis_score: f64,
}

/// A VM as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct VmView<'a> {
    /// Its name in the inventory.
    pub name: &'a str,
    /// The name of its host.
    pub host: &'a str,
    /// What was asked for it.
    pub spec: VmSpec,
    /// The time at which the VM came.
    pub since: Instant,
    /// What is known of its end, told or predicted.
    pub end: Option<ExpectedEnd>,
}
