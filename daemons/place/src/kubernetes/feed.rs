//! Nodes and pods, from what is told of them to the state.

use std::time::Duration;

use ballast_types::Instant;
use ballast_types::wire::FollowStatus;

use super::labels::Labels;
use super::mirror::{Effect, Mirror, ObservedNode, ObservedPod, Reading};
use super::{Kube, State};
use ballast_runtime::kubernetes::follow::{Failure, Sink};
use ballast_runtime::kubernetes::object::{Node, Object, Pod};
use ballast_runtime::{clock, lock};

/// How objects of one kind are followed.
#[derive(Default)]
pub(crate) struct Feed {
    /// When they were last heard of.
    pub(super) heard: Option<Instant>,
    pub(super) status: FollowStatus,
    /// The last object that could not be read.
    pub(super) refused: Option<String>,
}

impl Feed {
    fn count(&mut self, effect: Effect) {
        self.status.received += 1;
        match effect {
            Effect::Taken => {}
            Effect::Repeated => self.status.repeated += 1,
            Effect::Late => self.status.late += 1,
            Effect::Refused(why) => self.refuse(why),
        }
    }

    fn refuse(&mut self, why: String) {
        self.status.refused += 1;
        self.refused = Some(why);
    }

    pub(super) fn age(&self, now: Instant) -> Option<Duration> {
        self.heard.map(|heard| now - heard.min(now))
    }

    pub(super) fn is_stale(&self, now: Instant, after: Duration) -> bool {
        self.age(now).is_none_or(|age| age > after)
    }

    pub(super) fn status(&self, now: Instant) -> FollowStatus {
        let age_ms = self.age(now).map(|age| age.as_millis() as u64);
        FollowStatus { age_ms, ..self.status.clone() }
    }
}

pub(crate) trait Followed: Object {
    type Observed;
    fn feed(state: &mut State) -> &mut Feed;
    fn read(&self, reading: &Reading<'_>) -> Self::Observed;
    fn list(mirror: &mut Mirror, all: Vec<Self::Observed>) -> Vec<Effect>;
    fn is(mirror: &mut Mirror, one: Self::Observed) -> Effect;
    fn gone(mirror: &mut Mirror, one: &Self::Observed) -> Effect;
    /// Before the mirror is told.
    fn look_at(_kube: &Kube, _one: &Self::Observed) {}
    /// Before all of them are told.
    fn listed(_kube: &Kube) {}
    /// After it was told gone.
    fn forget(_kube: &Kube, _one: &Self::Observed) {}
}

impl Followed for Node {
    type Observed = ObservedNode;
    fn feed(state: &mut State) -> &mut Feed {
        &mut state.nodes
    }
    fn read(&self, reading: &Reading<'_>) -> ObservedNode {
        reading.node(self)
    }
    fn list(mirror: &mut Mirror, all: Vec<ObservedNode>) -> Vec<Effect> {
        mirror.list_nodes(all)
    }
    fn is(mirror: &mut Mirror, one: ObservedNode) -> Effect {
        mirror.node_is(one)
    }
    fn gone(mirror: &mut Mirror, one: &ObservedNode) -> Effect {
        mirror.node_gone(one)
    }
}

impl Followed for Pod {
    type Observed = ObservedPod;
    fn feed(state: &mut State) -> &mut Feed {
        &mut state.pods
    }
    fn read(&self, reading: &Reading<'_>) -> ObservedPod {
        reading.pod(self)
    }
    fn list(mirror: &mut Mirror, all: Vec<ObservedPod>) -> Vec<Effect> {
        mirror.list_pods(all)
    }
    fn is(mirror: &mut Mirror, one: ObservedPod) -> Effect {
        mirror.pod_is(one)
    }
    fn gone(mirror: &mut Mirror, one: &ObservedPod) -> Effect {
        mirror.pod_gone(one)
    }
    fn look_at(kube: &Kube, one: &ObservedPod) {
        kube.look_at(one);
    }
    fn listed(kube: &Kube) {
        kube.labels.iter().for_each(Labels::listed);
    }
    fn forget(kube: &Kube, one: &ObservedPod) {
        if let Some(shadow) = &kube.shadow {
            lock(shadow).forget(&one.ident.uid);
        }
        kube.labels.iter().for_each(|labels| labels.forget(&one.ident.uid));
    }
}

impl<T: Followed> Sink<T> for Kube {
    type Observed = T::Observed;

    fn read(&self, object: &T) -> T::Observed {
        object.read(&self.reading())
    }

    fn listed(&self, all: Vec<T::Observed>) {
        T::listed(self);
        all.iter().for_each(|one| T::look_at(self, one));
        let mut state = lock(&self.state);
        let effects = T::list(&mut state.mirror, all);
        let feed = T::feed(&mut state);
        feed.status.lists += 1;
        feed.refused = None;
        for effect in effects {
            if let Effect::Refused(why) = effect {
                feed.refuse(why);
            }
        }
        self.apply(state);
        Sink::<T>::alive(self);
    }

    fn is(&self, one: T::Observed) {
        T::look_at(self, &one);
        let mut state = lock(&self.state);
        let effect = T::is(&mut state.mirror, one);
        T::feed(&mut state).count(effect);
        self.apply(state);
    }

    fn gone(&self, one: T::Observed) {
        let mut state = lock(&self.state);
        let effect = T::gone(&mut state.mirror, &one);
        T::feed(&mut state).count(effect);
        self.apply(state);
        T::forget(self, &one);
    }

    fn alive(&self) {
        let mut state = lock(&self.state);
        let feed = T::feed(&mut state);
        feed.heard = Some(clock::now());
        feed.status.problem = None;
    }

    fn watches(&self) {
        T::feed(&mut lock(&self.state)).status.watches += 1;
    }

    fn failed(&self, failure: &Failure, again: Duration) {
        tracing::warn!(again_s = again.as_secs_f64(), "following {}: {failure}", T::PLURAL);
        T::feed(&mut lock(&self.state)).status.problem = Some(failure.to_string());
    }
}
