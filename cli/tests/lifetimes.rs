//! Lifetimes from outside: from a user's table, or Azure's, to a model and its answers.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use serde_json::Value;

use crate::common::{azure_arrivals, ballast, json, refused};

/// A day in which tenant `a` starts VMs of ten minutes, and tenant `b` VMs of ten hours: tenant, start, end.
fn vms() -> Vec<(&'static str, i64, Option<i64>)> {
    let one = |n: i64| {
        let (tenant, lives_s) = if n % 3 > 0 { ("a", 600) } else { ("b", 36_000) };
        let (start_s, lives_s) = (1_760_000_000 + 43 * n, lives_s + n * 37 % 100);
        (tenant, start_s, Some(start_s + lives_s).filter(|end_s| *end_s < 1_760_086_400))
    };
    (0..2_000).map(one).collect()
}

fn write_csv(path: &Path) {
    let row = |(tenant, start_s, end_s): (&str, i64, Option<i64>)| {
        format!("{tenant},{start_s},{},1\n", end_s.map(|end_s| end_s.to_string()).unwrap_or_default())
    };
    let rows: String = vms().into_iter().map(row).collect();
    fs::write(path, format!("tenant,start_s,end_s,batch_vms\n{rows}")).unwrap();
}

fn write_parquet(path: &Path) {
    let texts = StringArray::from_iter_values(vms().into_iter().map(|vm| vm.0));
    let starts = Int64Array::from_iter_values(vms().into_iter().map(|vm| vm.1));
    let ends = Int64Array::from_iter(vms().into_iter().map(|vm| vm.2));
    let batches = Int64Array::from_iter_values(vms().into_iter().map(|_| 1));
    let columns: [(&str, ArrayRef); 4] = [
        ("tenant", Arc::new(texts)),
        ("start_s", Arc::new(starts)),
        ("end_s", Arc::new(ends)),
        ("batch_vms", Arc::new(batches)),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn a_users_table_becomes_a_model_that_answers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write_csv(&path.join("vms.csv"));
    write_parquet(&path.join("vms.parquet"));

    // The same from either kind of file.
    let train = "train --target lifetime --json --input";
    let said = json(path, &format!("{train} vms.csv --output model"));
    json(path, &format!("{train} vms.parquet --output other"));
    assert_eq!(fs::read(path.join("model")).unwrap(), fs::read(path.join("other")).unwrap());
    assert_eq!((&said["written"], &said["about"]["columns"]), (&true.into(), &serde_json::json!(["tenant"])));
    assert_eq!(said["about"]["better_than_kaplan_meier"], true);

    let about = json(path, "predict --target lifetime --model model --about");
    assert_eq!(about, said["about"]);

    // The same again is not worse.
    let again = json(path, &format!("{train} vms.csv --output model --replace-if-not-worse"));
    assert_eq!((&again["worse"], &again["old"]), (&Value::Null, &about["arms"][0]["scores"]));

    fs::write(path.join("new.csv"), "vm_id,tenant,uptime_s\nx,a,\ny,b,\nz,nobody,\nw,a,99999999\n").unwrap();
    let output = ballast(path, "predict --target lifetime --model model --input new.csv");
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0], ["vm_id", "expected_s", "median_s", "p10_s", "p90_s", "lives_7d", "known_columns"]);
    let number = |row: usize, column: usize| rows[row][column].parse::<f64>().unwrap();
    assert!((550.0..750.0).contains(&number(1, 2)) && (30_000.0..45_000.0).contains(&number(2, 2)), "{text}");
    assert_eq!([1, 2, 3].map(|row| rows[row][6]), ["1", "1", "0"]);
    // Who outlives every curve has a remaining lifetime still.
    assert!((1.0..=1_209_600.0).contains(&number(4, 1)), "{text}");

    // JSON lines say the same.
    fs::write(path.join("new.json"), "{\"vm_id\": \"x\", \"tenant\": \"a\"}\n\n{\"tenant\": \"b\"}\n")
        .unwrap();
    let output = ballast(path, "predict --target lifetime --model model --input new.json");
    let lines: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!((&lines[0]["vm_id"], &lines[1]["vm_id"]), (&"x".into(), &Value::Null));
    assert!((lines[0]["median_s"].as_f64().unwrap() - number(1, 2)).abs() <= 0.5, "{lines:?}");
}

#[test]
fn what_cannot_be_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write_csv(&path.join("vms.csv"));
    let more = "a,1760000000,1759999999,1\na,1760000000,1760000000,1\na,0,9,1\na,1760000000,1960000000,1\n";
    let text = fs::read_to_string(path.join("vms.csv")).unwrap() + more;
    fs::write(path.join("odd.csv"), text).unwrap();

    let said = json(path, "train --target lifetime --input odd.csv --output model --json");
    let cleaned = &said["about"]["cleaned"];
    for kind in ["end_before_start", "start_out_of_time", "zero_lifetime", "end_out_of_time"] {
        assert_eq!(cleaned[kind], 1, "{kind}: {cleaned}");
    }
    let output = ballast(path, "train --target lifetime --input odd.csv --output model");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("1 left out: the end is before the start") && text.contains("kaplan-meier"),
        "{text}"
    );

    fs::write(path.join("few.csv"), "start_s,end_s\n1,2\n").unwrap();
    refused(
        path,
        "train --target lifetime --input few.csv --output m",
        "few.csv: 1 VMs, 0 of them still run: 1 VMs",
    );
    refused(path, "train --target lifetime --input none.csv --output m", "none.csv");
    refused(path, "train --target lifetime --generate 1000 --output m", "--generate");
    refused(path, "predict --target class-p95 --model model --input vms.csv", "no section \"about\"");
    refused(path, "predict --target lifetime --model vms.csv --input vms.csv", "not a Ballast model");
}

#[test]
fn azures_arrivals_are_taken_as_they_are() {
    let Some(trace) = azure_arrivals() else { return };

    let folder = tempfile::tempdir().unwrap();
    let said = json(
        folder.path(),
        &format!("train --target lifetime --json --output model --input {}", trace.display()),
    );
    let about = &said["about"];
    assert_eq!((&about["cleaned"]["vms"], &about["cleaned"]["running"]), (&259_159.into(), &14_317.into()));
    // Beyond chance, and better than the best table by one column.
    assert_eq!(about["better_than_kaplan_meier"], true);
    let score = |arm: usize, score: &str| about["arms"][arm]["scores"][score].as_f64().unwrap();
    for simple in [1, 2] {
        assert!(score(0, "log_loss") < score(simple, "log_loss") - 0.05, "{about}");
        assert!(score(0, "brier") < score(simple, "brier") - 0.003, "{about}");
    }
    assert!(score(0, "calibration_error") < 0.06, "{about}");
}
