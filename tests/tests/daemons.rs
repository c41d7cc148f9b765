//! The real daemons end to end: processes on loopback, a rig instead of hardware.

use std::time::Duration;

use ballast_runtime::config::EXIT_CONFIG;
use ballast_testbed::lab::{Lab, PATIENCE, steady};
use ballast_types::wire::{AgentState, AlarmId, BudgetAnswer, ChassisState, ErrorBody, Report, Slot};
use nix::sys::signal::Signal;
use serde_json::json;

ballast_testbed::wall_time![
    an_overload_is_held_by_batch_cores_alone_and_an_end_puts_everything_back,
    an_agent_killed_at_the_floor_is_adopted_by_its_next_life,
    a_chassis_manager_that_is_killed_comes_back_with_a_higher_epoch_and_no_agent_breaks_loose,
    a_manager_that_is_fenced_lives_and_is_not_ready,
    when_the_load_is_low_again_every_server_is_lifted,
    a_budget_for_a_time_ends_by_itself_also_after_a_restart,
    the_command_line_shows_sets_and_resets_the_budget,
    a_recording_of_real_daemons_replays_exactly,
    a_stale_alert_is_refused_and_changes_nothing,
    an_agent_that_cannot_start_changes_nothing,
    idle_connections_do_not_stand_between_an_alert_and_its_cores,
    slot_caps_are_adopted_although_the_ledger_is_damaged,
    a_refused_config_ends_with_78_and_names_every_problem,
    the_demo_prints_its_figures_and_leaves_nothing_behind,
    a_demo_that_is_interrupted_ends_cleanly,
    of_a_server_that_runs_dry_nothing_is_written_and_nothing_counted_on,
    a_manager_that_runs_dry_alerts_nobody_and_caps_nothing,
    who_does_not_do_its_work_is_not_ready_and_says_every_reason,
    a_log_in_json_is_an_object_on_every_line,
];

/// Two servers that would draw some 500 W on a budget of 420 W; at the floor they draw some 370 W.
fn overloaded() -> Lab {
    Lab::new(steady(2, 420, (0.3, 0.95)), "")
}

/// Servers with anything capped, by their own word.
fn capped(lab: &Lab) -> usize {
    let names = lab.servers();
    let capped = |name: &&String| lab.agent(name).is_some_and(|status| status.report.min_khz.is_some());
    names.iter().filter(capped).count()
}

/// The sum of the samples that begin so.
fn counted(metrics: &str, name: &str) -> f64 {
    let values =
        metrics.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit(' ').next());
    values.map(|value| value.parse::<f64>().expect("a number")).sum()
}

fn an_overload_is_held_by_batch_cores_alone_and_an_end_puts_everything_back() {
    let mut lab = overloaded();
    let before = lab.limits();
    lab.start_all();
    lab.wait("both servers are capped", |lab| capped(lab) == 2);
    lab.wait("the budget holds", Lab::holds);
    assert!(lab.limits() != before, "nothing was changed");

    let (status, metrics) = lab.get("chassis", "/metrics");
    assert_eq!(status, 200);
    assert!(metrics.contains("ballast_chassis_state{state=\"alerting\"} 1"), "{metrics}");
    let (_, metrics) = lab.get("s01", "/metrics");
    assert!(metrics.contains("ballast_agent_lowest_frequency_hertz "), "{metrics}");
    assert!(counted(&metrics, "ballast_agent_alert_to_lowest_frequency_seconds_count") >= 1.0, "{metrics}");
    assert!(counted(&metrics, "ballast_agent_energy_joules_total") > 0.0, "{metrics}");
    let (watts, vms) = (counted(&metrics, "ballast_agent_power_watts"), "ballast_agent_vm_estimated_watts{");
    let split = counted(&metrics, vms);
    assert!(split == 0.0 || (split / watts - 1.0).abs() < 1e-3, "{split} W of {watts} W: {metrics}");

    let (_, metrics) = lab.get("chassis", "/metrics");
    let polls = counted(&metrics, "ballast_chassis_draw_ratio_count");
    let under = counted(&metrics, "ballast_chassis_draw_ratio_bucket{le=\"0.98\"}");
    assert!(under < polls && counted(&metrics, "ballast_chassis_energy_joules_total") > 0.0, "{metrics}");
    assert!(counted(&metrics, "ballast_chassis_supply_watts{") > 0.0, "{metrics}");
    assert!(counted(&metrics, "ballast_chassis_alert_roundtrip_seconds_count") >= 2.0, "{metrics}");
    assert!(counted(&metrics, "ballast_chassis_events_total{event=\"chassis_state\"}") >= 1.0, "{metrics}");

    lab.end_all();
    lab.wait_restored(&before, "");
    let rig = lab.end_rig();
    let truth = serde_json::to_value(rig.plant().truth()).unwrap();
    let causes = truth["user_facing_throttled_core_s"].as_object().unwrap();
    assert!(causes.len() >= 3 && causes.values().all(|s| s.as_f64() == Some(0.0)), "{truth}");
}

