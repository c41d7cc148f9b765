//! `ballast-chassis`: polls the power supplies, alerts the agents, falls back to hardware caps.

mod api;
mod budget;
pub mod config;
mod dry;
mod metrics;
mod out_of_band;
mod polling;
mod power_input;
mod release;
pub mod sender;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use ballast_chassis_core::{Chassis, Input, Ledger, Output, Params};
use ballast_hw::{PmbusSupply, Root, SupplyMeter, boot_id};
use ballast_types::wire::{ChassisState, ChassisStatus};
use ballast_types::{Instance, Instant, ServerId};
use clap::{Args, Parser, Subcommand};

use crate::config::{ChassisConfig, PowerInputConfig, SupplyConfig, SupplySource};
use ballast_runtime::control::{self, Effects, Snapshot};
use ballast_runtime::events::Events;
use ballast_runtime::http::{self, AccessPolicy};
use ballast_runtime::recorder::Recorder;
use ballast_runtime::redfish::Bmcs;
use ballast_runtime::sensors::Gauge;
use ballast_runtime::state::{self, DiskFaults, RETRY};
use ballast_runtime::{DaemonArgs, clock};
use budget::BudgetOrders;
use out_of_band::{Orders, OutOfBand};
use polling::Polling;
use power_input::PowerInput;
use release::ReleaseArgs;

/// Between two looks at whether a stopping controller is done.
const TURN: Duration = Duration::from_millis(20);
/// How long a stopping manager waits for its out-of-band caps to be lifted.
const LIFT_WITHIN: Duration = Duration::from_secs(2);

/// Keeps a chassis of servers under its power budget
#[derive(Parser, Debug)]
#[command(
    name = "ballast-chassis",
    version,
    arg_required_else_help = true,
    after_help = "Example: ballast-chassis --config /etc/ballast/chassis.toml --check-config\n\n\
        Exit codes: 0 ended when told to; 1 could not start, or broke; 2 wrong usage; 78 the \
        configuration is refused.\n\n\
        Files: /etc/ballast/chassis.toml, /etc/default/ballast-chassis, /var/lib/ballast-chassis. More in \
        /usr/share/doc/ballast-chassis/operations.md."
)]
pub struct Program {
    /// What it is told.
    #[command(flatten)]
    pub args: ChassisArgs,
}

/// What the manager takes on the command line: what to run by, or an order.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ChassisArgs {
    #[command(flatten)]
    run: Option<DaemonArgs>,
    #[command(subcommand)]
    order: Option<Order>,
}

/// What is done instead of running.
#[derive(Subcommand, Clone, Debug)]
enum Order {
    /// Tell which out-of-band caps a manager that ended has left on; lift them if ordered to
    #[command(after_help = release::EXIT_CODES)]
    Release(ReleaseArgs),
}

/// Runs the daemon until SIGTERM or SIGINT, or obeys an order.
#[must_use]
pub fn main(args: &ChassisArgs) -> ExitCode {
    match (&args.order, &args.run) {
        (Some(Order::Release(args)), _) => release::main(args),
        (None, Some(args)) => {
            ballast_runtime::run(args, ChassisConfig::load(&args.config), |config| &config.warnings, run)
        }
        // The command line has refused it.
        (None, None) => ExitCode::from(2),
    }
}

/// What arrives at the control thread.
pub enum Message {
    /// An input of the controller.
    Input(Input),
    /// The order to stop.
    Stop,
}

/// A number for this start alone, above zero. Readers of JSON that hold numbers as floats keep 53 bits.
fn draw_instance() -> anyhow::Result<Instance> {
    let drawn = getrandom::u64().map_err(|error| anyhow!("no random number: {error}"))?;
    Ok(Instance((drawn >> 11).max(1)))
}

