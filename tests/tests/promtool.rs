//! What Prometheus's own checker says of every daemon's metrics.

use std::io::{ErrorKind, Write as _};
use std::process::{Command, Stdio};

use ballast_testbed::lab::place::PlaceLab;
use ballast_testbed::lab::{Lab, steady};

ballast_testbed::wall_time![promtool_finds_nothing_in_what_a_daemon_that_works_shows];

/// What `promtool check metrics` finds; `None` where there is no promtool.
fn findings(metrics: &str) -> Option<String> {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        child => child.expect("promtool runs"),
    };
    child.stdin.take().expect("a pipe").write_all(metrics.as_bytes()).expect("promtool reads");
    let done = child.wait_with_output().expect("promtool ends");
    let said = [done.stdout, done.stderr].concat();
    let said = format!("{}\n{}", done.status, String::from_utf8_lossy(&said));
    Some(if done.status.success() { said.lines().skip(1).collect() } else { said })
}

#[expect(clippy::print_stderr, reason = "a test that was not run must say so")]
fn promtool_finds_nothing_in_what_a_daemon_that_works_shows() {
    let mut lab = Lab::new(steady(1, 300, (0.3, 0.95)), "");
    lab.start_all();
    lab.wait("the agent answers its manager", |lab| lab.get("s01", "/readyz").0 == 200);
    let place = PlaceLab::start("");

    for metrics in [lab.get("chassis", "/metrics"), lab.get("s01", "/metrics"), place.get("/metrics")] {
        match findings(&metrics.1) {
            Some(said) => assert_eq!(said, "", "{}", metrics.1),
            None => eprintln!("NOT RUN: there is no promtool (package prometheus)"),
        }
    }

    // A checker that finds nothing anywhere would be none.
    let bad = findings("# TYPE seconds counter\nseconds 1\n");
    assert!(bad.is_none_or(|said| said.contains("no help text")));
    lab.end_all();
}
