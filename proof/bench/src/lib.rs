//! The benchmarks; here `ballast-lab bench alerts`: how long an alert takes to reach the floor, with real agents over real HTTP.
//!
//! The sender is the chassis manager's own. Each alert is timed on one clock (`CLOCK_BOOTTIME`), from
//! handing it to the sender until the slowest agent has written its last low-priority core.

mod changes;
mod kills;
mod load;
mod plan;
mod predict;
mod score;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, bail};
use ballast_agent_core::Policy;
use ballast_chassis::sender::{self, Link};
use ballast_chassis_core::Answer;
use ballast_runtime::lock;
use ballast_sim::scenario::Scenario;
use ballast_types::wire::{AgentState, Alert, EventKind, Level, Report};
use ballast_types::{ChassisId, Epoch, Instant, Seq, ServerId, Watts};
use clap::{Args, Subcommand};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

use self::load::told;
use ballast_cli::common::plant::{self, LoadArgs};
use ballast_cli::common::terminal::stop;
use ballast_cli::common::terminal::{say, tell};
use ballast_testbed::config::CHASSIS;
use ballast_testbed::events::{Heard, Quantiles, follow};
use ballast_testbed::processes::{Process, Usage};
use ballast_testbed::stage::{Folder, Play, Stage, client};

/// The benchmarks.
#[derive(Subcommand, Debug)]
pub enum Bench {
    /// Time from an alert in the chassis manager to the lowest frequency on the slowest server
    #[command(after_help = "Example: ballast-lab bench alerts --servers 12 --alerts 200 --json")]
    Alerts(AlertsArgs),
    /// Predictions a second from the placement daemon, and how long one takes
    #[command(after_help = "Example: ballast-lab bench predict --connections 8 --batch 1 --json")]
    Predict(predict::PredictArgs),
    /// Scores a second of a real placement daemon over loopback, and how long they take
    #[command(after_help = "Example: ballast-lab bench score --chassis 60 --top 10 --json")]
    Score(score::ScoreArgs),
    /// VMs placed and taken away a second, each on disk when it is answered, and how long one takes
    #[command(after_help = "Example: ballast-lab bench place --vms 100000 --connections 32 --json")]
    Place(changes::ChangesArgs),
    /// Kill agents and managers at random instants, and see whether everything is put back
    #[command(after_help = "Example: ballast-lab bench kills --virtual --runs 1000 --seed 1 --json")]
    Kills(kills::KillsArgs),
    /// How long `ballast plan` takes over a fleet's telemetry, and how much memory
    #[command(after_help = "Example: ballast-lab bench plan --days 30 --json")]
    Plan(plan::PlanArgs),
}

/// Runs a benchmark.
///
/// # Errors
/// It could not be run, or missed its figure.
pub fn run(bench: &Bench) -> anyhow::Result<ExitCode> {
    match bench {
        Bench::Alerts(args) => alerts(args),
        Bench::Predict(args) => predict::run(args),
        Bench::Score(args) => score::run(args),
        Bench::Place(args) => changes::run(args),
        Bench::Kills(args) => kills::run(args),
        Bench::Plan(args) => plan::run(args),
    }
}

/// What the issue asks for.
const TARGET_P99_MS: f64 = 10.0;
/// Agents are measured at rest for this long.
const REST: Duration = Duration::from_secs(10);
/// Messages to calm agents: the chassis manager's own period.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// Between two looks at what the agents did.
const LOOK: Duration = Duration::from_millis(2);
/// Between two messages that lift a cap.
const LIFT: Duration = Duration::from_millis(20);
/// Between a lift and the next alert: alerts do not come while the last lift is being written.
const SETTLE: Duration = Duration::from_millis(50);
/// An agent at rest has answered within this.
const ANSWERED: Duration = Duration::from_millis(200);
/// One alert, or one lift, that takes longer is a failure.
const TOO_LONG: Duration = Duration::from_secs(5);
/// Below any server's idle draw: an agent that is told this must go to the floor.
const LOW_CAP: Watts = Watts::from_whole(50);
/// The agents' fallback and the limit in the messages; not what is measured.
const AMPLE: Watts = Watts::from_whole(400);

#[derive(Args, Debug)]
pub struct AlertsArgs {
    /// Servers, each with an agent that is a process of its own
    #[arg(long = "servers", value_name = "N", default_value_t = 12,
        value_parser = clap::value_parser!(u16).range(1..=64))]
    agents: u16,
    /// Alerts, each to all agents
    #[arg(long, value_name = "N", default_value_t = 200,
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    alerts: u32,
    /// Alert by mutual TLS, as beyond loopback
    #[arg(long)]
    tls: bool,
    /// Print one JSON object, alone on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Measured {
    agents: usize,
    alerts: u32,
    tls: bool,
    alert_to_floor_ms: Quantiles,
    target_p99_ms: f64,
    rest_s: f64,
    rest_agent_cpu_percent_max: f64,
    rest_agent_cpu_percent_mean: f64,
    rest_agent_rss_mib_max: f64,
}

