//! `ballast plan` from outside: the paper's figures, the keys of the answer, refusals.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_array::{DictionaryArray, TimestampMillisecondArray, types::Int32Type};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use serde_json::Value;

use crate::common::{ballast, json, refused};

/// Upper quantiles as the paper's results imply them, in shares of 3720 W.
const COUNTS: &str = "generation,watts,count\n,2046,98899\n,2972.65,1000\n,3172.04,100\n,3236.4,1\n";

#[test]
fn counted_draws_give_the_papers_budgets() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("counts.csv"), COUNTS).unwrap();
    let plan = "plan --histogram counts.csv --resolution-w 0.1 --json --policy";
    for (policy, delta) in [("full-server", 6.2), ("no-impact", 11.0), ("minimal-impact", 12.1)] {
        let answer = json(folder.path(), &format!("{plan} {policy}"));
        let found = answer["delta_percent"].as_f64().unwrap();
        assert!((found - delta).abs() < 0.05, "{policy}: {answer}");
        assert_eq!(answer["readings"], 100_000);
        assert_eq!(answer["longest_event_s"], Value::Null, "a histogram cannot know");
    }
    let given = "--emax-uf 0.001 --emax-nuf 0.009 --fmin-uf 0.75 --fmin-nuf 0.5";
    let given = json(folder.path(), &format!("{plan} no-impact {given}"));
    let named = json(folder.path(), &format!("{plan} minimal-impact"));
    assert_eq!(given["budget_w"], named["budget_w"]);
}

#[test]
fn telemetry_is_counted_once_a_unit_and_what_is_wrong_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = "when,name,w\n".to_owned();
    for minute in 0..1000 {
        let w = if (500..503).contains(&minute) { 3000 } else { 2000 };
        writeln!(text, "{},c1,{w}\n{},c2,2000.4", minute * 60, minute * 60).unwrap();
    }

    text.push_str("30,c1,2500\n60000,c1,\n60060,c1,0\n60120,c1,65535\n");
    fs::write(folder.path().join("draws.csv"), &text).unwrap();
    let names = "--time-column when --server-column name --value-column w";
    let given = "--buffer 0 --policy minimal-impact --plot plan.svg";
    let answer = json(folder.path(), &format!("plan --telemetry draws.csv {names} {given} --json"));
    assert_eq!((&answer["readings"], &answer["rejected_readings"]), (&2000.into(), &4.into()));

    // Three readings of 2000 are 0.15 %: more than user-facing VMs may be hit by, so 3000 W less 226 W.
    assert_eq!((&answer["p_min_w"], &answer["binding"]), (&2774.0.into(), &"user-facing-rate".into()));

    assert_eq!((&answer["longest_event_s"], &answer["events"]["deepest_w"]), (&180.into(), &226.0.into()));

    for key in ["budget_w", "delta_percent", "extra_servers_percent", "events_per_week"] {
        assert!(answer[key].is_number(), "{key}: {answer}");
    }
    assert!(fs::read_to_string(folder.path().join("plan.svg")).unwrap().contains("provisioned"));

    text.push_str("soon,c1,1\n");
    fs::write(folder.path().join("bad.csv"), &text).unwrap();
    for (args, said) in [
        (
            format!("plan --telemetry bad.csv {names}"),
            "bad.csv, line 2006: when = \"soon\": a number (see --time-unit), or RFC 3339",
        ),
        (
            "plan --telemetry draws.csv".to_owned(),
            "draws.csv: which column is it? say --time-column; there are when, name, w",
        ),
        ("plan --telemetry none.csv".to_owned(), "cannot take none.csv"),
        (format!("plan --telemetry draws.csv {names} --most-w 1"), "no reading counts as a draw"),
        (format!("plan --telemetry draws.csv {names} --policy brave"), "one of traditional, full-server"),
    ] {
        refused(folder.path(), &args, said);
    }
}

fn parquet(folder: &Path, name: &str, columns: Vec<(&str, ArrayRef)>) -> anyhow::Result<()> {
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, column)| (name, column, true)),
    )?;
    let file = fs::File::create(folder.join(name))?;
    let groups = WriterProperties::builder().set_max_row_group_row_count(Some(700)).build();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(groups))?;
    writer.write(&batch)?;
    writer.close()?;
    Ok(())
}

