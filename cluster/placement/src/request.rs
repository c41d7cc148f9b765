//! What is asked for: one VM, and what is known or predicted of it.

use ballast_types::survival::CurveId;
use ballast_types::{Instant, Utilisation, VmClass, number_id};
use serde::{Deserialize, Serialize};

use crate::Resources;

number_id! {
    /// A host, by its place in the [`crate::Cluster`].
    HostId(u32)
}
number_id! {
    /// A chassis: hosts that share a power budget.
    ChassisId(u32)
}
number_id! {
    /// A fault domain: hosts that may fail together.
    DomainId(u32)
}
number_id! {
    /// A VM.
    VmKey(u64)
}
number_id! {
    /// VMs that were asked for together.
    DeploymentId(u64)
}
number_id! {
    /// Whose VM it is.
    TenantId(u64)
}

/// CPU demand over time, in cores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Demand {
    /// Its mean, in cores.
    pub mean: f64,
    /// Its variance, in cores².
    pub variance: f64,
}

/// What is known of the end of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExpectedEnd {
    /// The VM will end then, as somebody said or predicted: it means the same whenever it is read.
    At(Instant),
    /// So likely the VM lives for how long, counted from when it came: a curve of [`crate::Cluster::curves`].
    Curve(CurveId),
}

/// One VM to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmRequest {
    /// A number that no other placed VM has.
    pub id: VmKey,
    /// What it was asked for with.
    pub deployment: Option<DeploymentId>,
    /// The customer whose VM it is.
    pub tenant: Option<TenantId>,
    /// What it takes of a host.
    pub resources: Resources,
    /// Whether its class or its P95 is told or predicted with confidence. If not, both are what is safe to assume.
    pub known: bool,
    /// Who it works for, as predicted.
    pub class: VmClass,
    /// The 95th percentile of its CPU utilisation, as predicted.
    pub p95: Utilisation,
    /// Its CPU demand, where known.
    pub demand: Option<Demand>,
    /// What is known of its end.
    pub end: Option<ExpectedEnd>,
    /// No two VMs of its deployment on one host.
    pub spread: bool,
    /// No fault domain has so many more VMs of its deployment than another, those alone that ask for it; 0 asks for nothing.
    pub domain_skew: u8,
}

/// What is to be reckoned with for a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Whether class or P95 are told, or predicted with confidence.
    pub known: bool,
    /// Who it works for.
    pub class: VmClass,
    /// The 95th percentile of its CPU utilisation.
    pub p95: Utilisation,
}

impl Expected {
    /// By what is told or predicted with confidence; what is safe stands for the rest.
    pub fn of(class: Option<VmClass>, p95: Option<Utilisation>) -> Self {
        Self {
            known: class.is_some() || p95.is_some(),
            class: class.unwrap_or(VmClass::UserFacing),
            p95: p95.unwrap_or(Utilisation::FULL),
        }
    }
}

impl VmRequest {
    /// A VM of which nothing is predicted: user-facing, at full utilisation, without a known end.
    pub const fn new(id: VmKey, resources: Resources) -> Self {
        Self {
            id,
            deployment: None,
            tenant: None,
            resources,
            known: false,
            class: VmClass::UserFacing,
            p95: Utilisation::FULL,
            demand: None,
            end: None,
            spread: false,
            domain_skew: 0,
        }
    }

    /// With what is told of it, or predicted with confidence; what is safe stands for the rest.
    pub fn known(self, class: Option<VmClass>, p95: Option<Utilisation>) -> Self {
        let Expected { known, class, p95 } = Expected::of(class, p95);
        Self { known, class, p95, ..self }
    }

    /// The cores that it is expected to use at its 95th percentile, in 10⁻⁷ cores.
    pub(crate) fn p95_load(&self) -> i64 {
        i64::from(self.resources.cores.milli()) * i64::from(self.p95.ten_thousandths())
    }
}
