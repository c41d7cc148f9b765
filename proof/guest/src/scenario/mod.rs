//! The scenarios. Each finds the guest as [`Guest::fresh`] leaves it, and leaves it in any state.

mod capping;
mod chassis;
mod faults;
mod latency;
mod limits;
mod outside;
mod pools;
mod rapl;
mod recovery;
mod service;
mod supplies;
mod uclamp;

use crate::guest::Guest;
use crate::report::Notes;

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) run: fn(&mut Guest, &mut Notes) -> anyhow::Result<()>,
}

const fn of(
    name: &'static str,
    about: &'static str,
    run: fn(&mut Guest, &mut Notes) -> anyhow::Result<()>,
) -> Scenario {
    Scenario { name, about, run }
}

/// Those of `--uclamp`, on a kernel with `cpu.uclamp.max`.
pub(crate) const UCLAMP: [Scenario; 4] = [
    of("uclamp-refused", "without schedutil the agent does not start, and says why", uclamp::refused),
    of("uclamp-shed", "batch alone: its dynamic power at the floor", uclamp::shed),
    of("uclamp-cost", "batch beside user-facing load on the same CPUs: what each is slowed", uclamp::cost),
    of("uclamp-killed", "a clamp outlives a killed agent, and what was there comes back", uclamp::killed),
];

/// All of them, in the order in which they run. The last one takes the packages away.
pub(crate) const ALL: [Scenario; 33] = [
    of("check", "what ballast check says, and its write test", recovery::check),
    of("cap", "a cap is met by low-priority cores alone, and released", capping::cap),
    of("schedutil", "a cap holds under the governor that Debian ships", capping::schedutil),
    of("groups", "VMs have disjoint CPUs, also after systemctl daemon-reload", capping::groups),
    of("systemd", "VMs that are services, bound by AllowedCPUs over D-Bus", capping::systemd),
    of("pools", "VMs that share cores by class, held by two nested slices", pools::slices),
    of("killed", "an agent killed at the floor comes back, adopts, and releases", recovery::killed),
    of("hung", "an agent that stands still at the floor is killed by the watchdog", recovery::hung),
    of("realtime", "the control thread alone is SCHED_FIFO, memory is locked", recovery::realtime),
    of("sensor-gone", "no reading of the meter is no low reading", faults::sensor_gone),
    of("foreign", "another writer of scaling_max_freq is told of and not fought", faults::foreign),
    of("hotplug", "a CPU goes offline and comes back while it is capped", faults::hotplug),
    of("silent", "a chassis that falls silent: leases end", faults::silent),
    of("dcmi-meter", "the BMC as the agent's meter, by DCMI", faults::dcmi_meter),
    of("outside", "power1_cap and a DCMI limit are obeyed", outside::caps),
    of("own-limit", "at the floor and above the cap: the agent caps by hardware", outside::own_limit),
    of("rapl-meter", "RAPL as the meter, through the wraps of its counters", rapl::meter),
    of("rapl-limit", "at the floor and above the cap: both of RAPL's limits, and a kill", rapl::limit),
    of("latency", "100 alerts: from alert to the last register at the floor", latency::alerts),
    of("chassis", "a real chassis manager: over the budget and under it again", chassis::budget),
    of("pmbus", "a manager in the guest, its supplies by the kernel's pmbus driver", supplies::pmbus),
    of("reload", "systemctl reload lowers the budget while everything is capped", supplies::reload),
    of("two-chassis", "two instances of ballast-chassis@.service side by side", supplies::two_chassis),
    of("socket", "who may order by the socket, and who it was", service::socket),
    of("limit-lowered", "memory limits are lowered under load, and nothing is killed", limits::lowered),
    of("limit-oom", "a kill for lack of memory raises the limit at once", limits::oom),
    of(
        "limit-killed",
        "an agent killed while it sets memory limits: max is never below high",
        limits::killed,
    ),
    of("disk-full", "state folders without room, at the start and later", service::disk_full),
    of("kill-random", "20 agents killed at random instants end restored", recovery::kill_random),
    of("orphan", "an agent that cannot come back: all is released without it", recovery::orphan),
    of("orphan-unarmed", "the same, with an ExecStopPost that hangs and is killed", recovery::orphan_unarmed),
    of("stop", "systemctl stop puts back every file", recovery::stop),
    of("purge", "dpkg --purge puts back every file and leaves none", recovery::purge),
];
