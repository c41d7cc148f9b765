//! A real placement daemon, and models for it.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ballast_predict::{VmHistory, fleet, train};
use ballast_runtime::{Target, tls};
use ballast_types::SplitMix64;
use ballast_types::wire::PlaceStatus;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use super::caller::Caller;
use super::{PATIENCE, ballast};
use crate::processes::Process;

/// The daemon's socket in its folder.
pub const SOCKET: &str = "place.sock";

/// A model file of a small synthetic fleet. Another seed gives another model.
pub fn model(seed: u64) -> Vec<u8> {
    trained(seed, &fleet(seed))
}

/// A model file of such a fleet, where what a VM turned out to be has nothing to do with what could be known of it.
pub fn senseless_model(seed: u64) -> Vec<u8> {
    let mut vms = fleet(seed);
    let mut random = SplitMix64::new(seed);
    // Among those of which it is known, so that no label is lost.
    let labelled: Vec<usize> = (0..vms.len()).filter(|n| vms[*n].class.is_some()).collect();
    for n in (1..labelled.len()).rev() {
        let (one, other) = (labelled[n], labelled[(random.draw() % (n as u64 + 1)) as usize]);
        let (class, p95) = (vms[one].class, vms[one].p95_cpu);
        (vms[one].class, vms[one].p95_cpu) = (vms[other].class, vms[other].p95_cpu);
        (vms[other].class, vms[other].p95_cpu) = (class, p95);
    }
    trained(seed, &vms)
}

fn fleet(seed: u64) -> Vec<VmHistory> {
    fleet::make(&fleet::Options { seed, vms: 6_000, ..fleet::Options::default() }).vms
}

fn trained(seed: u64, vms: &[VmHistory]) -> Vec<u8> {
    let options = train::Options { seed, ..train::Options::default() };
    train::train(vms, &options).expect("a model").encode().expect("a file")
}

pub struct PlaceLab {
    dir: TempDir,
    port: u16,
    daemon: Process,
    caller: Caller,
}

impl PlaceLab {
    /// Starts one, with more TOML after `[predict]`, and waits until it answers.
    pub fn start(predict: &str) -> Self {
        tls::install_provider();
        let dir = tempfile::tempdir().expect("a temporary folder");
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let text = format!(
            "name = \"lab\"\nlisten = [\"127.0.0.1:{port}\", \"unix:{}\"]\nstate_dir = {:?}\n[predict]\n\
             model = {:?}\n{}",
            dir.path().join(SOCKET).display(),
            dir.path().join("state"),
            dir.path().join("model"),
            predict.replace("LAB", &dir.path().display().to_string()),
        );
        fs::write(dir.path().join("place.toml"), text).expect("a config");
        let daemon = daemon(&dir);
        let lab = Self { dir, port, daemon, caller: Caller::new() };
        lab.wait("it answers", |lab| lab.get("/healthz").0 == 200);
        lab
    }

    /// Starts it again once it has ended, and waits until it answers.
    pub fn restart(&mut self) {
        self.daemon = daemon(&self.dir);
        self.wait("it answers again", |lab| lab.get("/healthz").0 == 200);
    }

    /// Starts it again, and waits until it has refused that.
    #[must_use]
    pub fn refused_restart(&mut self) -> ExitStatus {
        self.daemon = daemon(&self.dir);
        self.daemon.wait().expect("an end")
    }

    pub fn kill(&mut self) {
        self.daemon.signal(Signal::SIGKILL);
        self.daemon.wait().expect("an end");
    }

    /// Kills it when three clients, who order until nobody answers, have had so many answers; what each knows by then.
    /// A client is given where to order, its own name, and what counts its answers.
    pub fn kill_among<F: Send>(
        &mut self,
        who: &str,
        answers: u64,
        order: impl Fn(&Target, &str, &AtomicU64) -> BTreeMap<String, F> + Sync,
    ) -> BTreeMap<String, F> {
        let (target, answered) = (self.target(), AtomicU64::new(0));
        thread::scope(|scope| {
            let client = |k| {
                scope.spawn({
                    let (target, answered, order) = (&target, &answered, &order);
                    move || order(target, &format!("{who}w{k}"), answered)
                })
            };
            let clients = [0, 1, 2].map(client);
            self.wait("answers", |_| answered.load(Ordering::Relaxed) >= answers);
            self.kill();
            clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
        })
    }

    pub fn target(&self) -> Target {
        Target::at_socket(self.path(SOCKET))
    }

    /// The answer to a call, as an operator of this machine makes it.
    pub fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let target = self.target();
        let (status, text) = Caller::of(&target).send(method, &target.url(path), body);
        let empty = text.is_empty().then_some(Value::Null);
        (status, empty.unwrap_or_else(|| serde_json::from_str(&text).expect("JSON")))
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The answer to a GET; status 0 when nobody answers.
    pub fn get(&self, path: &str) -> (u16, String) {
        self.caller.get(&self.url(path))
    }

    /// The answer to a POST; status 0 when nobody answers.
    pub fn post(&self, path: &str, body: &Value) -> (u16, String) {
        self.caller.post(&self.url(path), body)
    }

    pub fn predict(&self, question: &Value) -> (u16, Value) {
        let (status, text) = self.caller.post(&self.url("/v1/predict"), question);
        (status, serde_json::from_str(&text).expect("JSON"))
    }

    pub fn status(&self) -> PlaceStatus {
        serde_json::from_str(&self.get("/v1/status").1).expect("a status")
    }

    /// The checksum of the model in force; `none` without one.
    pub fn checksum(&self) -> String {
        self.status().predict.model.map_or_else(|| "none".into(), |model| model.checksum)
    }

    /// Replaces the model's file in one step, as `ballast train` does.
    pub fn put(&self, bytes: &[u8]) {
        let next = self.path("model.next");
        fs::write(&next, bytes).expect("a file");
        fs::rename(next, self.path("model")).expect("a file");
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn process(&self) -> u32 {
        self.daemon.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.daemon.id().cast_signed()), signal).expect("a signal");
    }

    /// Ends it in order (SIGTERM), and says how it ended.
    pub fn end(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.daemon.wait().expect("an end")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until `done`. This panics when that does not come within [`PATIENCE`].
    pub fn wait(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < until, "never: {what}\n{}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Starts the daemon of a folder; its log goes on.
fn daemon(dir: &TempDir) -> Process {
    let mut command = Command::new(ballast());
    command.args(["place", "--config"]).arg(dir.path().join("place.toml"));
    Process::spawn("place", command, dir.path().join("log")).expect("a daemon")
}
