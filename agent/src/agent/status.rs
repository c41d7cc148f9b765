//! The agent's view of itself.

use ballast_types::wire::{AgentState, AgentStatus, Alarm, AlarmId, ClassWatts, Report};
use ballast_types::{Instant, VmClass, Watts};

use super::{Agent, Leaving};
use crate::bandwidth::View;

/// What a report says where nothing is written: whatever the controller believes that it restricts, it
/// does not, and no watt of this server may be counted on.
fn nothing_done(report: Report) -> Report {
    Report {
        enforced_seq: None,
        sheddable_w: Watts::ZERO,
        restorable_w: Watts::ZERO,
        low_cores: 0,
        classes: Vec::new(),
        min_khz: None,
        min_share_percent: None,
        server_limit: false,
        ..report
    }
}

impl Agent {
    /// Everything that an operator may ask.
    pub fn status(&self, now: Instant) -> AgentStatus {
        let mut alarms = self.actuators.alarms();
        alarms.extend(self.shed.alarms());
        alarms.extend(self.floor_alarm(now));

        if self.state.name() == AgentState::Blind {
            let then = "nothing is raised, and under a cap batch cores go to their lowest frequency";
            let blind = format!("blind: no usable reading of the server's draw; {then}");
            alarms.push(Alarm::new(AlarmId::Blind, blind));
        }
        if let Some(why) = &self.params.dry_run {
            let dry = format!("dry run: nothing is written on this server ({why})");
            alarms.push(Alarm::new(AlarmId::DryRun, dry));
        }
        AgentStatus {
            role: "agent".to_owned(),
            chassis_id: self.params.chassis_id.clone(),
            policy: self.params.policy.name().to_owned(),
            policy_effective: self.params.effective_policy().name().to_owned(),
            dry_run: self.params.dry_run.clone(),
            report: self.report(now),
            fallback_w: self.orders.memory().fallback_w,
            frequency_ratio: self
                .throttle
                .frequency_ratio()
                .filter(|_| self.params.dry_run.is_none() && !self.params.floating()),
            lease_ms: self.orders.lease_end().map(|end| end.since(now).as_millis() as u64),
            refused_alerts: self.refused,
            power_faults: self.meter.faults(),
            vms: self.fleet.status(now, &self.throttle, self.params.floating(), |vm| self.shed.killed(vm)),
            vm_kills: self.shed.kills(),
            last_vm_kills: self.shed.last_kills(),
            // Only the shell knows them.
            sensors: Vec::new(),
            tls: None,
            cores: None,
            records: None,
            predictions: None,
            alarms,
        }
    }

    /// What the server's power is reckoned from.
    pub(super) fn view(&self, now: Instant) -> View<'_> {
        let Self { throttle, actuators, fleet, .. } = self;
        View { now, throttle, actuators, fleet }
    }

    /// The answer to an alert.
    pub(super) fn report(&self, now: Instant) -> Report {
        let (epoch_obeyed, seq_obeyed) = self.orders.newest();
        let draw = self.meter.draw(now);
        let view = self.view(now);
        let classes = self.estimate.classes(&view);
        let is_low = |class: &&ClassWatts| class.class == VmClass::NonUserFacing;
        let sheddable_w = classes.iter().filter(is_low).map(|class| class.sheddable_w).sum();
        let report = Report {
            server: self.params.server.clone(),
            boot_id: self.params.boot_id.clone(),
            agent_ms: now.as_millis(),
            epoch_obeyed,
            seq_obeyed,
            enforced_seq: self.enforced.newest(),
            state: self.state.name(),
            power_w: draw,
            cap_w: self.cap,
            sheddable_w,
            restorable_w: self.estimate.restorable(&view, draw),
            low_cores: view.throttle.low().count() as u16,
            min_khz: self.mechanism().min_khz(self),
            min_share_percent: self.mechanism().min_share_percent(self),
            server_limit: view.actuators.limit_on(),
            leaving: self.leaving != Leaving::No,
            actuator_failures: view.actuators.failures().saturating_add(self.shed.failures()),
            dry_run: self.params.dry_run.is_some(),
            instance_obeyed: self.orders.instance(),
            refused: self.orders.refused(now),
            cores: Some(self.params.online_cores()),
            classes,
            orphan_hold_ms: self.params.orphan_hold.map(|hold| hold.as_millis() as u64),
        };

        if report.dry_run { nothing_done(report) } else { report }
    }

    /// The one thing that this agent cannot mend: too much draw, and nothing left to lower.
    fn floor_alarm(&self, now: Instant) -> Option<Alarm> {
        let (cap, draw) = (self.cap?, self.meter.draw(now)?);
        let helpless = self.params.server_limit_floor.is_none() && self.throttle.nothing_left();
        (helpless && draw > cap).then(|| {
            let message = format!(
                "{draw} is above the cap of {cap} with all batch cores at their lowest frequency, and no \
                 [server_limit] is configured"
            );
            Alarm::new(AlarmId::ServerLimitMissing, message)
        })
    }
}
