//! `ballast plan --verify` from outside: a plan that breaks its promise is caught, one that keeps it is not.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::common::ballast;

const MINUTES: u64 = 60;

/// Draws of two chassis of two servers, around 310 W; `drift` is a share. Seeded.
fn draws(first_minute: u64, drift: f64, seed: u64) -> String {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let mut text = String::new();
    for chassis in ["c1", "c2"] {
        for minute in first_minute..first_minute + MINUTES {
            // Four uniforms: nearly normal, with a standard deviation of 15 W.
            let normal = ((0..4).map(|_| uniform()).sum::<f64>() - 2.0) * 3.0_f64.sqrt();
            let watts = (310.0 + 15.0 * normal) * (1.0 + drift);
            writeln!(text, "{},{chassis},{watts:.1}", minute * 60).expect("a string takes it");
        }
    }
    text
}

fn write(folder: &Path, name: &str, rows: &[&str]) {
    fs::write(folder.join(name), format!("t_s,chassis,watts\n{}", rows.concat()))
        .expect("the folder is there");
}

fn plan(folder: &Path, args: &str) -> Output {
    ballast(folder, &format!("plan --servers 2 --provisioned-w 620 {args}"))
}

/// What the verification says, and the exit code.
fn verify(folder: &Path, args: &str) -> (Value, i32) {
    let output = plan(folder, &format!("{args} --json"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let answer: Value = serde_json::from_slice(&output.stdout).expect(&said);
    (answer["verify"].clone(), output.status.code().expect("it ended by itself"))
}

#[test]
fn a_drift_breaks_the_plan_without_a_buffer_and_not_with_ten_percent() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (before, after) = (draws(0, 0.0, 1), draws(MINUTES, 0.02, 2));
    write(folder, "before.csv", &[&before]);
    write(folder, "after.csv", &[&after]);
    write(folder, "all.csv", &[&after, &before]);

    let (kept, code) = verify(folder, "--telemetry before.csv --verify after.csv");
    assert_eq!((&kept["kept"], code, &kept["units"]), (&true.into(), 0, &120.into()), "{kept}");
    assert_eq!((&kept["events_rate"], &kept["buffers"]), (&0.0.into(), &Value::Array(vec![])));

    let (broken, code) = verify(folder, "--telemetry before.csv --verify after.csv --buffer 0");
    assert_eq!((&broken["kept"], code), (&false.into(), 3), "{broken}");
    let promises = broken["promises"].as_array().unwrap();
    let names: Vec<_> = promises.iter().filter(|p| p["kept"] == false).map(|p| &p["what"]).collect();
    assert_eq!(names, ["events-rate"]);
    assert!(broken["events_rate"].as_f64().unwrap() > 0.05);
    // As low as the draw asks for, and not below the floor of 0.5.
    let lowest = broken["lowest_batch_frequency"].as_f64().unwrap();
    assert!((0.5..0.9).contains(&lowest) && broken["events_user_facing"] == 0, "{broken}");

    // One file, split by time, with the other buffer in the sweep: the same verdict, to the last digit.
    let split = format!("--telemetry all.csv --verify-from {} --verify-buffers 0", MINUTES * 60 - 59);
    let (swept, code) = verify(folder, &split);
    assert_eq!((&swept["kept"], code), (&true.into(), 0), "the plan's own buffer decides");
    let rows = swept["buffers"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["buffer"], &rows[1]["buffer"]), (2, &0.1.into(), &0.0.into()));

    for key in ["budget_w", "kept", "promises", "events_batch", "deepest_w", "shed_w_units"] {
        assert_eq!(rows[1][key], broken[key], "{key}");
    }
    write(folder, "one.csv", &["0,c1,400\n"]);
    let text = plan(folder, "--telemetry before.csv --verify one.csv --buffer 0");
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("BROKEN") && text.contains("units with capping, share at most"), "{text}");
}