/// Readings with dirt: time, chassis, watts.
fn dirty() -> Vec<(i64, String, Option<f64>)> {
    let mut all = vec![];
    let mut draw = 7_u64;
    for i in 0..3_000_i64 {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Whole eighths: exact in 32 bits.
        let watts = match draw >> 59 {
            0 => None,
            1 => Some(0.0),
            2 => Some(65_535.0),
            3 => Some(-1.0),
            _ => Some(1_500.0 + ((draw >> 33) % 10_000) as f64 / 8.0),
        };
        // Some units have two readings, some none, and some come late.
        let minute = (i * 7) % 1_000 + i % 3;
        all.push((1_700_000_000 + minute * 60 + i % 60, format!("c{}", i % 5), watts));
    }
    all
}

#[test]
fn csv_and_parquet_of_all_kinds_and_any_order_give_the_same_answer() {
    let folder = tempfile::tempdir().unwrap();
    let readings = dirty();
    let csv = |name: &str, time: &dyn Fn(i64) -> String, all: &[(i64, String, Option<f64>)]| {
        let mut text = "t_s,chassis,watts,generation\n".to_owned();
        for (t_s, chassis, watts) in all {
            let watts = watts.map_or_else(String::new, |w| w.to_string());
            let generation = if chassis < &"c3".to_owned() { "new" } else { "old" };
            writeln!(text, "{},{chassis},{watts},{generation}", time(*t_s)).unwrap();
        }

        fs::write(folder.path().join(name), text).unwrap();
    };

    let mut shuffled = readings.clone();
    shuffled.reverse();
    shuffled.sort_by_key(|(t_s, ..)| t_s % 7);
    csv("seconds.csv", &|t| t.to_string(), &readings);
    csv("part-1.csv", &|t| t.to_string(), &shuffled[..1_000]);
    csv("part-2.csv", &|t| t.to_string(), &shuffled[1_000..]);
    csv("nanoseconds.csv", &|t| (t * 1_000_000_000 + 999_999_999).to_string(), &readings);
    let stamp = |t: i64| jiff::Timestamp::from_second(t).unwrap().to_string();
    csv("stamps.csv", &stamp, &readings);

    let time = || Arc::new(Int64Array::from_iter_values(readings.iter().map(|r| r.0))) as ArrayRef;
    let names = readings.iter().map(|r| r.1.as_str());
    let names = || Arc::new(StringArray::from_iter_values(names.clone())) as ArrayRef;
    let coded = readings.iter().map(|r| r.1.as_str());
    let coded = Arc::new(coded.collect::<DictionaryArray<Int32Type>>());
    let numbers = readings.iter().map(|r| r.1[1..].parse::<i64>().unwrap());
    let numbers = Arc::new(Int64Array::from_iter_values(numbers));
    let generation = readings.iter().map(|r| if r.1.as_str() < "c3" { "new" } else { "old" });
    let generation = || Arc::new(StringArray::from_iter_values(generation.clone())) as ArrayRef;
    let watts = || Arc::new(readings.iter().map(|r| r.2).collect::<Float64Array>()) as ArrayRef;
    let short = Arc::new(readings.iter().map(|r| r.2.map(|w| w as f32)).collect::<Float32Array>());
    let instants = readings.iter().map(|r| r.0 * 1000 + 999);
    let instants = Arc::new(TimestampMillisecondArray::from_iter_values(instants));
    let worded = readings.iter().map(|r| r.2.map(|w| w.to_string())).collect::<StringArray>();
    let table = |name: &str, [time, chassis, watts]: [ArrayRef; 3]| {
        let columns =
            vec![("watts", watts), ("t_s", time), ("generation", generation()), ("chassis", chassis)];

        parquet(folder.path(), name, columns).unwrap();
    };

    table("plain.parquet", [time(), names(), watts()]);
    table("coded.parquet", [instants, coded, short]);
    table("numbers.parquet", [time(), numbers, watts()]);
    table("worded.parquet", [time(), names(), Arc::new(worded)]);

    let plan = |args: &str| {
        let mut answer = json(folder.path(), &format!("plan --buffer 0 --json --telemetry {args}"));
        answer["generations"][0]["rejected_readings"].take();
        answer
    };

    let expected = plan("seconds.csv");
    assert_eq!(expected["generations"][1]["generation"], "old");

    for key in ["missing", "not_above_zero", "implausible_values", "duplicates"] {
        let rejected = expected["generations"][0]["rejected"][key].as_u64();
        assert!(rejected.is_some_and(|count| count > 50), "{key}: {expected}");
    }

    assert!(expected["generations"][0]["longest_event_s"].as_u64() > Some(0), "{expected}");

    for args in [
        "part-1.csv part-2.csv",
        "part-2.csv part-1.csv",
        "nanoseconds.csv --time-unit ns",
        "stamps.csv",
        "plain.parquet",
        "plain.parquet --row-by-row",
        "coded.parquet",
        "coded.parquet --row-by-row --time-unit ms",
        "numbers.parquet",
        "worded.parquet",
    ] {
        assert_eq!(plan(args), expected, "{args}");
    }

    // Every reading twice: all that is more is a duplicate.
    let twice = plan("seconds.csv plain.parquet");
    assert_eq!(twice["readings"], expected["readings"]);
    assert_eq!(twice["generations"][1]["budget_w"], expected["generations"][1]["budget_w"]);
}

