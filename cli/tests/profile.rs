//! `ballast profile` and `ballast plan --profile` from outside.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{json, refused};

/// Twice the paper's server, at three loads and three frequencies.
fn points() -> String {
    let mut text = "watts,frequency,utilisation,note\n".to_owned();
    for f in [0.5_f64, 0.75, 1.0] {
        for u in [0.0, 0.5, 1.0] {
            let watts = 220.0 + 4.0 * f + 396.0 * u * f.powf((198.0_f64 / 58.0).log2());
            writeln!(text, "{watts},{f},{u},x").expect("memory");
        }
    }
    text
}

const HISTORY: &str = "generation,watts,count\na,4500,99\na,6000,1\nb,2000,99\nb,2800,1\n";

#[test]
fn points_are_fitted_and_the_plan_sheds_by_the_curves_of_each_generation() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("points.csv"), points()).unwrap();
    let profile = json(folder, "profile --input points.csv --output a.toml --json");
    assert_eq!(profile["kind"], "points");
    let figure = |key: &str| profile["model"][key].as_f64().unwrap();

    for (key, watts) in [("idle_w", 224.0), ("full_w", 620.0), ("half_frequency_full_w", 338.0)] {
        assert!((figure(key) - watts).abs() < 1e-3, "{profile}");
    }
    assert!(profile["fit"]["residuals"]["max_w"].as_f64().unwrap() < 1e-6, "{profile}");
    assert!(profile["fit"]["linear"]["residuals"]["max_w"].as_f64().unwrap() > 1.0, "{profile}");

    fs::write(folder.join("history.csv"), HISTORY).unwrap();
    let plan = "plan --histogram history.csv --provisioned-w 7440 --json";
    let shed = |more: &str| {
        let plan = json(folder, &format!("{plan} {more}"));
        let all = plan["generations"].as_array().unwrap();
        let first = |n: usize| all[n]["reductions"]["first_w"].as_f64().unwrap();

        ([first(0), first(1)], all.iter().map(|one| one["basis"]["curves"].to_string()).collect::<String>())
    };

    // The paper's server, where nothing is said.
    let ([a, b], from) = shed("");
    assert!((a - b).abs() < 1e-9 && from.contains("the paper's server"), "{a} {b} {from}");

    // The other generation as told, or with the same curves.
    let ([double, same], from) = shed("--profile a=a.toml --idle-w 112");
    assert!((double - 2.0 * a).abs() < 0.01 && (same - b).abs() < 0.01, "{double} {same}");
    assert!(from.contains("a.toml: fitted to points, off by at most 0.0 %"), "{from}");
    let ([one, other], _) = shed("--profile a.toml");
    assert!((one - double).abs() < 1e-9 && (other - double).abs() < 1e-9);

    refused(folder, &format!("{plan} --profile a=a.toml"), "generation \"b\" has no curves, only \"a\"");

    refused(folder, &format!("{plan} --profile a.toml --full-w 300"), "one of both");
    refused(folder, &format!("{plan} --profile a.toml a.toml"), "the same servers have a.toml");
    refused(folder, &format!("{plan} --profile a=none.toml"), "profile none.toml");
    fs::write(folder.join("bad.csv"), points().replace("620,", "320,")).unwrap();
    refused(folder, "profile --input bad.csv", "the draw falls from");
    fs::write(folder.join("bad.csv"), "utilisation,frequency,watts\n0.5,high,3\n").unwrap();
    refused(folder, "profile --input bad.csv", "line 2: frequency = \"high\": a share");
    refused(folder, "profile", "--input");
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that looked at nothing says so")]
fn published_results_make_a_first_guess_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let data = std::env::var_os("BALLAST_DATA").map_or(beside, PathBuf::from);
    let file = data.join("specpower/SPECpower-full-results.csv");

    if !file.exists() {
        eprintln!("skipped: {} is not there", file.display());
        return;
    }

    let results = format!("profile --specpower {} --json", file.display());
    let guess = json(folder, &format!("{results} --cores 40 --output guess.toml"));
    assert_eq!(guess["kind"], "first-guess");
    assert!(guess["of"].as_str().unwrap().contains("SPECpower_ssj2008: medians of"), "{guess}");
    let full = guess["model"]["full_w"].as_f64().unwrap();
    assert!((200.0..1000.0).contains(&full), "{guess}");
    fs::write(folder.join("history.csv"), "watts,count\n2000,99\n2800,1\n").unwrap();
    let plan = json(folder, "plan --histogram history.csv --profile guess.toml --json");
    assert!(plan["basis"]["curves"].as_str().unwrap().ends_with("guess.toml: a first guess"), "{plan}");

    refused(folder, &format!("{results} --server Dell"), "results hold that text, such as");
    refused(folder, &results, "--server");
}

