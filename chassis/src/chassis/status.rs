//! The view for operators. Alarms are the conditions of now, not a log.

use ballast_types::wire::{ChassisStatus, ServerStatus, Slot};
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

    fn alarms(&self, now: Instant) -> Vec<String> {
        let mut alarms = Vec::new();
        if let Some(epoch) = self.identity.ruler() {
            alarms.push(format!("fenced: another manager rules this chassis (epoch {epoch})"));
        }
        alarms.extend(self.other_manager_alarm(now));

        if self.blind {
            alarms.push("blind: no usable reading of the chassis's draw".to_owned());
        }
        if let Some(fault) = self.supplies.fault() {
            alarms.push(describe(fault));
        }
        alarms.extend(self.crosscheck.alarm());

        for i in self.supplies.lost(now) {
            alarms.push(format!(
                "power supply {i} carries nothing: {} less to carry with",
                self.params.supply_rated[i]
            ));
        }

        if self.sharable() == Watts::ZERO {
            alarms.push(format!(
                "nothing to share: the limit is {}, shared are {}",
                self.limit(),
                self.shared.at(self.limit())
            ));
        }

        if self.is_emergency() {
            alarms.push("emergency: over the limit although every server is capped".to_owned());
        }
        if let Some(watts) = self.budget_refused {
            alarms.push(format!(
                "budget_w = {watts} was refused: above 0 and below {} is allowed",
                self.params.budget
            ));
        }

        for (server, watts) in self.hardware.unconfigured() {
            alarms.push(format!("the ledger holds a cap of {watts} on {server}, which is not configured"));
        }

        for i in 0..self.agents.len() {
            self.server_alarms(i, &mut alarms);
        }
        alarms
    }

    fn server_alarms(&self, i: usize, alarms: &mut Vec<String>) {
        let agent = &self.agents[i];
        let id = &agent.server.id;
        if self.is_lost(i) {
            let why = agent.error.as_deref().map(|e| format!(" ({e})")).unwrap_or_default();
            alarms.push(format!("{id} is silent: {}{why}", agent.cause));
            if self.event.is_some() && agent.server.out_of_band_floor.is_none() {
                alarms.push(format!(
                    "{id} is silent in a capping event, and it has no hardware cap: \
                     configure its slot or its BMC"
                ));
            }
        }

        if agent.wrong_above().is_some() {
            alarms.push(format!(
                "{id}: its meter says far more than the power supplies or its hardware cap leave for it; \
                 what it says is not counted"
            ));
        }

        alarms.extend(agent.contradiction(self.identity.epoch()));

        if agent.is_dry() {
            alarms.push(format!("{id} runs dry: its agent only watches, the others make room"));
        }
        if let Some(watts) = agent.out_of_band.watts() {
            alarms.push(format!("{id} is under a hardware cap of {watts}"));
            let floor = agent.server.out_of_band_floor;
            if agent.slot != Slot::Off && watts > agent.target && floor == Some(watts) {
                alarms.push(format!(
                    "{id} has the lowest hardware cap, {watts}, which is above its share of {}",
                    agent.target
                ));
            }
        }

        if let Some(reason) = &agent.out_of_band.error {
            let tries = agent.out_of_band.tries();
            alarms.push(format!("the hardware cap of {id} cannot be changed, {tries} tries: {reason}"));
        }
    }
}

fn describe(fault: Fault) -> String {
    match fault {
        Fault::Count => "the newest poll has another number of power supplies than configured".to_owned(),
        Fault::Time => "the newest poll is stamped in the future, or too long ago".to_owned(),
        Fault::Unknown(i) => format!("power supply {i}: its state cannot be read"),
        Fault::NoReading(i) => format!("power supply {i} carries load and reads nothing"),
        Fault::Implausible(i) => {
            format!("power supply {i} reads less than zero or far more than its rating")
        }
        Fault::Stuck(i) => {
            format!("power supply {i} reads the same while what the others carry has moved by more than 10 %")
        }
        Fault::NoDraw => "every power supply reads zero".to_owned(),
    }
}
