//! Foreign telemetry, played on the plant under the very same controllers.
//!
//! A series of watts is one server: inverted to utilisation through the power model, on every core.
//! Series of CPU use are one per server too when there are no more of them than servers; otherwise each is
//! one VM, and VMs fill the servers in the order of the file: three user-facing of 4 cores and three batch
//! of 6 cores on each. Nobody labelled those VMs: which is user-facing is our assumption.

use core::time::Duration;
use std::sync::Arc;

use ballast_agent_core::Policy;
use ballast_types::{
    Core, CoreId, Instant, KiloHertz, Ladder, OnExtreme, PowerModel, ServerId, VmClass, VmId, Watts,
};
use serde::Serialize;

use crate::plant::{
    Interpolation, Load, Plant, PlantSpec, Profile, SensorSpec, Series, ServerSpec, SharedSpec,
    SupplySpec, VmLoad,
};
use crate::trace::{self, Trace, Unit};
use crate::world::{Bucket, Checks, Setup, Violation, World};

/// What cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// A budget that no chassis can keep.
    #[error(
        "budget_w = {budget}: the {servers} servers and what they share draw {idle} while idle; allowed is more than that"
    )]
    Budget {
        /// As asked.
        budget: Watts,
        /// What the idle chassis draws.
        idle: Watts,
        /// How many servers.
        servers: usize,
    },
    /// A number out of range.
    #[error("{key} = {value}: {allowed}")]
    Value {
        /// Which option.
        key: &'static str,
        /// As asked.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A controller broke its promise.
    #[error(transparent)]
    Violation(#[from] Violation),
}

/// What one series is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Meaning {
    /// A whole server.
    Server,
    /// One VM.
    Vm,
}

/// How to replay.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The chassis's budget, at the supplies' input.
    pub budget: Watts,
    /// How many servers; `None`: one per series of watts, else 12.
    pub servers: Option<usize>,
    /// Recorded seconds that are left out at the start.
    pub skip_s: f64,
    /// Recorded seconds to replay; `None` for all.
    pub length_s: Option<f64>,
    /// Of all chance.
    pub seed: u64,
    /// How the agents throttle. With `none`, the plant's hardware caps are off too.
    pub policy: Policy,
    /// Every value is multiplied by this.
    pub scale: f64,
    /// What a server draws.
    pub model: PowerModel,
    /// Points of the curve.
    pub points: usize,
}

/// What a replay of telemetry came to. All power is the plant's true power, at every 10 ms.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TelemetryReport {
    /// The trace.
    pub telemetry: String,
    /// What one series was taken for.
    pub series_are: Meaning,
    /// Series that were played.
    pub series_used: usize,
    /// The policy.
    pub policy: &'static str,
    /// The seed.
    pub seed: u64,
    /// The budget.
    pub budget_w: f64,
    /// Servers.
    pub servers: usize,
    /// Seconds that the trace covers.
    pub telemetry_s: f64,
    /// Seconds that were replayed.
    pub replayed_s: f64,
    /// Highest draw.
    pub max_power_w: f64,
    /// Mean draw.
    pub mean_power_w: f64,
    /// Longest stretch above the budget.
    pub over_budget_s_max: f64,
    /// All time above the budget.
    pub over_budget_s_total: f64,
    /// Capping episodes.
    pub capping_events: u64,
    /// Seconds in which some agent was told `emergency`.
    pub emergency_s: f64,
    /// Seconds in which some server had an out-of-band cap.
    pub out_of_band_s: f64,
    /// Seconds in which some server had its own hardware limit.
    pub server_limit_s: f64,
    /// Seconds in which hardware held back at least one core.
    pub hardware_engaged_s: f64,
    /// Core-seconds that user-facing cores were held down, by any cause.
    pub user_facing_throttled_core_s: f64,
    /// Core-seconds that batch cores were held down, by any cause.
    pub batch_throttled_core_s: f64,
    /// Frequency of batch cores as a share of the highest: over cores and time.
    pub batch_frequency_ratio_mean: f64,
    /// The lowest mean over cores.
    pub batch_frequency_ratio_min: f64,
    /// The mean over cores at the end.
    pub batch_frequency_ratio_end: f64,
    /// Values that no utilisation stands for, clamped: in the file, by the scale, by the power model.
    pub clamped_values: u64,
    /// Gaps in what was played; the value before held.
    pub gaps: u64,
    /// Polls of the supplies.
    pub polls: u64,
    /// Messages to agents.
    pub alerts_sent: u64,
    /// Outputs of all controllers.
    pub outputs: u64,
    /// 128 bits over them and their instants.
    pub outputs_hash: String,
    /// The draw and the frequencies over time; extremes are kept. Not in JSON: it is for the plot.
    #[serde(skip)]
    pub curve: Vec<Bucket>,
}

