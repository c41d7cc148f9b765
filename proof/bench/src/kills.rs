//! `ballast-lab bench kills`: agents and managers are killed at random instants; is everything as it was afterwards?

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ballast_agent_core::Policy;
use ballast_sim::campaign::kills::{self, KillVerdict};
use ballast_sim::scenario::Scenario;
use ballast_testbed::rig::{load_file, server_root};
use ballast_testbed::stage::{Daemon, Folder, Play, Stage, client};
use ballast_types::SplitMix64;
use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use ballast_cli::common::plant::{self, LoadArgs};
use ballast_cli::common::terminal::{say, stop, tell};
use ballast_cli::common::threads;

/// Watts of the budget for each server. With `BUSY` a server draws a tenth more, and less with its batch cores at
/// their lowest frequency.
const BUDGET_W: f64 = 270.0;
/// How busy all cores are in an emergency, and after it.
const BUSY: &str = "0.92";
const CALM: &str = "0.05";
/// How long the emergency lasts. Kills come a while longer, so that they hit the lifting too.
const EMERGENCY: Duration = Duration::from_secs(3);
const KILLS: Duration = Duration::from_secs(5);
/// How long meters, manager and agents may take to see that the load has fallen: until then they may cap anew.
const SETTLED: Duration = Duration::from_secs(1);
/// Between a death and the next start: as the units have it.
const RESTART: Duration = Duration::from_millis(200);
/// How long the draw must stay low before caps are lifted.
const LIFT_HOLD: Duration = Duration::from_millis(500);
/// When everything must be as it was. Hardware caps are held for so long.
const BACK_WITHIN: Duration = Duration::from_secs(90);
/// Between two looks at what is.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Args, Debug)]
pub struct KillsArgs {
    /// An emergency each, with one kill or several
    #[arg(long, value_name = "N", default_value_t = 20,
        value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    runs: u64,
    /// Seed of who is killed, and when
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// In virtual time, with kills between any two effects of a controller; else real daemons around a rig
    #[arg(long = "virtual")]
    is_virtual: bool,
    /// Servers of the rig, each with an agent that is a process of its own
    #[arg(long, value_name = "N", default_value_t = 2, conflicts_with = "is_virtual",
        value_parser = clap::value_parser!(u16).range(1..=16))]
    servers: u16,
    /// Print one JSON object, alone on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default, Serialize)]
struct Measured {
    runs: u64,
    kills: u64,
    /// Runs after which everything was as it was.
    restored: u64,
    /// Changes that no journal knew of, or that were never put back.
    lost_originals: usize,
    /// How far a breaker went towards its trip in the worst run; 1 or more is a trip.
    trip_fraction_max: f64,
    seed: u64,
    seconds: f64,
    /// The first run that went wrong.
    first_broken: Option<String>,
}

impl Measured {
    fn add(&mut self, what: &str, verdict: &KillVerdict) {
        self.runs += 1;
        self.kills += verdict.kills;
        self.restored += u64::from(verdict.restored);
        self.lost_originals += verdict.lost_originals;
        self.trip_fraction_max = self.trip_fraction_max.max(verdict.trip_fraction_max);
        if !verdict.is_kept() {
            self.first_broken.get_or_insert_with(|| format!("{what}: {verdict:?}"));
        }
    }

    fn is_kept(&self) -> bool {
        self.restored == self.runs && self.lost_originals == 0 && self.trip_fraction_max < 1.0
    }

    fn text(&self) -> String {
        let Self { runs, kills, restored, lost_originals, trip_fraction_max, seconds, .. } = self;
        let broken = self.first_broken.as_ref().map_or_else(String::new, |it| format!("\nbroken: {it}"));
        format!(
            "{runs} runs with {kills} kills in {seconds:.0} s: {restored} restored, {lost_originals} \
             originals lost, breaker at most {:.0} % on its way to its trip{broken}",
            100.0 * trip_fraction_max
        )
    }
}

