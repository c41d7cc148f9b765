//! `ballast profile` on a rig: the curves that it finds are the plant's, and nothing is left behind.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ballast_runtime::EXIT_LIVE;
use ballast_testbed::lab::{Lab, ballast, steady};
use ballast_testbed::rig::{OWN_LOAD, load_file, server_root};
use ballast_types::{PowerModel, ServerId, Watts};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

ballast_testbed::wall_time![
    the_plants_own_curves_are_found_and_nothing_is_left_behind,
    a_profile_that_is_stopped_puts_everything_back,
    one_that_is_killed_is_put_back_by_a_release_and_a_live_agent_is_not_disturbed,
];

/// Of the rig's meters: one standard deviation, as a share of the value.
const NOISE: f64 = 0.01;

/// One server with a meter that is fast, so that this is short; and otherwise as bad as the usual one.
fn lab() -> Lab {
    let mut spec = steady(1, 400, (0.3, 0.5));
    // Its supplies, made for a chassis that is never full, would slow it down.
    spec.hardware_caps = false;
    spec.meter.lag = Duration::from_millis(20);
    spec.meter.refresh = Duration::from_millis(20);
    assert_eq!(spec.meter.noise_ppm, (NOISE * 1e6) as u32);
    let lab = Lab::new(spec, "");
    let config = lab.config("s01");
    let text = fs::read_to_string(&config).expect("a config");
    let fast = text.replace("[meter]\n", "[meter]\nsample_ms = 20\nlag_ms = 20\n");
    fs::write(&config, fast).expect("a config");
    lab
}

fn load(lab: &Lab) -> String {
    let server = ServerId::new("s01").expect("a name");
    fs::read_to_string(load_file(&server_root(&lab.tree(), &server))).expect("a rig's file")
}

fn journal(lab: &Lab) -> PathBuf {
    lab.journal("s01")
}

/// Starts a profile that takes far longer than this test, and waits until it has capped cores.
fn begun(lab: &Lab) -> Child {
    let before = lab.limits();
    let child = Command::new(ballast())
        .args(["profile", "--values", "100000", "--config"])
        .arg(lab.config("s01"))
        .stderr(Stdio::piped())
        .spawn()
        .expect("ballast runs");
    lab.wait("cores are capped and loaded", |lab| lab.limits() != before && load(lab).trim() == "0");
    assert!(journal(lab).exists(), "the originals are on disk before anything is changed");
    child
}

fn the_plants_own_curves_are_found_and_nothing_is_left_behind() {
    let lab = lab();
    let before = lab.limits();
    let (config, output) = (lab.config("s01"), lab.home("profile.toml"));
    let grid = ["--loads", "0,0.5,1", "--values", "30", "--settle-s", "0.1", "--json"];
    let files = ["--config", config.to_str().expect("UTF-8"), "--output", output.to_str().expect("UTF-8")];
    let done = Lab::ballast(&[&["profile"], &grid[..], &files[..]].concat());
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{stderr}");
    lab.wait_restored(&before, "");
    assert_eq!(load(&lab).trim(), OWN_LOAD);
    assert!(!journal(&lab).exists());

    let profile: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON alone");
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    let points = profile["point"].as_array().expect("points");
    assert_eq!(points.len(), 9, "{profile}");

    for (n, point) in points.iter().enumerate() {
        let (share, frequency) = ([0.0, 0.5, 1.0][n % 3], [0.5, 0.75, 1.0][n / 3]);
        assert!((number(&point["utilisation"]) - share).abs() < 0.01, "{point}");
        assert!((number(&point["frequency"]) - frequency).abs() < 1e-9, "{point}");
        let truth = PowerModel::PAPER.power(share, frequency).as_f64();
        let off = (number(&point["watts"]) - truth).abs();
        assert!(off < 6.0 * NOISE * truth / 30.0_f64.sqrt(), "{point}, not {truth}");
    }

    let model = &profile["model"];

    for (key, truth) in [
        ("idle_w", 112.0),
        ("full_w", 310.0),
        ("half_frequency_idle_w", 111.0),
        ("half_frequency_full_w", 169.0),
    ] {
        // Nine means know four figures no worse than the worst of them.
        let off = (number(&model[key]) - truth).abs();
        assert!(off < 6.0 * NOISE * 310.0 / 30.0_f64.sqrt(), "{key}: {model}");
    }

    let text = fs::read_to_string(&output).expect("a profile");
    assert!(text.contains("kind = \"measured\"") && text.contains("of = \"s01\""), "{text}");
    assert!(Watts::from_f64(number(&profile["meter"]["resolution_w"])).is_some(), "{profile}");
}

fn a_profile_that_is_stopped_puts_everything_back() {
    let lab = lab();
    let before = lab.limits();
    let child = begun(&lab);
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("a signal");
    let done = child.wait_with_output().expect("an end");
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("everything is restored"), "{stderr}");
    lab.wait_restored(&before, "");
    assert!(!journal(&lab).exists());
    assert_eq!(load(&lab).trim(), OWN_LOAD);
}

fn one_that_is_killed_is_put_back_by_a_release_and_a_live_agent_is_not_disturbed() {
    let mut lab = lab();
    let before = lab.limits();
    let mut child = begun(&lab);
    child.kill().expect("a signal");
    child.wait().expect("an end");
    assert!(lab.limits() != before && journal(&lab).exists());

    let config = lab.config("s01");
    let config = config.to_str().expect("UTF-8");

    // What was left must not be taken for how the server was.
    let refused = Lab::ballast(&["profile", "--config", config]);
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && stderr.contains("ballast-agent release"), "{stderr}");
    let released = Lab::ballast(&["agent", "release", "--config", config]);
    assert!(released.status.success(), "{}", String::from_utf8_lossy(&released.stderr));
    lab.wait_restored(&before, "");

    lab.start("s01");
    lab.wait("ready", |lab| lab.get("s01", "/readyz").0 == 200);
    let refused = Lab::ballast(&["profile", "--config", config]);
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(i32::from(EXIT_LIVE)), "{stderr}");
    assert!(stderr.contains("an agent runs"), "{stderr}");
    lab.end("s01");
    lab.wait_restored(&before, "");
}
