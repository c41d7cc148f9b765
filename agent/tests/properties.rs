//! What holds whatever comes in.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use ballast_agent_core::*;
use ballast_types::wire::{AgentState, AgentStatus, Alert, Level};
use ballast_types::*;
use proptest::prelude::*;
use support::*;

/// One random step: time passes, then something comes in.
#[derive(Clone, Debug)]
enum Step {
    Alert { epoch: u64, seq: u64, level: Level, cap: Option<i64>, echo_age: Option<u64>, valid: u64 },
    Draw { watts: i64, age: u64 },
    Fault,
    Vms(Vec<(u8, VmClass, u16, u16)>),
    Usage(f64),
    // An answer to the n-th newest action.
    Answer(usize, Result<(), ActuatorError>),
    Silence,
}

fn step() -> impl Strategy<Value = Step> {
    let level = prop_oneof![Just(Level::Watch), Just(Level::Cap), Just(Level::Emergency)];
    let cap =
        prop::option::weighted(0.8, prop_oneof![10 => 100..300i64, 1 => -1_000_000_000..1_000_000_000i64]);

    let class = prop_oneof![Just(VmClass::UserFacing), Just(VmClass::NonUserFacing)];
    let result = prop_oneof![
        6 => Just(Ok(())),
        2 => Just(Err(ActuatorError::Transient)),
        1 => Just(Err(ActuatorError::Permanent)),
    ];

    prop_oneof![
        6 => (0..4u64, 0..200u64, level, cap, prop::option::weighted(0.8, 0..4000u64), 0..5000u64)
            .prop_map(|(epoch, seq, level, cap, echo_age, valid)| {
                Step::Alert { epoch, seq, level, cap, echo_age, valid }
            }),
        12 => (100..320i64, 0..300u64).prop_map(|(watts, age)| Step::Draw { watts, age }),
        1 => (-1_000_000_000..1_000_000_000i64).prop_map(|watts| Step::Draw { watts, age: 0 }),
        1 => Just(Step::Fault),
        1 => prop::collection::vec((0..3u8, class, 0..14u16, 1..5u16), 0..5).prop_map(Step::Vms),
        2 => (0.0..1.0f64).prop_map(Step::Usage),
        12 => (0..6usize, result).prop_map(|(n, result)| Step::Answer(n, result)),
        1 => Just(Step::Silence),
    ]
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    prop::collection::vec((prop_oneof![5 => 0..250u64, 1 => 0..3000u64], step()), 1..120)
}

fn found() -> impl Strategy<Value = RecoveredState> {
    let capped = prop::collection::vec((0..14u16, 0..2_000_000u32), 0..5);
    let quotas = prop::collection::vec((0..7u8, 0..6u16, 0..7000u32), 0..4);
    (0..3u64, prop::option::of(50..300i64), capped, any::<bool>(), quotas).prop_map(
        |(epoch, fallback, capped, server_limit, quotas)| {
            let quotas: BTreeMap<_, _> =
                quotas.into_iter().map(|(vm, cores, millicores)| (vm, (cores, millicores))).collect();
            let quota = |(vm, (cores, millicores))| {
                let vm = VmId::new(&format!("v{vm}")).unwrap();
                RecoveredQuota { vm, cores, millicores }
            };

            RecoveredState {
                memory: Memory { epoch: Epoch(epoch), fallback_w: fallback.map(w), ..Memory::default() },
                capped: capped.into_iter().map(|(c, khz)| (CoreId(c), KiloHertz::new(khz))).collect(),
                server_limit,
                quotas: quotas.into_iter().map(quota).collect(),
            }
        },
    )
}

/// An agent whose actions are answered only when a step says so.
struct Play {
    agent: Agent,
    now: u64,
    seq: u64,
    ids: Vec<ActionId>,
    /// The newest wish for every core in kilohertz, and for the server's limit.
    wished: BTreeMap<u16, u32>,
    limit: Option<Watts>,
    /// The newest wish for every VM's bandwidth in millicores.
    quotas: BTreeMap<String, u32>,
    /// Cores that may be capped.
    low: BTreeSet<u16>,
    /// VMs that may be limited, with their cores.
    low_vms: BTreeMap<String, u32>,
    /// The throttle order of each of them, once the VMs are told.
    order: BTreeMap<u16, u8>,
    vms: Vec<ControlledVm>,
}

