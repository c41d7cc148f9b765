//! Dry runs: the manager watches and logs, alerts nobody, caps nothing, and leaves its ledger alone.

use ballast_chassis_core::{Ledger, Mode, Output, Params, Server};
use ballast_runtime::metrics::word;
use ballast_types::wire::{Alarm, AlarmId, ChassisState, ChassisStatus, EventKind};

use crate::config::ChassisConfig;

/// Leaves the caps on that a previous instance has set, in the ledger too.
pub(super) fn leave_caps(ledger: &mut Ledger) {
    tracing::warn!("dry run: no server is alerted and no hardware cap is set");
    for (server, watts) in ledger.out_of_band.drain(..) {
        tracing::warn!(%server, watts = watts.as_f64(), "dry run: the server's hardware cap stays on");
    }
}

/// What the controller works by. In a dry run no server has an agent, and none a path for caps.
pub(super) fn params(config: &ChassisConfig) -> Params {
    let params = &config.params;
    if !config.dry_run {
        return params.clone();
    }
    let server = |server: &Server| {
        let mode = match server.mode {
            Mode::Managed => Mode::Unmanaged,
            other => other,
        };
        Server { mode, out_of_band_floor: None, ..server.clone() }
    };
    Params { servers: params.servers.iter().map(server).collect(), ..params.clone() }
}

/// Whether this is not done, and says what would be.
pub(super) fn withheld(output: &Output) -> bool {
    match output {
        Output::Event(event) => {
            if let EventKind::ChassisState { from, to, cause } = &event.kind {
                let is_alerting = *to == ChassisState::Alerting;
                let (from, to) = (word(from), word(to));
                tracing::info!(from, to, cause, "dry run: the chassis changes its state");
                if is_alerting {
                    tracing::warn!("dry run: the manager would alert every server");
                }
            }
            false
        }
        Output::Ledger(_)
        | Output::Alert { .. }
        | Output::OutOfBandCap { .. }
        | Output::OutOfBandLift { .. } => true,
    }
}

/// The status of a manager that only watches.
pub(super) fn say_so(mut status: ChassisStatus) -> ChassisStatus {
    let message = "dry run: no server is alerted and no hardware cap is set";
    status.alarms.push(Alarm::new(AlarmId::DryRun, message));
    ChassisStatus { dry_run: true, ..status }
}
