//! What a demo ends with: the plant's truth and the daemons' own figures.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use ballast_types::wire::SharePolicy;
use serde::{Deserialize, Serialize};

use super::view::verdict;
use crate::common::control::{ActuatorArg, PolicyArg};
use ballast_testbed::events::Quantiles;

/// Core-seconds below the highest frequency, by what held the cores there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ByCause {
    /// A cap that software set on the core.
    pub(crate) software: f64,
    /// A package limit (RAPL).
    pub(crate) rapl: f64,
    /// A limit of the slot, set by hardware.
    pub(crate) out_of_band: f64,
    /// The alert of overloaded power supplies.
    pub(crate) supply: f64,
}

impl ByCause {
    fn total(&self) -> f64 {
        self.software + self.rapl + self.out_of_band + self.supply
    }
    fn since(&self, start: &Self) -> Self {
        Self {
            software: round(self.software - start.software),
            rapl: round(self.rapl - start.rapl),
            out_of_band: round(self.out_of_band - start.out_of_band),
            supply: round(self.supply - start.supply),
        }
    }
}

/// The figures that the rig writes to `truth.json`: exact, at the plant's grid, since its start.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Truth {
    pub(crate) elapsed_s: f64,
    pub(crate) power_w: f64,
    pub(crate) budget_w: f64,
    pub(crate) max_power_w: f64,
    pub(crate) mean_power_w: f64,
    pub(crate) over_budget_s_max: f64,
    pub(crate) over_budget_s_total: f64,
    pub(crate) user_facing_throttled_core_s: ByCause,
    pub(crate) batch_throttled_core_s: ByCause,
    pub(crate) hardware_engaged_s: f64,
    pub(crate) batch_frequency_ratio_mean: f64,
    pub(crate) batch_frequency_ratio_end: f64,
    pub(crate) user_facing_p95_ms: Option<f64>,
    #[serde(default)]
    vms: Vec<VmTruth>,
}

#[derive(Clone, Debug, Deserialize)]
struct VmTruth {
    work_core_s: f64,
}

impl Truth {
    /// Reads the newest figures; the rig replaces the file as a whole.
    pub(crate) fn read(file: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not the rig's truth", file.display()))
    }

