//! A systemd for tests: the manager's interface on a real socket below a root, over the real wire.
//!
//! It does to the folder what systemd does to cgroups: `AllowedCPUs` becomes `cpuset.cpus`, the quota
//! becomes `cpu.max`, and an emptied `AllowedCPUs` leaves the CPUs as they are (ENOSPC).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use zbus::connection::{Builder, Connection};
use zbus::message::Header;
use zbus::names::ErrorName;
use zbus::{DBusError, Guid, Message, OwnedObjectPath, OwnedVariant, fdo, interface};

use crate::{CpuList, Root};

#[derive(Clone, Default)]
pub(crate) struct Unit {
    pub(crate) cgroup: String,
    pub(crate) allowed: Vec<u8>,
    pub(crate) quota: Option<u64>,
    pub(crate) period: Option<u64>,
    /// By property, in bytes.
    pub(crate) memory: BTreeMap<String, u64>,
}

#[derive(Clone, Default)]
struct State {
    units: BTreeMap<String, Unit>,
    /// Every call that sets something, in order.
    log: Vec<String>,
    /// Answers only after this long.
    slow: Duration,
    refuse: Option<fdo::Error>,
    /// Takes what is set, and the kernel grants something else.
    ignores: bool,
    /// What the kernel grants at most; everything without.
    online: Option<CpuList>,
}

/// A systemd that runs until it is dropped.
pub(crate) struct Mock {
    root: Root,
    state: Arc<Mutex<State>>,
    connections: Arc<Mutex<Vec<Connection>>>,
}

impl Mock {
    pub(crate) fn start(root: &Root) -> Self {
        fs::create_dir_all(root.path("run/systemd/system")).unwrap();
        fs::create_dir_all(root.path("run/dbus")).unwrap();
        let listener = UnixListener::bind(root.path("run/dbus/system_bus_socket")).unwrap();
        let mock = Self { root: root.clone(), state: Arc::default(), connections: Arc::default() };
        let (state, connections) = (Arc::clone(&mock.state), Arc::clone(&mock.connections));
        let root = root.clone();

        // Ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let manager = Manager { root: root.clone(), state: Arc::clone(&state) };
                let guid = Guid::generate();
                let builder = Builder::unix_stream(stream.unwrap()).server(guid).p2p();
                let built = builder
                    .serve_at("/org/freedesktop/DBus", Bus)
                    .serve_at("/org/freedesktop/systemd1", manager);
                connections.lock().unwrap().extend(zbus::block_on(built.build()));
            }
        });

        mock
    }

    /// A unit that runs in `cgroup`, with a folder for it, on CPUs 0 to 7.
    pub(crate) fn unit(&self, cgroup: &str) {
        let dir = self.root.path("sys/fs/cgroup").join(cgroup);
        fs::create_dir_all(&dir).unwrap();
        for (file, text) in
            [("cpuset.cpus", ""), ("cpuset.cpus.effective", "0-7\n"), ("cpu.max", "max 100000\n")]
        {
            fs::write(dir.join(file), text).unwrap();
        }
        let name = super::unit::unit_of(cgroup).unwrap().to_owned();
        let unit = Unit { cgroup: cgroup.to_owned(), ..Unit::default() };
        self.state.lock().unwrap().units.insert(name, unit);
    }

    pub(crate) fn get(&self, name: &str) -> Unit {
        self.state.lock().unwrap().units[name].clone()
    }
    pub(crate) fn forget(&self, name: &str) {
        self.state.lock().unwrap().units.remove(name);
    }
    pub(crate) fn slow(&self, by: Duration) {
        self.state.lock().unwrap().slow = by;
    }
    pub(crate) fn refuse(&self, error: Option<fdo::Error>) {
        self.state.lock().unwrap().refuse = error;
    }
    pub(crate) fn ignores(&self) {
        self.state.lock().unwrap().ignores = true;
    }
    /// From now on no other CPUs are granted.
    pub(crate) fn online(&self, cpus: &str) {
        self.state.lock().unwrap().online = Some(cpus.parse().unwrap());
    }
    /// What was set since the last call.
    pub(crate) fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }
    /// Hangs up on everybody, as a restart of the bus does.
    pub(crate) fn hang_up(&self) {
        for connection in self.connections.lock().unwrap().drain(..) {
            zbus::block_on(connection.close()).unwrap();
        }
    }
}

struct Bus;

#[interface(name = "org.freedesktop.DBus")]
impl Bus {
    fn hello(&self) -> String {
        ":1.1".into()
    }
}

struct Manager {
    root: Root,
    state: Arc<Mutex<State>>,
}

impl Manager {
    fn state(&self) -> Result<State, fdo::Error> {
        let state = self.state.lock().unwrap().clone();
        thread::sleep(state.slow);
        state.refuse.clone().map_or(Ok(state), Err)
    }
}

enum No {
    Bus(fdo::Error),
    NoSuchUnit(String),
}

impl From<fdo::Error> for No {
    fn from(error: fdo::Error) -> Self {
        Self::Bus(error)
    }
}

