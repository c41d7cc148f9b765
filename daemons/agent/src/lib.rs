//! `ballast-agent`: throttles the low-priority cores of one server when its chassis says so.

mod api;
pub mod config;
mod cores;
mod dcmi;
mod dry;
mod effects;
mod exclusive;
mod fast;
mod kill;
mod limit;
mod metrics;
mod policy;
mod quota;
pub mod records;
mod release;
mod sampler;
mod usage;
mod vms;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::bail;
use ballast_agent_core::{Actuator, Agent, Found, FoundQuota, Input, Memory, Params, Policy};
use ballast_hw::{Bandwidth, Binders, Cpufreq, Floor, Journal, Opened, Originals, Root, boot_id, durable};
use ballast_types::wire::{AgentStatus, Alert, Refusal, Report};
use ballast_types::{BootId, Core};
use clap::{Args, Parser, Subcommand};
use nix::sys::signal::{Signal, raise};
use tokio::sync::oneshot;

use crate::config::{AgentConfig, AutoMode, LimitBy};
use ballast_runtime::control::{self, Snapshot};
use ballast_runtime::events::Events;
use ballast_runtime::http::{self, AccessPolicy};
use ballast_runtime::lock;
use ballast_runtime::recorder::Recorder;
use ballast_runtime::redfish::Bmcs;
use ballast_runtime::state::{self, DiskFaults, StateWriter};
use ballast_runtime::{DaemonArgs, clock};
use cores::Cores;
use effects::AgentEffects;
pub use exclusive::Exclusive;
use kill::Killer;
use policy::PolicyLog;
use quota::Quotas;
use release::ReleaseArgs;
use vms::{Asked, Vms, discovery};

/// Between two looks at whether a stopping controller is done.
const TURN: Duration = Duration::from_millis(20);
/// How long a stopping agent goes on answering, so that its chassis hears `leaving`.
const LEAVE_WITHIN: Duration = Duration::from_millis(700);
/// Between two looks whether the journal can be written, and how much room it must have: more than any has taken.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(5);
const JOURNAL_BYTES: usize = 256 << 10;
/// How long systemd and libvirt are waited for at the end, all calls together: less than the unit's
/// TimeoutStopSec leaves. What is not back by then is in the journal.
const RESTORE_WITHIN: Duration = Duration::from_secs(4);

/// Throttles only the low-priority cores of this server when its chassis says so
#[derive(Parser, Debug)]
#[command(
    name = "ballast-agent",
    version,
    arg_required_else_help = true,
    after_help = "Example: ballast-agent --config /etc/ballast/agent.toml --check-config\n\n\
        Exit codes: 0 ended when told to; 1 could not start, or broke; 2 wrong usage; 78 the \
        configuration is refused.\n\n\
        Files: /etc/ballast/agent.toml, /etc/default/ballast-agent, /var/lib/ballast-agent. More in \
        /usr/share/doc/ballast-agent/operations.md."
)]
pub struct Program {
    /// What it is told.
    #[command(flatten)]
    pub args: AgentArgs,
}

/// What the agent takes on the command line: what to run by, or one of the orders.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct AgentArgs {
    #[command(flatten)]
    run: Option<DaemonArgs>,
    #[command(subcommand)]
    order: Option<Order>,
}

/// What is done instead of running.
#[derive(Subcommand, Clone, Debug)]
enum Order {
    /// Put back what an agent that died has left restricted, by its journal alone
    #[command(after_help = release::EXIT_CODES)]
    Release(ReleaseArgs),
    /// For systemd's ExecStopPost: release after a clean end, otherwise hold and arm the orphan timer
    #[command(after_help = release::EXIT_CODES)]
    StopPost(ReleaseArgs),
}

/// Runs the daemon until SIGTERM or SIGINT, or obeys one order.
#[must_use]
pub fn main(args: &AgentArgs) -> ExitCode {
    match (&args.order, &args.run) {
        (Some(Order::Release(args)), _) => release::main(args),
        (Some(Order::StopPost(args)), _) => release::stop_post(args),
        (None, Some(args)) => ballast_runtime::run(args, AgentConfig::load(&args.config), |_| &[], run),
        // The command line has refused it.
        (None, None) => ExitCode::from(2),
    }
}