/// Telemetry on its way through the world.
#[derive(Debug)]
pub struct Telemetry {
    world: World,
    end: Instant,
    facts: Facts,
}

/// What is known before the run.
#[derive(Debug)]
struct Facts {
    name: String,
    meaning: Meaning,
    series: usize,
    servers: usize,
    covered_s: f64,
    clamped: u64,
    gaps: u64,
    budget: Watts,
    policy: Policy,
    seed: u64,
}

/// A chassis has no more servers than this.
const SERVERS_MAX: usize = 256;
/// Cores of one server.
const CORES: u16 = 40;
/// VMs of one server where a series is a VM: class and cores.
const PACKED: [(VmClass, u16); 6] = [
    (VmClass::UserFacing, 4),
    (VmClass::NonUserFacing, 6),
    (VmClass::UserFacing, 4),
    (VmClass::NonUserFacing, 6),
    (VmClass::UserFacing, 4),
    (VmClass::NonUserFacing, 6),
];
/// And where a series is a server: every core is in use, two of five for user-facing VMs.
const WHOLE: [(VmClass, u16); 8] = [
    (VmClass::UserFacing, 4),
    (VmClass::NonUserFacing, 6),
    (VmClass::UserFacing, 4),
    (VmClass::NonUserFacing, 6),
    (VmClass::UserFacing, 4),
    (VmClass::NonUserFacing, 6),
    (VmClass::UserFacing, 4),
    (VmClass::NonUserFacing, 6),
];

impl Telemetry {
    /// Builds the chassis for this trace.
    ///
    /// # Errors
    /// If an option is out of range, or the budget is under what the idle chassis draws.
    pub fn new(trace: &Trace, options: &Options) -> Result<Self, TelemetryError> {
        check(trace, options)?;
        let watts = trace.series.iter().any(|s| s.unit == Unit::Watts);
        let servers = options.servers.unwrap_or(if watts { trace.series.len() } else { 12 });
        if !(1..=SERVERS_MAX).contains(&servers) {
            let allowed = format!("allowed is 1 to {SERVERS_MAX}");
            return Err(TelemetryError::Value {
                key: "servers",
                value: servers.to_string(),
                allowed,
            });
        }
        let meaning =
            if watts || trace.series.len() <= servers { Meaning::Server } else { Meaning::Vm };
        let (vms, per_server): (&[_], _) = match meaning {
            Meaning::Server => (&WHOLE, 1),
            Meaning::Vm => (&PACKED, PACKED.len()),
        };
        let used = trace.series.len().min(servers * per_server);
        let (mut clamped, mut gaps) = (trace.report.clamped, 0);
        let profiles: Vec<_> = trace.series[..used]
            .iter()
            .map(|series| {
                let played = cut(trace, series, options, &mut clamped).played(&options.model);
                clamped += played.clamped;
                gaps += played.filled;
                profile(trace.period_s, played.values)
            })
            .collect();
        let plant = chassis(
            servers,
            options,
            |server, vm| {
                let n = if per_server == 1 { server } else { server * per_server + vm };
                profiles[n % profiles.len()].clone()
            },
            vms,
        );
        let idle =
            Plant::new(chassis(servers, options, |_, _| Profile::Constant(0.0), vms), 0).power();
        if options.budget <= idle {
            return Err(TelemetryError::Budget { budget: options.budget, idle, servers });
        }
        let (_, len) = window(trace, options);
        // The last value holds for no longer than the trace says.
        let wanted = options.length_s.unwrap_or(f64::INFINITY);
        let length = Duration::from_secs_f64((len.max(2) - 1) as f64 * trace.period_s)
            .min(Duration::try_from_secs_f64(wanted).unwrap_or(Duration::MAX));
        let mut setup = Setup::new(plant, options.policy, options.seed, length);
        if std::env::var("SCRATCH_SHARES").is_ok_and(|v| v == "critical-first") {
            setup.chassis.shares = ballast_types::wire::SharePolicy::CriticalFirst;
        }
        if std::env::var("SCRATCH_SHARES").is_ok_and(|v| v == "even") {
            setup.chassis.shares = ballast_types::wire::SharePolicy::Even;
        }
        // A figure is wanted here, not the first broken promise: the report says how long it was.
        setup.checks = Checks { trip_time: false, ..setup.checks };
        setup.points = options.points;
        let facts = Facts {
            name: trace.name.clone(),
            meaning,
            series: used,
            servers,
            covered_s: trace.span_s(),
            clamped,
            gaps,
            budget: options.budget,
            policy: options.policy,
            seed: options.seed,
        };
        Ok(Self { world: World::new(setup), end: Instant::ZERO + length, facts })
    }