fn an_agent_killed_at_the_floor_is_adopted_by_its_next_life() {
    let mut lab = overloaded();
    let before = lab.limits();
    lab.start_all();
    lab.wait("both servers are capped", |lab| capped(lab) == 2);
    lab.kill("s01");
    let left = lab.limits();
    assert!(left != before, "the kill must leave caps behind for this test to mean anything");
    lab.wait("the chassis sees a silent server", |lab| {
        let chassis = lab.chassis();
        chassis.is_some_and(|chassis| chassis.servers[0].slot == Slot::Silent)
    });

    lab.start("s01");
    lab.wait("the server is managed again", |lab| {
        let chassis = lab.chassis();
        chassis.is_some_and(|chassis| chassis.servers[0].slot == Slot::Managed)
    });

    lab.wait("the budget holds", Lab::holds);

    for name in ["chassis", "s01", "s02"] {
        lab.end(name);
    }

    // A slot cap set while the server was silent may stay on: it is in the ledger. All else is back.
    lab.wait_restored(&before, "power1_cap");
}

fn a_chassis_manager_that_is_killed_comes_back_with_a_higher_epoch_and_no_agent_breaks_loose() {
    let mut lab = overloaded();
    lab.start_all();
    lab.wait("the budget holds", |lab| capped(lab) == 2 && lab.holds());
    let epoch = lab.chassis().unwrap().epoch;
    lab.kill("chassis");

    // Once its lease has ended every agent keeps its fallback by itself.
    for name in lab.servers() {
        let agent = |lab: &Lab| lab.agent(&name).expect("a status");
        lab.wait("the lease has ended", |lab| agent(lab).lease_ms.is_none_or(|ms| ms == 0));
        lab.wait("it is under its cap", |lab| {
            let Report { power_w, cap_w, .. } = agent(lab).report;
            assert!(cap_w.is_some(), "{name} runs uncapped without a manager");
            power_w.is_some() && power_w <= cap_w.map(|cap| cap + cap.ppm(30_000))
        });
    }

    lab.start("chassis");
    lab.wait("a new epoch is obeyed", |lab| {
        lab.agent("s01").is_some_and(|agent| agent.report.epoch_obeyed > epoch)
    });
    lab.wait("the budget holds", Lab::holds);
}

fn a_manager_that_is_fenced_lives_and_is_not_ready() {
    let mut lab = Lab::new(steady(1, 600, (0.2, 0.2)), "");
    lab.start_all();
    lab.wait("the agent obeys", |lab| lab.chassis().is_some_and(|c| c.servers[0].report.is_some()));
    assert!(lab.get("chassis", "/metrics").1.contains("\nballast_chassis_fenced 0"));

    // In its first 10 s a manager takes the next epoch itself: its ledger may be old.
    let began = std::time::Instant::now();
    let settled = || began.elapsed() > Duration::from_secs(11);
    lab.wait("the manager is no newcomer", |lab| lab.chassis().is_some() && settled());
    let epoch = lab.chassis().unwrap().epoch.0 + 1;
    let mut seq = 0;
    lab.wait("it is not ready, and says why", |lab| {
        seq += 1;
        let body = json!({"chassis_id": "lab", "epoch": epoch, "seq": seq, "level": "watch",
            "echo_boot_id": null, "echo_agent_ms": null, "chassis_power_w": 300,
            "chassis_limit_w": 600, "cap_w": null, "fallback_w": 300, "valid_for_ms": 2000,
            "instance": 7});
        let (status, text) = lab.order("POST", "s01", "/v1/alert", &body.to_string());
        assert_eq!(status, 200, "{text}");
        let (status, text) = lab.get("chassis", "/readyz");

        status == 503 && text.contains("another manager rules this chassis")
    });

    assert_eq!(lab.get("chassis", "/healthz").0, 200, "a restart would only take the agents back");
    let chassis = lab.chassis().unwrap();
    assert_eq!(chassis.state, ChassisState::Fenced);
    let rival = format!("epoch {epoch}");
    assert!(chassis.alarms.iter().any(|alarm| alarm.message.contains(&rival)), "{chassis:?}");
    let (_, metrics) = lab.get("chassis", "/metrics");
    assert!(metrics.contains("\nballast_chassis_fenced 1"), "{metrics}");
    let lower = json!({"budget_w": 500, "force": true}).to_string();
    let (status, text) = lab.order("PUT", "chassis", "/v1/budget", &lower);
    assert!(status == 409 && text.contains("another manager rules"), "{text}");
}