impl Play {
    fn new(params: Params, found: RecoveredState) -> Self {
        let floating = params.actuator.floats();
        let known = |core: &CoreId| core.0 < CORES && !floating;
        let capped: Vec<_> = found.capped.iter().filter(|(core, _)| known(core)).collect();
        let quotas: Vec<_> = found.quotas.iter().filter(|_| floating).collect();
        let low_vms = quotas.iter().map(|q| (q.vm.to_string(), u32::from(q.cores))).collect();
        let quotas = quotas.iter().map(|q| (q.vm.to_string(), q.millicores)).collect();
        let low = capped.iter().map(|(core, _)| core.0).collect();
        let wished = capped.iter().map(|(core, khz)| (core.0, khz.get())).collect();
        let mut play = Self {
            low,
            low_vms,
            quotas,
            order: BTreeMap::new(),
            vms: vec![],
            wished,
            limit: found.server_limit.then_some(Watts::MAX),
            agent: Agent::new(params, found, ms(20_000)),
            now: 20_000,
            seq: 0,
            ids: vec![],
        };

        play.drain();

        play
    }

    fn drain(&mut self) -> Vec<Output> {
        let outputs: Vec<_> = core::iter::from_fn(|| self.agent.poll_output()).collect();
        for output in &outputs {
            match output {
                Output::SetPstate { id, core, khz } => {
                    self.ids.push(*id);
                    self.wished.insert(core.0, khz.get());
                }
                Output::Lift { id, core } => {
                    self.ids.push(*id);
                    self.wished.remove(&core.0);
                }
                Output::SetQuota { id, vm, millicores } => {
                    self.ids.push(*id);
                    self.quotas.insert(vm.to_string(), *millicores);
                }
                Output::LiftQuota { id, vm } => {
                    self.ids.push(*id);
                    self.quotas.remove(vm.as_str());
                }
                Output::KillVm { id, .. } => self.ids.push(*id),
                Output::SetServerLimit { id, watts } => {
                    self.ids.push(*id);
                    self.limit = Some(*watts);
                }
                Output::LiftServerLimit { id } => {
                    self.ids.push(*id);
                    self.limit = None;
                }
                _ => {}
            }
        }

        outputs
    }

    fn input_of(&mut self, step: &Step) -> Option<Input> {
        let now = self.now;
        Some(match step {
            Step::Alert { epoch, seq, level, cap, echo_age, valid } => {
                // Mostly the next message, at times any other.
                self.seq += 1;
                let seq = if seq % 5 == 0 { *seq } else { self.seq };
                let epoch = Epoch(if epoch % 4 == 0 { 3 } else { 2 });
                let told = alert(seq, cap.map(w), echo_age.map(|age| now.saturating_sub(age)));

                // At times a newer manager, that says more.
                let odd = self.seq % 5;
                let height_ppm = (odd < 2).then_some((self.seq * 77_777 % 1_100_000) as u32);
                let power = (odd == 2).then(|| w(2400));

                Input::Alert(Alert {
                    epoch,
                    level: *level,
                    valid_for_ms: *valid,
                    height_ppm,
                    own_limit: (odd < 3).then_some(odd == 0),
                    chassis_power_w: power,
                    ..told
                })
            }
            Step::Draw { watts, age } => {
                Input::Power(Reading::Sample { watts: w(*watts), taken_at: ms(now.saturating_sub(*age)) })
            }
            Step::Fault => Input::Power(Reading::Fault(SensorFault::Unreadable)),
            Step::Vms(list) => {
                let vms: Vec<ControlledVm> = list
                    .iter()
                    .enumerate()
                    .map(|(n, (order, class, first, count))| {
                        let cores: Vec<u16> = (*first..first + count).collect();

                        // Whoever may not be killed is found out below.
                        let on_extreme = OnExtreme::Kill;
                        ControlledVm { on_extreme, ..vm(&format!("v{n}"), *class, *order, &cores) }
                    })
                    .collect();
                let of = |wanted| {
                    let of = vms.iter().filter(move |vm| vm.class == wanted);
                    of.flat_map(|vm| vm.cores.iter().map(|c| c.0)).collect::<BTreeSet<u16>>()
                };

                self.low = &of(VmClass::NonUserFacing) - &of(VmClass::UserFacing);
                let batch = vms.iter().filter(|vm| vm.class == VmClass::NonUserFacing);
                self.low_vms = batch.map(|vm| (vm.id.to_string(), vm.cores.len() as u32)).collect();
                self.order.clear();

                for core in self.low.iter().filter(|core| **core < CORES) {
                    let has = |vm: &&ControlledVm| vm.cores.contains(&CoreId(*core));
                    let last = vms.iter().filter(has).map(|vm| vm.throttle_order).max();
                    self.order.extend(last.map(|order| (*core, order)));
                }

                self.vms.clone_from(&vms);

                Input::Vms(vms)
            }
            Step::Usage(share) => Input::Usage(vec![VmUsage {
                vm: VmId::new("v1").unwrap(),
                utilisation: Utilisation::from_ratio(*share).unwrap(),
                throttled: *share > 0.8,
            }]),
            Step::Answer(n, result) => {
                let id = *self.ids.iter().rev().nth(*n)?;
                Input::Applied { id, result: *result }
            }
            Step::Silence => return None,
        })
    }