#[test]
fn what_is_wrong_in_parquet_is_named_by_its_row() {
    let folder = tempfile::tempdir().unwrap();
    let rows = 1_500;
    let table = |name: &str, time: Int64Array, chassis: StringArray, of: &[&str]| {
        let generation: StringArray = (0..rows).map(|row| Some(of[row * of.len() / rows])).collect();
        let watts = Float64Array::from_iter_values((0..rows).map(|_| 2_000.0));
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("t_s", Arc::new(time)),
            ("chassis", Arc::new(chassis)),
            ("watts", Arc::new(watts)),
            ("generation", Arc::new(generation)),
        ];

        parquet(folder.path(), name, columns).unwrap();
    };

    let time = |odd: Option<i64>| -> Int64Array {
        (0..rows as i64).map(|row| if row == 1_000 { odd } else { Some(row * 60) }).collect()
    };
    let good = || StringArray::from_iter_values((0..rows).map(|row| format!("c{}", row % 2)));
    let nameless: StringArray = (0..rows).map(|row| (row != 1_000).then_some("c1")).collect();
    table("late.parquet", time(Some(1_700_000_000_000)), good(), &[""]);
    table("timeless.parquet", time(None), good(), &[""]);
    table("nameless.parquet", time(Some(0)), nameless, &[""]);
    table("two.parquet", time(Some(0)), good(), &["a", "a", "b"]);

    for (file, said) in [
        ("late.parquet", "late.parquet, row 1001: t_s = \"1700000000000\": seconds as in the rows above"),
        ("timeless.parquet", "row 1001: t_s = \"\": a number (see --time-unit), or RFC 3339"),
        ("nameless.parquet", "row 1001: chassis = \"\": a name is needed"),
        ("two.parquet", "row 1001: chassis c0 is of generation \"a\", and now of \"b\": it has one"),
    ] {
        for how in ["", "--row-by-row"] {
            refused(folder.path(), &format!("plan --telemetry {file} {how}"), said);
        }
    }
}