impl Measured {
    fn text(&self) -> String {
        let Self { agents, alerts, target_p99_ms, rest_s, .. } = self;
        let [p50, p99, longest] = told(&self.alert_to_floor_ms);
        let tls = if self.tls { " by mutual TLS" } else { "" };
        let (cpu_max, cpu_mean) = (self.rest_agent_cpu_percent_max, self.rest_agent_cpu_percent_mean);
        format!(
            "alert to the floor of the slowest of {agents} agents, {alerts} alerts{tls}\n\
             p50 {p50}   p99 {p99} (target {target_p99_ms} ms)   longest {longest}\n\
             an agent at rest over {rest_s:.0} s: {cpu_max:.2} % of a core at most, {cpu_mean:.2} % mean, \
             {:.1} MiB at most",
            self.rest_agent_rss_mib_max,
        )
    }
}

fn alerts(args: &AlertsArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measured = runtime.block_on(async {
        let stop = stop()?;
        tokio::select! {
            measured = measure(args) => measured,
            () = stop => bail!("ended by a signal"),
        }
    })?;
    say(&if args.json { serde_json::to_string_pretty(&measured)? } else { measured.text() })?;
    Ok(ExitCode::SUCCESS)
}

async fn measure(args: &AlertsArgs) -> anyhow::Result<Measured> {
    let load = LoadArgs::quiet(args.agents);
    let plan = plant::plan(&load)?;
    let scenario = Scenario::new(plan.plant, Policy::Stepwise, load.seed, REST);
    let play = Play { scenario: &scenario, rig_args: load.to_args(), has_manager: false, tls: args.tls };

    tell(&format!("starting a rig and {} agents", args.agents));
    let mut stage = Stage::new(Folder::make(None)?);
    stage.start(&play).await?;
    let mut caller = Caller::new(&stage)?;
    caller.lift().await?;

    tell(&format!("agents at rest, for {} s", REST.as_secs()));
    let usage = |agents: &[Process]| -> Vec<Option<Usage>> { agents.iter().map(Process::usage).collect() };
    let before = usage(&stage.fleet.agents);
    caller.rest(REST).await?;
    let after = usage(&stage.fleet.agents);
    let percent: Vec<f64> = before
        .iter()
        .zip(&after)
        .filter_map(|(a, b)| Some(b.as_ref()?.cpu.saturating_sub(a.as_ref()?.cpu)))
        .map(|cpu| 100.0 * cpu.as_secs_f64() / REST.as_secs_f64())
        .collect();
    let rss_kib = after.iter().flatten().map(|usage| usage.rss_kib).max().unwrap_or(0);

    tell(&format!("{} alerts", args.alerts));
    let mut took_ms = vec![];
    for _ in 0..args.alerts {
        took_ms.push(caller.alert().await?.as_secs_f64() * 1e3);
        caller.lift().await?;
        sleep(SETTLE).await;
    }

    drop(caller);

    for problem in stage.end() {
        tell(&problem);
    }
    Ok(Measured {
        agents: usize::from(args.agents),
        alerts: args.alerts,
        tls: args.tls,
        alert_to_floor_ms: Quantiles::of(took_ms),
        target_p99_ms: TARGET_P99_MS,
        rest_s: REST.as_secs_f64(),
        rest_agent_cpu_percent_max: percent.iter().copied().fold(0.0, f64::max),
        rest_agent_cpu_percent_mean: percent.iter().sum::<f64>() / percent.len().max(1) as f64,
        rest_agent_rss_mib_max: rss_kib as f64 / 1024.0,
    })
}

type Reports = Arc<Mutex<BTreeMap<ServerId, Result<Report, String>>>>;

/// Speaks to the agents as a chassis manager does.
struct Caller {
    chassis: ChassisId,
    seq: Seq,
    outboxes: Vec<(ServerId, sender::Outbox)>,
    reports: Reports,
    heard: Heard,
    /// Who reached the floor on behalf of the newest alert.
    floors: BTreeMap<ServerId, Instant>,
    /// Ends the senders and the followers when dropped.
    _tasks: JoinSet<()>,
}

