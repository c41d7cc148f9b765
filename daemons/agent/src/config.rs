//! `agent.toml`.

mod groups;
mod job_limits;
mod kubernetes;
mod limit;
mod meter;
mod model;
mod pools;
mod records;
mod throttle;
mod vms;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ballast_agent_core::{Actuator, Policy, Steps};
use ballast_hw::{By, JournalFolders};
use ballast_types::wire::{LimitsMode, VmSpec};
use ballast_types::{ChassisId, PowerModel, Role, ServerId, VmId};

pub use ballast_runtime::config::ConfigFile;
use ballast_runtime::config::allowed::{Allowed, ID, choice, flag, path, seconds};
use ballast_runtime::config::reader::{Section, parse_leniently};
use ballast_runtime::config::{DaemonConfig, Listen, RedfishConfig, preset};
use ballast_runtime::tls::TlsConfig;

pub use groups::{DiscoverConfig, GroupsConfig};
pub use job_limits::JobLimitsConfig;
pub use kubernetes::KubernetesConfig;
pub use limit::{LimitBy, ServerLimitConfig};
pub use meter::{FuseConfig, MeterConfig, MeterSource};
pub use pools::{PoolsConfig, Slices};
pub use records::{AutoMode, RecordsConfig};
pub use throttle::ThrottleConfig;
pub(crate) use vms::has_nothing_to_limit;

/// The whole of `agent.toml`, checked.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Where the daemon lives.
    pub daemon: DaemonConfig,
    /// Where its journal lies, if that can be written.
    pub run_dir: PathBuf,
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
    /// At the lowest frequency and above the cap for this long: VMs that prefer it are killed; `None` never.
    pub kill_after: Option<Duration>,
    pub server_limit: ServerLimitConfig,
    /// The server's power model, for estimates in reports.
    pub model: PowerModel,
    /// Who binds VMs to cores, and which VMs are found.
    pub groups: GroupsConfig,
    /// Where the VMs of this server are the pods of a Kubernetes node.
    pub kubernetes: Option<KubernetesConfig>,
    /// What is kept of the VMs' use, and what is made of it.
    pub records: RecordsConfig,
    /// How much each VM should get.
    pub job_limits: JobLimitsConfig,
    /// VMs known from the start; more come by `PUT /v1/vms/{id}`.
    pub vms: BTreeMap<VmId, VmSpec>,
}

impl AgentConfig {
    /// Where the agent's journal may be.
    pub fn journal_folders(&self) -> JournalFolders {
        JournalFolders::new(&self.run_dir, &self.daemon.state_dir)
    }

    /// What a release must know, as far as the file tells: where the agent lived, its `run_dir`, and how long
    /// its restrictions are held. A file that is refused, damaged or gone must not keep a server throttled:
    /// what cannot be read has its default.
    pub fn for_release(path: &Path) -> (DaemonConfig, PathBuf, Duration) {
        parse_leniently(&std::fs::read_to_string(path).unwrap_or_default(), read_for_release)
    }
}

impl ConfigFile for AgentConfig {
    fn role(&self) -> Role {
        Role::Agent(self.server.clone())
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
        let server = root
            .key("server", "This server, as `chassis.toml` names it.")
            .required(Allowed::text(ID, |text| ServerId::new(text).ok()));
        let chassis = root
            .key("chassis", "The one chassis that is obeyed.")
            .required(Allowed::text(ID, |text| ChassisId::new(text).ok()));
        let (daemon, run_dir, orphan_hold) = read_for_release(root);
        let help = "Everything runs, nothing is written to the machine, and the log says what would be done. \
                    The chassis manager then counts on no watt of this server.";
        let dry_run = root.key("dry_run", help).or(false, flag());
        let actuate_in_vm = root
            .key("actuate_in_vm", "Whether to act on a virtual machine; without it the agent runs dry there.")
            .or(false, flag());
        let (policy, steps) = read_policy(root);

        let meter = MeterConfig::read(root);
        let redfish = RedfishConfig::read(root, matches!(meter.source, MeterSource::Redfish(_)));
        let throttle = ThrottleConfig::read(root, meter.least_settle());
        let kill_after = throttle::read_shedding(root, throttle.escalate_after);
        let server_limit = ServerLimitConfig::read(root);
        let model = model::read(root);
        let groups = GroupsConfig::read(root, throttle.actuator);
        let kubernetes = KubernetesConfig::read(root);
        let records = RecordsConfig::read(root);
        let job_limits = JobLimitsConfig::read(root);
        let vms = vms::read(root, throttle.actuator.floats());
        refuse_contradictions(root, policy, &meter, &throttle, &groups, &job_limits, &vms);
        let config = Self {
            daemon,
            run_dir,
            orphan_hold,
            server: server?,
            chassis: chassis?,
            dry_run,
            actuate_in_vm,
            policy,
            steps,
            meter,
            redfish,
            throttle,
            kill_after,
            server_limit,
            model,
            groups,
            kubernetes,
            records,
            job_limits,
            vms,
        };
        KubernetesConfig::check(&config, root);
        Some(config)
    }
}

