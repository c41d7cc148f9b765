//! `chassis.toml`.

mod breaker;
mod params;
mod server;
mod supply;

use anyhow::bail;
use ballast_chassis_core::Params;
use ballast_types::{ChassisId, Role, ServerId, Watts};

pub use ballast_runtime::config::ConfigFile;
use ballast_runtime::config::allowed::{Allowed, ID, flag, watts};
use ballast_runtime::config::reader::Section;
use ballast_runtime::config::{DaemonConfig, Listen, RedfishConfig};
use ballast_runtime::tls::TlsConfig;

pub use server::{CapPath, ServerConfig};
pub use supply::{PowerInputConfig, SupplyConfig, SupplySource};

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
    pub redfish: RedfishConfig,
    /// Whether the web page is served.
    pub ui: bool,
}

impl ConfigFile for ChassisConfig {
    fn role(&self) -> Role {
        Role::Chassis(self.params.chassis_id.clone())
    }

    fn tls(&self) -> Option<&TlsConfig> {
        self.daemon.tls.as_ref()
    }

    fn listen(&self) -> &[Listen] {
        &self.daemon.listen
    }

    fn log_level(&self) -> tracing::Level {
        self.daemon.log_level
    }

    fn read(root: &mut Section<'_, '_>) -> Option<Self> {
        let chassis = root
            .key("chassis", "This chassis, as its agents' `agent.toml` name it.")
            .required(Allowed::text(ID, |text| ChassisId::new(text).ok()));
        let budget = root
            .key("budget_w", "The power budget, at the power supplies' input; above the sum of `idle_w`.")
            .required(watts());
        let listen = ["127.0.0.1:7100", "unix:/run/ballast-chassis/ballast.sock"];
        let daemon = DaemonConfig::read(root, listen, "/var/lib/ballast-chassis");
        let help = "Watches and logs, alerts nobody, caps nothing.";
        let dry_run = root.key("dry_run", help).or(false, flag());

        let supplies = SupplyConfig::read_all(root);
        let (servers, for_controller) = ServerConfig::read_all(root, daemon.tls.is_some());
        let caps_by_bmc = servers.iter().any(|server| matches!(server.cap, Some(CapPath::Redfish(_))));
        let reads_bmc = supplies.iter().any(|supply| matches!(supply.source, SupplySource::Redfish(..)));
        let redfish = RedfishConfig::read(root, caps_by_bmc || reads_bmc);

        let mut section = root.section("ui", "The web page, which only reads; see `docs/operate/page.md`.");
        let help = "The page is served at `/` of every listener. Another value needs a restart.";
        let ui = section.key("enabled", help).or(false, flag());
        section.finish();

        // Without an id the file is refused; all else is still to be judged.
        let id = chassis.clone().or_else(|| ChassisId::new("unnamed").ok())?;
        let mut params = Params::defaults(id, budget.unwrap_or(Watts::MAX), vec![], for_controller);
        let breaker = params::read(root, &mut params);

        let help = "The draw from outside, by `POST /v1/power`, where this host cannot see the supplies; \
                    alone or as one supply more. Alone, the source must post every `poll.period_ms`.";
        let section = root.table("power_input", help);
        let has_input = section.is_some();
        let power_input =
            section.and_then(|it| PowerInputConfig::read(it, params.poll_period, breaker.carried));
        list_supplies(&mut params, &supplies, power_input.as_ref());

        if supplies.is_empty() && !has_input {
            root.refuse("supply: at least one [[supply]] is needed, or [power_input]");
        }
        if servers.is_empty() {
            root.refuse("server: at least one [[server]] is needed");
        }
        let max = power_input.as_ref().map(|input| input.max).filter(|_| supplies.is_empty());
        if max.zip(budget).is_some_and(|(max, budget)| max <= budget) {
            let allowed = "above budget_w: a draw over the budget must be readable";
            root.refuse_key("power_input.max_w", allowed);
        }
        check_budget(root, budget, &servers, &params);

        chassis.map(|_| Self { daemon, dry_run, params, supplies, power_input, servers, redfish, ui })
    }
}

