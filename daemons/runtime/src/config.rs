//! Configuration: text → keys → validated parameters.
//!
//! Every key is checked at the edge; all problems are reported at once, each with file and line, the
//! key, the value and what is allowed. Keys that hold a quantity end in its unit. Each table is a struct with one
//! `read`, where a key's default, range and help stand once; what tables have to do with each other is checked
//! after them.

pub mod allowed;
pub mod kubernetes;
pub mod listen;
pub mod reader;
pub mod redfish;
pub mod reference;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ballast_types::Role;

use crate::confine::Needs;
use crate::log;
use crate::tls::{Tls, TlsConfig};
use allowed::{Allowed, choice, flag, path, whole};

pub use listen::{Listen, ListenConfig};
pub use reader::ConfigError;
use reader::{Section, parse};
pub use redfish::{BmcAddress, RedfishConfig};
use reference::{TableReference, reference};

/// Exit code of a refused configuration: `EX_CONFIG` of sysexits.h. The units do not restart on it.
pub const EXIT_CONFIG: u8 = 78;

/// Where a daemon lives: the keys that agent and manager both have.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    pub listen: Vec<Listen>,
    pub tls: Option<TlsConfig>,
    /// Names that clients call it by, beside those that its addresses and certificate give it.
    pub allowed_hosts: Vec<String>,
    /// The machine: `/`, or a folder that looks like one.
    pub root: PathBuf,
    /// What it keeps over a restart.
    pub state_dir: PathBuf,
    /// Where it records its inputs and outputs, if at all.
    pub record_dir: Option<PathBuf>,
    /// Its recordings there stay under this size.
    pub record_max_bytes: u64,
    /// Whether its control thread runs before all normal ones, with its memory locked.
    pub realtime: bool,
    pub log_level: tracing::Level,
}

impl DaemonConfig {
    pub fn read(root: &mut Section<'_, '_>, listen: [&str; 2], state_dir: &str) -> Self {
        let ListenConfig { listen, tls, allowed_hosts } = ListenConfig::read(root, listen);
        let machine = root
            .key("root", "The machine; a folder that looks like one for trying things out.")
            .or("/".into(), path("a folder"));
        let help = "What the daemon keeps over a restart. The unit makes this folder; another one needs a \
                    drop-in.";
        let state_dir = root.key("state_dir", help).or(state_dir.into(), path("a folder"));
        let help = "Where inputs and outputs are recorded for `ballast replay --recording`; nowhere unless \
                    set. Each daemon needs a folder of its own.";
        let record_dir = root.key("record_dir", help).optional(path("a folder"));
        let help = "Above this the oldest recordings are deleted; what stays can be replayed.";
        let megabytes: u64 =
            root.key("record_max_mb", help).or(1024, whole("a whole number of MB", 16..=1_000_000));

        let mut section = root.section("realtime", "The control thread's priority.");
        let realtime = section
            .key("enabled", "The control thread is SCHED_FIFO, and memory is locked once it is touched.")
            .or(true, flag());
        section.finish();

        Self {
            listen,
            tls,
            allowed_hosts,
            root: machine,
            state_dir,
            record_dir,
            record_max_bytes: megabytes << 20,
            realtime,
            log_level: log::read_level(root),
        }
    }

    pub fn needs(&self) -> Needs {
        listen::needs(self.record_dir.iter().chain([&self.state_dir]).cloned(), &self.listen)
    }

    /// Opens the certificates; they must say that this is `own`.
    pub fn certificates(&self, own: &Role) -> anyhow::Result<Option<Arc<Tls>>> {
        self.tls.as_ref().map(|tls| Tls::open(tls, Some(own)).map_err(anyhow::Error::msg)).transpose()
    }
}

/// A configuration, and the file that it was read from.
#[derive(Clone, Debug)]
pub struct Loaded<C> {
    pub file: PathBuf,
    pub config: C,
    pub(crate) text: String,
}

impl<C: ConfigFile> Loaded<C> {
    /// Reads and checks a file, those that it names, and that its certificates say who the daemon is. The
    /// error is every problem, one a line.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let name = file.display().to_string();
        let text =
            std::fs::read_to_string(file).map_err(|error| ConfigError::whole(&name, &error.to_string()))?;
        let config = C::load_text(&name, &text)?;
        Ok(Self { file: file.to_owned(), config, text })
    }
}

/// A daemon's file, checked.
pub trait ConfigFile: Sized {
    /// Reads every key; `None` where one that must be there is not.
    fn read(root: &mut Section<'_, '_>) -> Option<Self>;

    /// Who the daemon is, in certificates.
    fn role(&self) -> Role;

    fn tls(&self) -> Option<&TlsConfig>;

    /// Reads the files that it names; `file` is its own name in problems.
    fn read_further(&mut self, _file: &str) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Where the daemon serves.
    fn listen(&self) -> &[Listen];

    /// What works, and should be told otherwise.
    fn warnings(&self) -> Vec<String> {
        listen::warning(self.listen()).into_iter().collect()
    }

    /// What is logged, where `RUST_LOG` does not say.
    fn log_level(&self) -> tracing::Level;

    /// Reads and checks a file, those that it names, and that its certificates say who the daemon is. The
    /// error is every problem, one a line.
    fn load(path: &Path) -> Result<Self, ConfigError> {
        Loaded::load(path).map(|loaded| loaded.config)
    }

    /// The same of a file's text; `file` is the file's name in problems.
    fn load_text(file: &str, text: &str) -> Result<Self, ConfigError> {
        let mut config = Self::parse(file, text)?;
        config.read_further(file)?;
        listen::check(file, config.tls(), &config.role())?;
        Ok(config)
    }

    /// Checks a text; `file` is its name in problems.
    fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        parse(file, text, Self::read)
    }

    /// Every table and key of the file.
    fn reference() -> Vec<TableReference> {
        reference(|root| drop(Self::read(root)))
    }
}

/// `preset`: settings that belong together, by name; a key that is given itself comes before them.
pub fn preset() -> Allowed<()> {
    choice([("paper", ())])
}
