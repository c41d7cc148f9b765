//! `[limits]`: how much CPU and memory each VM should get by what it used.

use ballast_runtime::config::allowed::{choice, flag, number, whole};
use ballast_runtime::config::reader::Section;
use ballast_types::wire::LimitsMode;
use ballast_usage::limits::family::Family;

/// Limits of VMs, from the agent's own records.
#[derive(Clone, Debug, PartialEq)]
pub struct JobLimitsConfig {
    pub mode: LimitsMode,
    /// Whether limits of memory are set too.
    pub apply_memory: bool,
    /// `None`: chosen once a day by what would have served best.
    pub cpu_family: Option<Family>,
    pub memory_family: Option<Family>,
    /// The share of five-minute windows that may be above a limit where the family is chosen.
    pub overruns: f64,
    /// Beyond the family's own, as a share.
    pub margin: f64,
    pub min_cores: f64,
    /// A VM's own cores otherwise.
    pub max_cores: Option<f64>,
    pub min_memory_mib: u64,
    /// The server's memory otherwise.
    pub max_memory_mib: Option<u64>,
}

impl JobLimitsConfig {
    pub(super) fn read(root: &mut Section<'_, '_>) -> Self {
        let help = "How much CPU and memory each VM should get, by what it used. Nothing is \
                    recommended before a VM has a day of records.";
        let mut section = root.section("limits", help);
        let modes = [LimitsMode::Off, LimitsMode::Recommend, LimitsMode::Apply];
        let modes = ["off", "recommend", "apply"].into_iter().zip(modes);
        let help = "`GET /v1/limits` shows limits with `\"recommend\"`; `\"apply\"` sets those of CPU, too, \
                    by `cpu.max`.";
        let mode = section.key("mode", help).or(LimitsMode::Off, choice(modes));
        let help = "The second key: `mode = \"apply\"` also sets `memory.high` and `memory.max`.";
        let apply_memory = section.key("apply_memory", help).or(false, flag());
        let families = [Family::Experts, Family::Quiet, Family::Window, Family::Peak, Family::Vpa];
        let families = families.map(|family| (family.name(), Some(family)));
        let families = || choice([("auto", None)].into_iter().chain(families));
        let help = "The recommender of CPU; `\"auto\"` is what would have served this server's VMs best in \
                    the last week, chosen anew each day.";
        let cpu_family = section.key("cpu_family", help).or(Some(Family::Experts), families());
        let memory_family = section
            .key("memory_family", "The recommender of memory; `\"auto\"` as for CPU.")
            .or(Some(Family::Vpa), families());
        let help =
            "With `\"auto\"`: the share of five-minute windows in which a VM may want more than its limit.";
        let overruns = section.key("overruns", help).or(0.001, number("a share", 0.00001..=0.2));
        let help = "So much more than the recommender says, beside the recommender's own margin.";
        let percent = section.key("margin_percent", help).or(0.0, number("a percentage", 0.0..=200.0));
        let cores = || number("a number of cores", 0.01..=4096.0);
        let min_cores = section.key("min_cores", "No VM gets less CPU.").or(0.1, cores());
        let max_cores =
            section.key("max_cores", "No VM gets more CPU; a VM's own cores unless set.").optional(cores());
        let mib = || whole("a whole number of MiB", 1..=1 << 26);
        let min_memory_mib = section.key("min_memory_mib", "No VM gets less memory.").or(128, mib());
        let help = "No VM gets more memory; the server's memory unless set.";
        let max_memory_mib = section.key("max_memory_mib", help).optional(mib());

        if max_cores.is_some_and(|max| max < min_cores) {
            section.refuse_key("max_cores", format_args!("at least limits.min_cores = {min_cores}"));
        }
        if max_memory_mib.is_some_and(|max| max < min_memory_mib) {
            let allowed = format_args!("at least limits.min_memory_mib = {min_memory_mib}");
            section.refuse_key("max_memory_mib", allowed);
        }
        if apply_memory && mode != LimitsMode::Apply {
            section.refuse_key("apply_memory", "only with limits.mode = \"apply\"");
        }
        section.finish();

        Self {
            mode,
            apply_memory,
            cpu_family,
            memory_family,
            overruns,
            margin: percent / 100.0,
            min_cores,
            max_cores,
            min_memory_mib,
            max_memory_mib,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AgentConfig, ConfigFile as _};

    fn read(more: &str) -> Result<JobLimitsConfig, String> {
        let text = format!("server = \"s01\"\nchassis = \"c1\"\nmeter.offset_w = 60\n[limits]\n{more}");
        let config = AgentConfig::parse("agent.toml", &text);
        config.map(|config| config.job_limits).map_err(|error| error.to_string())
    }

    #[test]
    fn limits_are_off_unless_told_and_memory_needs_a_second_key() {
        let default = read("").unwrap();
        assert_eq!((default.mode, default.apply_memory), (LimitsMode::Off, false));
        let apply = read("mode = \"apply\"\nmax_cores = 8\nmargin_percent = 10\n").unwrap();
        assert_eq!((apply.mode, apply.apply_memory, apply.margin), (LimitsMode::Apply, false, 0.1));
        assert!(read("mode = \"apply\"\napply_memory = true\n").unwrap().apply_memory);
        let auto = read("memory_family = \"auto\"\noverruns = 0.01\n").unwrap();
        assert_eq!((auto.cpu_family, auto.memory_family), (Some(Family::Experts), None));
        assert_eq!((default.overruns, auto.overruns), (0.001, 0.01));

        for (more, says) in [
            ("mode = \"on\"\n", "limits.mode = \"on\": \"off\", \"recommend\" or \"apply\""),
            ("apply_memory = true\n", "only with limits.mode = \"apply\""),
            ("min_cores = 4\nmax_cores = 2\n", "limits.max_cores = 2: at least limits.min_cores = 4"),
            ("max_memory_mib = 64\n", "limits.max_memory_mib = 64: at least limits.min_memory_mib = 128"),
            ("margin_percent = -1\n", "limits.margin_percent = -1: a percentage, 0 to 200"),
            ("cpu_family = \"best\"\n", "limits.cpu_family = \"best\": \"auto\", \"experts\""),
            ("overruns = 0.5\n", "limits.overruns = 0.5: a share, 0.00001 to 0.2"),
            ("min = 1\n", "limits.min: no such key"),
        ] {
            let said = read(more).unwrap_err();
            assert!(said.contains(says), "{more}: {said}");
        }
    }
}
