//! `ballast label` from outside: layouts, columns, what passes through, refusals.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;

use crate::common::{ballast, refused};

fn labels(folder: &Path, args: &str) -> String {
    let output = ballast(folder, args);
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Monday, 1 April 2019, midnight UTC.
const MONDAY_S: i64 = 1_554_076_800;
const SLOTS: usize = 240;

/// Half-hour averages that are exact as 32-bit floating point: by day, at random, and without change.
fn series() -> [(&'static str, Vec<f64>); 3] {
    let mut seed = 1_u32;
    let mut noise = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(seed >> 26) / 8.0
    };
    let daily = (0..SLOTS).map(|n| if (16..36).contains(&(n % 48)) { 60.0 } else { 10.0 } + noise());
    let daily = daily.collect();
    let random = (0..SLOTS).map(|_| 20.0 + noise()).collect();
    [("web", daily), ("batch", random), ("idle", vec![5.0; SLOTS])]
}

fn write_layouts(folder: &Path) {
    let all = series();
    let mut rows = "id,label".to_owned();
    (0..SLOTS).for_each(|n| write!(rows, ",u{n}").unwrap());

    for (id, values) in &all {
        write!(rows, "\n{id},truth-{id}").unwrap();
        values.iter().for_each(|value| write!(rows, ",{value}").unwrap());
    }

    fs::write(folder.join("rows.csv"), rows + "\n").unwrap();

    // Long and columns: every half hour as three samples with that mean.
    let (mut long, mut columns) = ("vm,time,value\n".to_owned(), "t,web,batch,idle\n".to_owned());
    let (mut vms, mut times, mut cpu) = (vec![], vec![], vec![]);

    for n in 0..3 * SLOTS {
        let t_s = MONDAY_S + 600 * n as i64;
        let sample = |values: &[f64]| values[n / 3] + [-1.0, 0.0, 1.0][n % 3];
        write!(columns, "{t_s}").unwrap();

        for (id, values) in &all {
            write!(columns, ",{}", sample(values)).unwrap();
            writeln!(long, "{id},{t_s},{}", sample(values)).unwrap();
            vms.push(*id);
            times.push(t_s);
            cpu.push(sample(values) as f32);
        }

        columns.push('\n');
    }

    fs::write(folder.join("long.csv"), long).unwrap();
    fs::write(folder.join("columns.csv"), columns).unwrap();
    let arrays: [(&str, ArrayRef); 3] = [
        ("vm", Arc::new(StringArray::from(vms))),
        ("time", Arc::new(Int64Array::from(times))),
        ("value", Arc::new(Float32Array::from(cpu))),
    ];

    let batch = RecordBatch::try_from_iter(arrays).unwrap();
    let file = File::create(folder.join("long.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn every_layout_says_the_same() {
    let folder = tempfile::tempdir().unwrap();
    write_layouts(folder.path());
    let rows = labels(folder.path(), "label --input rows.csv --method pattern --output -");
    let lines: Vec<Vec<&str>> = rows.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0], ["id", "compare8", "compare12", "user_facing", "reason", "label"]);
    let said = |n: usize| [lines[n][0], lines[n][3], lines[n][4], lines[n][5]];
    assert_eq!(said(1), ["web", "true", "daily", "truth-web"]);
    assert_eq!(said(2), ["batch", "false", "not-daily", "truth-batch"]);
    assert_eq!(said(3), ["idle", "false", "flat", "truth-idle"]);
    assert!(lines[1][1].parse::<f64>().unwrap() < 0.5, "{rows}");
    let without_label: String =
        rows.lines().map(|line| format!("{}\n", line.rsplit_once(',').unwrap().0)).collect();
    for input in ["long.csv", "columns.csv", "long.parquet"] {
        assert_eq!(labels(folder.path(), &format!("label --input {input}")), without_label, "{input}");
    }

    // Into a file, with a picture.
    labels(folder.path(), "label --input rows.csv --output out.csv --plot out.svg");
    assert_eq!(fs::read_to_string(folder.path().join("out.csv")).unwrap(), rows);
    assert!(fs::read_to_string(folder.path().join("out.svg")).unwrap().contains("Compare12"));

    // Other methods decide by other scores of the same series.
    let acf = labels(folder.path(), "label --input rows.csv --method acf --threshold 0.5");
    assert!(acf.contains("web,") && acf.lines().nth(1).unwrap().contains("true"), "{acf}");
}

#[test]
fn what_is_short_is_user_facing_and_what_is_wrong_is_said() {
    let folder = tempfile::tempdir().unwrap();
    write_layouts(folder.path());
    let columns = fs::read_to_string(folder.path().join("columns.csv")).unwrap();
    let day: String = columns.lines().take(145).map(|line| format!("{line}\n")).collect();
    fs::write(folder.path().join("day.csv"), &day).unwrap();
    let short = labels(folder.path(), "label --input day.csv");
    assert!(short.lines().skip(1).all(|line| line.ends_with(",,,true,too-short")), "{short}");

    fs::write(folder.path().join("bad.csv"), day + "1554163200,much,1,1\n").unwrap();
    fs::write(folder.path().join("torn.csv"), "t,web\n1554163200,1\n15541\n").unwrap();
    fs::write(folder.path().join("dateless.csv"), "web,batch\n1,2\n").unwrap();
    let short = labels(folder.path(), "label --input dateless.csv");
    assert!(short.lines().skip(1).all(|line| line.ends_with(",,,true,too-short")), "{short}");
    fs::write(folder.path().join("torn.parquet"), b"PAR1").unwrap();

    for (args, said) in [
        ("label --input bad.csv", "bad.csv, line 146: web = \"much\": a finite number or nothing"),
        ("label --input torn.csv", "torn.csv, line 3: 1 cells: the header has 2"),
        ("label --input columns.csv dateless.csv", "stamps with and without dates"),
        ("label --input torn.parquet", "cannot take torn.parquet"),
        ("label --input none.csv", "none.csv: No such file"),
        ("label --input rows.csv --layout long", "which column is it? say --time-column"),
        ("label --input columns.csv --period-s 700", "a period of 700 s: allowed are periods that divide"),
        ("label --input rows.csv --method ensemble", "learns from labelled weeks"),
        ("label --input rows.csv --timezone Mars/Utopia", "--timezone \"Mars/Utopia\": allowed"),
        ("label --input rows.csv --week someday", "--week \"someday\": allowed"),
    ] {
        refused(folder.path(), args, said);
    }

    assert!(!folder.path().join("out.csv").exists());
}
