//! The VMs of agents: how long and how hard each was capped.

use std::time::Duration;

use ballast_types::VmClass;
use ballast_types::wire::{AgentStatus, VmStatus};

use super::mhz;
use crate::common::grid::{Column, Fit, grid};

/// A VM's line. Where there is no room, where it is in the throttle order goes first.
const COLUMNS: [Column; 13] = [
    ("server", 0),
    ("VM", 0),
    ("class", 0),
    ("cores", 8),
    ("order", 9),
    ("now", 0),
    ("capped", 0),
    ("lost", 1),
    ("at lowest", 4),
    ("limited", 3),
    ("periods (longest)", 7),
    ("lowest", 5),
    ("notes", 6),
];

/// A table of every VM; `None` where there are none. Times are core-seconds since the agent started.
pub(super) fn table<'a>(agents: impl Iterator<Item = &'a AgentStatus>, fit: Fit) -> Option<String> {
    let rows = agents.flat_map(|agent| agent.vms.iter().map(|vm| row(agent.report.server.as_str(), vm)));
    let rows: Vec<_> = rows.collect();
    let title = "how long (core-seconds) and how hard VMs were capped since the agent started";
    (!rows.is_empty()).then(|| format!("{title}\n{}", grid(&COLUMNS, &rows, fit)))
}

fn row(server: &str, vm: &VmStatus) -> [String; 13] {
    let impact = &vm.impact;
    let seconds = |ms: u64| format!("{:.1} s", Duration::from_millis(ms).as_secs_f64());
    let order = match vm.class {
        VmClass::UserFacing => "-".to_owned(),
        VmClass::NonUserFacing => vm.throttle_order.to_string(),
    };

    let quota = vm.quota_millicores.map(|m| format!("{:.2} cores", f64::from(m) / 1000.0));
    let none = || "-".to_owned();

    [
        server.to_owned(),
        vm.vm.to_string(),
        vm.class.name().to_owned(),
        vm.cores.to_string(),
        order,
        quota.or(vm.min_khz.map(mhz)).unwrap_or_else(none),
        seconds(impact.throttled_core_ms),
        seconds(impact.lost_core_ms),
        seconds(impact.floor_core_ms),
        seconds(impact.limited_core_ms),
        format!("{} ({})", impact.throttled_periods, seconds(impact.longest_throttled_ms)),
        impact.lowest_khz.map_or_else(none, mhz),
        notes(vm),
    ]
}

/// What else there is to say: where it comes from, that it was killed, and what its own use says that it is.
fn notes(vm: &VmStatus) -> String {
    let killed = vm.killed.then(|| "killed".to_owned());
    let advice = vm.advised_class.map(|class| {
        let by = if vm.origin.as_deref() == Some("auto") { "auto" } else { "advised" };
        format!("{by} {}: {}", class.name(), vm.advised_why.as_deref().unwrap_or("-"))
    });
    let origin = vm.origin.clone().filter(|origin| origin != "auto" || advice.is_none());
    origin.into_iter().chain(killed).chain(advice).collect::<Vec<_>>().join("; ")
}