impl DBusError for No {
    fn create_reply(&self, call: &Header<'_>) -> zbus::Result<Message> {
        match self {
            Self::Bus(error) => error.create_reply(call),
            Self::NoSuchUnit(unit) => {
                Message::error(call, self.name()).build(&format!("Unit {unit} not loaded."))
            }
        }
    }
    fn name(&self) -> ErrorName<'_> {
        match self {
            Self::Bus(error) => error.name(),
            Self::NoSuchUnit(_) => ErrorName::from_static_str_unchecked(NO_SUCH_UNIT),
        }
    }
    fn description(&self) -> Option<&str> {
        None
    }
}

const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

#[interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    async fn get_unit(
        &self,
        name: &str,
        #[zbus(object_server)] server: &zbus::ObjectServer,
    ) -> Result<OwnedObjectPath, No> {
        let state = self.state()?;
        if !state.units.contains_key(name) {
            return Err(No::NoSuchUnit(name.to_owned()));
        }
        let hex: String = name.bytes().map(|byte| format!("_{byte:02x}")).collect();
        let path = format!("/org/freedesktop/systemd1/unit/{hex}");
        let (name, state) = (name.to_owned(), Arc::clone(&self.state));
        let path = OwnedObjectPath::try_from(path).unwrap();
        let added = match name.rsplit('.').next() {
            Some("slice") => server.at(&path, Slice { name, state }).await.map(|_| ()),
            Some("scope") => server.at(&path, Scope { name, state }).await.map(|_| ()),
            _ => server.at(&path, Service { name, state }).await.map(|_| ()),
        };

        added.map_err(fdo::Error::from)?;

        Ok(path)
    }

    fn set_unit_properties(
        &self,
        name: &str,
        runtime: bool,
        properties: Vec<(String, OwnedVariant)>,
    ) -> Result<(), No> {
        let ignores = self.state()?.ignores;
        let mut state = self.state.lock().unwrap();
        let Some(mut unit) = state.units.get(name).cloned() else {
            return Err(No::NoSuchUnit(name.to_owned()));
        };
        assert!(runtime, "nothing outlives the boot");

        for (key, value) in properties {
            let shown = match key.as_str() {
                "AllowedCPUs" => {
                    unit.allowed = value.try_into().unwrap();
                    CpuList::from_mask(&unit.allowed).unwrap().to_string()
                }
                "CPUQuotaPerSecUSec" => {
                    let quota = value.try_into().unwrap();
                    unit.quota = Some(quota).filter(|quota| *quota != u64::MAX);
                    quota.to_string()
                }
                "CPUQuotaPeriodUSec" => {
                    let period = value.try_into().unwrap();
                    unit.period = Some(period).filter(|period| *period != u64::MAX);
                    period.to_string()
                }
                "MemoryHigh" | "MemoryMax" => {
                    let bytes: u64 = value.try_into().unwrap();
                    unit.memory.insert(key.clone(), bytes);
                    bytes.to_string()
                }
                other => panic!("{other}"),
            };

            state.log.push(format!("{name} {key}={shown}"));
        }

        let dir = self.root.path("sys/fs/cgroup").join(&unit.cgroup);
        if !ignores && dir.is_dir() {
            write_group(&dir, &unit, state.online.as_ref());
        }
        state.units.insert(name.to_owned(), unit);

        Ok(())
    }
}

/// Does to the files of a unit's group what systemd does.
fn write_group(dir: &Path, unit: &Unit, online: Option<&CpuList>) {
    let cpus = CpuList::from_mask(&unit.allowed).unwrap();
    if !cpus.is_empty() {
        let granted: CpuList = cpus.iter().filter(|cpu| online.is_none_or(|it| it.contains(*cpu))).collect();
        fs::write(dir.join("cpuset.cpus"), format!("{cpus}\n")).unwrap();
        fs::write(dir.join("cpuset.cpus.effective"), format!("{granted}\n")).unwrap();
    }

    for (key, bytes) in &unit.memory {
        let file = if key == "MemoryHigh" { "memory.high" } else { "memory.max" };
        let text = if *bytes == u64::MAX { "max".to_owned() } else { bytes.to_string() };
        fs::write(dir.join(file), text).unwrap();
    }

    let period = unit.period.unwrap_or(100_000);
    let quota = unit.quota.map(|quota| (quota * period / 1_000_000).max(1000));
    let quota = quota.map_or("max".into(), |quota| quota.to_string());
    fs::write(dir.join("cpu.max"), format!("{quota} {period}\n")).unwrap();
}

macro_rules! kinds {
    ($($kind:ident $name:literal),*) => {$(
        struct $kind {
            name: String,
            state: Arc<Mutex<State>>,
        }

        #[interface(name = $name)]
        impl $kind {
            #[zbus(property)]
            fn control_group(&self) -> String {
                format!("/{}", self.state.lock().unwrap().units[&self.name].cgroup)
            }
            #[zbus(property, name = "AllowedCPUs")]
            fn allowed_cpus(&self) -> Vec<u8> {
                self.state.lock().unwrap().units[&self.name].allowed.clone()
            }
        }
    )*};
}
kinds!(
    Slice "org.freedesktop.systemd1.Slice",
    Scope "org.freedesktop.systemd1.Scope",
    Service "org.freedesktop.systemd1.Service"
);
