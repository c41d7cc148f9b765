//! Configuration: text → keys → validated parameters.
//!
//! Every key is checked at the edge; all problems are reported at once, each with file and line, the
//! key, the value and what is allowed. Keys that hold a quantity end in its unit.

pub mod listen;
pub mod reader;
pub mod redfish;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ballast_types::{Role, Watts};
use toml::de::DeValue;

use crate::tls::{Tls, TlsConfig};

pub use listen::Listen;
pub use reader::ConfigError;
use reader::{Section, flag, number, text, whole};
pub use redfish::{BmcAddress, RedfishConfig};

/// Exit code of a refused configuration: `EX_CONFIG` of sysexits.h. The units do not restart on it.
pub const EXIT_CONFIG: u8 = 78;

/// Where a daemon lives: the keys that both have.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    pub listen: Vec<Listen>,
    /// Its certificates, if it has any.
    pub tls: Option<TlsConfig>,
    /// Names that clients call it by, beside those that its addresses and certificate give it.
    pub allowed_hosts: Vec<String>,
    /// The machine: `/`, or a folder that looks like one.
    pub root: PathBuf,
    /// What it keeps over a restart.
    pub state_dir: PathBuf,
    /// Where it records its inputs and outputs, if at all.
    pub record_dir: Option<PathBuf>,
    /// Whether its control thread runs before all normal ones, with its memory locked.
    pub realtime: bool,
}

impl DaemonConfig {
    pub fn read(section: &mut Section<'_, '_>, listen: &str, state_dir: &str) -> Self {
        let default = listen.parse().unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
        let (listen, tls, allowed_hosts) = Listen::read(section, default);
        let folder = |value: &DeValue<'_>| text(value).map(PathBuf::from);
        let mut realtime = section.section("realtime");
        let enabled = realtime.or("enabled", true, "true or false", flag);
        realtime.finish();
        Self {
            listen,
            allowed_hosts,
            realtime: enabled,
            tls,
            root: section.or("root", "/".into(), "a folder", folder),
            state_dir: section.or("state_dir", state_dir.into(), "a folder", folder),
            record_dir: section.optional("record_dir", "a folder", folder),
        }
    }

    /// Opens the certificates; they must say that this is `own`.
    pub fn certificates(&self, own: &Role) -> anyhow::Result<Option<Arc<Tls>>> {
        let open = |tls| Tls::open(tls, Some(own)).map_err(anyhow::Error::msg);
        self.tls.as_ref().map(open).transpose()
    }

    /// Whether any of its listeners is TLS.
    pub fn serves_tls(&self) -> bool {
        self.listen.iter().any(|listen| listen.tls)
    }
}

/// Reads and parses a daemon's file, and checks that its certificates say who the daemon is.
///
/// # Errors
/// Every problem, one a line.
pub fn load<T>(
    path: &Path,
    parse: impl FnOnce(&str, &str) -> Result<T, ConfigError>,
    own: impl FnOnce(&T) -> (Option<&TlsConfig>, Role),
) -> Result<T, ConfigError> {
    let file = path.display().to_string();
    let text =
        std::fs::read_to_string(path).map_err(|error| ConfigError::whole(&file, &error.to_string()))?;
    let config = parse(&file, &text)?;

    let (tls, role) = own(&config);
    listen::check(&file, tls, &role)?;
    Ok(config)
}

/// Settings that belong together, in words and by name; a key that is given itself comes before them.
pub const PRESETS: (&str, [(&str, ()); 1]) =
    ("\"paper\": the rules of the paper that the others are measured against", [("paper", ())]);

/// A number of watts above zero.
pub fn watts(value: &DeValue<'_>) -> Option<Watts> {
    number(0.001..=1e8)(value).and_then(Watts::from_f64)
}
pub const WATTS: &str = "a number of watts, above 0";

/// A number of milliseconds in `min..=max`.
pub fn millis(min: u64, max: u64) -> impl FnOnce(&DeValue<'_>) -> Option<Duration> {
    move |value| whole(min..=max)(value).map(Duration::from_millis)
}

/// A percentage in `0..=100`, as parts per million.
pub fn percent(value: &DeValue<'_>) -> Option<u32> {
    number(0.0..=100.0)(value).map(|percent| (percent * 1e4).round() as u32)
}

/// The URL of a host. Plain HTTP goes nowhere but loopback: on the way a password could be read, and an
/// answer could be forged.
pub fn safe_url(value: &DeValue<'_>) -> Option<String> {
    let url = value.as_str()?.trim_end_matches('/');
    let (scheme, host) = url.split_once("://")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    let loopback = || host.parse::<SocketAddr>().is_ok_and(|at| at.ip().is_loopback());
    let good = !host.is_empty() && host.chars().all(plain);
    (good && (scheme == "https" || (scheme == "http" && loopback()))).then(|| url.to_owned())
}
