//! `ballast demo`: a rig and real daemons as processes, watched for a while, summed up, and cleared away.

mod args;
mod summary;
mod view;

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use ballast_types::TRIP_TIME;
use ballast_types::wire::ChassisStatus;
use ratatui::crossterm::event::KeyCode;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

pub(crate) use args::DemoArgs;
use ballast_testbed::events::{Heard, Quantiles, follow, reaction};
use ballast_testbed::processes::{Process, Usage};
use ballast_testbed::stage::{Folder, Play, Stage, client};
use summary::{Observed, Setting, Summary, TraceScale, Truth};
use view::Progress;

use crate::common::plant::{self, Plan};
use crate::common::screen::Screen;
use crate::common::scrolled_table::scroll;
use crate::common::terminal::{INTERRUPTED, answer, stop, tell};

/// Between two looks at the run.
const TICK: Duration = Duration::from_millis(250);
/// Processes are measured, and a line is written, at every so many looks.
const TICKS_A_SECOND: u64 = 4;
/// Daemons that need longer than this to start are given up.
const QUIET_MAX_S: f64 = 30.0;
/// The last events are on their way for no longer than this.
const LAST_EVENTS: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let stop = stop()?;
        tokio::pin!(stop);
        match play(args, &mut stop).await? {
            None => {
                tell("ended before the load began");
                Ok(ExitCode::from(INTERRUPTED))
            }
            Some((summary, end)) => {
                answer(args.json, &summary, || summary.text())?;
                Ok(if end == End::Signal { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
            }
        }
    })
}

/// The whole play; `None` if it was stopped before the load began.
async fn play(
    args: &DemoArgs,
    stop: &mut (impl Future<Output = ()> + Unpin),
) -> anyhow::Result<Option<(Summary, End)>> {
    let hold_ms = lift_hold_ms(args.seconds);
    let (mut stage, begun) = tokio::select! {
        begun = begin(args, hold_ms) => begun?,
        () = &mut *stop => return Ok(None),
    };

    let Begun { plan, start, trip_s } = begun;
    let mut watch = Watch::new(&stage, args, &start, trip_s)?;
    let end = watch.run(&mut stage, stop, start.elapsed_s).await?;

    // Before the daemons let go: what comes after is no part of the run.
    let last = Truth::read(&stage.truth())?;
    sleep(LAST_EVENTS).await;
    let (mut problems, changed) = stage.end_daemons()?;
    let mut seen = watch.end(end != End::Done);
    problems.extend(stage.end());
    problems.iter().for_each(|line| tell(line));

    for file in changed.iter().take(10) {
        tell(&format!("not put back: {file}"));
    }
    seen.restored = changed.is_empty();

    if let Some(folder) = &args.keep {
        tell(&format!("configs, logs, recordings and the tree are in {}", folder.display()));
    }
    let setting = Setting {
        policy: args.control.policy(),
        actuator: args.control.actuator(),
        servers: plan.plant.servers.len(),
        seed: args.seed,
        trace: args.telemetry.as_ref().map(|file| file.display().to_string()),
        trace_scale: plan.trace_scale.map(|(user_facing, batch)| TraceScale { user_facing, batch }),
        speedup: plan.speedup,
        hardware_caps: plan.plant.hardware_caps,
        lift_hold_ms: hold_ms,
        trip_s,
    };

    Ok(Some((Summary::new(setting, &start, &last, &seen), end)))
}

/// A tenth of the run, so that a release is seen, but never longer than the default.
fn lift_hold_ms(seconds: u64) -> u64 {
    (seconds * 100).clamp(2_000, 30_000)
}

/// What runs once the load begins.
struct Begun {
    plan: Plan,
    start: Truth,
    /// How long the draw may be above the budget, by the manager's config.
    trip_s: f64,
}

