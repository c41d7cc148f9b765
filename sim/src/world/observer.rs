//! Who watches a run: what must hold is judged at every step of the plant, and everything is counted.

use core::time::Duration;

use ballast_types::wire::{ChassisState, SharePolicy};
use ballast_types::{Instant, METER_CLASS, TRIP_TIME, Watts};

use super::bmcs::Bmcs;
use super::breaker::Breaker;
use super::checks::{Checks, Excuse, Promise, Violation};
use super::conservation::{Conservation, ServerView};
use super::faults::{Active, Fault};
use super::hash::OutputHash;
use super::host::Host;
use super::inversion::{Inversion, Priorities};
use super::limit::Limit;
use super::mean::Means;
use super::sum::SumRule;
use super::tally::{Sample, Tally, seconds};
use crate::plant::Plant;
use crate::scenario::Scenario;

/// An agent that obeyed no message for so long is not ruled by anybody.
const RULED_FOR: Duration = Duration::from_secs(3);

/// From the moment an excess can be seen until hardware has ended it: two polls, the wire, a command to
/// a BMC, and its regulator. The meters' refresh and lag come on top.
const REACTION: Duration = Duration::from_millis(2200);

const SECOND_NS: u64 = 1_000_000_000;

/// Hardware can take every core at least down to this share of its highest frequency.
const LOWEST_SHARE: f64 = 1.0 / 3.0;

/// What there is to see at one instant.
pub(crate) struct Moment<'a> {
    pub(crate) now: Instant,
    pub(crate) plant: &'a mut Plant,
    pub(crate) hosts: &'a [Host],
    pub(crate) bmcs: &'a Bmcs,
    pub(crate) active: &'a Active,
    /// The first manager tells some agent `emergency`.
    pub(crate) is_emergency: bool,
}

#[derive(Debug)]
pub(crate) struct Observer {
    seed: u64,
    pub(crate) checks: Checks,
    pub(crate) limit: Limit,
    pub(crate) breaker: Breaker,
    pub(crate) sum: SumRule,
    /// Whether servers have even shares.
    even_shares: bool,
    pub(crate) conservation: Conservation,
    pub(crate) inversion: Inversion,
    /// An agent that answered within this time is in reach.
    lease: Duration,
    is_quiet: bool,
    /// What servers draw in the mean of a second, and of a window of 100 ms.
    by_second: Means,
    by_window: Means,
    pub(crate) tally: Tally,
    pub(crate) capping_events: u64,
    pub(crate) outputs: u64,
    pub(crate) hash: OutputHash,
    pub(crate) violation: Option<Violation>,
}

impl Observer {
    pub(crate) fn new(scenario: &Scenario, agents: usize, tally: Tally) -> Self {
        let Scenario { seed, checks, plant, chassis, .. } = scenario;
        let servers = plant.servers.len();
        // Even shares hold a server under its share, whatever the total.
        let even_shares = chassis.shares == SharePolicy::Even;
        Self {
            seed: *seed,
            checks: *checks,
            limit: Limit::new(plant),
            breaker: Breaker::default(),
            sum: SumRule::new(agents, chassis.lease),
            even_shares,
            conservation: Conservation::new(servers, scenario.is_faultless() && !even_shares),
            inversion: Inversion::new(servers, chassis.reaction_time()),
            lease: chassis.lease,
            is_quiet: false,
            by_second: Means::new(servers),
            by_window: Means::new(servers),
            tally,
            capping_events: 0,
            outputs: 0,
            hash: OutputHash::default(),
            violation: None,
        }
    }

    /// Counts what a machine wants done.
    pub(crate) fn output(&mut self, machine: u32, now: Instant, output: &impl core::hash::Hash) {
        self.outputs += 1;
        self.hash.add(machine, now, output);
    }

