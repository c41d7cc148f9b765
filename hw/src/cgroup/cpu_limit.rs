//! What limits a VM's CPUs: its time (`cpu.max`), or its frequency (`cpu.uclamp.max`).

use core::cmp::Ordering;
use core::fmt;
use core::str::FromStr;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::cpu_max::{CPU_MAX, CpuMax};
use crate::error::{HwError, Operation};
use crate::root::read_value;

const CPU_MAX_FILE: &str = "cpu.max";
pub(crate) const CLAMP_FILE: &str = "cpu.uclamp.max";
/// What `cpu.uclamp.max` holds.
const UCLAMP_MAX: &str = "\"max\" or a percentage of 0 to 100 with at most two decimals";
/// A utilisation of 1, in the scheduler's units.
const FULL: u64 = 1024;
/// The same in `cpu.uclamp.max`, in hundredths of a percent.
const ALL: u64 = 10_000;

/// The clamp under which schedutil asks for a share of the highest frequency, over that share: a fraction of at most 1.
///
/// Up to Linux 6.7 its margin of a quarter comes on top of the clamp, since 6.8 the clamp holds as it is
/// (`sugov_effective_cpu_perf` in `kernel/sched/cpufreq_schedutil.c`). And a clamp is a share of the hardware's highest
/// frequency, where ours are of the highest without turbo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClampScale {
    clamp: u64,
    share: u64,
}

impl ClampScale {
    /// By the kernel's release, `6.1.0-28-amd64`, and the highest frequencies without turbo and with it, in kHz.
    ///
    /// A release that cannot be read counts as an old one: VMs are then slowed by a fifth more than asked for at
    /// most, and never less.
    pub(crate) fn of(release: &str, reference: u32, highest: u32) -> Self {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|text| text.parse().unwrap_or(0));
        let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let (less, of) = if version < (6, 8) { (4, 5) } else { (1, 1) };
        let reference = u64::from(reference.min(highest).max(1));
        Self { clamp: reference * less, share: u64::from(highest.max(1)) * of }
    }
}

/// The text of `cpu.uclamp.max`, in hundredths of a percent of the highest frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Clamp(u16);

impl Clamp {
    const MAX: Self = Self(ALL as u16);

    /// Under which none of so many cores runs faster than the mean of their shares, which come to `millicores`
    /// thousandths of one core's highest frequency.
    ///
    /// Every rounding is down: the kernel picks the lowest frequency at or above what it is asked for, so that a
    /// thousandth too much is a whole p-state.
    fn share(millicores: u32, cores: u16, scale: ClampScale) -> Self {
        let ClampScale { clamp, share } = scale;
        let all = u64::from(cores.max(1)) * 1000;
        if u64::from(millicores) >= all {
            return Self::MAX;
        }
        let utilisation = u64::from(millicores) * FULL * clamp / (all * share);
        Self((utilisation * ALL / FULL) as u16)
    }

    /// The most thousandths of a core that come to it.
    fn millicores(self, cores: u16, scale: ClampScale) -> Option<u32> {
        let ClampScale { clamp, share } = scale;
        let all = u64::from(cores.max(1)) * 1000;
        let utilisation = ((u64::from(self.0) + 1) * FULL).div_ceil(ALL);
        let least_over = (utilisation * all * share).div_ceil(FULL * clamp);
        let most = least_over.saturating_sub(1);
        (self < Self::MAX).then_some(most.min(all - 1) as u32)
    }
}

/// The text of one of both files: a limit of time has two words, one of frequency has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CpuLimit {
    Time(CpuMax),
    Frequency(Clamp),
}

/// A text that is neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{CPU_MAX}; or {UCLAMP_MAX}")]
pub struct CpuLimitError;

/// Which of both limits VMs, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cpu.max`, in periods of such a length.
    Time(core::time::Duration),
    /// `cpu.uclamp.max`.
    Frequency(ClampScale),
}

impl Kind {
    /// What `millicores` come to for a VM of so many cores.
    pub(crate) fn limit(self, millicores: u32, cores: u16) -> CpuLimit {
        match self {
            Self::Time(period) => CpuLimit::Time(CpuMax::share(millicores, period)),
            Self::Frequency(scale) => CpuLimit::Frequency(Clamp::share(millicores, cores, scale)),
        }
    }

