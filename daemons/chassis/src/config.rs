//! `chassis.toml`.

mod breaker;

use std::path::Path;
use std::time::Duration;

use ballast_chassis_core::{LiftRule, Mode, Params, Server};
use ballast_types::wire::SharePolicy;
use ballast_types::{ChassisId, Role, ServerId, Watts};
use toml::de::DeValue;

use ballast_runtime::config::reader::{ConfigError, Problems, Section, flag, number, text, whole, word};
use ballast_runtime::config::{
    BmcAddress, DaemonConfig, Listen, PRESETS, RedfishConfig, WATTS, load, millis, percent, watts,
};
use breaker::Breaker;

/// The whole of `chassis.toml`, checked.
#[derive(Clone, Debug)]
pub struct ChassisConfig {
    /// Where the daemon lives.
    pub daemon: DaemonConfig,
    /// Watches, alerts nobody, caps nothing.
    pub dry_run: bool,
    pub params: Params,
    /// The power supplies, in the controller's order.
    pub supplies: Vec<SupplyConfig>,
    /// Who may report the draw from outside, if anybody may; the controller's last supply.
    pub power_input: Option<PowerInputConfig>,
    /// The servers, in the controller's order.
    pub servers: Vec<ServerConfig>,
    /// How BMCs are reached.
    pub redfish: RedfishConfig,
    /// What works, and should be told otherwise.
    pub warnings: Vec<String>,
}

/// The outside source of power readings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PowerInputConfig {
    /// Its name; readings of no other are accepted.
    pub source: String,
    /// What the feed it measures can carry; more is absurd.
    pub max: Watts,
    /// How long a reading is good.
    pub good_for: Duration,
}

/// One power supply.
#[derive(Clone, Debug)]
pub struct SupplyConfig {
    /// Who tells of it.
    pub source: SupplySource,
    /// What it can carry at its input.
    pub rated: Watts,
}

/// Who tells of a power supply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SupplySource {
    /// A hwmon device: the driver's name, or `name@device` where several have the same name.
    Hwmon(String),
    /// A BMC, by the id that it gives the supply.
    Redfish(BmcAddress, String),
}

impl SupplyConfig {
    /// What operators call it.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.source {
            SupplySource::Hwmon(name) => name.clone(),
            SupplySource::Redfish(BmcAddress { url, chassis: None }, id) => format!("{url} {id}"),
            SupplySource::Redfish(BmcAddress { url, chassis: Some(chassis) }, id) => {
                format!("{url} {chassis} {id}")
            }
        }
    }
}

/// One server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub id: ServerId,
    /// Where its agent serves.
    pub url: String,
    /// What it draws idle.
    pub idle: Watts,
    /// How it is capped without its own software, if it can be.
    pub cap: Option<CapPath>,
    /// The lowest such cap.
    pub cap_floor: Watts,
}

/// How a server is capped without its own software.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapPath {
    /// By the slot controller whose `powerN_label` this is.
    Slot(String),
    /// By its BMC.
    Redfish(BmcAddress),
}