    /// Notes a broken promise; the first one counts.
    pub(crate) fn violated(&mut self, at: &Moment<'_>, promise: Promise, what: String) {
        if self.violation.is_none() {
            let (seed, now) = (self.seed, at.now);
            let excuse = match promise {
                Promise::Breaker if self.trips_too_fast(at) => Some(Excuse::TooFast),
                Promise::Breaker | Promise::SumOfDraws => self.excuse(at),
                Promise::Liveness if at.active.hide_that_all_fits() => Some(Excuse::AllMeters),
                _ => None,
            };
            self.violation = Some(Violation { seed, at: now, promise, what, excuse });
        }
    }

    /// Whether the excess tripped the breaker before anybody can have seen it and acted.
    fn trips_too_fast(&self, at: &Moment<'_>) -> bool {
        let meter = at.plant.spec().supply_meter;
        at.now.since(self.breaker.rises_since()) < REACTION + meter.refresh + meter.lag
    }

    /// Why nobody could have kept the draw under the limit, if that is so.
    fn excuse(&self, at: &Moment<'_>) -> Option<Excuse> {
        let lately: Vec<&Fault> = at.active.lately(at.now).collect();
        let blurred = lately.iter().any(|fault| fault.blurs_supplies());
        if blurred && lately.iter().any(|fault| fault.blurs_server()) {
            return Some(Excuse::AllMeters);
        }

        let hits = |fault: &Fault, server| fault.server().is_none_or(|n| n == server);
        let out_of_reach = |server: usize| {
            let stopped = lately.iter().any(|f| f.stops_software() && hits(f, server));

            // An agent that has lost its memory, and that no manager has spoken to since, knows no cap.
            let software = stopped || self.sum.was_told_nothing(server);
            let no_path = !at.bmcs.has_path[server];

            // A manager that was fenced orders no caps, should the one that has fenced it be gone.
            let ruled = self.sum.is_ruled();
            let hardware = !ruled || lately.iter().any(|f| f.stops_hardware() && hits(f, server));

            software && (no_path || hardware)
        };

        let all = at.plant.spec().servers.iter().enumerate();
        let draws = all.map(|(n, spec)| {
            let draw_w = at.plant.server_power(n).as_f64();
            let lowest_w = spec.model.power(1.0, LOWEST_SHARE).as_f64();
            if out_of_reach(n) { draw_w } else { draw_w.min(lowest_w) }
        });

        let least_w = draws.sum::<f64>() * Self::input_per_dc(at);

        // A limit that has just risen is not what the draw was judged by.
        let limit_w = self.limit.watts().as_f64().min(self.breaker.limit_w());

        (least_w * METER_CLASS > limit_w).then_some(Excuse::LastActor)
    }

    /// Watts at the supplies' input for each watt that the servers draw.
    fn input_per_dc(at: &Moment<'_>) -> f64 {
        let servers = 0..at.plant.spec().servers.len();
        let dc_w: f64 = servers.map(|n| at.plant.server_power(n).as_f64()).sum();
        at.plant.power().as_f64() / dc_w.max(1.0)
    }

    /// Looks at the plant's current step, just before it ends.
    pub(crate) fn observe(&mut self, at: &mut Moment<'_>) {
        let sample = Sample {
            power_w: at.plant.power().as_f64(),
            limit_w: self.limit.watts().as_f64(),
            batch_ratio: at.plant.truth().batch_frequency_ratio_end,
            user_facing_ratio: at.plant.user_facing_frequency_ratio(),
            emergency: at.is_emergency,
            out_of_band: at.bmcs.caps.iter().any(Option::is_some),
            server_limit: at.hosts.iter().any(|h| h.server_limit.is_some()),
        };

        let over = Duration::from_secs_f64(seconds(self.tally.add(&sample)));
        if self.breaker.step(at.now, sample.power_w, sample.limit_w) {
            self.judge_window(at, sample.limit_w);
        }
        if self.checks.conservation && at.now.as_nanos().is_multiple_of(SECOND_NS) {
            self.judge_servers(at, sample.limit_w);
        }
        if self.checks.sum_of_caps
            && let Some(what) = self.sum.broken(at.now)
        {
            self.violated(at, Promise::SumOfCaps, what);
        }
        if self.checks.trip_time && over > TRIP_TIME {
            let what = format!(
                "{:.1} W are drawn, above the limit of {:.1} W for more than the trip time of {:.1} s",
                sample.power_w,
                sample.limit_w,
                TRIP_TIME.as_secs_f64()
            );

            self.violated(at, Promise::TripTime, what);
        }
    }

