//! Every layout, and every way a file may be broken.

use std::io::Read;

use ballast_types::PowerModel;

use super::*;

fn read(text: &str) -> Result<Trace, TraceError> {
    Trace::read(text.as_bytes(), "f.csv", &ReadOptions::default())
}
fn says(text: &str) -> String {
    read(text).map(|t| format!("{:?}", t.report)).unwrap_or_else(|e| e.to_string())
}
/// Values as text, so that NaN compares.
fn values(trace: &Trace, n: usize) -> String {
    format!("{:?}", trace.series[n].values)
}

#[test]
fn wide_with_stamps() {
    for time in ["t", "t_s", "timestamp"] {
        let t = read(&format!("{time},a,b\n1000,1.5,20\n1300,,30\n1600,3,NaN\n")).unwrap();
        assert_eq!((t.period_s, t.start_s, t.span_s()), (300.0, 1000.0, 900.0));
        assert_eq!(t.series[0].unit, Unit::Percent);
        assert_eq!(values(&t, 0), "[1.5, NaN, 3.0]");
        assert_eq!(values(&t, 1), "[20.0, 30.0, NaN]");
        assert_eq!((t.report.rows, t.report.gaps), (3, 2));
    }
}

#[test]
fn wide_with_ids_only() {
    let t = read("163,22\n44.4,5.8\n47.9,5.9\n").unwrap();
    assert_eq!((t.period_s, t.series[1].name.as_str()), (300.0, "22"));
    assert_eq!(values(&t, 1), "[5.8, 5.9]");
}

#[test]
fn power_units_of_google() {
    let t = read("index,time,pdu,measured_power_util\n0,600000000,p6,0.6\n1,900000000,p6,0.7\n");
    let t = t.unwrap();
    assert_eq!((t.period_s, t.start_s), (300.0, 600.0));
    assert_eq!((t.series[0].name.as_str(), t.series[0].unit), ("p6", Unit::Share));
}

#[test]
fn long_with_machines_on_one_grid_and_their_own_phase() {
    let text = "timestamp,server,watts\n0,a,150\n4,b,200\n10,a,160\n14.2,b,\n20,a,170\n24,b,310\n";
    let t = read(text).unwrap();
    assert_eq!((t.period_s, t.series.len()), (10.0, 2));
    assert_eq!(values(&t, 0), "[150.0, 160.0, 170.0]");
    assert_eq!(values(&t, 1), "[200.0, NaN, 310.0]");
    let played = t.series[1].played(&PowerModel::PAPER);
    assert_eq!((played.filled, played.clamped), (1, 0));
    assert!((played.values[0] - 88.0 / 198.0).abs() < 1e-6);
    assert_eq!(played.values[1], played.values[0], "a gap holds the last value");
    assert_eq!(played.values[2], 1.0);

    let options = ReadOptions {
        time_column: Some("when".into()),
        series_column: Some("host".into()),
        value_column: Some("load".into()),
        unit: Some(Unit::Percent),
        ..ReadOptions::default()
    };

    let t = Trace::read(&b"when,host,load\n0,a,50\n60,a,75\n"[..], "f", &options).unwrap();
    assert_eq!((t.period_s, t.series[0].unit), (60.0, Unit::Percent));

    // Whole chassis, one machine, no name.
    assert_eq!(read("timestamp,watts\n0,150\n1,160\n").unwrap().series.len(), 1);
}

#[test]
fn compressed_by_its_first_bytes() {
    let plain = "t,a\n0,1\n300,2\n";
    let packed = zstd::encode_all(plain.as_bytes(), 1).unwrap();
    let t = Trace::read(&packed[..], "f.csv", &ReadOptions::default()).unwrap();
    assert_eq!(t, read(plain).unwrap());
    let cut = Trace::read(&packed[..packed.len() - 3], "f.csv", &ReadOptions::default());
    assert!(matches!(cut, Err(TraceError::Io { .. })), "{cut:?}");
}

#[test]
fn broken_files_are_refused_with_the_place() {
    for (text, want) in [
        ("", "no header"),
        ("t,a\n", "no row"),
        ("t,a\n0,\n300,NaN\n", "no value"),
        ("timestamp,server,watts\n", "no row"),
        ("t,a\n0,1\n300,abc\n", "f.csv, line 3: a = \"abc\": a finite number or nothing"),
        ("t,a\n0,1\n300,inf\n", "f.csv, line 3: a = \"inf\": a finite number or nothing"),
        ("t,a\nMonday,1\n", "f.csv, line 2: t = \"Monday\": a number (see --time-unit), or RFC 3339"),
        ("t,a\n,1\n", "f.csv, line 2: t = \"\""),
        ("t,a\nNaN,1\n", "f.csv, line 2: t = \"NaN\""),
        ("t,a\n1e300,1\n", "f.csv, line 2: t = \"1e300\""),
        ("t,a,b\n0,1\n", "f.csv, line 2: 2 cells: the header has 3"),
        ("t,a\n0,1\n300,1,9\n", "f.csv, line 3: 3 cells: the header has 2"),
        ("name,colour\nx,red\n", "f.csv: which column is it? say --time-column; there are name, colour"),
        ("timestamp,server,colour\n0,a,1\n", "which column is it? say --value-column"),
        ("t,a\n0,1\n300,1\n9e10,1\n", "the stamps span"),
        ("t,a\n0,1\n1e12,1\n", "line 3: t = \"1e12\": seconds as in the rows above"),
        ("t,a\n0,1\n0,2\n0,3\n300,1\n", "2 of 4 rows are repeated"),
        ("t,a\n900,1\n600,2\n300,3\n0,1\n", "3 of 4 rows are out of order"),
        ("timestamp,server,utilisation\n0,a,55\n1,a,60\n", "say that it holds percent"),
        ("t,a,b\n0,350,400\n300,410,90\n", "3 of 4 values are implausible as Percent: say what"),
    ] {
        assert!(says(text).contains(want), "{text:?}: {}", says(text));
    }
}