    /// Timers up to `self.now + millis`; then the step. Calls `check` after every move.
    fn play(&mut self, millis: u64, step: &Step, mut check: impl FnMut(&mut Self, &Snapshot)) {
        let end = self.now + millis;
        let mut fired = 0;
        while let Some((at, _)) = self.agent.poll_timeout().filter(|(at, _)| *at <= ms(end)) {
            fired += 1;
            assert!(fired < 1000, "a timer that is never done");
            self.now = self.now.max(at.as_nanos().div_ceil(1_000_000));
            self.moved(None, &mut check);
        }
        self.now = end;
        if let Some(input) = self.input_of(step) {
            self.moved(Some(input), &mut check);
        }
    }

    fn moved(&mut self, input: Option<Input>, check: &mut impl FnMut(&mut Self, &Snapshot)) {
        let before = self.status();
        let (wished, limit) = (self.wished.clone(), self.limit);
        let quotas = self.quotas.clone();
        match input.clone() {
            None => self.agent.handle_timeout(ms(self.now)),
            Some(input) => self.agent.handle_input(ms(self.now), input),
        }
        let outputs = self.drain();
        check(self, &Snapshot { before, wished, limit, quotas, input, outputs });
    }

    /// `samples` times 200 ms in which there is room under any cap, and every action works.
    fn room(&mut self, samples: usize) {
        for _ in 0..samples {
            for id in core::mem::take(&mut self.ids) {
                self.agent.handle_input(ms(self.now), Input::Applied { id, result: Ok(()) });
            }
            self.play(200, &Step::Draw { watts: 40, age: 0 }, |_, _| {});
        }
        for id in core::mem::take(&mut self.ids) {
            self.agent.handle_input(ms(self.now), Input::Applied { id, result: Ok(()) });
        }
    }

    fn status(&self) -> AgentStatus {
        self.agent.status(ms(self.now))
    }
}

/// What one move did.
struct Snapshot {
    before: AgentStatus,
    wished: BTreeMap<u16, u32>,
    limit: Option<Watts>,
    quotas: BTreeMap<String, u32>,
    input: Option<Input>,
    outputs: Vec<Output>,
}

