//! A small world around one agent: it answers actions, and remembers what is really set.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;

use ballast_agent_core::*;
use ballast_types::wire::{AgentState, Alert, EventKind, Level, Refusal, Report};
use ballast_types::*;

pub(crate) fn ms(ms: u64) -> Instant {
    Instant::from_millis(ms)
}
pub(crate) fn w(watts: i64) -> Watts {
    Watts::from_whole(watts)
}

/// 12 cores of 5 p-states, 1.0 to 1.4 GHz.
pub(crate) const CORES: u16 = 12;
pub(crate) fn params() -> Params {
    let mhz = KiloHertz::from_mhz;
    let ladder = Ladder::stepped(mhz(1000), mhz(1400), mhz(100)).unwrap();
    let cores = (0..CORES).map(|n| Core { id: CoreId(n), ladder: ladder.clone() }).collect();
    let (server, chassis) = (ServerId::new("s").unwrap(), ChassisId::new("c").unwrap());
    Params::defaults(server, BootId::new("boot").unwrap(), chassis, cores)
}

pub(crate) fn vm(id: &str, class: VmClass, throttle_order: u8, cores: &[u16]) -> ControlledVm {
    let cores = cores.iter().copied().map(CoreId).collect();
    let on_extreme = OnExtreme::None;
    ControlledVm { id: VmId::new(id).unwrap(), class, throttle_order, cores, vcpus: None, on_extreme }
}
/// Cores 1..=3 user-facing; 6, 7 and 8 to 11 batch, the latter throttled first.
pub(crate) fn vms() -> Vec<ControlledVm> {
    vec![
        vm("uf", VmClass::UserFacing, 0, &[1, 2, 3]),
        vm("late", VmClass::NonUserFacing, 9, &[6, 7]),
        vm("soon", VmClass::NonUserFacing, 1, &[8, 9, 10, 11]),
    ]
}

pub(crate) fn alert(seq: u64, cap_w: Option<Watts>, echo: Option<u64>) -> Alert {
    Alert {
        level: if cap_w.is_some() { Level::Cap } else { Level::Watch },
        echo_boot_id: echo.map(|_| BootId::new("boot").unwrap()),
        echo_agent_ms: echo,
        chassis_limit_w: w(2450),
        cap_w,
        fallback_w: w(204),
        valid_for_ms: 2000,
        ..Alert::watch(ChassisId::new("c").unwrap(), Epoch(1), Seq(seq))
    }
}

pub(crate) struct World {
    pub(crate) agent: Agent,
    pub(crate) now: u64,
    pub(crate) seq: u64,
    /// What every core is really capped to, in MHz.
    pub(crate) caps: BTreeMap<u16, u32>,
    pub(crate) limit: Option<Watts>,
    /// What every VM's bandwidth is really limited to, in millicores.
    pub(crate) quotas: BTreeMap<String, u32>,
    /// How the next actions end.
    pub(crate) result: Option<Result<(), ActuatorError>>,
    /// Actions and events since the last `log`.
    log: Vec<String>,
    pub(crate) reports: Vec<Report>,
    pub(crate) refusals: Vec<Refusal>,
}

impl World {
    pub(crate) fn with(params: Params, found: RecoveredState) -> Self {
        let tuning = Tuning::default();
        Self::tuned(params, tuning, found)
    }
    pub(crate) fn tuned(params: Params, tuning: Tuning, found: RecoveredState) -> Self {
        let caps = found.capped.iter().map(|(core, khz)| (core.0, khz.get() / 1000)).collect();
        let limit = found.server_limit.then_some(Watts::MAX);
        let quotas = found.quotas.iter().map(|q| (q.vm.to_string(), q.millicores)).collect();
        let mut world = Self {
            agent: Agent::tuned(params, tuning, found, ms(10_000)),
            now: 10_000,
            seq: 0,
            caps,
            limit,
            quotas,
            result: Some(Ok(())),
            log: vec![],
            reports: vec![],
            refusals: vec![],
        };
        world.drain();
        world
    }
    /// Sighted, uncapped, with VMs.
    pub(crate) fn new() -> Self {
        Self::of(params())
    }
    pub(crate) fn of(params: Params) -> Self {
        let mut world = Self::with(params, RecoveredState::default());
        world.input(Input::Vms(vms()));
        world.draw(120);
        world.log();
        world
    }