impl ChassisConfig {
    /// Reads and checks a file, and the certificates that it names.
    ///
    /// # Errors
    /// Every problem, one a line.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        load(path, Self::parse, |config| (config.daemon.tls.as_ref(), config.role()))
    }

    /// Who this daemon is, in certificates.
    #[must_use]
    pub fn role(&self) -> Role {
        Role::Chassis(self.params.chassis_id.clone())
    }

    /// Checks a text; `file` is its name in problems.
    ///
    /// # Errors
    /// Every problem, one a line.
    pub fn parse(file: &str, source: &str) -> Result<Self, ConfigError> {
        let problems = Problems::new(file, source);
        let table = problems.parse();
        let mut root = Section::root(&problems, &table);
        let daemon = DaemonConfig::read(&mut root, "127.0.0.1:7100", "/var/lib/ballast-chassis");
        let chassis =
            root.required("chassis", "the id of this chassis", |value| ChassisId::new(value.as_str()?).ok());
        let budget = root.required("budget_w", WATTS, watts);

        let dry_run = root.or("dry_run", false, "true or false", flag);

        let mut supplies = vec![];
        for section in root.sections("supply") {
            supplies.extend(read_supply(section, &supplies));
        }
        let mut servers = vec![];
        let mut slots = vec![];

        for section in root.sections("server") {
            if let Some((server, core)) = read_server(section, &servers, daemon.tls.is_some()) {
                servers.push(server);
                slots.push(core);
            }
        }

        let by_redfish = |server: &ServerConfig| matches!(server.cap, Some(CapPath::Redfish(_)));
        let told = |supply: &SupplyConfig| matches!(supply.source, SupplySource::Redfish(..));
        let used = servers.iter().any(by_redfish) || supplies.iter().any(told);
        let redfish = RedfishConfig::read(root.section("redfish"), used);
        let mut power_input = root.section("power_input");
        let outside = power_input.given();

        if supplies.is_empty() && !outside {
            root.refuse("supply: at least one [[supply]] is needed, or [power_input]");
        }
        if servers.is_empty() {
            root.refuse("server: at least one [[server]] is needed");
        }

        let id = chassis.or_else(|| ChassisId::new("unnamed").ok());
        let mut rated: Vec<_> = supplies.iter().map(|supply| supply.rated).collect();
        let source = "the name of the source: 1 to 64 of A-Z a-z 0-9 . _ - : @";
        let source =
            power_input.required_if(outside, "source", source, |value| ServerId::new(value.as_str()?).ok());
        let max = power_input.required_if(outside, "max_w", WATTS, watts);
        rated.extend(max);

        if let (Some(max), Some(budget), true) = (max, budget, supplies.is_empty())
            && max <= budget
        {
            power_input.refuse_key("max_w", "above budget_w: a draw over the budget must be readable");
        }

        let defaults = id.map(|id| Params::defaults(id, budget.unwrap_or(Watts::MAX), rated, slots));
        let mut warnings = vec![];
        let (params, breaker) = defaults.map(|it| read_params(&mut root, it, &mut warnings)).unzip();
        let usual = Duration::from_millis(200);
        let period = params.as_ref().map_or(usual, |params| params.poll_period);
        let most = breaker.map_or(usual, |breaker| breaker.carried);
        let most = most.clamp(period, Duration::from_secs(3600));
        let allowed = "whole milliseconds, 1 to 3600000";
        let good_for = power_input.or("good_for_ms", (period * 3).min(most), allowed, millis(1, 3_600_000));
        if outside && !(period..=most).contains(&good_for) {
            let (least, most) = (period.as_millis(), most.as_millis());
            let why = "poll.period_ms to what the breaker carries of the highest draw";
            power_input.refuse_key("good_for_ms", format_args!("{why}, {least} to {most}"));
        }

        power_input.finish();
        let power_input = source.zip(max).map(|(source, max)| {
            let source = source.to_string();
            PowerInputConfig { source, max, good_for }
        });

        if let Some(budget) = budget {
            let idle: Watts = servers.iter().map(|server| server.idle).sum();
            if budget <= idle {
                root.refuse_key(
                    "budget_w",
                    format_args!("above {} W, what the servers draw idle", idle.as_f64()),
                );
            }

            let servers = params.iter().flat_map(|params| &params.servers);
            let least: Watts = servers.filter_map(|server| server.min_w).sum();

            if budget > idle && budget < least {
                root.refuse_key(
                    "budget_w",
                    format_args!("at least {} W, the sum of every server's min_w", least.as_f64()),
                );
            }
        }

        root.finish();
        let by_trip_time = breaker.is_some_and(|breaker| breaker.by_trip_time);
        warnings.extend(by_trip_time.then(|| TRIP_TIME.to_owned()));
        let config = params.map(|params| Self {
            daemon,
            dry_run,
            params,
            supplies,
            power_input,
            servers,
            redfish,
            warnings,
        });

        problems
            .finish(config)
            .and_then(|config| config.ok_or_else(|| ConfigError::whole(file, "chassis is missing")))
    }
}

