use super::message::Command;
use crate::BmcError;

/// Carries one request to a BMC and brings its answer.
pub trait Transport: Send {
    /// Sends `body` as a `command` of [`super::NETFN`]; gives the answer, completion code first. Fails if
    /// there is no way to the BMC, or no answer in time.
    fn call(&mut self, command: Command, body: &[u8]) -> Result<Vec<u8>, BmcError>;
}