fn actuator() -> impl Strategy<Value = Actuator> {
    prop_oneof![2 => Just(Actuator::Pstate), 1 => Just(Actuator::CpuMax), 1 => Just(Actuator::Uclamp)]
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        3 => Just(Policy::Stepwise),
        1 => Just(Policy::FullServer),
        1 => Just(Policy::None),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_alert_has_one_answer_and_every_wish_is_possible(
        policy in policy(), actuator in actuator(), found in found(), steps in steps(),
    ) {
        let mut play = Play::new(Params { policy, actuator, ..params() }, found);
        for (millis, step) in &steps {
            play.play(*millis, step, |play, seen| {
                let answers = seen.outputs.iter().filter(|output| {
                    matches!(output, Output::Report(_) | Output::Refuse(_))
                }).count();
                let alert = matches!(seen.input, Some(Input::Alert(_)));
                assert_eq!(answers, usize::from(alert));

                if alert {
                    assert!(matches!(
                        seen.outputs.last(), Some(Output::Report(_) | Output::Refuse(_))
                    ));
                }

                for output in &seen.outputs {
                    match output {
                        // The top of the ladder is a lift, not a cap.
                        Output::SetPstate { khz, core, .. } => {
                            assert!((1_000_000..1_400_000).contains(&khz.get()));
                            assert!(policy != Policy::None);
                            assert!(policy == Policy::FullServer || play.low.contains(&core.0));
                            assert!(actuator == Actuator::Pstate);
                        }

                        // Between the floor and below all of it.
                        Output::SetQuota { vm, millicores, .. } => {
                            assert!(policy != Policy::None && actuator.floats());
                            let cores = play.low_vms[vm.as_str()];
                            assert!((714 * cores..1000 * cores).contains(millicores), "{vm}");
                        }
                        Output::SetServerLimit { watts, .. } => assert!(*watts >= w(150)),
                        _ => {}
                    }
                }

                let report = play.status().report;
                assert!(report.sheddable_w >= w(0) && report.restorable_w >= w(0));

                // `now` in a report is the one that the chassis echoes.
                assert_eq!(report.agent_ms, play.now);
            });
        }
    }

    #[test]
    fn what_is_high_priority_is_never_capped(
        actuator in actuator(), found in found(), steps in steps(),
    ) {
        let mut play = Play::new(Params { actuator, ..params() }, found);
        let mut told = false;

        for (millis, step) in &steps {
            play.play(*millis, step, |play, seen| {
                told |= matches!(seen.input, Some(Input::Vms(_)));
                if told {
                    for core in play.wished.keys() {
                        assert!(play.low.contains(core), "core {core}");
                    }
                    for vm in play.quotas.keys() {
                        assert!(play.low_vms.contains_key(vm), "VM {vm}");
                    }
                }
            });
        }
    }

    #[test]
    fn a_repeated_message_changes_nothing(found in found(), steps in steps()) {
        let mut play = Play::new(params(), found);
        let mut newest: Option<Alert> = None;
        for (millis, step) in &steps {
            play.play(*millis, step, |_, seen| {
                if let Some(Input::Alert(alert)) = &seen.input
                    && matches!(seen.outputs.last(), Some(Output::Report(_)))
                {
                    newest = Some(alert.clone());
                }
            });

            if let Some(alert) = &newest {
                // A timer that is due now is not the message's doing.
                play.play(0, &Step::Silence, |_, _| {});
                let before = play.status();
                play.moved(Some(Input::Alert(alert.clone())), &mut |play: &mut Play, seen: &Snapshot| {
                    assert!(matches!(seen.outputs[..], [Output::Refuse(_)]));
                    let expected = AgentStatus {
                        refused_alerts: before.refused_alerts + 1, ..before.clone()
                    };
                    assert_eq!(play.status(), expected);
                });
            }
        }
    }

    #[test]
    fn a_delayed_message_grants_nothing(
        found in found(), steps in steps(), cap in prop::option::of(50..400i64),
        age in 2001..9000u64, fallback in 50..400i64,
    ) {
        let mut play = Play::new(params(), found);
        for (millis, step) in &steps {
            play.play(*millis, step, |_, _| {});
        }
        let delayed = Alert {
            epoch: Epoch(4),
            fallback_w: w(fallback),
            ..alert(1, cap.map(w), Some(play.now - age))
        };

        // Two futures without any further word: the cap is never higher for having been told.
        let mut told = play.agent.clone();
        told.handle_input(ms(play.now), Input::Alert(delayed));
        let cap_of = |agent: &mut Agent, at| {
            agent.handle_timeout(ms(at));
            agent.status(ms(at)).report.cap_w.unwrap_or(Watts::MAX)
        };

        for at in (play.now..play.now + 10_000).step_by(100) {
            prop_assert!(cap_of(&mut told, at) <= cap_of(&mut play.agent, at));
        }
    }

    #[test]
    fn nothing_rises_while_blind(actuator in actuator(), found in found(), steps in steps()) {
        let mut play = Play::new(Params { actuator, ..params() }, found);
        for (millis, step) in &steps {
            play.play(*millis, step, |play, seen| {
                let after = play.status().report;
                if seen.before.report.state != AgentState::Blind || after.state != AgentState::Blind
                    // A core that is not low-priority any more, and a lift by a live lease.
                    || matches!(seen.input, Some(Input::Vms(_)))
                    || (matches!(seen.input, Some(Input::Alert(_))) && after.cap_w.is_none())
                {
                    return;
                }
                for (core, khz) in &seen.wished {
                    assert!(play.wished.get(core).is_some_and(|now| now <= khz), "core {core}");
                }
                for (vm, quota) in &seen.quotas {
                    assert!(play.quotas.get(vm).is_some_and(|now| now <= quota), "VM {vm}");
                }
                if let Some(limit) = seen.limit {
                    assert!(play.limit.is_some_and(|now| now <= limit));
                }
            });
        }
    }

    #[test]
    fn whatever_happened_a_lift_leaves_nothing_behind(
        policy in policy(), actuator in actuator(), found in found(), steps in steps(),
        leave in any::<bool>(), user_facing in prop::option::of(0..120u8), floor in 0..120u8,
        paper in any::<bool>(),
    ) {
        let params = Params {
            policy,
            actuator,
            user_facing_floor_percent: user_facing,
            floors: [(1, floor)].into(),
            steps: if paper { Steps::Paper } else { Steps::OneWrite },
            ..params()
        };

        let mut play = Play::new(params, found);
        for (millis, step) in &steps {
            play.play(*millis, step, |_, _| {});
        }
        if leave {
            play.agent.handle_input(ms(play.now), Input::Leave);

            // Nobody asks for a last report.
            play.play(600, &Step::Silence, |_, _| {});
        } else {
            let lift = alert(1, None, Some(play.now));
            play.agent.handle_input(ms(play.now), Input::Alert(Alert { epoch: Epoch(4), ..lift }));
            let taken_at = ms(play.now + 1);
            play.now += 1;
            let reading = Reading::Sample { watts: w(150), taken_at };
            play.agent.handle_input(ms(play.now), Input::Power(reading));
        }

        play.drain();
        prop_assert_eq!((&play.wished, play.limit), (&BTreeMap::new(), None));
        prop_assert_eq!(&play.quotas, &BTreeMap::new());

        // What had been given up is mended within ten seconds more.
        play.room(60);
        let status = play.status();
        prop_assert_eq!((status.report.min_khz, status.report.min_share_percent), (None, None));
        prop_assert!(!status.report.server_limit && status.alarms.is_empty());
        prop_assert_eq!(status.report.restorable_w, w(0));
    }

    #[test]
    fn nobody_is_held_below_the_fallback_for_ever(
        actuator in actuator(), found in found(), steps in steps(),
    ) {
        let mut play = Play::new(Params { actuator, ..params() }, found);
        for (millis, step) in &steps {
            play.play(*millis, step, |_, _| {});
        }
        // The chassis falls silent, every action works, and there is room under any fallback.
        play.room(1500);
        let status = play.status();
        prop_assert_eq!(status.report.cap_w, status.fallback_w);
        prop_assert_eq!((&play.wished, play.limit), (&BTreeMap::new(), None));
        prop_assert_eq!(&play.quotas, &BTreeMap::new());
    }

    #[test]
    fn the_same_inputs_make_the_same_outputs_also_through_a_recording(
        actuator in actuator(), found in found(), steps in steps(),
    ) {
        let params = Params { actuator, ..params() };
        let mut play = Play::new(params.clone(), found.clone());
        let mut recorded: Vec<(u64, Option<Input>, Vec<Output>)> = vec![];

        for (millis, step) in &steps {
            play.play(*millis, step, |play, seen| {
                recorded.push((play.now, seen.input.clone(), seen.outputs.clone()));
            });
        }

        let text = serde_json::to_string(&recorded).unwrap();
        let recorded: Vec<(u64, Option<Input>, Vec<Output>)> = serde_json::from_str(&text).unwrap();
        let params = serde_json::to_string(&params).unwrap();
        let mut again = Play::new(serde_json::from_str(&params).unwrap(), found);

        for (now, input, outputs) in recorded {
            again.now = now;
            again.moved(input, &mut |_: &mut Play, seen: &Snapshot| assert_eq!(seen.outputs, outputs));
        }
    }
}