    pub(crate) fn input(&mut self, input: Input) -> &mut Self {
        self.agent.handle_input(ms(self.now), input);
        self.drain();
        self
    }
    fn drain(&mut self) {
        let done = self.result == Some(Ok(()));
        while let Some(output) = self.agent.poll_output() {
            let id = match output {
                Output::SetPstate { id, core, khz } => {
                    self.log.push(format!("{core}={}", khz.get() / 1000));
                    _ = done.then(|| self.caps.insert(core.0, khz.get() / 1000));
                    id
                }
                Output::Lift { id, core } => {
                    self.log.push(format!("{core}=free"));
                    _ = done.then(|| self.caps.remove(&core.0));
                    id
                }
                Output::SetQuota { id, vm, millicores } => {
                    self.log.push(format!("{vm}={millicores}m"));
                    _ = done.then(|| self.quotas.insert(vm.to_string(), millicores));
                    id
                }
                Output::LiftQuota { id, vm } => {
                    self.log.push(format!("{vm}=free"));
                    _ = done.then(|| self.quotas.remove(vm.as_str()));
                    id
                }
                Output::SetServerLimit { id, watts } => {
                    self.log.push(format!("limit={watts}"));
                    self.limit = if done { Some(watts) } else { self.limit };
                    id
                }
                Output::LiftServerLimit { id } => {
                    self.log.push("limit=free".to_owned());
                    self.limit = if done { None } else { self.limit };
                    id
                }
                Output::KillVm { id, vm } => {
                    self.log.push(format!("kill {vm}"));
                    id
                }
                Output::Report(report) => {
                    self.reports.push(report);
                    continue;
                }
                Output::Refuse(refusal) => {
                    self.refusals.push(refusal);
                    continue;
                }
                Output::Remember(memory) => {
                    self.log.push(format!("remember {} {:?}", memory.epoch, memory.fallback_w));
                    continue;
                }
                Output::Event(event) => {
                    self.log.push(match event.kind {
                        EventKind::AgentState { from, to, cause } => {
                            format!("{from:?}>{to:?}: {cause}")
                        }
                        EventKind::FloorReached { epoch, seq, cores } => {
                            format!("floor {epoch}.{seq} {cores}")
                        }
                        EventKind::Alarm { message } => message,
                        other => format!("{other:?}"),
                    });

                    continue;
                }
            };

            if let Some(result) = self.result {
                self.agent.handle_input(ms(self.now), Input::Applied { id, result });
            }
        }
    }
    /// Lets time pass, with every timer.
    pub(crate) fn pass(&mut self, millis: u64) -> &mut Self {
        let end = self.now + millis;
        while let Some((at, _)) = self.agent.poll_timeout().filter(|(at, _)| *at <= ms(end)) {
            self.now = self.now.max(at.as_nanos().div_ceil(1_000_000));
            self.agent.handle_timeout(ms(self.now));
            self.drain();
        }
        self.now = end;
        self
    }
    /// A fresh sample, now.
    pub(crate) fn draw(&mut self, watts: i64) -> &mut Self {
        self.input(Input::Power(Reading::Sample { watts: w(watts), taken_at: ms(self.now) }))
    }
    /// `count` times 200 ms and a fresh sample.
    pub(crate) fn samples(&mut self, watts: i64, count: usize) -> &mut Self {
        for _ in 0..count {
            self.pass(200);
            self.draw(watts);
        }
        self
    }
    /// The next message, with a live echo.
    pub(crate) fn tell(&mut self, cap: Option<i64>) -> &mut Self {
        self.tell_level(cap, if cap.is_some() { Level::Cap } else { Level::Watch })
    }
    pub(crate) fn tell_level(&mut self, cap: Option<i64>, level: Level) -> &mut Self {
        self.seq += 1;
        let told = alert(self.seq, cap.map(w), Some(self.now));
        self.input(Input::Alert(Alert { level, valid_for_ms: 30_000, ..told }))
    }
    /// A message with a common height, and with or without the order for the server's own limit.
    pub(crate) fn steer(&mut self, cap: i64, height_ppm: u32, own_limit: bool) -> &mut Self {
        self.steer_by(Some(self.now), cap, height_ppm, own_limit)
    }
    /// The same without an echo, as if it were late.
    pub(crate) fn late(&mut self, cap: i64, height_ppm: u32) -> &mut Self {
        self.steer_by(None, cap, height_ppm, false)
    }
    fn steer_by(&mut self, echo: Option<u64>, cap: i64, height_ppm: u32, own_limit: bool) -> &mut Self {
        self.seq += 1;
        self.input(Input::Alert(Alert {
            height_ppm: Some(height_ppm),
            own_limit: Some(own_limit),
            valid_for_ms: 30_000,
            ..alert(self.seq, Some(w(cap)), echo)
        }))
    }
    pub(crate) fn log(&mut self) -> String {
        core::mem::take(&mut self.log).join(", ")
    }
    pub(crate) fn state(&self) -> AgentState {
        self.agent.status(ms(self.now)).report.state
    }
    pub(crate) fn report(&self) -> Report {
        self.agent.status(ms(self.now)).report
    }
}
