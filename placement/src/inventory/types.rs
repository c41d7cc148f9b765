//! Hosts and VMs by their names, as they are told, kept and shown.

use core::time::Duration;

use ballast_types::{Instant, Utilisation, VmClass};
use serde::{Deserialize, Serialize};

use crate::{Demand, HostState, Resources, Totals};

/// What is told of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSpec {
    /// Its chassis: hosts of one name share a power budget.
    pub chassis: String,
    /// Cores and memory that the host has in all.
    pub capacity: Resources,
    /// Whether VMs may come.
    #[serde(default)]
    pub state: HostState,
}

/// What is asked for a VM, and what is known or predicted of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmSpec {
    /// What it was asked for with.
    pub deployment: Option<String>,
    /// The customer whose VM it is.
    pub tenant: Option<String>,
    /// What it takes of a host.
    pub resources: Resources,
    /// Whether its class or its P95 is told or predicted with confidence; journals of before have it not.
    #[serde(default)]
    pub known: bool,
    /// Who it works for.
    pub class: VmClass,
    /// The 95th percentile of its CPU utilisation.
    pub p95: Utilisation,
    /// Its CPU demand, where known.
    pub demand: Option<Demand>,
    /// How long it will live in all, where predicted: counted from when it came.
    pub lifetime: Option<Duration>,
    /// No two VMs of its deployment on one host.
    pub spread: bool,
}

impl VmSpec {
    /// A VM of which nothing is predicted: user-facing, at full utilisation, of unknown lifetime.
    pub const fn new(resources: Resources) -> Self {
        Self {
            deployment: None,
            tenant: None,
            resources,
            known: false,
            class: VmClass::UserFacing,
            p95: Utilisation::FULL,
            demand: None,
            lifetime: None,
            spread: false,
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
    /// When it came. Journals of before have it not: then it counts as having come when it is told.
    #[serde(default)]
    pub since: Option<Instant>,
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
    /// The name of its chassis.
    pub chassis: &'a str,
    /// Cores and memory that the host has in all.
    pub capacity: Resources,
    /// What is left of that.
    pub free: Resources,
    /// What its VMs take: more than it has, where they were found there.
    pub taken: Totals,
    /// Whether VMs may come.
    pub state: HostState,
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
}