    /// The whole length of the run, in virtual time.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.end.since(Instant::ZERO)
    }

    /// How much of it is done.
    #[must_use]
    pub fn done(&self) -> Duration {
        self.world.now().since(Instant::ZERO)
    }

    /// Runs on for `span`; true at the end.
    ///
    /// # Errors
    /// When a controller breaks its promise.
    pub fn advance(&mut self, span: Duration) -> Result<bool, TelemetryError> {
        let to = (self.world.now() + span).min(self.end);
        self.world.run(to)?;
        Ok(to >= self.end)
    }

    /// What it has come to so far.
    #[must_use]
    pub fn report(&self) -> TelemetryReport {
        let (truth, outcome, facts) = (self.world.truth(), self.world.outcome(), &self.facts);
        TelemetryReport {
            telemetry: facts.name.clone(),
            series_are: facts.meaning,
            series_used: facts.series,
            policy: facts.policy.name(),
            seed: facts.seed,
            budget_w: facts.budget.as_f64(),
            servers: facts.servers,
            telemetry_s: facts.covered_s,
            replayed_s: outcome.elapsed_s,
            max_power_w: truth.max_power_w.as_f64(),
            mean_power_w: truth.mean_power_w.as_f64(),
            over_budget_s_max: truth.over_budget_s_max,
            over_budget_s_total: truth.over_budget_s_total,
            capping_events: outcome.capping_events,
            emergency_s: outcome.emergency_s,
            out_of_band_s: outcome.out_of_band_s,
            server_limit_s: outcome.server_limit_s,
            hardware_engaged_s: truth.hardware_engaged_s,
            user_facing_throttled_core_s: truth.user_facing_throttled_core_s.total(),
            batch_throttled_core_s: truth.batch_throttled_core_s.total(),
            batch_frequency_ratio_mean: truth.batch_frequency_ratio_mean,
            batch_frequency_ratio_min: outcome.batch_frequency_ratio_min,
            batch_frequency_ratio_end: truth.batch_frequency_ratio_end,
            clamped_values: facts.clamped,
            gaps: facts.gaps,
            polls: outcome.polls,
            alerts_sent: outcome.alerts_sent,
            outputs: outcome.outputs,
            outputs_hash: outcome.outputs_hash,
            curve: self.world.curve().to_vec(),
        }
    }
}

fn check(trace: &Trace, options: &Options) -> Result<(), TelemetryError> {
    let bad = |key, value: f64, allowed: String| {
        Err(TelemetryError::Value { key, value: value.to_string(), allowed })
    };
    if options.budget <= Watts::ZERO {
        return bad("budget_w", options.budget.as_f64(), "allowed is a power above 0".into());
    }
    if !(options.scale > 0.0 && options.scale <= 1000.0) {
        return bad("scale", options.scale, "allowed is a number above 0, at most 1000".into());
    }
    if let Err(reason) = options.model.check() {
        let value = serde_json::to_string(&options.model).unwrap_or_default();
        return Err(TelemetryError::Value { key: "power model", value, allowed: reason.into() });
    }
    if !(0.0..trace.span_s()).contains(&options.skip_s) {
        let allowed =
            format!("allowed is 0 to less than the {:.2} h of the trace", trace.span_s() / 3600.0);
        return bad("skip (hours)", options.skip_s / 3600.0, allowed);
    }
    if options.length_s.is_some_and(|s| s.is_nan() || s <= 0.0) {
        return bad(
            "hours",
            options.length_s.unwrap_or(0.0) / 3600.0,
            "allowed is a number above 0".into(),
        );
    }
    Ok(())
}

