//! The import direction of ARCHITECTURE.md, read from `cargo tree`.

use std::collections::BTreeSet;
use std::process::Command;

/// Every crate that `package` reaches, itself included.
fn reaches(package: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--package", package, "--edges", "normal", "--prefix", "none"])
        .args(["--format", "{lib} {p}", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo speaks UTF-8");
    let names: BTreeSet<_> =
        text.lines().filter_map(|line| line.split(' ').nth(1)).map(str::to_owned).collect();
    assert!(names.contains(package), "{package} is not in its own tree:\n{text}");
    names
}

/// Ballast's own crates that `package` reaches, without itself.
fn own(package: &str) -> Vec<String> {
    let names = reaches(package).into_iter();
    names.filter(|name| name.starts_with("ballast") && name != package).collect()
}

#[test]
fn every_crate_imports_downwards_only() {
    let (types, agent, chassis) = ("ballast-types", "ballast-agent-core", "ballast-chassis-core");
    let (placement, planner) = ("ballast-placement", "ballast-planner");
    let runtime = "ballast-runtime";
    for (package, allowed) in [
        (types, &[][..]),
        (agent, &[types]),
        (chassis, &[types]),
        ("ballast-forest", &[]),
        ("ballast-predict", &["ballast-forest", types]),
        (placement, &[types]),
        (planner, &[types]),
        ("ballast-hw", &[types]),
        ("ballast-bmc", &[types]),
        ("ballast-sim", &[agent, chassis, placement, planner, types]),
        (
            "ballast-lab",
            &[
                agent,
                chassis,
                placement,
                planner,
                "ballast-forest",
                "ballast-predict",
                "ballast-sim",
                types,
            ],
        ),
        (
            "ballast-testbed",
            &[
                agent,
                chassis,
                placement,
                planner,
                runtime,
                "ballast-bmc",
                "ballast-forest",
                "ballast-hw",
                "ballast-predict",
                "ballast-sim",
                types,
            ],
        ),
        (runtime, &["ballast-bmc", "ballast-hw", types]),
        (
            "ballast-agent",
            &[
                agent,
                runtime,
                "ballast-bmc",
                "ballast-forest",
                "ballast-hw",
                "ballast-predict",
                types,
            ],
        ),
        ("ballast-chassis", &[chassis, runtime, "ballast-bmc", "ballast-hw", types]),
        (
            "ballast-place",
            &[
                placement,
                runtime,
                "ballast-bmc",
                "ballast-forest",
                "ballast-hw",
                "ballast-predict",
                types,
            ],
        ),
    ] {
        for name in own(package) {
            assert!(allowed.contains(&name.as_str()), "{package} must not import {name}");
        }
    }
}

#[test]
fn the_daemons_on_servers_carry_nothing_of_placement() {
    for package in ["ballast-agent", "ballast-chassis"] {
        let reached = reaches(package);
        for name in ["ballast-place", "ballast-placement", "arrow-array", "parquet"] {
            assert!(!reached.contains(name), "{package} must not reach {name}");
        }
    }
}

#[test]
fn pure_crates_reach_no_runtime_no_system_and_no_network() {
    let banned =
        ["tokio", "axum", "hyper", "reqwest", "nix", "libc", "procfs", "tracing", "async-std"];
    for package in [
        "ballast-types",
        "ballast-agent-core",
        "ballast-chassis-core",
        "ballast-forest",
        "ballast-predict",
        "ballast-placement",
        "ballast-planner",
    ] {
        let reached = reaches(package);
        for name in banned {
            assert!(!reached.contains(name), "{package} must not reach {name}");
        }
    }
    // `sim` reads compressed traces through a C library; it must still not reach a runtime.
    let reached = reaches("ballast-sim");
    for name in ["tokio", "axum", "hyper", "reqwest", "nix"] {
        assert!(!reached.contains(name), "ballast-sim must not reach {name}");
    }
}

#[test]
fn pure_crates_ban_clocks_and_files() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let read = |name: &str| std::fs::read_to_string(format!("{root}/{name}/clippy.toml")).unwrap();
    let agent = read("agent");
    for name in ["types", "chassis", "sim", "lab", "forest", "predict", "placement", "planner"] {
        assert_eq!(read(name), agent, "{name}/clippy.toml and agent/clippy.toml differ");
    }
    for path in ["std::time::Instant::now", "std::fs::read", "std::thread::sleep", "HashMap::iter"]
    {
        assert!(agent.contains(path), "agent/clippy.toml does not ban {path}");
    }
}
