//! What a replay came to.

use ballast_types::Watts;
use serde::Serialize;

/// What the replay of held-out draws came to. How it is counted stands at the top of [`crate::verify`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    pub chassis: u64,
    /// Units of time with a reading.
    pub units: u64,
    /// Of these, replayed: all others cannot see capping.
    pub replayed_units: u64,
    /// Readings above the budget: what arithmetic alone counts.
    pub readings_above_budget: u64,
    /// How far the highest reading was above the budget.
    #[serde(rename = "highest_above_budget_w")]
    pub highest_above: Watts,
    /// Readings above what the chassis draws at full load: they were replayed at full load.
    pub beyond_full_load: u64,
    /// Readings below what its servers draw while idle: they were replayed as idle.
    pub below_idle: u64,
    /// Units in which a core of a user-facing VM was held down, by anything.
    pub events_user_facing: u64,
    /// Units in which cores of other VMs were, and of user-facing ones none.
    pub events_batch: u64,
    /// Units in which hardware held a core down: a server's own limit, a slot's, or a supply's alert.
    pub events_hardware: u64,
    /// Units in a row with an event, of one chassis: the most.
    pub longest_event_units: u64,
    /// The most that one event shed: the mean over its unit.
    #[serde(rename = "deepest_w")]
    pub deepest: Watts,
    #[serde(rename = "deepest_moment_w")]
    pub deepest_moment: Watts,
    /// What all events shed, as watts times units.
    #[serde(rename = "shed_w_units")]
    pub shed: Watts,
    /// The lowest frequency of a batch core, as a share of the highest.
    pub lowest_batch_frequency: f64,
    /// The same of a user-facing VM's core.
    pub lowest_user_facing_frequency: f64,
    /// Core-seconds that batch cores were held down.
    pub batch_throttled_core_s: f64,
    /// The same of user-facing VMs' cores.
    pub user_facing_throttled_core_s: f64,
    pub over_budget_s: f64,
    pub over_budget_s_max: f64,
    /// Seconds in which hardware held a core down.
    pub hardware_s: f64,
}

impl Default for Measured {
    fn default() -> Self {
        Self {
            chassis: 0,
            units: 0,
            replayed_units: 0,
            readings_above_budget: 0,
            highest_above: Watts::ZERO,
            beyond_full_load: 0,
            below_idle: 0,
            events_user_facing: 0,
            events_batch: 0,
            events_hardware: 0,
            longest_event_units: 0,
            deepest: Watts::ZERO,
            deepest_moment: Watts::ZERO,
            shed: Watts::ZERO,
            lowest_batch_frequency: 1.0,
            lowest_user_facing_frequency: 1.0,
            batch_throttled_core_s: 0.0,
            user_facing_throttled_core_s: 0.0,
            over_budget_s: 0.0,
            over_budget_s_max: 0.0,
            hardware_s: 0.0,
        }
    }
}

impl Measured {
    /// Adds what other chassis came to. Sums of seconds depend on the order in their last bits: add them in
    /// one order.
    pub fn add(&mut self, other: &Self) {
        self.chassis += other.chassis;
        self.units += other.units;
        self.replayed_units += other.replayed_units;
        self.readings_above_budget += other.readings_above_budget;
        self.highest_above = self.highest_above.max(other.highest_above);
        self.beyond_full_load += other.beyond_full_load;
        self.below_idle += other.below_idle;
        self.events_user_facing += other.events_user_facing;
        self.events_batch += other.events_batch;
        self.events_hardware += other.events_hardware;
        self.longest_event_units = self.longest_event_units.max(other.longest_event_units);
        self.deepest = self.deepest.max(other.deepest);
        self.deepest_moment = self.deepest_moment.max(other.deepest_moment);
        self.shed += other.shed;
        self.lowest_batch_frequency = self.lowest_batch_frequency.min(other.lowest_batch_frequency);
        self.lowest_user_facing_frequency =
            self.lowest_user_facing_frequency.min(other.lowest_user_facing_frequency);
        self.batch_throttled_core_s += other.batch_throttled_core_s;
        self.user_facing_throttled_core_s += other.user_facing_throttled_core_s;
        self.over_budget_s += other.over_budget_s;
        self.over_budget_s_max = self.over_budget_s_max.max(other.over_budget_s_max);
        self.hardware_s += other.hardware_s;
    }

    pub const fn events(&self) -> u64 {
        self.events_user_facing + self.events_batch
    }

    /// Units with an event, as a share of all.
    pub fn events_rate(&self) -> f64 {
        self.events() as f64 / self.units.max(1) as f64
    }

    /// Units with an event of user-facing VMs, as a share of all.
    pub fn events_user_facing_rate(&self) -> f64 {
        self.events_user_facing as f64 / self.units.max(1) as f64
    }

    /// Units with an event of batch VMs alone, as a share of all.
    pub fn events_batch_rate(&self) -> f64 {
        self.events_batch as f64 / self.units.max(1) as f64
    }
}
