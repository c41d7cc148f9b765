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
    Alert {
        epoch: u64,
        seq: u64,
        level: Level,
        cap: Option<i64>,
        echo_age: Option<u64>,
        valid: u64,
    },
    Draw {
        watts: i64,
        age: u64,
    },
    Fault,
    Vms(Vec<(u8, VmClass, u16, u16)>),
    Usage(f64),
    /// An answer to the n-th newest action.
    Answer(usize, Result<(), ActuatorError>),
    Silence,
}

fn step() -> impl Strategy<Value = Step> {
    let level = prop_oneof![Just(Level::Watch), Just(Level::Cap), Just(Level::Emergency)];
    let cap = prop::option::weighted(
        0.8,
        prop_oneof![10 => 100..300i64, 1 => -1_000_000_000..1_000_000_000i64],
    );
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

fn found() -> impl Strategy<Value = Found> {
    let capped = prop::collection::vec((0..14u16, 0..2_000_000u32), 0..5);
    (0..3u64, prop::option::of(50..300i64), capped, any::<bool>()).prop_map(
        |(epoch, fallback, capped, server_limit)| Found {
            memory: Memory { epoch: Epoch(epoch), fallback_w: fallback.map(w) },
            capped: capped.into_iter().map(|(c, khz)| (CoreId(c), KiloHertz::new(khz))).collect(),
            server_limit,
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
    /// Cores that may be capped.
    low: BTreeSet<u16>,
}

impl Play {
    fn new(params: Params, found: Found) -> Self {
        let known = |core: &CoreId| core.0 < CORES;
        let capped: Vec<_> = found.capped.iter().filter(|(core, _)| known(core)).collect();
        let low = capped.iter().map(|(core, _)| core.0).collect();
        let wished = capped.iter().map(|(core, khz)| (core.0, khz.get())).collect();
        let mut play = Self {
            low,
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
                Input::Alert(Alert { epoch, level: *level, valid_for_ms: *valid, ..told })
            }
            Step::Draw { watts, age } => Input::Power(Reading::Sample {
                watts: w(*watts),
                taken_at: ms(now.saturating_sub(*age)),
            }),
            Step::Fault => Input::Power(Reading::Fault(SensorFault::Unreadable)),
            Step::Vms(list) => {
                let vms: Vec<Vm> = list
                    .iter()
                    .enumerate()
                    .map(|(n, (order, class, first, count))| {
                        let cores: Vec<u16> = (*first..first + count).collect();
                        vm(&format!("v{n}"), *class, *order, &cores)
                    })
                    .collect();
                let of = |wanted| {
                    let of = vms.iter().filter(move |vm| vm.class == wanted);
                    of.flat_map(|vm| vm.cores.iter().map(|c| c.0)).collect::<BTreeSet<u16>>()
                };
                self.low = &of(VmClass::NonUserFacing) - &of(VmClass::UserFacing);
                Input::Vms(vms)
            }
            Step::Usage(share) => Input::Usage(vec![VmUsage {
                vm: VmId::new("v1").unwrap(),
                utilisation: Utilisation::from_ratio(*share).unwrap(),
            }]),
            Step::Answer(n, result) => {
                let id = *self.ids.iter().rev().nth(*n)?;
                Input::Applied { id, result: *result }
            }
            Step::Silence => return None,
        })
    }

    /// Timers up to `self.now + millis`; then the step. Calls `check` after every move.
    fn play(&mut self, millis: u64, step: &Step, mut check: impl FnMut(&mut Self, &Seen)) {
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

    fn moved(&mut self, input: Option<Input>, check: &mut impl FnMut(&mut Self, &Seen)) {
        let before = self.status();
        let (wished, limit) = (self.wished.clone(), self.limit);
        match input.clone() {
            None => self.agent.handle_timeout(ms(self.now)),
            Some(input) => self.agent.handle_input(ms(self.now), input),
        }
        let outputs = self.drain();
        check(self, &Seen { before, wished, limit, input, outputs });
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
struct Seen {
    before: AgentStatus,
    wished: BTreeMap<u16, u32>,
    limit: Option<Watts>,
    input: Option<Input>,
    outputs: Vec<Output>,
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
        policy in policy(), found in found(), steps in steps(),
    ) {
        let mut play = Play::new(Params { policy, ..params() }, found);
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
    fn a_high_priority_core_is_never_capped(found in found(), steps in steps()) {
        let mut play = Play::new(params(), found);
        let mut told = false;
        for (millis, step) in &steps {
            play.play(*millis, step, |play, seen| {
                told |= matches!(seen.input, Some(Input::Vms(_)));
                if told {
                    for core in play.wished.keys() {
                        assert!(play.low.contains(core), "core {core}");
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
                play.moved(Some(Input::Alert(alert.clone())), &mut |play: &mut Play, seen: &Seen| {
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
    fn nothing_rises_while_blind(found in found(), steps in steps()) {
        let mut play = Play::new(params(), found);
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
                if let Some(limit) = seen.limit {
                    assert!(play.limit.is_some_and(|now| now <= limit));
                }
            });
        }
    }

    #[test]
    fn whatever_happened_a_lift_leaves_nothing_behind(
        policy in policy(), found in found(), steps in steps(), leave in any::<bool>(),
    ) {
        let mut play = Play::new(Params { policy, ..params() }, found);
        for (millis, step) in &steps {
            play.play(*millis, step, |_, _| {});
        }
        if leave {
            play.agent.handle_input(ms(play.now), Input::Leave);
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
        // What had been given up is mended within ten seconds more.
        play.room(60);
        let status = play.status();
        prop_assert_eq!(status.report.min_khz, None);
        prop_assert!(!status.report.server_limit && status.alarms.is_empty());
        prop_assert_eq!(status.report.restorable_w, w(0));
    }

    #[test]
    fn nobody_is_held_below_the_fallback_for_ever(found in found(), steps in steps()) {
        let mut play = Play::new(params(), found);
        for (millis, step) in &steps {
            play.play(*millis, step, |_, _| {});
        }
        // The chassis falls silent, every action works, and there is room under any fallback.
        play.room(1500);
        let status = play.status();
        prop_assert_eq!(status.report.cap_w, status.fallback_w);
        prop_assert_eq!((&play.wished, play.limit), (&BTreeMap::new(), None));
    }

    #[test]
    fn the_same_inputs_make_the_same_outputs_also_through_a_recording(
        found in found(), steps in steps(),
    ) {
        let mut play = Play::new(params(), found.clone());
        let mut recorded: Vec<(u64, Option<Input>, Vec<Output>)> = vec![];
        for (millis, step) in &steps {
            play.play(*millis, step, |play, seen| {
                recorded.push((play.now, seen.input.clone(), seen.outputs.clone()));
            });
        }
        let text = serde_json::to_string(&recorded).unwrap();
        let recorded: Vec<(u64, Option<Input>, Vec<Output>)> = serde_json::from_str(&text).unwrap();
        let params = serde_json::to_string(&params()).unwrap();
        let mut again = Play::new(serde_json::from_str(&params).unwrap(), found);
        for (now, input, outputs) in recorded {
            again.now = now;
            again.moved(input, &mut |_: &mut Play, seen: &Seen| assert_eq!(seen.outputs, outputs));
        }
    }
}
