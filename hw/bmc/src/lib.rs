//! Baseboard controllers (BMCs): power readings and power limits, in band by IPMI DCMI and out of band by
//! Redfish.
//!
//! A BMC is slow, forgetful and often wrong: every call has a deadline, every answer is checked, a limit
//! that was set is read back, and a reading that is zero or implausible is missing. All calls block: they belong
//! on a thread of their own, one for each BMC. No limit is ever set whose exception is to switch the server
//! off.

pub mod dcmi;
mod error;
pub mod redfish;

pub use error::BmcError;
