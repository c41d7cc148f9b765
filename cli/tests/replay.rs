//! `ballast replay --telemetry` from outside: what keeps the budget, and what that costs.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::common::answer;

/// Eighteen VMs for three servers: on the first, all are busy for the second minute of three.
fn measured(file: &Path) {
    let names: Vec<_> = (0..18).map(|vm| format!("v{vm}")).collect();
    let mut text = format!("t_s,{}\n", names.join(","));
    for t in (0..=180).step_by(20) {
        let value = |vm| if vm < 6 && (60..=120).contains(&t) { "95" } else { "20" };
        let values: Vec<_> = (0..18).map(value).collect();
        text += &format!("{t},{}\n", values.join(","));
    }
    fs::write(file, text).expect("the folder is writable");
}

fn replay(file: &Path, args: &str) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ballast"));
    program.args(["replay", "--servers", "3", "--json", "--telemetry"]).arg(file);
    program.args(args.split_whitespace()).output().expect("the program can be run")
}

fn report(file: &Path, args: &str) -> Value {
    answer(&replay(file, args))
}

#[test]
fn a_replay_tells_what_the_budget_costs_under_every_rule() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("vms.csv");
    measured(&file);

    let free = report(&file, "--budget-w 2000 --policy none");
    assert!((free["batch_work_ratio"].as_f64().unwrap() - 1.0).abs() < 1e-3, "{free}");
    assert!(free["budget_used_ratio"].is_null() && free["trip_fraction_max"] == 0.0, "{free}");

    let tight = 0.93 * free["max_power_w"].as_f64().unwrap();
    let run = |flags: &str| report(&file, &format!("--budget-w {tight} {flags}"));
    let even = run("--shares even");
    let paper = run("--preset paper");
    let first = run("--preset paper --shares critical-first");
    let floating = run("--actuator cpu-max");

    for (report, actuator) in
        [(&even, "pstate"), (&paper, "pstate"), (&first, "pstate"), (&floating, "cpu-max")]
    {
        let number = |key: &str| report[key].as_f64().unwrap_or(f64::NAN);
        assert_eq!(report["actuator"], actuator);
        assert!((0.3..1.0).contains(&number("batch_work_ratio")), "{report}");
        assert!((0.5..1.02).contains(&number("budget_used_ratio")), "{report}");
        assert!((0.0..1.0).contains(&number("trip_fraction_max")), "{report}");
        assert!(number("capping_events") >= 1.0, "{report}");
    }

    assert_eq!((&even["shares"], &paper["shares"]), (&"even".into(), &"even".into()));
    assert_eq!(first["shares"], "critical-first");

    // One hot server: an even share hurts it, whatever the others leave.
    let harm = |report: &Value| report["user_facing_throttled_core_s"].as_f64().unwrap();
    assert!(harm(&first) < harm(&paper), "{} and {}", harm(&first), harm(&paper));
    let stated = run("--policy stepwise --shares even --actuator pstate");
    assert_eq!(stated["outputs_hash"], even["outputs_hash"], "what is said is what is done");
}

#[test]
fn a_budget_that_nobody_can_keep_still_gives_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("vms.csv");
    measured(&file);

    // The three servers draw about 450 W idle, and more than 460 W at their lowest frequencies.
    let report = report(&file, "--budget-w 460");
    assert!(report["trip_fraction_max"].as_f64().unwrap() >= 1.0, "{report}");
    assert!(report["over_budget_s_total"].as_f64().unwrap() > 1.0, "{report}");
}

#[test]
fn rules_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("vms.csv");
    measured(&file);
    for (flags, says) in [
        ("--policy full-server --actuator cpu-max", "needs --actuator pstate"),
        ("--preset book", "possible values: paper"),
        ("--shares fair", "possible values: even, critical-first"),
    ] {
        let output = replay(&file, &format!("--budget-w 900 {flags}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(says), "{flags}: {said}");
    }
}
