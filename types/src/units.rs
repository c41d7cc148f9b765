use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Neg, Sub, SubAssign};
use core::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Power, held in whole milliwatts; may be negative as a difference.
///
/// In JSON and TOML it is a number of watts, exact to the milliwatt. NaN, infinities and anything
/// beyond a gigawatt are refused when read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Watts(i64);

impl Watts {
    /// No power.
    pub const ZERO: Self = Self(0);
    /// More than any site draws; stands for "no limit" in comparisons.
    pub const MAX: Self = Self(1_000_000_000_000);

    /// From whole milliwatts.
    pub const fn from_milli(mw: i64) -> Self {
        Self(mw)
    }

    /// From whole watts.
    pub const fn from_whole(w: i64) -> Self {
        Self(w.saturating_mul(1000))
    }

    /// From watts, rounded to the milliwatt; `None` for NaN, infinities and beyond a gigawatt.
    pub fn from_f64(w: f64) -> Option<Self> {
        (w.is_finite() && w.abs() <= 1e9).then(|| Self(libm::round(w * 1000.0) as i64))
    }

    /// Whole milliwatts.
    pub const fn milli(self) -> i64 {
        self.0
    }

    /// Watts as a float, for models, reports and plots.
    #[expect(clippy::cast_precision_loss, reason = "a gigawatt in milliwatts is below 2^53")]
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / 1000.0
    }

    /// This power split evenly over `parts`, rounded down; zero parts give the whole.
    #[must_use]
    pub const fn per(self, parts: u64) -> Self {
        if parts == 0 { self } else { Self(self.0.div_euclid(parts as i64)) }
    }

    /// `ppm` parts per million of this power, rounded down.
    #[must_use]
    pub const fn ppm(self, ppm: u32) -> Self {
        Self(((self.0 as i128 * ppm as i128).div_euclid(1_000_000)) as i64)
    }

    /// The larger of this and zero.
    #[must_use]
    pub fn at_least_zero(self) -> Self {
        self.max(Self::ZERO)
    }
}

impl Add for Watts {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}
impl AddAssign for Watts {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}
impl Sub for Watts {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}
impl SubAssign for Watts {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}
impl Neg for Watts {
    type Output = Self;
    fn neg(self) -> Self {
        Self(self.0.saturating_neg())
    }
}
impl Sum for Watts {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}
impl fmt::Display for Watts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} W", self.as_f64())
    }
}
impl Serialize for Watts {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_f64(self.as_f64())
    }
}
impl<'de> Deserialize<'de> for Watts {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let w = f64::deserialize(d)?;
        Self::from_f64(w).ok_or_else(|| {
            de::Error::custom(format!("{w} is not a power: a finite number of watts up to 1e9"))
        })
    }
}

/// A clock frequency in kilohertz, the unit of cpufreq.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KiloHertz(u32);

impl KiloHertz {
    /// From kilohertz.
    pub const fn new(khz: u32) -> Self {
        Self(khz)
    }
    /// From whole megahertz.
    pub const fn from_mhz(mhz: u32) -> Self {
        Self(mhz.saturating_mul(1000))
    }
    /// Kilohertz.
    pub const fn get(self) -> u32 {
        self.0
    }
    /// This frequency as a share of `reference`.
    pub fn share_of(self, reference: Self) -> f64 {
        if reference.0 == 0 { 0.0 } else { f64::from(self.0) / f64::from(reference.0) }
    }
}
impl fmt::Display for KiloHertz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} kHz", self.0)
    }
}

/// Energy in microjoules, the unit of RAPL counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Microjoules(u64);

