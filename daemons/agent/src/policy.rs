//! Says in the log that another policy acts than the one that is configured. Status has it at any time; it is
//! no alarm, for the server is safe.

use std::cell::Cell;
use std::time::Duration;

use ballast_types::Instant;
use ballast_types::wire::AgentStatus;

/// A model that has just started, or is doubted for a moment, is not worth a line.
const SAID_AFTER: Duration = Duration::from_secs(10);

/// What the log says of the policy.
pub(super) struct PolicyLog {
    /// Why there is no RAPL, if there is none.
    no_rapl: Option<String>,
    /// Since when another policy acts, and whether that was said.
    other: Cell<Option<(Instant, bool)>>,
}

impl PolicyLog {
    /// For an agent that has RAPL, unless the reason is told why it has none.
    pub(super) fn new(no_rapl: Option<String>) -> Self {
        Self { no_rapl, other: Cell::new(None) }
    }

    /// The line that is due, if one is: one for each time that another policy acts.
    pub(super) fn line(&self, status: &AgentStatus, now: Instant) -> Option<String> {
        let (told, acts) = (&status.policy, &status.policy_effective);
        if told == acts {
            let said = self.other.take().is_some_and(|(_, said)| said);
            return said.then(|| format!("policy = {told:?} acts again"));
        }
        let (since, said) = self.other.get().unwrap_or((now, false));
        let due = !said && now - since >= SAID_AFTER;
        self.other.set(Some((since, said || due)));

        let doubt = status.recovery.as_ref().and_then(|recovery| recovery.doubt.as_deref());
        let why = self.no_rapl.as_deref().or(doubt).unwrap_or("its actuator is another");
        due.then(|| format!("policy = {told:?} is configured, and {acts:?} acts: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use ballast_agent_core::{Agent, Params, RecoveredState};
    use ballast_types::{BootId, ChassisId, ServerId};

    use super::*;

    fn status(acts: &str) -> AgentStatus {
        let (server, boot) = (ServerId::new("s1").unwrap(), BootId::new("b1").unwrap());
        let params = Params::defaults(server, boot, ChassisId::new("c1").unwrap(), vec![]);
        let agent = Agent::new(params, RecoveredState::default(), Instant::ZERO);
        let (policy, policy_effective) = ("predictive".to_owned(), acts.to_owned());
        AgentStatus { policy, policy_effective, ..agent.status(Instant::ZERO) }
    }

    #[test]
    fn one_line_says_that_another_policy_acts_and_one_that_this_is_over() {
        let log = PolicyLog::new(Some("no package zone".to_owned()));
        let lines = |acts: &str, seconds: std::ops::Range<u64>| -> Vec<String> {
            let status = status(acts);
            let at = |s: u64| Instant::from_millis(s * 1000);
            seconds.filter_map(|s| log.line(&status, at(s))).collect()
        };
        assert_eq!(lines("stepwise", 0..9), [""; 0]);
        assert_eq!(lines("predictive", 9..20), [""; 0], "it was never said");
        let said = "policy = \"predictive\" is configured, and \"stepwise\" acts: no package zone";
        assert_eq!(lines("stepwise", 20..99), [said]);
        assert_eq!(lines("predictive", 99..120), ["policy = \"predictive\" acts again"]);
        assert_eq!(lines("stepwise", 120..200), [said]);
    }
}
