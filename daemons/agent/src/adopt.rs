//! The second step of a start: what a previous instance has left restricted is taken over, or put back.

use ballast_agent_core::{Actuator, Params, RecoveredQuota, RecoveredState};
use ballast_hw::{self as hw, Originals};
use ballast_runtime::events::Events;
use ballast_runtime::state::DiskFaults;

use crate::config::LimitBy;
use crate::limit;
use crate::open::Opened;

/// A machine whose restrictions are all known, and the controller's parameters for it.
pub(crate) struct Adopted<'a> {
    pub(crate) opened: Opened<'a>,
    pub(crate) found: RecoveredState,
    /// What the journal must hold.
    pub(crate) originals: Originals,
    /// The server's own limit, if it has one.
    pub(crate) limit: Option<limit::ServerLimit>,
    /// RAPL's limits that this instance does not set, put back at its end.
    pub(crate) rapl_left: limit::RaplOriginals,
    pub(crate) params: Params,
    pub(crate) events: Events,
    pub(crate) faults: DiskFaults,
    /// Whether this instance only watches until its journal can be written.
    pub(crate) waits_for_room: bool,
}

impl<'a> Opened<'a> {
    /// Takes over what a previous instance has left restricted, and finds the server's own limit. Fails when
    /// what is left cannot be understood, or the limit's files cannot be read.
    pub(crate) fn adopt(mut self) -> anyhow::Result<Adopted<'a>> {
        if let hw::Opened::Held(why) = &self.previous {
            let stays = "what a previous instance has restricted stays so";
            self.dry.get_or_insert_with(|| format!("the journal is held: {why}; {stays}"));
        }
        if self.dry.is_some() {
            self.journal = self.journal.idle();
        }
        let (mut found, mut originals) = self.recover()?;
        let limit = self.find_limit(&mut originals)?;
        found.server_limit = self.dry.is_none() && limit.as_ref().is_some_and(|limit| limit.is_on);
        originals.cpufreq = self.has_pstates.then(|| self.cpufreq.originals());
        originals.quotas = self.bandwidth.originals();
        originals.memory = self.memory_limits.originals();

        // What could not be put back stays in the journal.
        let in_use = limit.as_ref().map(|limit| limit.originals.clone()).unwrap_or_default();
        let rapl_left = limit::left_to_the_end(&mut originals.powercap, &in_use);

        let events = Events::default();
        let faults = DiskFaults::new(events.clone());
        let unwritten = if self.dry.is_some() { None } else { self.journal.probe(&originals).err() };
        let waits_for_room = unwritten.is_some();

        if let Some(error) = unwritten {
            faults.note("journal", Some(error.to_string()));
            let why = "the journal cannot be written, and nothing is changed that is not in it";
            self.dry = Some(format!("{why}; what a previous instance has restricted stays so"));
            self.journal = self.journal.idle();
            found = RecoveredState { memory: found.memory, ..RecoveredState::default() };
        }

        if let Some(why) = &self.dry {
            tracing::warn!(why, "dry run: the agent writes nothing to this machine");
        }
        let (params, opened) = (self.params(limit.is_some()), self);
        Ok(Adopted { opened, found, originals, limit, rapl_left, params, events, faults, waits_for_room })
    }

    /// What a previous instance has left restricted, and what was there before that.
    fn recover(&mut self) -> anyhow::Result<(RecoveredState, Originals)> {
        let mut found =
            RecoveredState { memory: std::mem::take(&mut self.memory), ..RecoveredState::default() };
        let hw::Opened::Adopted(saved) = &self.previous else { return Ok((found, Originals::default())) };
        if let Some(why) = &mut self.dry {
            why.push_str("; a previous instance has left restrictions on, which stay");
            return Ok((found, Originals::default()));
        }

        tracing::warn!(
            "the previous instance did not end cleanly: this instance takes over what it had restricted"
        );
        if let Some(saved) = &saved.cpufreq {
            found.capped = self.cpufreq.adopt(saved)?;
        }
        let quota = |(vm, cores, millicores)| RecoveredQuota { vm, cores, millicores };
        // They spare nobody's power: what the VMs had is put back, and lowered again once it is known how much they need.
        let left = self.memory_limits.adopt(&saved.memory).into_iter();
        for error in left.chain(self.memory_limits.release_all()) {
            tracing::warn!(%error, "a memory limit of a previous instance is put back at the end");
        }
        found.quotas = self.bandwidth.adopt(&saved.quotas).into_iter().map(quota).collect();

        Ok((found, Originals::clone(saved)))
    }

    /// Finds the server's own limit, after those that a previous instance set in another way were put back.
    fn find_limit(&self, originals: &mut Originals) -> anyhow::Result<Option<limit::ServerLimit>> {
        let state_dir = &self.config.daemon.state_dir;
        let by = self.config.server_limit.floor.map(|floor| (&self.config.server_limit.by, floor));

        if self.dry.is_none() {
            limit::put_back_of_another(by.map(|(by, _)| by), &self.root, state_dir)?;
            if by.is_none_or(|(by, _)| *by != LimitBy::Rapl) {
                match limit::put_back_rapl(&self.root, &originals.powercap) {
                    Ok(()) => originals.powercap.clear(),
                    Err(error) => tracing::error!(
                        %error,
                        "the RAPL limits that a previous instance set could not be put back and stay on"
                    ),
                }
            }
        }

        let Some((by, floor)) = by else { return Ok(None) };
        limit::find(by, floor, &self.root, state_dir, &originals.powercap)
    }

    fn params(&self, has_limit: bool) -> Params {
        let (cores, offline_cores) = match self.config.throttle.actuator {
            Actuator::Pstate => {
                let offline = self.cpufreq.domains().iter().filter(|domain| domain.cpus.is_empty());
                (self.cpufreq.cores(), offline.count() as u16)
            }
            // Floating VMs run on CPUs, so what counts is these and not physical cores.
            Actuator::CpuMax | Actuator::Uclamp => (self.cpufreq.cpus(), 0),
        };

        let config = self.config;
        let (server, chassis) = (config.server.clone(), config.chassis.clone());
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
            server_limit_hold: config.server_limit.hold,
            server_limit_floor: config.server_limit.floor.filter(|_| has_limit),
            floors: config.throttle.floors.clone(),
            user_facing_floor_percent: config.throttle.user_facing_floor,
            orphan_hold: Some(config.orphan_hold),
            dry_run: self.dry.clone(),
            offline_cores,
            ..Params::defaults(server, self.boot_id.clone(), chassis, cores)
        }
    }
}