/// Tells the controller of every supply; the outside source comes last.
fn list_supplies(params: &mut Params, supplies: &[SupplyConfig], input: Option<&PowerInputConfig>) {
    let rated = supplies.iter().map(|supply| supply.rated);
    params.supply_rated = rated.chain(input.map(|input| input.max)).collect();
    params.supply_names =
        supplies.iter().map(SupplyConfig::name).chain(input.map(PowerInputConfig::name)).collect();
}

impl ChassisConfig {
    /// What it says of this server.
    pub(crate) fn server(&self, id: &ServerId) -> Option<&ServerConfig> {
        self.servers.iter().find(|server| server.id == *id)
    }

    /// Whether a slot controller caps some server.
    pub(crate) fn has_slots(&self) -> bool {
        self.servers.iter().any(|server| matches!(server.cap, Some(CapPath::Slot(_))))
    }

    /// This configuration as a manager can go by it that runs with `old`, and what needs a restart, by name. A server
    /// that stays keeps its way to its hardware cap, for a cap may be on. A manager that began without `slots` may not
    /// write to slot controllers. Fails where what needs a restart cannot wait for one.
    pub(crate) fn following(mut self, old: &Self, slots: bool) -> anyhow::Result<(Self, Vec<String>)> {
        let mut needs_restart = vec![];
        for (server, core) in self.servers.iter_mut().zip(&mut self.params.servers) {
            let at = old.servers.iter().position(|it| it.id == server.id);
            let (cap, floor) = match at {
                Some(at) => (old.servers[at].cap.clone(), old.params.servers[at].out_of_band_floor),
                None if slots || !matches!(server.cap, Some(CapPath::Slot(_))) => continue,
                None => (None, None),
            };
            if cap != server.cap {
                needs_restart.push(format!("slot or redfish of server {}", server.id));
                (server.cap, core.out_of_band_floor) = (cap, floor);
            }
        }
        if self.power_input != old.power_input {
            needs_restart.push("power_input".into());
        }
        if self.ui != old.ui {
            needs_restart.push("ui".into());
        }

        self.daemon = DaemonConfig { log_level: self.daemon.log_level, ..old.daemon.clone() };
        (self.dry_run, self.ui) = (old.dry_run, old.ui);
        self.power_input.clone_from(&old.power_input);
        self.redfish = old.redfish.clone();
        self.params.chassis_id.clone_from(&old.params.chassis_id);
        list_supplies(&mut self.params, &self.supplies, self.power_input.as_ref());
        self.check_mix()?;
        Ok((self, needs_restart))
    }

    /// Refuses what was valid with keys that only a restart changes.
    fn check_mix(&self) -> anyhow::Result<()> {
        let most = self.power_input.as_ref().map(|input| input.max).filter(|_| self.supplies.is_empty());
        if most.is_some_and(|most| most <= self.params.budget) {
            bail!("budget_w: [power_input] needs a restart, and its max_w is not above this budget");
        }
        if self.params.supply_rated.is_empty() {
            bail!("supply: [power_input] needs a restart, and no supply is left until then");
        }
        let needs_tls = |server: &&ServerConfig| server.url.starts_with("https");
        if let Some(server) = self.servers.iter().find(needs_tls).filter(|_| self.daemon.tls.is_none()) {
            bail!("server {}: [tls] needs a restart, and https only works with it", server.id);
        }
        let by_bmc = self.servers.iter().any(|it| matches!(it.cap, Some(CapPath::Redfish(_))))
            || self.supplies.iter().any(|it| matches!(it.source, SupplySource::Redfish(..)));
        if by_bmc && self.redfish.credentials_file.is_none() {
            bail!("redfish: [redfish] needs a restart, and no BMC can be asked until then");
        }
        Ok(())
    }
}

