//! `ballast-lab experiment` from outside: fields, threads, documents, refusals. Runs are as short as can be.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use ballast_testbed::program::{Program, answer};
use serde_json::Value;

const LAB: Program = Program(env!("CARGO_BIN_EXE_ballast-lab"));

fn ballast(args: &str) -> Output {
    LAB.run(Path::new("."), args)
}

fn json(args: &str) -> Value {
    LAB.json(Path::new("."), args)
}

/// Every row has a finite number in each of these fields.
fn check(report: &Value, fields: &[&str]) {
    let rows = report["rows"].as_array().expect("rows");
    assert!(!rows.is_empty(), "{report}");
    for row in rows {
        for field in fields {
            assert!(row[field].is_f64() || row[field].is_u64(), "{field}: {row}");
        }
    }
}

#[test]
fn a_server_has_all_its_fields_for_every_policy() {
    let report = json("experiment server --seeds 1 --minutes 0.2 --caps-w 230 --json");
    check(
        &report,
        &[
            "cap_w",
            "user_facing_p95_norm",
            "batch_runtime_norm",
            "max_power_w",
            "mean_power_w",
            "over_cap_s_max",
            "over_cap_fraction",
            "user_facing_throttled_core_s",
            "excess",
            "seeds",
        ],
    );

    let rows = report["rows"].as_array().unwrap();
    let policies: Vec<_> = rows.iter().map(|row| row["policy"].as_str().unwrap()).collect();
    let all = ["none", "full-server", "stepwise", "manager", "thunderbolt", "oracle"];
    assert_eq!(policies, all);
    assert_eq!(report["options"]["caps_w"], serde_json::json!([230.0]));
    assert!(report["goals"].as_array().is_some_and(|goals| !goals.is_empty()));
}

#[test]
fn a_chassis_has_all_its_fields() {
    let report = json(
        "experiment chassis --seeds 1 --minutes 0.1 --placements imbalanced --policies stepwise \
         --shares even --json",
    );
    check(&report, &["user_facing_p95_norm", "batch_runtime_norm", "max_power_w", "over_budget_s_max"]);
    let row = report["rows"].as_array().unwrap().iter().find(|row| row["policy"] == "stepwise");
    let row = row.expect("a row of stepwise");
    assert_eq!((row["placement"].as_str(), row["shares"].as_str()), (Some("imbalanced"), Some("even")));
}

#[test]
fn a_figure_that_is_missed_is_exit_code_3() {
    // No plan of tenths of a second is as fast as that of fifty milliseconds.
    let run = |args: &str| ballast(&format!("experiment {args}"));
    let missed = run("server --seeds 1 --minutes 0.05 --caps-w 230 --policies stepwise --json");
    let report: Value = serde_json::from_slice(&missed.stdout).expect("JSON");
    let verdicts: Vec<_> = report["goals"].as_array().unwrap().iter().map(|goal| &goal["met"]).collect();
    assert!(verdicts.iter().any(|met| **met == false), "{report}");
    assert_eq!(missed.status.code(), Some(3));
    assert_eq!(run("faults --list").status.code(), Some(0));
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let run = |threads| {
        ballast(&format!(
            "experiment server --seed 5 --seeds 2 --minutes 0.05 --caps-w 230 --policies stepwise \
             --json --threads {threads}"
        ))
    };
    let one = run(1);
    assert!(matches!(one.status.code(), Some(0 | 3)) && !one.stdout.is_empty());
    assert_eq!(one.stdout, run(3).stdout);
}

#[test]
fn a_page_written_twice_is_the_same_and_leaves_others_alone() {
    let folder = tempfile::tempdir().unwrap();
    let docs = folder.path().display();
    let command = format!(
        "experiment chassis --seeds 1 --minutes 0.05 --placements balanced --policies stepwise --shares even \
         --output {docs}"
    );

    assert!(matches!(ballast(&command).status.code(), Some(0 | 3)));
    let file = folder.path().join("chassis.md");
    let plot = folder.path().join("chassis-figure6.svg");
    let (text, svg) = (fs::read_to_string(&file).unwrap(), fs::read_to_string(&plot).unwrap());
    assert!(text.contains("ballast-lab experiment chassis --seed 1") && !text.contains("/tmp"), "{text}");

    let other = folder.path().join("server.md");
    fs::write(&other, "another page").unwrap();
    assert!(matches!(ballast(&command).status.code(), Some(0 | 3)));
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert_eq!(fs::read_to_string(&other).unwrap(), "another page");
    assert_eq!(fs::read_to_string(&plot).unwrap(), svg);
}