const TRIP_TIME: &str = "trip_time_ms is read as a breaker that carries every excess for that long; a real one \
    carries little for longer: say so with [trip_curve]";

fn read_supply(mut section: Section<'_, '_>, others: &[SupplyConfig]) -> Option<SupplyConfig> {
    let hwmon = section.optional("hwmon", "the hwmon name of the power supply", text);
    let bmc = BmcAddress::read(&mut section, false);
    let allowed = "the id that the BMC gives the power supply";
    let (by_hwmon, by_bmc) = (section.has("hwmon"), section.has("redfish"));
    let id = section.required_if(by_bmc, "redfish_supply", allowed, text);
    let rated = section.required("rated_w", WATTS, watts);

    match (by_hwmon, by_bmc) {
        (true, true) => section.refuse_key("redfish", "a supply has hwmon or redfish, not both"),
        (false, false) => section.refuse("hwmon is missing: one of hwmon and redfish"),
        _ => {}
    }

    if !by_bmc && id.is_some() {
        section.refuse_key("redfish_supply", "only with redfish");
    }
    let by_bmc = bmc.zip(id).map(|(bmc, id)| SupplySource::Redfish(bmc, id));
    let source = hwmon.map(SupplySource::Hwmon).or(by_bmc);

    if source.is_some() && others.iter().any(|other| Some(&other.source) == source.as_ref()) {
        let key = if by_hwmon { "hwmon" } else { "redfish_supply" };
        section.refuse_key(key, "every supply once: two would count its draw twice");
    }

    section.finish();

    source.zip(rated).map(|(source, rated)| SupplyConfig { source, rated })
}

fn read_server(
    mut section: Section<'_, '_>,
    others: &[ServerConfig],
    tls: bool,
) -> Option<(ServerConfig, Server)> {
    let id = section.required("id", "the server's id", |value| ServerId::new(value.as_str()?).ok());
    let modes =
        [("managed", Mode::Managed), ("maintenance", Mode::Maintenance), ("unmanaged", Mode::Unmanaged)];

    let mode =
        section.or("mode", Mode::Managed, "\"managed\", \"maintenance\" or \"unmanaged\"", word(&modes));

    let allowed = "http://address:port on loopback, or https://address:port";
    let url = section.required("url", allowed, |value| {
        // An address: the alert's way must not depend on a name server.
        let url = value.as_str().filter(|url| url.starts_with("http"))?;
        Listen::parse(url).map(|_| url.to_owned())
    });

    if !tls && url.as_ref().is_some_and(|url| url.starts_with("https")) {
        section.refuse_key("url", "only with [tls]: cert, key and ca");
    }
    let idle = section.required("idle_w", WATTS, watts);
    let slot = section.optional("slot", "the label of the server's slot controller", text);
    let bmc = BmcAddress::read(&mut section, false);

    if slot.is_some() && bmc.is_some() {
        section.refuse_key("redfish", "a server has a slot or a BMC, not both");
    }
    let cap = slot.map(CapPath::Slot).or(bmc.map(CapPath::Redfish));
    let floor = section.or("slot_floor_w", Watts::from_whole(150), WATTS, watts);
    let weight = section.optional("weight", "a whole number, 1 to 1000000", whole(1..=1_000_000));
    let min = section.optional("min_w", WATTS, watts);
    let max = section.optional("max_w", WATTS, watts);

    // Nobody can be held under what he draws idle.
    let min_w = min.max(idle);

    if let (Some(min), Some(max)) = (min_w, max)
        && max <= min
    {
        let least = min.as_f64();
        section.refuse_key("max_w", format_args!("above {least} W, the higher of min_w and idle_w"));
    }

    if others.iter().any(|other| Some(&other.id) == id.as_ref()) {
        section.refuse_key("id", "every server has an id of its own");
    }
    if others.iter().any(|other| Some(&other.url) == url.as_ref()) {
        section.refuse_key("url", "every server has an agent of its own");
    }
    if cap.is_some() && others.iter().any(|other| other.cap == cap) {
        let key = if matches!(cap, Some(CapPath::Slot(_))) { "slot" } else { "redfish" };
        section.refuse_key(key, "every server has one of its own");
    }

    section.finish();
    let id = id?;
    let core = Server {
        mode,
        weight: weight.map(|weight| weight as u32),
        min_w,
        max_w: max,
        ..Server::new(id.clone(), cap.is_some().then_some(floor))
    };

    Some((ServerConfig { id, url: url?, idle: idle?, cap, cap_floor: floor }, core))
}

