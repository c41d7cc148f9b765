//! `shares`, `[poll]`, `[alert]` and `[hardware_caps]`: what the controller goes by.

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

/// Reads everything over the defaults, and returns the breaker.
pub(super) fn read(root: &mut Section<'_, '_>, params: &mut Params) -> Breaker {
    let help = "At least this is drawn by fans, conversion loss and switch; a tenth of the budget unless \
                set, until it has been measured.";
    params.shared_floor = root.key("shared_w", help).optional(watts_in(0.0..=1e8));
    let help = "`\"paper\"` sets `shares = \"even\"` and `alert.lift = \"paper\"`; a key that is set itself \
                comes before the preset.";
    if root.key("preset", help).optional(preset()).is_some() {
        *params = params.clone().as_in_the_paper();
    }
    let help = "Who gets which watts: by what each server can still shed from low-priority cores, so that \
                user-facing VMs are throttled last, wherever they are (a tight budget throttles them, too); \
                or every server the same.";
    params.shares = root
        .key("shares", help)
        .or(params.shares, choice(SharePolicy::ALL.map(|policy| (policy.name(), policy))));
    let breaker = Breaker::read(root, params);

    read_poll(root, params);
    read_alert(root, params);
    read_out_of_band(root, params);

    if params.lift_ppm >= params.alert_ppm {
        root.refuse_key("alert.lift_percent", "below alert.at_percent");
    }
    if params.lease > breaker.carried {
        root.refuse_key("alert.lease_ms", format_args!("no longer than the breaker: {breaker}"));
    }
    let least = 3 * params.poll_period;
    if params.lease < least {
        let (lease, poll) = (params.lease.as_millis(), params.poll_period.as_millis());
        let why = format!("{lease} is below three polls of {poll} ms: at least {}", least.as_millis());
        root.refuse_key("alert.lease_ms", why);
    }
    if params.silent_after > params.lease {
        root.refuse_key("alert.silent_after_ms", "at most lease_ms");
    }
    breaker.check(root, params);

    breaker
}

fn read_poll(root: &mut Section<'_, '_>, params: &mut Params) {
    let mut section = root.section("poll", "How the power supplies are read.");
    params.poll_period = section.key("period_ms", "Between two readings.").or(params.poll_period, span());
    let help = "How far the supplies' readings lag behind the draw.";
    params.sensor_lag = section.key("lag_ms", help).or(params.sensor_lag, span());
    params.sensor_refresh =
        section.key("refresh_ms", "What a reading is a mean over.").or(params.sensor_refresh, span());
    params.noise_ppm = section
        .key("noise_percent", "The standard deviation of a reading.")
        .or(params.noise_ppm, percent("a percentage of the draw", 0.01..=10.0));
    section.finish();
}

fn read_alert(root: &mut Section<'_, '_>, params: &mut Params) {
    let mut section = root.section("alert", "When a capping event begins and ends, and how agents are told.");
    let of_limit = || percent("a percentage of the limit", 0.0001..=100.0);
    params.alert_ppm =
        section.key("at_percent", "A capping event begins here.").or(params.alert_ppm, of_limit());
    let help = "In a capping event so many of the readings may be above the limit: the draw is kept as far \
                under it as that needs.";
    params.above_share_ppm = section
        .key("above_share_percent", help)
        .or(params.above_share_ppm, percent("a percentage of the time", 0.1..=10.0));
    params.lift_ppm = section
        .key("lift_percent", "The event ends after `lift_hold_ms` below this, counting what would come back.")
        .or(params.lift_ppm, of_limit());
    params.lift_hold = section
        .key("lift_hold_ms", "For so long the draw must stay below `lift_percent`.")
        .or(params.lift_hold, span());
    params.lift_rule = section
        .key("lift", "What counts at the end: the draw and what would come back, or a plain timer.")
        .or(params.lift_rule, choice([("restorable", LiftRule::Restorable), ("paper", LiftRule::Paper)]));
    params.lift_stagger = section
        .key("lift_stagger_ms", "Between two servers that are told that the event is over.")
        .or(params.lift_stagger, span());
    params.heartbeat =
        section.key("heartbeat_ms", "Between two messages to an agent.").or(params.heartbeat, span());
    // With every poll the manager renews a lease, and agents answer.
    let poll = params.poll_period;
    let help = "How long a raise lasts without news; at least three polls, and three polls unless set where \
                those are longer.";
    params.lease = section.key("lease_ms", help).or(params.lease.max(3 * poll), span());
    let help = "An agent that has not answered for so long is silent; at most `lease_ms`, and two and a half \
                polls unless set where those are longer.";
    params.silent_after =
        section.key("silent_after_ms", help).or(params.silent_after.max(5 * poll / 2), span());
    section.finish();
}

fn read_out_of_band(root: &mut Section<'_, '_>, params: &mut Params) {
    let help = "Hardware caps by slot controllers and BMCs, when software fails; `[trip_curve]` says when.";
    let mut section = root.section("hardware_caps", help);
    let help = "The draw must have fitted for so long before a cap is lifted, unless the server's agent \
                obeys and holds the server there.";
    params.out_of_band_hold = section.key("hold_ms", help).or(params.out_of_band_hold, span());
    section.finish();
}