#[test]
fn what_cannot_be_written_is_said_before_the_runs() {
    // With the default lengths: runs would take hours in this build.
    for args in ["server --plot /dev/null/f.svg", "chassis --output /dev/null/docs"] {
        let output = ballast(&format!("experiment {args}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        let said = args.split_once(' ').unwrap().1;
        assert_eq!(output.status.code(), Some(1), "{args}: {stderr}");
        assert!(stderr.contains(said) && output.stdout.is_empty(), "{args}: {stderr}");
    }
}

/// Data in the shapes of the public sets: 24 VMs over two months of two weeks, and three distribution units. Two
/// hours a week are busy, just above 1 %.
fn made_data(folder: &Path) -> std::io::Result<()> {
    let busy = |n: u64| if n % 2016 >= 1995 { 90 } else { 10 + 5 * u64::from(n % 288 > 144) };
    fs::create_dir_all(folder.join("bitbrains_rnd"))?;
    fs::create_dir_all(folder.join("google_power2019"))?;
    let vms = 1..=24;

    for (month, start) in [("7", 1_372_629_600), ("8", 1_375_308_000)] {
        let names: Vec<String> = vms.clone().map(|vm: u64| vm.to_string()).collect();
        let mut text = format!("t,{}\n", names.join(","));
        for n in 0..4032 {
            // Some follow the day; a gap stays a gap.
            let value = |vm: u64| match (vm, n) {
                (7, 100..400) => String::new(),
                (..=12, _) => busy(n).to_string(),
                _ => (10 + (n * vm) % 7 + u64::from(n % 2016 >= 1995) * 60).to_string(),
            };

            let values: Vec<String> = vms.clone().map(value).collect();
            text += &format!("{},{}\n", start + 300 * n, values.join(","));
        }

        fs::write(folder.join(format!("bitbrains_rnd/cpu_pct_2013-{month}.csv.zst")), text)?;
    }

    let sizes = vms.map(|vm| format!("2013-7,{vm},{},4096\n", 8 * u64::from(vm != 3)));
    let sizes: String = ["month,vm,cores,mem_mb\n".to_owned()].into_iter().chain(sizes).collect();
    fs::write(folder.join("bitbrains_rnd/vm_meta.csv"), sizes)?;

    for unit in 6..9 {
        let mut text = "index,time,pdu,measured_power_util\n".to_owned();
        for n in 0..4 * 2016_u64 {
            let share = 0.6 + 0.001 * ((n * unit) % 100) as f64;
            text += &format!("{n},{},pdu{unit},{share}\n", (n + 2) * 300_000_000);
        }

        fs::write(folder.join(format!("google_power2019/cella_pdu{unit}.csv.zst")), text)?;
    }

    Ok(())
}

#[test]
fn oversubscription_plans_measured_draws_and_hands_them_to_plan() {
    let folder = tempfile::tempdir().unwrap();
    made_data(folder.path()).unwrap();
    let args = "experiment oversubscription --chassis 2 --replicates 3 --replay-chassis 0 --json --export";
    let mut program = Command::new(env!("CARGO_BIN_EXE_ballast-lab"));
    let export = folder.path().join("export");
    program.args(args.split_whitespace()).arg(&export).env("BALLAST_DATA", folder.path());
    let report = answer(&program.output().expect("the program can be run"));
    let fields = ["delta_percent", "savings_usd", "budget_w"];
    check(&report, &fields);
    check(&report, &["events_user_facing_rate", "events_batch_rate", "buffer_percent"]);
    let rows = report["rows"].as_array().unwrap();
    let of = |source: &str| {
        let rows = rows.iter().filter(|row| row["source"] == source);
        rows.collect::<Vec<_>>()
    };

    let traces = of("utilisation-traces");
    assert_eq!((traces.len(), of("distribution-units").len()), (16, 8));

    // Two weeks: the first is planned from, and each day of the second tried.
    let no_impact = traces[2];
    assert_eq!((&no_impact["approach"], &no_impact["held_out"]), (&"no-impact".into(), &true.into()));
    assert_eq!(no_impact["back_test"]["trials"].as_array().unwrap().len(), 7, "{no_impact}");
    let proposed = no_impact["back_test"]["buffer_ppm"].as_f64().unwrap();
    assert_eq!(no_impact["buffer_percent"].as_f64().unwrap(), proposed / 1e4);

    assert!(no_impact["delta_percent_interval"][0].is_f64(), "{no_impact}");
    let fleets = report["options"]["fleets"].as_array().unwrap();

    // One VM has no cores.
    assert_eq!((&fleets[0]["vms"]["taken"], &fleets[0]["vms"]["left_out"]), (&23.into(), &1.into()));

    assert!((fleets[1]["mean_share"].as_f64().unwrap() - 0.55).abs() < 0.001, "{}", fleets[1]);
    assert_eq!(report["options"]["missing"], serde_json::json!(["azure2017_util"]));

    // The same chassis as files: the planner finds the same peaks in them.
    let plan = LAB.run(
        &export,
        "plan --telemetry bitbrains-mean-0.55-draws.csv.zst --loads bitbrains-mean-0.55-loads.csv.zst \
         --period-s 300 --resolution-w 0.1 --buffer 0 --json",
    );
    let plan = answer(&plan);
    assert_eq!(plan["readings"].as_u64(), Some(2 * 2 * 4032), "{plan}");
    assert!(plan["basis"]["load"].as_str().unwrap().starts_with("at their own peaks"), "{plan}");
}

#[test]
fn wrong_values_are_refused_with_what_is_allowed() {
    for (args, code, said) in [
        ("server --caps-w 230,x", 2, "above 0"),
        ("server --policies stepwise,fast", 2, "possible values: none, full-server, stepwise"),
        ("server --batch-share 1.5", 2, "from 0 to 1"),
        ("server --seeds 0", 2, "1..=1000"),
        ("server --minutes 0", 2, "at most 1440"),
        ("server --arrivals sometimes", 2, "steady, diurnal, bursty"),
        ("chassis --placements both", 2, "balanced, imbalanced"),
        ("chassis --shares odd", 2, "even, critical-first"),
        ("chassis --budget-w 0", 2, "above 0"),
        ("server --caps-w -5", 2, "above 0"),
        ("server --seeds -1", 2, "1..=1000"),
        ("loop --refresh-s -0.1", 2, "from 0.01 to 60"),
        ("oversubscription --chassis 0", 2, "1..=1000"),
        ("oversubscription --full-w 100", 1, "full load must draw more than idle"),
        ("server --caps-w 50", 1, "caps_w = 50: 111 to 310 W"),
        ("server --full-w 100", 1, "allowed is idle < half frequency full < full"),
    ] {
        let output = ballast(&format!("experiment {args}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args}: {stderr}");
        assert!(stderr.contains(said), "{args}: {stderr}");
    }
}

/// Eight VMs' CPU use for four minutes; half of them rise in the second.
fn measured(file: &Path) {
    let mut text = String::from("t_s,a,b,c,d,e,f,g,h\n");
    for t in (0..=240).step_by(60) {
        let high = if (60..=120).contains(&t) { 95 } else { 25 };
        text += &format!("{t},{high},20,{high},30,{high},40,{high},50\n");
    }
    fs::write(file, text).expect("the folder is writable");
}

#[test]
fn measured_load_has_a_row_for_every_budget_and_policy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("made.csv");
    measured(&file);
    let run = |more: &str| {
        let args = format!("experiment traces --telemetry {} --servers 2 {more}", file.display());
        json(&format!("{args} --hours 0.05 --json"))
    };

    let report = run("");
    check(
        &report,
        &[
            "budget_percent",
            "user_facing_throttled_core_s",
            "batch_work_ratio",
            "over_budget_share",
            "trip_fraction_max",
            "hardware_s",
            "pstate_changes_per_core_min",
            "budget_w",
            "peak_w",
        ],
    );

    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6 * 6);
    let shares: Vec<_> = rows[..6].iter().map(|row| (&row["policy"], &row["shares"])).collect();
    let expected = serde_json::json!([
        ["none", null],
        ["full-server", "even"],
        ["paper", "even"],
        ["stepwise", "critical-first"],
        ["oracle", null],
        ["oracle-at-set-point", null]
    ]);

    assert_eq!(serde_json::json!(shares), expected);
    assert!(rows.iter().all(|row| row["data"] == "made" && row["seed"] == 1));

    // At 102 and 100 % the load fits: there is nothing to use.
    assert!(rows[..12].iter().all(|row| row["budget_used_ratio"].is_null()));
    assert!(rows[12..].iter().all(|row| row["budget_used_ratio"].is_f64()), "{report}");
    assert_eq!(report["goals"].as_array().map(Vec::len), Some(3));

    let some = "--budgets 90 --policies none,stepwise,oracle --seeds 2 --unequal";
    let one = run(&format!("{some} --threads 1"));
    assert_eq!(one, run(&format!("{some} --threads 3")));
    let rows = one["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 3);
    assert_ne!(rows[0]["peak_w"], rows[3]["peak_w"], "every seed deals anew");
}

#[test]
fn measured_load_that_cannot_be_read_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (packed, twin) = (folder.path().join("vms.tar.gz"), folder.path().join("vms.csv"));
    fs::write(&packed, [0x1F, 0x8B, 8, 0]).unwrap();
    measured(&twin);
    let twins = format!("{0} {0}", twin.display());

    for (files, says) in [
        (packed.display().to_string(), "this is gzip"),
        (format!("{}/missing.csv", folder.path().display()), "missing.csv"),
        (twins, "another file is called vms too"),
        (format!("{} --skip-hours 9", twin.display()), "skip (hours) = 9"),
        (format!("{} --budgets 5", twin.display()), "a number from 10 to 1000"),
        (format!("{} --policies thunderbolt", twin.display()), "possible values: none, full-server"),
    ] {
        LAB.refused(Path::new("."), &format!("experiment traces --telemetry {files}"), says);
    }
}

#[test]
fn the_chain_ends_with_what_its_figures_say() {
    let output = ballast(
        "experiment chain --vms 5000 --learn-days 21 --settle-days 7 --plan-days 4 --held-out-days 2 \
         --seeds 1 --json",
    );
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let stages: Vec<&Value> =
        report["rows"].as_array().expect("rows").iter().map(|row| &row["stage"]).collect();
    assert_eq!(stages, ["baseline", "chain", "labels", "model", "placement", "plan", "all"]);
    check(&report, &["watts", "budget_w", "planned_w", "user_facing_recall", "batch_recall"]);

    // What is told of true classes is true; the baseline tells nothing.
    let row = |n: usize| &report["rows"][n];
    assert_eq!((&row(3)["user_facing_recall"], &row(3)["batch_precision"]), (&1.0.into(), &1.0.into()));
    assert_eq!((&row(0)["watts"], &row(0)["batch_recall"]), (&0.0.into(), &0.0.into()));

    let missed = report["goals"].as_array().expect("goals").iter().any(|goal| goal["met"] == false);
    assert_eq!(output.status.code(), Some(if missed { 3 } else { 0 }), "{report}");
}

#[test]
fn lifetimes_have_a_row_for_every_policy_and_every_kind_of_foresight() {
    let args = "experiment lifetimes --quick --pools 2 --days 4 --sets noise,shuffled,drains";
    let report = json(&format!("{args} --json --threads 2"));
    check(&report, &["empty_pp", "interval_pp", "gap_percent", "wins", "half_host_unusable_pp"]);
    for row in report["rows"].as_array().unwrap() {
        for field in ["pool", "scenario", "prediction", "policy"] {
            assert!(row[field].is_string(), "{field}: {row}");
        }
    }
    // Best and first fit, five by an oracle, a model and a useless one, four by three accuracies.
    assert_eq!(report["rows"].as_array().unwrap().len(), 2 + 3 * 5 + 3 * 4);
    assert!(report["options"]["models"][0]["scores"]["c_index"].is_f64(), "{}", report["options"]);
    let goals = report["goals"].as_array().unwrap();
    let goal = |name: &str| goals.iter().find(|goal| goal["goal"].as_str().unwrap().starts_with(name));
    assert!(goal("L6").unwrap()["met"].is_boolean() && goal("L12").unwrap()["met"].is_boolean());
    assert!(goal("L5").unwrap()["met"].is_null());
    assert_eq!(report, json(&format!("{args} --json --threads 1")));
    LAB.refused(Path::new("."), "experiment lifetimes --days 2", "3..=365");
}

#[test]
fn faults_answer_as_the_other_experiments_do() {
    let report = json("experiment faults --seed 1 --seeds 2 --json");
    assert_eq!((&report["experiment"], &report["runs"]), (&"faults".into(), &2.into()));
    assert!(report["rows"].is_array() && report["goals"][0]["met"].is_boolean(), "{report}");
    let list = json("experiment faults --list --json");
    assert!(list["rows"][0].is_string() && list["goals"].is_array(), "{list}");
}

/// Before anything is run.
#[test]
fn parts_of_an_experiment_that_cannot_be_one_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("part.json");
    let command = "ballast-lab experiment admission --quick --seed 1";
    let part = |command: &str, of: u64| {
        let part = serde_json::json!({"index": 0, "of": of});
        serde_json::json!({"command": command, "part": part, "thresholds": [], "measured": []}).to_string()
    };
    for (text, says) in [
        ("{}".to_owned(), "missing field `command`"),
        (part("another", 1), "a part of `another`, not of"),
        (part(command, 1_000_000_000_000_000_000), "1/1 once, not 1/1000000000000000000"),
        (part(command, 1), "its thresholds are not"),
    ] {
        std::fs::write(&file, text).unwrap();
        let output = ballast(&format!("experiment admission --quick --merge {}", file.display()));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(says), "{says}: {error}");
    }
}