    /// What such a limit comes to, rounded; `None` is no limit, or one of another kind.
    pub(crate) fn millicores(self, limit: CpuLimit, cores: u16) -> Option<u32> {
        match (self, limit) {
            (Self::Time(_), CpuLimit::Time(max)) => max.millicores(),
            (Self::Frequency(scale), CpuLimit::Frequency(clamp)) => clamp.millicores(cores, scale),
            _ => None,
        }
    }

    pub(crate) const fn file(self) -> &'static str {
        match self {
            Self::Time(_) => CPU_MAX_FILE,
            Self::Frequency(_) => CLAMP_FILE,
        }
    }
}

impl CpuLimit {
    /// What one of both files holds.
    pub(crate) fn read(file: &Path) -> Result<Self, HwError> {
        let allowed = if file.ends_with(CPU_MAX_FILE) { CPU_MAX } else { UCLAMP_MAX };
        let limit: Self = read_value(file, allowed)?;
        match file.ends_with(limit.file()) {
            true => Ok(limit),
            false => Err(HwError::value(file, Operation::Read, limit, allowed)),
        }
    }

    pub(crate) const fn file(self) -> &'static str {
        match self {
            Self::Time(_) => CPU_MAX_FILE,
            Self::Frequency(_) => CLAMP_FILE,
        }
    }

    pub fn time(self) -> Option<CpuMax> {
        match self {
            Self::Time(max) => Some(max),
            Self::Frequency(_) => None,
        }
    }

    /// Whether it takes more than another of its kind; no limit is stricter than one of the other kind.
    pub(crate) fn is_stricter_than(self, other: Self) -> bool {
        match (self, other) {
            (Self::Time(a), Self::Time(b)) => a.compare(b) == Ordering::Less,
            (Self::Frequency(a), Self::Frequency(b)) => a < b,
            _ => false,
        }
    }
}

impl fmt::Display for CpuLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(max) => max.fmt(f),
            Self::Frequency(Clamp::MAX) => f.write_str("max"),
            Self::Frequency(Clamp(hundredths)) => write!(f, "{}.{:02}", hundredths / 100, hundredths % 100),
        }
    }
}

