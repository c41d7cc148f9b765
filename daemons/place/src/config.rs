//! `place.toml`.

mod admission;
mod drains;
mod hosts;
mod kubernetes;
mod overcommit;

use std::path::PathBuf;
use std::time::Duration;

use ballast_placement::rules::Alpha;
use ballast_placement::{LifetimeRule, Policy};
use ballast_types::{PeerName, Role};

pub use admission::{AdmissionConfig, AdmissionPolicy, PriorsFile};
pub use ballast_runtime::config::ConfigFile;
use ballast_runtime::config::allowed::{Allowed, choice, flag, number_as, path, seconds, whole};
use ballast_runtime::config::reader::Section;
use ballast_runtime::config::{ConfigError, Listen, ListenConfig};
use ballast_runtime::log;
use ballast_runtime::tls::TlsConfig;
pub use drains::DrainsConfig;
pub(crate) use drains::ORDERS;
#[cfg(any(test, feature = "testing"))]
pub(crate) use hosts::parse as parse_hosts;
pub(crate) use hosts::size as host_size;
pub use hosts::{HostEntry, HostFile};
pub use kubernetes::KubernetesConfig;
pub use overcommit::{Estimator, OvercommitConfig};

/// The whole of `place.toml`, checked.
#[derive(Clone, Debug)]
pub struct PlaceConfig {
    /// Its name, in certificates and status.
    pub name: PeerName,
    pub listen: Vec<Listen>,
    pub tls: Option<TlsConfig>,
    /// Names that clients call it by, beside those that its addresses and certificate give it.
    pub allowed_hosts: Vec<String>,
    /// Where hosts and VMs are kept over a restart.
    pub log_level: tracing::Level,
    pub state_dir: PathBuf,
    pub predict: PredictConfig,
    pub policy: Policy,
    /// The file that says which hosts there are, and what it said; without one they are told by HTTP.
    pub inventory: Option<HostFile>,
    pub drains: DrainsConfig,
    /// Whether new deployments may come; `None`: all may.
    pub admission: Option<AdmissionConfig>,
    /// What is promised of overcommitted hosts, if anything is.
    pub overcommit: Option<OvercommitConfig>,
    /// The scheduler extender; `None` when there is none.
    pub kubernetes: Option<KubernetesConfig>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PredictConfig {
    /// The model's file. One that is not there yet is taken when it comes.
    pub model: PathBuf,
    /// Whether the daemon is ready only with a model.
    pub require_model: bool,
    /// A model that knows the past only up to longer ago is an alarm.
    pub stale_after: Duration,
    /// When VMs started and ended is kept, up to so many bytes; `None` where it is not.
    pub history_bytes_max: Option<u64>,
}

impl ConfigFile for PlaceConfig {
    fn role(&self) -> Role {
        Role::Place(self.name.clone())
    }

    fn tls(&self) -> Option<&TlsConfig> {
        self.tls.as_ref()
    }

    fn listen(&self) -> &[Listen] {
        &self.listen
    }

    fn log_level(&self) -> tracing::Level {
        self.log_level
    }

    fn read_further(&mut self, file: &str) -> Result<(), ConfigError> {
        let inventory = self.inventory.as_mut().map_or(Ok(()), HostFile::load);
        inventory.map_err(|why| ConfigError::whole(file, &format!("inventory.file: {why}")))?;
        self.admission.as_mut().map_or(Ok(()), |admission| admission.load(file))
    }

