//! `[throttle]`, `[[class]]` and `[shedding]`: what is done when the draw is above the cap.

use std::collections::BTreeMap;
use std::time::Duration;

use ballast_agent_core::Actuator;
use ballast_types::Watts;

use ballast_runtime::config::allowed::{Allowed, choice, flag, millis, percent, watts_in, whole};
use ballast_runtime::config::reader::Section;

/// `[throttle]`, and the floors of `[[class]]`.
#[derive(Clone, Debug)]
pub struct ThrottleConfig {
    /// What throttling acts on.
    pub actuator: Actuator,
    /// With `cpu-max`: the period in which a VM's CPU time is limited.
    pub quota_period: Duration,
    /// Cores moved per step.
    pub step_cores: u16,
    /// Target = cap less this share of it.
    pub margin_ppm: u32,
    /// No step up within this of the target.
    pub deadband: Watts,
    pub settle: Duration,
    /// At the floor and above the cap for this long: the server's own limit.
    pub escalate_after: Duration,
    /// The floor of every throttle class that has one of its own, by its index in the throttle list, as a
    /// percentage of the highest frequency; with `cpu-max`, of the CPU time.
    pub floors: BTreeMap<u8, u8>,
    /// The same for user-facing VMs, which are throttled after all others; `None`: they never are.
    pub user_facing_floor: Option<u8>,
}

impl ThrottleConfig {
    /// Reads `[throttle]` and every `[[class]]`; the meter shows a change after `least_settle` at the soonest.
    pub(super) fn read(root: &mut Section<'_, '_>, least_settle: Duration) -> Self {
        let mut section = root.section("throttle", "How the server is brought under its cap.");
        let config = Self {
            actuator: section
                .key(
                    "actuator",
                    "Frequencies of the cores of every VM; or VMs float, and their time is limited by \
                     `cpu.max` of their cgroups, or their frequency by `cpu.uclamp.max`.",
                )
                .or(
                    Actuator::Pstate,
                    choice([Actuator::Pstate, Actuator::CpuMax, Actuator::Uclamp].map(|it| (it.name(), it))),
                ),
            quota_period: section
                .key("quota_period_ms", "With `\"cpu-max\"`: the shorter, the smoother the draw.")
                .or(Duration::from_millis(20), millis(10..=100)),
            step_cores: section
                .key(
                    "step_cores",
                    "A step moves at least so many cores by one p-state; with `preset = \"paper\"` exactly \
                     so many.",
                )
                .or(4, whole("a whole number of cores", 1..=1024)),
            margin_ppm: section
                .key("margin_percent", "The target is the cap less this.")
                .or(20_000, percent("a percentage of the cap", 0.0..=50.0)),
            deadband: section
                .key("deadband_w", "No step up this close to the target: twice the meter's noise.")
                .or(Watts::from_whole(4), watts_in(0.0..=1000.0)),
            settle: section
                .key("settle_ms", "Between two steps; at least `meter.lag_ms` + `meter.sample_ms`.")
                .or(least_settle, millis(1..=60_000)),
            escalate_after: section
                .key(
                    "escalate_ms",
                    "At the lowest frequency and still over the cap for so long: the server's own limit \
                     comes.",
                )
                .or(Duration::from_millis(600), millis(1..=60_000)),
            user_facing_floor: section
                .key(
                    "user_facing_floor_percent",
                    "User-facing VMs are slowed too, after all others, to this share of the highest \
                     frequency; they never are unless this is set.",
                )
                .optional(floor()),
            floors: BTreeMap::new(),
        };
        section.finish();

        let mut floors = BTreeMap::new();
        for section in root.sections("class", "A throttle class with a floor of its own.") {
            floors.extend(read_class(section, &floors));
        }
        Self { floors, ..config }
    }
}

fn floor() -> Allowed<u8> {
    whole("a whole percentage", 1..=100)
}

/// One `[[class]]`: its index in the throttle list, and its floor.
fn read_class(mut section: Section<'_, '_>, others: &BTreeMap<u8, u8>) -> Option<(u8, u8)> {
    let order = section
        .key("order", "The `throttle_order` of the class's VMs.")
        .required(whole("a whole number", 0..=255));
    let help = "Down to this share of the highest frequency; with `\"cpu-max\"`, of the CPU time.";
    let floor = section.key("floor_percent", help).required(floor());
    if order.is_some_and(|order| others.contains_key(&order)) {
        section.refuse_key("order", "every class once");
    }
    section.finish();
    Some((order?, floor?))
}

/// After how long at the lowest frequency VMs are killed; `None` never.
pub(super) fn read_shedding(root: &mut Section<'_, '_>, escalate_after: Duration) -> Option<Duration> {
    let mut section = root.section(
        "shedding",
        "The last thing before the server's own limit: killing VMs that are marked for it.",
    );
    let is_allowed = section
        .key("allow_kill", "Without this no VM is killed, whatever `on_extreme` the VM has.")
        .or(false, flag());
    let help = "At the lowest frequency and still over the cap for so long; as `throttle.escalate_ms` unless \
                set.";
    let after = section.key("kill_after_ms", help).or(escalate_after, millis(1..=60_000));
    section.finish();
    is_allowed.then_some(after)
}