impl FromStr for CpuLimit {
    type Err = CpuLimitError;
    fn from_str(text: &str) -> Result<Self, CpuLimitError> {
        if text.trim().contains(' ') {
            return text.parse().map(Self::Time).map_err(|_| CpuLimitError);
        }
        if text.trim() == "max" {
            return Ok(Self::Frequency(Clamp::MAX));
        }
        let (whole, decimals) = text.trim().split_once('.').unwrap_or((text.trim(), "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(decimals) || decimals.len() > 2 {
            return Err(CpuLimitError);
        }
        let whole: u16 = whole.parse().map_err(|_| CpuLimitError)?;
        let hundredths: u16 = format!("{decimals:0<2}").parse().map_err(|_| CpuLimitError)?;
        let clamp = whole.checked_mul(100).and_then(|all| all.checked_add(hundredths)).map(Clamp);
        clamp.filter(|clamp| *clamp <= Clamp::MAX).map(Self::Frequency).ok_or(CpuLimitError)
    }
}

impl TryFrom<String> for CpuLimit {
    type Error = CpuLimitError;
    fn try_from(text: String) -> Result<Self, CpuLimitError> {
        text.parse()
    }
}
impl From<CpuLimit> for String {
    fn from(it: CpuLimit) -> Self {
        it.to_string()
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::Tree;

    #[test]
    fn both_files_are_read_as_the_kernel_writes_them_or_refused() {
        for text in ["max 100000", "50000 100000", "max", "40.00", "0.00", "99.99"] {
            assert_eq!(text.parse::<CpuLimit>().unwrap().to_string(), text);
        }
        assert_eq!("100.00\n".parse::<CpuLimit>().unwrap().to_string(), "max");
        assert_eq!("12.5".parse::<CpuLimit>().unwrap().to_string(), "12.50");
        for bad in
            ["", ".", "1.", ".5", "100.01", "1.234", "-1", "+1.00", "1e1", "655.36", "9999999", "max 1"]
        {
            assert!(bad.parse::<CpuLimit>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_limit_of_time_is_none_of_frequency() {
        let tree = Tree::new();
        for (file, text, is_read) in [
            ("cpu.max", "50000 100000", true),
            ("cpu.uclamp.max", "40.00", true),
            ("cpu.max", "40.00", false),
            ("cpu.uclamp.max", "50000 100000", false),
        ] {
            tree.write(file, text);
            let read = CpuLimit::read(&tree.root().path(file));
            assert_eq!(read.is_ok(), is_read, "{file}: {read:?}");
        }
    }

    /// A kernel with the margin, and one without, on a machine without turbo.
    fn old() -> ClampScale {
        ClampScale::of("6.1.0-28-amd64", 2_400_000, 2_400_000)
    }
    fn new() -> ClampScale {
        ClampScale::of("6.12.9+deb13-amd64", 2_400_000, 2_400_000)
    }

    #[test]
    fn the_margin_is_that_of_the_kernels_release() {
        for (release, is_old) in [
            ("5.14.0-503.el9", true),
            ("6.7.12", true),
            ("6.8.0", false),
            ("7.0-rc1", false),
            ("", true),
            ("x", true),
        ] {
            let scale = ClampScale::of(release, 2_400_000, 2_400_000);
            assert_eq!(scale, if is_old { old() } else { new() }, "{release}");
        }
    }

    #[test]
    fn a_share_of_the_frequency_is_that_of_each_core() {
        let share = |millicores, cores, scale| Kind::Frequency(scale).limit(millicores, cores).to_string();
        assert_eq!(share(2000, 4, new()), "50.00");
        // 40 % and a quarter on top.
        assert_eq!(share(2000, 4, old()), "39.94");
        assert_eq!(share(4000, 4, old()), "max");
        assert_eq!(share(9000, 4, new()), "max");
        assert_eq!(share(0, 4, new()), "0.00");
        assert_eq!(share(500, 0, new()), "50.00");
        assert_eq!(share(2000, 4, ClampScale::of("6.12", 2_400_000, 3_200_000)), "37.50", "of turbo");
        assert_eq!(Kind::Time(Duration::from_millis(20)).limit(2000, 4).to_string(), "40000 20000");
    }

    proptest! {
        /// The kernel's own arithmetic: never above the share, and less than a p-state below it.
        #[test]
        fn no_clamp_lets_a_core_run_above_its_share(
            cores in 1u16..=512,
            share in 1u32..=1000,
            mhz in 400u32..6000,
            turbo in 0u32..2000,
            is_old: bool,
        ) {
            let (reference, highest) = (mhz * 1000, (mhz + turbo) * 1000);
            let release = if is_old { "6.1" } else { "6.12" };
            let kind = Kind::Frequency(ClampScale::of(release, reference, highest));
            let millicores = u32::from(cores) * share;
            let limit = kind.limit(millicores, cores);
            let CpuLimit::Frequency(Clamp(hundredths)) = limit else { panic!("{limit}") };
            if limit.to_string() == "max" {
                prop_assert_eq!(share, 1000);
                return Ok(());
            }
            // capacity_from_percent, map_util_perf, map_util_freq
            let utilisation = (u64::from(hundredths) * FULL + ALL / 2) / ALL;
            let perf = if is_old { utilisation + (utilisation >> 2) } else { utilisation };
            let khz = u64::from(highest) * perf / FULL;
            let allowed = u64::from(mhz) * u64::from(share);
            prop_assert!(khz <= allowed, "{}: {} kHz of {}", limit, khz, allowed);
            prop_assert!(khz + u64::from(highest) / 400 >= allowed, "{}: {} kHz of {}", limit, khz, allowed);

            // What a next instance makes of it is the same.
            let again = kind.millicores(limit, cores).unwrap();
            prop_assert!(again >= millicores);
            prop_assert_eq!(kind.limit(again, cores), limit);
        }
    }
}
