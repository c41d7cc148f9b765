//! The plant of a demo, a rig or a benchmark, as it is asked for on a command line.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use ballast_sim::demo::{DemoOptions, TraceScale, default_budget, demo, trace_scales};
use ballast_sim::load::{Interpolation, Profile, Series};
use ballast_sim::plant::{Load, PlantSpec};
use ballast_types::Watts;
use clap::Args;

use crate::common::columns::ColumnArgs;
use crate::common::numbers::positive;

/// Before the load, a trace's first value is reached within this.
pub const RISE_S: f64 = 1.0;
/// The demo's load is laid out over this, where nothing else is said.
const LOAD_S: f64 = 60.0;
const DAY_S: f64 = 86_400.0;

/// What plant to run.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// Servers in the chassis
    #[arg(long, value_name = "N", default_value_t = 12,
        value_parser = clap::value_parser!(u16).range(1..=64))]
    pub servers: u16,
    /// What truth.json judges the draw against, in watts [default: 2450 for 12 servers]
    #[arg(long, value_name = "W", value_parser = positive)]
    pub budget_w: Option<f64>,
    /// CPU use that sets the load (CSV, also .zst, or Parquet) [default: the built-in generator]
    #[arg(long, value_name = "FILE")]
    pub telemetry: Option<PathBuf>,
    #[command(flatten)]
    pub columns: ColumnArgs,
    /// Load seconds that pass in one second [default: 1; with --telemetry, one day in --load-s]
    #[arg(long, value_name = "X", value_parser = positive)]
    pub speedup: Option<f64>,
    /// The load's timeline is laid out over this many seconds [default: 60]
    #[arg(long, value_name = "S", value_parser = positive)]
    pub load_s: Option<f64>,
    /// Seconds of quiet before the load begins
    #[arg(long, value_name = "S", value_parser = positive)]
    pub quiet_s: Option<f64>,
    /// Seed of the load and of the sensors' noise
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// RAPL, slot caps and the supplies' overload alert do nothing
    #[arg(long)]
    pub no_hardware_caps: bool,
    /// The load begins anew when it has ended; otherwise it stays as it ended. Telemetry always begins anew
    #[arg(long)]
    pub repeat: bool,
}

impl LoadArgs {
    /// A plant whose load stays below its budget for a day.
    pub fn quiet(servers: u16) -> Self {
        Self {
            servers,
            budget_w: None,
            telemetry: None,
            columns: ColumnArgs::default(),
            speedup: None,
            load_s: None,
            quiet_s: Some(DAY_S),
            seed: 1,
            no_hardware_caps: false,
            repeat: false,
        }
    }

    /// Twice the quiet time, for daemons that start slowly.
    pub fn allow_more_time(&mut self) {
        self.quiet_s = self.quiet_s.map(|quiet_s| 2.0 * quiet_s);
    }

    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec![format!("--servers={}", self.servers), format!("--seed={}", self.seed)];
        let mut number = |name: &str, value: Option<f64>| {
            args.extend(value.map(|value| format!("--{name}={value}")));
        };
        number("budget-w", self.budget_w);
        number("speedup", self.speedup);
        number("load-s", self.load_s);
        number("quiet-s", self.quiet_s);
        args.extend(self.telemetry.as_ref().map(|file| format!("--telemetry={}", file.display())));
        args.extend(self.columns.to_args());
        args.extend(self.no_hardware_caps.then(|| "--no-hardware-caps".to_owned()));
        args.extend(self.repeat.then(|| "--repeat".to_owned()));
        args
    }
}

#[derive(Debug)]
pub struct Plan {
    pub plant: PlantSpec,
    /// Quiet seconds at its start.
    pub quiet_s: f64,
    /// Load seconds per second.
    pub speedup: f64,
    /// What the trace's lines were multiplied by: the user-facing VMs' and the batch VMs'.
    pub trace_scale: Option<(f64, f64)>,
}

/// Makes the plant that the arguments ask for.
pub fn plan(args: &LoadArgs) -> anyhow::Result<Plan> {
    let servers = usize::from(args.servers);
    let budget = match args.budget_w {
        None => default_budget(servers),
        Some(w) => Watts::from_f64(w).context("--budget-w: at most 1e9 W")?,
    };

    let load_s = args.load_s.unwrap_or(LOAD_S);
    let trace = args.telemetry.as_ref().map(|file| args.columns.read(file)).transpose()?;
    let speedup = args.speedup.unwrap_or(if trace.is_some() { DAY_S / load_s } else { 1.0 });
    let mut plant = demo(&DemoOptions {
        servers,
        // The built-in load has a timeline in place of a clock of its own.
        seconds: if trace.is_some() { load_s } else { load_s / speedup },
        budget,
        seed: args.seed,
        hardware_caps: !args.no_hardware_caps,
        trace: trace.as_ref().map(|trace| (trace, TraceScale::Auto)),
        speedup,
        queues: true,
    });

    let idle = idle_w(&plant);

    if budget.as_f64() <= idle {
        bail!("--budget-w {}: above {idle:.0} W, what {servers} idle servers draw", budget.as_f64());
    }

    let quiet_s = args.quiet_s.unwrap_or(0.0);

    for vm in plant.servers.iter_mut().flat_map(|server| &mut server.vms) {
        let profile = match &mut vm.load {
            Load::Queue(queue) => &mut queue.utilisation,
            Load::Batch(batch) => &mut batch.demand,
            Load::Profile(profile) => profile,
        };
        if args.repeat {
            repeat(profile);
        }
        delay(profile, quiet_s);
    }

    let trace_scale = trace_scales(&plant);

    Ok(Plan { plant, quiet_s, speedup, trace_scale })
}

