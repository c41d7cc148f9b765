//! The import direction of ARCHITECTURE.md, read from `cargo tree`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
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
            &[agent, chassis, placement, planner, "ballast-forest", "ballast-predict", "ballast-sim", types],
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
            &[agent, runtime, "ballast-bmc", "ballast-forest", "ballast-hw", "ballast-predict", types],
        ),
        ("ballast-chassis", &[chassis, runtime, "ballast-bmc", "ballast-hw", types]),
        (
            "ballast-place",
            &[placement, runtime, "ballast-bmc", "ballast-forest", "ballast-hw", "ballast-predict", types],
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
    let banned = ["tokio", "axum", "hyper", "reqwest", "nix", "libc", "procfs", "tracing", "async-std"];
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
    for path in ["std::time::Instant::now", "std::fs::read", "std::thread::sleep", "HashMap::iter"] {
        assert!(agent.contains(path), "agent/clippy.toml does not ban {path}");
    }
}

/// Words and phrases that stand nowhere: not in code, documents or messages. Endings count as the word.
const NOWHERE: [&str; 15] = [
    "burial",
    "bury",
    "buried",
    "curfew",
    "stranger",
    "doubled",
    "lent",
    "loosen",
    "tighten",
    "is there twice",
    "is no name of",
    "want of cores",
    "want of memory",
    "for the admission's sake",
    "everything is as it was",
];

/// Folders and files in which words are not looked for: what is built or generated, and this list.
const NOT_READ: [&str; 6] =
    [".git", "target", "docs/book", "docs/experiments.md", "packaging/generated", "tests/tests/layers.rs"];

/// Every text file of the project below `folder`.
fn texts(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.strip_prefix(root).expect("a path below the root");
        if NOT_READ.iter().any(|left_out| name == Path::new(left_out)) {
            continue;
        }

        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or("");
        if path.is_dir() {
            texts(root, &path, found);
        } else if ["rs", "md", "toml", "service", "timer", "sql", "yaml"].contains(&ending) {
            found.push(path);
        }
    }
}

/// Whether `line` has `word` with no letter before it and at most the ending of a form after it.
fn says(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let begins = !line[..at].chars().next_back().is_some_and(char::is_alphanumeric);
        let rest = line[at + word.len()..].split(|c: char| !c.is_alphanumeric()).next();
        begins && matches!(rest, Some("" | "s" | "ed" | "ing"))
    })
}

#[test]
fn the_words_that_nobody_else_uses_stand_nowhere() {
    assert!(says("two burials.", "burial") && says("a_stranger_came", "stranger"));
    assert!(!says("excellent", "lent") && !says("lentil", "lent"));

    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut files = Vec::new();
    texts(root, root, &mut files);
    assert!(files.len() > 500, "only {} files were found", files.len());

    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("text").to_lowercase();
        for (n, line) in text.lines().enumerate() {
            for word in NOWHERE.iter().filter(|word| says(line, word)) {
                found.push(format!("{}:{}: {word}", file.display(), n + 1));
            }
        }
    }

    assert_eq!(found, [""; 0], "house words; say them plainly");
}
