//! A rig and real daemons around it, as processes in a folder of their own.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::rig::{chassis_root, server_root, truth_file};
use anyhow::{Context, bail};
use ballast_runtime::tls::authority::Authority;
use ballast_runtime::tls::{self, Tls, TlsConfig};
use ballast_sim::plant::PlantSpec;
use ballast_sim::scenario::{Control, Scenario};
use ballast_types::{ChassisId, Role, ServerId};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::changeable::{changeable, differences};
use crate::config::{self, Home};
use crate::processes::{Fleet, Process, free_addresses};

/// How long everything may take to start.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// Between two looks at something that is starting.
const LOOK: Duration = Duration::from_millis(50);
/// Another program may take a free port before a daemon does; then everything starts again.
const TRIES: u32 = 3;
/// How long a stage's certificates are valid.
const CERTIFIED: Duration = Duration::from_secs(86_400);
/// A daemon's complaint then.
const PORT_TAKEN: &str = "cannot listen on";
/// A capping event of daemons that are started by hand ends after the draw was low for so long.
const HAND_HOLD_MS: u64 = 6_000;
/// How long a daemon may take to put everything back.
const GRACE: Duration = Duration::from_secs(8);

#[derive(Debug)]
pub enum Folder {
    Temporary(TempDir),
    Kept(PathBuf),
}

