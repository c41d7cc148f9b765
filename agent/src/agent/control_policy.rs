//! The two control policies by which cores move between their floor and free.
//!
//! The supervisor picks one for every step: the model as long as it can be believed, else steps. It owns
//! everything else, the floor and the last resort above all.

use ballast_types::{Epoch, Instant, Seq, Watts};

use super::Agent;
use crate::meter::Sample;

/// What a message orders, as far as it is about the cap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) message: (Epoch, Seq),
    /// It says that there is a capping event.
    pub(super) alarmed: bool,
    /// The chassis draws more than it may, so a rise that no sample shows yet is guessed.
    pub(super) guess: bool,
    /// It lowers the cap.
    pub(super) lowers: bool,
}

/// One policy.
pub(super) trait ControlPolicy {
    /// Whether the meter's samples move the cores; else something prompter does.
    fn by_samples(&self) -> bool;

    /// Whether the server may draw more than its cap by now.
    fn is_over(&self, agent: &Agent, now: Instant, cap: Watts, order: Option<Order>) -> bool;

    /// The cap fell within a capping event, and the draw is above it.
    fn cap_fell(&self, agent: &mut Agent, now: Instant, message: Option<(Epoch, Seq)>, cap: Watts);

    /// A sample while cores are neither all at their floor nor all free.
    fn recover(&self, agent: &mut Agent, now: Instant, cap: Watts, sample: Sample, over_run: u8);

    /// There is room under the cap: the first step up from the floor.
    fn first_step(&self, agent: &mut Agent, now: Instant, cap: Watts, sample: Sample);
}