impl Play {
    /// Whether a low-priority core is as low as it goes. A p-state that was found counts as the one at or
    /// below it.
    fn at_floor(&self, core: u16) -> bool {
        self.wished.get(&core).is_some_and(|khz| *khz < 1_100_000)
    }
    fn restricted(&self, core: u16) -> bool {
        self.wished.get(&core).is_some_and(|khz| *khz < 1_400_000)
    }
    /// A core that is restricted although one that comes before it is above its floor.
    fn out_of_order(&self) -> Option<(u16, u16)> {
        let above = self.order.iter().filter(|(core, _)| !self.at_floor(**core));
        let (before, order) = above.min_by_key(|(_, order)| **order)?;
        let later = |(core, other): &(&u16, &u8)| *other > order && self.restricted(**core);
        self.order.iter().find(later).map(|(core, _)| (*before, *core))
    }
}

/// After so long, a step; and how the actions before it went, if they are answered.
type Hard = (u64, Step, Option<Result<(), ActuatorError>>);

/// Much more draw than cap, most of the time: what leads to the floor and beyond.
fn hard_steps() -> impl Strategy<Value = Vec<Hard>> {
    let result = prop_oneof![
        40 => Just(Some(Ok(()))),
        1 => Just(None),
        1 => Just(Some(Err(ActuatorError::Transient))),
        1 => Just(Some(Err(ActuatorError::Permanent))),
    ];
    let over = (170..320i64).prop_map(|watts| Step::Draw { watts, age: 0 });
    let cap = (prop::option::weighted(0.9, 0..300u64), 1000..5000u64).prop_map(|(echo_age, valid)| {
        let (epoch, seq, level) = (2, 0, Level::Cap);
        Step::Alert { epoch, seq, level, cap: Some(160), echo_age, valid }
    });
    let one = prop_oneof![30 => over, 10 => cap, 2 => step()];
    prop::collection::vec((150..250u64, one, result), 20..120)
}

