//! The controllers in virtual time: they hold the budget, faults or none, and let go afterwards.

use core::time::Duration;
use std::io::BufReader;

use ballast_agent_core::{Actuator, Policy};
use ballast_sim::campaign::{Case, Overload};
use ballast_sim::demo::overloaded;
use ballast_sim::plant::PlantSpec;
use ballast_sim::replay::{Part, Recorded, RecordingError, RecordingReport, replay};
use ballast_sim::scenario::Scenario;
use ballast_sim::world::{Checks, Restrictions, TapedInstance, World};
use ballast_types::Cause;
use ballast_types::recording::{Header, MachineState};
use ballast_types::wire::SharePolicy;
use serde::Serialize;

use crate::{at, run};

fn made(plant: PlantSpec, seed: u64, seconds: u64) -> Scenario {
    Scenario::new(plant, Policy::Stepwise, seed, Duration::from_secs(seconds))
}

#[test]
fn without_faults_the_budget_holds_and_everything_is_given_back() {
    let plant = overloaded(12, 1.0, 40.0);
    let (world, outcome) = run(made(plant.clone(), 1, 120), 120);
    let truth = world.truth();

    // The load would exceed the budget: the same without anybody who throttles.
    let mut free =
        Scenario::new(PlantSpec { hardware_caps: false, ..plant }, Policy::None, 1, Duration::from_secs(20));

    free.points = 10;
    let (unwatched, _) = run(free, 20);
    assert!(unwatched.truth().max_power_w > truth.budget_w, "the load must be too much");
    assert_eq!(unwatched.curve().len(), 10);

    assert!(outcome.capping_events >= 1);

    // A breaker carries a little for long: how far it has gone is what counts.
    assert!(outcome.trip_fraction_max < 0.2, "{outcome:?}");
    assert!(truth.over_budget_s_max <= 1.5, "{} s above the budget", truth.over_budget_s_max);
    assert!(truth.user_facing_throttled_core_s.total() == 0.0);
    assert!(outcome.out_of_band_s == 0.0 && truth.hardware_engaged_s == 0.0);
    assert_eq!(world.restrictions(), Restrictions::default());
    assert!(truth.batch_frequency_ratio_end == 1.0);
}

#[test]
fn a_run_is_its_seed() {
    let hash = |seed| run(made(overloaded(3, 1.0, 12.0), seed, 15), 15).1.outputs_hash;
    assert_eq!(hash(5), hash(5));
    assert_ne!(hash(5), hash(6));
}

#[test]
fn steady_load_moves_p_states_rarely() {
    let mut world = World::new(made(overloaded(4, 0.9, 1000.0), 3, 180));
    world.run(at(60)).unwrap();
    let before = world.pstate_changes_max();
    world.run(at(180)).unwrap();
    let per_minute = f64::from(world.pstate_changes_max() - before) / 2.0;
    // 300 readings a minute move the height; at most half of the moves reach one core.
    assert!(per_minute <= 150.0, "{per_minute} changes of one core a minute");
}

fn overload(servers: usize, faults: usize, seeds: core::ops::Range<u64>) {
    for seed in seeds {
        let (even, critical) = (SharePolicy::Even, SharePolicy::CriticalFirst);
        for shares in [even, critical] {
            let case = Overload { shares, ..Overload::new(seed, servers, faults) };
            if let Err(violation) = case.run() {
                panic!("{violation}, {case:?}\n{:#?}", case.scenario().faults);
            }
        }
    }
}

#[test]
fn faults_break_no_promise_and_leave_nothing_behind() {
    overload(4, 6, 0..40);
}

/// After a manager's restart, caps once added up to more than the limit.
#[test]
fn a_new_manager_shares_no_watts_that_are_not_there() {
    overload(12, 6, 142..143);
    overload(1, 1, 60..61);
}

#[test]
fn a_calm_chassis_stays_calm_when_everything_starts_at_once() {
    let (world, outcome) = run(made(overloaded(4, 0.1, 1000.0), 1, 10), 10);
    assert_eq!(outcome.capping_events, 0);
    assert_eq!(world.restrictions(), Restrictions::default());
    assert_eq!(world.truth().batch_throttled_core_s.total(), 0.0);
}

/// Nobody else can pay for a lone server's silence.
#[test]
fn a_lone_server_that_returns_gets_its_share_again() {
    overload(1, 1, 0..30);
}