/// Refuses what does not go together.
fn refuse_contradictions(
    root: &mut Section<'_, '_>,
    policy: Policy,
    meter: &MeterConfig,
    throttle: &ThrottleConfig,
    groups: &GroupsConfig,
    job_limits: &JobLimitsConfig,
    vms: &BTreeMap<VmId, VmSpec>,
) {
    if let Some(why) = groups.pools.as_ref().and_then(|pools| pools.contradiction(vms)) {
        root.refuse(why);
    }
    if throttle.actuator.floats() && policy == Policy::FullServer {
        let allowed = "with policy = \"full-server\" only \"pstate\": every core alike";
        root.refuse_key("throttle.actuator", allowed);
    }
    if throttle.actuator == Actuator::Uclamp && job_limits.mode == LimitsMode::Apply {
        let allowed = "\"off\" or \"recommend\" with throttle.actuator = \"uclamp\"";
        root.refuse_key("limits.mode", allowed);
    }
    if job_limits.apply_memory && matches!(groups.by, By::Libvirt(_)) {
        let allowed = "not with groups.by = \"libvirt\": a limit does not make a guest's memory smaller";
        root.refuse_key("limits.apply_memory", allowed);
    }
    let least = meter.least_settle();
    if throttle.settle < least {
        let allowed = format_args!("at least {} = {}", meter.settle_of(), least.as_millis());
        root.refuse_key("throttle.settle_ms", allowed);
    }
}

fn read_for_release(root: &mut Section<'_, '_>) -> (DaemonConfig, PathBuf, Duration) {
    let listen = ["127.0.0.1:7101", "unix:/run/ballast-agent/ballast.sock"];
    let daemon = DaemonConfig::read(root, listen, JournalFolders::STATE_DIR);
    let help = "Where the journal of what must be put back lies: in memory, as a reboot voids it and a full \
                disk must not keep the agent from acting; in `state_dir` where this cannot be written. \
                `state_dir` alone where that is set and this is not.";
    let default = JournalFolders::of(&daemon.state_dir).first().to_owned();
    let run_dir = root.key("run_dir", help).or(default, path("a folder"));
    let hold = root
        .key("orphan_hold_s", "An agent died and none came back for so long: all is put back without it.")
        .or(Duration::from_secs(60), seconds::<1>("whole seconds", 5..=3600));
    (daemon, run_dir, hold)
}

