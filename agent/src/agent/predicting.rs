//! Our policy: every window of RAPL moves the cores to what fits by the model.

use ballast_types::wire::{Alarm, AlarmId, RecoveryStatus};
use ballast_types::{Epoch, Instant, Seq, Watts};

use super::Agent;
use super::control_policy::{ControlPolicy, Order};
use crate::meter::Sample;
use crate::predictive::Room;
use crate::state::State;
use crate::{Fast, Policy};

/// The policy with a model of the draw. Samples move nothing, and a cap that fell is met by the next window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Predicting;

impl ControlPolicy for Predicting {
    fn by_samples(&self) -> bool {
        false
    }

    fn is_over(&self, agent: &Agent, _: Instant, cap: Watts, _: Option<Order>) -> bool {
        agent.predictive.is_over(cap, agent.orders.margin())
    }

    fn cap_fell(&self, _: &mut Agent, _: Instant, _: Option<(Epoch, Seq)>, _: Watts) {}

    fn recover(&self, _: &mut Agent, _: Instant, _: Watts, _: Sample, _: u8) {}

    fn first_step(&self, _: &mut Agent, _: Instant, _: Watts, _: Sample) {}
}

impl Agent {
    /// Whether the model chooses the p-states now.
    pub(super) fn predicts(&self, now: Instant) -> bool {
        self.params.policy == Policy::Predictive && self.doubt(now).is_none()
    }

    /// Why the model does not act, if it does not.
    ///
    /// It keeps the draw just under the cap, so it asks for a cap that the chassis stands by: when the
    /// lease has ended, what the fallback leaves for others is an old guess, and slow steps are safer.
    fn doubt(&self, now: Instant) -> Option<&'static str> {
        let leased = self.orders.lease_end().is_some() || self.cap.is_none();
        self.predictive.doubt(now).or((!leased).then_some("no live lease from the chassis"))
    }

    /// A meter reading, for the model.
    pub(super) fn predictive_meter(&mut self, now: Instant, sample: Sample) {
        if self.params.policy != Policy::Predictive {
            return;
        }
        let floored = self.throttle.all_floored();
        let cap = self.acting_cap().filter(|_| !floored);
        let margin = self.orders.margin().is_some();
        self.predictive.meter(now, sample, cap, margin);
    }

    /// A window of RAPL and CPU use.
    pub(super) fn fast(&mut self, now: Instant, fast: &Fast) {
        if self.params.policy != Policy::Predictive {
            return;
        }
        let Some(span) = self.predictive.span(now, fast) else { return };

        // A core whose use is not known could be anything.
        if !self.fleet.take_fast(&fast.usage) {
            return;
        }
        if self.changed_at.is_some_and(|at| span.is_mixed(at)) {
            return self.predictive.mixed(span);
        }

        let low = self.estimate.dynamic().drawn_low(&self.view(now));
        let all = self.estimate.dynamic().drawn_all(&self.view(now));
        if self.predictive.window(span, low, all)
            && let Some(cap) = self.acting_cap()
            && self.orders.height_ppm().is_none()
            && self.predicts(now)
        {
            self.aim_at(now, cap, low);
        }
    }

    /// Moves the cores to where the draw should be, if it is not there.
    fn aim_at(&mut self, now: Instant, cap: Watts, low: f64) {
        let margin = self.orders.margin();
        let room = self.predictive.room(cap, margin);
        if self.fit(now, room, low) {
            return;
        }
        let Some(margin) = margin else { return };
        // Within the band, the mean is moved slowly to where it should be: from what the cores may draw now.
        let view = self.view(now);
        let watts = |core| self.estimate.dynamic().core_w(&view, core, self.throttle.level(core));
        let low: f64 = self.throttle.throttled().map(watts).sum();
        if let Some(room) = self.predictive.centre(cap, margin, low) {
            self.fit(now, room, low);
        }
    }

    /// The p-states that just fit, if the draw has left the band; whether anything was moved.
    fn fit(&mut self, now: Instant, room: Room, low: f64) -> bool {
        let down = low > room.watts + room.above;
        let up =
            low < room.watts - room.below && self.throttle.any_restricted() && !self.orders.emergency(now);
        let free = matches!(self.state, State::Uncapped | State::Throttled { .. } | State::Recovering { .. });

        if !free || !(down || up) {
            return false;
        }

        let (view, dynamic) = (self.view(now), self.estimate.dynamic());
        let height = self.throttle.highest_fit(room.watts, |core, level| dynamic.core_w(&view, core, level));
        let height = height.max(self.lowest_height());

        // Downward the watts count, not the height: steps may have left the cores uneven.
        if up && height <= self.throttle.height() {
            return false;
        }

        self.throttle.step_up_to(height);
        self.write(now, None);
        self.episode.drop_is_used();
        self.enter_by_height(now, self.throttle.all_floored(), None, "the p-states that fit by the model");
        true
    }

    /// The policy in force: without a model that is trusted, `predictive` is `stepwise`.
    pub(super) fn policy_effective(&self, now: Instant) -> Policy {
        match self.params.policy {
            Policy::Predictive if self.doubt(now).is_some() => Policy::Stepwise,
            Policy::FullServer if self.params.floating() => Policy::Stepwise,
            policy => policy,
        }
    }

    /// A model that is doubted only after it has acted: before that the policy simply is `stepwise`.
    pub(super) fn doubt_alarm(&self, now: Instant) -> Option<Alarm> {
        let doubt = self.predictive.doubt(now).filter(|_| self.predictive.was_trusted())?;
        Some(Alarm::new(AlarmId::PredictiveOff, format!("predictive is stepwise for now: {doubt}")))
    }

    /// The model as operators see it; `None` under another policy.
    pub(super) fn recovery_status(&self, now: Instant) -> Option<RecoveryStatus> {
        if self.params.policy != Policy::Predictive {
            return None;
        }
        let (model, margin) = (&self.predictive, self.orders.margin());
        let watts = |w: f64| Watts::from_f64(w).unwrap_or(Watts::ZERO);
        Some(RecoveryStatus {
            in_force: self.policy_effective(now).name().to_owned(),
            doubt: self.doubt(now).map(str::to_owned),
            error_w: watts(model.error_w()),
            margin_w: watts(self.cap.map_or(0.0, |cap| model.margin_w(cap, margin))),
            scale: model.scale(),
        })
    }
}
