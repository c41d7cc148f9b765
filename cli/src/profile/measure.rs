//! Measures a server: every load at every frequency, then all is put back.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ballast_agent::Exclusive;
use ballast_agent::config::{AgentConfig, ConfigFile as _, MeterConfig};
use ballast_hw::{CpuTime, Root, probe};
use ballast_planner::Point;
use ballast_runtime::config::EXIT_CONFIG;
use ballast_runtime::{EXIT_LIVE, now};
use ballast_types::{Instant, KiloHertz, Ladder};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::gather::{Gather, Took};
use super::load::Load;
use crate::common::numbers::{positive, share};
use crate::common::profile::{Machine, Measured, Meter};
use crate::common::terminal::INTERRUPTED;
use crate::common::terminal::{progress_bar, tell};

/// Between two looks at whether to stop.
const LOOK: Duration = Duration::from_millis(50);
/// Without a fresh value of the meter for this long there is none to come.
const PATIENCE: Duration = Duration::from_secs(60);
/// How far the load may be from what was asked for: something else runs there, or ours is held back.
const OFF: f64 = 0.1;

/// What is measured.
#[derive(Args, Debug)]
#[command(next_help_heading = "Measuring (--config)")]
pub(super) struct Grid {
    /// Really load this machine and lower its frequencies
    #[arg(long)]
    yes: bool,
    /// How busy all cores are kept, as shares of their time
    #[arg(long, value_name = "SHARES", value_delimiter = ',', default_value = "0,0.25,0.5,0.75,1",
        value_parser = share)]
    loads: Vec<f64>,
    /// At how many frequencies: the lowest that software throttles to, the highest, and others evenly between
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=32))]
    frequencies: u8,
    /// Fresh values of the meter for each point
    #[arg(long, value_name = "N", default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(3..=100_000))]
    values: u32,
    /// How long the server settles after each change, beside its meter's lag: fans and heat take longer
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = positive)]
    settle_s: f64,
}

pub(super) enum Ended {
    Measured(Box<Measurements>),
    /// With nothing but an exit code; why was said.
    Early(u8),
}

pub(super) struct Measurements {
    pub(super) of: String,
    pub(super) points: Vec<Measured>,
    pub(super) meter: Meter,
    pub(super) machine: Machine,
}

/// Measures the server of this configuration.
pub(super) fn run(config: &Path, grid: &Grid) -> anyhow::Result<Ended> {
    let config = match AgentConfig::load(config) {
        Ok(config) => config,
        Err(error) => {
            tell(&error.to_string());
            return Ok(Ended::Early(EXIT_CONFIG));
        }
    };

    let root = Root::at(&config.daemon.root);
    if root.is_machine() && !grid.yes {
        bail!(
            "this keeps every core of this machine busy and lowers all frequencies, for {} points; whatever \
             runs here is slowed. On an empty server say --yes",
            grid.loads.len() * usize::from(grid.frequencies)
        );
    }

    let stop = stop()?;
    let Some(exclusive) = Exclusive::take(&config)? else {
        tell(&format!(
            "an agent runs on {}: stop it first; nothing was done",
            config.daemon.state_dir.display()
        ));

        return Ok(Ended::Early(EXIT_LIVE));
    };

    let mut bench = Bench { exclusive, root, config, stop, newest: None, least_step: None };
    let done = bench.measure(grid);
    let back = bench.exclusive.restore();
    let stopped = bench.stop.load(Ordering::Relaxed);

    match (done, back) {
        (Err(error), Err(left)) => bail!("{error:#}; {left:#}"),
        (_, Err(left)) => Err(left),
        (Err(_), Ok(())) if stopped => {
            tell("stopped: everything is restored");
            Ok(Ended::Early(INTERRUPTED))
        }
        (done, Ok(())) => Ok(Ended::Measured(Box::new(done?))),
    }
}

/// Is set by SIGINT, SIGTERM and SIGHUP.
fn stop() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(guard);
    thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        });

        set.store(true, Ordering::Relaxed);
    })?;

    Ok(flag)
}

/// The p-states that are measured at, as indices of a ladder: the floor, the top, others evenly between.
fn step(ladder: &Ladder, n: u8, of: u8) -> usize {
    let (low, high) = (f64::from(ladder.floor().get()), f64::from(ladder.max().get()));
    let khz = low + (high - low) * f64::from(n) / f64::from(of - 1);
    ladder.at_or_below(KiloHertz::new(khz.round() as u32))
}

struct Bench {
    exclusive: Exclusive,
    root: Root,
    config: AgentConfig,
    stop: Arc<AtomicBool>,
    /// When the meter's newest value was made.
    newest: Option<Instant>,
    least_step: Option<f64>,
}

