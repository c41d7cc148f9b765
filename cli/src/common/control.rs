//! Who keeps the budget, on the command lines of demo, replay and plan.

use anyhow::bail;
use ballast_agent_core::{Actuator, Policy};
use ballast_sim::scenario::Control;
use ballast_types::wire::SharePolicy;
use clap::{Args, ValueEnum};
use serde::Serialize;

/// Who keeps the budget, and by which rules.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ControlArgs {
    /// Rules that belong together; each of the flags below overrides its part
    #[arg(long, value_enum)]
    preset: Option<PresetArg>,
    /// How the agents throttle [default: stepwise]
    #[arg(long, value_enum)]
    policy: Option<PolicyArg>,
    /// How the chassis manager splits the budget over the servers [default: the manager's own default]
    #[arg(long, value_enum)]
    shares: Option<SharesArg>,
    /// What throttling acts on [default: pstate]
    #[arg(long, value_enum)]
    actuator: Option<ActuatorArg>,
}

impl ControlArgs {
    pub(crate) fn policy(&self) -> PolicyArg {
        self.policy.unwrap_or(PolicyArg::Stepwise)
    }

    pub(crate) fn actuator(&self) -> ActuatorArg {
        self.actuator.unwrap_or(ActuatorArg::Pstate)
    }

    pub(crate) fn control(&self) -> anyhow::Result<Control> {
        if (self.policy(), self.actuator()) == (PolicyArg::FullServer, ActuatorArg::CpuMax) {
            bail!("--policy full-server caps cores: it needs --actuator pstate");
        }

        let preset = match self.preset {
            Some(PresetArg::Paper) => Control::PAPER,
            None => Control::new(self.policy().policy()),
        };
        Ok(Control {
            policy: self.policy.map_or(preset.policy, PolicyArg::policy),
            actuator: self.actuator.map_or(preset.actuator, ActuatorArg::actuator),
            shares: self.shares.map(SharesArg::shares).or(preset.shares),
            paper: preset.paper,
        })
    }
}

/// Rules that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PresetArg {
    /// The paper's controller: stepwise, even shares, capping ends by a plain timer
    Paper,
}

/// How the budget is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SharesArg {
    /// Every server the same
    Even,
    /// By what each server can still shed from low-priority cores
    CriticalFirst,
}

impl SharesArg {
    pub(crate) const fn shares(self) -> SharePolicy {
        match self {
            Self::Even => SharePolicy::Even,
            Self::CriticalFirst => SharePolicy::CriticalFirst,
        }
    }
}

/// How the agents throttle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PolicyArg {
    /// Low-priority cores to the floor, then step by step back up
    Stepwise,
    /// Every core equally, as RAPL does: the baseline
    FullServer,
    /// Nothing is throttled, and the plant's hardware caps are off: the load alone
    None,
}

impl PolicyArg {
    pub(crate) const fn policy(self) -> Policy {
        match self {
            Self::Stepwise => Policy::Stepwise,
            Self::FullServer => Policy::FullServer,
            Self::None => Policy::None,
        }
    }

    /// Its name in the daemons' config.
    pub(crate) const fn name(self) -> &'static str {
        self.policy().name()
    }
}

/// What throttling acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ActuatorArg {
    /// The p-states of a VM's cores: every VM has its own
    Pstate,
    /// The CPU bandwidth of a VM, which floats over all cores
    CpuMax,
}

impl ActuatorArg {
    pub(crate) const fn actuator(self) -> Actuator {
        match self {
            Self::Pstate => Actuator::Pstate,
            Self::CpuMax => Actuator::CpuMax,
        }
    }

    /// Its name in the daemons' config.
    pub(crate) const fn name(self) -> &'static str {
        self.actuator().name()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        control: ControlArgs,
    }

    fn control(flags: &str) -> anyhow::Result<Control> {
        let words = std::iter::once("line").chain(flags.split_whitespace());
        CommandLine::try_parse_from(words)?.control.control()
    }

    #[test]
    fn an_explicit_flag_overrides_the_preset_wherever_it_stands() {
        assert_eq!(control("").unwrap(), Control::new(Policy::Stepwise));
        assert_eq!(control("--preset paper").unwrap(), Control::PAPER);
        let first = Some(SharePolicy::CriticalFirst);
        let paper_first = Control { shares: first, ..Control::PAPER };
        assert_eq!(control("--preset paper --shares critical-first").unwrap(), paper_first);
        assert_eq!(control("--shares critical-first --preset paper").unwrap(), paper_first);
        let floating = control("--actuator cpu-max --policy stepwise --preset paper").unwrap();
        assert_eq!((floating.policy, floating.actuator), (Policy::Stepwise, Actuator::CpuMax));
        assert!(floating.paper && !control("--shares even").unwrap().paper);
    }

    #[test]
    fn what_does_not_exist_or_fit_is_refused_with_what_is_allowed() {
        let refused = |flags| control(flags).unwrap_err().to_string();
        for (flags, allowed) in [
            ("--preset book", "[possible values: paper]"),
            ("--shares fair", "[possible values: even, critical-first]"),
            ("--actuator fan", "[possible values: pstate, cpu-max]"),
            ("--policy full-server --actuator cpu-max", "needs --actuator pstate"),
        ] {
            let said = refused(flags);
            assert!(said.contains(allowed), "{flags}: {said}");
        }
    }
}
