//! What holds whatever comes in: lost, late, duplicated, reordered, implausible.
mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ballast_chassis_core::{Answer, Chassis, Input, Ledger, Mode, Output, Params, Poll};
use ballast_types::wire::{
    AgentState, Alert, ChassisState, ChassisStatus, EventKind, Level, Refusal, RefusalReason, Report,
    ServerStatus, SharePolicy, Slot,
};
use ballast_types::{ActionId, BootId, Epoch, Instant, Machine, Seq, ServerId, Supply, SupplyState, Watts};
use common::{W, World, check_ledger_first, ms, name, params};
use proptest::prelude::*;

const SERVERS: usize = 5;

/// A server that fell silent is taken to hold what it had for so long, where its agent has told nothing else.
const ORPHAN_HOLD: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
enum Op {
    Wait(u64),
    Poll { supplies: Vec<Supply>, age_ms: u64 },
    // A report to one of the newest messages; `which` counts back from the newest.
    Report { which: usize, report: Box<Shape> },
    Refuse { which: usize, refusal: Refusal },
    Nothing { which: usize },
    // A report that was delivered before, once more.
    Again { which: usize },
    Applied { which: usize, ok: bool },
    Budget(Option<Watts>),
    Powered { server: usize, on: bool },
    // The configuration is read anew: these servers, and this share of the budget in percent.
    Reload { servers: Vec<usize>, percent: i64 },
    Leave,
}

#[derive(Clone, Debug)]
struct Shape {
    power: Option<Watts>,
    restorable: Watts,
    sheddable: Watts,
    low_cores: u16,
    boot: u8,
    enforced: bool,
    leaving: bool,
    late_ms: u64,
    /// It draws no more than its cap.
    obeys: bool,
}

fn watts() -> impl Strategy<Value = Watts> {
    prop_oneof![
        8 => (0i64..400_000).prop_map(Watts::from_milli),
        1 => any::<i64>().prop_map(Watts::from_milli),
    ]
}

fn supply() -> impl Strategy<Value = Supply> {
    use SupplyState::{Absent, Active, Failed, Standby, Unknown};
    let state = prop_oneof![
        20 => Just(Active), 2 => Just(Standby), 1 => Just(Failed), 1 => Just(Absent), 2 => Just(Unknown)
    ];
    let input = prop_oneof![
        20 => (300_000i64..520_000).prop_map(|w| Some(Watts::from_milli(w))),
        1 => Just(None),
        1 => Just(Some(Watts::ZERO)),
        1 => watts().prop_map(Some),
    ];
    (state, input).prop_map(|(state, input)| Supply { state, input })
}

fn op() -> impl Strategy<Value = Op> {
    let which = 0usize..12;
    let reason = prop_oneof![
        4 => Just(RefusalReason::Stale),
        1 => Just(RefusalReason::ForeignChassis),
        1 => Just(RefusalReason::EpochJump),
    ];
    let number = || prop_oneof![20 => 0u64..3, 1 => any::<u64>()];
    let shape = (
        prop::option::weighted(0.95, watts()),
        prop_oneof![6 => Just(W(0)), 1 => watts()],
        prop_oneof![2 => Just(W(0)), 1 => watts()],
        prop_oneof![1 => Just(0u16), 2 => Just(20)],
        prop_oneof![30 => Just(1u8), 1 => Just(2u8)],
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.02),
        0u64..50,
        prop::bool::weighted(0.9),
    )
        .prop_map(
            |(power, restorable, sheddable, low_cores, boot, enforced, leaving, late_ms, obeys)| {
                Box::new(Shape {
                    power,
                    restorable,
                    sheddable,
                    low_cores,
                    boot,
                    enforced,
                    leaving,
                    late_ms,
                    obeys,
                })
            },
        );
    prop_oneof![
        30 => (1u64..300).prop_map(Op::Wait),
        1 => (1_000u64..60_000).prop_map(Op::Wait),
        30 => (prop::collection::vec(supply(), 2), 0u64..20)
            .prop_map(|(supplies, age_ms)| Op::Poll { supplies, age_ms }),
        1 => prop::collection::vec(supply(), 0..4)
            .prop_map(|supplies| Op::Poll { supplies, age_ms: 0 }),
        60 => (which.clone(), shape).prop_map(|(which, report)| Op::Report { which, report }),
        1 => (which.clone(), reason, number(), number()).prop_map(|(which, reason, e, s)| Op::Refuse {
            which,
            refusal: Refusal { reason, newest_epoch: Epoch(e), newest_seq: Seq(s), instance: None },
        }),
        3 => which.clone().prop_map(|which| Op::Nothing { which }),
        5 => which.clone().prop_map(|which| Op::Again { which }),
        10 => (which, prop::bool::weighted(0.8)).prop_map(|(which, ok)| Op::Applied { which, ok }),
        1 => prop::option::of(watts()).prop_map(Op::Budget),
        1 => (0..=SERVERS, any::<bool>()).prop_map(|(server, on)| Op::Powered { server, on }),
        1 => (Just((0..SERVERS).collect::<Vec<_>>()).prop_shuffle(), 1..=SERVERS, 50i64..120)
            .prop_map(|(mut servers, n, percent)| {
                servers.truncate(n);
                Op::Reload { servers, percent }
            }),
        1 => prop::bool::weighted(0.05).prop_map(|leave| if leave { Op::Leave } else { Op::Wait(1) }),
    ]
}

