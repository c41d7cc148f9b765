//! Every driver's files, and what can be capped to what.

use super::super::*;
use super::{P0, mhz};
use crate::testing::Tree;
use ReferenceSource::{Base, HardwareMax, Nominal, Table, TurboShare};

const CPPC: &str = "sys/devices/system/cpu/cpu0/acpi_cppc";
const INTEL: &str = "sys/devices/system/cpu/intel_pstate";
const EPYC: &str = "2450000 2000000 1500000 ";

type Files = &'static [(&'static str, &'static [(&'static str, &'static str)])];

/// Driver, `cpuinfo_min_freq` and `cpuinfo_max_freq` in MHz, its other files; then floor, number of steps
/// and top in MHz, and what the reference is.
type Row = (&'static str, u32, u32, Files, (u32, usize, u32), ReferenceSource);

#[rustfmt::skip]
const ROWS: [Row; 18] = [
    ("acpi-cpufreq", 1500, 2450, &[(P0, &[("scaling_available_frequencies", EPYC)])], (1500, 3, 2450), Table),
    // Boost is not in this driver's table on AMD; CPPC's nominal frequency is not asked where there is one.
    ("acpi-cpufreq", 1500, 3500, &[(P0, &[("scaling_available_frequencies", EPYC)]),
        (CPPC, &[("nominal_freq", "2000")])], (1500, 3, 2450), Table),
    // On Intel turbo is one entry, 1 MHz above.
    ("acpi-cpufreq", 1200, 2401, &[(P0, &[("scaling_available_frequencies", "2401000 2400000 1800000 \
        1200000")])], (1200, 3, 2400), Table),
    ("intel_pstate", 800, 3500, &[(P0, &[("base_frequency", "2400000")])], (1200, 13, 2400), Base),
    ("intel_cpufreq", 800, 3500, &[(P0, &[("base_frequency", "2100000")])], (1100, 11, 2100), Base),
    // Without HWP: 12 of 24 p-states from 1.2 GHz up are turbo.
    ("intel_pstate", 1200, 3500, &[(INTEL, &[("turbo_pct", "50"), ("num_pstates", "24")])], (1200, 12, 2300),
        TurboShare),
    ("intel_cpufreq", 1200, 2600, &[(INTEL, &[("turbo_pct", "34"), ("num_pstates", "15")])],
        (1200, 10, 2100), TurboShare),
    ("intel_pstate", 1200, 3500, &[(INTEL, &[("turbo_pct", "0"), ("num_pstates", "24")])], (1800, 18, 3500),
        HardwareMax),
    // Lowest nonlinear is above half.
    ("amd-pstate-epp", 400, 3700, &[(CPPC, &[("nominal_freq", "2400")]),
        (P0, &[("amd_pstate_lowest_nonlinear_freq", "1700000")])], (1700, 8, 2400), Nominal),
    ("amd-pstate", 400, 3700, &[(CPPC, &[("nominal_freq", "2400")]),
        (P0, &[("amd_pstate_lowest_nonlinear_freq", "1100000")])], (1200, 13, 2400), Nominal),
    ("amd-pstate", 400, 3700, &[(CPPC, &[("nominal_freq", "2400"), ("nominal_perf", "120"),
        ("lowest_nonlinear_perf", "80")])], (1600, 9, 2400), Nominal),
    ("cppc_cpufreq", 300, 3000, &[(CPPC, &[("nominal_freq", "3000"), ("nominal_perf", "300"),
        ("lowest_nonlinear_perf", "100")])], (1500, 16, 3000), Nominal),
    ("cppc_cpufreq", 300, 3000, &[(CPPC, &[("nominal_freq", "3000"), ("nominal_perf", "300"),
        ("lowest_nonlinear_perf", "200")])], (2000, 11, 3000), Nominal),
    // Firmware's nonsense is no floor.
    ("cppc_cpufreq", 300, 3000, &[(CPPC, &[("nominal_freq", "3000"), ("nominal_perf", "300"),
        ("lowest_nonlinear_perf", "900")])], (1500, 16, 3000), Nominal),
    ("cppc_cpufreq", 300, 3000, &[(CPPC, &[("nominal_freq", "0")])], (1500, 16, 3000), HardwareMax),
    ("scmi", 500, 3000, &[(P0, &[("scaling_available_frequencies", "500000 1000000 2000000 \
        2600000"), ("scaling_boost_frequencies", "3000000")])], (2000, 2, 2600), Table),
    ("scmi", 500, 3000, &[(P0, &[("scaling_available_frequencies", "500000 1000000 2000000 2600000 \
        3000000"), ("scaling_boost_frequencies", "3000000")])], (2000, 2, 2600), Table),
    ("apple-cpufreq", 600, 3200, &[], (1600, 17, 3200), HardwareMax),
];

#[test]
fn half_of_the_maximum_is_never_half_of_turbo() {
    for (n, (driver, min, max, files, want, source)) in ROWS.into_iter().enumerate() {
        let tree = Tree::new();
        let khz = |mhz: u32| (mhz * 1000).to_string();
        let files_of_all = [
            ("scaling_driver", driver.to_owned()),
            ("cpuinfo_min_freq", khz(min)),
            ("cpuinfo_max_freq", khz(max)),
            ("scaling_max_freq", khz(max)),
        ];

        for (file, text) in &files_of_all {
            tree.write(&format!("{P0}/{file}"), &format!("{text}\n"));
        }
        for (dir, files) in files {
            tree.folder(dir, files);
        }
        let cpufreq = Cpufreq::discover(tree.root(), Floor::Half).unwrap();
        let (ladder, facts) = (cpufreq.cores().remove(0).ladder, cpufreq.policies().next().unwrap().clone());
        let got = (ladder.floor(), ladder.len(), ladder.max(), facts.reference_source);
        assert_eq!(got, (mhz(want.0), want.1, mhz(want.2), source), "row {n}, {driver}");
        assert_eq!(facts.reference, mhz(want.2), "row {n}");
        assert_eq!(facts.driver.is_known(), driver != "apple-cpufreq");
        assert_eq!(facts.table, source == Table);
    }
}

#[test]
fn a_core_has_the_steps_that_all_its_policies_have() {
    let tree = Tree::new();
    tree.policy(0);
    tree.policy(1);
    tree.folder("sys/devices/system/cpu", &[("online", "0-1")]);
    tree.write("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-1\n");
    tree.write("sys/devices/system/cpu/cpufreq/policy1/base_frequency", "2000000\n");
    let cpufreq = Cpufreq::discover(tree.root(), Floor::Half).unwrap();
    let cores = cpufreq.cores();
    assert_eq!((cores.len(), cores[0].ladder.floor()), (1, mhz(1200)));
    assert_eq!(cores[0].ladder.max(), mhz(2000));
    assert_eq!(cpufreq.cpus().len(), 2);
    tree.write("sys/devices/system/cpu/cpufreq/policy1/base_frequency", "2050000\n");
    let e = Cpufreq::discover(tree.root(), Floor::Half).unwrap_err();
    assert!(e.to_string().contains("policy1"), "{e}");
}