/// 90 labelled VMs on two generations, a day long: 40 user-facing and 40 others, 10 without a class.
fn vms() -> String {
    let mut text = "vm_id,generation,subscription,arrival_s,end_s,cores,class,p95_cpu\n".to_owned();
    for generation in ["a", "b"] {
        for n in 0..90 {
            let (class, cores, p95) = match n {
                0..40 => ("user-facing", 2, "80"),
                40..80 => ("non-user-facing", 6, if generation == "a" { "30" } else { "60" }),
                _ => ("", 4, ""),
            };
            let end = if n % 2 == 0 { "86400" } else { "" };
            writeln!(text, "v{n},{generation},s{n},0,{end},{cores},{class},{p95}").expect("memory");
        }
    }
    text
}

#[test]
fn load_is_estimated_from_labelled_history_and_what_is_told_wins() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("history.csv"), HISTORY).unwrap();
    fs::write(folder.join("vms.csv"), vms()).unwrap();
    let plan = "plan --histogram history.csv --provisioned-w 7440 --json";
    let shed = |more: &str| {
        let plan = json(folder, &format!("{plan} {more}"));
        let all = plan["generations"].as_array().unwrap().clone();
        let one = |n: usize| {
            let basis = all[n]["basis"]["load"].as_str().unwrap().to_owned();
            (all[n]["reductions"]["first_w"].as_f64().unwrap(), basis)
        };

        [one(0), one(1)]
    };

    // 360 cores allocated; of them 80 user-facing, and 40 nobody knows of, which count so.
    let [(a, words), (b, _)] = shed("--history vms.csv --physical-cores a=720 b=720");
    let expected = |alloc: f64, others: f64, util: f64| 12.0 * alloc * others * util * (198.0 - 58.0);
    let others = 240.0 / 360.0;
    assert!((a - expected(0.5, others, 0.3)).abs() < 0.01, "{a}");
    assert!((b - expected(0.5, others, 0.6)).abs() < 0.01, "{b}");

    for said in
        ["alloc 0.500", "beta 0.333 ±", "of 90 VMs", "util-nuf 0.300 ± 0.000 of 40 VMs", "10 have no class"]
    {
        assert!(words.contains(said), "{said}: {words}");
    }

    // Without physical cores the allocation is the default; a flag wins over what was estimated.
    let [(a, words), _] = shed("--history vms.csv --beta 0.5");
    assert!((a - expected(0.51, 0.5, 0.3)).abs() < 0.01 && words.contains("beta 0.5 as told"), "{a}");

    assert!(words.contains("alloc 0.51 by default"), "{words}");

    let few: String =
        vms().lines().filter(|line| !line.contains(",6,")).map(|line| format!("{line}\n")).collect();
    fs::write(folder.join("few.csv"), few).unwrap();
    refused(
        folder,
        &format!("{plan} --history few.csv"),
        "fewer than 30 VMs to estimate util-nuf from: tell --util-nuf",
    );

    let [(a, _), _] = shed("--history few.csv --util-nuf 0.1");
    assert!(a.abs() < 1e-9, "nobody but user-facing VMs, so nothing to shed: {a}");
    fs::write(folder.join("other.csv"), vms().replace(",b,", ",c,")).unwrap();
    refused(folder, &format!("{plan} --history other.csv"), "no VM of generation \"b\"");
    fs::write(folder.join("bad.csv"), vms().replace("v3,a,s3,0,,2", "v3,a,s3,0,-5,2")).unwrap();
    refused(folder, &format!("{plan} --history bad.csv"), "line 5: end_s = \"-5\": not before arrival_s");

    let cores = "--physical-cores a=10 b=720";
    refused(
        folder,
        &format!("{plan} --history vms.csv {cores}"),
        "--physical-cores 10: the VMs had 36.00 times",
    );
}
