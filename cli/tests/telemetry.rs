//! Telemetry from outside: the same file in every form, for every command, and what is wrong with a file.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;

use crate::common::{ballast, json};

fn refused(folder: &Path, args: &str) -> String {
    let output = ballast(folder, args);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && !stderr.contains("panicked"), "{args}: {stderr}");
    stderr
}

const BEGIN_S: i64 = 1_767_571_200;

/// Draws of two servers for twenty minutes: seconds, server, watts.
fn draws() -> Vec<(i64, String, String)> {
    let mut all = vec![];
    for n in 0..120_i64 {
        for server in ["s01", "s02"] {
            let high = (40..60).contains(&n) && server == "s01";
            let watts = match n {
                7 => "no reading".to_owned(),
                9 => "N/A".to_owned(),
                11 => "-5".to_owned(),
                _ => (if high { 290 } else { 180 + n % 5 }).to_string(),
            };
            all.push((BEGIN_S + 10 * n, server.to_owned(), watts));
        }
    }
    all
}

fn stamp(t_s: i64) -> String {
    jiff::Timestamp::from_second(t_s).expect("a time").to_string()
}

fn write(file: &Path, header: &str, row: impl Fn(i64, &str, &str) -> String) {
    let mut text = format!("{header}\n");
    for (t_s, server, watts) in draws() {
        writeln!(text, "{}", row(t_s, &server, &watts)).expect("a string takes all");
    }
    fs::write(file, text).expect("the folder is writable");
}

