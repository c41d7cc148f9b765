//! A laboratory: real daemons as processes, around a rig in this process. See `tests/`.

pub mod bmc;
pub mod caller;
pub mod kubelet;
pub mod kubernetes;
pub mod machines;
pub mod place;
mod server;
pub mod site;

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ballast_runtime::{Target, tls};
use ballast_sim::demo::{DemoOptions, demo};
use ballast_sim::load::Profile;
use ballast_sim::plant::{Load, Plant, PlantSpec};
use ballast_types::wire::{AgentStatus, ChassisStatus};
use ballast_types::{VmClass, Watts};
use nix::sys::signal::Signal;
use reqwest::{Client, Method, RequestBuilder};
use serde::de::DeserializeOwned;

use crate::changeable::{changeable, differences};
use crate::config;
use crate::processes::Process;
use crate::rig::{METER_LABEL, METER_NAME, Rig, chassis_root, server_root, vm_cgroup};
use crate::stage::Folder;
use crate::wall_time::build_folder;
use caller::Caller;

/// Nothing in these tests takes longer, however busy the machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The program `ballast`: cargo builds it for the test binary that is running.
pub fn ballast() -> PathBuf {
    build_folder().join("ballast")
}

/// A chassis whose servers all draw the same, steadily: `(user-facing, batch)` utilisation.
pub fn steady(servers: usize, budget_w: i64, load: (f64, f64)) -> PlantSpec {
    let budget = Watts::from_whole(budget_w);
    let mut spec = demo(&DemoOptions { servers, budget, ..DemoOptions::default() });
    for vm in spec.servers.iter_mut().flat_map(|server| &mut server.vms) {
        vm.load = Load::Profile(Profile::Constant(match vm.class {
            VmClass::UserFacing => load.0,
            VmClass::NonUserFacing => load.1,
        }));
    }
    spec
}

pub struct Lab {
    folder: Folder,
    spec: PlantSpec,
    rig: Option<JoinHandle<Rig>>,
    stop: Arc<AtomicBool>,
    ports: BTreeMap<String, u16>,
    daemons: BTreeMap<String, Process>,
    caller: Caller,
}

impl Lab {
    /// A running rig with configs for its daemons; none is started. `chassis` is more TOML for the
    /// chassis manager, before its tables.
    pub fn new(spec: PlantSpec, chassis: &str) -> Self {
        Self::with(spec, chassis, "")
    }

    /// The same, with more TOML for every agent: keys, then tables.
    pub fn with(spec: PlantSpec, chassis: &str, agents: &str) -> Self {
        tls::install_provider();
        let folder = Folder::make(None).expect("a temporary folder");
        let tree = folder.path().join("rig");
        let mut rig = Rig::create(&tree, Plant::new(spec.clone(), 7)).expect("a rig");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let rig = thread::spawn(move || {
            rig.run(&stopped).expect("the rig runs");
            rig
        });

        let mut lab = Self {
            folder,
            rig: Some(rig),
            stop,
            ports: BTreeMap::new(),
            daemons: BTreeMap::new(),
            caller: Caller::new(),
            spec,
        };

        lab.write_configs(chassis, agents);

        lab
    }

