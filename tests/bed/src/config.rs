//! The daemons' configs of a demo: commented, so that kept ones serve as examples.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ballast_sim::plant::{PlantSpec, SensorSpec, ServerSpec};
use ballast_sim::scenario::Control;
use ballast_types::VmClass;

pub const CHASSIS: &str = "demo";

pub struct Home<'a> {
    pub listen: SocketAddr,
    /// Where it takes orders of this machine.
    pub socket: &'a Path,
    /// Its part of the rig's tree.
    pub root: &'a Path,
    pub state: &'a Path,
    /// Where it records, if it does.
    pub record: Option<&'a Path>,
    /// Its certificate, if it also serves TLS: the path of its files without their endings.
    pub tls: Option<&'a Path>,
}

impl Home<'_> {
    /// Where it serves TLS, if it does: beside its plain listener.
    pub fn secret(&self) -> Option<SocketAddr> {
        self.tls.map(|_| SocketAddr::from(([127, 0, 0, 2], self.listen.port())))
    }
}

/// A text as TOML writes it.
fn quoted(text: &impl ToString) -> String {
    toml::Value::String(text.to_string()).to_string()
}

fn home(home: &Home<'_>) -> String {
    let record = home.record.map_or_else(String::new, |record| {
        format!(
            "# Every input and output, for `ballast replay`.\nrecord_dir = {}\n",
            quoted(&record.display())
        )
    });

    let socket = quoted(&format!("unix:{}", home.socket.display()));
    let (mut listen, mut tls) = (format!("{}, {socket}", quoted(&home.listen)), String::new());
    if let (Some(stem), Some(at)) = (home.tls, home.secret()) {
        listen += &format!(", {}", quoted(&format!("https://{at}")));
        let file = |path: &Path| quoted(&path.display());
        tls = format!(
            "\n[tls]\ncert = {}\nkey = {}\nca = {}\n",
            file(&stem.with_added_extension("crt")),
            file(&stem.with_added_extension("key")),
            file(&stem.with_file_name("ca.crt")),
        );
    }

    format!(
        "# Where to serve: loopback only reads, orders come by the socket, TLS is for the network.\n\
         listen = [{listen}]\n\
         # The machine: \"/\" on a real server; here the rig's tree of kernel-format files.\n\
         root = {}\n\
         # What must survive a restart.\n\
         state_dir = {}\n{record}{tls}",
        quoted(&home.root.display()),
        quoted(&home.state.display()),
    )
}

/// Where an agent's journal lies, by its state folder.
pub fn run_dir(state: &Path) -> PathBuf {
    state.with_added_extension("run")
}

/// A config with these values in place of `{names}`.
fn filled(template: &str, values: &[(&str, String)]) -> String {
    let mut text = template.to_owned();
    for (name, value) in values {
        text = text.replace(&format!("{{{name}}}"), value);
    }
    text
}

pub fn agent(at: &Home<'_>, server: &ServerSpec, meter: &SensorSpec, control: &Control) -> String {
    let model = &server.model;
    let values = [
        ("server_id", server.id.to_string()),
        ("server", quoted(&server.id)),
        ("chassis", quoted(&CHASSIS)),
        ("policy", quoted(&control.policy.name())),
        ("run_dir", quoted(&run_dir(at.state).display())),
        ("home", home(at)),
        ("name", quoted(&crate::rig::METER_NAME)),
        ("label", quoted(&crate::rig::METER_LABEL)),
        ("sample", meter.refresh.as_millis().to_string()),
        ("lag", meter.lag.as_millis().to_string()),
        ("actuator", quoted(&control.actuator.name())),
        ("idle_w", format!("{:?}", model.idle_w)),
        ("full_w", format!("{:?}", model.full_w)),
        ("half_idle_w", format!("{:?}", model.half_idle_w)),
        ("half_full_w", format!("{:?}", model.half_full_w)),
    ];
    let vms = server.vms.iter().map(|vm| {
        let class = match vm.class {
            VmClass::UserFacing => "user-facing",
            VmClass::NonUserFacing => "non-user-facing",
        };
        format!(
            "[[vm]]\nid = {}\nclass = {}\ncores = {}\nthrottle_order = {}\ncgroup = {}\n\n",
            quoted(&vm.id),
            quoted(&class),
            vm.cpus(),
            vm.throttle_order,
            quoted(&crate::rig::vm_cgroup(&vm.id)),
        )
    });
    filled(include_str!("config/agent.toml.in"), &values) + &vms.collect::<String>()
}

pub(crate) fn supplies(plant: &PlantSpec) -> String {
    let supplies = plant.supplies.iter().enumerate().map(|(index, supply)| {
        let (hwmon, rated_w) = (crate::rig::supply_hwmon(index), supply.rated.as_f64());
        format!("[[supply]]\nhwmon = {}\nrated_w = {rated_w:?}\n\n", quoted(&hwmon))
    });
    supplies.collect()
}