#[test]
fn what_servers_were_busy_with_says_what_can_be_shed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (mut draws, mut loads) = ("t_s,chassis,watts\n".to_owned(), String::new());
    for minute in 0..100 {
        // At the peak one server works for users and the other for others; else both work for others.
        let peak = minute == 50;
        writeln!(draws, "{},c1,{}", 60 * minute, if peak { 600 } else { 400 }).unwrap();
        let users = if peak { 0.9 } else { 0.0 };
        writeln!(loads, "{0},c1,a,{users},{1}\n{0},c1,b,0,0.5", 60 * minute, 0.5 - users / 2.0).unwrap();
    }
    fs::write(folder.join("draws.csv"), draws).unwrap();
    fs::write(folder.join("loads.csv"), format!("t_s,chassis,server,user_facing,others\n{loads}")).unwrap();

    let plan = "plan --telemetry draws.csv --servers 2 --provisioned-w 620 --buffer 0 --json";
    let loaded = json(folder, &format!("{plan} --loads loads.csv --policy minimal-impact"));
    // Others kept 0.55 servers busy: 140 W of 198 come off each at half frequency.
    assert_eq!(loaded["reductions"]["first_w"], 77.0, "{loaded}");
    let internal = format!("{plan} --loads loads.csv --policy no-impact-internal --internal-share 0.5");
    assert_eq!(json(folder, &internal)["reductions"]["first_w"], 38.5);
    let premium = format!("{plan} --loads loads.csv --policy no-impact-non-premium --premium-share 0.2");
    assert_eq!(json(folder, &premium)["reductions"]["first_w"], 61.6);

    // 1 of 100 readings may be an event: 400 W, less than 600 - 77.
    let rack = json(folder, &format!("{plan} --loads loads.csv --rack-w 3000"))["rack"].clone();
    assert_eq!((&rack["servers_provisioned"], &rack["servers"]), (&9.into(), &11.into()), "{rack}");

    for (rows, said) in [
        ("0,c1,a,0.9,0.2", "line 2: user_facing = \"0.9\": a share of the server's cores, 0 to 1"),
        ("0,c1,a,0,0\n0,c1,b,0,0\n0,c1,c,0,0", "chassis c1 has 3 servers: --servers is 2"),
        ("0,c7,a,0.1,0.2", "no chassis of the telemetry has loads; they are of \"c7\""),
    ] {
        fs::write(folder.join("odd.csv"), format!("t_s,chassis,server,user_facing,others\n{rows}\n"))
            .unwrap();
        refused(folder, &format!("{plan} --loads odd.csv"), said);
    }
    let shares = format!("{plan} --internal-share 0.9 --premium-share 0.2");
    refused(folder, &shares, "premium_share = 0.2: with internal_share at most 1");
}

#[test]
fn owners_of_past_vms_say_who_is_capped_first() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut text = "cores,arrival_s,end_s,class,p95_cpu,owner\n".to_owned();
    for _ in 0..40 {
        text += "1,0,600,non-user-facing,30,internal\n1,0,600,non-user-facing,10,premium\n";
        text += "1,0,600,user-facing,50,premium\n1,0,600,non-user-facing,60,\n";
    }
    fs::write(folder.join("vms.csv"), text).unwrap();
    fs::write(folder.join("counts.csv"), COUNTS).unwrap();
    let answer = json(folder, "plan --histogram counts.csv --history vms.csv --json");
    let load = answer["basis"]["load"].as_str().unwrap();
    let said = "internal-share 0.750 ± 0.042 of 80 VMs, premium-share 0.250 ± 0.042 of 80 VMs";
    assert!(load.contains(said), "{load}");
}

#[test]
fn stuck_meters_are_left_out_where_asked() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = "t_s,chassis,watts\n".to_owned();
    for minute in 0..2_000 {
        let watts = if minute < 1_200 { 900 } else { 2_000 + minute % 7 };
        writeln!(text, "{},c1,{watts}", minute * 60).unwrap();
    }
    fs::write(folder.path().join("draws.csv"), &text).unwrap();
    let answer = json(folder.path(), "plan --telemetry draws.csv --stuck-s 3600 --json");
    assert_eq!((&answer["readings"], &answer["rejected"]["stuck"]), (&801.into(), &1_199.into()));
    let answer = json(folder.path(), "plan --telemetry draws.csv --json");
    assert_eq!((&answer["readings"], &answer["rejected"]["stuck"]), (&2_000.into(), &0.into()));
}