/// A chassis that is told anything, and checked after every turn.
struct Fuzz {
    chassis: Chassis,
    now: Instant,
    messages: Vec<(ServerId, Alert)>,
    reports: Vec<(ServerId, Seq, Report)>,
    actions: Vec<ActionId>,
    seqs: BTreeMap<ServerId, Seq>,
    log: Vec<(Instant, Output)>,
    left: bool,
    /// Since when a server is in its slot.
    silent_since: BTreeMap<ServerId, Instant>,
    /// When the newest fresh poll was taken.
    taken_at: Option<Instant>,
    /// What was drawn beside the reports at that poll, at least.
    beside: Watts,
    /// A report has come since.
    reported: bool,
    /// Who has ever reported more than its cap: the others may have to pay for it.
    suspects: BTreeSet<ServerId>,
}

/// What the chassis is configured with at first.
fn configured(shares: SharePolicy) -> Params {
    let mut p: Params = params(SERVERS);
    p.shares = shares;
    p.servers[1].out_of_band_floor = None;
    p.servers[3].out_of_band_floor = Some(W(250));
    p.servers[4].mode = Mode::Unmanaged;
    p
}

impl Fuzz {
    fn new(shares: SharePolicy) -> Self {
        let p = configured(shares);
        let now = Instant::from_millis(5_000);
        let ledger = Ledger { out_of_band: vec![(name(0), W(130))], ..Ledger::default() };
        let mut fuzz = Self {
            chassis: Chassis::new(p, ledger, now),
            now,
            messages: vec![],
            reports: vec![],
            actions: vec![],
            seqs: BTreeMap::new(),
            log: vec![],
            left: false,
            silent_since: BTreeMap::new(),
            taken_at: None,
            beside: Watts::ZERO,
            reported: false,
            suspects: BTreeSet::new(),
        };

        fuzz.drain(ChassisState::Boot);

        fuzz
    }

    fn drain(&mut self, before: ChassisState) {
        let fenced = before == ChassisState::Fenced;
        while let Some(output) = self.chassis.poll_output() {
            match &output {
                Output::Alert { server, alert } => {
                    let asks = alert.epoch == Epoch(0);
                    assert!(!self.left && fenced == asks, "who has left is silent for good");
                    let newest = self.seqs.entry(server.clone()).or_default();
                    assert!(alert.seq > *newest, "numbers rise: {} after {newest}", alert.seq);
                    *newest = alert.seq;
                    assert_eq!(alert.level == Level::Watch, alert.cap_w.is_none());
                    self.messages.push((server.clone(), alert.clone()));
                }
                Output::OutOfBandCap { id, .. } | Output::OutOfBandLift { id, .. } => {
                    assert!(!fenced);
                    assert!(self.actions.last().is_none_or(|last| last < id));
                    self.actions.push(*id);
                }
                Output::Ledger(_) => assert!(!fenced || !self.chassis.is_fenced()),
                Output::Event(event) => {
                    if let EventKind::SlotChanged { server, .. } = &event.kind {
                        self.silent_since.insert(server.clone(), self.now);
                    }
                }
            }

            self.log.push((self.now, output));
        }

        self.check_sum();
    }

