//! `shares`, `[poll]`, `[alert]` and `[out_of_band]`: what the controller goes by.

use std::time::Duration;

use ballast_chassis_core::{LiftRule, Params};
use ballast_types::wire::SharePolicy;

use ballast_runtime::config::allowed::{Allowed, choice, millis, percent, watts_in};
use ballast_runtime::config::preset;
use ballast_runtime::config::reader::Section;

use super::breaker::Breaker;

/// A time of the controller.
fn span() -> Allowed<Duration> {
    millis(1..=3_600_000)
}

/// Reads everything over the defaults; gives back the breaker, and what should be told otherwise.
pub(super) fn read(root: &mut Section<'_, '_>, params: &mut Params) -> (Breaker, Vec<String>) {
    params.shared_floor = root.optional(
        "shared_w",
        watts_in(0.0..=1e8),
        "At least this is drawn by fans, conversion loss and switch; a tenth of the budget unless set, until \
         it has been measured.",
    );
    let help = "`\"paper\"` sets `shares = \"even\"` and `alert.lift = \"paper\"`; a key that is set itself \
                comes before the preset.";
    if root.optional("preset", preset(), help).is_some() {
        *params = params.clone().as_in_the_paper();
    }
    params.shares = root.or(
        "shares",
        params.shares,
        choice(SharePolicy::ALL.map(|policy| (policy.name(), policy))),
        "Who gets which watts: by what each server can still shed from low-priority cores, so that \
         user-facing VMs are not throttled wherever they are; or every server the same.",
    );
    let breaker = Breaker::read(root, params);

    let mut warnings = vec![];
    read_poll(root, params);
    read_alert(root, params, &mut warnings);
    read_out_of_band(root, params, &mut warnings);

    if params.lift_ppm >= params.alert_ppm {
        root.refuse_key("alert.lift_percent", "below alert.at_percent");
    }
    if params.lease > breaker.carried {
        root.refuse_key("alert.lease_ms", format_args!("no longer than the breaker: {breaker}"));
    }
    if params.silent_after > params.lease {
        root.refuse_key("alert.silent_after_ms", "at most lease_ms");
    }
    breaker.check(root, params);

    (breaker, warnings)
}

fn read_poll(root: &mut Section<'_, '_>, params: &mut Params) {
    let mut section = root.section("poll", "How the power supplies are read.");
    params.poll_period = section.or("period_ms", params.poll_period, span(), "Between two readings.");
    let help = "How far the supplies' readings lag behind the draw.";
    params.sensor_lag = section.or("lag_ms", params.sensor_lag, span(), help);
    params.sensor_refresh =
        section.or("refresh_ms", params.sensor_refresh, span(), "What a reading is a mean over.");
    params.noise_ppm = section.or(
        "noise_percent",
        params.noise_ppm,
        percent("a percentage of the draw", 0.01..=10.0),
        "The standard deviation of a reading.",
    );
    section.finish();
}

fn read_alert(root: &mut Section<'_, '_>, params: &mut Params, warnings: &mut Vec<String>) {
    let mut section = root.section("alert", "When a capping event begins and ends, and how agents are told.");
    let of_limit = || percent("a percentage of the limit", 0.0001..=100.0);
    params.alert_ppm = section.or("at_percent", params.alert_ppm, of_limit(), "A capping event begins here.");
    params.above_share_ppm = section.or(
        "above_share_percent",
        params.above_share_ppm,
        percent("a percentage of the time", 0.1..=10.0),
        "In a capping event so much of the time may be above the limit: the draw is kept as far under it as \
         that needs.",
    );
    params.lift_ppm = section.or(
        "lift_percent",
        params.lift_ppm,
        of_limit(),
        "The event ends after `lift_hold_ms` below this, counting what would come back.",
    );
    params.lift_hold = section.or(
        "lift_hold_ms",
        params.lift_hold,
        span(),
        "For so long the draw must stay below `lift_percent`.",
    );
    params.lift_rule = section.or(
        "lift",
        params.lift_rule,
        choice([("restorable", LiftRule::Restorable), ("paper", LiftRule::Paper)]),
        "What counts at the end: the draw and what would come back, or a plain timer.",
    );
    params.lift_stagger = section.or(
        "lift_stagger_ms",
        params.lift_stagger,
        span(),
        "Between two servers that are told that the event is over.",
    );
    params.heartbeat =
        section.or("heartbeat_ms", params.heartbeat, span(), "Between two messages to an agent.");
    params.lease = section.or("lease_ms", params.lease, span(), "How long a raise lasts without news.");
    params.silent_after = section.or(
        "silent_after_ms",
        params.silent_after,
        span(),
        "An agent that has not answered for so long is silent; at most `lease_ms`.",
    );
    let now = "every low-priority core goes to its floor when the breaker is a quarter of the way to its \
               trip ([trip_curve])";
    read_dead(&mut section, ("alert", "emergency_after_ms"), now, warnings);
    section.finish();
}

fn read_out_of_band(root: &mut Section<'_, '_>, params: &mut Params, warnings: &mut Vec<String>) {
    let help = "Hardware caps by slot controllers and BMCs, when software fails; `[trip_curve]` says when.";
    let mut section = root.section("out_of_band", help);
    params.out_of_band_hold = section.or(
        "hold_ms",
        params.out_of_band_hold,
        span(),
        "The draw must have fitted for so long before a cap is lifted, unless the server's agent obeys and \
         holds the server there.",
    );
    let now = "hardware caps come when the breaker is half-way to its trip, or too little time is left for \
               them ([trip_curve])";
    read_dead(&mut section, ("out_of_band", "after_ms"), now, warnings);
    let now = "at most 5 % of the limit is given back in a second";
    read_dead(&mut section, ("out_of_band", "stagger_ms"), now, warnings);
    section.finish();
}

/// Reads a key of earlier versions that decides nothing any more, and says what does.
fn read_dead(
    section: &mut Section<'_, '_>,
    (table, key): (&str, &'static str),
    now: &str,
    warnings: &mut Vec<String>,
) {
    let help = "Decides nothing any more; accepted with a warning that says what does.";
    if section.optional(key, span(), help).is_some() {
        warnings.push(format!("{table}.{key} decides nothing any more, and may be removed: {now}"));
    }
}
