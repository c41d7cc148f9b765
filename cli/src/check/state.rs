//! How good something is: a finding; and what sensors were seen to do.

use ballast_hw::probe::{Machine, MeterFacts, Refresh};
use serde::Serialize;

/// From so many steps on the draw can follow a cap; below, it jumps.
pub(super) const STEPS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Works,
    /// It serves, with the drawback that the reason names.
    Degraded,
    /// It is not there, or of no use.
    Missing,
    /// It is there, and whether it works shows only when it is used.
    Untested,
}

/// One probe's answer.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    /// Which probe; the names are stable.
    pub(super) id: String,
    pub(super) state: State,
    pub(super) found: String,
    /// Why it is not better; absent where it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// What to install, set or stop; absent where nothing helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

pub(super) fn finding(id: impl Into<String>, state: State, found: impl Into<String>) -> Finding {
    Finding { id: id.into(), state, found: found.into(), reason: None, remedy: None }
}

impl Finding {
    pub(super) fn because(self, reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..self }
    }

    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Watched {
    /// Its zone or channel.
    pub(super) sensor: String,
    #[serde(flatten)]
    pub(super) refresh: Refresh,
}

/// How a channel is called: `pmbus@3-0058 pin`.
pub(super) fn channel(meter: &MeterFacts) -> String {
    match &meter.label {
        Some(label) => format!("{} {label}", meter.name),
        None => format!("{} {}", meter.name, meter.channel),
    }
}

/// Whether libvirt's domains have more vCPUs than the machine has CPUs.
pub(super) fn overcommitted(machine: &Machine) -> bool {
    machine.domains.vcpus > machine.cpus.count
}