/// The same draws in many forms.
fn write_all(folder: &Path) -> Vec<&'static str> {
    let usual = |t_s, server: &str, watts: &str| format!("{},{server},{watts}", stamp(t_s));
    write(&folder.join("draws.csv"), "timestamp,server,watts", usual);
    let packed = zstd::encode_all(&fs::read(folder.join("draws.csv")).unwrap()[..], 1).unwrap();
    fs::write(folder.join("draws.csv.zst"), packed).unwrap();

    let column = |cell: fn(&(i64, String, String)) -> String| {
        Arc::new(draws().iter().map(cell).map(Some).collect::<StringArray>()) as ArrayRef
    };
    let batch = RecordBatch::try_from_iter([
        ("timestamp", column(|draw| stamp(draw.0))),
        ("server", column(|draw| draw.1.clone())),
        ("watts", column(|draw| draw.2.clone())),
    ]);

    let batch = batch.unwrap();
    let file = fs::File::create(folder.join("draws.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();

    let millis = |t_s: i64, server: &str, watts: &str| format!("{watts},{},{server}", t_s * 1000);
    write(&folder.join("millis.csv"), "Power (W),Time,Hostname", millis);
    let micros = |t_s: i64, server: &str, watts: &str| format!("{t_s}000000,{server},{watts}");
    write(&folder.join("micros.csv"), "when,blade,w", micros);

    let mut wide = "ts,s01,s02\n".to_owned();
    for pair in draws().chunks(2) {
        writeln!(wide, "{},{},{}", pair[0].0, pair[0].2, pair[1].2).unwrap();
    }
    fs::write(folder.join("wide.csv"), wide).unwrap();

    vec![
        "draws.csv",
        "draws.csv.zst",
        "draws.parquet",
        "millis.csv",
        "micros.csv --time-column when --server-column blade --value-column w --unit watts",
        "micros.csv --time-column when --server-column blade --value-column w --unit watts",
        "wide.csv --unit watts",
    ]
}

#[test]
fn every_form_gives_the_same_plan_and_the_same_replay() {
    let folder = tempfile::tempdir().unwrap();
    let forms = write_all(folder.path());
    let plan = |form: &str| {
        let flags = "--period-s 10 --provisioned-w 400 --buffer 0 --json";
        json(folder.path(), &format!("plan {flags} --telemetry {form}"))
    };

    let replay = |form: &str| {
        let flags = "--budget-w 480 --hours 0 --json";
        let mut report = json(folder.path(), &format!("replay {flags} --telemetry {form}"));
        for key in ["telemetry", "wall_s", "speedup"] {
            report[key].take();
        }
        report
    };

    let (planned, replayed) = (plan(forms[0]), replay(forms[0]));
    assert_eq!((&planned["readings"], &planned["rejected"]["missing"]), (&234.into(), &4.into()));
    assert_eq!(planned["rejected"]["not_above_zero"], 2);
    assert_eq!((&replayed["gaps"], &replayed["implausible_values"]), (&6.into(), &2.into()));
    assert_eq!((&replayed["servers"], &replayed["series_are"]), (&2.into(), &"server".into()));

    for form in &forms[1..] {
        assert_eq!(plan(form), planned, "{form}");
        assert_eq!(replay(form), replayed, "{form}");
    }
}

#[test]
fn what_is_wrong_is_named_with_file_line_column_and_value() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("text.csv", "timestamp,server,watts\n0,a,150\n10,a,lots\n");
    write("date.csv", "timestamp,server,watts\n2026-01-05 00:00:00,a,150\n");
    write("mixed.csv", "timestamp,server,watts\n1767571200,a,150\n2026-01-05T00:00:10Z,a,150\n");
    write("inf.csv", "timestamp,server,watts\n0,a,inf\n");
    write("torn.csv", "timestamp,server,watts\n0,a\n");
    write("names.csv", "timestamp,server,colour\n0,a,1\n");
    write("long.csv", &format!("timestamp,server,watts\n0,a,{}", "1".repeat(2 << 20)));
    fs::write(folder.path().join("packed.csv"), [0x1F, 0x8B, 8, 0]).unwrap();

    for command in ["plan --telemetry", "replay --budget-w 900 --telemetry"] {
        for (file, said) in [
            ("text.csv", "text.csv, line 3: watts = \"lots\": a finite number or nothing"),
            ("date.csv", "date.csv, line 2: timestamp = \"2026-01-05 00:00:00\": a time with its of"),
            ("mixed.csv", "line 3: timestamp = \"2026-01-05T00:00:10Z\": seconds as in the rows abo"),
            ("inf.csv", "inf.csv, line 2: watts = \"inf\""),
            ("torn.csv", "torn.csv, line 2: 2 cells: the header has 3"),
            ("names.csv", "names.csv: which column is it? say --value-column; there are timestamp"),
            ("long.csv", "long.csv: a row is longer than 1 MiB"),
            ("packed.csv", "packed.csv: this is gzip"),
            ("/dev/zero", "/dev/zero: a file or a pipe is needed, this is a device"),
            ("/dev/null", "this is a device"),
            ("none.csv", "cannot take none.csv: No such file"),
        ] {
            let stderr = refused(folder.path(), &format!("{command} {file}"));
            assert!(stderr.contains(said), "{command} {file}: {stderr}");
        }
    }

    let stderr = refused(folder.path(), "replay --budget-w 900 --telemetry .");
    assert!(stderr.contains("this is a folder"), "{stderr}");
    write("cpu.csv", "timestamp,server,cpu_pct\n0,a,15\n");
    let stderr = refused(folder.path(), "plan --telemetry cpu.csv");
    assert!(stderr.contains("cannot take cpu.csv: this is CPU use: watts are needed"), "{stderr}");
}

#[test]
fn column_flags_are_the_same_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let help = |command: &str| {
        let output = ballast(folder.path(), &format!("{command} --help"));
        String::from_utf8(output.stdout).expect("text")
    };
    let section = |text: &str| {
        let (_, rest) = text.split_once("Columns of telemetry:\n").expect("a section");
        rest.split("\n\n").take(7).collect::<Vec<_>>().join("\n\n")
    };
    let plan = section(&help("plan"));
    for flag in ["time-column", "time-unit", "server-column", "value-column", "unit"] {
        assert!(plan.contains(&format!("--{flag} ")), "{flag}: {plan}");
    }
    for command in ["replay", "demo", "rig", "label"] {
        assert_eq!(section(&help(command)), plan, "{command}");
    }
}
