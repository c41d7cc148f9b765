//! `agent.toml`.

mod groups;
mod meter;
mod records;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ballast_agent_core::{Actuator, Policy, Steps};
use ballast_hw::Cgroup;
use ballast_types::wire::VmSpec;
use ballast_types::{ChassisId, OnExtreme, PowerModel, Role, ServerId, VmClass, VmId, Watts};
use toml::de::DeValue;

use ballast_runtime::config::reader::{ConfigError, Problems, Section, flag, number, text, whole, word};
use ballast_runtime::config::{DaemonConfig, PRESETS, RedfishConfig, WATTS, load, millis, percent, watts};

pub use groups::{DiscoverConfig, GroupsConfig};
pub use meter::{FuseConfig, MeterConfig, MeterSource};
pub use records::{AutoMode, RecordsConfig};

/// The classes of VMs, in words and by name.
const CLASSES: (&str, [(&str, VmClass); 2]) = (
    "\"user-facing\" or \"non-user-facing\"",
    [("user-facing", VmClass::UserFacing), ("non-user-facing", VmClass::NonUserFacing)],
);
/// What may be done to a VM when throttling is not enough.
const EXTREMES: (&str, [(&str, OnExtreme); 2]) =
    ("\"none\" or \"kill\"", [("none", OnExtreme::None), ("kill", OnExtreme::Kill)]);

/// The whole of `agent.toml`, checked.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Where the daemon lives.
    pub daemon: DaemonConfig,
    /// How long restrictions are held for an agent that has died, until they are put back without it.
    pub orphan_hold: Duration,
    pub server: ServerId,
    /// The one chassis that is obeyed.
    pub chassis: ChassisId,
    /// Everything runs, nothing is written to the machine.
    pub dry_run: bool,
    /// Whether to act on a virtual machine; without, it runs dry there.
    pub actuate_in_vm: bool,
    pub policy: Policy,
    /// How a cap that falls inside an event is answered; the paper's preset keeps the paper's steps.
    pub steps: Steps,
    /// The server's power meter.
    pub meter: MeterConfig,
    /// How its BMC is reached, where that is the meter.
    pub redfish: RedfishConfig,
    pub throttle: ThrottleConfig,
    pub predictive: PredictiveConfig,
    /// At the lowest frequency and above the cap for this long: VMs that prefer it are killed; `None` never.
    pub kill_after: Option<Duration>,
    pub server_limit: ServerLimitConfig,
    /// The server's power model, for estimates in reports.
    pub model: PowerModel,
    /// Who binds VMs to cores, and which VMs are found.
    pub groups: GroupsConfig,
    /// What is kept of the VMs' use, and what is made of it.
    pub records: RecordsConfig,
    /// VMs known from the start; more come by `PUT /v1/vms/{id}`.
    pub vms: BTreeMap<VmId, VmSpec>,
}

/// `[throttle]`, and the floors of `[[class]]`.
#[derive(Clone, Debug)]
pub struct ThrottleConfig {
    /// What throttling acts on.
    pub actuator: Actuator,
    /// With `cpu-max`: the period in which a VM's CPU time is limited.
    pub quota_period: Duration,
    /// Cores moved per step.
    pub step_cores: u16,
    /// Target = cap less this share of it.
    pub margin_ppm: u32,
    /// No step up within this of the target.
    pub deadband: Watts,
    pub settle: Duration,
    /// At the floor and above the cap for this long: the server's own limit.
    pub escalate_after: Duration,
    /// The floor of every throttle class that has one of its own, by its index in the throttle list, as a
    /// percentage of the highest frequency; with `cpu-max`, of the CPU time.
    pub floors: BTreeMap<u8, u8>,
    /// The same for user-facing VMs, which are throttled after all others; `None`: they never are.
    pub user_facing_floor: Option<u8>,
}

/// `[predictive]`.
#[derive(Clone, Debug)]
pub struct PredictiveConfig {
    /// The length of a window of RAPL and CPU use.
    pub period: Duration,
    /// The margin under the cap, in standard deviations of what its forecasts miss.
    pub margin_sigmas: f64,
}

/// `[server_limit]`.
#[derive(Clone, Debug)]
pub struct ServerLimitConfig {
    /// What the server's own limit is.
    pub by: LimitBy,
    /// The lowest limit of the server's own hardware; `None` when it is not to be used.
    pub floor: Option<Watts>,
    /// How long the limit stays on after the draw came under the target.
    pub hold: Duration,
}