impl Folder {
    /// In memory where there is such a place, or `keep`, which must be new or empty.
    pub fn make(keep: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(path) = keep {
            fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))?;
            if fs::read_dir(path)?.next().is_some() {
                bail!("--keep {}: a new or empty folder is needed", path.display());
            }
            return Ok(Self::Kept(path.canonicalize()?));
        }
        let named = |parent: &Path| tempfile::Builder::new().prefix("ballast-").tempdir_in(parent);
        let made = named(Path::new("/dev/shm")).or_else(|_| named(&std::env::temp_dir()));
        made.map(Self::Temporary).context("cannot create a temporary folder")
    }

    pub fn path(&self) -> &Path {
        match self {
            Self::Temporary(folder) => folder.path(),
            Self::Kept(path) => path,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Daemon {
    /// By its server's place in the plant's order.
    Agent(usize),
    Manager,
}

pub struct Play<'a> {
    /// What the rig's plant is, how the daemons control it, and whether they record.
    pub scenario: &'a Scenario,
    /// The arguments that make `ballast rig` run that plant.
    pub rig_args: Vec<String>,
    pub has_manager: bool,
    /// Whether the agents get their alerts by mutual TLS.
    pub tls: bool,
}

/// Everything that runs. Dropping it ends every process, then removes the folder.
pub struct Stage {
    pub fleet: Fleet,
    /// The agents, in the servers' order, with where they serve plain HTTP.
    pub agents: Vec<(ServerId, String)>,
    /// Where each of them takes alerts: by TLS if they serve that, by their sockets otherwise.
    pub alert_urls: Vec<String>,
    /// The certificate to speak with them as chassis, if they serve TLS.
    pub tls: Option<Arc<Tls>>,
    pub chassis: Option<String>,
    /// What daemons may change, as it was before they started.
    before: BTreeMap<PathBuf, String>,
    tree: PathBuf,
    /// Last, so that it outlives the processes.
    folder: Folder,
}

impl Stage {
    pub fn new(folder: Folder) -> Self {
        Self {
            fleet: Fleet::default(),
            agents: vec![],
            alert_urls: vec![],
            tls: None,
            chassis: None,
            before: BTreeMap::new(),
            tree: folder.path().join("tree"),
            folder,
        }
    }

    /// Starts the rig and the daemons, and waits until all are ready.
    pub async fn start(&mut self, play: &Play<'_>) -> anyhow::Result<()> {
        let client = client()?;
        for attempt in 1.. {
            match self.try_start(&client, play).await {
                Err(error) if attempt < TRIES && format!("{error:#}").contains(PORT_TAKEN) => {
                    self.clear()?;
                }
                done => return done,
            }
        }
        Ok(())
    }

    /// Ends whatever runs and removes what it left: an empty stage again.
    pub fn clear(&mut self) -> anyhow::Result<()> {
        self.fleet = Fleet::default();
        for name in ["tree", "config", "state", "recordings", "logs", "certs", "run"] {
            match fs::remove_dir_all(self.home().join(name)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error.into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn home(&self) -> &Path {
        self.folder.path()
    }

    async fn try_start(&mut self, client: &reqwest::Client, play: &Play<'_>) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        let home = self.home().to_owned();
        let logs = home.join("logs");

        for name in ["config", "state", "logs"] {
            fs::create_dir_all(home.join(name))?;
        }
        self.start_rig(play, &logs, deadline).await?;

        let Scenario { plant, control, chassis, record, .. } = play.scenario;
        let servers = &plant.servers;
        let addresses = free_addresses(servers.len() + 1)?;
        self.agents.clear();
        let authority = play.tls.then(|| Certs::make(&home)).transpose()?;
        let mut sockets = vec![];
        self.alert_urls.clear();

        for (server, listen) in servers.iter().zip(&addresses) {
            let name = format!("agent-{}", server.id);
            let mut files = DaemonFiles::of(&home, &name, &server_root(&self.tree, &server.id), *record);
            if let Some(authority) = &authority {
                files.tls = Some(authority.issue(&Role::Agent(server.id.clone()))?);
            }
            self.alert_urls.push(match files.home(*listen).secret() {
                Some(at) => format!("https://{at}"),
                None => format!("unix:{}", files.socket.display()),
            });
            let meter = &plant.meter;
            let text = config::agent(&files.home(*listen), server, meter, control);
            self.fleet.agents.push(files.start("agent", &name, &text, &logs)?);
            self.agents.push((server.id.clone(), format!("http://{listen}")));
            sockets.push(files.socket);
        }

        let role = Role::Chassis(ChassisId::new(config::CHASSIS)?);
        self.tls = authority.map(|it| it.open(&role)).transpose()?;

        for (_, url) in self.agents.clone() {
            self.ready(client, &url, deadline).await?;
        }
        if let Some(listen) = addresses.last().filter(|_| play.has_manager) {
            let hold_ms = chassis.lift_hold.as_millis() as u64;
            let files = DaemonFiles::of(&home, "chassis", &chassis_root(&self.tree), *record);
            let text = config::chassis(&files.home(*listen), plant, &sockets, (control, hold_ms));
            self.fleet.chassis = Some(files.start("chassis", "chassis", &text, &logs)?);
            let url = format!("http://{listen}");
            self.ready(client, &url, deadline).await?;
            self.chassis = Some(url);
        }

        Ok(())
    }

    async fn start_rig(&mut self, play: &Play<'_>, logs: &Path, deadline: Instant) -> anyhow::Result<()> {
        let tree = self.tree.display().to_string();
        let mut args = vec!["rig", "--dir", &tree];
        args.extend(play.rig_args.iter().map(String::as_str));
        self.fleet.rig = Some(Process::start("rig", &args, logs)?);
        while !self.truth().exists() {
            self.wait("the rig", deadline).await?;
        }
        self.before = changeable(&self.tree)?;
        Ok(())
    }

    async fn ready(&mut self, client: &reqwest::Client, url: &str, deadline: Instant) -> anyhow::Result<()> {
        loop {
            let answer = client.get(format!("{url}/readyz")).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            self.wait(url, deadline).await?;
        }
    }

    async fn wait(&mut self, what: &str, deadline: Instant) -> anyhow::Result<()> {
        self.fleet.check()?;
        if Instant::now() >= deadline {
            let words: Vec<_> =
                self.fleet.all().map(|p| format!("{}: {}", p.name, p.last_words(3))).collect();
            bail!("{what} is not ready after {} s\n{}", READY_WITHIN.as_secs(), words.join("\n"));
        }
        tokio::time::sleep(LOOK).await;
        Ok(())
    }

    fn process(&mut self, daemon: Daemon) -> Option<&mut Process> {
        match daemon {
            Daemon::Agent(n) => self.fleet.agents.get_mut(n),
            Daemon::Manager => self.fleet.chassis.as_mut(),
        }
    }

    /// Kills one daemon at once (SIGKILL).
    pub fn kill(&mut self, daemon: Daemon) {
        if let Some(process) = self.process(daemon) {
            process.signal(Signal::SIGKILL);
            let _ = process.wait();
        }
    }

    /// Starts a daemon that was killed, with the config and the state that it had.
    pub fn start_again(&mut self, daemon: Daemon) -> anyhow::Result<()> {
        let (home, command) = (
            self.home().to_owned(),
            match daemon {
                Daemon::Agent(_) => "agent",
                Daemon::Manager => "chassis",
            },
        );
        if let Some(process) = self.process(daemon) {
            let config = home.join(format!("config/{}.toml", process.name)).display().to_string();
            let name = process.name.clone();
            *process = Process::start(&name, &[command, "--config", &config], &home.join("logs"))?;
        }
        Ok(())
    }

    pub async fn is_ready(&self, client: &reqwest::Client) -> bool {
        for url in self.agents.iter().map(|(_, url)| url).chain(&self.chassis) {
            let answer = client.get(format!("{url}/readyz")).send().await;
            if !answer.is_ok_and(|answer| answer.status().is_success()) {
                return false;
            }
        }
        true
    }

    pub fn has_journal(&self, agent: usize) -> bool {
        let state = self.home().join(format!("state/agent-{}", self.agents[agent].0));
        config::run_dir(&state).join("journal.json").exists()
    }

    /// The files that are not as they were before the daemons started.
    pub fn changed(&self) -> anyhow::Result<Vec<String>> {
        Ok(differences(&self.before, &changeable(&self.tree)?))
    }

    pub fn tree(&self) -> &Path {
        &self.tree
    }

    /// Where the rig writes what really happened.
    pub fn truth(&self) -> PathBuf {
        truth_file(&self.tree)
    }

    /// Ends the daemons; says what did not end well, and which files are not as they were.
    pub fn end_daemons(&mut self) -> anyhow::Result<(Vec<String>, Vec<String>)> {
        let problems = self.fleet.end_daemons(GRACE);
        Ok((problems, self.changed()?))
    }

    /// Ends the rig, and removes the folder unless it is kept.
    pub fn end(mut self) -> Vec<String> {
        self.fleet.end_rig(GRACE)
    }
}

pub fn client() -> reqwest::Result<reqwest::Client> {
    tls::http_client(None).connect_timeout(Duration::from_secs(2)).build()
}

/// An authority, and the files of whom it has certified.
pub struct Certs {
    authority: Authority,
    dir: PathBuf,
}

impl Certs {
    /// A new one, whose files go to `certs` in this folder.
    pub fn make(home: &Path) -> anyhow::Result<Self> {
        let dir = home.join("certs");
        fs::create_dir_all(&dir)?;
        let (authority, pair) = Authority::new(CERTIFIED)?;
        pair.create(&dir, "ca")?;
        Ok(Self { authority, dir })
    }

    /// Writes a pair; gives its files' path without their endings.
    pub fn issue(&self, role: &Role) -> anyhow::Result<PathBuf> {
        let stem = format!("{}-{}", role.kind(), role.id());
        let pair = self.authority.issue(std::slice::from_ref(role), &[], CERTIFIED)?;
        pair.create(&self.dir, &stem)?;
        Ok(self.dir.join(stem))
    }

    pub fn open(&self, role: &Role) -> anyhow::Result<Arc<Tls>> {
        let stem = self.issue(role)?;
        let config = TlsConfig {
            cert: stem.with_added_extension("crt"),
            key: stem.with_added_extension("key"),
            ca: self.dir.join("ca.crt"),
            warn_before: Duration::ZERO,
        };
        Tls::open(&config, None).map_err(anyhow::Error::msg)
    }
}

/// Writes configs for the daemons of a rig, so that they are started by hand: `config/NAME.toml` below `home`. The
/// manager serves at `port`, the agents at the ports after it. Gives each daemon's command, the manager's last.
pub fn write_configs(
    home: &Path,
    tree: &Path,
    plant: &PlantSpec,
    control: &Control,
    port: u16,
) -> anyhow::Result<Vec<String>> {
    fs::create_dir_all(home.join("config"))?;
    let (mut sockets, mut commands) = (vec![], vec![]);
    let mut write = |files: &DaemonFiles, daemon: &str, text: String| {
        fs::write(&files.config, text).with_context(|| files.config.display().to_string())?;
        commands.push(format!("ballast {daemon} --config {}", files.config.display()));
        anyhow::Ok(())
    };

    for (server, port) in plant.servers.iter().zip(port.saturating_add(1)..) {
        let (name, root) = (format!("agent-{}", server.id), server_root(tree, &server.id));
        let files = DaemonFiles::of(home, &name, &root, false);
        let at = SocketAddr::from(([127, 0, 0, 1], port));
        write(&files, "agent", config::agent(&files.home(at), server, &plant.meter, control))?;
        sockets.push(files.socket);
    }

    let files = DaemonFiles::of(home, "chassis", &chassis_root(tree), false);
    let at = SocketAddr::from(([127, 0, 0, 1], port));
    write(&files, "chassis", config::chassis(&files.home(at), plant, &sockets, (control, HAND_HOLD_MS)))?;
    Ok(commands)
}

struct DaemonFiles {
    config: PathBuf,
    socket: PathBuf,
    root: PathBuf,
    state: PathBuf,
    record: Option<PathBuf>,
    /// Its certificate's files, without their endings.
    tls: Option<PathBuf>,
}

impl DaemonFiles {
    fn of(home: &Path, name: &str, root: &Path, record: bool) -> Self {
        Self {
            config: home.join("config").join(format!("{name}.toml")),
            socket: home.join("run").join(format!("{name}.sock")),
            root: root.to_owned(),
            state: home.join("state").join(name),
            record: record.then(|| home.join("recordings").join(name)),
            tls: None,
        }
    }

    fn home(&self, listen: SocketAddr) -> Home<'_> {
        Home {
            listen,
            socket: &self.socket,
            root: &self.root,
            state: &self.state,
            record: self.record.as_deref(),
            tls: self.tls.as_deref(),
        }
    }

    fn start(&self, command: &str, name: &str, text: &str, logs: &Path) -> anyhow::Result<Process> {
        fs::write(&self.config, text).with_context(|| self.config.display().to_string())?;
        let config = self.config.display().to_string();
        Process::start(name, &[command, "--config", &config], logs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_removed_unless_it_is_kept_and_never_taken_over() {
        let temporary = Folder::make(None).unwrap();
        let path = temporary.path().to_owned();
        assert!(path.is_dir());
        drop(temporary);
        assert!(!path.exists());

        let parent = tempfile::tempdir().unwrap();
        let keep = parent.path().join("kept");
        drop(Folder::make(Some(&keep)).unwrap());
        assert!(keep.is_dir());
        fs::write(keep.join("mine"), "").unwrap();
        assert!(Folder::make(Some(&keep)).unwrap_err().to_string().contains("new or empty"));
    }
}