#[test]
fn the_world_writes_times_and_missing_values_in_many_ways() {
    let seconds = "timestamp,server,watts\n1700000000,a,150\n1700000060,a,\n1700000120,a,170\n";
    let expected = read(seconds).unwrap();
    assert_eq!((expected.start_s, expected.period_s, expected.report.gaps), (1.7e9, 60.0, 1));
    for (zeros, missing) in [("000", "NA"), ("000000", "no reading"), ("000000000", "-")] {
        let text = seconds.replace("0,a", &format!("0{zeros},a")).replace("a,\n", "a,MISSING\n");
        let trace = read(&text.replace("MISSING", missing)).unwrap();
        // As text, so that NaN compares.
        assert_eq!(format!("{trace:?}"), format!("{expected:?}"), "{zeros} {missing}");
    }
    let dates = "Timestamp,Host,Power (W)\n2023-11-14T22:13:20Z,a,150\n\
                 2023-11-14T22:14:20Z,a,None\n2023-11-15T00:15:20+02:00,a,170\n";
    assert_eq!(format!("{:?}", read(dates).unwrap()), format!("{expected:?}"));
}

#[test]
fn what_is_no_table_ends_soon() {
    let zeros = Trace::read(std::io::repeat(0), "/dev/zero", &ReadOptions::default());
    assert!(zeros.unwrap_err().to_string().contains("longer than 1 MiB"));
    let quoted = b"t,a\n0,\"".chain(std::io::repeat(b'\n'));
    let quoted = Trace::read(quoted, "f", &ReadOptions::default());
    assert!(quoted.unwrap_err().to_string().contains("longer than 1 MiB"));
    let gzip = Trace::read(&[0x1F, 0x8B, 8, 0][..], "f.csv.gz", &ReadOptions::default());
    assert!(gzip.unwrap_err().to_string().contains("f.csv.gz: this is gzip"));
}

#[test]
fn a_file_that_cannot_be_read_is_an_error() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("gone"))
        }
    }
    let error = Trace::read(Broken, "f", &ReadOptions::default()).unwrap_err();
    assert!(error.to_string().contains("f: gone"), "{error}");
}

#[test]
fn small_faults_are_repaired_and_counted() {
    let rows = |bad: &str| {
        let mut text = String::from("t,a\n");
        for n in 0..300 {
            text += &format!("{},10\n", n * 300);
        }
        text + bad
    };

    let t = read(&rows("300,99\n")).unwrap();
    assert_eq!((t.report.unordered_rows, t.report.duplicate_rows), (1, 1));
    assert_eq!(t.series[0].values[1], 10.0, "the first of two is kept");
    let t = read(&rows("90600,120\n90900,-4\n")).unwrap();
    assert_eq!(t.report.clamped, 2);
    assert_eq!(values(&t, 0).split(", ").skip(299).collect::<Vec<_>>().join(" "), "10.0 NaN NaN 100.0 0.0]");

    assert_eq!(t.report.gaps, 2, "missing rows are gaps");
    let t = read(&rows("90000,no reading\n")).unwrap();
    assert_eq!((t.report.gaps, t.report.implausible_values), (1, 0));
    let t = read("timestamp,server,watts\n0,a,-50\n1,a,200\n2,a,1000001\n3,a,200\n").unwrap();
    let report = (t.report.gaps, t.report.implausible_values);
    assert_eq!(report, (2, 2), "negative watts are missing, not low");
    assert_eq!(t.series[0].played(&PowerModel::PAPER).values[0], 88.0 / 198.0);
    let t = read("\u{feff}t,a,b\r\n0, 1 ,\r\n300,2,\r\n").unwrap();
    assert_eq!((t.series.len(), t.report.empty_series), (1, 1));
}

proptest::proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(0u8.., 0..200)) {
        let _ = Trace::read(&bytes[..], "f", &ReadOptions::default());
    }

    #[test]
    fn no_table_panics(
        header in proptest::sample::select(vec![
            "t,a", "1,2", "timestamp,server,watts", "timestamp,server,utilisation",
            "time,pdu,measured_power_util",
        ]),
        cells in proptest::collection::vec(
            "-?[0-9]{0,20}(\\.[0-9])?|NaN|inf|x||no reading|2023-11-1[0-9]T00:00:00Z",
            0..40,
        ),
    ) {
        let width = header.split(',').count();
        let mut text = format!("{header}\n");
        for row in cells.chunks(width) {
            text += &(row.join(",") + "\n");
        }
        if let Ok(trace) = read(&text) {
            for series in &trace.series {
                let played = series.played(&PowerModel::PAPER).values;
                proptest::prop_assert!(played.iter().all(|v| (0.0..=1.0).contains(v)));
            }
        }
    }
}
