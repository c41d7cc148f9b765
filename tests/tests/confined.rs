//! What a daemon can do to its machine once it runs, by the kernel's word.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use ballast_testbed::lab::place::PlaceLab;
use ballast_testbed::lab::{Lab, steady};
use serde_json::json;
use tempfile::tempdir;

ballast_testbed::wall_time![
    no_daemon_writes_outside_its_folders_though_its_own_path_leads_there,
    every_thread_of_every_daemon_is_bound_by_seccomp_and_gains_no_right,
];

/// Whether Landlock bounds the daemon that shows these metrics.
#[expect(clippy::print_stderr, reason = "a test that was not run must say so")]
fn is_bound(metrics: &str) -> bool {
    assert!(metrics.contains("_confined{by=\"seccomp\"} 1.0"), "{metrics}");
    let bound = metrics.contains("_confined{by=\"landlock\"} 1.0");
    if !bound {
        eprintln!("NOT RUN: this kernel has no Landlock");
    }
    bound
}

fn no_daemon_writes_outside_its_folders_though_its_own_path_leads_there() {
    let mut lab = Lab::new(steady(1, 600, (0.2, 0.2)), "");
    lab.start_all();
    let vm = json!({"class": "user-facing", "cores": 1}).to_string();
    let budget = json!({"budget_w": 500, "force": true, "for_s": 3600}).to_string();

    for (name, path, body) in [("s01", "/v1/vms/new", &vm), ("chassis", "/v1/budget", &budget)] {
        if !is_bound(&lab.get(name, "/metrics").1) {
            return;
        }
        // What an intruder would do: the daemon's own path leads elsewhere.
        let (outside, state) = (tempdir().expect("a folder"), lab.home(name).join("state"));
        let aside = state.with_extension("aside");
        fs::rename(&state, &aside).expect("a folder");
        symlink(outside.path(), &state).expect("a link");

        let (status, text) = lab.order("PUT", name, path, body);

        assert!(status == 500 && text.contains("Permission denied"), "{name}: {status} {text}");
        let made: Vec<_> = fs::read_dir(outside.path()).expect("a folder").flatten().collect();
        assert!(made.is_empty(), "{name}: {made:?}");

        fs::remove_file(&state).expect("the link");
        fs::rename(&aside, &state).expect("a folder");
        let (status, text) = lab.order("PUT", name, path, body);
        assert!(status < 300, "{name}: {status} {text}");
    }
    lab.end_all();
}

fn every_thread_of_every_daemon_is_bound_by_seccomp_and_gains_no_right() {
    let mut lab = Lab::new(steady(1, 600, (0.2, 0.2)), "");
    lab.start_all();
    let place = PlaceLab::start("");
    is_bound(&place.get("/metrics").1);

    for process in [lab.process("s01"), lab.process("chassis"), place.process()] {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("threads");
        let tasks: Vec<PathBuf> = tasks.flatten().map(|task| task.path()).collect();
        assert!(tasks.len() > 3, "{tasks:?}");
        for task in tasks {
            // One that has ended since has nothing to say.
            let Ok(status) = fs::read_to_string(task.join("status")) else { continue };
            assert!(status.contains("Seccomp:\t2\n") && status.contains("NoNewPrivs:\t1\n"), "{status}");
        }
    }
    lab.end_all();
}