#[test]
fn no_level_gets_budgets_that_its_breaker_cannot_carry() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = "t_s,chassis,watts\n".to_owned();
    for minute in 0..1000 {
        for chassis in 0..3 {
            let w = if minute / 10 == chassis { 3000 } else { 2000 };
            writeln!(text, "{},c{chassis},{w}", minute * 60).unwrap();
        }
    }

    fs::write(folder.path().join("draws.csv"), text).unwrap();
    let node = |name, level, w, more: &str| {
        format!("[[node]]\nname = \"{name}\"\nlevel = \"{level}\"\nprovisioned_w = {w}\n{more}\n")
    };
    let row = node("row-1", "row", 11_160, "");
    let racks = |w| {
        node("rack-1", "rack", w, "parent = \"row-1\"\nchassis = [\"c0\", \"c1\"]")
            + &node("rack-2", "rack", 3720, "parent = \"row-1\"\nchassis = [\"c2\"]")
    };

    let asked = "plan --telemetry draws.csv --topology topology.toml";
    let topology = folder.path().join("topology.toml");
    fs::write(&topology, row.clone() + &racks(6000)).unwrap();
    let answer = json(folder.path(), &format!("{asked} --json"));
    let levels = &answer["levels"];
    let planned = answer["budget_w"].as_f64().unwrap();
    assert!(planned > 3000.0, "{answer}");
    let names: Vec<_> = levels["nodes"].as_array().unwrap().iter().map(|n| &n["name"]).collect();
    assert_eq!(names, ["row-1", "rack-1", "rack-2"]);
    let budgets: Vec<_> = levels["chassis"].as_array().unwrap().iter().collect();
    assert_eq!((&budgets[0]["budget_w"], &budgets[0]["lowered_by"]), (&3000.0.into(), &"rack-1".into()));

    assert_eq!((&budgets[2]["budget_w"], &budgets[2]["lowered_by"]), (&planned.into(), &Value::Null));

    let row_1 = &levels["nodes"][0];
    assert_eq!(row_1["budget_w"], 6000.0 + planned);
    assert!(row_1["alone"]["budget_w"].as_f64() < row_1["budget_w"].as_f64());
    let said = ballast(folder.path(), asked);
    let said = String::from_utf8_lossy(&said.stdout);
    assert!(said.contains("c0: 3000.0 W (by rack-1)"), "{said}");

    for (nodes, says) in [
        (racks(6000), "node \"rack-1\": parent = \"row-1\": the name of a node"),
        (row + &racks(4000), "rack \"rack-1\" is provisioned for 4000.0 W"),
        (node("r", "rack", 9000, "chassis = [\"c0\"]"), "chassis \"c1\" is in the telemetry"),
        (node("r", "rack", 9000, "chasis = [\"c0\"]"), "unknown field `chasis`"),
    ] {
        fs::write(&topology, nodes).unwrap();
        refused(folder.path(), asked, says);
    }
}

/// Counts as the shipped query does, of some chassis in some time: CSV.
fn count(readings: &[(i64, String, Option<f64>)], of: &[&str], from_s: i64, until_s: i64) -> String {
    let mut units: BTreeMap<(&str, i64), i64> = BTreeMap::new();
    for (t_s, chassis, watts) in readings {
        let here = of.contains(&chassis.as_str()) && (from_s..until_s).contains(t_s);
        let Some(watts) = watts.filter(|&w| here && (0.5..=7440.0).contains(&w)) else { continue };
        let step = units.entry((chassis, t_s.div_euclid(60))).or_default();
        *step = ((watts + 0.5).floor() as i64).max(*step);
    }

    let mut counts: BTreeMap<(&str, i64), u64> = BTreeMap::new();

    for ((chassis, _), step) in units {
        *counts.entry((if chassis < "c3" { "new" } else { "old" }, step)).or_default() += 1;
    }
    let mut text = "generation,watts,count\n".to_owned();
    counts.iter().for_each(|((of, w), count)| text += &format!("{of},{w},{count}\n"));

    text
}