impl Bench {
    fn measure(&mut self, grid: &Grid) -> anyhow::Result<Measurements> {
        let load = Load::start(&self.root, self.exclusive.domains())?;
        let cores = self.exclusive.cores();
        let ladders: Vec<_> = cores.into_iter().map(|core| core.ladder).collect();
        let of = grid.frequencies;
        let mean = |n: u8| {
            let share = |ladder: &Ladder| ladder.khz(step(ladder, n, of)).share_of(ladder.max());
            ladders.iter().map(share).sum::<f64>() / ladders.len() as f64
        };

        let mut steps: Vec<(u8, f64)> = (0..of).map(|n| (n, mean(n))).collect();

        // A short ladder has no steps between.
        steps.dedup_by_key(|(_, frequency)| *frequency);
        let all = steps.len() * grid.loads.len();
        let bar = progress_bar(all as u64, "{bar:30} {pos}/{len} points, {msg}, {eta} left");
        let mut points = vec![];

        for (n, frequency) in steps {
            self.exclusive.cap(|ladder| step(ladder, n, of))?;
            for &share in &grid.loads {
                bar.set_message(format!("{:.0} % busy at {frequency:.2} of the frequency", 100.0 * share));

                load.set(share)?;
                points.push(self.point(grid, frequency, share)?);
                bar.inc(1);
            }
        }

        bar.finish_and_clear();
        drop(load);

        // No mean is better known than the meter's steps allow.
        let least = self.least_step.unwrap_or(0.0) / 12.0_f64.sqrt();

        for measured in &mut points {
            measured.point.error_w = measured.point.error_w.map(|error| error.max(least));
        }
        Ok(Measurements {
            of: self.config.server.to_string(),
            points,
            meter: self.meter(),
            machine: self.machine(&ladders),
        })
    }

    /// One setting, held until there are enough fresh values of it.
    fn point(&mut self, grid: &Grid, frequency: f64, wanted: f64) -> anyhow::Result<Measured> {
        let MeterConfig { lag, .. } = self.config.meter;
        let averaged = self.exclusive.meter.averaged_over().unwrap_or_default();
        let settle = averaged + Duration::from_secs_f64(grid.settle_s);
        let changed_at = now();
        let mut gather = Gather::new(changed_at, lag, settle, grid.values, self.newest);
        let mut since = None;
        let mut fresh_at = changed_at;

        loop {
            self.pause()?;
            let asked_at = now();
            let failed = match self.exclusive.meter.sample(asked_at) {
                Ok((watts, taken_at)) => {
                    if self.newest != Some(taken_at) {
                        fresh_at = asked_at;
                    }
                    match gather.take(watts, taken_at) {
                        Took::Early => {}
                        Took::Counted if since.is_some() => {}
                        Took::Counted => since = Some(CpuTime::read(&self.root)?),
                        Took::Enough => break,
                    }

                    self.newest = gather.newest();

                    None
                }
                Err(error) => Some(error.to_string()),
            };

            if asked_at.since(fresh_at) > PATIENCE {
                let why = failed.unwrap_or_else(|| "its value does not move".to_owned());
                bail!("the meter has had no fresh value for {} s: {why}", PATIENCE.as_secs());
            }
        }

        self.newest = gather.newest();
        let used = since.context("one value is not enough")?;
        let utilisation = CpuTime::read(&self.root)?
            .busy_since(&used)
            .context("proc/stat has not moved: how busy the server was is not known")?;
        if (utilisation - wanted).abs() > OFF {
            bail!(
                "the cores were to be busy for {wanted} of their time, and were for {utilisation:.2}: \
                 something else runs on this server, or the load is held back (quotas, CPU sets)"
            );
        }

        self.least_step = match (self.least_step, gather.least_step()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };

        let (watts, error_w) = (gather.mean(), Some(gather.error()));
        let point = Point { utilisation, frequency, watts, error_w };

        Ok(Measured { point, values: Some(gather.count()) })
    }

    /// Until the meter's next read; an error when we are to stop.
    fn pause(&self) -> anyhow::Result<()> {
        let until = now() + self.config.meter.read_period();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                bail!("stopped");
            }
            let left = until.since(now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(LOOK));
        }
    }

    fn meter(&self) -> Meter {
        let ms = |span: Duration| span.as_millis() as u64;
        let config = &self.config.meter;
        Meter {
            name: config.name(),
            lag_ms: ms(config.lag),
            refresh_ms: self.exclusive.meter.refresh().map(ms),
            resolution_w: self.least_step.map(|w| (w * 1000.0).round() / 1000.0),
        }
    }

    fn machine(&self, ladders: &[Ladder]) -> Machine {
        let cpus = self.exclusive.domains().iter().map(|domain| domain.cpus.iter().count()).sum();
        Machine {
            cpu: probe::cpu_model(&self.root),
            driver: self.exclusive.driver().to_owned(),
            cores: ladders.len(),
            cpus,
            lowest_khz: ladders.iter().map(|it| it.floor().get()).min().unwrap_or_default(),
            highest_khz: ladders.iter().map(|it| it.max().get()).max().unwrap_or_default(),
        }
    }
}