impl Play {
    /// With VMs of three classes, one of them user-facing too.
    fn hard(params: Params, found: RecoveredState) -> Self {
        let mut play = Self::new(params, found);
        let batch = |order, first| (order, VmClass::NonUserFacing, first, 2);
        let web = (0, VmClass::UserFacing, 1, 3);
        let vms = vec![web, batch(1, 4), batch(0, 6), batch(2, 8), batch(0, 10)];
        play.play(0, &Step::Vms(vms), |_, _| {});
        play
    }
    fn answer(&mut self, result: Option<Result<(), ActuatorError>>) {
        let Some(result) = result else { return };
        for id in core::mem::take(&mut self.ids) {
            self.agent.handle_input(ms(self.now), Input::Applied { id, result });
        }
        self.drain();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_class_is_touched_while_one_before_it_is_above_its_floor(
        found in found(), steps in steps(), hard in hard_steps(),
    ) {
        let mut play = Play::hard(params(), found);
        let easy = steps.into_iter().map(|(millis, step)| (millis, step, None));
        for (millis, step, result) in hard.into_iter().chain(easy) {
            play.answer(result);
            play.play(millis, &step, |play, _| {
                assert_eq!(play.out_of_order(), None, "{:?} {:?}", play.order, play.wished);
            });
        }
    }

    #[test]
    fn the_servers_own_limit_comes_only_after_every_low_priority_core_is_at_its_floor(
        found in found(), hard in hard_steps(),
    ) {
        let mut play = Play::hard(
            params(), RecoveredState { server_limit: false, ..found },
        );
        for (millis, step, result) in &hard {
            play.answer(*result);
            play.play(*millis, step, |play, seen| {
                if seen.limit.is_none() && play.limit.is_some() {
                    let above = play.order.keys().find(|core| !play.at_floor(**core));
                    assert_eq!(above, None, "{:?}", play.wished);
                }
            });
        }
    }

    #[test]
    fn a_vm_is_killed_only_by_a_fresh_sample_in_extreme_draw(
        found in found(), hard in hard_steps(), allowed in any::<bool>(),
    ) {
        let kill_after = allowed.then_some(core::time::Duration::from_millis(400));
        let mut play = Play::hard(Params { kill_after, ..params() }, found);
        let mut killed: Option<u64> = None;

        for (millis, step, result) in &hard {
            play.answer(*result);
            play.play(*millis, step, |play, seen| {
                let kills: Vec<_> = seen.outputs.iter().filter_map(|output| match output {
                    Output::KillVm { vm, .. } => Some(vm.clone()),
                    _ => None,
                }).collect();

                let [id] = kills.as_slice() else { return assert!(kills.is_empty()) };
                assert!(allowed);
                let Some(Input::Power(Reading::Sample { watts, .. })) = &seen.input else {
                    panic!("killed by {:?}", seen.input);
                };
                let before = &seen.before.report;
                assert!(before.cap_w.is_some_and(|cap| *watts > cap));
                assert!(matches!(before.state, AgentState::Throttled | AgentState::Shedding));
                assert!(seen.before.lease_ms.is_some());

                for core in play.order.keys() {
                    assert!(play.at_floor(*core), "core {core}");
                }
                let may = |vm: &&ControlledVm| vm.class == VmClass::NonUserFacing;
                let dead = |vm: &ControlledVm| {
                    seen.before.vms.iter().any(|status| status.vm == vm.id && status.killed)
                };
                let vm = play.vms.iter().filter(may).find(|vm| vm.id == *id).unwrap();
                assert!(!dead(vm));

                // One at a time: not before a sample has shown what the last one did.
                assert!(killed.is_none_or(|at| play.now >= at + 50));
                killed = Some(play.now);
            });
        }
    }
}
