//! How the caps are obeyed, as the agent tells it.

use ballast_types::wire::{Alarm, AlarmId, CoresStatus};

use super::caps::Cpufreq;
use super::hold::Verdict;
use super::policy::Policy;

impl Cpufreq {
    pub fn status(&self) -> CoresStatus {
        let both = self.domains.iter().zip(&self.clocks);
        let known = both.filter(|(_, clock)| clock.was_online).map(|(domain, _)| domain);

        CoresStatus {
            driver: self.driver.name().to_owned(),
            cores: known.clone().count() as u16,
            offline: known.filter(|domain| domain.cpus.is_empty()).count() as u16,
            raised: self.cores_with(|verdict| matches!(verdict, Verdict::Raised(_))).count() as u16,
            limited: self.cores_with(|verdict| matches!(verdict, Verdict::Limited(_))).count() as u16,
            foreign_writes: self.foreign_writes,
        }
    }

    /// What an operator should look at.
    pub fn alarms(&self) -> Vec<Alarm> {
        let raised = self.cores_with(|verdict| matches!(verdict, Verdict::Raised(_))).collect::<Vec<_>>();
        let first = raised.first().and_then(|policy| Some((policy.file(), policy.hold?)));
        let raised = first.map(|(file, hold)| {
            let then = match hold.given_up() {
                true => "the agent has written its cap three times and gives up",
                false => "the agent writes its cap again",
            };
            let message = format!(
                "another program raises {} cores above their cap: {} does not show {} kHz any more; {then}; \
                 find the program with 'ballast check' and stop it",
                raised.len(),
                file.display(),
                hold.khz.get(),
            );
            Alarm::new(AlarmId::CapOverwritten, message)
        });

        let former = self.former.as_ref().filter(|was| **was != self.driver).map(|was| {
            let is = &self.driver;
            let message = format!(
                "the cpufreq driver was {was} when the agent started and is {is} now: restart the agent, \
                 which then uses the frequencies of {is}"
            );
            Alarm::new(AlarmId::DriverChanged, message)
        });

        raised.into_iter().chain(former).collect()
    }

    /// One policy of every core that has one with such a cap.
    fn cores_with(&self, is: fn(Verdict) -> bool) -> impl Iterator<Item = &Policy> {
        self.clocks.iter().filter_map(move |clock| {
            clock.policies.iter().find(move |policy| policy.hold.is_some_and(|hold| is(hold.verdict)))
        })
    }
}