/// The first value that is played, and how many there are.
fn window(trace: &Trace, options: &Options) -> (usize, usize) {
    let all = trace.series.first().map_or(0, |s| s.values.len());
    let first = ((options.skip_s / trace.period_s) as usize).min(all.saturating_sub(1));
    let wanted = options.length_s.map_or(usize::MAX, |s| (s / trace.period_s).ceil() as usize + 1);
    (first, wanted.clamp(2, (all - first).max(2)).min(all - first))
}

/// The part of a series that is played, scaled.
fn cut(
    trace: &Trace,
    series: &trace::Series,
    options: &Options,
    clamped: &mut u64,
) -> trace::Series {
    let (first, len) = window(trace, options);
    let top = match series.unit {
        Unit::Percent => 100.0,
        Unit::Share => 1.0,
        Unit::Watts => f64::INFINITY,
    };
    let values = series.values[first..first + len].iter().map(|value| {
        let scaled = f64::from(*value) * options.scale;
        *clamped += u64::from(scaled > top);
        scaled.min(top) as f32
    });
    // `min` would turn a gap into the top.
    let values =
        values.zip(&series.values[first..]).map(|(v, raw)| if raw.is_nan() { f32::NAN } else { v });
    trace::Series { name: series.name.clone(), unit: series.unit, values: values.collect() }
}

fn profile(period_s: f64, values: Arc<[f32]>) -> Profile {
    let interpolation = Interpolation::Linear;
    Profile::Series(Series { period_s, values, interpolation, scale: 1.0, speedup: 1.0 })
}

/// A chassis of like servers: 2 sockets of 20 cores, 1.2 to 2.4 GHz in steps of 100 MHz.
fn chassis(
    servers: usize,
    options: &Options,
    load: impl Fn(usize, usize) -> Profile,
    vms: &[(VmClass, u16)],
) -> PlantSpec {
    let mhz = KiloHertz::from_mhz;
    let ladder =
        Ladder::stepped(mhz(1200), mhz(2400), mhz(100)).expect("1200 to 2400 by 100 is a ladder");
    let server = |n: usize| {
        let mut next = 0;
        let vms = vms.iter().enumerate().map(|(v, (class, cores))| {
            let first = next;
            next += cores;
            let kind = if *class == VmClass::UserFacing { "user" } else { "batch" };
            VmLoad {
                id: VmId::new(&format!("{kind}-{v}")).expect("letters and digits are an id"),
                class: *class,
                throttle_order: 0,
                cores: (first..next).map(CoreId).collect(),
                on_extreme: OnExtreme::None,
                load: Load::Profile(load(n, v)),
            }
        });
        ServerSpec {
            id: ServerId::new(&format!("s{:02}", n + 1)).expect("letters and digits are an id"),
            model: options.model,
            sockets: 2,
            vms: vms.collect(),
            cores: (0..CORES).map(|c| Core { id: CoreId(c), ladder: ladder.clone() }).collect(),
        }
    };
    // Fans and switch of a chassis of twelve: 60 to 180 W and 40 W.
    let share = |w: f64| Watts::from_f64(w * servers as f64 / 12.0).unwrap_or(Watts::ZERO);
    // Two supplies, each of which could carry everything: the budget is the limit, not they.
    let all = Watts::from_f64(options.model.full_w * servers as f64 * 1.25).unwrap_or(Watts::MAX);
    PlantSpec {
        servers: (0..servers).map(server).collect(),
        supplies: vec![SupplySpec::active(all), SupplySpec::active(all)],
        shared: SharedSpec { fans_idle: share(60.0), fans_full: share(180.0), switch: share(40.0) },
        meter: SensorSpec::default(),
        supply_meter: SensorSpec::default(),
        hardware_caps: options.policy != Policy::None,
        budget: options.budget,
    }
}