/// The servers' tables in `chassis.toml`; agents serve at these sockets.
pub(crate) fn servers(plant: &PlantSpec, agents: &[PathBuf]) -> String {
    let servers = plant.servers.iter().zip(agents).map(|(server, agent)| {
        format!(
            "[[server]]\nid = {}\nurl = {}\nidle_w = {:?}\nslot = {}\n\n",
            quoted(&server.id),
            quoted(&format!("unix:{}", agent.display())),
            server.model.idle_w,
            quoted(&crate::rig::slot_label(&server.id)),
        )
    });
    servers.collect()
}

pub fn chassis(
    at: &Home<'_>,
    plant: &PlantSpec,
    agents: &[PathBuf],
    (control, lift_hold_ms): (&Control, u64),
) -> String {
    let shares = control.shares.map_or_else(String::new, |shares| {
        format!(
            "# How the budget is split over the servers: \"even\" or \"critical-first\".\n\
             shares = {}\n",
            quoted(&shares.name())
        )
    });
    let preset = if control.paper {
        "# The rules of the paper, where no key says otherwise: even shares, a plain timer.\n\
         preset = \"paper\"\n"
    } else {
        ""
    };
    let values = [
        ("chassis", quoted(&CHASSIS)),
        ("budget_w", format!("{:?}", plant.budget.as_f64())),
        ("preset", preset.to_owned()),
        ("shares", shares),
        ("home", home(at)),
        ("lift_hold_ms", lift_hold_ms.to_string()),
        ("supplies", supplies(plant)),
        ("servers", servers(plant, agents)),
    ];
    filled(include_str!("config/chassis.toml.in"), &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_agent::config::{AgentConfig, ConfigFile as _, MeterSource};
    use ballast_agent_core::Policy;
    use ballast_chassis::config::ChassisConfig;
    use ballast_chassis_core::LiftRule;
    use ballast_sim::demo::{DemoOptions, demo};
    use ballast_types::Watts;
    use ballast_types::wire::SharePolicy;

    fn at(record: Option<&'static str>) -> Home<'static> {
        Home {
            listen: SocketAddr::from(([127, 0, 0, 1], 7101)),
            socket: Path::new("/dev/shm/s01.sock"),
            root: Path::new("/dev/shm/a \"quoted\" root"),
            state: Path::new("/dev/shm/state"),
            record: record.map(Path::new),
            tls: None,
        }
    }

    #[test]
    fn the_daemons_read_back_what_the_plant_is() {
        let plant = demo(&DemoOptions::default());
        let server = &plant.servers[3];
        let text = agent(&at(Some("/dev/shm/rec")), server, &plant.meter, &Control::new(Policy::FullServer));

        let config = AgentConfig::parse("agent.toml", &text).unwrap();
        assert_eq!((config.server, config.model), (server.id.clone(), server.model));
        assert!(!config.daemon.realtime);
        assert_eq!(config.daemon.root, Path::new("/dev/shm/a \"quoted\" root"));
        assert_eq!(config.daemon.record_dir.as_deref(), Some(Path::new("/dev/shm/rec")));
        assert_eq!(config.policy.name(), "full-server");
        assert_eq!((config.meter.sample, config.meter.lag), (plant.meter.refresh, plant.meter.lag));
        assert!(matches!(config.meter.source, MeterSource::Hwmon { label: Some(_), .. }));
        assert_eq!(config.vms.len(), server.vms.len());

        for vm in &server.vms {
            let spec = &config.vms[&vm.id];
            assert_eq!((spec.class(), usize::from(spec.cores)), (vm.class, vm.cores.len()));
            assert!(spec.cgroup.is_some());
        }

        let agents: Vec<_> = (0..12).map(|n| PathBuf::from(format!("/dev/shm/{n}.sock"))).collect();
        let usual = Control::new(Policy::Stepwise);
        let text = chassis(&at(None), &plant, &agents, (&usual, 6000));
        let config = ChassisConfig::parse("chassis.toml", &text).unwrap();
        assert_eq!(config.params.budget, Watts::from_whole(2450));
        assert_eq!(config.params.lift_hold.as_millis(), 6000);
        assert_eq!(config.params.supply_rated, plant.supplies.iter().map(|s| s.rated).collect::<Vec<_>>());

        assert_eq!(config.servers[11].url, "unix:/dev/shm/11.sock");
        assert!(config.servers.iter().all(|server| server.cap.is_some()));
        let default = (config.params.shares, config.params.lift_rule);

        let text = chassis(&at(None), &plant, &agents, (&Control::PAPER, 6000));
        let paper = ChassisConfig::parse("chassis.toml", &text).unwrap().params;
        assert_eq!((paper.shares, paper.lift_rule), (SharePolicy::Even, LiftRule::Paper));
        assert_ne!((paper.shares, paper.lift_rule), default);
    }
}