    fn read(root: &mut Section<'_, '_>) -> Option<Self> {
        let name = root.key("name", "The daemon's name, in certificates and status.").required(
            Allowed::text("the name of this daemon: 1 to 64 of A-Z a-z 0-9 . _ - : @", |text| {
                PeerName::new(text).ok()
            }),
        );
        let listen = ["127.0.0.1:7200", "unix:/run/ballast-place/ballast.sock"];
        let ListenConfig { listen, tls, allowed_hosts } = ListenConfig::read(root, listen);
        let state_dir = root
            .key("state_dir", "Where hosts and VMs are kept over a restart.")
            .or("/var/lib/ballast-place".into(), path("a folder"));
        let predict = PredictConfig::read(root);
        let policy = read_policy(root);
        let overcommit = OvercommitConfig::read(root);
        let policy = Policy {
            cpu_target_ppm: overcommit.map(|overcommit| overcommit.target_ppm),
            cpu_pools: overcommit.is_some_and(|overcommit| overcommit.pools),
            ..policy
        };
        let inventory = read_inventory(root, tls.is_some());
        let drains = DrainsConfig::read(root);
        let admission = AdmissionConfig::read(root);
        let kubernetes = KubernetesConfig::read(root);
        let log_level = log::read_level(root);

        Some(Self {
            name: name?,
            listen,
            tls,
            allowed_hosts,
            log_level,
            state_dir,
            predict,
            policy,
            inventory,
            drains,
            admission,
            overcommit,
            kubernetes,
        })
    }
}

/// `[placement]`.
fn read_policy(root: &mut Section<'_, '_>) -> Policy {
    let mut section = root.section("placement", "How a host is chosen.");
    let help = "What decides: \"power\", packing and balanced power; \"best-fit\", packing alone; or, by \
                what is known of the ends of VMs and by both of them, \"nilas\" or \"expected-exit\". The \
                weights below change its own.";
    let usual = section.key("policy", help).or(Policy::POWER, policies());
    let weight = || whole("a whole number", 0..=1000_u32);
    let help = "The weight of packing; 0 leaves the rule out.";
    let best_fit = section.key("best_fit_weight", help).or(usual.best_fit, weight());
    let help = "The weight of balanced power; 0 leaves the rule out.";
    let power = section.key("power_weight", help).or(usual.power, weight());
    let alpha = section
        .key("alpha", "In the power rule: of chassis (1) against server (0).")
        .or(usual.alpha, number_as("a number", 0.0..=1.0, Alpha::new, |alpha| alpha.get()));
    let ties = section
        .key(
            "ties",
            "Who wins where rules tie: \"id\", the lowest, or \"hash\", also with a seed as \"hash:7\".",
        )
        .or(usual.ties, Allowed::text("\"id\", \"hash\" or \"hash:SEED\"", |text| text.parse().ok()));
    section.finish();
    Policy { best_fit, power, alpha, ties, ..usual }
}

/// The policies by their names. Others serve experiments.
fn policies() -> Allowed<Policy> {
    let by_ends = |lifetimes| Policy { lifetimes, ..Policy::POWER };
    choice([
        ("power", Policy::POWER),
        ("best-fit", Policy::BEST_FIT),
        ("nilas", by_ends(LifetimeRule::Nilas)),
        ("expected-exit", by_ends(LifetimeRule::ExpectedExit)),
    ])
}

fn read_inventory(root: &mut Section<'_, '_>, tls: bool) -> Option<HostFile> {
    let help = "Which hosts there are; without it hosts are told by `PUT /v1/hosts/{name}`.";
    let mut section = root.section("inventory", help);
    let help = "The hosts, read at start and on SIGHUP.";
    let file = section.key("file", help).optional(path("a TOML or JSON file of hosts"));
    section.finish();
    file.map(|file| HostFile::at(file, tls))
}

impl PredictConfig {
    fn read(root: &mut Section<'_, '_>) -> Self {
        let mut section = root.section("predict", "The model that predicts class and P95 of arriving VMs.");
        let config = Self {
            model: section
                .key("model", "Written by `ballast train`; a new one is taken live.")
                .or("/var/lib/ballast-place/model".into(), path("the model's file")),
            require_model: section
                .key(
                    "require_model",
                    "Not ready (`/readyz`) without a model; the daemon answers all the same.",
                )
                .or(false, flag()),
            stale_after: section
                .key(
                    "stale_after_h",
                    "A model that knows the subscriptions' past only up to longer ago is an alarm.",
                )
                .or(Duration::from_secs(72 * 3600), seconds::<3600>("whole hours", 1..=8760)),
            history_bytes_max: history_bytes_max(&mut section),
        };
        section.finish();
        config
    }
}

fn history_bytes_max(section: &mut Section<'_, '_>) -> Option<u64> {
    let help = "So much is kept of when VMs started and ended, for the training of lifetimes, in \
                `lifetimes.csv` of the state folder; 0 keeps nothing.";
    let mib = section.key("history_mib_max", help).or(64, whole("a whole number", 0..=1024_u64));
    Some(mib << 20).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_told_with_its_line() {
        let text = "listen = \"10.0.0.1:7200\"\nnames = \"a\"\n[predict]\nmodel = 1\n\
                    require_model = \"yes\"\nstale_after_h = 0\nthreshold = 0.6\n\
                    [placement]\npolicy = \"lava\"\nalpha = 1.1\npower_weight = -1\nties = \"name\"\n\
                    [inventory]\nfile = 7\n[overcommit]\ntarget = 1\nestimator = \"joint\"\n";
        let problems = PlaceConfig::parse("place.toml", text).unwrap_err().to_string();
        for says in [
            "place.toml:1: name is missing",
            "place.toml:1: listen = \"10.0.0.1:7200\": beyond loopback only with [tls]",
            "place.toml:2: names: no such key; there are admission, allowed_hosts, drains, inventory, \
             kubernetes, listen, log_level, name, overcommit, placement, predict, state_dir, tls",
            "place.toml:4: predict.model = 1",
            "place.toml:5: predict.require_model = \"yes\"",
            "place.toml:6: predict.stale_after_h = 0: whole hours, 1 to 8760",
            "place.toml:7: predict.threshold: no such key",
            "place.toml:9: placement.policy = \"lava\": \"power\", \"best-fit\", \"nilas\" or ",
            "place.toml:10: placement.alpha = 1.1: a number, 0 to 1",
            "place.toml:11: placement.power_weight = -1: a whole number, 0 to 1000",
            "place.toml:12: placement.ties = \"name\": \"id\", \"hash\" or \"hash:SEED\"",
            "place.toml:14: inventory.file = 7: a TOML or JSON file",
            "place.toml:16: overcommit.target = 1: a share of time, 0.0001 to 0.5",
            "place.toml:17: overcommit.estimator = \"joint\": \"auto\" or \"convolution\"",
        ] {
            assert!(problems.lines().any(|line| line.starts_with(says)), "{says}\n{problems}");
        }

        assert_eq!(problems.lines().count(), 14, "{problems}");
    }
}