/// Reads a key of earlier versions that decides nothing any more, and says what does.
fn read_dead(
    section: &mut Section<'_, '_>,
    (table, key): (&str, &'static str),
    now: &str,
    warnings: &mut Vec<String>,
) {
    let allowed = "whole milliseconds, 1 to 3600000";
    if section.optional(key, allowed, millis(1, 3_600_000)).is_some() {
        warnings.push(format!("{table}.{key} decides nothing any more, and may be removed: {now}"));
    }
}

fn read_params(
    root: &mut Section<'_, '_>,
    mut params: Params,
    warnings: &mut Vec<String>,
) -> (Params, Breaker) {
    let allowed = "whole milliseconds, 1 to 3600000";
    let span = |section: &mut Section<'_, '_>, key, default: &mut Duration| {
        *default = section.or(key, *default, allowed, millis(1, 3_600_000));
    };
    params.shared_floor =
        root.optional("shared_w", "0 W or more", |value| number(0.0..=1e8)(value).and_then(Watts::from_f64));

    if root.optional("preset", PRESETS.0, word(&PRESETS.1)).is_some() {
        params = params.as_in_the_paper();
    }
    let policies = SharePolicy::ALL.map(|policy| (policy.name(), policy));
    params.shares = root.or("shares", params.shares, "\"even\" or \"critical-first\"", word(&policies));
    let breaker = Breaker::read(root, &mut params);

    let mut poll = root.section("poll");
    span(&mut poll, "period_ms", &mut params.poll_period);
    span(&mut poll, "lag_ms", &mut params.sensor_lag);
    span(&mut poll, "refresh_ms", &mut params.sensor_refresh);
    let noise = "a percentage of the draw, 0.01 to 10";
    params.noise_ppm = poll.or("noise_percent", params.noise_ppm, noise, share_of(0.01));
    poll.finish();

    let mut alert = root.section("alert");
    let share = "a percentage of the limit, above 0, at most 100";
    params.alert_ppm =
        alert.or("at_percent", params.alert_ppm, share, |value| percent(value).filter(|ppm| *ppm > 0));
    params.lift_ppm =
        alert.or("lift_percent", params.lift_ppm, share, |value| percent(value).filter(|ppm| *ppm > 0));
    if params.lift_ppm >= params.alert_ppm {
        alert.refuse_key("lift_percent", "below alert.at_percent");
    }
    let above = "a percentage of the time, 0.1 to 10";
    params.above_share_ppm = alert.or("above_share_percent", params.above_share_ppm, above, share_of(0.1));
    span(&mut alert, "lift_hold_ms", &mut params.lift_hold);
    let rules = [("restorable", LiftRule::Restorable), ("paper", LiftRule::Paper)];
    params.lift_rule = alert.or("lift", params.lift_rule, "\"restorable\" or \"paper\"", word(&rules));
    span(&mut alert, "lift_stagger_ms", &mut params.lift_stagger);
    span(&mut alert, "heartbeat_ms", &mut params.heartbeat);
    span(&mut alert, "lease_ms", &mut params.lease);
    let now = "every low-priority core goes to its floor when the breaker is a quarter of the way to its trip \
               ([trip_curve])";
    read_dead(&mut alert, ("alert", "emergency_after_ms"), now, warnings);
    span(&mut alert, "silent_after_ms", &mut params.silent_after);

    if params.lease > breaker.carried {
        alert.refuse_key("lease_ms", format_args!("no longer than the breaker: {breaker}"));
    }
    if params.silent_after > params.lease {
        alert.refuse_key("silent_after_ms", "at most lease_ms");
    }
    alert.finish();

    let mut out_of_band = root.section("out_of_band");
    span(&mut out_of_band, "hold_ms", &mut params.out_of_band_hold);
    let now = "hardware caps come when the breaker is half-way to its trip, or too little time is left for them \
               ([trip_curve])";
    read_dead(&mut out_of_band, ("out_of_band", "after_ms"), now, warnings);
    let now = "at most 5 % of the limit is given back in a second";
    read_dead(&mut out_of_band, ("out_of_band", "stagger_ms"), now, warnings);
    out_of_band.finish();
    breaker.check(root, &params);

    (params, breaker)
}

/// A percentage of `least..=10`, as parts per million.
fn share_of(least: f64) -> impl FnOnce(&DeValue<'_>) -> Option<u32> {
    move |value| number(least..=10.0)(value).map(|percent| (percent * 1e4).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_runtime::config::redfish::BMC_URL;

    fn config(budget: &str, more: &str) -> String {
        format!(
            "chassis = \"c1\"\nbudget_w = {budget}\n{more}\n\
             [[supply]]\nhwmon = \"pmbus\"\nrated_w = 3000\n\
             [[server]]\nid = \"s01\"\nurl = \"http://127.0.0.1:7101\"\nidle_w = 112\n"
        )
    }
    fn problems(text: &str) -> String {
        ChassisConfig::parse("chassis.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn a_small_chassis_is_read() {
        let config = ChassisConfig::parse("chassis.toml", &config("250", "")).unwrap();
        assert_eq!(config.params.budget, Watts::from_whole(250));
        assert_eq!(config.params.poll_period, Duration::from_millis(200));
        assert_eq!(config.servers[0].cap, None);
    }

    #[test]
    fn the_papers_preset_gives_way_to_a_key_that_is_told() {
        use LiftRule::{Paper, Restorable};
        use SharePolicy::{CriticalFirst, Even};
        for (more, expected) in [
            ("", (CriticalFirst, Restorable)),
            ("shares = \"even\"", (Even, Restorable)),
            ("preset = \"paper\"", (Even, Paper)),
            ("shares = \"critical-first\"\npreset = \"paper\"", (CriticalFirst, Paper)),
            ("preset = \"paper\"\n[alert]\nlift = \"restorable\"", (Even, Restorable)),
        ] {
            let config = ChassisConfig::parse("chassis.toml", &config("250", more)).unwrap();
            assert_eq!((config.params.shares, config.params.lift_rule), expected, "{more}");
        }
        let text = problems(&config("250", "preset = \"even\""));
        assert!(text.contains("chassis.toml:3: preset = \"even\": \"paper\""), "{text}");
    }

    #[test]
    fn budgets_that_cannot_be_held_are_refused() {
        for budget in ["0", "-5", "nan", "inf", "\"250\""] {
            let text = problems(&config(budget, ""));
            assert_eq!(text, format!("chassis.toml:2: budget_w = {budget}: {WATTS}"));
        }
        let text = problems(&config("100", ""));
        assert!(text.contains("budget_w = 100: above 112 W, what the servers draw idle"), "{text}");
    }

    #[test]
    fn keys_that_decide_nothing_any_more_are_accepted_with_a_warning() {
        let more = "[alert]\nemergency_after_ms = 600\n[out_of_band]\nafter_ms = 2500\nstagger_ms = 5000\n";
        let old = ChassisConfig::parse("c", &config("250", more)).unwrap();
        let new = ChassisConfig::parse("c", &config("250", "")).unwrap();
        assert_eq!((old.params, new.warnings.len()), (new.params, 0));
        let warned = |key: &str, by: &str| {
            let hits = old.warnings.iter().filter(|w| w.starts_with(key) && w.contains(by));
            assert_eq!(hits.count(), 1, "{key}: {:?}", old.warnings);
        };
        warned("alert.emergency_after_ms ", "a quarter of the way to its trip");
        warned("out_of_band.after_ms ", "half-way to its trip");
        warned("out_of_band.stagger_ms ", "5 % of the limit");
        assert_eq!(old.warnings.len(), 3, "one for each");
        let text = problems(&config("250", "[out_of_band]\nafter_ms = -1"));
        assert!(text.contains("out_of_band.after_ms = -1: whole milliseconds"), "{text}");
    }

    #[test]
    fn what_the_loop_must_know_of_the_meters_is_read() {
        let more = "[poll]\nlag_ms = 300\nrefresh_ms = 400\nnoise_percent = 0.5\n\
                    [alert]\nabove_share_percent = 0.3\n";
        let params = ChassisConfig::parse("c", &config("250", more)).unwrap().params;
        let ms = Duration::from_millis;
        assert_eq!((params.sensor_lag, params.sensor_refresh), (ms(300), ms(400)));
        assert_eq!((params.noise_ppm, params.above_share_ppm), (5_000, 3_000));
        for (bad, says) in [
            ("[poll]\nnoise_percent = 0", "poll.noise_percent = 0: a percentage of the draw, 0.01"),
            ("[poll]\nnoise_percent = nan", "poll.noise_percent = nan"),
            ("[alert]\nabove_share_percent = 0.05", "above_share_percent = 0.05: a percentage of"),
            ("[alert]\nabove_share_percent = 11", "0.1 to 10"),
        ] {
            let text = problems(&config("250", bad));
            assert!(text.contains(says), "{says}: {text}");
        }
    }

    #[test]
    fn a_servers_bounds_are_read_and_go_together() {
        let with = |more: &str| format!("{}{more}", config("250", ""));
        let of = |more: &str| {
            let config = ChassisConfig::parse("c", &with(more)).unwrap();
            let server = &config.params.servers[0];
            let whole = |w: Option<Watts>| w.map(|w| w.milli() / 1000);

            (server.weight, whole(server.min_w), whole(server.max_w))
        };

        assert_eq!(of(""), (None, Some(112), None), "what it draws idle it must get");
        assert_eq!(of("weight = 3\nmin_w = 150\nmax_w = 240\n"), (Some(3), Some(150), Some(240)));
        assert_eq!(of("min_w = 50\n").1, Some(112));

        for (bad, says) in [
            ("weight = 0", "server[0].weight = 0: a whole number, 1 to 1000000"),
            ("weight = 1.5", "server[0].weight = 1.5: a whole number"),
            ("min_w = 0", "server[0].min_w = 0: a number of watts, above 0"),
            ("max_w = inf", "server[0].max_w = inf: a number of watts"),
            ("min_w = 200\nmax_w = 200", "server[0].max_w = 200: above 200 W, the higher of"),
            ("max_w = 112", "server[0].max_w = 112: above 112 W"),
            ("min_w = 251", "budget_w = 250: at least 251 W, the sum of every server's min_w"),
        ] {
            let text = problems(&with(bad));
            assert!(text.contains(says), "{says}: {text}");
        }
    }

    #[test]
    fn what_two_would_share_is_refused() {
        let supply = "[[supply]]\nhwmon = \"pmbus\"\nrated_w = 3000\n";
        let server = "[[server]]\nid = \"s02\"\nurl = \"http://127.0.0.1:7101\"\nidle_w = 50\n";
        let text = problems(&format!("{}{supply}{server}", config("250", "")));
        assert!(text.contains("supply[1].hwmon = \"pmbus\": every supply once"), "{text}");
        assert!(text.contains("server[1].url"), "{text}");
    }

    #[test]
    fn an_outside_source_may_be_the_only_supply_or_one_more() {
        let supply = "[[supply]]\nhwmon = \"pmbus\"\nrated_w = 3000\n";
        let input = "[power_input]\nsource = \"shelf-1\"\nmax_w = 3000\n";
        let both = config("250", input);
        let parsed = ChassisConfig::parse("chassis.toml", &both).unwrap();
        assert_eq!(parsed.params.supply_rated, [Watts::from_whole(3000); 2]);
        let only = ChassisConfig::parse("chassis.toml", &both.replace(supply, "")).unwrap();
        assert_eq!(only.params.supply_rated, [Watts::from_whole(3000)]);
        assert_eq!(only.power_input.unwrap().good_for, Duration::from_millis(600));

        for (was, is, said) in [
            ("source = \"shelf-1\"\n", "", "power_input.source is missing"),
            ("\"shelf-1\"", "\"a b\"", "power_input.source = \"a b\": the name of the source"),
            ("max_w = 3000\n", "", "power_input.max_w is missing"),
            ("max_w = 3000", "max_w = 0", "power_input.max_w = 0"),
            ("max_w = 3000", "max_w = 250", "power_input.max_w = 250: above budget_w"),
            ("[[server]]", "good_for_ms = 100\n[[server]]", "good_for_ms = 100: poll.period_ms to"),
            ("[[server]]", "good_for_ms = 9000\n[[server]]", "the highest draw, 200 to 4000"),
            (input, "", "supply: at least one [[supply]] is needed, or [power_input]"),
            ("max_w", "maximum_w", "maximum_w: no such key"),
        ] {
            let text = problems(&both.replace(supply, "").replacen(was, is, 1));
            assert!(text.contains(said), "{said}: {text}");
        }
    }

    #[test]
    fn a_bmc_is_reached_safely_or_not_at_all() {
        let bmc = |url: &str| format!("{}redfish = {url:?}\n", config("250", ""));
        let with = |url: &str| format!("{}[redfish]\ncredentials_file = \"/etc/bmc\"\n", bmc(url));
        for good in ["https://bmc1", "https://bmc1:8443/", "https://[2001:db8::7]", "http://127.0.0.1:80"] {
            let config = ChassisConfig::parse("chassis.toml", &with(good)).unwrap();
            let url = good.trim_end_matches('/').to_owned();
            let address = BmcAddress { url, chassis: None };
            assert_eq!(config.servers[0].cap, Some(CapPath::Redfish(address)));
            assert_eq!(config.redfish.timeout, Duration::from_secs(3));
            assert!(config.params.servers[0].out_of_band_floor.is_some());
        }

        for bad in [
            "http://bmc1",
            "http://192.0.2.7:80",
            "https://",
            "bmc1",
            "https://bmc1/redfish/v1",
            "https://user:word@bmc1",
            "ftp://bmc1",
            "",
        ] {
            assert!(problems(&with(bad)).contains(BMC_URL), "{bad}");
        }

        let text = problems(&bmc("https://bmc1"));
        assert!(text.contains("redfish.credentials_file is missing"), "{text}");
        let text = problems(&format!("{}slot = \"s01\"\n", bmc("https://bmc1")));
        assert!(text.contains("a slot or a BMC, not both"), "{text}");
        let server = "[[server]]\nid = \"s02\"\nurl = \"http://127.0.0.1:7102\"\nidle_w = 50\n";
        let text = problems(&format!("{}{server}redfish = \"https://bmc1\"\n", bmc("https://bmc1")));
        assert!(text.contains("server[1].redfish = \"https://bmc1\": every server has one"), "{text}");

        let text = problems(&format!("{}redfish_chassis = \"1\"\n", config("250", "")));
        assert!(text.contains("only with redfish"), "{text}");

        for (bad, says) in [
            ("timeout_ms = 50", "100 to 30000"),
            ("auth = \"none\"", "\"session\" or"),
            ("password = \"x\"", "no such key"),
        ] {
            let text = problems(&format!("{}{bad}\n", with("https://bmc1")));
            assert!(text.contains(says), "{text}");
        }
    }

    #[test]
    fn a_supply_is_told_of_by_hwmon_or_by_a_bmc() {
        let supply = "hwmon = \"pmbus\"\nrated_w = 3000\n";
        let by_bmc = "redfish = \"https://shelf\"\nredfish_supply = \"PSU1\"\nrated_w = 3000\n";
        let access = "[redfish]\ncredentials_file = \"/etc/bmc\"\n";
        let with = |keys: &str| format!("{}{access}", config("250", "").replace(supply, keys));
        let another = |id: &str| format!("{by_bmc}[[supply]]\n{}", by_bmc.replace("PSU1", id));
        let parsed = ChassisConfig::parse("chassis.toml", &with(&another("PSU2"))).unwrap();
        let bmc = BmcAddress { url: "https://shelf".to_owned(), chassis: None };
        assert_eq!(parsed.supplies[0].source, SupplySource::Redfish(bmc, "PSU1".to_owned()));
        assert_eq!(parsed.supplies[1].name(), "https://shelf PSU2");
        assert_eq!(parsed.params.supply_rated, [Watts::from_whole(3000); 2]);
        let of_bay = format!("redfish_chassis = \"Bay\"\n{by_bmc}");
        let parsed = ChassisConfig::parse("chassis.toml", &with(&of_bay)).unwrap();
        assert_eq!(parsed.supplies[0].name(), "https://shelf Bay PSU1");

        for (keys, said) in [
            ("rated_w = 3000\n", "supply[0].hwmon is missing: one of hwmon and redfish"),
            (&format!("hwmon = \"pmbus\"\n{by_bmc}"), "hwmon or redfish, not both"),
            (&by_bmc.replace("redfish_supply", "# "), "supply[0].redfish_supply is missing"),
            (&by_bmc.replace("\"PSU1\"", "\"\""), "redfish_supply = \"\": the id that the BMC"),
            (&by_bmc.replace("\"PSU1\"", "1"), "supply[0].redfish_supply = 1: the id that"),
            (&by_bmc.replace("https", "http"), "supply[0].redfish = \"http://shelf\": https://host"),
            (&format!("redfish_supply = \"1\"\n{supply}"), "redfish_supply = \"1\": only with redfish"),
            (&format!("redfish_chassis = \"1\"\n{supply}"), "redfish_chassis = \"1\": only with redfish"),
            (&another("PSU1"), "supply[1].redfish_supply = \"PSU1\": every supply once"),
            (&format!("supply = \"1\"\n{supply}"), "supply[0].supply: no such key"),
        ] {
            let text = problems(&with(keys));
            assert!(text.contains(said), "{said}: {text}");
        }

        let text = problems(&with(by_bmc).replace(access, ""));
        assert!(text.contains("redfish.credentials_file is missing"), "{text}");
    }

    #[test]
    fn agents_beyond_loopback_are_refused() {
        let text = config("250", "").replace("127.0.0.1:7101", "192.0.2.7:7101");
        assert!(problems(&text).contains("on loopback"), "{}", problems(&text));
        let text = text.replace("http:", "https:");
        assert!(problems(&text).contains("only with [tls]"), "{}", problems(&text));
        let tls = "[tls]\ncert = \"/c\"\nkey = \"/k\"\nca = \"/a\"\n";
        assert!(ChassisConfig::parse("chassis.toml", &format!("{text}{tls}")).is_ok());
    }
}