#[test]
fn a_back_test_proposes_the_buffer_that_held_and_verifies_both_policies() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut text = String::new();
    for hour in 0..24 * 24_u64 {
        // A day has one peak, of 420 W, and every third of 430 W.
        let (day, peak) = (hour / 24, hour % 24 == 12);
        let watts = if peak { 420 + 10 * u64::from(day % 3 == 0) } else { 300 };
        writeln!(text, "{},c1,{watts}", hour * 3600).unwrap();
    }
    write(folder, "all.csv", &[&text]);

    let args = "plan --servers 2 --provisioned-w 620 --telemetry all.csv --period-s 3600 --json";
    let answer = crate::common::answer(&ballast(folder, &format!("{args} --policy no-impact --back-test")));

    // The second half is held out; of the first each day after a week is tried.
    let tests = answer["back_test"].as_array().unwrap();
    let trials = tests[0]["trials"].as_array().unwrap();
    assert_eq!((tests.len(), trials.len(), &trials[4]["until_s"]), (7, 5, &(12 * 86_400).into()));
    assert_eq!(answer["verify"]["units"], 12 * 24);

    // Each day is planned from 430 W and needs 430 / 0.98 or 420 / 0.98 W.
    let held = tests[0]["held_buffer"].as_f64().unwrap();
    assert!((held - 2.0 / 98.0).abs() < 0.003, "{held}");
    let (buffer, p_min) = (tests[0]["buffer"].as_f64().unwrap(), answer["p_min_w"].as_f64().unwrap());
    assert_eq!(buffer, 0.1, "days of less than 8 weeks do not lower it");
    assert!((answer["budget_w"].as_f64().unwrap() - p_min * (1.0 + buffer)).abs() <= 1.0, "{answer}");

    for test in tests {
        let is_verified = ["no-impact", "minimal-impact"].contains(&test["policy"].as_str().unwrap());
        assert_eq!(test["verify"]["kept"].as_bool(), is_verified.then_some(true), "{test}");
        assert_eq!(test["held_out_needed_buffer"].is_number(), is_verified);
        assert_eq!(test["next_buffer"], test["buffer"], "what was kept is proposed again: {test}");
    }
    assert_eq!(answer["verify"]["promises"], tests[0]["verify"]["promises"]);

    let low = crate::common::answer(&ballast(folder, &format!("{args} --back-test --buffer 0")));
    let low = low["back_test"][0]["buffer"].as_f64().unwrap();
    assert!(low >= held && low < 0.06, "{low}");

    // Eight days say too little.
    let few: String = text.lines().take(24 * 8).map(|line| format!("{line}\n")).collect();
    write(folder, "few.csv", &[&few]);
    let few = plan(folder, "--telemetry few.csv --verify all.csv --period-s 3600 --back-test");
    let stderr = String::from_utf8_lossy(&few.stderr).into_owned();
    assert!(stderr.contains("two days with readings are needed after a first week"), "{stderr}");
}

#[test]
fn what_a_chassis_manager_recorded_is_telemetry() {
    use ballast_sim::demo::{DemoOptions, demo};
    use ballast_sim::scenario::Scenario;
    use ballast_sim::world::World;
    use ballast_types::{Instant, Watts};
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let options = DemoOptions { servers: 2, budget: Watts::from_whole(620), ..DemoOptions::default() };
    let length = std::time::Duration::from_secs(65);
    let policy = ballast_agent_core::Policy::Stepwise;
    let scenario = Scenario::new(demo(&options), policy, 1, length);
    let mut world = World::new(Scenario { record: true, ..scenario });
    world.run(Instant::ZERO + length).unwrap();
    let life = &world.chassis_tape().unwrap().instances()[0];
    let home = folder.join("chassis");
    fs::create_dir(&home).unwrap();

    // As the daemon's recorder writes it, in two files, beside an agent's.
    let mut text = Vec::new();
    life.write(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let (header, steps) = text.split_once('\n').unwrap();
    let half = steps.len() / 2 + steps[steps.len() / 2..].find('\n').unwrap() + 1;
    let mut header: Value = serde_json::from_str(header).unwrap();
    header["unix_ms"] = 0.into();
    let mut second = header.clone();
    second["start"] = Value::Null;
    fs::write(home.join("chassis-1-0000.jsonl"), format!("{header}\n{}", &steps[..half])).unwrap();
    fs::write(home.join("chassis-1-0001.jsonl"), format!("{second}\n{}", &steps[half..])).unwrap();
    fs::create_dir(folder.join("s01")).unwrap();
    world.agent_tape(0).unwrap().instances()[0]
        .write(fs::File::create(folder.join("s01/agent-1-0000.jsonl")).unwrap())
        .unwrap();

    let output = plan(folder, "--telemetry . --period-s 10 --json");
    let said = String::from_utf8_lossy(&output.stderr);
    let answer: Value = serde_json::from_slice(&output.stdout).expect(&said);

    // Of the last unit of time less than half is known.
    assert_eq!(answer["readings"], 6, "{answer}");
    assert!((400.0..620.0).contains(&answer["p_min_w"].as_f64().unwrap()), "{answer}");

    let output = plan(folder, "--telemetry s01");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("s01: holds no recording of a chassis manager"), "{said}");
    fs::remove_file(home.join("chassis-1-0000.jsonl")).unwrap();
    let output = plan(folder, "--telemetry chassis/chassis-1-0001.jsonl");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("chassis-1-0001.jsonl:1: damaged: it continues an earlier file"), "{said}");
}

#[test]
fn what_cannot_be_verified_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "a.csv", &["0,c1,300\n60,c1,310\n"]);
    write(folder, "none.csv", &["0,c1,0\n60,c1,\n"]);
    fs::write(folder.join("other.csv"), "t_s,chassis,watts,generation\n0,c9,300,gen9\n").unwrap();

    for (args, said) in [
        ("--telemetry a.csv --verify none.csv", "nothing to verify on: no held-out reading"),
        ("--telemetry a.csv --verify-from 3600", "nothing to verify on"),
        ("--telemetry a.csv --verify-from 0", "no reading counts as a draw"),
        ("--telemetry a.csv --verify other.csv", "held-out chassis c9 (generation gen9): the history"),
        ("--telemetry a.csv --verify-buffers 0", "--verify, --verify-from or --back-test is needed"),
        ("--telemetry a.csv --verify-from soon", "seconds are needed, or RFC 3339"),
        ("--telemetry a.csv --verify missing.csv", "cannot take missing.csv"),
    ] {
        let output = plan(folder, args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(said), "{args}: {stderr}");
    }
}
