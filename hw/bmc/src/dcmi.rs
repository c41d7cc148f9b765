//! IPMI DCMI: this server's own BMC, in band.
//!
//! A round trip takes 5 to 100 ms, seconds while the BMC is busy, and what it says changes about once a
//! second. A limit survives reboots of the server.

mod cap;
mod device;
mod message;
mod transport;

use std::path::Path;
use std::time::Duration;

pub use cap::DcmiCap;
pub use message::{Command, DcmiCapState, HARD_POWER_OFF, LOG_EVENT, NETFN, NO_ACTION, PowerReading};
pub use message::{activate, get_limit, get_reading, set_limit};
pub use message::{take_done, take_limit, take_reading};
pub use transport::Transport;

use crate::BmcError;

/// The power commands of one BMC.
pub struct Dcmi {
    transport: Box<dyn Transport>,
}

impl Dcmi {
    pub fn new(transport: Box<dyn Transport>) -> Self {
        Self { transport }
    }

    /// This machine's BMC: `dev/ipmi0` below `root`. It is opened at the first call, and again after an error.
    /// `deadline` is for one request.
    pub fn open(root: &Path, deadline: Duration) -> Self {
        Self::new(Box::new(device::Device::new(root.join("dev/ipmi0"), deadline)))
    }

    pub fn reading(&mut self) -> Result<PowerReading, BmcError> {
        take_reading(&self.transport.call(Command::GetReading, &get_reading())?)
    }

    pub fn limit(&mut self) -> Result<DcmiCapState, BmcError> {
        take_limit(&self.transport.call(Command::GetLimit, &get_limit())?)
    }

    /// Writes the limit's values, never with an action that switches off; then activates or deactivates it.
    pub fn set_limit(&mut self, limit: &DcmiCapState) -> Result<(), BmcError> {
        let answer = self.transport.call(Command::SetLimit, &set_limit(limit))?;
        take_done(Command::SetLimit, &answer)?;
        self.activate(limit.active)
    }

    pub fn activate(&mut self, on: bool) -> Result<(), BmcError> {
        take_done(Command::Activate, &self.transport.call(Command::Activate, &activate(on))?)
    }
}
