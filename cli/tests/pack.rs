//! `ballast pack` from outside.

use std::fmt::Write as _;
use std::fs;

use serde_json::Value;

use crate::common::{self, json, refused};

/// Use of six VMs in percent for so many hours: all are busy in the ninth of each day.
fn wide(hours: u64) -> String {
    let mut csv = "t_s,a,b,c,d,e,f\n".to_owned();
    for hour in 0..hours {
        let percent = |vm: u64| if hour % 24 == 9 { 80 } else { 5 + (7 * vm + 13 * hour) % 10 };
        let row: Vec<String> = (0..6).map(|vm| percent(vm).to_string()).collect();
        let _ = writeln!(csv, "{},{}", 3600 * hour, row.join(","));
    }
    csv
}

fn long(hours: u64) -> String {
    let wide = wide(hours);
    let mut csv = "timestamp,vm,cpu_pct\n".to_owned();
    for row in wide.lines().skip(1) {
        let cells: Vec<&str> = row.split(',').collect();
        for (vm, percent) in ["a", "b", "c", "d", "e", "f"].iter().zip(&cells[1..]) {
            let _ = writeln!(csv, "{},{vm},{percent}", cells[0]);
        }
    }
    csv
}

fn rows(answer: &Value) -> &Vec<Value> {
    answer["rows"].as_array().expect("rows")
}

fn row<'a>(answer: &'a Value, estimator: &str, parameter: Option<f64>) -> &'a Value {
    let found = rows(answer)
        .iter()
        .find(|row| row["estimator"] == estimator && row["parameter"].as_f64() == parameter);
    found.expect("the row")
}

#[test]
fn a_fleet_is_packed_alike_from_either_layout_and_what_the_last_days_speak_for_is_selected() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("wide.csv"), wide(24 * 17)).unwrap();
    fs::write(folder.path().join("long.csv"), long(24 * 17)).unwrap();
    let pack = |file: &str| {
        json(folder.path(), &format!("pack --telemetry {file} --capacity 2 --target 0.01 --json"))
    };
    let (one, other) = (pack("wide.csv"), pack("long.csv"));
    assert_eq!(one["rows"], other["rows"]);
    assert_eq!(
        (&one["vms"], &one["cut"]["steps"], &one["cut"]["judged_steps"]),
        (&6.into(), &10.into(), &3.into())
    );
    assert_eq!(one["cut"]["short"], false);

    for row in rows(&one) {
        assert!(row["machines"].as_f64().is_some_and(|machines| (1.0..=6.0).contains(&machines)), "{row}");
        assert!(row["realised"].as_f64().is_some_and(|share| (0.0..=1.0).contains(&share)), "{row}");
    }
    assert_eq!(rows(&one).iter().filter(|row| row["selected"] == true).count(), 1);

    // Five percent and a peak that all share: a normal variable has never heard of it.
    let gaussian = row(&one, "gaussian", Some(0.1));
    assert!(gaussian["realised"].as_f64() > Some(0.01) && gaussian["promised"] == 0.1, "{gaussian}");
    let auto = row(&one, "auto", None);
    assert_eq!((&auto["realised"], &auto["machines"]), (&0.0.into(), &3.0.into()));

    let text = common::ballast(folder.path(), "pack --telemetry wide.csv --capacity 2");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    for part in ["6 VMs on machines of 2", "learnt from 168.0 h", "at its word", "oracle", "next: the last"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn sizes_and_short_files_are_taken_as_the_answer_says() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("day.csv"), wide(48)).unwrap();
    fs::write(folder.path().join("vms.csv"), "vm,cores\na,2\nb,2\nc,2\nd,2\ne,2\nf,2\n").unwrap();
    let one = json(folder.path(), "pack --telemetry day.csv --capacity 2 --json");
    assert_eq!((&one["cut"]["train_h"], &one["cut"]["step_h"]), (&24.0.into(), &2.0.into()));
    assert_eq!((&one["cut"]["short"], &one["cut"]["steps"]), (&true.into(), &12.into()));

    // VMs twice as large on machines twice as large are the same.
    let twice = json(folder.path(), "pack --telemetry day.csv --cores vms.csv --capacity 4 --json");
    assert_eq!(one["rows"], twice["rows"]);

    let cut = "pack --telemetry day.csv --capacity 2 --train-hours 12 --step-hours 36 --json";
    let cut = json(folder.path(), cut);
    assert_eq!((&cut["cut"]["steps"], &cut["cut"]["short"]), (&1.into(), &false.into()));
    assert!(rows(&cut).iter().any(|row| row["selected"] == true));
}

#[test]
fn what_cannot_be_packed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    file("one.csv", "t_s,a\n0,5\n");
    file("watts.csv", "timestamp,vm,watts\n0,a,100\n300,a,120\n600,a,120\n");
    file("day.csv", &wide(48));
    file("few.csv", "vm,cores\na,2\n");
    file("nothing.csv", "vm,cores\na,0\n");
    for (args, said) in [
        ("one.csv --capacity 1", "one.csv: 1 instants: at least 2"),
        ("watts.csv --capacity 1", "watts"),
        ("day.csv --capacity 0", "above 0"),
        ("day.csv --capacity NaN", "above 0"),
        ("day.csv --capacity 1e9", "capacity 1000000000"),
        ("day.csv --capacity 1 --target 1.5", "0 to 1"),
        ("day.csv --capacity 1 --train-hours 1000", "48 instants"),
        ("day.csv --capacity 1 --cores few.csv", "vm b: no size is known"),
        ("day.csv --capacity 1 --cores nothing.csv", "cores = 0"),
    ] {
        refused(folder.path(), &format!("pack --telemetry {args}"), said);
    }
}
