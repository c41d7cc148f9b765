//! What VMs of a cloud are like: sizes and deployments of Table I, and how busy they are.
//!
//! Source: Kumbhare et al., arXiv 2010.15388, Section IV-A and Table I. Each share comes first. The last bin of
//! deployments is open in the paper; here it ends at 60 VMs.

/// CPUs of a VM.
pub const CORES: [(f64, u16); 7] =
    [(0.33, 1), (0.27, 2), (0.21, 4), (0.10, 8), (0.05, 16), (0.03, 24), (0.01, 32)];
/// VMs of a deployment, from and to.
pub const DEPLOYMENT_VMS: [(f64, u16, u16); 7] =
    [(0.39, 1, 1), (0.14, 2, 2), (0.16, 3, 5), (0.09, 6, 10), (0.08, 11, 15), (0.05, 16, 25), (0.09, 26, 60)];
/// Shares of VMs with their 95th percentile of CPU utilisation in each quarter: user-facing ones (mean 65 %), and
/// others (44 %).
pub const P95_QUARTERS: [[f64; 4]; 2] = [[0.05, 0.20, 0.35, 0.40], [0.31, 0.30, 0.21, 0.18]];