impl Microjoules {
    /// From microjoules.
    pub const fn new(uj: u64) -> Self {
        Self(uj)
    }
    /// Microjoules.
    pub const fn get(self) -> u64 {
        self.0
    }
    /// The energy since `earlier` on a counter that runs from 0 to `range` and wraps.
    ///
    /// Source: Documentation/power/powercap.rst (`max_energy_range_uj`).
    #[must_use]
    pub const fn since_wrapping(self, earlier: Self, range: Self) -> Self {
        if self.0 >= earlier.0 {
            Self(self.0 - earlier.0)
        } else {
            Self(range.0.saturating_sub(earlier.0).saturating_add(self.0).saturating_add(1))
        }
    }
    /// The mean power of this energy over `span`; `None` for an empty span.
    pub fn over(self, span: Duration) -> Option<Watts> {
        let micros = span.as_micros();
        // µJ / µs = W; × 1000 for milliwatts.
        (micros > 0).then(|| Watts((u128::from(self.0) * 1000 / micros).min(i64::MAX as u128) as i64))
    }
}
impl Add for Microjoules {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// A share of one core's time, in steps of 10⁻⁴; never above 1.
///
/// In JSON it is a number from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Utilisation(u16);

impl Utilisation {
    /// Idle.
    pub const IDLE: Self = Self(0);
    /// Fully busy.
    pub const FULL: Self = Self(10_000);

    /// From a ratio, clamped to 0..=1; `None` for NaN.
    pub fn from_ratio(ratio: f64) -> Option<Self> {
        (!ratio.is_nan()).then(|| Self(libm::round(ratio.clamp(0.0, 1.0) * 1e4) as u16))
    }
    /// In ten-thousandths, for sums that must be exact.
    pub const fn ten_thousandths(self) -> u16 {
        self.0
    }
    /// As a ratio from 0 to 1.
    pub fn ratio(self) -> f64 {
        f64::from(self.0) / 1e4
    }
}
impl Serialize for Utilisation {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_f64(self.ratio())
    }
}
impl<'de> Deserialize<'de> for Utilisation {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let r = f64::deserialize(d)?;
        if !(0.0..=1.0).contains(&r) {
            return Err(de::Error::custom(format!("{r} is not a utilisation: a ratio from 0 to 1")));
        }
        Self::from_ratio(r).ok_or_else(|| de::Error::custom("not a number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_wrapping_counter_gives_the_energy_between() {
        let range = Microjoules::new(999);
        assert_eq!(Microjoules::new(10).since_wrapping(Microjoules::new(990), range).get(), 20);
        assert_eq!(Microjoules::new(30).since_wrapping(Microjoules::new(10), range).get(), 20);
    }

    #[test]
    fn energy_over_time_is_power() {
        let e = Microjoules::new(46_000_000);
        assert_eq!(e.over(Duration::from_millis(200)), Some(Watts::from_whole(230)));
        assert_eq!(e.over(Duration::ZERO), None);
    }

    #[test]
    fn absurd_powers_are_refused() {
        for bad in ["1e300", "-2e9"] {
            assert!(serde_json::from_str::<Watts>(bad).is_err(), "{bad}");
        }
        assert_eq!(Watts::from_f64(f64::NAN), None);
        assert_eq!(Watts::from_f64(f64::INFINITY), None);
    }

    #[test]
    fn a_share_of_a_negative_power_rounds_down() {
        assert_eq!(Watts::from_milli(-1).ppm(500_000), Watts::from_milli(-1));
        assert_eq!(Watts::from_whole(100).per(12).milli(), 8333);
    }

    proptest! {
        #[test]
        fn watts_survive_json(mw in -1_000_000_000_000i64..1_000_000_000_000) {
            let w = Watts::from_milli(mw);
            let text = serde_json::to_string(&w).unwrap();
            prop_assert_eq!(serde_json::from_str::<Watts>(&text).unwrap(), w);
        }

        #[test]
        fn utilisation_survives_json(u in 0u16..=10_000) {
            let u = Utilisation(u);
            let text = serde_json::to_string(&u).unwrap();
            prop_assert_eq!(serde_json::from_str::<Utilisation>(&text).unwrap(), u);
        }
    }
}
