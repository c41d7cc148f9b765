//! Dry runs: the controller works, nothing is written to the machine, the log says what would be done.

use ballast_agent_core::{Actuator, Output};
use ballast_hw::{Driver, Root, probe};

use crate::config::AgentConfig;

/// Why this agent may not act here; `None` if it may.
///
/// An operator asks for it; a virtual machine has no frequency to give, and what its host shows is not
/// ours; and of a driver that nobody knows nobody knows what a write does.
pub(super) fn reason(config: &AgentConfig, root: &Root, driver: Option<&Driver>) -> Option<String> {
    if config.dry_run {
        return Some("dry_run = true".to_owned());
    }
    if !config.actuate_in_vm && probe::in_vm(root) {
        return Some("this is a virtual machine, and actuate_in_vm is not set".to_owned());
    }
    let unknown = driver.filter(|it| config.throttle.actuator == Actuator::Pstate && !it.is_known())?;
    Some(format!("the cpufreq driver {:?} is not one of those known", unknown.name()))
}

/// Says what would be done.
pub(super) fn tell(output: &Output) {
    let what = match output {
        Output::SetPstate { core, khz, .. } => format!("cap core {core} at {khz}"),
        Output::Lift { core, .. } => format!("release core {core}"),
        Output::SetQuota { vm, millicores, .. } => {
            format!("limit VM {vm} to {} cores' time", f64::from(*millicores) / 1000.0)
        }
        Output::LiftQuota { vm, .. } => format!("put VM {vm}'s bandwidth back"),
        Output::SetServerLimit { watts, .. } => format!("limit the server to {watts}"),
        Output::LiftServerLimit { .. } => "put the server's own limit back".to_owned(),
        Output::KillVm { vm, .. } => format!("kill VM {vm}"),
        Output::Report(_) | Output::Refuse(_) | Output::Remember(_) | Output::Event(_) => return,
    };
    tracing::info!("dry run: would {what}");
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::ConfigFile as _;

    #[test]
    fn who_may_not_act_is_told_why() {
        let machine = |vm: bool| {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("proc")).unwrap();
            let flags = if vm { "fpu hypervisor aperfmperf" } else { "fpu aperfmperf" };
            let text = format!("processor\t: 0\nflags\t\t: {flags}\n");
            fs::write(dir.path().join("proc/cpuinfo"), text).unwrap();

            dir
        };

        for (keys, vm, driver, why) in [
            ("", false, Some("intel_pstate"), None),
            ("", false, None, None),
            ("dry_run = true", false, Some("intel_pstate"), Some("dry_run = true")),
            ("dry_run = true", false, None, Some("dry_run = true")),
            ("", true, None, Some("actuate_in_vm")),
            ("", true, Some("acpi-cpufreq"), Some("actuate_in_vm")),
            ("actuate_in_vm = true", true, Some("acpi-cpufreq"), None),
            ("", false, Some("cpufreq-dt"), Some("\"cpufreq-dt\"")),
            ("actuate_in_vm = true", true, Some("cpufreq-dt"), Some("\"cpufreq-dt\"")),
        ] {
            let text = format!("server = \"s\"\nchassis = \"c\"\nmeter.offset_w = 60\n{keys}\n");
            let config = AgentConfig::parse("agent.toml", &text).unwrap();
            let dir = machine(vm);
            let driver = driver.map(|name| name.parse().unwrap());
            let said = reason(&config, &Root::at(dir.path()), driver.as_ref());

            match why {
                Some(why) => assert!(said.as_ref().unwrap().contains(why), "{keys}: {said:?}"),
                None => assert_eq!(said, None, "{keys}"),
            }
        }
    }
}