impl Caller {
    fn new(stage: &Stage) -> anyhow::Result<Self> {
        let reports = Reports::default();
        let heard = Heard::default();
        let mut tasks = JoinSet::new();
        let following = client()?;
        let mut outboxes = vec![];

        for ((id, url), alert_url) in stage.agents.iter().zip(&stage.alert_urls) {
            tasks.spawn(follow(following.clone(), url.clone(), Some(id.clone()), heard.clone()));
            let (reports, from) = (Arc::clone(&reports), id.clone());
            let line = Link::new(alert_url, id, stage.tls.clone())?;

            let (outbox, task) = sender::carry(line, move |_, answer| {
                let report = match answer {
                    Answer::Report(report) => Ok(*report),
                    Answer::Refused(refusal) => Err(format!("refused: {refusal:?}")),
                    Answer::Nothing(why) => Err(why),
                };

                lock(&reports).insert(from.clone(), report);
            });

            tasks.spawn(task);
            outboxes.push((id.clone(), outbox));
        }

        let chassis = ChassisId::new(CHASSIS).context("chassis id")?;

        Ok(Self { chassis, seq: Seq(0), outboxes, reports, heard, floors: BTreeMap::new(), _tasks: tasks })
    }

    /// Hands one message for every agent to its sender, with a live echo; says when.
    fn send(&mut self, level: Level, cap_w: Option<Watts>) -> Instant {
        self.seq = self.seq.next();
        let reports = lock(&self.reports).clone();
        let alerts: Vec<Alert> = self
            .outboxes
            .iter()
            .map(|(id, _)| {
                let echo = reports.get(id).and_then(|report| report.as_ref().ok());
                Alert {
                    level,
                    echo_boot_id: echo.map(|report| report.boot_id.clone()),
                    echo_agent_ms: echo.map(|report| report.agent_ms),
                    chassis_limit_w: AMPLE,
                    cap_w,
                    fallback_w: AMPLE,
                    valid_for_ms: 2000,
                    ..Alert::watch(self.chassis.clone(), Epoch(1), self.seq)
                }
            })
            .collect();
        let handed = ballast_runtime::now();

        for ((_, outbox), alert) in self.outboxes.iter().zip(alerts) {
            outbox.send_replace(Some(alert));
        }
        handed
    }

    /// One alert: from its hand-over to the floor of the slowest agent.
    async fn alert(&mut self) -> anyhow::Result<Duration> {
        self.floors.clear();
        let handed = self.send(Level::Cap, Some(LOW_CAP));
        let floors = async {
            loop {
                if let Some(slowest) = self.slowest_floor() {
                    return slowest;
                }
                sleep(LOOK).await;
            }
        };
        match timeout(TOO_LONG, floors).await {
            Ok(slowest) => Ok(slowest - handed),
            Err(_) => {
                bail!("not every agent reached its floor within {TOO_LONG:?}: {}", self.words())
            }
        }
    }

    /// When the last agent reached its floor on behalf of the newest message; `None` if one did not.
    fn slowest_floor(&mut self) -> Option<Instant> {
        for (from, event) in self.heard.take() {
            if let (Some(server), EventKind::FloorReached { seq, .. }) = (from, event.kind)
                && seq == self.seq
            {
                self.floors.insert(server, event.at_ns);
            }
        }
        let all = self.floors.len() == self.outboxes.len();
        self.floors.values().copied().max().filter(|_| all)
    }

    /// Lifts every cap, and waits until nothing is restricted.
    async fn lift(&mut self) -> anyhow::Result<()> {
        let lifted = async {
            loop {
                self.send(Level::Watch, None);
                sleep(LIFT).await;
                if self.all_uncapped() {
                    return;
                }
            }
        };
        if timeout(TOO_LONG, lifted).await.is_err() {
            bail!("not every agent lifted its caps within {TOO_LONG:?}: {}", self.words());
        }
        Ok(())
    }

    fn all_uncapped(&self) -> bool {
        let reports = lock(&self.reports);
        reports.len() == self.outboxes.len()
            && reports.values().all(|report| {
                report.as_ref().is_ok_and(|report| {
                    report.seq_obeyed == self.seq
                        && report.state == AgentState::Uncapped
                        && report.min_khz.is_none()
                })
            })
    }

    /// Heartbeats for `span`.
    async fn rest(&mut self, span: Duration) -> anyhow::Result<()> {
        let mut beats = interval(HEARTBEAT);
        let end = tokio::time::Instant::now() + span;
        while tokio::time::Instant::now() < end {
            beats.tick().await;
            self.send(Level::Watch, None);
        }
        sleep(ANSWERED).await;
        if self.all_uncapped() { Ok(()) } else { bail!("the agents do not rest: {}", self.words()) }
    }

    /// What went wrong, by the agents' last answers.
    fn words(&self) -> String {
        let reports = lock(&self.reports);
        let words = reports.iter().map(|(id, report)| match report {
            Ok(report) => format!("{id} {:?} at message {}", report.state, report.seq_obeyed),
            Err(why) => format!("{id} {why}"),
        });
        words.collect::<Vec<_>>().join(", ")
    }
}
