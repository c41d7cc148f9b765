//! What Prometheus's own checker says of every daemon's metrics, of the alert rules and of the dashboard.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ballast_testbed::lab::place::PlaceLab;
use ballast_testbed::lab::{Lab, steady};
use ballast_types::wire::AlarmId;
use serde_json::{Value, json};

ballast_testbed::wall_time![
    promtool_finds_nothing_in_what_a_daemon_that_works_shows,
    alert_rules_fire_when_they_should_and_not_before,
    alert_rules_have_one_alert_for_every_alarm,
    promtool_reads_every_query_of_the_dashboard,
];

/// What promtool says of `input`, and whether it is content; `None` where there is no promtool.
#[expect(clippy::print_stderr, reason = "a test that was not run must say so")]
fn promtool(arguments: &[&str], input: &str) -> Option<(bool, String)> {
    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("NOT RUN: there is no promtool (package prometheus)");
            return None;
        }
        child => child.expect("promtool runs"),
    };
    // promtool may end before it has read everything.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    let done = child.wait_with_output().expect("promtool ends");
    let said = [done.stdout, done.stderr].concat();
    Some((done.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(file)
}

/// Runs the tests of a file of `promtool test rules`.
fn test_rules(file: &Path) {
    if let Some((passed, said)) = promtool(&["test", "rules", file.to_str().unwrap()], "") {
        assert!(passed, "{said}");
    }
}

fn alert_rules_fire_when_they_should_and_not_before() {
    test_rules(&packaging("prometheus/ballast.rules.test.yml"));

    let config = packaging("prometheus/prometheus.yml");
    if let Some((passed, said)) = promtool(&["check", "config", config.to_str().unwrap()], "") {
        assert!(passed, "{said}");
    }
}

/// An operator is told of every alarm, and is not told twice.
fn alert_rules_have_one_alert_for_every_alarm() {
    let mut tests = vec![];
    for id in AlarmId::ALL {
        // The rules make the section's address of the id.
        assert_eq!(id.link(), format!("operate/runbook.md#{}", id.name().replace('_', "-")));

        for daemon in ["agent", "chassis", "place"] {
            let (name, severity) = (id.name(), id.severity());
            let series =
                format!(r#"ballast_{daemon}_alarm{{id="{name}",severity="{severity}",instance="one"}}"#);
            tests.push(json!({
                "name": series,
                "interval": "1m",
                "input_series": [{ "series": series, "values": "1x90" }],
                "promql_expr_test": [{
                    "expr": r#"count(ALERTS{alertstate="firing"})"#,
                    "eval_time": "80m",
                    "exp_samples": [{ "labels": "{}", "value": 1 }],
                }],
            }));
        }
    }
    // JSON is YAML.
    let all = json!({
        "rule_files": [packaging("prometheus/ballast.rules.yml")],
        "evaluation_interval": "1m",
        "tests": tests,
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("alarms.yml");
    fs::write(&file, all.to_string()).unwrap();
    test_rules(&file);
}

fn queries(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|field| queries(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| queries(item, found)),
        _ => {}
    }
}

fn promtool_reads_every_query_of_the_dashboard() {
    let text = fs::read_to_string(packaging("grafana/ballast-chassis.json")).unwrap();
    let mut found = vec![];
    queries(&serde_json::from_str(&text).unwrap(), &mut found);
    assert!(found.len() > 20, "{} queries", found.len());

    let rules = found.iter().enumerate().map(|(at, query)| {
        json!({ "record": format!("query:{at}"), "expr": query.replace("$__rate_interval", "5m") })
    });
    let all = json!({ "groups": [{ "name": "dashboard", "rules": rules.collect::<Vec<_>>() }] });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("queries.yml");
    fs::write(&file, all.to_string()).unwrap();
    if let Some((passed, said)) = promtool(&["check", "rules", file.to_str().unwrap()], "") {
        assert!(passed, "{said}");
    }
}

fn promtool_finds_nothing_in_what_a_daemon_that_works_shows() {
    let mut lab = Lab::new(steady(1, 300, (0.3, 0.95)), "");
    lab.start_all();
    lab.wait("the agent answers its manager", |lab| lab.get("s01", "/readyz").0 == 200);
    let place = PlaceLab::start("");

    for metrics in [lab.get("chassis", "/metrics"), lab.get("s01", "/metrics"), place.get("/metrics")] {
        if let Some(found) = promtool(&["check", "metrics"], &metrics.1) {
            assert_eq!(found, (true, String::new()), "{}", metrics.1);
        }
    }

    // A checker that finds nothing anywhere would be none.
    let bad = promtool(&["check", "metrics"], "# TYPE seconds counter\nseconds 1\n");
    assert!(bad.is_none_or(|(_, said)| said.contains("no help text")));
    lab.end_all();
}
