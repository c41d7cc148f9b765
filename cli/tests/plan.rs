//! `ballast plan` from outside: the paper's figures, the keys of the answer, refusals.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn ballast(folder: &Path, args: &str) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ballast"));
    program.current_dir(folder).args(args.split_whitespace());
    program.output().expect("the program can be run")
}

fn json(folder: &Path, args: &str) -> Value {
    let output = ballast(folder, args);
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("stdout is JSON alone")
}

/// Upper quantiles as the paper's results imply them, in shares of 3720 W.
const COUNTS: &str =
    "generation,watts,count\n,2046,98899\n,2972.65,1000\n,3172.04,100\n,3236.4,1\n";

#[test]
fn counted_draws_give_the_papers_budgets() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("counts.csv"), COUNTS).unwrap();
    let plan = "plan --histogram counts.csv --resolution-w 0.1 --json --policy";
    for (policy, delta) in [("full-server", 6.2), ("no-impact", 11.0), ("minimal-impact", 12.1)] {
        let answer = json(folder.path(), &format!("{plan} {policy}"));
        let found = answer["delta_percent"].as_f64().unwrap();
        assert!((found - delta).abs() < 0.05, "{policy}: {answer}");
        assert_eq!(answer["readings"], 100_000);
        assert_eq!(answer["longest_event_s"], Value::Null, "a histogram cannot know");
    }
    let given = "--emax-uf 0.001 --emax-nuf 0.009 --fmin-uf 0.75 --fmin-nuf 0.5";
    let given = json(folder.path(), &format!("{plan} no-impact {given}"));
    let named = json(folder.path(), &format!("{plan} minimal-impact"));
    assert_eq!(given["budget_w"], named["budget_w"]);
}

#[test]
fn telemetry_is_counted_once_a_unit_and_what_is_wrong_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = "when,name,w\n".to_owned();
    for minute in 0..1000 {
        let w = if (500..503).contains(&minute) { 3000 } else { 2000 };
        writeln!(text, "{},c1,{w}\n{},c2,2000.4", minute * 60, minute * 60).unwrap();
    }
    text.push_str("30,c1,2500\n60000,c1,\n60060,c1,0\n60120,c1,65535\n");
    fs::write(folder.path().join("draws.csv"), &text).unwrap();
    let names = "--time-column when --chassis-column name --watts-column w";
    let given = "--buffer 0 --policy minimal-impact --plot plan.svg";
    let answer = json(folder.path(), &format!("plan --telemetry draws.csv {names} {given} --json"));
    assert_eq!((&answer["readings"], &answer["rejected_readings"]), (&2000.into(), &4.into()));
    // Three readings of 2000 are 0.15 %: more than user-facing VMs may be hit by, so 3000 W less 226 W.
    assert_eq!(
        (&answer["p_min_w"], &answer["binding"]),
        (&2774.0.into(), &"user-facing-rate".into())
    );
    assert_eq!(
        (&answer["longest_event_s"], &answer["events"]["deepest_w"]),
        (&180.into(), &226.0.into())
    );
    for key in ["budget_w", "delta_percent", "extra_servers_percent", "events_per_week"] {
        assert!(answer[key].is_number(), "{key}: {answer}");
    }
    assert!(fs::read_to_string(folder.path().join("plan.svg")).unwrap().contains("provisioned"));

    text.push_str("soon,c1,1\n");
    fs::write(folder.path().join("bad.csv"), &text).unwrap();
    for (args, said) in [
        (format!("plan --telemetry bad.csv {names}"), "line 2006: when = \"soon\": a whole number"),
        (
            "plan --telemetry draws.csv".to_owned(),
            "no column is called \"t_s\"; there are when, name, w",
        ),
        ("plan --telemetry none.csv".to_owned(), "cannot take none.csv"),
        (format!("plan --telemetry draws.csv {names} --most-w 1"), "no reading counts as a draw"),
        (
            format!("plan --telemetry draws.csv {names} --policy brave"),
            "one of traditional, full-server",
        ),
    ] {
        let output = ballast(folder.path(), &args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(said), "{args}: {stderr}");
    }
}