/// What arrives at the control thread.
pub enum Message {
    /// A message from the chassis, and who waits for its answer.
    Alert(Alert, oneshot::Sender<Result<Report, Refusal>>),
    /// Any other input of the controller.
    Input(Input),
    /// The order to stop.
    Stop,
}

fn run(config: &AgentConfig) -> anyhow::Result<()> {
    let place = config.daemon.clone();
    let tls = place.certificates(&config.role())?;
    let root = Root::at(&place.root);
    let boot_id = boot_id(&root)?;
    let (journal, opened) = Journal::open(&place.state_dir, &boot_id)?;
    let memory_path = place.state_dir.join("memory.json");
    let memory: Memory = state::read(&memory_path)?.unwrap_or_default();

    let cpufreq = match Cpufreq::is_there(&root)? {
        true => Some(Cpufreq::discover(&root, Floor::Half)?),
        false => None,
    };

    let has_pstates = cpufreq.is_some();
    let mut dry = dry::reason(config, &root, cpufreq.as_ref().map(Cpufreq::driver));
    let mut cpufreq = match cpufreq {
        Some(cpufreq) => cpufreq.with_offline()?,
        None if dry.is_some() || config.throttle.actuator == Actuator::CpuMax => Cpufreq::none(&root)?,
        None => bail!(
            "there is no policy in {}, so that no core has p-states to lower: load a cpufreq driver, or \
             set throttle.actuator = \"cpu-max\" (bandwidth of VMs), or dry_run = true",
            root.path("sys/devices/system/cpu/cpufreq").display()
        ),
    };

    let mut binders = Binders::new(&root, config.groups.by.clone());
    let mut bandwidth = Bandwidth::new(&root, config.throttle.quota_period).through(binders.through()?);
    let mut found = Found { memory, ..Found::default() };
    let mut originals = Originals::default();
    let journal = if dry.is_some() { journal.idle() } else { journal };

    if let (Opened::Adopted(_), Some(why)) = (&opened, &mut dry) {
        why.push_str("; an earlier life has left restrictions on, which stay");
    } else if let Opened::Adopted(saved) = opened {
        tracing::warn!("an earlier life was not ended cleanly: adopting what it had restricted");
        if let Some(saved) = &saved.cpufreq {
            found.capped = cpufreq.adopt(saved)?;
        }
        let quota = |(vm, cores, millicores)| FoundQuota { vm, cores, millicores };
        found.quotas = bandwidth.adopt(&saved.quotas).into_iter().map(quota).collect();
        originals = *saved;
    }

    let by = config.server_limit.floor.map(|floor| (&config.server_limit.by, floor));

    if dry.is_none() {
        limit::put_back_of_another(by.map(|(by, _)| by), &root, &place.state_dir)?;
        if by.is_none_or(|(by, _)| *by != LimitBy::Rapl) {
            match limit::put_back_rapl(&root, &originals.powercap) {
                Ok(()) => originals.powercap.clear(),
                Err(error) => tracing::error!(%error, "RAPL limits of an earlier life stay on"),
            }
        }
    }

    let limit = match by {
        Some((by, floor)) => limit::find(by, floor, &root, &place.state_dir, &originals.powercap)?,
        None => None,
    };

    found.server_limit = dry.is_none() && limit.as_ref().is_some_and(|limit| limit.is_on);
    let domains = cpufreq.domains().to_vec();
    let cores = match config.throttle.actuator {
        Actuator::Pstate => cpufreq.cores(),
        // Bandwidth is CPU time, so what counts is CPUs and not physical cores.
        Actuator::CpuMax => cpufreq.cpus(),
    };

    originals.cpufreq = has_pstates.then(|| cpufreq.originals());
    originals.quotas = bandwidth.originals();

    // What could not be put back stays in the journal.
    let in_use = limit.as_ref().map(|limit| limit.originals.clone()).unwrap_or_default();
    let rapl_left = limit::left_to_the_end(&mut originals.powercap, &in_use);
    let events = Events::default();
    let faults = DiskFaults::new(events.clone());
    let mut journal = journal;
    let unwritten = if dry.is_some() { None } else { journal.probe(&originals).err() };
    let waits_for_room = unwritten.is_some();

    if let Some(error) = unwritten {
        faults.note("journal", Some(error.to_string()));
        let why = "the journal cannot be written, and nothing is changed that is not in it";
        dry = Some(format!("{why}; what an earlier life has restricted stays so"));
        journal = journal.idle();
        found = Found { memory: found.memory, ..Found::default() };
    }

    if let Some(why) = &dry {
        tracing::warn!(why, "dry run: nothing is written to this machine");
    }
    let offline_cores = match config.throttle.actuator {
        Actuator::Pstate => domains.iter().filter(|domain| domain.cpus.is_empty()).count() as u16,
        Actuator::CpuMax => 0,
    };

    let params = params(config, boot_id, cores, limit.is_some());
    let params = Params { dry_run: dry, offline_cores, ..params };
    let dry = params.dry_run.is_some();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listeners = runtime.block_on(http::bind(&place.listen, tls.as_ref()))?;
    let at = clock::now();
    let recorder = place
        .record_dir
        .as_deref()
        .map(|dir| Recorder::start(dir, "agent", at, params.clone(), found.clone(), &faults))
        .transpose()?;
    let writer = StateWriter::start(memory_path, "memory", faults.clone())?;
    let mut bmcs = Bmcs::new(&config.redfish);
    let meter = sampler::meter(&config.meter, &root, &mut bmcs)?;

    // All that can fail has not: from here on things change.
    leave_to_the_other(config.throttle.actuator, &mut cpufreq, &mut bandwidth, &mut originals);
    let asked = Asked {
        vms: config.vms.clone(),
        groups: config.groups.clone(),
        changes_path: place.state_dir.join("vms.json"),
        auto_path: (config.records.auto_class == AutoMode::Act)
            .then(|| place.state_dir.join("auto-class.json")),
    };

    let shutdown_deadline = binders.shutdown_deadline();
    let quotas = Quotas::new(bandwidth);
    let floating = (config.throttle.actuator == Actuator::CpuMax).then(|| Arc::clone(&quotas));
    let (vms, vm_set) = Vms::start(&root, &domains, asked, binders, journal, originals, floating)?;
    let (killable, notes) = (vms.killable(), vms.notes());
    let vms = Arc::new(Mutex::new(vms));
    let (messages, inbox) = mpsc::channel();
    let killer = Killer::start(&root, killable, Arc::clone(&vms), messages.clone())?;

    // Fails only when the control thread has ended.
    let _ = messages.send(Message::Input(Input::Vms(vm_set)));
    let (settle, of_vms) = (config.throttle.settle, Arc::clone(&vms));
    let sensors = sampler::start(&config.meter, meter, settle, &root, of_vms, messages.clone())?;
    discovery::start(config.groups.rescan, Arc::clone(&vms), messages.clone())?;
    let no_rapl = match config.policy {
        Policy::Predictive => fast::start(config, &root, Arc::clone(&vms), messages.clone())?,
        _ => None,
    };

    let snapshot = Arc::new(Snapshot::<AgentStatus>::default());
    let machine = Agent::new(params, found, at);
    let cores = Cores::start(cpufreq, &root, Arc::clone(&vms), messages.clone())?;
    let quotas = quota::Worker::start(quotas, messages.clone())?;
    let limit = limit.map(|limit| limit::Worker::start(limit, messages.clone())).transpose()?;
    let hand = AgentEffects {
        cores,
        quotas,
        limit,
        killer,
        sensors,
        writer,
        events: events.clone(),
        notes,
        dry,
        policy: PolicyLog::new(no_rapl),
        waiting: None,
    };

    let realtime = config.daemon.realtime;
    let control = control::start(realtime, machine, inbox, hand, recorder, Arc::clone(&snapshot))?;

    // Until the end of this function; then what is under way is written down.
    let _usage = usage::start(config, Arc::clone(&vms), Arc::clone(&snapshot), messages.clone())?;

    tracing::info!(
        listen = ?place.listen,
        server = %config.server,
        chassis = %config.chassis,
        policy = config.policy.name(),
        "agent runs"
    );

    if let Some(tls) = &tls {
        tls.watch(events.clone())?;
    }
    if waits_for_room {
        start_anew_when_there_is_room(place.state_dir.clone())?;
    }
    let access = AccessPolicy::new(Some(config.chassis.clone()), place.serves_tls());
    let access = Arc::new(access.with_allowed_hosts(&place.allowed_hosts));
    let api = api::Api {
        messages: messages.clone(),
        snapshot,
        events,
        vms: Arc::clone(&vms),
        faults,
        tls,
        access: Arc::clone(&access),
    };

    let seen = Arc::clone(&api.snapshot);
    let leave = async || {
        // Sending fails only when the control thread has ended, and then nothing waits.
        let _ = messages.send(Message::Input(Input::Leave));
        tokio::time::sleep(LEAVE_WITHIN).await;
        let lifted = |status: Arc<AgentStatus>| {
            let Report { min_khz, min_share_percent, server_limit, .. } = status.report;
            min_khz.is_none() && min_share_percent.is_none() && !server_limit
        };

        let waiting = async {
            while !seen.get().is_some_and(lifted) {
                tokio::time::sleep(TURN).await;
            }
        };

        // What could not be lifted is tried once more below, and named if that fails too.
        let _ = tokio::time::timeout(LEAVE_WITHIN, waiting).await;
        let _ = messages.send(Message::Stop);
    };

    let hand =
        runtime.block_on(ballast_runtime::serve(listeners, api::routes(api), access, control, leave))?;

    shutdown_deadline.set(RESTORE_WITHIN);

    // All, whatever comes of the first.
    let cores = hand.restore();
    let cores = cores.and(if dry { Ok(()) } else { Ok(limit::put_back_rapl(&root, &rapl_left)?) });
    let groups = lock(&vms).restore(cores.is_ok());

    if let (Err(cores), Err(groups)) = (&cores, &groups) {
        bail!("{cores:#}; {groups:#}");
    }
    cores.and(groups)?;
    tracing::info!("everything is restored");

    Ok(())
}

