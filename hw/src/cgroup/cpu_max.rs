//! The text of `cpu.max`.

use core::cmp::Ordering;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

/// What `cpu.max` holds.
pub(crate) const CPU_MAX: &str = "\"max\" or a quota of at least 1000 us, and a period of 1000 to 1000000 us";
/// The kernel takes no shorter quota.
const LEAST_QUOTA_US: u64 = 1000;
/// And no longer period.
const LONGEST_PERIOD_US: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuMax {
    /// CPU time in a period; `None` is no limit.
    pub quota_us: Option<u64>,
    pub period_us: u64,
}

/// A text that is no `cpu.max`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{CPU_MAX}")]
pub struct CpuMaxError;

impl CpuMax {
    /// A share in thousandths of a core, in periods of `period` where that leaves a quota of 1 ms.
    pub(crate) fn share(millicores: u32, period: Duration) -> Self {
        let millicores = u64::from(millicores.max(1));
        let period = u64::try_from(period.as_micros()).unwrap_or(LONGEST_PERIOD_US);
        let least = (LEAST_QUOTA_US * 1000).div_ceil(millicores);
        let period_us = period.max(least).clamp(LEAST_QUOTA_US, LONGEST_PERIOD_US);
        Self { quota_us: Some((millicores * period_us / 1000).max(LEAST_QUOTA_US)), period_us }
    }

    /// Thousandths of a core, rounded; `None` is no limit.
    pub fn millicores(self) -> Option<u32> {
        let quota = self.quota_us?;
        let exact = quota.saturating_mul(1000).saturating_add(self.period_us / 2) / self.period_us;
        Some(u32::try_from(exact).unwrap_or(u32::MAX))
    }

    /// Less is stricter.
    pub(crate) fn compare(self, other: Self) -> Ordering {
        match (self.quota_us, other.quota_us) {
            (Some(a), Some(b)) => (u128::from(a) * u128::from(other.period_us))
                .cmp(&(u128::from(b) * u128::from(self.period_us))),
            (None, None) => Ordering::Equal,
            (a, _) => {
                if a.is_some() {
                    Ordering::Less
                } else {
                    Ordering::Greater
                }
            }
        }
    }
}
impl fmt::Display for CpuMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.quota_us {
            Some(quota) => write!(f, "{quota} {}", self.period_us),
            None => write!(f, "max {}", self.period_us),
        }
    }
}
impl FromStr for CpuMax {
    type Err = CpuMaxError;
    fn from_str(text: &str) -> Result<Self, CpuMaxError> {
        let mut words = text.split_ascii_whitespace();
        let (quota, period) = (words.next().ok_or(CpuMaxError)?, words.next().ok_or(CpuMaxError)?);
        let quota_us = match quota {
            "max" => None,
            number => Some(number.parse().map_err(|_| CpuMaxError)?),
        };
        let period_us = period.parse().map_err(|_| CpuMaxError)?;
        let periods = LEAST_QUOTA_US..=LONGEST_PERIOD_US;
        if words.next().is_some() || !periods.contains(&period_us) || quota_us == Some(0) {
            return Err(CpuMaxError);
        }
        Ok(Self { quota_us, period_us })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_max_is_read_as_the_kernel_writes_it_or_refused() {
        for (text, quota_us, millicores) in [
            ("max 100000", None, None),
            ("50000 100000\n", Some(50_000), Some(500)),
            ("400000 20000", Some(400_000), Some(20_000)),
            ("18446744073709551615 1000", Some(u64::MAX), Some(u32::MAX)),
        ] {
            let it: CpuMax = text.parse().unwrap();
            assert_eq!((it.quota_us, it.millicores()), (quota_us, millicores), "{text}");
            assert_eq!(it.to_string(), text.trim());
        }

        for bad in [
            "",
            "max",
            "50000",
            "max 999",
            "max 1000001",
            "0 1000",
            "-1 1000",
            "1e4 1000",
            "x 1000",
            "max 1000 1",
        ] {
            assert!(bad.parse::<CpuMax>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_share_is_a_quota_of_at_least_a_millisecond() {
        for (millicores, ms, text) in [
            (2856, 20, "57120 20000"),
            (500, 100, "50000 100000"),
            (50, 20, "1000 20000"),
            (20, 20, "1000 50000"),
            (3, 20, "1000 333334"),
            (0, 20, "1000 1000000"),
            (1000, 5000, "1000000 1000000"),
            (u32::MAX, 20, "85899345900 20000"),
        ] {
            let it = CpuMax::share(millicores, Duration::from_millis(ms));
            assert_eq!(it.to_string(), text, "{millicores} {ms}");
            assert!(it.quota_us >= Some(1000));
        }
    }
}