fn bytes<P, S, I, O>(life: &TapedInstance<P, S, I, O>) -> Vec<u8>
where
    P: Serialize,
    S: Serialize,
    I: Serialize,
    O: Serialize,
{
    let mut out = Vec::new();
    life.write(&mut out).expect("memory takes it");
    out
}

fn play(files: &[&[u8]]) -> Result<RecordingReport, RecordingError> {
    let part = |(n, bytes)| Part { name: format!("file-{n}"), lines: BufReader::new(bytes) };
    replay(files.iter().copied().enumerate().map(part).collect())
}

#[test]
fn a_recording_replays_exactly_and_a_changed_one_does_not() {
    let mut scenario = made(overloaded(2, 1.0, 8.0), 9, 12);
    scenario.record = true;
    let (world, _) = run(scenario, 12);
    let agent = bytes(&world.agent_tape(0).unwrap().instances()[0]);
    let manager = bytes(&world.chassis_tape().unwrap().instances()[0]);

    for (name, file) in [("agent", &agent), ("chassis", &manager)] {
        let report = play(&[file]).unwrap();
        assert_eq!((report.machine.as_str(), report.mismatches), (name, 0), "{report:?}");
        let lines = file.iter().filter(|b| **b == b'\n').count() as u64;
        assert!(report.steps == lines - 1 && report.outputs > 100, "{report:?}");
        assert!((report.recorded_s - 12.0).abs() < 0.5, "{report:?}");
    }

    // One output changed: found, with its line and both sides.
    let text = String::from_utf8(agent.clone()).unwrap();
    let line = text.lines().position(|l| l.contains("\"set_pstate\":{\"id\"")).unwrap();
    let changed = text.replacen("\"khz\":1200000", "\"khz\":1300000", 1);
    assert_ne!(changed, text);
    let report = play(&[changed.as_bytes()]).unwrap();
    let first = report.first_mismatch.unwrap();
    assert!(report.mismatches == 1 && first.line == line + 1, "{first:?}");
    assert!(first.recorded.contains("1300000") && first.replayed.contains("1200000"), "{first:?}");

    // Rotated in the middle, the second file going on with a header of its own.
    let header = text.lines().next().unwrap();
    let start = header.rfind("\"start\":").unwrap();
    let goes_on = format!("{}\"start\":null}}\n", &header[..start]);
    let middle = text.match_indices('\n').nth(20).unwrap().0 + 1;
    let (one, two) = (&text[..middle], format!("{goes_on}{}", &text[middle..]));
    let whole = play(&[&agent]).unwrap();
    let rotated = play(&[one.as_bytes(), two.as_bytes()]).unwrap();
    assert_eq!((rotated.steps, rotated.files), (whole.steps, 2));
    assert_eq!(rotated.outputs_hash, whole.outputs_hash);
    assert!(matches!(play(&[two.as_bytes()]), Err(RecordingError::Damaged { line: 1, .. })));

    // The last line cut short by a crash is tolerated, also where another life follows.
    let torn = &text.as_bytes()[..text.len() - 9];
    let report = play(&[torn]).unwrap();
    assert_eq!((report.damaged_tails, report.steps, report.mismatches), (1, whole.steps - 1, 0));
    let report = play(&[torn, &agent]).unwrap();
    assert_eq!((report.damaged_tails, report.starts, report.steps), (1, 2, 2 * whole.steps - 1));

    // But not if the same life goes on behind it, or in the middle of a file.
    let damaged = |files: &[&[u8]], name: &str| match play(files) {
        Err(RecordingError::Damaged { file, line, .. }) => assert_eq!((&*file, line), (name, 21)),
        other => panic!("{other:?}"),
    };

    damaged(&[&one.as_bytes()[..one.len() - 9], two.as_bytes()], "file-0");
    let mut broken: Vec<&str> = text.lines().collect();
    broken[20] = "{\"at\":";
    damaged(&[broken.join("\n").as_bytes()], "file-0");
    assert!(matches!(play(&[]), Err(RecordingError::Empty)));
}