/// Ends this agent, which only watches, once its journal can be written: systemd starts it anew, and that one may act.
fn start_anew_when_there_is_room(state_dir: PathBuf) -> std::io::Result<()> {
    clock::every("journal", LOOK_FOR_ROOM, move || {
        if durable::probe(&state_dir, JOURNAL_BYTES).is_err() {
            return true;
        }
        tracing::warn!("the journal can be written again: the agent ends, and its next start may act");
        // Cannot fail for this process and a signal that there is.
        let _ = raise(Signal::SIGTERM);
        false
    })
}

/// Puts back what an earlier life with another `actuator` left: this one would never lift it, nor shall
/// a later one take it for its own. What cannot be put back stays in the journal.
fn leave_to_the_other(
    actuator: Actuator,
    cpufreq: &mut Cpufreq,
    bandwidth: &mut Bandwidth,
    originals: &mut Originals,
) {
    let failed: Vec<_> = match actuator {
        Actuator::Pstate => bandwidth.release_all().iter().map(ToString::to_string).collect(),
        // Those that are not told as capped too: a cap may be hidden behind a stronger limit.
        Actuator::CpuMax => cpufreq.release_all(),
    };
    originals.quotas = bandwidth.originals();
    if actuator == Actuator::CpuMax && failed.is_empty() {
        originals.cpufreq = None;
    }
    for error in failed {
        tracing::warn!(%error, "left by an earlier life with another actuator");
    }
}

fn params(config: &AgentConfig, boot_id: BootId, cores: Vec<Core>, has_limit: bool) -> Params {
    let defaults = Params::defaults(config.server.clone(), boot_id, config.chassis.clone(), cores);
    Params {
        policy: config.policy,
        steps: config.steps,
        actuator: config.throttle.actuator,
        model: config.model,
        sample_period: config.meter.sample,
        stale_after: config.meter.reading_stale(),
        settle: config.throttle.settle,
        escalate_after: config.throttle.escalate_after,
        kill_after: config.kill_after,
        step_cores: config.throttle.step_cores,
        margin_ppm: config.throttle.margin_ppm,
        deadband: config.throttle.deadband,
        fast_period: config.predictive.period,
        margin_sigmas: config.predictive.margin_sigmas,
        server_limit_hold: config.server_limit.hold,
        server_limit_floor: config.server_limit.floor.filter(|_| has_limit),
        floors: config.throttle.floors.clone(),
        user_facing_floor_percent: config.throttle.user_facing_floor,
        orphan_hold: Some(config.orphan_hold),
        ..defaults
    }
}
