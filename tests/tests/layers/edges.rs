//! Which crate imports which: the table of ARCHITECTURE.md, and what must not be reached at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use super::source::{packages, root};

/// Every crate that `package` reaches, itself included.
fn reaches(package: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--package", package, "--edges", "normal", "--prefix", "none"])
        .args(["--format", "{lib} {p}", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo speaks UTF-8");
    let names: BTreeSet<_> =
        text.lines().filter_map(|line| line.split(' ').nth(1)).map(str::to_owned).collect();
    assert!(names.contains(package), "{package} is not in its own tree:\n{text}");
    names
}

/// The crates that ARCHITECTURE.md lets each crate import, by the names that its table of rooms gives them.
fn drawn() -> BTreeMap<String, BTreeSet<String>> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let table = text.lines().skip_while(|line| !line.contains("| imports |")).skip(2);
    let rows = table.take_while(|line| line.starts_with('|')).map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
        let [folder, package, _, imports] = &cells[..] else { panic!("ARCHITECTURE.md: {line}") };
        (folder.trim_matches(['`', '/']).to_owned(), package.trim_matches('`').to_owned(), imports.clone())
    });
    let rows: Vec<_> =
        rows.filter(|(_, package, _)| package.starts_with("ballast") && !package.contains(',')).collect();
    assert!(rows.len() > 15, "ARCHITECTURE.md: the table of rooms was not found");

    // A crate is imported by its folder's name; of a daemon's and its core's folder, the shorter name is the core's.
    let named = |import: &str| {
        let row = rows.iter().find(|(folder, ..)| folder == import);
        let row = row.or_else(|| rows.iter().find(|(folder, ..)| folder.ends_with(&format!("/{import}"))));
        row.unwrap_or_else(|| panic!("ARCHITECTURE.md: no room {import}")).1.clone()
    };
    let product = rows.iter().filter(|(folder, ..)| !folder.starts_with("proof/"));
    let product: BTreeSet<_> = product.map(|(_, package, _)| package.clone()).collect();
    let imports = |package: &str, cell: &str| match cell {
        "–" => BTreeSet::new(),
        "product" => product.iter().filter(|other| *other != package).cloned().collect(),
        list => list.split(", ").map(named).collect(),
    };
    rows.iter().map(|(_, package, cell)| (package.clone(), imports(package, cell))).collect()
}

#[test]
fn every_crate_imports_what_architecture_md_draws() {
    let drawn = drawn();
    for package in packages() {
        let name = package["name"].as_str().expect("a name");
        let Some(allowed) = drawn.get(name) else {
            panic!("ARCHITECTURE.md has no room {name}");
        };

        let dependencies = package["dependencies"].as_array().expect("dependencies").iter();
        let normal = dependencies.filter(|dependency| dependency["kind"].is_null());
        let imported: BTreeSet<_> = normal.filter_map(|dependency| dependency["name"].as_str()).collect();
        let own = imported.into_iter().filter(|name| name.starts_with("ballast")).map(str::to_owned);

        // The program and the tests are drawn above the product; they need not import all of it.
        let own: BTreeSet<_> = own.collect();
        let exact = ["ballast", "ballast-tests"].contains(&name) && own.is_subset(allowed) || own == *allowed;
        assert!(exact, "{name} imports {own:?}; ARCHITECTURE.md draws {allowed:?}");
    }
}

#[test]
fn the_daemons_on_servers_carry_nothing_of_placement_training_tables_or_plots() {
    for package in ["ballast-agent", "ballast-chassis"] {
        let reached = reaches(package);
        let trained = ["ballast-forest", "ballast-predict", "csv", "plotters"];
        for name in
            ["ballast-place", "ballast-placement", "arrow-array", "parquet"].into_iter().chain(trained)
        {
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
        "ballast-usage",
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
    let read = |name: &str| fs::read_to_string(root().join(name).join("clippy.toml")).unwrap();
    let agent = read("agent");
    let cluster =
        ["cluster/forest", "cluster/placement", "cluster/planner", "cluster/predict", "cluster/usage"];
    for name in ["types", "chassis", "sim", "proof/lab"].into_iter().chain(cluster) {
        assert_eq!(read(name), agent, "{name}/clippy.toml and agent/clippy.toml differ");
    }
    for path in ["std::time::Instant::now", "std::fs::read", "std::thread::sleep", "HashMap::iter"] {
        assert!(agent.contains(path), "agent/clippy.toml does not ban {path}");
    }
}