/// What the server's own limit is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitBy {
    /// RAPL's package limits.
    Rapl,
    /// A hwmon device's `powerN_cap`.
    PowerCap {
        name: String,
        /// The channel's `powerN_label`, where it has labels.
        label: Option<String>,
    },
    /// The BMC's, by IPMI DCMI.
    Dcmi,
}

impl AgentConfig {
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
        Role::Agent(self.server.clone())
    }

    /// What a release must know, as far as the file tells: where the agent lived, and how long its
    /// restrictions are held. A file that is refused, damaged or gone must not keep a server throttled:
    /// what cannot be read has its default.
    #[must_use]
    pub fn for_release(path: &Path) -> (DaemonConfig, Duration) {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let problems = Problems::new("", &text);
        let table = problems.parse();
        read_life(&mut Section::root(&problems, &table))
    }

    /// Checks a text; `file` is its name in problems.
    ///
    /// # Errors
    /// Every problem, one a line.
    pub fn parse(file: &str, source: &str) -> Result<Self, ConfigError> {
        let problems = Problems::new(file, source);
        let table = problems.parse();
        let mut root = Section::root(&problems, &table);

        let (daemon, orphan_hold) = read_life(&mut root);
        let server =
            root.required("server", "an id of this server", |value| ServerId::new(value.as_str()?).ok());
        let chassis =
            root.required("chassis", "the id of its chassis", |value| ChassisId::new(value.as_str()?).ok());
        let dry_run = root.or("dry_run", false, "true or false", flag);
        let actuate_in_vm = root.or("actuate_in_vm", false, "true or false", flag);
        let policies = [Policy::Stepwise, Policy::Predictive, Policy::FullServer, Policy::None];
        let policies = policies.map(|policy| (policy.name(), policy));
        let paper = root.optional("preset", PRESETS.0, word(&PRESETS.1)).is_some();

        // Without RAPL the controller steps, and says so: nobody has to choose by what the machine has.
        let usual = if paper { Policy::Stepwise } else { Policy::Predictive };
        let policy = root.or(
            "policy",
            usual,
            "\"stepwise\", \"predictive\", \"full-server\" or \"none\"",
            word(&policies),
        );

        let meter = MeterConfig::read(root.section("meter"));
        let by_redfish = matches!(meter.source, MeterSource::Redfish(_));
        let redfish = RedfishConfig::read(root.section("redfish"), by_redfish);

        let mut throttle = root.section("throttle");
        let actuators = [Actuator::Pstate, Actuator::CpuMax].map(|it| (it.name(), it));
        let actuator =
            throttle.or("actuator", Actuator::Pstate, "\"pstate\" or \"cpu-max\"", word(&actuators));

        let floating = actuator == Actuator::CpuMax;

        if floating && policy == Policy::FullServer {
            let allowed = "with policy = \"full-server\" only \"pstate\": every core alike";
            throttle.refuse_key("actuator", allowed);
        }

        let quota_period = throttle.or(
            "quota_period_ms",
            Duration::from_millis(20),
            "whole milliseconds, 10 to 100",
            millis(10, 100),
        );

        let step_cores = throttle.or("step_cores", 4, "1 to 1024 cores", whole(1..=1024)) as u16;
        let margin_ppm = throttle
            .or("margin_percent", 20_000, "0 to 50 %", |value| percent(value).filter(|ppm| *ppm <= 500_000));
        let deadband = throttle.or("deadband_w", Watts::from_whole(4), "0 to 1000 W", |value| {
            number(0.0..=1000.0)(value).and_then(Watts::from_f64)
        });
        let least = meter.least_settle();
        let settle = throttle.or("settle_ms", least, "whole milliseconds, 1 to 60000", millis(1, 60_000));
        if settle < least {
            throttle.refuse_key(
                "settle_ms",
                format_args!("at least {} = {}", meter.settle_of(), least.as_millis()),
            );
        }

        let escalate_after = throttle.or(
            "escalate_ms",
            Duration::from_millis(600),
            "whole milliseconds, 1 to 60000",
            millis(1, 60_000),
        );

        let user_facing_floor = throttle.optional("user_facing_floor_percent", FLOOR, whole(1..=100));
        throttle.finish();
        let mut floors = BTreeMap::new();

        for section in root.sections("class") {
            floors.extend(read_class(section, &floors));
        }

        let mut shedding = root.section("shedding");
        let allow_kill = shedding.or("allow_kill", false, "true or false", flag);
        let kill_after =
            shedding.or("kill_after_ms", escalate_after, "whole milliseconds, 1 to 60000", millis(1, 60_000));

        shedding.finish();

        let mut predictive = root.section("predictive");
        let fast_period = predictive.or(
            "period_ms",
            Duration::from_millis(50),
            "whole milliseconds, 20 to 1000",
            millis(20, 1000),
        );

        let margin_sigmas = predictive.or("margin_sigmas", 2.2, "0 to 10", number(0.0..=10.0));
        predictive.finish();

        let mut limit = root.section("server_limit");
        let enabled = limit.or("enabled", true, "true or false", flag);
        let server_limit_by = LimitBy::read(&mut limit);
        let floor = limit.or("floor_w", Watts::from_whole(150), WATTS, watts);
        let server_limit_hold = limit.or(
            "hold_ms",
            Duration::from_secs(2),
            "whole milliseconds, 100 to 600000",
            millis(100, 600_000),
        );

        limit.finish();

        let model = read_model(root.section("model"));
        let groups = GroupsConfig::read(&mut root);
        let records = RecordsConfig::read(&mut root);
        let mut vms = BTreeMap::new();

        for section in root.sections("vm") {
            if let Some((id, spec)) = read_vm(section, &vms, floating) {
                vms.insert(id, spec);
            }
        }

        root.finish();

        let config = server.zip(chassis).map(|(server, chassis)| Self {
            daemon,
            orphan_hold,
            server,
            chassis,
            dry_run,
            actuate_in_vm,
            policy,
            steps: if paper { Steps::Paper } else { Steps::OneWrite },
            meter,
            redfish,
            throttle: ThrottleConfig {
                actuator,
                quota_period,
                step_cores,
                margin_ppm,
                deadband,
                settle,
                escalate_after,
                floors,
                user_facing_floor: user_facing_floor.map(|percent| percent as u8),
            },
            predictive: PredictiveConfig { period: fast_period, margin_sigmas },
            kill_after: allow_kill.then_some(kill_after),
            server_limit: ServerLimitConfig {
                by: server_limit_by,
                floor: enabled.then_some(floor),
                hold: server_limit_hold,
            },
            model,
            groups,
            records,
            vms,
        });

        problems.finish(config).and_then(|config| {
            config.ok_or_else(|| ConfigError::whole(file, "server and chassis are missing"))
        })
    }
}