    fn work_core_s(&self) -> f64 {
        self.vms.iter().map(|vm| vm.work_core_s).sum()
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Setting {
    pub(crate) policy: PolicyArg,
    pub(crate) actuator: ActuatorArg,
    pub(crate) servers: usize,
    /// Seed of the load and of the sensors' noise.
    pub(crate) seed: u64,
    /// The CPU trace that set the load, if one did.
    pub(crate) trace: Option<String>,
    /// What the trace's values were multiplied by.
    pub(crate) trace_scale: Option<TraceScale>,
    /// Load seconds per second.
    pub(crate) speedup: f64,
    /// Whether the plant's own caps (RAPL, slots, supplies) could act.
    pub(crate) hardware_caps: bool,
    /// How long a capping event was held after the draw had fallen.
    pub(crate) lift_hold_ms: u64,
    /// For how long the draw may be above the budget, by the manager's config.
    pub(crate) trip_s: f64,
}

/// What a trace's values were multiplied by.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct TraceScale {
    pub(crate) user_facing: f64,
    pub(crate) batch: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Observed {
    /// Capping events, by the chassis manager.
    pub(crate) alerts: u64,
    /// How the chassis manager says that it splits the budget.
    pub(crate) shares: Option<SharePolicy>,
    /// From an alert handed to the sender to the slowest floor.
    pub(crate) alert_to_floor_ms: Quantiles,
    /// Servers that throttled at least once.
    pub(crate) agents_acted: usize,
    /// The most memory that an agent had, in MiB.
    pub(crate) agent_rss_mib_max: f64,
    /// The most processor time that an agent took, in per cent of one core.
    pub(crate) agent_cpu_percent_max: f64,
    /// Whether everything that daemons may change was as before they started.
    pub(crate) restored: bool,
    /// Whether Ctrl-C cut the run short.
    pub(crate) interrupted: bool,
}

/// The whole of it. The field names are the JSON's.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Summary {
    #[serde(flatten)]
    setting: Setting,
    shares: Option<SharePolicy>,
    seconds: f64,
    interrupted: bool,
    budget_w: f64,
    max_power_w: f64,
    mean_power_w: f64,
    over_budget_s_max: f64,
    over_budget_s_total: f64,
    alerts: u64,
    user_facing_throttled_core_s: f64,
    user_facing_throttled_core_s_by_cause: ByCause,
    user_facing_p95_ms: Option<f64>,
    user_facing_p95_ms_before_load: Option<f64>,
    batch_throttled_core_s: f64,
    batch_frequency_ratio_mean: f64,
    batch_frequency_ratio_end: f64,
    batch_work_core_s: f64,
    hardware_engaged_s: f64,
    alert_to_floor_ms: Quantiles,
    agents_acted: usize,
    agent_rss_mib_max: f64,
    agent_cpu_percent_max: f64,
    restored: bool,
}

/// Three places are as much as a person or a grid of 10 ms can use.
fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

impl Summary {
    /// Figures of the run alone: `end` less `start`, where a figure adds up.
    pub(crate) fn new(setting: Setting, start: &Truth, end: &Truth, seen: &Observed) -> Self {
        let seconds = (end.elapsed_s - start.elapsed_s).max(f64::MIN_POSITIVE);
        let mean = |figure: fn(&Truth) -> f64| {
            let sum = |truth: &Truth| figure(truth) * truth.elapsed_s;
            round((sum(end) - sum(start)) / seconds)
        };

        let added = |figure: fn(&Truth) -> f64| round(figure(end) - figure(start));
        let user_facing = end.user_facing_throttled_core_s.since(&start.user_facing_throttled_core_s);
        Self {
            setting,
            shares: seen.shares,
            seconds: round(seconds),
            interrupted: seen.interrupted,
            budget_w: end.budget_w,
            max_power_w: round(end.max_power_w),
            mean_power_w: mean(|truth| truth.mean_power_w),
            over_budget_s_max: round(end.over_budget_s_max),
            over_budget_s_total: added(|truth| truth.over_budget_s_total),
            alerts: seen.alerts,
            user_facing_throttled_core_s: round(user_facing.total()),
            user_facing_throttled_core_s_by_cause: user_facing,
            user_facing_p95_ms: end.user_facing_p95_ms.map(round),
            user_facing_p95_ms_before_load: start.user_facing_p95_ms.map(round),
            batch_throttled_core_s: added(|truth| truth.batch_throttled_core_s.total()),
            batch_frequency_ratio_mean: mean(|truth| truth.batch_frequency_ratio_mean),
            batch_frequency_ratio_end: round(end.batch_frequency_ratio_end),
            batch_work_core_s: added(Truth::work_core_s),
            hardware_engaged_s: added(|truth| truth.hardware_engaged_s),
            alert_to_floor_ms: seen.alert_to_floor_ms,
            agents_acted: seen.agents_acted,
            agent_rss_mib_max: round(seen.agent_rss_mib_max),
            agent_cpu_percent_max: round(seen.agent_cpu_percent_max),
            restored: seen.restored,
        }
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name:<36}{value}");
        };

