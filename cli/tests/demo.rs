//! The program from outside: real processes, signals, folders, exit codes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

ballast_testbed::wall_time![
    a_demo_holds_its_budget_and_leaves_nothing_running,
    ctrl_c_ends_a_demo_and_everything_that_it_started,
    a_rig_makes_its_tree_and_never_writes_into_what_is_there,
];

const PROGRAM: &str = env!("CARGO_BIN_EXE_ballast");

fn ballast(args: &[&str]) -> Output {
    Command::new(PROGRAM).args(args).output().expect("the program can be run")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Processes of this program whose command line names `folder`.
fn running(folder: &Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let all = fs::read_dir("/proc").expect("/proc is there");
    let lines = all.filter_map(|entry| {
        let line = fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.contains(&folder)).collect()
}

fn a_demo_holds_its_budget_and_leaves_nothing_running() {
    let parent = tempfile::tempdir().unwrap();
    let keep = parent.path().join("kept");
    let keep_text = keep.display().to_string();
    let mut args = vec!["demo", "--servers", "2", "--seconds", "8", "--json", "--keep", &keep_text];
    args.extend(["--preset", "paper", "--shares", "critical-first"]);
    let output = ballast(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |key: &str| summary[key].as_f64().unwrap_or_else(|| unreachable!("{key}: {summary}"));
    assert!(number("max_power_w") > 0.9 * number("budget_w"), "{summary}");
    assert_eq!(number("user_facing_throttled_core_s"), 0.0, "{summary}");
    assert_eq!(summary["restored"], true, "{summary}");
    assert_eq!(summary["agents_acted"], 2, "{summary}");
    assert_eq!(summary["shares"], "critical-first", "{summary}");
    assert!(number("alerts") >= 1.0 && number("agent_rss_mib_max") > 1.0, "{summary}");
    assert_eq!(running(&keep), [""; 0]);

    // What is kept are real examples.
    let chassis = fs::read_to_string(keep.join("config/chassis.toml")).unwrap();
    assert!(chassis.contains("shares = \"critical-first\"") && chassis.contains("preset = \"paper\""));

    for (command, file) in [("agent", "agent-s01.toml"), ("chassis", "chassis.toml")] {
        let file = keep.join("config").join(file).display().to_string();
        let checked = ballast(&[command, "--config", &file, "--check-config"]);
        assert!(checked.status.success(), "{}", stderr(&checked));
    }

    for name in ["agent-s01", "agent-s02", "chassis"] {
        let recorded = fs::read_dir(keep.join("recordings").join(name)).unwrap().count();
        assert!(recorded > 0, "{name}");
    }

    let again = ballast(&args);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("new or empty"), "{}", stderr(&again));
}

fn ctrl_c_ends_a_demo_and_everything_that_it_started() {
    let parent = tempfile::tempdir().unwrap();
    let keep = parent.path().join("kept");
    let mut demo = Command::new(PROGRAM)
        .args(["demo", "--servers", "2", "--seconds", "600", "--json", "--keep"])
        .arg(&keep)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Until the chassis manager runs: a rig, two agents, a chassis manager and the demo itself.
    for _ in 0..1200 {
        if running(&keep).len() == 5 || demo.try_wait().unwrap().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }

    assert_eq!(running(&keep).len(), 5, "{:?}", running(&keep));
    kill(Pid::from_raw(demo.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(demo.wait().unwrap().code(), Some(130));
    assert_eq!(running(&keep), [""; 0]);
}

fn a_rig_makes_its_tree_and_never_writes_into_what_is_there() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("rig");
    let dir_text = dir.display().to_string();
    let args = ["rig", "--dir", &dir_text, "--servers", "1", "--seconds", "2"];
    let output = ballast(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("servers/ID"));
    let truth: Value = serde_json::from_slice(&fs::read(dir.join("truth.json")).unwrap()).unwrap();
    assert!(truth["elapsed_s"].as_f64().unwrap() > 0.3, "{truth}");
    assert!(dir.join("servers/s01/sys/devices/system/cpu").is_dir());

    let again = ballast(&args);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("not empty"), "{}", stderr(&again));
}

#[test]
fn wrong_use_is_told_what_is_allowed() {
    for (args, code, told) in [
        (&["demo", "--seconds", "0"][..], 2, "5..=86400"),
        (&["demo", "--budget-w", "nan"], 2, "a finite number above 0"),
        (&["demo", "--policy", "soft"], 2, "full-server"),
        (&["demo", "--budget-w", "500"], 1, "above 1344 W, what 12 idle servers draw"),
        (&["demo", "--telemetry", "/nonexistent.csv"], 1, "/nonexistent.csv"),
        (&["status", "127.0.0.1:1", "--json"], 1, ""),
        (&["agent", "--config", "/nonexistent.toml"], 78, "/nonexistent.toml"),
    ] {
        let output = ballast(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(told), "{args:?}: {}", stderr(&output));
    }
}