    fn write_configs(&mut self, more: &str, agents: &str) {
        // All listeners at once, so that no port is handed out twice.
        let names = self.servers().into_iter().chain(["chassis".into()]);
        let listeners: Vec<_> =
            names.map(|name| (name, TcpListener::bind("127.0.0.1:0").expect("a free port"))).collect();
        let port = |listener: &TcpListener| listener.local_addr().expect("an address").port();
        self.ports = listeners.iter().map(|(name, l)| (name.clone(), port(l))).collect();

        let tree = self.tree();
        let home = |name: &str, root: PathBuf| {
            let at = self.folder.path().join(name);
            format!(
                "listen = [\"127.0.0.1:{}\", \"unix:{}\"]\nroot = {root:?}\nstate_dir = {:?}\n\
                 record_dir = {:?}\n",
                self.ports[name],
                self.socket(name).display(),
                at.join("state"),
                at.join("recording"),
            )
        };

        let sockets: Vec<_> = self.servers().iter().map(|name| self.socket(name)).collect();
        let chassis = format!(
            "chassis = \"lab\"\nbudget_w = {}\n{}{more}\n{}{}",
            self.spec.budget.as_f64(),
            home("chassis", chassis_root(&tree)),
            config::supplies(&self.spec),
            config::servers(&self.spec, &sockets),
        );

        for server in &self.spec.servers {
            let (id, name) = (&server.id, server.id.as_str());
            let mut agent = format!(
                "server = {name:?}\nchassis = \"lab\"\nrun_dir = {:?}\n{}{agents}\
                 [meter]\nsource = \"hwmon\"\nname = {METER_NAME:?}\nlabel = {METER_LABEL:?}\n",
                config::run_dir(&self.home(name).join("state")),
                home(name, server_root(&tree, id))
            );

            for vm in &server.vms {
                let class = serde_json::to_string(&vm.class).expect("a word");
                let on_extreme = serde_json::to_string(&vm.on_extreme).expect("a word");
                agent += &format!(
                    "[[vm]]\nid = {:?}\nclass = {class}\ncores = {}\ncgroup = {:?}\n\
                     throttle_order = {}\non_extreme = {on_extreme}\n",
                    vm.id.as_str(),
                    vm.cpus(),
                    vm_cgroup(&vm.id),
                    vm.throttle_order,
                );
            }

            fs::write(self.config(name), agent).expect("a config");
        }

        fs::write(self.config("chassis"), chassis).expect("a config");
    }

    pub fn spec(&self) -> &PlantSpec {
        &self.spec
    }

    pub fn tree(&self) -> PathBuf {
        self.folder.path().join("rig")
    }

    /// The folder of one daemon: `state`, `recording`, `log`.
    pub fn home(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn journal(&self, name: &str) -> PathBuf {
        config::run_dir(&self.home(name).join("state")).join("journal.json")
    }

    /// Where one daemon takes orders.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.sock"))
    }

    pub fn config(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.toml"))
    }

    /// Adds top-level keys to the config of one daemon; it takes them when it is started.
    pub fn configure(&self, name: &str, keys: &str) {
        let path = self.config(name);
        let text = fs::read_to_string(&path).expect("a config");
        fs::write(path, format!("{keys}{text}")).expect("a config");
    }

    pub fn servers(&self) -> Vec<String> {
        self.spec.servers.iter().map(|server| server.id.to_string()).collect()
    }

    /// Starts one daemon: `"chassis"`, or a server's agent. Its log goes to a file.
    pub fn start(&mut self, name: &str) {
        self.start_with(name, &[]);
    }

    pub fn start_with(&mut self, name: &str, env: &[(&str, &str)]) {
        fs::create_dir_all(self.home(name)).expect("a folder");
        let role = if name == "chassis" { "chassis" } else { "agent" };
        let mut command = Command::new(ballast());
        command.args([role, "--config"]).arg(self.config(name)).envs(env.iter().copied());
        let process = Process::spawn(name, command, self.home(name).join("log"));
        self.daemons.insert(name.to_owned(), process.expect("a daemon"));
    }

    /// Starts every agent, then the chassis manager, and waits until all are ready.
    pub fn start_all(&mut self) {
        for name in self.servers() {
            self.start(&name);
        }
        self.start("chassis");
        for name in self.servers().iter().map(String::as_str).chain(["chassis"]) {
            self.wait("ready", |lab| {
                let (status, why) = lab.get(name, "/readyz");
                // As ready as a daemon gets that only watches.
                status == 200 || why.contains("dry run: ")
            });
        }
    }

    pub fn kill(&mut self, name: &str) {
        // A process that is dropped is killed.
        drop(self.daemons.remove(name).expect("it runs"));
    }

    pub fn end(&mut self, name: &str) {
        let mut process = self.daemons.remove(name).expect("it runs");
        process.signal(Signal::SIGTERM);
        let status = process.wait().expect("an end");
        assert!(status.success(), "{name}: {status}\n{}", self.log(name));
    }

    /// The number of a daemon's process, which runs.
    pub fn process(&self, name: &str) -> u32 {
        self.daemons[name].id()
    }

