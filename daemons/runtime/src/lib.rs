//! What every daemon of Ballast needs: [`program`] → [`config`] → machine →
//! [control thread](control) around it → [`serve()`] → end.
//!
//! Agent and chassis manager have one [control thread](control) that owns the machine and does what it
//! wants, one sampling thread that reads sensors, and one thread for HTTP and signals. Nothing but the
//! control thread can delay an alert.

pub mod alarms;
pub mod audit;
pub mod caps;
pub mod clock;
pub mod config;
pub mod confine;
pub mod control;
pub mod events;
pub mod fingerprint;
pub mod http;
pub mod kubernetes;
pub mod log;
pub mod metrics;
mod openmetrics;
pub mod program;
mod realtime;
pub mod recorder;
pub mod redfish;
pub mod reload;
pub mod sensors;
mod serve;
pub mod state;
mod systemd;
mod target;
pub mod threads;
pub mod tls;
pub mod ui;
pub mod watchdog;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use clock::{now, unix_now};
pub use program::EXIT_LIVE;
pub use serve::{Leaving, Listening, serve, wait_until};
pub use target::Target;

/// The version of this build. Packages and archives are built with `VERSION+COMMIT` (`packaging/version`).
pub const VERSION: &str = match option_env!("BALLAST_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// A mutex's value, whoever panicked while holding it: no value here is ever left half changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