        let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2} ms"));
        let setting = &self.setting;
        let shares = self.shares.map_or("unknown", SharePolicy::name);
        let (policy, actuator) = (setting.policy.name(), setting.actuator.name());
        let policy = format!("{policy} by {actuator}, {shares} shares");
        line("policy", format!("{policy}, {} servers, {:.0} s", setting.servers, self.seconds));

        if let Some(trace) = &setting.trace {
            line("load", format!("{trace}, speedup {:.0}", setting.speedup));
        }
        line("budget", format!("{:.0} W", self.budget_w));
        line("power, highest and mean", format!("{:.0} W, {:.0} W", self.max_power_w, self.mean_power_w));

        line(
            "over budget, longest and total",
            format!("{:.2} s, {:.2} s", self.over_budget_s_max, self.over_budget_s_total),
        );
        line("the budget was", verdict(self.over_budget_s_max, setting.trip_s));

        line("capping events", self.alerts.to_string());
        line("agents that throttled", self.agents_acted.to_string());
        let floor = &self.alert_to_floor_ms;
        line(
            "alert to floor, p50, p99, longest",
            format!("{}, {}, {} ({} alerts)", ms(floor.p50), ms(floor.p99), ms(floor.max), floor.count),
        );

        line("user-facing cores throttled", format!("{:.1} core-s", self.user_facing_throttled_core_s));

        line("user-facing P95 latency", ms(self.user_facing_p95_ms));
        line("batch cores throttled", format!("{:.0} core-s", self.batch_throttled_core_s));
        line(
            "batch frequency, mean and at end",
            format!(
                "{:.1} %, {:.1} %",
                100.0 * self.batch_frequency_ratio_mean,
                100.0 * self.batch_frequency_ratio_end
            ),
        );

        line("batch work done", format!("{:.0} core-s", self.batch_work_core_s));
        let caps = if setting.hardware_caps { "" } else { " (switched off)" };
        line("hardware caps engaged", format!("{:.2} s{caps}", self.hardware_engaged_s));
        line(
            "an agent's memory and CPU, at most",
            format!("{:.1} MiB, {:.2} % of a core", self.agent_rss_mib_max, self.agent_cpu_percent_max),
        );

        line("everything put back", if self.restored { "yes" } else { "NO" }.to_owned());

        text.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth(elapsed_s: f64, mean_power_w: f64, ratio: f64, software: f64) -> Truth {
        serde_json::from_value(serde_json::json!({
            "elapsed_s": elapsed_s, "power_w": 2000.0, "budget_w": 2450.0, "max_power_w": 2480.0,
            "mean_power_w": mean_power_w, "over_budget_s_max": 0.4, "over_budget_s_total": 0.6,
            "user_facing_throttled_core_s": {"software": 0.0, "rapl": software, "out_of_band": 0.0,
                "supply": 0.0},
            "batch_throttled_core_s": {"software": software, "rapl": 0.0, "out_of_band": 0.0, "supply": 0.0},
            "hardware_engaged_s": 0.0, "batch_frequency_ratio_mean": ratio,
            "batch_frequency_ratio_end": 1.0, "user_facing_p95_ms": 14.25,
            "vms": [{"work_core_s": elapsed_s}, {"work_core_s": 1.0}], "a newer field": 1
        }))
        .unwrap()
    }
    fn summary() -> Summary {
        let setting = Setting {
            policy: PolicyArg::FullServer,
            actuator: ActuatorArg::Pstate,
            servers: 12,
            seed: 1,
            trace: Some("t.csv".into()),
            trace_scale: Some(TraceScale { user_facing: 0.5, batch: 1.5 }),
            speedup: 1440.0,
            hardware_caps: true,
            lift_hold_ms: 6000,
            trip_s: 5.0,
        };

        let seen = Observed {
            alerts: 3,
            shares: Some(SharePolicy::Even),
            alert_to_floor_ms: Quantiles::of(vec![1.0, 2.0]),
            agents_acted: 12,
            agent_rss_mib_max: 9.5,
            agent_cpu_percent_max: 0.4,
            restored: true,
            interrupted: false,
        };

        Summary::new(setting, &truth(10.0, 1500.0, 1.0, 2.0), &truth(40.0, 2100.0, 0.85, 26.0), &seen)
    }

    #[test]
    fn figures_are_those_of_the_run_alone() {
        let s = summary();
        // (2100·40 − 1500·10) / 30 and (0.85·40 − 1·10) / 30.
        assert_eq!((s.seconds, s.mean_power_w, s.batch_frequency_ratio_mean), (30.0, 2300.0, 0.8));
        assert_eq!((s.user_facing_throttled_core_s, s.batch_throttled_core_s), (24.0, 24.0));
        assert_eq!((s.batch_work_core_s, s.over_budget_s_max), (30.0, 0.4));
    }

    #[test]
    fn the_json_is_one_flat_object_with_the_documented_names() {
        let json = serde_json::to_value(summary()).unwrap();
        for (key, value) in [
            ("policy", serde_json::json!("full-server")),
            ("budget_w", serde_json::json!(2450.0)),
            ("alerts", serde_json::json!(3)),
            ("trace_scale", serde_json::json!({"user_facing": 0.5, "batch": 1.5})),
            ("user_facing_throttled_core_s", serde_json::json!(24.0)),
            ("alert_to_floor_ms", serde_json::json!({"p50": 1.0, "p99": 2.0, "max": 2.0, "count": 2})),
            ("restored", serde_json::json!(true)),
            ("hardware_caps", serde_json::json!(true)),
        ] {
            assert_eq!(json[key], value, "{key}");
        }
    }

    #[test]
    fn people_are_told_the_same() {
        let text = summary().text();
        for part in [
            "full-server by pstate, even shares, 12 servers, 30 s",
            "2480 W, 2300 W",
            "0.40 s, 0.00 s",
            "kept (breaker: 5 s)",
            "80.0 %, 100.0 %",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}
