//! The last steps: the manager serves until it is told to stop, and then lifts what is safe to lift.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use ballast_chassis_core::Input;
use ballast_runtime::config::Loaded;
use ballast_runtime::control::Snapshot;
use ballast_runtime::reload::Reloader;
use ballast_runtime::ui::{self, Site, SiteDaemon};
use ballast_runtime::{Leaving, wait_until};
use ballast_types::wire::ChassisStatus;
use ballast_types::{ServerId, Watts};

use crate::api::{Api, routes};
use crate::config::ChassisConfig;
use crate::effects::ChassisEffects;
use crate::message::Message;
use crate::start::{Started, UntilExit};

/// How long a stopping manager waits for its hardware caps to be lifted.
const LIFT_WITHIN: Duration = Duration::from_secs(2);

/// A manager that was told to stop. The fields that come first are dropped first.
pub(crate) struct Served {
    leaving: Leaving<ChassisEffects>,
    snapshot: Arc<Snapshot<ChassisStatus>>,
    held: UntilExit,
}

impl Started<'_> {
    /// Serves until SIGTERM or SIGINT. Fails when HTTP or the control thread ends before that. The ledger has
    /// what is left on.
    pub(crate) fn serve(self, loaded: Loaded<ChassisConfig>) -> anyhow::Result<Served> {
        let Self { config, control, api, reload, alarms, listening, held } = self;
        Arc::clone(&api.orders).watch()?;
        let (events, tls) = (api.events.clone(), api.tls.clone());
        let reloader = Reloader { in_force: loaded, follows: reload, events, alarms, tls };
        let (access, snapshot) = (Arc::clone(&api.access), Arc::clone(&api.snapshot));
        let routes = routes(api, config.ui.then(|| page(config)).transpose()?);
        let serving = ballast_runtime::serve(listening, routes, access, control);
        let leaving = held.runtime.block_on(async {
            reloader.start()?;
            serving.await
        })?;

        Ok(Served { leaving, snapshot, held })
    }
}

/// The web page, which shows this chassis alone.
fn page(config: &ChassisConfig) -> anyhow::Result<Router<Api>> {
    let name = config.params.chassis_id.to_string();
    let chassis = vec![SiteDaemon { name, base: String::new() }];
    Ok(ui::routes(&Site { version: ballast_runtime::VERSION, chassis, agents: vec![] })?)
}

impl Served {
    /// Has the controller lift every hardware cap that is safe to lift, and ends it. The ledger has the
    /// others.
    pub(crate) fn restore(self) -> anyhow::Result<()> {
        let Self { leaving, snapshot, held } = self;
        held.runtime.block_on(async {
            // Sending fails only when the control thread has ended, and then nothing waits.
            let _ = held.messages.send(Message::Input(Input::Leave));
            wait_until(LIFT_WITHIN, || capped(&snapshot).next().is_none()).await;

            let _ = held.messages.send(Message::Stop);
            let effects = leaving.end().await?;

            for (server, watts) in capped(&snapshot) {
                let watts = watts.as_f64();
                if effects.caps.is_on(&server) {
                    tracing::warn!(
                        %server, watts,
                        "the hardware cap stays on: lifting it could overload the chassis"
                    );
                } else {
                    tracing::warn!(%server, watts, "a hardware cap was ordered, and was not seen on");
                }
            }

            Ok(())
        })
    }
}

/// The servers whose hardware caps are on, or ordered.
fn capped(snapshot: &Snapshot<ChassisStatus>) -> impl Iterator<Item = (ServerId, Watts)> {
    let status = snapshot.get();
    let servers = status.map(|status| status.servers.clone()).unwrap_or_default();
    servers.into_iter().filter_map(|server| Some((server.server, server.hardware_cap_w?)))
}