    pub fn signal(&mut self, name: &str, signal: Signal) {
        self.daemons.get_mut(name).expect("it runs").signal(signal);
    }

    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.home(name).join("log")).unwrap_or_default()
    }

    pub fn url(&self, name: &str, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.ports[name])
    }

    /// One request; status 0 when nobody answers.
    pub fn call(&self, request: impl FnOnce(&Client) -> RequestBuilder) -> (u16, String) {
        self.caller.call(request)
    }

    /// One order, as an operator of this machine gives it; status 0 when nobody answers.
    pub fn order(&self, method: &str, name: &str, path: &str, body: &str) -> (u16, String) {
        let target = Target::at_socket(self.socket(name));
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        Caller::of(&target).call(|client| client.request(method, target.url(path)).body(body.to_owned()))
    }

    pub fn get(&self, name: &str, path: &str) -> (u16, String) {
        self.call(|client| client.get(self.url(name, path)))
    }

    fn status<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let (status, text) = self.get(name, "/v1/status");
        // The port of a daemon that has ended may be another laboratory's by now.
        serde_json::from_str(&text).ok().filter(|_| status == 200)
    }

    pub fn chassis(&self) -> Option<ChassisStatus> {
        self.status("chassis")
    }

    pub fn agent(&self, name: &str) -> Option<AgentStatus> {
        self.status(name)
    }

    /// Whether a capping event has begun and the draw is under the budget, as the manager says.
    pub fn holds(&self) -> bool {
        self.chassis().is_some_and(|chassis| {
            chassis.alerts > 0 && chassis.power_w.is_some_and(|power| power <= chassis.budget_w)
        })
    }

    /// Re-runs the recording of a daemon that has ended: every output must come out identical.
    pub fn replay(&self, name: &str) -> serde_json::Value {
        let folder = self.home(name).join("recording");
        let folder = folder.to_str().expect("a path in UTF-8");
        let output = Self::ballast(&["replay", "--json", "--recording", folder]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_str(&text).expect("a JSON report");
        assert_eq!(report["mismatches"].as_u64(), Some(0), "{name}: {report}");
        report
    }

    /// Ends every daemon as systemd would, the manager first; no agent may leave its journal behind.
    pub fn end_all(&mut self) {
        self.end("chassis");
        for name in self.servers() {
            self.end(&name);
            assert!(!self.journal(&name).exists(), "{name} left its journal");
        }
    }

    /// Waits until `done`.
    /// This panics when that does not come within [`PATIENCE`]; says what was waited for, and shows the logs.
    pub fn wait(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !done(self) {
            if Instant::now() >= until {
                let logs = self.ports.keys().map(|name| format!("-- {name}\n{}", self.log(name)));
                panic!("never: {what}\n{}", logs.collect::<String>());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Every file of the tree that a daemon may have changed, with what it says.
    pub fn limits(&self) -> BTreeMap<PathBuf, String> {
        changeable(&self.tree()).expect("a tree")
    }

    /// Waits until every such file says what it said `before`, those that end in `except` left out.
    /// This panics when that does not come; names the files that differ.
    pub fn wait_restored(&self, before: &BTreeMap<PathBuf, String>, except: &str) {
        let judged = |path: &PathBuf| {
            let excepted = !except.is_empty() && path.to_string_lossy().ends_with(except);
            before.contains_key(path) && !excepted
        };
        let kept = |mut files: BTreeMap<PathBuf, String>| {
            files.retain(|path, _| judged(path));
            files
        };
        let (originals, until) = (kept(before.clone()), Instant::now() + PATIENCE);

        // The rig, like a kernel, shows the value in force a moment after a write.
        loop {
            let wrong = differences(&originals, &kept(self.limits()));
            if wrong.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "not restored: {wrong:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs `ballast` to its end.
    pub fn ballast(args: &[&str]) -> Output {
        Command::new(ballast()).args(args).output().expect("ballast runs")
    }

    /// Ends the rig and gives it back, with the truth of its plant.
    pub fn end_rig(&mut self) -> Rig {
        self.stop.store(true, Ordering::Relaxed);
        self.rig.take().expect("the rig runs").join().expect("the rig ends")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // If a test has failed, nothing may be left running.
        self.daemons.clear();
        self.stop.store(true, Ordering::Relaxed);
        if let Some(rig) = self.rig.take() {
            let _ = rig.join();
        }
    }
}