/// Replays every part of a start that begins with the machine as it was then.
fn replay_from_every_state<M>(life: &TapedInstance<M::Params, M::Start, M::Input, M::Output>)
where
    M: Recorded<Params: Clone + Serialize, Start: Clone + Serialize, Input: Clone + Serialize> + Serialize,
{
    let header = life.header.clone();
    let origin = header.clone();
    let mut machine = M::make(header.params.clone(), header.start.expect("a start"), header.at);
    let lines = String::from_utf8(bytes(life)).expect("JSON");
    let lines: Vec<&str> = lines.lines().collect();

    for (n, step) in life.steps.iter().enumerate() {
        if n % 50 == 25 {
            let state = MachineState { at: life.steps[n - 1].at, steps: n as u64, machine: &machine };
            let Header { ballast_recording, machine: name, at, unix_ms, params, .. } = origin.clone();
            let start = None::<M::Start>;
            let header =
                Header { ballast_recording, machine: name, at, unix_ms, params, start, state: Some(state) };
            let header = serde_json::to_string(&header).expect("JSON");
            let file = [&[&*header], &lines[n + 1..]].concat().join("\n");
            let before = |steps: usize| lines[..=steps].join("\n");

            let alone = play(&[file.as_bytes()]).expect("it can be replayed alone");
            assert_eq!((alone.starts, alone.resumed, alone.mismatches), (0, 1, 0), "{n}: {alone:?}");
            assert_eq!(alone.steps, (life.steps.len() - n) as u64);
            let whole = play(&[before(n).as_bytes(), file.as_bytes()]).expect("it goes on");
            assert_eq!((whole.starts, whole.resumed, whole.mismatches), (1, 0, 0), "{n}: {whole:?}");
            let gap = play(&[before(n - 5).as_bytes(), file.as_bytes()]).expect("it begins anew");
            assert_eq!((gap.starts, gap.resumed, gap.mismatches), (1, 1, 0), "{n}: {gap:?}");
        }

        match &step.cause {
            Cause::Timeout => machine.handle_timeout(step.at),
            Cause::Input(input) => machine.handle_input(step.at, input.clone()),
        }
        while machine.poll_output().is_some() {}
    }
}

#[test]
fn a_file_that_begins_with_the_machine_is_replayed_alone_behind_its_forerunner_and_behind_a_gap() {
    for actuator in [Actuator::Pstate, Actuator::CpuMax] {
        let mut scenario = Overload { actuator, ..Overload::new(11, 2, 6) }.scenario();
        (scenario.record, scenario.length) = (true, Duration::from_secs(40));
        let report = scenario.run(&mut []);
        let world = report.run().world().expect("a world");
        for life in world.agent_tape(0).expect("a tape").instances() {
            replay_from_every_state::<ballast_agent_core::Agent>(life);
        }
        for life in world.chassis_tape().expect("a tape").instances() {
            replay_from_every_state::<ballast_chassis_core::Chassis>(life);
        }
    }
}

/// A budget counts for the breaker from five seconds after it was accepted, whatever comes meanwhile.
#[test]
fn a_second_lower_budget_does_not_put_the_first_one_off() {
    let plant = PlantSpec { hardware_caps: false, ..overloaded(4, 1.0, 100.0) };
    let trips_at = |budgets: &[(u32, u32)]| {
        let mut scenario = Scenario::new(plant.clone(), Policy::None, 1, Duration::from_secs(60));
        scenario.checks = Checks { breaker: true, ..Checks::NONE };
        scenario.plant.budget = plant.budget.ppm(2_000_000);
        scenario.chassis.budget = scenario.plant.budget;
        for &(seconds, ppm) in budgets {
            scenario.budgets.push((at(seconds), Some(plant.budget.ppm(ppm))));
        }
        let violation = World::new(scenario).run(at(60)).expect_err("nobody acts");
        violation.at
    };
    let one = trips_at(&[(10, 800_000)]);
    let two = trips_at(&[(10, 800_000), (14, 799_000)]);
    assert!(one > at(15) && two <= one, "{one:?} {two:?}");
}

/// Whole runs drawn from seeds, policy, shares, actuator, size and load, without a fault: the judges find nothing, and no
/// user-facing core is slowed where low-priority cores alone can hold the limit.
#[test]
fn without_faults_user_facing_cores_are_never_slowed() {
    let mut judged = 0;
    for seed in 1..=40 {
        let scenario = Case::faultless(seed).scenario().clone();
        let reachable = scenario.agents.iter().all(|agent| agent.actuator == Actuator::Pstate);
        let report = scenario.run(&mut []);
        assert_eq!(report.violation, None);
        let slowed = report.run().world().unwrap().truth().user_facing_throttled_core_s.total();
        assert!(!reachable || slowed == 0.0, "seed {seed}: {slowed} core-s");
        judged += usize::from(reachable);
    }
    assert!(judged >= 20, "{judged}");
}
