//! The view for operators. Alarms are the conditions of now, not a log.

use ballast_types::wire::{Alarm, AlarmId, ChassisStatus, ServerStatus, Slot};
use ballast_types::{Instant, Watts};

use super::Chassis;
use crate::slots::Agent;
use crate::supplies::Fault;

impl Chassis {
    /// What the manager knows and does.
    pub fn status(&self, now: Instant) -> ChassisStatus {
        ChassisStatus {
            role: "chassis".to_owned(),
            chassis_id: self.params.chassis_id.clone(),
            epoch: self.identity.epoch(),
            state: self.state(),
            dry_run: false,
            now_ms: now.as_millis(),
            at_unix_ms: None,
            power_w: self.reading(now),
            reported_w: Some(self.reported_sum(now)).filter(|&sum| sum > Watts::ZERO),
            budget_w: self.budget_in_force(),
            limit_w: self.limit(),
            shared_w: self.shared.at(self.limit()),
            sharable_w: self.sharable(),
            shares: self.params.shares,
            alerts: self.alerts,
            hardware_caps_ms: u64::try_from(self.hardware.time_on(now).as_millis()).unwrap_or(u64::MAX),
            refused_inputs: self.refused,
            servers: self.agents.iter().map(|a| self.server_status(now, a)).collect(),
            // Only the shell knows them.
            sensors: Vec::new(),
            tls: None,
            alarms: self.alarms(now),
        }
    }

    fn server_status(&self, now: Instant, agent: &Agent) -> ServerStatus {
        let age = agent.report.as_ref().map(|_| (now - agent.heard_at).as_millis());
        ServerStatus {
            server: agent.server.id.clone(),
            slot: agent.slot,
            report: agent.report.clone(),
            report_age_ms: age.map(|ms| u64::try_from(ms).unwrap_or(u64::MAX)),
            granted_w: agent.cap.filter(|_| agent.is_messaged()),
            reserved_w: match self.may_draw(now, agent, self.even()) {
                Some(bound) => bound.watts(),
                None => agent.share,
            },
            hardware_cap_w: agent.out_of_band.watts(),
            last_error: agent.error.clone(),
        }
    }

    fn alarms(&self, now: Instant) -> Vec<Alarm> {
        let mut alarms = Vec::new();
        let mut say = |id, message| alarms.push(Alarm::new(id, message));
        if let Some(epoch) = self.identity.ruler() {
            let message = format!(
                "fenced: another manager rules this chassis (epoch {epoch}), and this one sends nothing; \
                 stop one of them"
            );
            say(AlarmId::Fenced, message);
        }
        if let Some(message) = self.other_manager_alarm(now) {
            say(AlarmId::TwoManagers, message);
        }
        if self.blind {
            say(AlarmId::Blind, self.blind_message(now));
        }
        if let Some(message) = self.crosscheck.message() {
            say(AlarmId::SuppliesDisagree, message);
        }

        if self.sharable() == Watts::ZERO {
            let (limit, shared) = (self.limit(), self.shared.at(self.limit()));
            say(
                AlarmId::NothingToShare,
                format!("nothing to share: the limit is {limit}, shared are {shared}"),
            );
        }
        if self.is_emergency() {
            let message = "emergency: over the limit although every server is capped";
            say(AlarmId::OverLimit, message.to_owned());
        }
        if let Some(watts) = self.budget_refused {
            let most = self.params.budget;
            say(
                AlarmId::BudgetRefused,
                format!("budget_w = {watts} was refused: above 0 and below {most} is allowed"),
            );
        }

        self.supply_alarms(now, &mut alarms);

        for (server, watts) in self.hardware.unconfigured() {
            let message = format!("the ledger holds a cap of {watts} on {server}, which is not configured");
            alarms.push(Alarm::about(AlarmId::HardwareCapForeign, server, message));
        }
        for i in 0..self.agents.len() {
            self.server_alarms(i, &mut alarms);
        }
        alarms
    }

