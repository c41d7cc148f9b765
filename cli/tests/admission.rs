//! `ballast fit` and `ballast admit` from outside.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::common;

fn ballast(args: &str) -> Output {
    common::ballast(Path::new("."), args)
}

fn json(args: &str) -> Value {
    common::json(Path::new("."), args)
}

#[test]
fn a_law_is_fitted_to_events_by_label_and_wrong_events_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (events, law) = (folder.path().join("events.csv"), folder.path().join("law.toml"));

    // Forty deployments, each of which gets a core after an hour and ends after two.
    let mut rows: Vec<(f64, String)> = vec![];
    for n in 0..40 {
        let (begun, first) = (f64::from(n) * 0.1, 1 + n % 3);
        rows.push((begun, format!("d{n},{begun},{first}")));
        rows.push((begun + 1.0 + f64::from(n % 5), format!("d{n},{},1", begun + 1.0 + f64::from(n % 5))));
        for core in 0..=first {
            let at = begun + 6.0 + f64::from(core * (1 + n % 4));
            rows.push((at, format!("d{n},{at},-1")));
        }
    }
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let text: Vec<_> = rows.into_iter().map(|it| it.1 + ",t").collect();
    std::fs::write(&events, format!("deployment,time_h,cores,label\n{}\n", text.join("\n"))).unwrap();

    let args = format!("fit --input {} --output {} --json", events.display(), law.display());
    let report = json(&args);
    assert_eq!(report["deployments"], 40);
    let written = std::fs::read_to_string(&law).unwrap();
    assert!(written.contains("[mu]") && written.contains("kappa = "), "{written}");
    assert!(written.contains("[labels.t]\nn = 5.0\n") && report["labels"]["t"]["n"] == 5.0, "{written}");
    assert!(written.contains("arrivals_per_h = "), "{written}");

    for (rows, says) in [
        ("a,0,2\na,1,-3", "row 3"),
        ("a,5,2\nb,1,1", "in the order of time"),
        ("a,0,0", "a number other than 0"),
        ("a,0,1", "1 deployments: at least 30"),
        ("a,-1,1", "row 2: time_h = -1: hours, 0 to 100000000"),
        ("a,,1", "row 2: time_h is missing"),
        ("a,0,", "row 2: cores is missing"),
    ] {
        std::fs::write(&events, format!("deployment,time_h,cores\n{rows}\n")).unwrap();
        let output = ballast(&format!("fit --input {}", events.display()));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(says), "{says}: {error}");
    }
}

#[test]
fn thresholds_are_tuned_for_fitted_priors_and_a_replay_goes_by_them() {
    let folder = tempfile::tempdir().unwrap();
    let (events, law) = (folder.path().join("events.csv"), folder.path().join("law.toml"));
    let write = |text: &str| std::fs::write(&law, text).unwrap();
    let priors = "kappa = 0.6992\ndelta = 0.02081\n[mu]\nshape = 0.3138\nrate = 0.1211\n\
        [lambda]\nshape = 1.8415\nrate = 0.5193\n[sigma]\nshape = 0.4220\nrate = 0.5254\n";
    write(priors);
    std::fs::write(&events, "deployment,time_h,cores,label\na,0,150,x\nb,1,180,x\na,2,30,x\na,9,-180,x\n")
        .unwrap();
    let cluster = format!("--priors {} --capacity-cores 200 --json", law.display());
    let replay = format!("admit replay {cluster} {}", events.display());
    let tune = format!("admit tune {cluster} --arrivals-per-h 0.5 --runs 20 --hours 1000 --sla 0.01");

    // Thresholds are shares of the capacity and a risk, and end in the file; another number of threads changes nothing.
    let refused = |args: &str, says: &str| {
        let output = ballast(args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(says), "{args}: {error}");
    };
    refused(&replay, "[tuned] is missing");
    let tuned = json(&format!("{tune} --output {}", law.display()));
    assert_eq!(tuned["tuned"], json(&format!("{tune} --threads 1"))["tuned"]);
    let number = |key: &str| tuned["tuned"][key].as_f64().unwrap();
    assert!(
        (0.05..1.0).contains(&number("zeroth")) && (1e-4..1.0).contains(&number("second_moment")),
        "{tuned}"
    );
    let written = std::fs::read_to_string(&law).unwrap();
    assert!(written.contains("[tuned]\nsla = 0.01\n") && written.contains("kappa = 0.6992"), "{written}");
    let looser = json(&format!("{tune} --sla 0.2").replacen("--sla 0.01 ", "", 1));
    assert!(looser["tuned"]["second_moment"].as_f64().unwrap() > number("second_moment"), "{looser} {tuned}");

    // Both do not go beside each other, and neither does the scale-out fit once the one is there.
    write(&written.replace(&format!("zeroth = {}", number("zeroth")), "zeroth = 0.8"));
    let played = json(&format!("{replay} --policy zeroth"));
    assert_eq!((&played["admitted"], &played["refused"]), (&1.into(), &1.into()), "{played}");
    assert_eq!(played["first_refused"][0]["deployment"], "b");
    assert_eq!((&played["scale_outs"], &played["failed_scale_outs"]), (&1.into(), &0.into()));
    assert_eq!((&played["hours"], &played["peak_cores"]), (&9.0.into(), &180.0.into()));

    write("kappa = 0.5");
    refused(&replay, "law.toml");
    write(&priors.replace("0.02081", "-1"));
    refused(&tune, "delta = -1");
    write(priors);
    refused(&tune.replacen("--arrivals-per-h 0.5", "", 1), "say --arrivals-per-h");

    // Where nothing ever fails the widest threshold stands; where something always does, none.
    let roomy = json(&tune.replacen("cores 200", "cores 2000", 1).replacen("h 0.5", "h 0.01", 1));
    let [zeroth, first] = ["zeroth", "first_moment"].map(|key| roomy["tuned"][key].as_f64().unwrap());
    assert!(zeroth > 1.0 && first > 1.0 && roomy["rows"][0]["kept"] == true, "{roomy}");
    refused(&tune.replacen("cores 200", "cores 1", 1), "no deployment is ever admitted");
    refused(
        &tune.replacen("cores 200", "cores 5", 1).replacen("0.01", "1e-6", 1),
        "no threshold keeps --sla",
    );
    refused(&tune.replacen("0.01", "0", 1), "a share, 1e-6 to 0.5");
    refused(&tune.replacen("200", "-5", 1), "a number, 1 to 1000000");
}
