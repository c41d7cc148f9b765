//! Who watches, and keeps measures.

use ballast_placement::{Cluster, HostId, Resident, Shortage};
use serde::Serialize;

use super::source::RequestedVm;

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The open hosts that could take it have too few cores together.
    Cores,
    /// The open hosts that could take it have too little memory together.
    Memory,
    /// The open hosts have too little together of a resource beside these two.
    Extras,
    /// There is enough of all, but not where it is needed.
    Fragmentation,
    /// An admission did not let it come, whatever there is.
    Admission,
}

impl From<Shortage> for Reason {
    fn from(short: Shortage) -> Self {
        match short {
            Shortage::Cores => Self::Cores,
            Shortage::Memory => Self::Memory,
            Shortage::Extras => Self::Extras,
            Shortage::Fragmentation => Self::Fragmentation,
        }
    }
}

/// Is told what happens, and changes nothing. The cluster is as it is after what happened.
pub trait Probe {
    /// The cluster stayed as it is from one instant up to a later one.
    fn pass(&mut self, _cluster: &Cluster, _from_ms: u64, _to_ms: u64) {}

    fn placed(&mut self, _cluster: &Cluster, _at_ms: u64, _vm: &RequestedVm, _host: HostId) {}

    /// VMs that were asked for together have not come.
    fn failed(&mut self, _vms: &[&RequestedVm], _reason: Reason) {}

    fn ended(&mut self, _cluster: &Cluster, _at_ms: u64, _resident: &Resident) {}

    /// One phase ends and the next begins.
    fn phase(&mut self, _cluster: &Cluster, _at_ms: u64) {}
}