    /// The sum rule: what servers are granted, what a silent one held, and what is drawn beside the
    /// reports add up to at most what may be shared, the integral term's part included.
    ///
    /// A silent server counts with its bound: one that has reported for certain, until its orphan hold is
    /// over, and all others together with no more than was read beside the reports. A server that draws
    /// more than its grant counts with what it draws; that is not the grants' fault, and nobody else gets
    /// anything where it alone is too much.
    fn check_sum(&self) {
        let s = self.status();
        if s.state != ChassisState::Alerting && s.state != ChassisState::HardwareCaps
            || s.servers.iter().any(|s| s.slot == Slot::Managed && s.granted_w.is_none())
            || self.left
        {
            return;
        }

        // What a report says of a server that draws more than its grant counts from the next poll on.
        if self.reported && !self.suspects.is_empty() {
            return;
        }
        let (mut granted, mut certain, mut unseen) = (Watts::ZERO, Watts::ZERO, Watts::ZERO);

        for server in &s.servers {
            let since = self.silent_since.get(&server.server).copied().unwrap_or_default();
            let grant = server.granted_w.unwrap_or_default();
            match server.slot {
                Slot::Managed if self.suspects.contains(&server.server) => {
                    certain += server.reserved_w.max(grant);
                }
                Slot::Managed => granted += grant,
                Slot::Silent if server.report.is_some() && self.now - since < ORPHAN_HOLD => {
                    certain += server.reserved_w;
                }
                _ => unseen += server.reserved_w,
            }
        }

        let reserved = certain + unseen.min(self.beside);
        let rows = |s: &ServerStatus| {
            let reports = s.report.as_ref().map(|r| (r.power_w, r.cap_w));
            format!(
                "\n{} {:?}: granted {:?}, counts with {}, hardware {:?}, reports {reports:?}",
                s.server, s.slot, s.granted_w, s.reserved_w, s.hardware_cap_w
            )
        };

        assert!(
            granted + reserved <= s.sharable_w.max(reserved),
            "granted {granted}, certain {certain}, unseen {unseen}, of it {} at most, of {}:{}",
            self.beside,
            s.sharable_w,
            s.servers.iter().map(rows).collect::<String>()
        );
    }

    /// Notes what a fresh poll reads beside the reports, the shared watts at the limit taken off.
    fn note_reading(&mut self) {
        let s = self.status();
        let seen = s.reported_w.unwrap_or_default() + s.shared_w;
        self.beside = (s.power_w.unwrap_or_default() - seen).at_least_zero();
        self.reported = false;
    }

    fn wait(&mut self, span: Duration) {
        let end = self.now + span;
        let mut last = None;
        while let Some((at, why)) = self.chassis.poll_timeout().filter(|&(at, _)| at <= end) {
            assert!(last.is_none_or(|last| at > last), "{why} loops");
            self.now = self.now.max(at);
            last = Some(self.now);
            let before = self.status().state;
            self.chassis.handle_timeout(self.now);
            assert!(self.chassis.poll_timeout().is_none_or(|(at, _)| at > self.now), "{why} loops");
            self.drain(before);
        }
        self.now = end;
    }

    fn status(&self) -> ChassisStatus {
        self.chassis.status(self.now)
    }

    fn input(&mut self, input: Input) {
        let (before, refused) = (self.status().state, self.status().refused_inputs);
        let taken_at = match &input {
            Input::Psu(poll) => Some(poll.taken_at),
            _ => None,
        };
        self.reported |= matches!(input, Input::Answer { answer: Answer::Report(_), .. });
        self.chassis.handle_input(self.now, input);
        if taken_at > self.taken_at && self.status().refused_inputs == refused {
            self.taken_at = taken_at;
            self.note_reading();
        }
        self.drain(before);
    }

    fn message(&self, which: usize) -> Option<(ServerId, Alert)> {
        self.messages.iter().rev().nth(which).cloned()
    }