/// Refuses a budget that the servers cannot be held under.
fn check_budget(root: &Section<'_, '_>, budget: Option<Watts>, servers: &[ServerConfig], params: &Params) {
    let Some(budget) = budget else { return };
    let idle: Watts = servers.iter().map(|server| server.idle).sum();
    let least: Watts = params.servers.iter().filter_map(|server| server.min_w).sum();

    if budget <= idle {
        let allowed = "W, what the servers draw idle (watts count in whole milliwatts)";
        root.refuse_key("budget_w", format_args!("above {} {allowed}", idle.as_f64()));
    } else if budget < least {
        let allowed = "W, the sum of every server's min_w";
        root.refuse_key("budget_w", format_args!("at least {} {allowed}", least.as_f64()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ballast_chassis_core::LiftRule;
    use ballast_runtime::config::BmcAddress;
    use ballast_runtime::config::allowed::WATTS;
    use ballast_runtime::config::redfish::BMC_URL;
    use ballast_types::wire::SharePolicy;

    use super::*;

    fn config(budget: &str, more: &str) -> String {
        format!(
            "chassis = \"c1\"\nbudget_w = {budget}\n{more}\n\
             [[supply]]\nhwmon = \"pmbus\"\nrated_w = 3000\n\
             [[server]]\nid = \"s01\"\nurl = \"unix:/run/s01.sock\"\nidle_w = 112\n"
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
    fn a_first_bmc_waits_for_a_restart_by_name() {
        let parse = |text: &str| ChassisConfig::parse("chassis.toml", text).unwrap();
        let old = parse(&config("250", ""));
        let server = "[[server]]\nid = \"s02\"\nurl = \"unix:/run/s02.sock\"\nidle_w = 112\n";
        let new = format!("{}{server}redfish = \"https://bmc2\"\n", config("250", ""));
        let new = parse(&format!("{new}[redfish]\ncredentials_file = \"/etc/bmc\"\n"));

        let why = new.following(&old, false).unwrap_err().to_string();
        assert!(why.contains("[redfish] needs a restart"), "{why}");
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
    fn a_lease_lasts_three_polls_at_least() {
        let slow = "[trip_curve]\n\
                    points = [{ draw = 1.02, carried_s = 600 }, { draw = 1.25, carried_s = 120 }]\n\
                    [poll]\nperiod_ms = 5000\nrefresh_ms = 5000\n";
        let params = ChassisConfig::parse("c", &config("250", slow)).unwrap().params;
        assert_eq!(
            (params.lease, params.silent_after),
            (Duration::from_secs(15), Duration::from_millis(12_500))
        );
        let text =
            problems(&config("250", &format!("{slow}[alert]\nlease_ms = 2000\nsilent_after_ms = 1500\n")));
        let says = "alert.lease_ms = 2000: 2000 is below three polls of 5000 ms: at least 15000";
        assert!(text.contains(says), "{text}");
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
        let server = "[[server]]\nid = \"s02\"\nurl = \"unix:/run/s01.sock\"\nidle_w = 50\n";
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
            let address = BmcAddress { url, chassis: None, pin: None };
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
        let server = "[[server]]\nid = \"s02\"\nurl = \"unix:/run/s02.sock\"\nidle_w = 50\n";
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
        let bmc = BmcAddress { url: "https://shelf".to_owned(), chassis: None, pin: None };
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
            (&format!("redfish_certificate_sha256 = \"1\"\n{by_bmc}"), "64 hexadecimal digits"),
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
    fn an_agent_takes_alerts_by_its_socket_or_by_tls() {
        let with = |url: &str| config("250", "").replace("unix:/run/s01.sock", url);
        for plain in ["http://127.0.0.1:7101", "http://192.0.2.7:7101", "unix:s01.sock", "https://s01:7101"] {
            assert!(problems(&with(plain)).contains("unix:/path of the agent's socket"), "{plain}");
        }
        let text = with("https://192.0.2.7:7101");
        assert!(problems(&text).contains("only with [tls]"), "{}", problems(&text));
        let tls = "[tls]\ncert = \"/c\"\nkey = \"/k\"\nca = \"/a\"\n";
        assert!(ChassisConfig::parse("chassis.toml", &format!("{text}{tls}")).is_ok());
    }
}