fn run(config: &ChassisConfig) -> anyhow::Result<()> {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let place = config.daemon.clone();
    let tls = place.certificates(&config.role())?;
    std::fs::create_dir_all(&place.state_dir)
        .with_context(|| format!("state_dir {}", place.state_dir.display()))?;
    let _lock = state::lock(&place.state_dir)?;
    let ledger_path = place.state_dir.join("ledger.json");
    let mut ledger: Ledger = state::read(&ledger_path)?.unwrap_or_default();
    let root = Root::at(&place.root);
    let out_of_band =
        OutOfBand::open(&config.servers, &config.redfish, &root, &place.state_dir, &mut ledger)?;
    let params =
        if config.dry_run { dry::watch_only(&config.params, &mut ledger) } else { config.params.clone() };

    let params = Params { instance: draw_instance()?, ..params };

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (messages, inbox) = mpsc::channel();
    let events = Events::default();
    let faults = DiskFaults::new(events.clone());
    let snapshot = Arc::new(Snapshot::<ChassisStatus>::default());
    let orders = BudgetOrders::open(&place.state_dir, &ledger, messages.clone(), config.dry_run)?;
    let orders = Arc::new(orders);

    // Everything that can fail to start does so before the first message is sent.
    let listeners = runtime.block_on(http::bind(&place.listen, tls.as_ref()))?;
    let mut outboxes = BTreeMap::new();

    for server in &config.servers {
        let (messages, id) = (messages.clone(), server.id.clone());
        let line = sender::Link::new(&server.url, &server.id, tls.clone())?;
        let (outbox, task) = sender::carry(line, move |seq, answer| {
            // Fails only when the control thread has ended.
            let _ = messages.send(Message::Input(Input::Answer { server: id.clone(), seq, answer }));
        });

        outboxes.insert(server.id.clone(), outbox);
        runtime.spawn(task);
    }

    let mut bmcs = Bmcs::new(&config.redfish);
    let supply = |supply: &SupplyConfig| -> anyhow::Result<SupplyMeter> {
        let name = supply.name();
        Ok(match &supply.source {
            SupplySource::Hwmon(device) => SupplyMeter::new(&name, PmbusSupply::new(&root, device)),
            SupplySource::Redfish(bmc, id) => SupplyMeter::new(&name, bmcs.supply(bmc, id)?),
        })
    };

    let supplies = config.supplies.iter().map(supply).collect::<Result<_, _>>()?;
    let outside = |config: PowerInputConfig| -> anyhow::Result<_> {
        let (state_dir, host_boot) = (&place.state_dir, boot_id(&root)?);
        let input = PowerInput::new(config);
        let input = input.remembering(state_dir, host_boot, clock::now(), faults.clone())?;

        Ok(Arc::new(Mutex::new(input)))
    };

    let power_input = config.power_input.clone().map(outside).transpose()?;
    let polling = Polling::start(
        supplies,
        power_input.clone(),
        config.params.poll_period,
        config.params.sensor_refresh,
        messages.clone(),
    )?;

    let caps = out_of_band.start(&messages)?;

    let at = clock::now();
    let recorder = place
        .record_dir
        .as_deref()
        .map(|dir| Recorder::start(dir, "chassis", at, params.clone(), ledger.clone(), &faults))
        .transpose()?;
    let machine = Chassis::new(params, ledger, at);
    let written = Arc::new(AtomicBool::new(true));
    let ledger_written = Arc::clone(&written);
    let (events_out, dry) = (events.clone(), config.dry_run);
    let gauges = polling.gauges;
    let hand = ChassisEffects {
        outboxes,
        caps,
        ledger_path,
        ledger_written,
        unwritten: None,
        faults: faults.clone(),
        gauges,
        events: events_out,
        dry,
    };

    let realtime = config.daemon.realtime;
    let control = control::start(realtime, machine, inbox, hand, recorder, Arc::clone(&snapshot))?;

    tracing::info!(
        listen = ?place.listen,
        chassis = %config.params.chassis_id,
        budget_w = config.params.budget.as_f64(),
        servers = config.servers.len(),
        "chassis manager runs"
    );

    if let Some(tls) = &tls {
        tls.watch(events.clone())?;
    }
    let access = AccessPolicy::new(None, place.serves_tls()).with_allowed_hosts(&place.allowed_hosts);
    let access = Arc::new(access);
    Arc::clone(&orders).watch()?;
    let api = api::Api {
        orders,
        snapshot,
        events,
        ledger_written: written,
        power: power_input.map(|input| (input, polling.words)),
        budget_max: config.params.budget,
        idle: config.servers.iter().map(|server| server.idle).sum(),
        faults,
        tls,
        access: Arc::clone(&access),
    };

    let seen = Arc::clone(&api.snapshot);
    let leave = async || {
        // Sending fails only when the control thread has ended, and then nothing waits.
        let _ = messages.send(Message::Input(Input::Leave));
        let lifted = || {
            let capped = |status: Arc<ChassisStatus>| {
                status.servers.iter().any(|server| server.out_of_band_w.is_some())
            };
            !seen.get().is_some_and(capped)
        };

        let waiting = async {
            tokio::time::sleep(TURN).await;
            while !lifted() {
                tokio::time::sleep(TURN).await;
            }
        };

        // What is not safe to lift stays on: the ledger has it.
        let _ = tokio::time::timeout(LIFT_WITHIN, waiting).await;

        for server in seen.get().iter().flat_map(|status| &status.servers) {
            if let Some(watts) = server.out_of_band_w {
                tracing::warn!(
                    server = %server.server, watts = watts.as_f64(),
                    "the out-of-band cap stays on: lifting it could overload the chassis"
                );
            }
        }

        let _ = messages.send(Message::Stop);
    };

    runtime.block_on(ballast_runtime::serve(listeners, api::routes(api), access, control, leave))?;

    Ok(())
}

