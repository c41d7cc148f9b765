//! The cpufreq drivers whose ways are known.

use core::convert::Infallible;
use core::fmt;
use core::str::FromStr;

/// Which driver scales the CPUs, as `scaling_driver` names it.
///
/// With all of these, `scaling_max_freq` is a cap that the hardware obeys. Of another driver that is not
/// known.
///
/// Sources: Documentation/admin-guide/pm/{intel_pstate,amd-pstate,cpufreq}.rst; drivers/cpufreq/.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Driver {
    /// ACPI `_PSS` tables; most EPYC hosts, with about three steps.
    AcpiCpufreq,
    /// Intel, active: continuous, by HWP where there is one.
    IntelPstate,
    /// Intel, passive: under `schedutil` a limit takes effect at that CPU's next scheduler update.
    IntelCpufreq,
    /// AMD, active: loses caps on resume.
    AmdPstateEpp,
    /// AMD, passive or guided.
    AmdPstate,
    /// ACPI CPPC, mostly Arm: switching boost overwrites caps.
    CppcCpufreq,
    /// Arm firmware, asked by messages that it may ignore.
    Scmi,
    Unknown(String),
}

impl Driver {
    const KNOWN: [(&'static str, Self); 7] = [
        ("acpi-cpufreq", Self::AcpiCpufreq),
        ("intel_pstate", Self::IntelPstate),
        ("intel_cpufreq", Self::IntelCpufreq),
        ("amd-pstate-epp", Self::AmdPstateEpp),
        ("amd-pstate", Self::AmdPstate),
        ("cppc_cpufreq", Self::CppcCpufreq),
        ("scmi", Self::Scmi),
    ];

    /// Whether it is known to obey `scaling_max_freq`.
    pub fn is_known(&self) -> bool {
        !matches!(self, Self::Unknown(_))
    }

    /// Its name in `scaling_driver`.
    pub fn name(&self) -> &str {
        match self {
            Self::Unknown(name) => name,
            known => Self::KNOWN.iter().find(|(_, it)| it == known).map_or("", |(name, _)| name),
        }
    }

    /// Whether its frequencies are ACPI CPPC's, so that the tables in `acpi_cppc` are about them.
    pub(super) fn is_cppc(&self) -> bool {
        matches!(self, Self::AmdPstateEpp | Self::AmdPstate | Self::CppcCpufreq)
    }
}

impl FromStr for Driver {
    type Err = Infallible;
    fn from_str(name: &str) -> Result<Self, Infallible> {
        let known = Self::KNOWN.into_iter().find(|(known, _)| *known == name);
        Ok(known.map_or_else(|| Self::Unknown(name.to_owned()), |(_, driver)| driver))
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_survives_and_only_those_of_the_table_are_known() {
        for (name, known) in [
            ("acpi-cpufreq", true),
            ("intel_pstate", true),
            ("intel_cpufreq", true),
            ("amd-pstate-epp", true),
            ("amd-pstate", true),
            ("cppc_cpufreq", true),
            ("scmi", true),
            ("cpufreq-dt", false),
            ("AMD-pstate", false),
            ("", false),
        ] {
            let driver: Driver = name.parse().unwrap();
            assert_eq!((driver.name(), driver.is_known()), (name, known));
        }
    }
}