fn when_the_load_is_low_again_every_server_is_lifted() {
    // The draw fits; only a lowered budget makes it too much.
    let mut lab = Lab::new(steady(2, 600, (0.3, 0.95)), "[alert]\nlift_hold_ms = 1000\n");
    let before = lab.limits();
    lab.start_all();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(capped(&lab), 0);
    let put = |body: serde_json::Value| lab.order("PUT", "chassis", "/v1/budget", &body.to_string());
    assert_eq!(put(json!({"budget_w": 700})).0, 400, "a budget may only be lowered");
    let (status, text) = put(json!({"budget_w": 230}));
    assert_eq!(status, 409, "more than batch can shed: {text}");
    assert_eq!(lab.chassis().unwrap().budget_w.as_f64(), 600.0);
    let (status, text) = put(json!({"budget_w": 420, "force": true}));
    assert!(matches!(status, 200 | 202), "{text}");
    lab.wait("the lower budget holds", |lab| capped(lab) == 2 && lab.holds());
    let (status, text) = lab.order("DELETE", "chassis", "/v1/budget", "");
    assert_eq!(status, 200, "{text}");
    lab.wait("both are lifted", |lab| {
        let free =
            |name: &String| lab.agent(name).is_some_and(|status| status.report.state == AgentState::Uncapped);
        lab.servers().iter().all(free)
    });

    let normal = |lab: &Lab| lab.chassis().is_some_and(|c| c.state == ChassisState::Normal);
    lab.wait("the episode is over", normal);

    // The VMs keep cores of their own as long as the agents run.
    lab.wait_restored(&before, "cpuset.cpus");
}

fn a_budget_for_a_time_ends_by_itself_also_after_a_restart() {
    let mut lab = Lab::new(steady(1, 600, (0.2, 0.2)), "");
    lab.start("chassis");
    lab.wait("ready", |lab| lab.get("chassis", "/readyz").0 == 200);
    let body = json!({"budget_w": 500, "force": true, "for_s": 4}).to_string();
    let (status, text) = lab.order("PUT", "chassis", "/v1/budget", &body);
    assert_eq!(status, 200, "{text}");
    lab.kill("chassis");
    lab.start("chassis");
    lab.wait("ready again", |lab| lab.get("chassis", "/readyz").0 == 200);
    let shown = |lab: &Lab| -> BudgetAnswer {
        serde_json::from_str(&lab.get("chassis", "/v1/budget").1).expect("an answer")
    };
    let answer = shown(&lab);
    assert_eq!((answer.budget_w.as_f64(), answer.configured_w.as_f64()), (500.0, 600.0));
    assert!(answer.until_unix_s.is_some());
    lab.wait("the configured budget is back", |lab| {
        let answer = shown(lab);
        answer.budget_w == answer.configured_w && answer.until_unix_s.is_none()
    });
}

