//! `ballast recommend` from outside.

use std::fmt::Write as _;
use std::fs;

use ballast_agent::records::{Limits, Store};
use ballast_types::{MemoryUse, UsageBin, UsageRecord, VmId, VmStart};
use serde_json::Value;

use crate::common::{json, refused};

/// Use of two jobs in percent, every `step_s` for so many days: one is busy in the ninth hour of each day, the other is even.
fn wide(days: u64, step_s: u64) -> String {
    let mut csv = "t_s,daily,even\n".to_owned();
    for at in (0..days * 86_400).step_by(step_s as usize) {
        let daily = if at / 3600 % 24 == 9 { 60 } else { 4 };
        let _ = writeln!(csv, "{at},{daily},{}", 20 + at / step_s % 3);
    }
    csv
}

fn of<'a>(answer: &'a Value, job: &str) -> &'a Value {
    let jobs = answer["jobs"].as_array().expect("jobs");
    jobs.iter().find(|it| it["job"] == job).expect("the job")
}

#[test]
fn jobs_get_limits_that_fit_their_days() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("use.csv"), wide(16, 300)).unwrap();
    fs::write(folder.path().join("vms.csv"), "vm,cores\ndaily,8\neven,2\n").unwrap();
    let command = "recommend --telemetry use.csv --cores vms.csv --overruns 0.001 --json";
    let auto = json(folder.path(), command);

    assert_eq!((&auto["judged_days"], &auto["jobs"].as_array().map(Vec::len)), (&8.into(), &Some(2)));
    assert!(auto["overruns"].as_f64() <= Some(0.001), "{auto}");
    let even = of(&auto, "even");
    let limit = even["limit_cores"].as_f64().unwrap();
    assert!((0.44..0.7).contains(&limit), "22 % of two cores, and a margin: {even}");
    // The peak of a day would keep 60 % all day; it is used for one hour of 24.
    let peak = json(folder.path(), &format!("{command} --family peak"));
    let daily = of(&auto, "daily");
    let mean = |job: &Value| job["mean_limit_ratio"].as_f64().unwrap();
    assert!(mean(daily) < 0.8 * mean(of(&peak, "daily")), "{daily} {peak}");
    assert!(auto["saved_cores"].as_f64() > peak["saved_cores"].as_f64(), "{auto}");

    // Readings of a minute are the same in the mean.
    fs::write(folder.path().join("minutes.csv"), wide(16, 60)).unwrap();
    let minutes = json(folder.path(), &command.replace("use.csv", "minutes.csv"));
    let near = of(&minutes, "even")["limit_cores"].as_f64().unwrap();
    assert!((near - limit).abs() < 0.15, "{near} {limit}");
}

#[test]
fn an_agents_records_tell_limits_of_cpu_and_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("usage"), Limits { days: 30, bytes: 1 << 30 }).unwrap();
    for day in 20_000..20_012 {
        let mut records = vec![];
        for bin in (day * 288..(day + 1) * 288).map(UsageBin) {
            for (vm, mc, mib) in [("web", 1000, 300), ("batch", 500, 900)] {
                let mut record = UsageRecord::empty(VmId::new(vm).unwrap(), VmStart(1), bin, 4);
                (0..300).for_each(|_| record.cpu.add(mc));
                let working_set_bytes = Some((mib + u64::from(bin.0 % 7)) << 20);
                record.memory = MemoryUse { working_set_bytes, ..MemoryUse::default() };
                // One window is not known.
                if bin.0 == 20_003 * 288 {
                    record.memory = MemoryUse::default();
                }
                records.push(record);
            }
        }
        store.append(&records).unwrap();
    }

    let cpu = json(folder.path(), "recommend --records usage --family experts --json");
    assert_eq!((&cpu["resource"], &cpu["gaps"]), (&"cpu".into(), &0.into()));
    assert!((1.0..1.2).contains(&of(&cpu, "web")["limit_cores"].as_f64().unwrap()), "{cpu}");
    assert!(of(&cpu, "web")["limit_mib"].is_null(), "{cpu}");

    let memory = json(folder.path(), "recommend --records usage --memory-mib 8192 --family vpa --json");
    assert_eq!((&memory["resource"], &memory["gaps"]), (&"memory".into(), &2.into()));
    assert_eq!((memory["overruns"].as_f64(), &memory["saved_ratio"]), (Some(0.0), &Value::Null));
    for (vm, used) in [("web", 306.0), ("batch", 906.0)] {
        let limit = of(&memory, vm)["limit_mib"].as_f64().unwrap();
        assert!((used * 1.15..used * 1.25).contains(&limit), "{vm}: {limit}");
    }
    let few = "recommend --records usage --memory-mib 512 --family vpa --json --plot limits.svg";
    let few = json(folder.path(), few);
    let plot = fs::read_to_string(folder.path().join("limits.svg")).unwrap();
    assert!(plot.contains("memory of 2 jobs") && plot.contains("after: the limit"), "{plot}");
    assert_eq!(of(&few, "batch")["limit_mib"].as_f64(), Some(512.0), "no more than the server has");
}

#[test]
fn what_cannot_be_judged_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    file("short.csv", "t_s,a\n0,5\n300,5\n600,5\n");
    file("hourly.csv", &wide(16, 3600));
    file("nothing.csv", "t_s,a\n0,\n300,\n600,\n900,\n");
    file("few.csv", "vm,cores\ndaily,2\n");
    file("day.csv", &wide(1, 300));
    for (args, said) in [
        ("short.csv", "short.csv: 3 windows of five minutes: at least 4"),
        ("hourly.csv", "a reading every 3600 s"),
        ("day.csv --cores few.csv", "vm even: no size is known"),
        ("day.csv --overruns 2", "0 to 1"),
        ("day.csv --family best", "possible values: auto"),
    ] {
        refused(folder.path(), &format!("recommend --telemetry {args}"), said);
    }
    refused(folder.path(), "recommend --telemetry day.csv --memory-mib 5", "--telemetry");
    let short = json(folder.path(), "recommend --telemetry day.csv --json");
    assert_eq!(short["judged_days"], 1);
}
