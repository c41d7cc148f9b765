//! How long things take that are neither the plant nor a machine.

use core::time::Duration;

/// How long things take that are not the plant's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A message, one way (1 ms).
    pub latency: Duration,
    /// Added to it by chance, up to this (0.5 ms).
    pub jitter: Duration,
    /// From an output to the write and its answer (0.2 ms).
    pub actuation: Duration,
    /// The same through a BMC (50 ms).
    pub out_of_band: Duration,
    /// Without an answer for this long a message counts as unanswered (1 s).
    pub request_timeout: Duration,
    /// From a kill until the VM's cgroup is seen empty (200 ms).
    pub reap_delay: Duration,
    /// Between two looks at CPU use (1 s).
    pub usage_period: Duration,
    /// The period of a floating VM's bandwidth (20 ms).
    pub quota_period: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            latency: Duration::from_millis(1),
            jitter: Duration::from_micros(500),
            actuation: Duration::from_micros(200),
            out_of_band: Duration::from_millis(50),
            request_timeout: Duration::from_secs(1),
            reap_delay: Duration::from_millis(200),
            usage_period: Duration::from_secs(1),
            quota_period: Duration::from_millis(20),
        }
    }
}