#[test]
fn declared_parts_give_the_telemetrys_answer_and_overlaps_are_refused() {
    const FROM: i64 = 1_699_999_980;
    const CUT: i64 = FROM + 400 * 60;
    const UNTIL: i64 = FROM + 1_100 * 60;
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let readings = dirty();
    let mut text = "t_s,chassis,generation,watts\n".to_owned();

    for (t_s, chassis, watts) in &readings {
        let generation = if chassis.as_str() < "c3" { "new" } else { "old" };
        let watts = watts.map_or_else(String::new, |w| w.to_string());
        writeln!(text, "{t_s},{chassis},{generation},{watts}").unwrap();
    }

    write("telemetry.csv", &text);
    let (some, others) = (["c0", "c3"], ["c1", "c2", "c4"]);
    write("a.csv", &count(&readings, &some, FROM, CUT));
    write("b.csv", &count(&readings, &others, FROM, CUT));
    write("c.csv", &count(&readings, &["c0", "c1", "c2", "c3", "c4"], CUT, UNTIL));
    write("all.csv", "chassis\nc0\nc1\nc2\nc3\nc4\n");
    let head = "period_s = 60\nresolution_w = 1\nmost_w = 7440\n";
    let part = |file: &str, chassis: &str, from_s: i64, until_s: i64| {
        format!(
            "[[part]]\nhistogram = \"{file}.csv\"\nchassis = {chassis}\nfrom_s = {from_s}\nuntil_s = \
             {until_s}\n"
        )
    };

    let a = part("a", "[\"c0\", \"c3\"]", FROM, CUT);
    let b = part("b", "[\"c1\", \"c2\", \"c4\"]", FROM, CUT);
    let c = part("c", "\"all.csv\"", CUT, UNTIL);
    write("parts.toml", &format!("{head}{a}{b}{c}"));
    write("first.toml", &format!("{head}{a}{b}"));
    write("second.toml", &format!("{head}{c}"));

    let plan = |args: &str| {
        let mut answer = json(folder.path(), &format!("plan --buffer 0 --json {args}"));
        for one in answer["generations"].as_array_mut().unwrap() {
            for key in ["longest_event_s", "rejected", "rejected_readings"] {
                one[key].take();
            }
        }

        answer["rejected_readings"].take();

        answer
    };

    let expected = plan("--telemetry telemetry.csv");
    assert!(expected["readings"].as_u64() > Some(1_000));
    assert_eq!(plan("--histogram parts.toml"), expected);
    assert_eq!(plan("--histogram second.toml first.toml"), expected);

    write("overlap.toml", &format!("{head}{a}{b}{}", part("c", "\"all.csv\"", CUT - 60, UNTIL)));
    write("coarse.toml", &format!("{}{a}", head.replace("resolution_w = 1", "resolution_w = 5")));
    write("short.toml", &format!("{head}{}", part("c", "\"all.csv\"", CUT, CUT + 600)));
    write("misspelt.toml", &format!("{head}{}", a.replace("until_s", "to_s")));
    write("nobody.toml", &format!("{head}{}", part("a", "3", FROM, CUT)));
    write("odd.csv", "watts,count\n1000.5,1\n");
    write("odd.toml", &format!("{head}{}", part("odd", "[\"c1\"]", FROM, CUT)));
    write("sentinel.csv", "watts,count\n65535,1\n");

    for (files, said) in [
        ("overlap.toml", "a.csv and c.csv both count chassis c0 from"),
        ("parts.toml first.toml", "a.csv and a.csv both count chassis c0 from"),
        ("a.csv b.csv", "a.csv does not say which chassis it counts, and when"),
        ("first.toml c.csv", "c.csv does not say which chassis it counts, and when"),
        ("coarse.toml", "resolution_w = 5: --resolution-w is 1"),
        ("short.toml", "where its chassis and time have room for 50"),
        ("misspelt.toml", "unknown field `to_s`"),
        ("nobody.toml", "a list of names, or a file with a column \"chassis\""),
        ("odd.toml", "odd.csv, line 2: watts = \"1000.5\": above 0 W, up to --most-w (7440), a multiple of"),
        ("sentinel.csv", "line 2: watts = \"65535\": above 0 W, up to --most-w (7440), is needed"),
    ] {
        refused(folder.path(), &format!("plan --histogram {files}"), said);
    }
}

#[test]
fn the_guides_examples_work() {
    let guide = include_str!("../../docs/place-and-plan/planner.md");
    let blocks = |kind: &str| -> Vec<String> {
        let fence = format!("```{kind}\n");
        let begins = guide.split(&fence).skip(1);
        begins.map(|rest| rest.split("```").next().unwrap_or_default().to_owned()).collect()
    };

    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("draws.csv", &blocks("csv")[0]);
    write("loads.csv", &blocks("csv")[1]);
    for (month, first) in [("july.csv", 0), ("august.csv", 12 * 24)] {
        let hour = |n: i64| format!("{},rack1-c1,2000\n", 1_767_571_200 + 3600 * (first + n));
        let hours: String = (0..12 * 24).map(hour).collect();
        write(month, &format!("t_s,chassis,watts\n{hours}"));
    }
    write("topology.toml", &blocks("toml")[0]);
    write("parts.toml", &blocks("toml")[1]);
    write("chassis.csv", "chassis\nrack1-c1\nrack1-c3\n");

    for week in ["week-1.csv", "week-2.csv"] {
        write(week, "generation,watts,count\ngen8,2210,7\n");
    }
    let mut tried = 0;

    for line in blocks("sh").iter().flat_map(|block| block.lines()) {
        let args = line.strip_prefix("ballast ").expect("examples are of this program");
        let output = ballast(folder.path(), args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !output.stdout.is_empty(), "{line}: {stderr}");
        tried += 1;
    }

    assert_eq!(tried, 9);
}
