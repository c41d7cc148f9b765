//! Foreign telemetry on the plant.

use ballast_agent_core::Policy;
use ballast_sim::replay::{Meaning, Options, Playback, Telemetry, TelemetryError, TelemetryReport};
use ballast_sim::scenario::Control;
use ballast_sim::trace::{ReadOptions, Trace};
use ballast_types::{PowerModel, Watts};

fn trace(text: &str) -> Trace {
    Trace::read(text.as_bytes(), "t.csv", &ReadOptions::default()).expect("a trace")
}

/// Three servers of 200 W, whose second minute is `high`.
fn watts(high: f64) -> Trace {
    let mut text = String::from("timestamp,server,watts\n");
    for t in (0..180).step_by(10) {
        for server in ["a", "b", "c"] {
            let w = if (60..120).contains(&t) { high } else { 200.0 };
            text += &format!("{t},{server},{w}\n");
        }
    }
    trace(&text)
}

fn options(budget: i64) -> Options {
    let model = PowerModel::PAPER;
    Options {
        playback: Playback { servers: None, skip_s: 0.0, length_s: None, scale: 1.0, model },
        budget: Watts::from_whole(budget),
        control: Control::new(Policy::Stepwise),
        seed: 1,
        points: 20,
    }
}

fn playing(options: &Options, change: impl FnOnce(&mut Playback)) -> Options {
    let mut playback = options.playback;
    change(&mut playback);
    Options { playback, ..options.clone() }
}

fn run(trace: &Trace, options: &Options) -> TelemetryReport {
    Telemetry::new(trace, options).expect("sound options").run(|_| ()).expect("promises kept")
}

#[test]
fn watts_come_out_as_they_went_in() {
    let report = run(&watts(200.0), &options(1000));
    assert_eq!((report.servers, report.series_are), (3, Meaning::Server));
    // 3 × 200 W, a quarter of 84 to 220 W of fans and switch, and up to a tenth of loss.
    assert!((620.0..760.0).contains(&report.mean_power_w), "{}", report.mean_power_w);
    assert_eq!((report.outcome.capping_events, report.clamped_values, report.gaps), (0, 0, 0));
    assert!(report.batch_throttled_core_s == 0.0 && report.over_budget_s_total == 0.0);
    assert!((report.replayed_s - 170.0).abs() < 0.1, "{}", report.replayed_s);
    // Every 200 ms, once the manager has started after 0.3 s.
    assert!((848..=850).contains(&report.outcome.polls), "{}", report.outcome.polls);
}

#[test]
fn too_much_is_capped_and_its_peak_is_in_the_curve() {
    let telemetry = watts(280.0);
    let free = run(&telemetry, &Options { control: Control::new(Policy::None), ..options(860) });
    assert!(free.max_power_w > 900.0 && free.over_budget_s_total > 50.0, "{}", free.max_power_w);
    let report = run(&telemetry, &options(860));
    assert_eq!(report.outcome.capping_events, 1);
    // The draw rises by 3 % a second: most of that time passes before a reading shows the excess.
    assert!(report.over_budget_s_max <= 1.5, "{} s above", report.over_budget_s_max);
    assert!(report.outcome.trip_fraction_max < 0.05, "{}", report.outcome.trip_fraction_max);
    assert!(report.outcome.batch_frequency_ratio_min < 0.9 && report.batch_throttled_core_s > 100.0);
    assert!(report.user_facing_throttled_core_s == 0.0);
    let peak = report.curve.iter().map(|b| b.power_max_w).fold(0.0, f64::max);
    assert!((peak - report.max_power_w).abs() < 0.01, "{peak} of {}", report.max_power_w);
    assert_eq!(run(&telemetry, &options(860)).outcome.outputs_hash, report.outcome.outputs_hash);
    let other = Options { seed: 2, ..options(860) };
    assert_ne!(run(&telemetry, &other).outcome.outputs_hash, report.outcome.outputs_hash);
}

#[test]
fn what_is_wrong_with_the_input_is_counted() {
    // Below idle and above full load are clamped; a blank holds the value before it.
    let text = "timestamp,server,watts\n0,a,50\n10,a,400\n20,a,\n30,a,200\n";
    let report = run(&trace(text), &options(1000));
    assert_eq!((report.clamped_values, report.gaps), (2, 1));
    // More series than servers: VMs.
    let wide = playing(&options(1000), |p| {
        (p.servers, p.scale, p.length_s) = (Some(2), 2.0, Some(20.0));
    });
    let report = run(&trace("t_s,u,v,w\n0,10,20,30\n300,10,,90\n"), &wide);
    assert_eq!((report.series_are, report.series_used), (Meaning::Vm, 3));
    assert_eq!((report.clamped_values, report.gaps), (1, 1));
    assert!((report.replayed_s - 20.0).abs() < 0.1);
}

#[test]
fn senseless_options_are_refused_with_their_values() {
    let telemetry = watts(200.0);
    let refused = |options: Options| Telemetry::new(&telemetry, &options).unwrap_err();
    let budget = refused(options(300));
    assert!(matches!(budget, TelemetryError::Budget { .. }));
    let text = budget.to_string();
    assert!(text.contains("300.0 W") && text.contains("3 servers"), "{text}");

    for (options, part) in [
        (options(0), "budget_w = 0"),
        (options(-5), "budget_w = -5"),
        (playing(&options(900), |p| p.scale = f64::NAN), "scale = NaN"),
        (playing(&options(900), |p| p.servers = Some(0)), "servers = 0"),
        (playing(&options(900), |p| p.skip_s = 1e9), "skip"),
        (playing(&options(900), |p| p.length_s = Some(-1.0)), "hours"),
        (playing(&options(900), |p| p.model.full_w = 1.0), "power model"),
    ] {
        let text = refused(options).to_string();
        assert!(text.contains(part), "{text}");
    }
}
