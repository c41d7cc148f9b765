//! Life cycle, end to end: what is left when an agent dies, who puts it back, and who is told that it lives.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use ballast_runtime::EXIT_LIVE;
use ballast_testbed::lab::{Lab, ballast, steady};
use ballast_types::wire::AgentState;

ballast_testbed::wall_time![
    a_server_whose_agent_died_is_held_first_and_released_when_none_comes_back,
    a_release_needs_no_config_at_all,
    after_a_clean_end_nothing_is_armed_and_nothing_is_left,
    what_cannot_be_put_back_is_named_and_tried_again,
    out_of_band_caps_are_lifted_on_explicit_order_alone,
    the_watchdog_is_fed_by_finished_turns_alone,
];

type Limits = BTreeMap<PathBuf, String>;

/// A server that would draw some 250 W on a budget of 210 W; at the floor it draws some 185 W.
fn overloaded() -> Lab {
    Lab::new(steady(1, 210, (0.3, 0.95)), "")
}

fn capped(lab: &Lab, name: &str) -> bool {
    lab.agent(name).is_some_and(|status| status.report.min_khz.is_some())
}

/// One whose cores are capped, and what was there before.
fn held() -> (Lab, Limits) {
    let mut lab = overloaded();
    let before = lab.limits();
    lab.start_all();
    lab.wait("its cores are capped", |lab| capped(lab, "s01"));
    (lab, before)
}

/// Kills the agent, and first its manager: no slot cap, which only a manager may lift, shall hide what is left.
fn abandon(lab: &mut Lab) {
    lab.kill("chassis");
    lab.kill("s01");
}

/// systemd's two commands, as far as `stop-post` calls them: a timer is armed by the first call.
struct Systemd {
    dir: tempfile::TempDir,
}

impl Systemd {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let armed = dir.path().join("armed");
        let program = |name: &str, text: String| {
            let file = dir.path().join(name);
            fs::write(&file, text).expect("a script");
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("a script");
        };
        program("systemctl", format!("#!/bin/sh\ntest -e {armed:?}\n"));
        program("systemd-run", format!("#!/bin/sh\necho \"$@\" >>{armed:?}\n"));
        Self { dir }
    }

    fn armed(&self) -> Option<String> {
        fs::read_to_string(self.dir.path().join("armed")).ok()
    }

    /// What systemd does when the agent has ended with `result`.
    fn stop_post(&self, config: &Path, result: &str) -> Output {
        order(
            &["agent", "stop-post", "--config", text(config)],
            &[("SERVICE_RESULT", result), ("PATH", &format!("{}:/bin", self.dir.path().display()))],
        )
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn order(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(ballast());
    command.args(args).env_remove("SERVICE_RESULT").envs(env.iter().copied());
    command.output().expect("ballast runs")
}

fn release(config: &Path) -> Output {
    order(&["agent", "release", "--config", text(config)], &[])
}

/// The exit code, with stderr beside it for a failed assertion.
fn code(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn assert_code(output: &Output, expected: i32, says: &str) {
    let (code, text) = code(output);
    assert_eq!(code, Some(expected), "{text}");
    assert!(text.contains(says), "{says:?} is not in {text}");
}

fn a_server_whose_agent_died_is_held_first_and_released_when_none_comes_back() {
    let (mut lab, before) = held();
    let (config, journal) = (lab.config("s01"), lab.journal("s01"));

    // A live agent is never worked against.
    assert_code(&release(&config), i32::from(EXIT_LIVE), "nothing was done");
    assert!(capped(&lab, "s01") && journal.exists());

    abandon(&mut lab);
    let left = lab.limits();
    assert!(left != before, "the kill must leave caps behind for this test to mean anything");

    // The config is broken as well, so that no agent can start: exit code 78.
    let broken = fs::read_to_string(&config).unwrap() + "\n[throttle]\nstep_cores = 0\n[meter\n";
    fs::write(&config, format!("orphan_hold_s = 7\n{broken}")).unwrap();
    assert_code(&order(&["agent", "--config", text(&config)], &[]), 78, "unclosed table");

    let systemd = Systemd::new();

    // The last is by OnFailure=, in case the others were killed before they had armed anything.
    for result in ["signal", "exit-code", "watchdog", "failed"] {
        assert_code(&systemd.stop_post(&config, result), 0, "what it restricted stays");
        assert!(journal.exists() && lab.limits() == left, "{result}: not held");
    }

    let armed = systemd.armed().unwrap();
    assert_eq!(armed.lines().count(), 1, "a timer that runs was put off: {armed}");
    assert!(armed.contains("--on-active=7s"), "{armed}");
    assert!(armed.contains("--unit=ballast-agent-orphan.service"), "{armed}");

    // What the timer starts.
    assert_code(&release(&config), 0, "everything is restored");
    lab.wait_restored(&before, "");
    assert!(!journal.exists());
    let released = lab.limits();
    assert_code(&release(&config), 0, "nothing was left");
    assert!(lab.limits() == released);
}

fn a_release_needs_no_config_at_all() {
    let (mut lab, before) = held();
    abandon(&mut lab);
    // What is left of the file: where the machine is. That is `/`, but not in a test.
    let root = fs::read_to_string(lab.config("s01")).unwrap();
    let root = root.lines().find(|line| line.starts_with("root = ")).unwrap().to_owned();
    fs::write(lab.config("s01"), root).unwrap();
    let state = lab.home("s01").join("state");
    let config = lab.config("s01");
    let args = ["agent", "release", "--config", text(&config)];
    let journal = lab.journal("s01");
    let run = journal.parent().expect("a folder");
    let args = [&args[..], &["--state-dir", text(&state), "--run-dir", text(run)]].concat();
    assert_code(&order(&args, &[]), 0, "everything is restored");
    lab.wait_restored(&before, "");
}

fn after_a_clean_end_nothing_is_armed_and_nothing_is_left() {
    let (mut lab, before) = held();
    lab.end_all();
    let systemd = Systemd::new();
    assert_code(&systemd.stop_post(&lab.config("s01"), "success"), 0, "nothing was left");
    // Nor after a start that was refused before anything changed.
    assert_code(&systemd.stop_post(&lab.config("s01"), "exit-code"), 0, "");
    assert_eq!(systemd.armed(), None);
    lab.wait_restored(&before, "");
    let no_result = order(&["agent", "stop-post", "--config", "/dev/null"], &[]);
    assert_code(&no_result, 2, "SERVICE_RESULT");
}

fn what_cannot_be_put_back_is_named_and_tried_again() {
    let (mut lab, before) = held();
    abandon(&mut lab);
    lab.end_rig();
    let cpuset = before.keys().find(|path| path.ends_with("cpuset.cpus")).unwrap();
    let kept = cpuset.with_extension("kept");
    fs::rename(cpuset, &kept).unwrap();
    fs::create_dir(cpuset).unwrap();
    let config = lab.config("s01");
    assert_code(&release(&config), 1, "cpuset.cpus");
    assert!(lab.journal("s01").exists(), "there is nothing to try again by");

    let khz = |text: &str| text.trim().parse::<u32>().unwrap();
    let lifted = |(file, was): (&PathBuf, &String)| {
        !file.ends_with("scaling_max_freq") || khz(&fs::read_to_string(file).unwrap()) >= khz(was)
    };
    assert!(before.iter().all(lifted), "one failure stood in the way of others");
    fs::remove_dir(cpuset).unwrap();
    fs::rename(&kept, cpuset).unwrap();

    // The rig, which grants what is written, is at its end.
    fs::write(cpuset.with_extension("cpus.effective"), &before[cpuset]).unwrap();
    assert_code(&release(&config), 0, "everything is restored");
}

fn out_of_band_caps_are_lifted_on_explicit_order_alone() {
    let mut lab = overloaded();
    let before = lab.limits();
    lab.start("chassis");
    lab.wait("the silent server is capped out of band", |lab| {
        lab.chassis().is_some_and(|chassis| chassis.servers[0].hardware_cap_w.is_some())
    });
    let config = lab.config("chassis");
    let args = ["chassis", "release", "--config", text(&config)];
    let lift = [&args[..], &["--lift"]].concat();
    assert_code(&order(&lift, &[]), i32::from(EXIT_LIVE), "nothing was done");
    lab.kill("chassis");
    assert_code(&order(&args, &[]), 1, "s01: capped to");
    assert!(lab.limits() != before, "lifted without an order");

    // The packaged manager runs as a user of its own.
    let state = lab.home("chassis").join("state");

    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&state, Some(4321), Some(4321)).unwrap();
    }
    assert_code(&order(&lift, &[]), 0, "lifted");
    lab.wait_restored(&before, "");
    assert_code(&order(&args, &[]), 0, "no hardware cap");
    let owner = |path: &Path| fs::metadata(path).unwrap().uid();
    assert_eq!(owner(&state.join("ledger.json")), owner(&state), "the manager cannot read it");
}