#[test]
fn colocation_says_which_sets_it_has_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_ballast-lab"));
    program.args("experiment colocation --instances 1 --tasks 100 --samples 1000 --json".split(' '));
    let report = answer(&program.env("BALLAST_DATA", folder.path()).output().unwrap());
    let skipped = &report["options"]["skipped"];
    assert_eq!(skipped.as_array().map(Vec::len), Some(6), "{skipped}");
    let goals = report["goals"].as_array().unwrap();
    assert!(
        goals.iter().any(|goal| goal["goal"].as_str().unwrap().starts_with("G5") && goal["met"].is_null())
    );
    assert!(report["rows"]["population"]["cases"].as_array().is_some_and(|cases| cases.len() > 50));
    LAB.refused(Path::new("."), "experiment colocation --sets mars", "possible values: bitbrains-share");
}

#[test]
fn limits_says_which_sets_it_has_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_ballast-lab"));
    program.args("experiment limits --sets bitbrains,google-memory,azure-services --json".split(' '));
    let report = answer(&program.env("BALLAST_DATA", folder.path()).output().unwrap());
    assert_eq!(report["options"]["skipped"].as_array().map(Vec::len), Some(3), "{report}");
    assert!(report["goals"].as_array().unwrap().iter().all(|goal| goal["met"].is_null()), "{report}");
    LAB.refused(Path::new("."), "experiment limits --sets mars", "possible values: bitbrains");
}

#[test]
fn what_is_killed_at_a_random_instant_and_started_again_leaves_nothing_behind() {
    let output = ballast("bench kills --runs 4 --servers 1 --json");
    let text = String::from_utf8_lossy(&output.stdout);
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert!(output.status.success(), "{report}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((&report["restored"], &report["lost_originals"]), (&4.into(), &0.into()), "{report}");
}

#[test]
fn a_loop_has_all_its_fields_for_every_policy() {
    let report = json("experiment loop --loads lasting --floors 90 --servers 2 --seconds 31 --json");
    check(
        &report,
        &[
            "floor_percent",
            "servers",
            "mean_draw",
            "above_fraction",
            "trip_fraction_max",
            "user_facing_slowed_core_s",
            "user_facing_slowed_fraction",
            "server_limit_s",
            "hardware_cap_s",
        ],
    );
    let rows = report["rows"].as_array().unwrap();
    let policies: Vec<_> = rows.iter().map(|row| row["policy"].as_str().unwrap()).collect();
    let all = ["oracle", "late-oracle", "pi", "pi-lower", "bands", "ballast", "paper"];
    assert_eq!(policies, all);
}