    /// Judges the 100 ms that have passed.
    fn judge_window(&mut self, at: &Moment<'_>, limit_w: f64) {
        self.limit.pass(at.now);
        if self.checks.breaker && self.breaker.fraction().now() >= 1.0 {
            let what = format!(
                "the breaker trips: {:.1} W are drawn under a limit of {limit_w:.1} W",
                self.breaker.mean_w()
            );
            self.violated(at, Promise::Breaker, what);
        }
        self.judge_priorities(at);
        if self.checks.sum_of_draws {
            let draws = self.by_window.look(at.now, at.plant);
            let reported = at.hosts.iter().map(|host| host.reported);
            if let Some(what) = self.sum.overdrawn(at.now, limit_w, &draws, reported) {
                self.violated(at, Promise::SumOfDraws, what);
            }
        }
    }

    /// Judges whether user-facing cores are slowed while low-priority cores run.
    fn judge_priorities(&mut self, at: &Moment<'_>) {
        let servers = at.hosts.iter().enumerate().map(|(n, host)| Priorities {
            in_reach: !host.is_dry_run
                && !at.active.affects(n)
                && host.leased
                && host.obeyed_at.is_some_and(|obeyed| at.now.since(obeyed) < self.lease),
            slowed_s: at.plant.user_facing_slowed_s(n),
            above_floor: host.above_floor(),
        });
        let servers: Vec<_> = servers.collect();
        if let Some(what) = self.inversion.window(at.now, &servers)
            && self.checks.inversion
        {
            self.violated(at, Promise::Inversion, what);
        }
    }

    /// Something has changed. Before the calm phase whoever is held may be held for that.
    pub(crate) fn changed(&mut self) {
        if !self.is_quiet {
            self.conservation.changed();
        }
    }

    pub(crate) fn quiet_begins(&mut self) {
        self.changed();
        self.is_quiet = true;
    }

    /// Judges, once a second, what holds servers down.
    fn judge_servers(&mut self, at: &mut Moment<'_>, limit_w: f64) {
        let means = self.by_second.look(at.now, at.plant);
        let share = self.sum.even_share().filter(|_| self.even_shares);
        let share_w = share.map_or(f64::INFINITY, Watts::as_f64);

        let mut reported = Watts::ZERO;
        let mut views = Vec::with_capacity(at.hosts.len());
        for (n, host) in at.hosts.iter().enumerate() {
            let obeyed = host.obeyed_at.is_some_and(|obeyed| at.now.since(obeyed) < RULED_FOR);
            reported += if obeyed { host.reported } else { Watts::ZERO };
            views.push(ServerView {
                faulty: at.active.affects(n),
                ruled: obeyed,
                leased: host.leased,
                restricted: host.is_restricted() || at.bmcs.caps[n].is_some(),
                draw_w: means.servers_w[n],
                need_w: at.plant.unrestricted_power(n).as_f64(),
                share_w,
            });
        }

        let reported_w = reported.as_f64();
        let broken = self.conservation.second(limit_w, means.input_w, reported_w, &views);

        if let Some((promise, server, what)) = broken {
            let what = format!("{} is held down: {what}", at.hosts[server].id);
            self.violated(at, promise, what);
        }
    }

    pub(crate) fn chassis_state(&mut self, from: ChassisState, to: ChassisState) {
        let capping = |s| matches!(s, ChassisState::Alerting | ChassisState::HardwareCaps);
        let calm = matches!(from, ChassisState::Boot | ChassisState::Normal);
        self.capping_events += u64::from(calm && capping(to));
    }
}
