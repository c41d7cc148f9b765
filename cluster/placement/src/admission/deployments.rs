//! Deployments by name, and what is expected of all of them: what a daemon or a replay asks.

use std::collections::BTreeMap;

use super::demand::{self, Decision, Demand, DemandError, DemandId, Threshold};
use super::{Moments, Observed, Priors};

/// What is known of a deployment, as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its tenant or template, where that is known.
    pub label: Option<String>,
    /// When it came, in hours.
    pub begun_h: f64,
    /// What it has now.
    pub cores: f64,
    /// What has been seen of it until now.
    pub observed: Observed,
}

/// Deployments by name.
#[derive(Clone, Debug)]
pub struct Deployments {
    priors: Priors,
    demand: Demand,
    by_name: BTreeMap<String, (DemandId, Option<String>)>,
}

impl Deployments {
    /// Without any.
    pub fn new(priors: Priors) -> Self {
        Self { priors, demand: Demand::default(), by_name: BTreeMap::new() }
    }

    /// What is known of all before anything is seen of them.
    pub const fn priors(&self) -> &Priors {
        &self.priors
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Their names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// The cores of all.
    pub fn cores(&self) -> f64 {
        self.demand.cores()
    }

    /// The cores of one; `None` where it is not there.
    pub fn cores_of(&self, name: &str) -> Option<f64> {
        self.demand.cores_of(self.by_name.get(name)?.0)
    }

    /// What is known of one, as of a time at or after the last event.
    pub fn member(&self, now_h: f64, name: &str) -> Option<Member> {
        let (id, label) = self.by_name.get(name)?;
        let (begun_h, observed) = self.demand.observed_until(now_h, *id)?;
        Some(Member { label: label.clone(), begun_h, cores: self.demand.cores_of(*id)?, observed })
    }

    /// One that began earlier is found, with what has been seen of it. One of the same name is replaced.
    ///
    /// # Errors
    /// For an impossible size, or a time before the last event.
    pub fn restore(&mut self, now_h: f64, name: &str, member: Member) -> Result<(), DemandError> {
        let Member { label, begun_h, cores, observed } = member;
        let prior = self.priors.of(label.as_deref()).into();
        let id = self.demand.insert_since(now_h, begun_h, &prior, cores, observed)?;
        match self.by_name.insert(name.to_owned(), (id, label)) {
            Some((before, _)) => self.demand.remove(now_h, before),
            None => Ok(()),
        }
    }

    /// A deployment comes, or one that is there scales out.
    ///
    /// # Errors
    /// As for [`Deployments::restore`].
    pub fn grow(
        &mut self,
        now_h: f64,
        name: &str,
        label: Option<&str>,
        cores: f64,
    ) -> Result<(), DemandError> {
        if let Some((id, _)) = self.by_name.get(name) {
            return self.demand.scale_out(now_h, *id, cores, true);
        }
        let label = label.map(str::to_owned);
        let observed = Observed::first(cores);
        self.restore(now_h, name, Member { label, begun_h: now_h, cores, observed })
    }

    /// A deployment that is there asks for more and does not get it.
    ///
    /// # Errors
    /// As for [`Deployments::shrink`].
    pub fn grow_failed(&mut self, now_h: f64, name: &str, cores: f64) -> Result<(), DemandError> {
        let (id, _) = self.by_name.get(name).ok_or(DemandError::Unknown)?;
        self.demand.scale_out(now_h, *id, cores, false)
    }

    /// Cores of a deployment end; with the last one it is over.
    ///
    /// # Errors
    /// Where it is not there or has fewer cores; else as for [`Deployments::restore`].
    pub fn shrink(&mut self, now_h: f64, name: &str, ended: f64) -> Result<(), DemandError> {
        let (id, _) = self.by_name.get(name).ok_or(DemandError::Unknown)?;
        if !self.demand.end_cores(now_h, *id, ended)? {
            self.by_name.remove(name);
        }
        Ok(())
    }

    /// A deployment has so many cores without a scale-out or an end: it was resized. With none it is over.
    ///
    /// # Errors
    /// As for [`Deployments::shrink`].
    pub fn resize(&mut self, now_h: f64, name: &str, cores: f64) -> Result<(), DemandError> {
        let (id, _) = *self.by_name.get(name).ok_or(DemandError::Unknown)?;
        if cores < 1e-6 {
            self.by_name.remove(name);
            return self.demand.remove(now_h, id);
        }
        self.demand.resize(now_h, id, cores)
    }

    /// Works off what events and time have moved, so that the next decision need not.
    ///
    /// # Errors
    /// For a time before the last event.
    pub fn refresh(&mut self, now_h: f64) -> Result<(), DemandError> {
        self.demand.refresh(now_h)
    }

    /// Whether all of these may come, each of a label and so many cores: the answer about the first that may not, or the
    /// last.
    ///
    /// # Errors
    /// For an impossible size, or a time before the last event.
    pub fn decide(
        &mut self,
        now_h: f64,
        threshold: Threshold,
        newcomers: &[(Option<&str>, f64)],
    ) -> Result<Option<Decision>, DemandError> {
        let marginal = self.priors.tuned.is_some_and(|it| it.marginal);
        newcomers.iter().try_for_each(|(_, cores)| demand::check(*cores))?;
        let (mut answer, mut guests) = (None, vec![]);
        for (n, (label, cores)) in newcomers.iter().enumerate() {
            let prior = self.priors.of(*label).into();
            self.demand.refresh(now_h)?;
            let decision = self.demand.decide(threshold, &prior, *cores, marginal);
            answer = Some(decision);
            if !decision.admit {
                break;
            }
            if n + 1 < newcomers.len() {
                // The next one comes beside this one.
                guests.push(self.demand.insert(now_h, &prior, *cores)?);
            }
        }
        guests.into_iter().try_for_each(|id| self.demand.remove(now_h, id))?;
        Ok(answer)
    }

    /// Mean and variance of the cores of all, so many hours ahead each.
    pub fn forecast(&self, now_h: f64, hours: &[f64]) -> Vec<Moments> {
        self.demand.forecast(now_h, hours)
    }

    /// Other priors: what has been seen of every deployment stays.
    ///
    /// # Errors
    /// For a time before the last event.
    pub fn set_priors(&mut self, now_h: f64, priors: Priors) -> Result<(), DemandError> {
        let mut fresh = Self::new(priors);
        for name in self.by_name.keys() {
            if let Some(member) = self.member(now_h, name) {
                fresh.restore(now_h, name, member)?;
            }
        }
        *self = fresh;
        Ok(())
    }
}