/// How often the watchdog was fed within `time`.
fn fed(socket: &UnixDatagram, time: Duration) -> usize {
    let until = Instant::now() + time;
    let mut fed = 0;
    while Instant::now() < until {
        let mut text = [0; 256];
        match socket.recv(&mut text) {
            Ok(n) if String::from_utf8_lossy(&text[..n]).contains("WATCHDOG=1") => fed += 1,
            _ => {}
        }
    }
    fed
}

fn the_watchdog_is_fed_by_finished_turns_alone() {
    let mut lab = Lab::new(steady(1, 300, (0.3, 0.95)), "");
    let path = lab.home("s01").with_extension("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let env = [("NOTIFY_SOCKET", text(&path)), ("WATCHDOG_USEC", "1200000")];
    lab.start_with("s01", &env);
    lab.wait("ready", |lab| lab.get("s01", "/readyz").0 == 200);

    // A quarter of systemd's patience, and not with every turn: there are ten a second, and more.
    let often = fed(&socket, Duration::from_secs(3));
    assert!((2..=10).contains(&often), "fed {often} times in 3 s");

    // A meter that stands still: the agent is blind, knows it, and obeys alerts all the same.
    lab.end_rig();
    lab.wait("blind", |lab| lab.agent("s01").is_some_and(|status| status.report.state == AgentState::Blind));
    fed(&socket, Duration::from_millis(200));
    assert!(fed(&socket, Duration::from_secs(3)) >= 2, "a blind agent is killed");

    // A write that does not come back: a pipe without a reader in place of every core's limit.
    for file in lab.limits().keys().filter(|path| path.ends_with("scaling_max_freq")) {
        fs::remove_file(file).unwrap();
        nix::unistd::mkfifo(file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    }

    let alert = r#"{"chassis_id":"lab","epoch":5,"seq":5,"level":"cap","echo_boot_id":null,
        "echo_agent_ms":null,"chassis_power_w":300,"chassis_limit_w":300,"cap_w":120,
        "fallback_w":120,"valid_for_ms":2000}"#;
    let mut stream = UnixStream::connect(lab.socket("s01")).unwrap();
    write!(
        stream,
        "POST /v1/alert HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{alert}",
        alert.len()
    )
    .unwrap();
    fed(&socket, Duration::from_secs(1));
    assert_eq!(fed(&socket, Duration::from_secs(3)), 0, "fed although the control thread hangs");

    // HTTP, on its own thread, still answers: it is not what feeds.
    assert_eq!(lab.get("s01", "/metrics").0, 200);
    lab.kill("s01");
}
