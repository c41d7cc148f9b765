//! The public data sets, read as they are. Without them every test says so and passes.
//!
//! They are looked for in `$BALLAST_DATA`, or in `../shared/data` beside the project.
#![expect(clippy::disallowed_methods, reason = "a test of real files opens them")]
#![expect(clippy::print_stderr, reason = "a skipped test says so")]

use std::fs::File;
use std::path::{Path, PathBuf};

use ballast_sim::demo::{DemoOptions, TraceScale, demo, trace_scales};
use ballast_sim::plant::{Plant, peak_draw};
use ballast_sim::trace::{ReadOptions, Trace, Unit};
use ballast_types::Instant;

fn open(name: &str) -> Option<Trace> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let path = std::env::var_os("BALLAST_DATA").map_or(beside, PathBuf::from).join(name);
    if !path.exists() {
        eprintln!("skipped: {} is not there", path.display());
        return None;
    }
    let file = File::open(&path).expect("a data file can be opened");
    Some(Trace::read(file, name, &ReadOptions::default()).expect("a public data set can be read"))
}

const BITBRAINS: &str = "bitbrains_rnd/cpu_pct_2013-8.csv.zst";
const AZURE: &str = "azure2017_util/microsoft_avg_100.csv.zst";

#[test]
fn every_public_layout_is_read() {
    for (name, unit, series, rows, gaps) in [
        (BITBRAINS, Unit::Percent, 490..=500, 8640, 0.0..0.03),
        ("bitbrains_rnd/cpu_pct_2013-7.csv.zst", Unit::Percent, 400..=500, 8640, 0.05..0.2),
        (AZURE, Unit::Percent, 100..=100, 8004, 0.0..0.01),
        ("planetlab/planetlab_20110303.csv.zst", Unit::Percent, 1052..=1052, 288, 0.0..0.01),
        ("google_power2019/cella_pdu6.csv.zst", Unit::Share, 1..=1, 8928, 0.0..0.01),
    ] {
        let Some(trace) = open(name) else { continue };
        let report = &trace.report;
        assert_eq!((trace.period_s, trace.series[0].unit), (300.0, unit), "{name}");
        assert!(series.contains(&trace.series.len()), "{name}: {}", trace.series.len());
        assert_eq!(report.rows, rows, "{name}");
        let cells = report.rows as f64 * (trace.series.len() as u64 + report.empty_series) as f64;
        let share = report.gaps as f64 / cells;
        assert!(gaps.contains(&share), "{name}: {share} gaps, {report:?}");
        assert_eq!(report.duplicate_rows, 0, "{name}");
    }
}

#[test]
fn real_days_break_the_budget_and_fit_at_the_floor() {
    for (name, least) in [(BITBRAINS, 1.12), (AZURE, 1.04)] {
        let Some(trace) = open(name) else { continue };
        let options = DemoOptions {
            seconds: 30.0,
            hardware_caps: false,
            trace: Some((&trace, TraceScale::Auto)),
            ..DemoOptions::default()
        };

        let spec = demo(&options);
        let share = |floored| peak_draw(&spec, 30.0, 3000, floored).as_f64() / options.budget.as_f64();
        let (peak, floored) = (share(false), share(true));
        assert!((least..1.16).contains(&peak), "{name}: uncapped peak {peak}");
        assert!(floored < 0.95, "{name}: peak at the floor {floored}");
        let mut plant = Plant::new(spec, 1);
        let mut quiet = 0;

        for n in 1..=3000 {
            plant.advance(Instant::from_millis(n * 10));
            quiet += u32::from(plant.power() < options.budget.ppm(960_000));
        }

        let truth = plant.truth();
        eprintln!(
            "{name}: scales {:?}, peak {peak:.3}, floored {floored:.3}, over {:.1} s, quiet {:.1} s",
            trace_scales(plant.spec()),
            truth.over_budget_s_total,
            f64::from(quiet) / 100.0,
        );

        assert!(truth.over_budget_s_total > truth.over_budget_s_max, "{name}: several times");
        assert!(quiet > 300, "{name}: and it falls by itself");
    }
}