pub(crate) fn run(args: &KillsArgs) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let mut measured = Measured { seed: args.seed, ..Measured::default() };
    if args.is_virtual {
        let last = args.seed.checked_add(args.runs).context("--seed: too large for so many --runs")?;
        let seeds: Vec<u64> = (args.seed..last).collect();
        let verdicts = threads::run("kills", &seeds, threads::all_cores().get(), |seed| kills::run(*seed));
        for (seed, verdict) in seeds.iter().zip(&verdicts) {
            measured.add(&format!("seed {seed}"), verdict);
        }
    } else {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let stop = stop()?;
            tokio::select! {
                done = real(args, &mut measured) => done,
                () = stop => bail!("ended by a signal"),
            }
        })?;
    }

    measured.seconds = began.elapsed().as_secs_f64();
    say(&if args.json { serde_json::to_string_pretty(&measured)? } else { measured.text() })?;
    Ok(if measured.is_kept() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Real daemons: one stage for all runs, as a machine that goes on.
async fn real(args: &KillsArgs, measured: &mut Measured) -> anyhow::Result<()> {
    let load =
        LoadArgs { budget_w: Some(BUDGET_W * f64::from(args.servers)), ..LoadArgs::quiet(args.servers) };
    let plan = plant::plan(&load)?;
    let mut scenario = Scenario::new(plan.plant, Policy::Stepwise, args.seed, EMERGENCY);
    scenario.chassis.lift_hold = LIFT_HOLD;
    let play = Play { scenario: &scenario, rig_args: load.to_args(), has_manager: true, tls: false };

    tell(&format!("starting a rig, {} agents and their manager", args.servers));
    let mut stage = Stage::new(Folder::make(None)?);
    stage.start(&play).await?;
    let mut chance = SplitMix64::new(args.seed);
    let mut trial = Trial { stage, client: client()?, heat: 0.0 };
    trial.set_load(CALM)?;
    sleep(Duration::from_secs(1)).await;

    for n in 1..=args.runs {
        let verdict = trial.run(&mut chance).await?;
        measured.add(&format!("run {n}"), &verdict);
        tell(&format!("run {n} of {}: {} restored", args.runs, measured.restored));
    }

    let (problems, left) = trial.stage.end_daemons()?;
    problems.iter().chain(&left).for_each(|problem| tell(problem));
    measured.lost_originals += left.len();
    trial.stage.end().iter().for_each(|problem| tell(problem));
    Ok(())
}

/// What the rig says of its breaker.
#[derive(Deserialize)]
struct Heat {
    trip_fraction: f64,
}

struct Trial {
    stage: Stage,
    client: reqwest::Client,
    /// How far the breaker has gone towards its trip.
    heat: f64,
}

impl Trial {
    /// An emergency comes and goes, and at some instant of it somebody is killed and started again.
    async fn run(&mut self, chance: &mut SplitMix64) -> anyhow::Result<KillVerdict> {
        let victims = self.victims(chance);
        let kill_at = KILLS.mul_f64(chance.draw() as f64 / u64::MAX as f64);
        let cold = self.look()?;
        let mut verdict = KillVerdict { kills: victims.len() as u64, ..KillVerdict::default() };
        let (began, mut is_busy, mut is_killed) = (Instant::now(), true, false);

        self.set_load(BUSY)?;
        while began.elapsed() < EMERGENCY + BACK_WITHIN {
            let elapsed = began.elapsed();
            if is_busy && elapsed >= EMERGENCY {
                self.set_load(CALM)?;
                is_busy = false;
            }
            if !is_killed && elapsed >= kill_at {
                victims.iter().for_each(|victim| self.stage.kill(*victim));
                verdict.lost_originals += self.lost(&victims)?;
                sleep(RESTART).await;
                victims.iter().try_for_each(|victim| self.stage.start_again(*victim))?;
                is_killed = true;
            }

            verdict.trip_fraction_max = verdict.trip_fraction_max.max(self.look()? - cold);
            let is_over = elapsed >= EMERGENCY + SETTLED && is_killed;
            if is_over && self.stage.changed()?.is_empty() && self.stage.is_ready(&self.client).await {
                // The start of an agent takes nothing back: what is lifted stays lifted.
                verdict.restored = self.stage.changed()?.is_empty();
                break;
            }
            sleep(LOOK.min(kill_at.saturating_sub(elapsed)).max(Duration::from_millis(1))).await;
        }

        if !verdict.restored {
            let left = self.stage.changed()?;
            verdict.lost_originals += left.len();
            tell(&format!("not restored: {left:?}"));
        }
        Ok(verdict)
    }

    /// The manager, an agent, or both.
    fn victims(&self, chance: &mut SplitMix64) -> Vec<Daemon> {
        let agent = Daemon::Agent((chance.draw() % self.stage.agents.len() as u64) as usize);
        match chance.draw() % 3 {
            0 => vec![Daemon::Manager],
            1 => vec![agent],
            _ => vec![agent, Daemon::Manager],
        }
    }

    /// Changes of dead agents that have no journal.
    fn lost(&self, victims: &[Daemon]) -> anyhow::Result<usize> {
        let changed = self.stage.changed()?;
        let lost = |victim: &Daemon| match victim {
            Daemon::Agent(n) if !self.stage.has_journal(*n) => {
                let root = server_root(self.stage.tree(), &self.stage.agents[*n].0).display().to_string();
                changed.iter().filter(|file| file.starts_with(&root)).count()
            }
            _ => 0,
        };
        Ok(victims.iter().map(lost).sum())
    }

    fn set_load(&self, load: &str) -> anyhow::Result<()> {
        for (id, _) in &self.stage.agents {
            write(&load_file(&server_root(self.stage.tree(), id)), load)?;
        }
        Ok(())
    }

    /// How far the breaker has gone towards its trip, as far as the rig can be read just now.
    fn look(&mut self) -> anyhow::Result<f64> {
        let text = std::fs::read_to_string(self.stage.truth()).context("the rig's truth")?;
        self.heat = serde_json::from_str::<Heat>(&text).map_or(self.heat, |truth| truth.trip_fraction);
        Ok(self.heat)
    }
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| file.display().to_string())
}