    fn answer(&mut self, server: ServerId, seq: Seq, answer: Answer) {
        self.input(Input::Answer { server, seq, answer });
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Wait(span) => self.wait(ms(span)),
            Op::Poll { supplies, age_ms } => {
                let taken_at = self.now.saturating_sub(ms(age_ms));
                self.input(Input::Psu(Poll { supplies, taken_at }));
            }
            Op::Report { which, report } => {
                let Some((server, alert)) = self.message(which) else { return };
                let report = self.shape(&server, &alert, &report);
                if report.power_w > report.cap_w && report.cap_w.is_some() {
                    self.suspects.insert(server.clone());
                }
                self.reports.push((server.clone(), alert.seq, report.clone()));
                self.answer(server, alert.seq, Answer::Report(Box::new(report)));
            }
            Op::Refuse { which, refusal } => {
                let Some((server, alert)) = self.message(which) else { return };
                self.answer(server, alert.seq, Answer::Refused(refusal));
            }
            Op::Nothing { which } => {
                let Some((server, alert)) = self.message(which) else { return };
                self.answer(server, alert.seq, Answer::Nothing("timeout".into()));
            }
            Op::Again { which } => self.again(which),
            Op::Applied { which, ok } => {
                let id = self.actions.iter().rev().nth(which).copied().unwrap_or(ActionId(99_999));
                let result = if ok { Ok(()) } else { Err("no".to_owned()) };
                self.input(Input::Applied { id, result });
            }
            Op::Budget(budget) => self.input(Input::Budget(budget)),
            Op::Reload { servers, percent } => {
                let all = configured(self.status().shares);
                let kept = servers.iter().map(|&i| all.servers[i].clone()).collect();
                let budget = all.budget.ppm(10_000 * percent as u32);
                self.input(Input::Params(Box::new(Params { servers: kept, budget, ..all })));
                self.note_reading();
            }
            Op::Powered { server, on } => self.input(Input::Powered { server: name(server), on }),
            Op::Leave => {
                self.left = true;
                self.input(Input::Leave);
            }
        }
    }

    fn shape(&self, server: &ServerId, alert: &Alert, shape: &Shape) -> Report {
        let now_ms = self.now.as_millis();
        let most = alert.cap_w.filter(|_| shape.obeys).unwrap_or(Watts::MAX);
        let power = shape.power.map(|w| w.min(most));

        Report {
            agent_ms: now_ms.saturating_sub(shape.late_ms),
            epoch_obeyed: alert.epoch,
            seq_obeyed: alert.seq,
            enforced_seq: shape.enforced.then_some(alert.seq),
            state: AgentState::Uncapped,
            power_w: power,
            cap_w: alert.cap_w,
            sheddable_w: shape.sheddable,
            restorable_w: shape.restorable,
            low_cores: shape.low_cores,
            leaving: shape.leaving,
            ..Report::blank(server.clone(), BootId::new(&format!("boot-{}", shape.boot)).expect("an id"))
        }
    }

    /// A report for the second time changes nothing.
    fn again(&mut self, which: usize) {
        let Some((server, seq, report)) = self.reports.iter().rev().nth(which).cloned() else {
            return;
        };

        // What the newest input began may go on at the next: a message makes a hardware cap needless.
        let state = self.status().state;
        self.chassis.handle_timeout(self.now);
        self.drain(state);
        let (before, outputs) = (self.status(), self.log.len());

        // One that was not taken the first time may be now: the server may have fallen silent since.
        let heard = before.servers.iter().find(|s| s.server == server).and_then(|s| s.report.as_ref());
        if heard != Some(&report) {
            return;
        }
        self.answer(server, seq, Answer::Report(Box::new(report)));
        let mut after = self.status();
        after.refused_inputs = before.refused_inputs;
        assert_eq!(after, before);
        let new = self.log.get(outputs..).unwrap_or_default();
        assert!(new.is_empty(), "{new:?}");
    }
}

fn shares() -> impl Strategy<Value = SharePolicy> {
    prop_oneof![Just(SharePolicy::Even), Just(SharePolicy::CriticalFirst)]
}