/// Does what the controller wants.
struct ChassisEffects {
    outboxes: BTreeMap<ServerId, sender::Outbox>,
    caps: Orders,
    ledger_path: PathBuf,
    /// Whether the newest ledger is on disk.
    ledger_written: Arc<AtomicBool>,
    /// It, where it is not; and when to try again.
    unwritten: Option<(Ledger, Instant)>,
    faults: DiskFaults,
    gauges: Vec<Gauge>,
    events: Events,
    dry: bool,
}

impl ChassisEffects {
    /// Puts the ledger on disk. Protection goes on without it: what cannot be written is an alarm, and tried again.
    fn write(&mut self, ledger: Ledger, now: Instant) {
        let failed = state::write(&self.ledger_path, &ledger).err();
        self.ledger_written.store(failed.is_none(), Ordering::Relaxed);
        self.faults.note("ledger", failed.as_ref().map(ToString::to_string));
        self.unwritten = failed.map(|_| (ledger, now + RETRY));
    }
}

impl Effects<Chassis> for ChassisEffects {
    type Message = Message;
    type Status = ChassisStatus;

    fn open(&mut self, message: Message) -> Option<Input> {
        let now = clock::now();
        if let Some((ledger, _)) = self.unwritten.take_if(|(_, at)| now >= *at) {
            self.write(ledger, now);
        }
        match message {
            Message::Input(input) => Some(input),
            Message::Stop => None,
        }
    }

    fn perform(&mut self, now: Instant, output: Output, answers: &mut VecDeque<Input>) {
        if self.dry && dry::withheld(&output) {
            return;
        }
        let mut order = |id, server: ServerId, cap| {
            if let Err(why) = self.caps.order(id, &server, cap) {
                answers.push_back(Input::Applied { id, result: Err(why) });
            }
        };

        match output {
            Output::Alert { server, alert } => {
                if let Some(outbox) = self.outboxes.get(&server) {
                    outbox.send_replace(Some(alert));
                }
            }
            Output::OutOfBandCap { id, server, watts } => order(id, server, Some(watts)),
            Output::OutOfBandLift { id, server } => order(id, server, None),
            Output::Ledger(ledger) => self.write(ledger, now),
            Output::Event(event) => self.events.push(event),
        }
    }

    fn status(&self, machine: &Chassis, now: Instant) -> ChassisStatus {
        let mut status = machine.status(now);
        for gauge in &self.gauges {
            status.sensors.push(gauge.status(now));
            status.alarms.extend(gauge.alarms(now));
        }
        status.alarms.extend(self.caps.alarms.iter().cloned());
        let status = if self.dry { dry::say_so(status) } else { status };
        self.caps.note(&status);
        status
    }

    fn in_hand(status: &ChassisStatus) -> bool {
        let knows = matches!(status.state, ChassisState::Blind | ChassisState::Fenced);
        status.power_w.is_some() || knows
    }
}