fn idle_w(plant: &PlantSpec) -> f64 {
    plant.servers.iter().map(|server| server.model.idle_w).sum()
}

/// Makes a timeline a series, which begins anew at its end. The built-in one has points at equal distances.
fn repeat(profile: &mut Profile) {
    if let Profile::Ramps(points) = profile
        && let [first, second, ..] = points[..]
    {
        let values = points.iter().map(|(_, value)| *value as f32).collect();
        let (period_s, interpolation) = (second.0 - first.0, Interpolation::Linear);
        *profile = Profile::Series(Series { period_s, values, interpolation, scale: 1.0, speedup: 1.0 });
    }
}

/// Lets a load begin `quiet_s` later. Until then a timeline stays at its first value, and a recorded
/// series is idle but for a short rise to its first value.
fn delay(profile: &mut Profile, quiet_s: f64) {
    match profile {
        Profile::Steps(points) | Profile::Ramps(points) => {
            *points = points.iter().map(|(at, value)| (at + quiet_s, *value)).collect();
        }
        Profile::Series(series) => {
            let grain_s = series.period_s / series.speedup;
            let before = (quiet_s / grain_s).ceil() as usize;
            let first = series.values.first().copied().unwrap_or(0.0);
            let rise = (RISE_S / grain_s).ceil().max(1.0);
            let quiet = (0..before).map(|n| {
                let left = (before - n) as f64 / rise;
                first * (1.0 - left).max(0.0) as f32
            });

            let values: Arc<[f32]> = quiet.chain(series.values.iter().copied()).collect();
            *series = Series { values, ..series.clone() };
        }

        // These have no beginning.
        Profile::Constant(_) | Profile::Generated(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_sim::load::Cursor;
    use clap::Parser;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        load: LoadArgs,
    }

    #[test]
    fn the_rig_gets_the_plan_of_the_demo() {
        let load = LoadArgs {
            budget_w: Some(900.5),
            speedup: Some(2.0),
            load_s: Some(30.0),
            no_hardware_caps: true,
            repeat: true,
            ..LoadArgs::quiet(4)
        };
        let line = ["rig".to_owned()].into_iter().chain(load.to_args());
        let parsed = CommandLine::try_parse_from(line).unwrap_or_else(|error| unreachable!("{error}"));
        assert_eq!(plan(&parsed.load).unwrap().plant, plan(&load).unwrap().plant);
    }

    #[test]
    fn a_load_that_repeats_is_the_same_load_until_its_end_and_then_again() {
        let of = |repeat| {
            let load = LoadArgs { load_s: Some(30.0), quiet_s: Some(2.0), repeat, ..LoadArgs::quiet(2) };
            let plant = plan(&load).unwrap_or_else(|error| unreachable!("{error}")).plant;
            match &plant.servers[0].vms[0].load {
                Load::Queue(queue) => Cursor::new(queue.utilisation.clone()),
                load => unreachable!("{load:?}"),
            }
        };

        let (mut once, mut again, mut later) = (of(false), of(true), of(true));
        // 2 s of quiet, and 241 points at distances of an eighth.
        let period_s = 2.0 + 241.0 / 8.0;
        let mut differs = false;
        for t in 2..30 {
            let (t, want) = (f64::from(t), once.at(f64::from(t)));
            assert!((again.at(t) - want).abs() < 1e-3, "{t}");
            assert!((later.at(t + period_s) - want).abs() < 1e-3, "{t}");
            differs |= (want - once.at(t + 0.5)).abs() > 1e-3;
        }
        assert!(differs);
    }

    #[test]
    fn budgets_below_idle_are_refused_with_the_number_that_is_needed() {
        let load = LoadArgs { budget_w: Some(400.0), ..LoadArgs::quiet(4) };
        let error = plan(&load).unwrap_err().to_string();
        assert_eq!(error, "--budget-w 400: above 448 W, what 4 idle servers draw");
    }

    #[test]
    fn a_delayed_load_is_the_same_load_later() {
        let series = |values: &[f32]| {
            Profile::Series(Series {
                period_s: 300.0,
                values: values.into(),
                interpolation: Interpolation::Linear,
                scale: 1.0,
                speedup: 1200.0,
            })
        };

        let ramps = Profile::Ramps([(0.0, 0.5), (4.0, 0.9)].into());
        for profile in [series(&[0.4, 0.8, 0.6, 0.4, 0.2, 0.9, 0.1, 0.3]), ramps] {
            let mut later = profile.clone();
            delay(&mut later, 3.0);
            let (mut now, mut then) = (Cursor::new(profile), Cursor::new(later));
            let quiet = then.at(1.0);
            assert!(quiet <= now.at(0.0));

            for n in 0..7 {
                let t = f64::from(n) / 4.0;
                assert!((now.at(t) - then.at(t + 3.0)).abs() < 1e-6, "{t}");
            }
        }
    }
}