fn the_command_line_shows_sets_and_resets_the_budget() {
    let mut lab = Lab::new(steady(1, 600, (0.3, 0.3)), "");
    lab.start_all();
    lab.wait("the agent reports", |lab| {
        lab.chassis().is_some_and(|c| c.power_w.is_some() && c.servers[0].report.is_some())
    });
    let url = format!("unix:{}", lab.socket("chassis").display());
    let budget = |args: &[&str]| {
        let output = Lab::ballast(&[&["budget"], args, &[&url]].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };

    let in_force = || lab.chassis().unwrap().budget_w.as_f64();
    assert!(budget(&["show"]).1.starts_with("budget: 600.0 W, as configured\ndraw: "));

    // Asked about, not confirmed, refused: nothing is changed.
    let (code, text, _) = budget(&["set", "120", "--dry-run"]);
    assert!(code == Some(1) && text.contains("hardware caps: yes"), "{text}");
    let (code, _, said) = budget(&["set", "500"]);
    assert!(code == Some(1) && said.contains("no terminal"), "{said}");
    let (code, text, _) = budget(&["set", "120", "--yes"]);
    assert!(code == Some(1) && text.contains("refused unless forced"), "{text}");
    let (code, _, said) = budget(&["set", "700", "--yes"]);
    assert!(code == Some(1) && said.contains("at most 600"), "{said}");
    assert_eq!(in_force(), 600.0);

    let (code, text, said) = budget(&["set", "500", "--for", "1h", "--yes"]);
    assert!(code == Some(0) && text.contains("budget: 500.0 W, until "), "{text}{said}");
    let (_, text, _) = budget(&["show", "--json"]);
    let answer: BudgetAnswer = serde_json::from_str(&text).expect("JSON");
    assert!(answer.until_unix_s.is_some() && answer.budget_w.as_f64() == 500.0, "{text}");
    assert_eq!(in_force(), 500.0);
    let (code, text, said) = budget(&["reset"]);
    assert!(code == Some(0) && text.starts_with("budget: 600.0 W"), "{text}{said}");
    assert_eq!(in_force(), 600.0);
}

fn a_recording_of_real_daemons_replays_exactly() {
    let mut lab = overloaded();
    lab.start_all();
    lab.wait("the budget holds", |lab| capped(lab) == 2 && lab.holds());

    // Long enough for polls, steps and messages of every kind.
    std::thread::sleep(Duration::from_secs(3));

    for name in ["chassis", "s01", "s02"] {
        lab.end(name);
    }
    for name in ["chassis", "s01"] {
        let report = lab.replay(name);
        assert!(report["steps"].as_u64().unwrap() > 20, "{report}");
    }

    // What the manager recorded is telemetry too, with its time.
    let folder = lab.home("chassis").join("recording");
    let plan = ["plan", "--period-s", "1", "--json", "--telemetry", folder.to_str().unwrap()];
    let output = Lab::ballast(&plan);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("do not say when"), "{said}");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(answer["readings"].as_u64().unwrap() > 0, "{answer}");
}

fn a_stale_alert_is_refused_and_changes_nothing() {
    let mut lab = Lab::new(steady(1, 300, (0.2, 0.2)), "");
    lab.start("s01");
    lab.wait("ready", |lab| lab.get("s01", "/readyz").0 == 200);
    let alert = |epoch: u64, seq: u64, chassis: &str| {
        let body = format!(
            r#"{{"chassis_id":"{chassis}","epoch":{epoch},"seq":{seq},"level":"cap","echo_boot_id":null,
            "echo_agent_ms":null,"chassis_power_w":300,"chassis_limit_w":300,"cap_w":120,
            "fallback_w":120,"valid_for_ms":2000}}"#
        );

        lab.order("POST", "s01", "/v1/alert", &body)
    };

    assert_eq!(alert(5, 5, "lab").0, 200);

    for (epoch, seq, chassis, reason) in
        [(5, 5, "lab", "stale"), (5, 4, "lab", "stale"), (4, 9, "lab", "stale"), (6, 1, "other", "foreign")]
    {
        let (status, text) = alert(epoch, seq, chassis);
        assert_eq!(status, 409, "{text}");
        assert!(text.contains(reason), "{text}");
    }

    // The status is a moment younger than the answers.
    lab.wait("all four are counted", |lab| lab.agent("s01").unwrap().refused_alerts == 4);
    lab.end("s01");
}

fn an_agent_that_cannot_start_changes_nothing() {
    let lab = Lab::new(steady(1, 300, (0.2, 0.2)), "");
    let before = lab.limits();
    let address = lab.url("s01", "").replace("http://", "");
    let _taken = std::net::TcpListener::bind(&address).unwrap();
    let output = Lab::ballast(&["agent", "--config", lab.config("s01").to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("cannot listen on http://{address}")), "{text}");
    assert!(!lab.journal("s01").exists(), "{text}");
    assert!(lab.limits() == before, "something was changed");
}

fn idle_connections_do_not_stand_between_an_alert_and_its_cores() {
    let mut lab = Lab::new(steady(1, 300, (0.3, 0.95)), "");
    lab.start_all();
    let report = |lab: &Lab| lab.chassis().and_then(|c| c.servers[0].report.clone());
    lab.wait("the agent reports", |lab| report(lab).is_some());
    let address = lab.url("s01", "").replace("http://", "");
    let idle: Vec<_> = (0..200).map(|_| std::net::TcpStream::connect(&address).unwrap()).collect();
    let lower = json!({"budget_w": 200, "force": true}).to_string();
    let (status, text) = lab.order("PUT", "chassis", "/v1/budget", &lower);
    assert!(matches!(status, 200 | 202), "{text}");
    lab.wait("its cores are capped", |lab| {
        report(lab).is_some_and(|report| report.min_khz.is_some() && report.actuator_failures == 0)
    });
    drop(idle);
}