fn read_life(root: &mut Section<'_, '_>) -> (DaemonConfig, Duration) {
    let place = DaemonConfig::read(root, "127.0.0.1:7101", "/var/lib/ballast-agent");
    let seconds = |value: &DeValue<'_>| whole(5..=3600)(value).map(Duration::from_secs);
    let hold = root.or("orphan_hold_s", Duration::from_secs(60), "whole seconds, 5 to 3600", seconds);
    (place, hold)
}

impl LimitBy {
    fn read(section: &mut Section<'_, '_>) -> Self {
        let by = [
            ("rapl", Self::Rapl),
            ("power1-cap", Self::PowerCap { name: String::new(), label: None }),
            ("dcmi", Self::Dcmi),
        ];

        let allowed = "\"rapl\", \"power1-cap\" or \"dcmi\"";
        let by = by.each_ref().map(|(word, by)| (*word, by));

        match section.or("by", &Self::Rapl, allowed, word(&by)) {
            Self::PowerCap { .. } => Self::PowerCap {
                name: section.or("name", "power_meter".into(), "the device's hwmon name", |value| {
                    text(value).filter(|name| !name.contains(char::is_whitespace))
                }),
                label: section.optional("label", "the channel's label", text),
            },
            by => by.clone(),
        }
    }
}

fn read_model(mut section: Section<'_, '_>) -> PowerModel {
    let paper = PowerModel::PAPER;
    let mut curve = |key, default| section.or(key, default, WATTS, number(0.001..=1e6));
    let model = PowerModel {
        idle_w: curve("idle_w", paper.idle_w),
        full_w: curve("full_w", paper.full_w),
        half_idle_w: curve("half_frequency_idle_w", paper.half_idle_w),
        half_full_w: curve("half_frequency_full_w", paper.half_full_w),
    };
    if let Err(why) = model.check() {
        section.refuse(why);
    }
    section.finish();
    model
}

const FLOOR: &str = "a whole percentage, 1 to 100";

