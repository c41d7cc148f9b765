//! `[trip_curve]` of `chassis.toml`: what the breaker behind the budget carries, and for how long.

use std::time::Duration;

use ballast_chassis_core::Params;
use ballast_types::{TripCurve, TripPoint, Watts};

use ballast_runtime::config::allowed::number_as;
use ballast_runtime::config::reader::Section;

/// The highest draw in parts of the budget, where some server's `max_w` is not told.
const HIGHEST: f64 = 1.5;
/// What counts for shared watts where nobody has told them: a tenth of the budget.
const SHARED_PPM: u32 = 100_000;

/// What the checks of other keys need of the breaker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Breaker {
    /// The highest draw that can come, in parts of the budget.
    pub(super) highest: f64,
    /// For how long that is carried.
    pub(super) carried: Duration,
}

impl Breaker {
    /// Reads the curve into `params`, whose servers and shared watts are there already.
    pub(super) fn read(root: &mut Section<'_, '_>, params: &mut Params) -> Self {
        let help = "The breaker behind the budget, by the non-trip edge of its data sheet. Hardware must act \
                    before it trips at the highest draw that can come.";
        if let Some(mut section) = root.table("trip_curve", help) {
            params.trip_curve = read_curve(&mut section).unwrap_or_default();
            section.finish();
        }

        let highest = highest(params);
        let seconds = params.trip_curve.seconds(highest);
        let carried = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);

        Self { highest, carried }
    }

    /// Refuses a breaker that trips before hardware can have acted.
    pub(super) fn check(&self, root: &Section<'_, '_>, params: &Params) {
        let needed = params.reaction_time();
        if needed <= self.carried {
            return;
        }
        let why = format!(
            "{self}, and hardware needs {} ms: refresh, lag, poll, wire and actuation",
            needed.as_millis()
        );
        root.refuse_key("trip_curve.points", why);
    }
}

impl std::fmt::Display for Breaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (highest, carried) = (self.highest, self.carried.as_millis());
        write!(f, "at {highest:.2} times the budget the breaker carries {carried} ms")
    }
}

/// `points = [{ draw = 1.02, carried_s = 60 }, …]`.
fn read_curve(section: &mut Section<'_, '_>) -> Option<TripCurve> {
    let mut points = vec![];
    for mut point in section.sections("points", "A point of the curve: `{ draw = 1.02, carried_s = 60 }`.") {
        let draw = point.key("draw", "In parts of the budget, above 1.").required(number_as(
            "the draw in parts of the budget",
            1.0..=100.0,
            |draw| Some((draw * 1e6).round() as u32),
            |ppm| f64::from(*ppm) / 1e6,
        ));
        let carried = point.key("carried_s", "How long the breaker carries that.").required(number_as(
            "for how many seconds that is carried",
            0.001..=86_400.0,
            |seconds| Some(Duration::from_secs_f64(seconds)),
            Duration::as_secs_f64,
        ));
        point.finish();
        points.push(draw.zip(carried).map(|(draw_ppm, carried)| TripPoint { draw_ppm, carried }));
    }
    if !section.has("points") {
        section.refuse("points is missing: [{ draw = 1.02, carried_s = 60 }, …]");
        return None;
    }

    // A point that is no point was refused already.
    let points = points.into_iter().collect::<Option<Vec<_>>>()?;

    TripCurve::new(points).map_err(|why| section.refuse_key("points", why)).ok()
}