fn slot_caps_are_adopted_although_the_ledger_is_damaged() {
    let mut lab = overloaded();
    lab.start("chassis");
    let capped = |lab: &Lab| {
        let all = |c: ballast_types::wire::ChassisStatus| {
            c.servers.iter().all(|server| server.hardware_cap_w.is_some())
        };
        lab.chassis().is_some_and(all)
    };
    lab.wait("silent servers are capped out of band", capped);
    lab.kill("chassis");
    let ledger = lab.home("chassis").join("state/ledger.json");
    std::fs::write(&ledger, "{\"epoch\":").unwrap();
    lab.start("chassis");
    lab.wait("the next life knows them", capped);
    assert!(ledger.with_extension("bad").exists());
}

fn a_refused_config_ends_with_78_and_names_every_problem() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chassis.toml");
    std::fs::write(&file, "budget_w = -1\nlisten = \"0.0.0.0:7100\"\nwat = 1\n").unwrap();
    let output = Lab::ballast(&["chassis", "--config", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(i32::from(EXIT_CONFIG)));
    let text = String::from_utf8_lossy(&output.stderr);
    for problem in ["budget_w = -1", "loopback", "wat: no such key", "chassis is missing"] {
        assert!(text.contains(problem), "{problem}: {text}");
    }
}