/// One `[[class]]`: its place in the throttle list, and its floor.
fn read_class(mut section: Section<'_, '_>, others: &BTreeMap<u8, u8>) -> Option<(u8, u8)> {
    let order = section.required("order", "0 to 255", whole(0..=255)).map(|order| order as u8);
    let floor = section.required("floor_percent", FLOOR, whole(1..=100));
    if order.is_some_and(|order| others.contains_key(&order)) {
        section.refuse_key("order", "every class once");
    }
    section.finish();
    Some((order?, floor? as u8))
}

fn read_vm(
    mut section: Section<'_, '_>,
    others: &BTreeMap<VmId, VmSpec>,
    floating: bool,
) -> Option<(VmId, VmSpec)> {
    let id = section.required("id", "the VM's id", |value| VmId::new(value.as_str()?).ok());
    let class = section.optional("class", CLASSES.0, word(&CLASSES.1));
    let cores = section.required("cores", "1 to 4096 cores", whole(1..=4096));
    let throttle_order = section.or("throttle_order", 0, "0 to 255", whole(0..=255)) as u8;
    let cgroup = section.optional("cgroup", Cgroup::PATHS, |value: &DeValue<'_>| {
        text(value).filter(|path| Cgroup::is_path(path))
    });
    let on_extreme = section.or("on_extreme", OnExtreme::None, EXTREMES.0, word(&EXTREMES.1));

    if id.as_ref().is_some_and(|id| others.contains_key(id)) {
        section.refuse_key("id", "every VM has an id of its own");
    }
    let spec = cores.map(|cores| {
        let spec = VmSpec { class, throttle_order, cores: cores as u16, cgroup, on_extreme };
        if let Err(why) = spec.check() {
            section.refuse(why);
        }
        if let Some(why) = has_nothing_to_limit(&spec).filter(|_| floating) {
            section.refuse(why);
        }
        spec
    });

    section.finish();

    Some((id?, spec?))
}

