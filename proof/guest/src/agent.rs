//! The chassis manager's part, played by the test: real alerts to the agent in the guest.

use std::time::Duration;

use anyhow::{Context as _, bail};
use ballast_runtime::tls::{self, Peer};
use ballast_testbed::stage::Certs;
use ballast_types::wire::{AgentStatus, Alert, ChassisState, ChassisStatus, Level, Report, Slot};
use ballast_types::{BootId, ChassisId, Epoch, Role, Seq, ServerId, Watts};
use tokio::runtime::Runtime;

/// The chassis of `recipe/agent.toml`.
pub(crate) const CHASSIS: &str = "guest-chassis";
/// The server of `recipe/agent.toml`.
pub(crate) const SERVER: &str = "guest";

/// A client that counts its messages.
#[derive(Debug)]
pub(crate) struct Agent {
    runtime: Runtime,
    client: reqwest::Client,
    url: String,
    seq: u64,
    /// `boot_id` and `agent_ms` of the newest report.
    echo: Option<(BootId, u64)>,
    /// What the server may draw when nobody tells it anything.
    pub(crate) fallback_w: i64,
    /// How long a lease lasts.
    pub(crate) lease: Duration,
}

impl Agent {
    /// The chassis of the agent at `port`, by a certificate of this authority.
    pub(crate) fn new(port: u16, certs: &Certs) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let tls = certs.open(&Role::Chassis(ChassisId::new(CHASSIS)?))?;
        let client = tls::http_client(Some((&tls, Peer::Only(Role::Agent(ServerId::new(SERVER)?)))));
        let client = client.timeout(Duration::from_secs(30)).build()?;
        let url = format!("https://127.0.0.1:{port}");
        let lease = Duration::from_secs(60);
        Ok(Self { runtime, client, url, seq: 0, echo: None, fallback_w: 400, lease })
    }

    /// `GET /v1/status`.
    pub(crate) fn status(&mut self) -> anyhow::Result<AgentStatus> {
        let request = self.client.get(format!("{}/v1/status", self.url));
        let status: AgentStatus =
            self.runtime.block_on(async { request.send().await?.error_for_status()?.json().await })?;
        self.echo = Some((status.report.boot_id.clone(), status.report.agent_ms));
        Ok(status)
    }

    /// `POST /v1/alert`; `cap_w` of `None` is uncapped.
    pub(crate) fn alert(&mut self, level: Level, cap_w: Option<i64>) -> anyhow::Result<Report> {
        if self.echo.is_none() {
            self.status()?;
        }
        self.seq += 1;
        let (echo_boot_id, echo_agent_ms) = self.echo.clone().unzip();
        let alert = Alert {
            level,
            echo_boot_id,
            echo_agent_ms,
            chassis_limit_w: Watts::from_whole(400),
            cap_w: cap_w.map(Watts::from_whole),
            fallback_w: Watts::from_whole(self.fallback_w),
            valid_for_ms: self.lease.as_millis() as u64,
            ..Alert::watch(ChassisId::new(CHASSIS)?, Epoch(1), Seq(self.seq))
        };

        let request = self.client.post(format!("{}/v1/alert", self.url)).json(&alert);
        let report: Report = self.runtime.block_on(async {
            let response = request.send().await.context("the agent does not answer")?;
            let code = response.status();
            if !code.is_success() {
                bail!("the agent refused an alert: {code} {}", response.text().await?);
            }
            Ok(response.json().await?)
        })?;

        self.echo = Some((report.boot_id.clone(), report.agent_ms));

        Ok(report)
    }

    /// Counts messages from the start again, for an agent that has forgotten them.
    pub(crate) fn begin_again(&mut self) {
        (self.seq, self.echo) = (0, None);
    }

    /// Whether the chassis manager at `port` counts on the agent's word.
    pub(crate) fn chassis_sees_us(&self, port: u16) -> anyhow::Result<bool> {
        let request = self.client.get(format!("http://127.0.0.1:{port}/v1/status"));
        let status: ChassisStatus =
            self.runtime.block_on(async { request.send().await?.error_for_status()?.json().await })?;
        Ok(status.state == ChassisState::Normal
            && status.servers.iter().all(|server| server.slot == Slot::Managed))
    }
}
