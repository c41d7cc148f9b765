//! Does what the manager's controller decides.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

use ballast_chassis_core::{Answer, Chassis, Input, Ledger, Output, Params};
use ballast_runtime::alarms::AlarmBook;
use ballast_runtime::clock;
use ballast_runtime::control::Effects;
use ballast_runtime::events::Events;
use ballast_runtime::sensors::Gauge;
use ballast_runtime::state::{self, DiskFaults, RETRY};
use ballast_types::wire::{ChassisState, ChassisStatus};
use ballast_types::{Instant, ServerId};

use crate::message::Message;
use crate::metrics::Counts;
use crate::out_of_band::Orders;
use crate::{dry, sender};

/// Alerts, hardware caps, the ledger and events.
pub(crate) struct ChassisEffects {
    pub(crate) outboxes: BTreeMap<ServerId, sender::Outbox>,
    pub(crate) caps: Orders,
    pub(crate) ledger_path: PathBuf,
    /// Whether the newest ledger is on disk.
    pub(crate) ledger_written: Arc<AtomicBool>,
    /// The ledger that could not be written, and when to try again.
    pub(crate) unwritten: Option<(Ledger, Instant)>,
    pub(crate) faults: DiskFaults,
    pub(crate) gauges: Vec<Gauge>,
    pub(crate) events: Events,
    pub(crate) counts: Counts,
    /// Whether there was a poll since the last status.
    pub(crate) is_read: Cell<bool>,
    pub(crate) dry: bool,
    pub(crate) alarms: AlarmBook,
    /// One for each time that other parameters come.
    pub(crate) rewirings: Receiver<Rewiring>,
}

/// What the control thread works with from now on, with the parameters that come with it.
pub(crate) struct Rewiring {
    /// Of servers that are new, or whose agents are elsewhere now.
    pub(crate) outboxes: BTreeMap<ServerId, sender::Outbox>,
    /// Of servers that are new.
    pub(crate) caps: Orders,
    pub(crate) gauges: Vec<Gauge>,
}

impl ChassisEffects {
    /// Takes what was made for these parameters.
    fn rewire(&mut self, params: &Params) {
        // There is one for each time that parameters come.
        let Ok(Rewiring { outboxes, caps, gauges }) = self.rewirings.try_recv() else { return };
        let is_there = |id: &ServerId| params.servers.iter().any(|server| server.id == *id);
        self.outboxes.retain(|server, _| is_there(server));
        self.outboxes.extend(outboxes);
        self.caps.follow(caps, is_there);
        self.gauges = gauges;
    }

    /// Puts the ledger on disk. Protection goes on without it: what cannot be written is an alarm, and tried
    /// again.
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
            Message::Input(input) => {
                match &input {
                    Input::Psu(poll) => {
                        self.counts.supplies(&poll.supplies);
                        self.is_read.set(true);
                    }
                    Input::Answer { server, seq, answer: Answer::Report(_) } => {
                        self.counts.answered(now, server, *seq);
                    }
                    Input::Params(params) => {
                        self.rewire(params);
                        self.counts.rewire(&params.supply_rated);
                    }
                    _ => {}
                }
                Some(input)
            }
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
                self.counts.sent(now, &server, alert.seq);
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
        if self.is_read.take() {
            self.counts.draw.observe(now, status.power_w, Some(status.limit_w));
        }
        for gauge in &self.gauges {
            status.sensors.push(gauge.status(now));
            status.alarms.extend(gauge.alarms(now));
        }
        status.alarms.extend(self.caps.alarms.iter().cloned());
        let mut status = if self.dry { dry::say_so(status) } else { status };
        self.alarms.complete(&mut status.alarms);
        self.caps.note(&status);
        status
    }

    fn is_attended(status: &ChassisStatus) -> bool {
        let knows = matches!(status.state, ChassisState::Blind | ChassisState::Fenced);
        status.power_w.is_some() || knows
    }
}