/// With `cpu-max`: what is missing of a VM for it to be limited.
pub(crate) fn has_nothing_to_limit(spec: &VmSpec) -> Option<&'static str> {
    let low = spec.class() == VmClass::NonUserFacing;
    (low && spec.cgroup.is_none())
        .then_some("cgroup is missing: with throttle.actuator = \"cpu-max\" it is what is limited")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const LEAST: &str = "server = \"s01\"\nchassis = \"c1\"\nmeter.offset_w = 60\n";

    fn problems(text: &str) -> String {
        AgentConfig::parse("agent.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn three_keys_are_enough() {
        let config = AgentConfig::parse("agent.toml", LEAST).unwrap();
        assert_eq!(config.throttle.settle, Duration::from_millis(400));
        assert_eq!(config.meter.source, MeterSource::Rapl { offset: Watts::from_whole(60) });
        assert_eq!(config.server_limit.floor, Some(Watts::from_whole(150)));
        assert_eq!(config.kill_after, None, "nobody is killed by default");
    }

    #[test]
    fn what_a_release_must_know_is_read_of_any_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("agent.toml");
        let default = (PathBuf::from("/"), PathBuf::from("/var/lib/ballast-agent"), 60);
        let own = (PathBuf::from("/r"), PathBuf::from("/s"), 9);
        for (text, expected) in [
            ("root = \"/r\"\nstate_dir = \"/s\"\norphan_hold_s = 9\ntypo = 1\n", own.clone()),
            ("state_dir = \"/s\"\nroot = \"/r\"\norphan_hold_s = 9\n[meter\nx ==\n", own),
            ("root = 3\nstate_dir = \"\"\norphan_hold_s = 1\n", default.clone()),
            ("\u{0}{{{", default.clone()),
        ] {
            std::fs::write(&file, text).unwrap();
            let (place, hold) = AgentConfig::for_release(&file);
            assert_eq!((place.root, place.state_dir, hold.as_secs()), expected, "{text:?}");
        }
        let (place, hold) = AgentConfig::for_release(&folder.path().join("none"));
        assert_eq!((place.root, place.state_dir, hold.as_secs()), default);
    }

    #[test]
    fn kills_come_with_the_servers_own_limit_unless_told_otherwise() {
        for (more, after) in [
            ("[shedding]\nkill_after_ms = 300\n", None),
            ("[shedding]\nallow_kill = true\n", Some(600)),
            ("[throttle]\nescalate_ms = 900\n[shedding]\nallow_kill = true\n", Some(900)),
            ("[shedding]\nallow_kill = true\nkill_after_ms = 300\n", Some(300)),
        ] {
            let config = AgentConfig::parse("agent.toml", &format!("{LEAST}{more}")).unwrap();
            assert_eq!(config.kill_after, after.map(Duration::from_millis), "{more}");
        }
    }

    #[test]
    fn every_problem_is_named_at_once_with_its_line() {
        let text = "server = \"a/b\"\nmeter.offset_w = 60\npolicy = 3\ntypo = 1\n[throttle]\nstep_cores = 0\n\
                    [[vm]]\nid = \"v\"\nclass = \"batch\"\ncores = 2\n";
        assert_eq!(
            problems(text).lines().collect::<Vec<_>>(),
            [
                "agent.toml:1: chassis is missing: the id of its chassis",
                "agent.toml:1: server = \"a/b\": an id of this server",
                "agent.toml:3: policy = 3: \"stepwise\", \"predictive\", \"full-server\" or \"none\"",
                "agent.toml:4: typo: no such key; there are actuate_in_vm, allowed_hosts, auto_class, chassis, class, discover, \
                 dry_run, groups, listen, meter, model, orphan_hold_s, policy, predictive, preset, realtime, record_dir, records, \
                 redfish, root, server, \
                 server_limit, shedding, state_dir, throttle, tls, vm",
                "agent.toml:6: throttle.step_cores = 0: 1 to 1024 cores",
                "agent.toml:9: vm[0].class = \"batch\": \"user-facing\" or \"non-user-facing\"",
            ]
        );
    }

    #[test]
    fn the_papers_preset_is_stepwise_unless_the_policy_is_told() {
        for (more, policy) in [
            ("", Policy::Predictive),
            ("policy = \"stepwise\"\n", Policy::Stepwise),
            ("preset = \"paper\"\n", Policy::Stepwise),
            ("preset = \"paper\"\npolicy = \"predictive\"\n", Policy::Predictive),
        ] {
            let config = AgentConfig::parse("agent.toml", &format!("{more}{LEAST}")).unwrap();
            assert_eq!(config.policy, policy, "{more}");
        }
        let text = problems(&format!("preset = \"papers\"\n{LEAST}"));
        assert!(text.contains("agent.toml:1: preset = \"papers\": \"paper\""), "{text}");
    }

    #[test]
    fn classes_and_user_facing_vms_may_have_a_floor() {
        let parse = |more: &str| AgentConfig::parse("agent.toml", &format!("{LEAST}{more}"));
        let config = parse("").unwrap();
        assert_eq!((config.throttle.floors, config.throttle.user_facing_floor), (BTreeMap::new(), None));
        let class =
            |order: u16, floor: &str| format!("[[class]]\norder = {order}\nfloor_percent = {floor}\n");
        let both = format!("{}{}", class(0, "50"), class(7, "80"));
        let config = parse(&format!("{both}[throttle]\nuser_facing_floor_percent = 75\n")).unwrap();
        assert_eq!(config.throttle.floors, BTreeMap::from([(0, 50), (7, 80)]));
        assert_eq!(config.throttle.user_facing_floor, Some(75));

        for (bad, says) in [
            (class(0, "0"), "agent.toml:6: class[0].floor_percent = 0: a whole percentage, 1 to 100"),
            (class(0, "101"), "class[0].floor_percent = 101"),
            (class(0, "50.5"), "class[0].floor_percent = 50.5"),
            (class(256, "50"), "class[0].order = 256: 0 to 255"),
            (format!("{}{}", class(3, "50"), class(3, "60")), "class[1].order = 3: every class once"),
            ("[[class]]\norder = 1\n".into(), "class[0].floor_percent is missing"),
            ("[throttle]\nuser_facing_floor_percent = 0\n".into(), "user_facing_floor_percent = 0"),
        ] {
            let text = parse(&bad).unwrap_err().to_string();
            assert!(text.contains(says), "{says}: {text}");
        }
    }

    #[test]
    fn the_servers_own_limit_is_one_of_three() {
        let power_cap = |name: &str, label: Option<&str>| LimitBy::PowerCap {
            name: name.into(),
            label: label.map(str::to_owned),
        };

        for (more, expected) in [
            ("", LimitBy::Rapl),
            ("by = \"rapl\"", LimitBy::Rapl),
            ("by = \"dcmi\"", LimitBy::Dcmi),
            ("by = \"power1-cap\"", power_cap("power_meter", None)),
            ("by = \"power1-cap\"\nname = \"a\"\nlabel = \"b\"", power_cap("a", Some("b"))),
        ] {
            let text = format!("{LEAST}[server_limit]\n{more}\n");
            let config = AgentConfig::parse("agent.toml", &text).unwrap();
            assert_eq!(config.server_limit.by, expected);
        }

        for (bad, says) in [
            ("by = \"redfish\"", "\"rapl\", \"power1-cap\" or \"dcmi\""),
            ("by = \"power1-cap\"\nname = \"a b\"", "the device's hwmon name"),
            ("name = \"a\"", "server_limit.name: no such key"),
        ] {
            let said = problems(&format!("{LEAST}[server_limit]\n{bad}\n"));
            assert!(said.contains(says), "{said}");
        }
    }

    #[test]
    fn listening_beyond_loopback_is_refused() {
        for listen in ["0.0.0.0:7101", "192.0.2.1:7101", "[::]:7101", "localhost", "nonsense"] {
            let text = format!("{LEAST}listen = \"{listen}\"\n");
            assert!(problems(&text).contains("loopback"), "{listen}");
        }
    }

    #[test]
    fn a_settle_time_shorter_than_the_meter_is_refused() {
        let text = format!("{LEAST}[throttle]\nsettle_ms = 100\n");
        assert!(problems(&text).contains("throttle.settle_ms = 100: at least"), "{}", problems(&text));
    }

    #[test]
    fn floating_vms_need_a_cgroup_and_a_policy_that_tells_them_apart() {
        let vm = |class: &str| format!("[[vm]]\nid = \"{class}\"\nclass = \"{class}\"\ncores = 2\n");
        let both = format!("{}{}", vm("user-facing"), vm("non-user-facing"));
        let floating = "[throttle]\nactuator = \"cpu-max\"\n";
        assert_eq!(
            problems(&format!("{LEAST}policy = \"full-server\"\n{floating}{both}")),
            "agent.toml:6: throttle.actuator = \"cpu-max\": with policy = \"full-server\" only \
             \"pstate\": every core alike\n\
             agent.toml:11: vm[1].cgroup is missing: with throttle.actuator = \"cpu-max\" it is what \
             is limited"
        );
        let text = format!("{LEAST}{floating}quota_period_ms = 5\n");
        assert!(problems(&text).contains("quota_period_ms = 5: whole milliseconds, 10 to 100"));
        let text = format!("{LEAST}{floating}{both}cgroup = \"b.scope\"\n");
        let config = AgentConfig::parse("agent.toml", &text).unwrap();
        assert_eq!(config.throttle.actuator, Actuator::CpuMax);
        assert_eq!(config.throttle.quota_period, Duration::from_millis(20));
    }

    #[test]
    fn a_cgroup_that_would_be_refused_later_is_refused_here() {
        for bad in ["../x", "/x", "a//b", "kubepods.slice/x", "x/kubepods.slice/y", ""] {
            let vm = "[[vm]]\nid = \"v\"\nclass = \"user-facing\"\ncores = 2\n";
            let said = problems(&format!("{LEAST}{vm}cgroup = {bad:?}\n"));
            let expected = format!("agent.toml:8: vm[0].cgroup = {bad:?}: {}", Cgroup::PATHS);
            assert_eq!(said, expected);
        }
    }

    #[test]
    fn only_a_non_user_facing_vm_with_a_cgroup_of_its_own_may_be_killed() {
        let vm = |class: &str, more: &str| {
            format!(
                "{LEAST}[[vm]]\nid = \"v\"\nclass = \"{class}\"\ncores = 2\non_extreme = \"kill\"\n{more}"
            )
        };
        let own = "cgroup = \"machine.slice/v.scope\"\n";
        for (text, why) in [
            (vm("user-facing", own), "only for class \"non-user-facing\""),
            (vm("non-user-facing", ""), "only with a cgroup"),
            (vm("non-user-facing", "cgroup = \"machine.slice\"\n"), "not a slice"),
            (vm("non-user-facing", "cgroup = \"docker\"\n"), "not one at the top"),
        ] {
            let said = problems(&text);
            assert!(said.starts_with("agent.toml:4: vm[0]") && said.contains(why), "{said}");
        }
        let config = AgentConfig::parse("agent.toml", &vm("non-user-facing", own)).unwrap();
        assert!(config.vms.values().all(|vm| vm.on_extreme == OnExtreme::Kill));
    }

    #[test]
    fn broken_toml_and_missing_files_are_named() {
        assert!(problems("server = \n").starts_with("agent.toml:1: "));
        let error = AgentConfig::load(Path::new("/nonexistent/agent.toml")).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/agent.toml: "));
    }
}
