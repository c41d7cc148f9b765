//! What the recorded use of CPU and memory says about VMs and jobs, without a model that was trained.
//!
//! [`week`] makes a typical week of records, [`label`] says from it whether a VM is user-facing, and [`limits`] recommends
//! CPU and memory limits of jobs. The agent runs as root and links this crate, not the forests of `ballast-predict`.

pub mod label;
pub mod limits;
pub mod week;
