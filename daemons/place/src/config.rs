//! `place.toml`.

mod hosts;
mod kubernetes;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ballast_placement::Policy;
use ballast_placement::rules::Alpha;
use ballast_types::{PeerName, Role};
use toml::de::DeValue;

use ballast_runtime::config::reader::{ConfigError, Problems, Section, flag, number, text, whole};
use ballast_runtime::config::{Listen, load};
use ballast_runtime::tls::TlsConfig;
pub(crate) use hosts::size as host_size;
pub use hosts::{HostFile, ToldHost};
pub use kubernetes::KubernetesConfig;

/// The whole of `place.toml`, checked.
#[derive(Clone, Debug)]
pub struct PlaceConfig {
    /// Its name, in certificates and status.
    pub name: PeerName,
    pub listen: Vec<Listen>,
    /// Its certificates, if it has any.
    pub tls: Option<TlsConfig>,
    /// Names that clients call it by, beside those that its addresses and certificate give it.
    pub allowed_hosts: Vec<String>,
    /// Where hosts, VMs and the journal of both are kept over a restart.
    pub state_dir: PathBuf,
    pub predict: PredictConfig,
    /// How a host is chosen.
    pub policy: Policy,
    /// The file that says which hosts there are, and what it said; without one they are told by HTTP.
    pub inventory: Option<HostFile>,
    /// The scheduler extender; `None` when there is none.
    pub kubernetes: Option<KubernetesConfig>,
}

/// `[predict]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PredictConfig {
    /// The model's file. One that is not there yet is taken when it comes.
    pub model: PathBuf,
    /// Whether the daemon is ready only with a model.
    pub require_model: bool,
    /// A model that knows the past only up to longer ago is an alarm.
    pub stale_after: Duration,
}

impl PlaceConfig {
    /// Reads and checks a file, and the certificates that it names.
    ///
    /// # Errors
    /// Every problem, one a line.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let parse = |file: &str, text: &str| {
            let mut config = Self::parse(file, text)?;
            if let Some(inventory) = &mut config.inventory {
                inventory.load().map_err(|why| ConfigError::whole(file, &why))?;
            }
            Ok(config)
        };

        load(path, parse, |config| (config.tls.as_ref(), config.role()))
    }

    /// Who this daemon is, in certificates.
    #[must_use]
    pub fn role(&self) -> Role {
        Role::Place(self.name.clone())
    }

    /// Checks a text; `file` is its name in problems.
    ///
    /// # Errors
    /// Every problem, one a line.
    pub fn parse(file: &str, source: &str) -> Result<Self, ConfigError> {
        let problems = Problems::new(file, source);
        let table = problems.parse();
        let mut root = Section::root(&problems, &table);
        let default = SocketAddr::from(([127, 0, 0, 1], 7200));
        let (listen, tls, allowed_hosts) = Listen::read(&mut root, default);
        let allowed = "the name of this daemon: 1 to 64 of A-Z a-z 0-9 . _ - : @";
        let name = root.required("name", allowed, |value| PeerName::new(value.as_str()?).ok());
        let folder = |value: &DeValue<'_>| text(value).map(PathBuf::from);
        let default = PathBuf::from("/var/lib/ballast-place");
        let state_dir = root.or("state_dir", default, "a folder", folder);
        let predict = PredictConfig::read(root.section("predict"));
        let policy = read_policy(root.section("placement"));
        let mut section = root.section("inventory");
        let inventory = section.optional("file", "a TOML or JSON file of hosts", folder);
        section.finish();
        let inventory = inventory.map(HostFile::at);
        let kubernetes = KubernetesConfig::read(root.table("kubernetes"));
        root.finish();

        match problems.finish(name)? {
            Some(name) => Ok(Self {
                name,
                listen,
                tls,
                allowed_hosts,
                state_dir,
                predict,
                policy,
                inventory,
                kubernetes,
            }),
            None => Err(ConfigError::whole(file, "name is missing")),
        }
    }
}

/// `[placement]`.
fn read_policy(mut section: Section<'_, '_>) -> Policy {
    let (paper, weight) = (Policy::PAPER, "a weight of 0 to 1000; 0 leaves the rule out");
    let mut read = |key, default: u32| {
        let read = section.or(key, u64::from(default), weight, whole(0..=1000));
        u32::try_from(read).unwrap_or(default)
    };
    let best_fit = read("best_fit_weight", paper.best_fit);
    let power = read("power_weight", paper.power);
    let alpha = |value: &DeValue<'_>| number(0.0..=1.0)(value).and_then(Alpha::new);
    let alpha = section.or("alpha", paper.alpha, "0 to 1: chassis against server", alpha);
    section.finish();
    Policy { best_fit, power, alpha, anti_affinity: true }
}

impl PredictConfig {
    fn read(mut section: Section<'_, '_>) -> Self {
        let path = |value: &DeValue<'_>| text(value).map(PathBuf::from);
        let default = PathBuf::from("/var/lib/ballast-place/model");
        let hours = section.or("stale_after_h", 72, "1 to 8760 hours", whole(1..=8760));
        let config = Self {
            model: section.or("model", default, "the model's file", path),
            require_model: section.or("require_model", false, "true or false", flag),
            stale_after: Duration::from_secs(hours * 3600),
        };
        section.finish();
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_told_with_its_line() {
        let text = "listen = \"10.0.0.1:7200\"\nnames = \"a\"\n[predict]\nmodel = 1\n\
                    require_model = \"yes\"\nstale_after_h = 0\nthreshold = 0.6\n\
                    [placement]\nalpha = 1.1\npower_weight = -1\n[inventory]\nfile = 7\n";
        let problems = PlaceConfig::parse("place.toml", text).unwrap_err().to_string();
        for says in [
            "place.toml:1: name is missing",
            "place.toml:1: listen = \"10.0.0.1:7200\": beyond loopback only with [tls]",
            "place.toml:2: names: no such key; there are allowed_hosts, inventory, kubernetes, listen, name, \
             placement, predict, state_dir, tls",
            "place.toml:4: predict.model = 1",
            "place.toml:5: predict.require_model = \"yes\"",
            "place.toml:6: predict.stale_after_h = 0: 1 to 8760 hours",
            "place.toml:7: predict.threshold: no such key",
            "place.toml:9: placement.alpha = 1.1: 0 to 1",
            "place.toml:10: placement.power_weight = -1: a weight of 0 to 1000",
            "place.toml:12: inventory.file = 7: a TOML or JSON file",
        ] {
            assert!(problems.lines().any(|line| line.starts_with(says)), "{says}\n{problems}");
        }

        assert_eq!(problems.lines().count(), 10, "{problems}");
    }
}