    /// That there is no reading, and what happens until there is one.
    fn blind_message(&self, now: Instant) -> String {
        let messaged = self.agents.iter().filter(|agent| agent.is_messaged());
        let caps: Option<Vec<Watts>> = messaged.map(|agent| agent.cap).collect();
        let range = caps.and_then(|caps| Some((*caps.iter().min()?, *caps.iter().max()?)));

        let then = match (range, self.estimated(now)) {
            (Some((least, most)), _) if least < most => {
                format!("every server is held to its share, {least} to {most},")
            }
            (Some((cap, _)), _) => format!("every server is held to {cap}"),
            (None, Some(sum)) => format!("what the servers report or may draw, {sum}, is judged"),
            (None, None) => "nobody can be held".to_owned(),
        };
        format!("blind: no usable reading of the chassis's draw; {then} until a reading is back")
    }

    fn supply_alarms(&self, now: Instant, alarms: &mut Vec<Alarm>) {
        match self.supplies.fault() {
            None => {}
            Some(fault) => alarms.push(match describe(fault) {
                (Some(i), what) => {
                    let name = self.params.supply_name(i);
                    Alarm::about(AlarmId::SupplyFailing, &name, format!("{name}: {what}"))
                }
                (None, what) => Alarm::new(AlarmId::PollUnusable, what),
            }),
        }

        for i in self.supplies.lost(now) {
            let (name, rated, limit) =
                (self.params.supply_name(i), self.params.supply_rated[i], self.limit());
            let message = format!("{name} carries nothing: {rated} less to carry with, the limit is {limit}");
            alarms.push(Alarm::about(AlarmId::SupplyLost, name, message));
        }
    }

    fn server_alarms(&self, i: usize, alarms: &mut Vec<Alarm>) {
        let agent = &self.agents[i];
        let id = &agent.server.id;
        let mut say = |alarm, message| alarms.push(Alarm::about(alarm, id, message));
        if self.is_lost(i) {
            let why = agent.error.as_deref().map(|e| format!(" ({e})")).unwrap_or_default();
            say(AlarmId::ServerSilent, format!("{id} is silent: {}{why}", agent.cause));
            if self.event.is_some() && agent.server.out_of_band_floor.is_none() {
                say(
                    AlarmId::HardwareCapMissing,
                    format!(
                        "{id} is silent in a capping event, and it has no hardware cap: \
                         configure its slot or its BMC"
                    ),
                );
            }
        }

        if agent.wrong_above().is_some() {
            say(
                AlarmId::ServerMeterWrong,
                format!(
                    "{id}: its meter says far more than the power supplies or its hardware cap leave for it; \
                     what it says is not counted"
                ),
            );
        }
        if let Some(message) = agent.contradiction(self.identity.epoch()) {
            say(AlarmId::ServerObeysAnother, message);
        }

        if agent.is_dry() {
            let message = format!("{id} runs dry: its agent only watches, the others make room");
            say(AlarmId::ServerWatchesOnly, message);
        }
        if let Some(watts) = agent.out_of_band.watts() {
            say(AlarmId::HardwareCapOn, format!("{id} is under a hardware cap of {watts}"));
            let (floor, target) = (agent.server.out_of_band_floor, agent.target);
            if agent.slot != Slot::Off && watts > target && floor == Some(watts) {
                let message = format!(
                    "{id} has the lowest hardware cap, {watts}, which is above its share of {target}"
                );
                say(AlarmId::HardwareCapTooHigh, message);
            }
        }

        if let Some(reason) = &agent.out_of_band.error {
            let tries = agent.out_of_band.tries();
            let message = format!("the hardware cap of {id} cannot be changed, {tries} tries: {reason}");
            say(AlarmId::HardwareCapFailing, message);
        }
    }
}

/// Which supply a fault is about, if it is about one, and what is wrong.
const fn describe(fault: Fault) -> (Option<usize>, &'static str) {
    match fault {
        Fault::Count => (None, "the newest poll has another number of power supplies than configured"),
        Fault::Time => (None, "the newest poll is stamped in the future, or too long ago"),
        Fault::Unknown(i) => (Some(i), "the power supply's state cannot be read"),
        Fault::NoReading(i) => (Some(i), "the power supply carries load and reads nothing"),
        Fault::Implausible(i) => {
            (Some(i), "the power supply reads less than zero or far more than its rating")
        }
        Fault::Stuck(i) => (
            Some(i),
            "the power supply reads the same while what the others carry has moved by more than 10 %",
        ),
        Fault::NoDraw => (None, "every power supply reads zero"),
    }
}