fn read_policy(root: &mut Section<'_, '_>) -> (Policy, Steps) {
    let help = "`\"paper\"` sets `policy = \"stepwise\"` with the paper's steps; a policy that is set itself \
                comes before the preset.";
    let paper = root.key("preset", help).optional(preset()).is_some();
    let policies = [Policy::Stepwise, Policy::FullServer, Policy::None];
    let allowed = choice(policies.map(|policy| (policy.name(), policy)))
        .with_note("\"stepwise\" replaces \"predictive\"");
    let help = "How low-priority cores are lowered and raised where the chassis sets no common height for \
                them: in steps; every core alike; or not at all, which only watches.";
    let policy = root.key("policy", help).or(Policy::Stepwise, allowed);
    root.removed("predictive", "policy = \"stepwise\" and the chassis's common height replace it");
    (policy, if paper { Steps::Paper } else { Steps::OneWrite })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use ballast_hw::Cgroup;
    use ballast_types::{OnExtreme, Watts};

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
        let default = (
            PathBuf::from("/"),
            PathBuf::from("/var/lib/ballast-agent"),
            PathBuf::from("/run/ballast-agent"),
            60,
        );
        let own = (PathBuf::from("/r"), PathBuf::from("/s"), PathBuf::from("/m"), 9);
        for (text, expected) in [
            (
                "root = \"/r\"\nstate_dir = \"/s\"\nrun_dir = \"/m\"\norphan_hold_s = 9\ntypo = 1\n",
                own.clone(),
            ),
            ("run_dir = \"/m\"\nstate_dir = \"/s\"\nroot = \"/r\"\norphan_hold_s = 9\n[meter\nx ==\n", own),
            ("root = 3\nstate_dir = \"\"\norphan_hold_s = 1\n", default.clone()),
            ("\u{0}{{{", default.clone()),
        ] {
            std::fs::write(&file, text).unwrap();
            let (place, run_dir, hold) = AgentConfig::for_release(&file);
            assert_eq!((place.root, place.state_dir, run_dir, hold.as_secs()), expected, "{text:?}");
        }
        let (place, run_dir, hold) = AgentConfig::for_release(&folder.path().join("none"));
        assert_eq!((place.root, place.state_dir, run_dir, hold.as_secs()), default);
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
    fn a_syntax_error_is_the_only_complaint() {
        for (text, line) in [("x = [", 1), ("chassis = \"c1\"\n[meter", 2), ("a = 1\na = 2\n", 2)] {
            let said = problems(text);
            assert!(said.lines().count() == 1 && said.contains(&format!(":{line}: ")), "{text}: {said}");
        }
    }

    #[test]
    fn every_problem_is_named_at_once_with_its_line() {
        let text = "server = \"a/b\"\nmeter.offset_w = 60\npolicy = 3\ntypo = 1\n[throttle]\nstep_cores = 0\n\
                    [[vm]]\nid = \"v\"\nclass = \"batch\"\ncores = 2\n";
        assert_eq!(
            problems(text).lines().collect::<Vec<_>>(),
            [
                "agent.toml:1: chassis is missing: an id: 1 to 64 of A-Z a-z 0-9 . _ - : @, without a \
                 leading dot",
                "agent.toml:1: server = \"a/b\": an id: 1 to 64 of A-Z a-z 0-9 . _ - : @, without a leading \
                 dot",
                "agent.toml:3: policy = 3: \"stepwise\", \"full-server\" or \"none\"; \"stepwise\" replaces \
                 \"predictive\"",
                "agent.toml:4: typo: no such key; there are actuate_in_vm, allowed_hosts, auto_class, \
                 chassis, class, discover, dry_run, groups, kubernetes, limits, listen, log_level, \
                 meter, model, orphan_hold_s, policy, pools, preset, realtime, record_dir, \
                 record_max_mb, records, redfish, root, run_dir, server, server_limit, shedding, \
                 state_dir, throttle, tls, vm",
                "agent.toml:6: throttle.step_cores = 0: a whole number of cores, 1 to 1024",
                "agent.toml:9: vm[0].class = \"batch\": \"user-facing\" or \"non-user-facing\"",
            ]
        );
    }

    #[test]
    fn the_papers_preset_is_stepwise_unless_the_policy_is_told() {
        for (more, policy) in [
            ("", Policy::Stepwise),
            ("preset = \"paper\"\n", Policy::Stepwise),
            ("preset = \"paper\"\npolicy = \"full-server\"\n", Policy::FullServer),
        ] {
            let config = AgentConfig::parse("agent.toml", &format!("{more}{LEAST}")).unwrap();
            assert_eq!(config.policy, policy, "{more}");
        }
        let text = problems(&format!("policy = \"predictive\"\n{LEAST}[predictive]\nperiod_ms = 50\n"));
        assert!(text.contains("agent.toml:1: policy = \"predictive\": \"stepwise\", "), "{text}");
        assert!(text.contains("agent.toml:5: predictive: removed; policy = \"stepwise\""), "{text}");
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
            (class(256, "50"), "class[0].order = 256: a whole number, 0 to 255"),
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
             agent.toml:11: vm[1].cgroup is missing: with throttle.actuator = \"cpu-max\" or \"uclamp\" it \
             is what is limited"
        );
        let text = format!("{LEAST}{floating}quota_period_ms = 5\n");
        assert!(problems(&text).contains("quota_period_ms = 5: whole milliseconds, 10 to 100"));
        let text = format!("{LEAST}{floating}{both}cgroup = \"b.scope\"\n");
        let config = AgentConfig::parse("agent.toml", &text).unwrap();
        assert_eq!(config.throttle.actuator, Actuator::CpuMax);
        assert_eq!(config.throttle.quota_period, Duration::from_millis(20));

        // A limit by use is one of time, and one group has one kind.
        let uclamp = format!("{LEAST}[throttle]\nactuator = \"uclamp\"\n");
        let text = format!("{uclamp}[records]\nenabled = true\n[limits]\nmode = \"apply\"\n");
        assert!(problems(&text).contains("limits.mode = \"apply\": \"off\" or"), "{}", problems(&text));
        let config = AgentConfig::parse("agent.toml", &uclamp).unwrap();
        assert_eq!(config.throttle.actuator, Actuator::Uclamp);
    }

    #[test]
    fn a_cgroup_that_would_be_refused_later_is_refused_here() {
        for bad in ["../x", "/x", "a//b", "kubepods.slice/x", "x/kubepods.slice/y", "", "system.slice"] {
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