/// Starts everything, and waits until the plant's load begins.
async fn begin(args: &DemoArgs, hold_ms: u64) -> anyhow::Result<(Stage, Begun)> {
    let control = args.control.control()?;
    let mut load = args.load();
    let mut stage = Stage::new(Folder::make(args.keep.as_deref())?);

    loop {
        let plan = plant::plan(&load)?;
        tell(&format!("starting a rig, {} agents and a chassis manager", plan.plant.servers.len()));
        let length = Duration::from_secs_f64(plan.quiet_s + args.seconds as f64);
        let mut scenario = control.scenario(plan.plant.clone(), args.seed, length);
        scenario.chassis.lift_hold = Duration::from_millis(hold_ms);
        scenario.record = args.keep.is_some();
        let rig_args = load.to_args();
        let play = Play { scenario: &scenario, rig_args, has_manager: true, tls: false };

        stage.start(&play).await?;
        let now = Truth::read(&stage.truth())?.elapsed_s;

        // The load must not begin before everybody is ready.
        if now < plan.quiet_s - plant::RISE_S {
            sleep(Duration::from_secs_f64(plan.quiet_s - now)).await;
            stage.fleet.check()?;
            let start = Truth::read(&stage.truth())?;
            let trip_s = TRIP_TIME.as_secs_f64();
            return Ok((stage, Begun { plan, start, trip_s }));
        }

        if plan.quiet_s > QUIET_MAX_S {
            bail!("the daemons need {now:.1} s to start");
        }
        tell(&format!("the daemons needed {now:.1} s to start: once more, with more time"));
        load.allow_more_time();
        stage.clear()?;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    Key,
    /// SIGINT or SIGTERM.
    Signal,
}

struct Watch {
    seconds: f64,
    client: reqwest::Client,
    chassis: String,
    live: Progress,
    screen: Option<Screen>,
    /// By how many servers the table is moved.
    scrolled: usize,
    plain: bool,
    heard: Heard,
    followers: JoinSet<()>,
    usage_at_start: Vec<Option<Usage>>,
    usage: Vec<Option<Usage>>,
    rss_kib_max: u64,
    began: Instant,
    measured: Instant,
}

impl Watch {
    fn new(stage: &Stage, args: &DemoArgs, start: &Truth, trip_s: f64) -> anyhow::Result<Self> {
        let client = client()?;
        let heard = Heard::default();
        let mut followers = JoinSet::new();
        let chassis = stage.chassis.clone().context("there is no chassis manager")?;
        let agents = stage.agents.iter().map(|(id, url)| (Some(id.clone()), url.clone()));

        for (from, url) in agents.chain([(None, chassis.clone())]) {
            followers.spawn(follow(client.clone(), url, from, heard.clone()));
        }
        let screen = (!args.json && std::io::stdout().is_terminal()).then(Screen::open).transpose()?;
        let usage: Vec<_> = stage.fleet.agents.iter().map(Process::usage).collect();

        Ok(Self {
            seconds: args.seconds as f64,
            client,
            live: Progress {
                seconds: args.seconds as f64,
                budget_w: start.budget_w,
                page: chassis.clone(),
                hold: args.hold,
                trip_s,
                ..Progress::default()
            },
            chassis,
            plain: screen.is_none(),
            screen,
            scrolled: 0,
            heard,
            followers,
            usage_at_start: usage.clone(),
            usage,
            rss_kib_max: 0,
            began: Instant::now(),
            measured: Instant::now(),
        })
    }

    /// Until the end of the run, or until somebody stops it.
    async fn run(
        &mut self,
        stage: &mut Stage,
        stop: &mut (impl Future<Output = ()> + Unpin),
        load_began_s: f64,
    ) -> anyhow::Result<End> {
        let end = self.began + Duration::from_secs_f64(self.seconds);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);

        for count in 0_u64.. {
            tokio::select! {
                _ = ticks.tick() => {}
                () = sleep_until(end), if !self.live.hold => return Ok(End::Done),
                () = &mut *stop => return Ok(End::Signal),
            }

            self.look(&stage.truth(), load_began_s).await?;
            if count % TICKS_A_SECOND == 0 {
                stage.fleet.check()?;
                self.measure(stage);
                if self.plain {
                    tell(&self.live.line());
                }
            }

            if let Some(screen) = &mut self.screen {
                screen.draw(|frame| view::draw(frame, &self.live, &mut self.scrolled))?;
                match Screen::key()? {
                    Some(KeyCode::Char('q')) => return Ok(End::Key),
                    Some(key) => scroll(&mut self.scrolled, key),
                    None => {}
                }
            }
        }

        Ok(End::Done)
    }

    async fn look(&mut self, truth: &Path, load_began_s: f64) -> anyhow::Result<()> {
        let truth = Truth::read(truth)?;
        self.live.push(truth.elapsed_s - load_began_s, truth.power_w);
        self.live.batch_ratio = truth.batch_frequency_ratio_end;
        self.live.over_s = (truth.over_budget_s_total, truth.over_budget_s_max);
        let url = format!("{}/v1/status", self.chassis);
        // A status that is late once is no reason to end; a chassis manager that has ended is found.
        if let Ok(answer) = self.client.get(url).timeout(TICK).send().await
            && let Ok(status) = answer.json::<ChassisStatus>().await
        {
            self.live.chassis = Some(status);
        }
        Ok(())
    }

    fn measure(&mut self, stage: &Stage) {
        self.measured = Instant::now();
        for (newest, agent) in self.usage.iter_mut().zip(&stage.fleet.agents) {
            *newest = agent.usage().or(*newest);
            self.rss_kib_max = self.rss_kib_max.max(newest.map_or(0, |usage| usage.rss_kib));
        }
    }

    fn end(self, interrupted: bool) -> Observed {
        drop(self.screen);
        drop(self.followers);
        let reaction = reaction(&self.heard.in_order());
        let span = (self.measured - self.began).as_secs_f64().max(f64::MIN_POSITIVE);
        let cpu_s = self
            .usage_at_start
            .iter()
            .zip(&self.usage)
            .filter_map(|(start, end)| Some(end.as_ref()?.cpu.saturating_sub(start.as_ref()?.cpu)))
            .max()
            .unwrap_or_default()
            .as_secs_f64();
        Observed {
            alerts: self.live.chassis.as_ref().map_or(0, |chassis| chassis.alerts),
            shares: self.live.chassis.as_ref().map(|chassis| chassis.shares),
            alert_to_floor_ms: Quantiles::of(reaction.rounds_ms),
            agents_acted: reaction.acted,
            agent_rss_mib_max: self.rss_kib_max as f64 / 1024.0,
            agent_cpu_percent_max: 100.0 * cpu_s / span,
            restored: false,
            interrupted,
        }
    }
}