fn run(shares: SharePolicy, ops: &[Op]) -> Fuzz {
    let mut fuzz = Fuzz::new(shares);
    for op in ops {
        fuzz.apply(op.clone());
    }
    check_ledger_first(&fuzz.log);
    fuzz
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 300, ..ProptestConfig::default() })]

    /// Never panics; numbers rise; the ledger comes first; sums fit; timers move on; repeats change
    /// nothing; who is fenced or has left is silent: all checked inside, after every turn.
    #[test]
    fn whatever_comes_in(shares in shares(), ops in prop::collection::vec(op(), 1..300)) {
        run(shares, &ops);
    }

    #[test]
    fn same_inputs_same_outputs(shares in shares(), ops in prop::collection::vec(op(), 1..150)) {
        let (a, b) = (run(shares, &ops), run(shares, &ops));
        prop_assert_eq!(a.log, b.log);
    }

    /// A recording holds what went out, exactly.
    #[test]
    fn outputs_survive_json(ops in prop::collection::vec(op(), 1..40)) {
        for (_, output) in run(SharePolicy::CriticalFirst, &ops).log {
            let text = serde_json::to_string(&output).expect("JSON");
            prop_assert_eq!(serde_json::from_str::<Output>(&text).expect("an output"), output);
        }
    }

    /// Bad polls alone: no hardware cap of a silent server is lifted.
    #[test]
    fn missing_readings_never_start_a_lift(
        kinds in prop::collection::vec(0usize..8, 1..40),
        out_of_band in any::<bool>(),
    ) {
        let mut w = World::new(params(4));
        w.agent(0).power = None; // so that there is no estimate either
        w.begin_event(W(1000));

        if out_of_band {
            // Agents that do not say what they hold keep their hardware caps for the hold time.
            w.until(ChassisState::HardwareCaps);
            w.each(|a| a.answers = false);
        }

        // Calm for a while, but not for the hold time.
        w.reads(W(300)).run(ms(20_000));
        let good = w.now;
        w.polls = false;
        w.clear();

        for kind in kinds {
            w.run(ms(2_000));
            let ok = |state, watts| Supply { state, input: Some(W(watts)) };
            let a = ok(SupplyState::Active, 150);
            let (b, taken_at) = match kind {
                0 => (ok(SupplyState::Active, 0), w.now),
                1 => (Supply { state: SupplyState::Active, input: None }, w.now),
                2 => (ok(SupplyState::Unknown, 1), w.now),
                3 => (ok(SupplyState::Active, -3), w.now),
                4 => (ok(SupplyState::Standby, 5_000), w.now),
                5 => (ok(SupplyState::Active, 150), good.saturating_sub(ms(500))),
                6 => (ok(SupplyState::Active, 150), w.now + ms(1)),
                _ => (ok(SupplyState::Active, 150), good.saturating_sub(ms(60_000))),
            };

            w.input(Input::Psu(Poll { supplies: vec![a, b], taken_at }));
        }

        prop_assert!(!out_of_band || w.lifts().is_empty());
    }

    /// Whatever happened: once everything is well again, nothing stays behind.
    #[test]
    fn nobody_is_held_for_ever(shares in shares(), ops in prop::collection::vec(op(), 1..150)) {
        let mut fuzz = run(shares, &ops);
        if fuzz.left || fuzz.status().state == ChassisState::Fenced {
            return Ok(());
        }
        fuzz.input(Input::Budget(None));
        fuzz.apply(Op::Reload { servers: (0..SERVERS).collect(), percent: 100 });

        for i in 0..SERVERS {
            fuzz.input(Input::Powered { server: name(i), on: true });
        }
        let supply = Supply { state: SupplyState::Active, input: Some(W(250)) };
        let shape = Shape { power: Some(W(90)), restorable: W(0), sheddable: W(0), low_cores: 20, boot: 1,
            enforced: true, leaving: false, late_ms: 0, obeys: true };
        fuzz.messages.clear();

        // Failed actions wait for 30 s, the hold time may have grown to 15 min.
        for _ in 0..5 * 60 * 20 {
            fuzz.wait(ms(200));
            fuzz.input(Input::Psu(Poll { supplies: vec![supply; 2], taken_at: fuzz.now }));
            for (server, alert) in std::mem::take(&mut fuzz.messages) {
                let report = fuzz.shape(&server, &alert, &shape);
                fuzz.answer(server, alert.seq, Answer::Report(Box::new(report)));
            }

            for id in std::mem::take(&mut fuzz.actions) {
                fuzz.input(Input::Applied { id, result: Ok(()) });
            }
            let s = fuzz.status();

            if s.state == ChassisState::Normal && s.servers.iter().all(|s| s.granted_w.is_none()) {
                break;
            }
        }

        let s = fuzz.status();
        prop_assert_eq!(s.state, ChassisState::Normal, "{:#?}", s);
        prop_assert!(s.servers.iter().all(|s| s.granted_w.is_none() && s.hardware_cap_w.is_none()));
    }
}
