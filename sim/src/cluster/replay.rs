//! Plays recorded arrivals against a scheduler.

mod moves;
mod operations;
mod outcome;
mod plan;
mod recorded;
#[cfg(test)]
mod tests;

use ballast_placement::Scheduler;

use super::engine::{Batches, Engine, EngineError, Probe};
use operations::Operations;
use outcome::Score;
pub use outcome::{Drained, Outcome, Phase};
pub use plan::{Action, Below, Drains, Moving, Plan};
pub use recorded::{Copies, Foresight, LifetimeSource, Recorded};

/// Plays the trace; the probe is told of all that happens.
///
/// A host of the plan that is none is named before anything is decided; an action that comes after the last arrival, when all
/// is over.
pub fn replay(
    source: &mut Recorded<'_>,
    scheduler: &mut Scheduler,
    batches: Batches,
    plan: &Plan,
    probe: &mut dyn Probe,
) -> Result<Outcome, EngineError> {
    let first_ms = source.first_ms();
    let mut operations = Operations::new(plan, first_ms, scheduler.cluster())?;
    let mut score = Score::new(first_ms);

    let probes: &mut [&mut dyn Probe] = &mut [&mut score, probe];
    let noise = source.noise();
    let engine = Engine::new(scheduler, &mut operations, probes, batches);
    let last_ms = engine.with_noise(noise).play(source)?;

    let drained = operations.finish(last_ms.unwrap_or(first_ms))?;
    Ok(score.finish(scheduler.cluster(), drained))
}
