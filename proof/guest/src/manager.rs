//! Chassis managers inside the guest, as their package ships them.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ballast_types::wire::ChassisStatus;
use serde_json::Value;

use crate::guest::PATIENCE;
use crate::shell::Shell;

/// A manager of the guest's own server.
pub(crate) const CONFIG: &str = include_str!("../recipe/chassis.toml");

/// One of them: `ballast-chassis.service`, or an instance by its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manager(pub(crate) Option<&'static str>);

impl Manager {
    pub(crate) fn unit(self) -> String {
        self.0.map_or("ballast-chassis".to_owned(), |name| format!("ballast-chassis@{name}"))
    }

    fn config(self) -> String {
        self.0.map_or("/etc/ballast/chassis.toml".to_owned(), |name| {
            format!("/etc/ballast/chassis-{name}.toml")
        })
    }

    pub(crate) fn socket(self) -> String {
        let folder = self.0.map_or("ballast-chassis".to_owned(), |name| format!("ballast-chassis-{name}"));
        format!("/run/{folder}/ballast.sock")
    }

    pub(crate) fn state_dir(self) -> String {
        self.0
            .map_or("/var/lib/ballast-chassis".to_owned(), |name| format!("/var/lib/ballast-chassis/{name}"))
    }

    /// Writes its config, without starting it.
    pub(crate) fn configure(self, shell: &mut Shell, config: &str) -> anyhow::Result<()> {
        let file = self.config();
        shell.run(&format!("cat >{file} <<'END'\n{config}\nEND\n")).map(drop)
    }

    pub(crate) fn start(self, shell: &mut Shell, config: &str) -> anyhow::Result<()> {
        self.configure(shell, config)?;
        shell.run(&format!("systemctl start {}", self.unit()))?;
        self.status_when(shell, "a manager that answers", |_| true).map(drop)
    }

    /// Ends it; what it has left on the disk goes, for the next scenario.
    pub(crate) fn remove(self, shell: &mut Shell) -> anyhow::Result<()> {
        let (unit, state_dir) = (self.unit(), self.state_dir());
        let config = if self.0.is_some() { self.config() } else { String::new() };
        shell.run(&format!("systemctl stop {unit}; rm -rf {state_dir}/* {config}")).map(drop)
    }

    pub(crate) fn pid(self, shell: &mut Shell) -> anyhow::Result<String> {
        let said = shell.run(&format!("systemctl show --property MainPID --value {}", self.unit()))?;
        Ok(said.trim().to_owned())
    }

    pub(crate) fn status(self, shell: &mut Shell) -> anyhow::Result<ChassisStatus> {
        let said = shell.try_run(&format!("ballast status --json unix:{}", self.socket()), PATIENCE)?;
        let mut all: Vec<Value> = serde_json::from_str(&said.text).with_context(|| said.text.clone())?;
        let first = all.first_mut().context("no answer")?;
        serde_json::from_value(first["status"].take()).with_context(|| said.text)
    }

    /// Asks until the status meets a condition.
    pub(crate) fn status_when(
        self,
        shell: &mut Shell,
        what: &str,
        condition: impl Fn(&ChassisStatus) -> bool,
    ) -> anyhow::Result<ChassisStatus> {
        let from = Instant::now();
        loop {
            match self.status(shell) {
                Ok(status) if condition(&status) => return Ok(status),
                answer if from.elapsed() > PATIENCE => {
                    let log = shell.run(&format!("systemctl status -n 20 {} || true", self.unit()))?;
                    bail!("{what}: not within {PATIENCE:?}: {answer:?}\n{log}");
                }
                _ => thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}