/// The highest draw that can come, in parts of the budget.
fn highest(params: &Params) -> f64 {
    let told = params.servers.iter().map(|server| server.max_w);
    let servers: Option<Vec<Watts>> = told.collect();
    let shared = params.shared_floor.unwrap_or(params.budget.ppm(SHARED_PPM));
    let budget = params.budget.as_f64();
    let highest = servers.map(|each| each.into_iter().sum::<Watts>() + shared);
    highest.filter(|_| budget > 0.0).map_or(HIGHEST, |highest| highest.as_f64() / budget)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ChassisConfig, ConfigFile as _};

    fn parse(top: &str, server: &str) -> Result<ChassisConfig, String> {
        let text = format!(
            "chassis = \"c1\"\nbudget_w = 250\n{top}\n\
             [[supply]]\nhwmon = \"pmbus\"\nrated_w = 3000\n\
             [[server]]\nid = \"s01\"\nurl = \"unix:/run/s01.sock\"\nidle_w = 112\n{server}\n"
        );
        ChassisConfig::parse("chassis.toml", &text).map_err(|error| error.to_string())
    }
    fn seconds(config: &ChassisConfig, draw: f64) -> f64 {
        config.params.trip_curve.seconds(draw)
    }

    #[test]
    fn a_curve_is_read_point_by_point() {
        let config = parse("", "").unwrap();
        assert_eq!(config.params.trip_curve, TripCurve::default());
        let points = "[trip_curve]\npoints = [{ draw = 1.05, carried_s = 30 }, \
                      { draw = 1.5, carried_s = 2.5 }]";
        let config = parse(points, "").unwrap();
        assert!((seconds(&config, 1.05) - 30.0).abs() < 1e-9);
        assert!((seconds(&config, 1.5) - 2.5).abs() < 1e-9);

        let point = |points: &str| format!("[trip_curve]\npoints = [{points}]");
        for (bad, says) in [
            ("[trip_curve]".to_owned(), "trip_curve.points is missing"),
            ("[trip_curve]\npoints = 5".to_owned(), "trip_curve.points: must be tables"),
            ("[trip_curve]\ncurve = 5".to_owned(), "trip_curve.curve: no such key"),
            ("trip_curve = 5".to_owned(), "trip_curve: must be a table"),
            (point(""), "trip_curve.points = []: at least one point"),
            (point("{ draw = 1.1 }"), "trip_curve.points[0].carried_s is missing"),
            (point("{ draw = 0.9, carried_s = 5 }"), "trip_curve.points[0].draw = 0.9: the draw in"),
            (point("{ draw = 1, carried_s = 5 }"), "every draw must be above 1"),
            (point("{ draw = 1.1, carried_s = 0 }"), "points[0].carried_s = 0: for how many"),
            (point("{ draw = 1.1, carried_s = nan }"), "points[0].carried_s = nan"),
            (point("{ draw = 1.1, carried_s = 50, x = 1 }"), "trip_curve.points[0].x: no such key"),
            (
                point("{ draw = 1.1, carried_s = 5 }, { draw = 1.2, carried_s = 6 }"),
                "draws must rise from point to point, and times must fall",
            ),
        ] {
            let text = parse(&bad, "").unwrap_err();
            assert!(text.contains(says), "{says}: {text}");
            let line = text.split(": ").next().unwrap();
            assert!(["chassis.toml:3", "chassis.toml:4"].contains(&line), "{text}");
        }
    }

    #[test]
    fn a_breaker_that_trips_before_hardware_acts_is_refused_with_both_numbers() {
        let curve = "[trip_curve]\npoints = [{ draw = 1.1, carried_s = 10 }, { draw = 1.5, carried_s = 2 }]";
        let says = "at 1.50 times the budget the breaker carries 2000 ms, and hardware needs 2200 ms";
        let text = parse(curve, "").unwrap_err();
        assert!(text.contains("trip_curve.points = [{ draw = 1.1") && text.contains(says), "{text}");

        let text = parse("[poll]\nrefresh_ms = 3000", "").unwrap_err();
        assert!(text.contains("trip_curve.points = (default): at 1.50"), "{text}");
        assert!(text.contains("carries 4000 ms, and hardware needs 5000 ms"), "{text}");

        // The servers cannot draw that much: 260 W, and 25 W that nobody has told, of 250 W.
        assert!(parse(curve, "max_w = 260").is_ok());
        let fans = format!("shared_w = 110\n{curve}");
        let text = parse(&fans, "max_w = 260").unwrap_err();
        assert!(text.contains("at 1.48 times the budget"), "{text}");

        // They never come near the budget.
        assert!(parse("[poll]\nrefresh_ms = 60000", "max_w = 220").is_ok());
    }
}