fn the_demo_prints_its_figures_and_leaves_nothing_behind() {
    let output = Lab::ballast(&["demo", "--servers", "2", "--seconds", "12", "--json"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_str(&text).expect("one JSON object alone");
    assert_eq!(report["restored"], true, "{report}");
    assert_eq!(report["agents_acted"], 2, "{report}");
    assert!(report["alerts"].as_u64().unwrap() >= 1, "{report}");
    assert_eq!(report["user_facing_throttled_core_s"].as_f64(), Some(0.0), "{report}");
}

fn a_demo_that_is_interrupted_ends_cleanly() {
    let child = std::process::Command::new(ballast_testbed::lab::ballast())
        .args(["demo", "--servers", "2", "--seconds", "60", "--json"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
    let mut child = child.unwrap();
    let children = || -> Vec<i32> {
        let output = std::process::Command::new("pgrep")
            .args(["--parent", &child.id().to_string()])
            .output()
            .expect("pgrep runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().filter_map(|pid| pid.parse().ok()).collect()
    };

    // Two agents and their manager.
    let began = std::time::Instant::now();
    let mut started = children();

    while started.len() < 3 {
        assert!(began.elapsed() < PATIENCE, "only {started:?} were started");
        std::thread::sleep(Duration::from_millis(20));
        started = children();
    }

    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    child.wait().unwrap();

    for pid in started {
        let alive = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None);
        assert!(alive.is_err(), "process {pid} was left running");
    }
}

fn of_a_server_that_runs_dry_nothing_is_written_and_nothing_counted_on() {
    // Three servers that would draw some 750 W. The two others can make room; s02 only watches.
    let mut lab = Lab::new(steady(3, 660, (0.3, 0.95)), "");
    lab.configure("s02", "dry_run = true\n");
    let before = lab.limits();
    lab.start_all();
    lab.wait("the two others are capped", |lab| {
        let capped = |name| lab.agent(name).is_some_and(|a| a.report.min_khz.is_some());
        capped("s01") && capped("s03")
    });

    lab.wait("the budget holds", Lab::holds);

    let dry = lab.agent("s02").unwrap();
    assert_eq!(dry.dry_run.as_deref(), Some("dry_run = true"));
    assert!(dry.report.dry_run && dry.report.cap_w.is_some(), "{dry:?}");
    assert_eq!(dry.report.sheddable_w, ballast_types::Watts::ZERO);
    assert!(lab.get("s02", "/metrics").1.contains("ballast_agent_dry_run 1"));
    let (ready, why) = lab.get("s02", "/readyz");
    assert!(ready == 503 && why.contains("dry run: nothing is written on this server"), "{why}");
    assert!(lab.log("s02").contains("dry run: would cap core"), "{}", lab.log("s02"));
    let chassis = lab.chassis().unwrap();
    assert!(chassis.alarms.iter().any(|alarm| alarm.message.starts_with("s02 runs dry")), "{chassis:?}");

    let written: Vec<_> = (lab.limits().into_iter())
        .filter(|(path, text)| before.get(path) != Some(text))
        .map(|(path, _)| path)
        .collect();
    let of = |name: &str| written.iter().filter(|path| path.iter().any(|part| part == name)).count();
    assert_eq!(of("s02"), 0, "{written:?}");
    assert!(of("s01") > 0 && of("s03") > 0, "{written:?}");
    lab.end_all();
    lab.wait_restored(&before, "");
}

fn a_manager_that_runs_dry_alerts_nobody_and_caps_nothing() {
    let mut lab = overloaded();
    lab.configure("chassis", "dry_run = true\n");
    let before = lab.limits();
    lab.start_all();
    lab.wait("an episode begins", |lab| {
        lab.chassis().is_some_and(|chassis| chassis.state == ChassisState::Alerting)
    });

    // Longer than the trip time.
    std::thread::sleep(Duration::from_secs(6));
    let chassis = lab.chassis().unwrap();
    assert!(chassis.dry_run && chassis.power_w > Some(chassis.limit_w), "{chassis:?}");
    assert!(chassis.servers.iter().all(|s| s.report.is_none() && s.hardware_cap_w.is_none()));
    assert!(lab.log("chassis").contains("dry run: the manager would alert"), "{}", lab.log("chassis"));
    assert!(!lab.home("chassis").join("state/ledger.json").exists());
    let (ready, why) = lab.get("chassis", "/readyz");
    assert!(ready == 503 && why.contains("dry run: no server is alerted"), "{why}");

    for name in lab.servers() {
        assert_eq!(lab.agent(&name).unwrap().report.cap_w, None, "{name} was told something");
    }
    lab.end_all();
    lab.wait_restored(&before, "");
}

fn who_does_not_do_its_work_is_not_ready_and_says_every_reason() {
    let mut lab = Lab::new(steady(1, 600, (0.2, 0.2)), "");
    let reasons = |lab: &Lab, name: &str| {
        let (status, text) = lab.get(name, "/readyz");
        let said = serde_json::from_str::<ErrorBody>(&text).map(|body| body.reasons).unwrap_or_default();
        assert!(status == 200 || status == 503 && !said.is_empty(), "{status} {text}");
        said
    };
    lab.start("s01");
    lab.wait("nobody expects a manager yet", |lab| lab.get("s01", "/readyz").0 == 200);
    lab.start("chassis");
    lab.wait("the manager is obeyed", |lab| {
        lab.agent("s01").is_some_and(|it| it.lease_ms.is_some()) && reasons(lab, "s01").is_empty()
    });

    lab.kill("chassis");
    lab.wait("the lease ends", |lab| reasons(lab, "s01").iter().any(|why| why.starts_with("no live lease")));
    lab.kill("s01");
    lab.configure("s01", "dry_run = true\n");
    lab.start("s01");
    lab.wait("both reasons stand, the manager's after a restart", |lab| {
        lab.get("s01", "/readyz").0 == 503 && reasons(lab, "s01").len() == 2
    });

    // An alarm keeps its beginning, and the metric names it.
    let dry = |lab: &Lab| lab.agent("s01").unwrap().alarms.into_iter().find(|it| it.id == AlarmId::DryRun);
    let first = dry(&lab).expect("an alarm");
    assert!(
        first.since_unix_ms > 1_700_000_000_000 && first.link == "operate/runbook.md#dry-run",
        "{first:?}"
    );
    lab.start("chassis");
    lab.wait("the lease is back", |lab| reasons(lab, "s01").len() == 1);
    assert_eq!(dry(&lab), Some(first));
    let (_, metrics) = lab.get("s01", "/metrics");
    let series = "ballast_agent_alarm{id=\"dry_run\",severity=\"info\",subject=\"\"} 1";
    assert!(metrics.contains(series), "{metrics}");
}

fn a_log_in_json_is_an_object_on_every_line() {
    let mut lab = Lab::new(steady(1, 600, (0.2, 0.2)), "");
    lab.start_with("s01", &[("BALLAST_LOG", "json")]);
    lab.wait("ready", |lab| lab.get("s01", "/readyz").0 == 200);
    let log = lab.log("s01");
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}")))
        .collect();
    let is_change = |line: &&serde_json::Value| {
        line["message"].as_str().is_some_and(|said| said.starts_with("state from=boot to=uncapped cause="))
    };
    assert_eq!(lines.iter().find(is_change).map(|line| &line["level"]), Some(&"INFO".into()), "{log}");
}
