//! Racks, rows, UPSs: budgets that respect every level.
//!
//! Chassis budgets are what Ballast enforces. Under the planned ones a node's breaker holds whatever happens if the
//! budgets of all chassis that it feeds add up to no more than what it is provisioned for; where they do not, they are
//! lowered until they do, and what that breaks is said. Chassis do not peak together, so the node's own sums admit less
//! still: what the same five steps say of them is the lowest that a manager of that level could hold.

mod topology;

use std::collections::BTreeMap;

use ballast_types::Watts;
use serde::Serialize;

use crate::chassis::Reductions;
use crate::histogram::{Histogram, HistogramError};
use crate::lowest::is_admissible;
use crate::plan::{Plan, Terms};
use crate::policy::Policy;
use crate::readings::{ChassisIndex, Readings};

pub use topology::{Node, Topology, TopologyError};

/// A node's own sums are judged only if all of its chassis were read in so large a share of the time.
const MIN_COMPLETE: f64 = 0.5;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LevelsError {
    /// The topology and the telemetry speak of different chassis.
    #[error("chassis {0:?} is in the telemetry, and no node of the topology feeds it")]
    NotFed(String),
    /// The same the other way round.
    #[error("node {node:?} feeds chassis {chassis:?}, which has no reading")]
    NoReading { node: String, chassis: String },
    /// No budgets are low enough for this breaker.
    #[error(
        "{level} {node:?} is provisioned for {provisioned}; with all that the policy may shed its chassis \
         still draw up to {lowest}: accept deeper caps, or feed fewer chassis"
    )]
    Overloaded {
        level: String,
        node: String,
        /// What its breaker is provisioned for.
        provisioned: Watts,
        /// The least that its chassis' budgets can add up to.
        lowest: Watts,
    },
    /// Too much to remember.
    #[error(
        "sums over chassis need all readings in memory at once, and these do not fit: plan the levels from \
         less history, or with a longer period"
    )]
    TooMuch,
    #[error(transparent)]
    Histogram(#[from] HistogramError),
}

/// What is known of the chassis of one hardware generation.
#[derive(Clone, Copy, Debug)]
pub struct Generation<'a> {
    pub draws: &'a Histogram,
    pub plan: &'a Plan,
}

#[derive(Clone, Copy)]
struct Generations<'a> {
    readings: &'a Readings,
    all: &'a BTreeMap<String, Generation<'a>>,
}

impl<'a> Generations<'a> {
    fn of(self, chassis: ChassisIndex) -> Generation<'a> {
        self.all[self.readings.generation(chassis)]
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodePlan {
    pub name: String,
    pub level: String,
    /// How many chassis it feeds, all in all.
    pub chassis: usize,
    /// What its breaker is provisioned for.
    #[serde(rename = "provisioned_w")]
    pub provisioned: Watts,
    /// What the budgets of its chassis add up to: never more than `provisioned`.
    #[serde(rename = "budget_w")]
    pub budget: Watts,
    /// What its breaker leaves for more chassis.
    #[serde(rename = "headroom_w")]
    pub headroom: Watts,
    /// In how large a share of the time all of its chassis were read.
    pub complete_share: f64,
    /// What its own sums admit, together with those of all nodes like it; `None` where too few are complete.
    pub alone: Option<Plan>,
}

/// The budget of one chassis under all levels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChassisBudget {
    pub chassis: String,
    #[serde(rename = "budget_w")]
    pub budget: Watts,
    /// The node whose breaker lowers it under what its generation's plan says, if one does.
    pub lowered_by: Option<String>,
    /// Whether the policy would still have been kept.
    pub kept: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Levels {
    /// Each after the node that feeds it.
    pub nodes: Vec<NodePlan>,
    pub chassis: Vec<ChassisBudget>,
}

impl Levels {
    /// Plans every level. `generations` holds every generation that has readings.
    /// This fails where topology and telemetry do not fit together, or a breaker cannot be kept.
    pub fn plan(
        topology: &Topology,
        readings: &Readings,
        policy: &Policy,
        generations: &BTreeMap<String, Generation<'_>>,
        terms: &Terms,
    ) -> Result<Self, LevelsError> {
        let of = fed_chassis(topology, readings)?;
        let generations = Generations { readings, all: generations };
        let budgets = budgets(topology, &of, generations)?;
        let nodes = nodes(topology, &of, &budgets, policy, generations, terms)?;
        let chassis = budgets.into_iter().map(|(name, (budget, lowered_by))| {
            let Generation { draws, plan } = generations.of(of[name]);

            // What stays as planned is kept as planned.
            let kept = lowered_by.is_none() || is_admissible(draws, policy, plan.reductions, budget);
            let lowered_by = lowered_by.map(|at| topology.nodes[at].name.clone());

            ChassisBudget { chassis: name.to_owned(), budget, lowered_by, kept }
        });

        Ok(Self { nodes, chassis: chassis.collect() })
    }
}

/// The chassis that are fed, by name.
fn fed_chassis<'a>(
    topology: &'a Topology,
    readings: &Readings,
) -> Result<BTreeMap<&'a str, ChassisIndex>, LevelsError> {
    if readings.is_waiting() {
        return Err(LevelsError::TooMuch);
    }
    let read = readings.all().filter(|&chassis| readings.draws(chassis).next().is_some());
    let mut read: BTreeMap<_, _> = read.map(|chassis| (readings.name(chassis), chassis)).collect();
    let mut fed = BTreeMap::new();
    for (name, at) in topology.feeds() {
        let node = &topology.nodes[at].name;
        let chassis = read
            .remove(name)
            .ok_or_else(|| LevelsError::NoReading { node: node.clone(), chassis: name.to_owned() })?;
        fed.insert(name, chassis);
    }

    match read.into_keys().next() {
        Some(name) => Err(LevelsError::NotFed(name.to_owned())),
        None => Ok(fed),
    }
}

/// What is planned for a part of the tree, and the least that it can be held to.
#[derive(Clone, Copy, Debug, Default)]
struct Need {
    lowest: Watts,
    planned: Watts,
}

impl Need {
    fn of(Generation { draws, plan }: Generation<'_>) -> Self {
        let shed = plan.reductions.first + plan.reductions.user_facing;
        let least = draws.round_up(draws.max().map_or(plan.budget, |max| max - shed));

        Self { lowest: least.min(plan.budget), planned: plan.budget }
    }

    fn and(self, other: Self) -> Self {
        Self { lowest: self.lowest + other.lowest, planned: self.planned + other.planned }
    }

    /// Its part of `given`, which is less than `all` parts need: what all can be held to, and an even share
    /// of what is left over that. Rounded down to whole steps.
    fn part(self, given: Watts, all: Self, step: Watts) -> Watts {
        let over = |w: Watts, lowest: Watts| i128::from((w - lowest).milli());
        let (left, planned) = (over(given, all.lowest), over(all.planned, all.lowest).max(1));
        let more = over(self.planned, self.lowest) * left / planned;
        let step = step.milli().max(1);
        let more = i64::try_from(more).unwrap_or(0);
        self.lowest + Watts::from_milli(more / step * step)
    }
}

/// A chassis' budget, and the node whose breaker lowers it.
type Budgets<'a> = BTreeMap<&'a str, (Watts, Option<usize>)>;

/// From the leaves up: what each node's chassis need.
fn needs(
    topology: &Topology,
    of: &BTreeMap<&str, ChassisIndex>,
    generations: Generations<'_>,
) -> Result<Vec<Need>, LevelsError> {
    let mut needs = vec![Need::default(); topology.nodes.len()];

    for (at, node) in topology.nodes.iter().enumerate().rev() {
        for chassis in &node.chassis {
            needs[at] = needs[at].and(Need::of(generations.of(of[chassis.as_str()])));
        }
        let all = needs[at];
        if all.lowest > node.provisioned {
            return Err(LevelsError::Overloaded {
                level: node.level.clone(),
                node: node.name.clone(),
                provisioned: node.provisioned,
                lowest: all.lowest,
            });
        }

        if let Some(parent) = topology.parents[at] {
            let planned = all.planned.min(node.provisioned);
            needs[parent] = needs[parent].and(Need { planned, ..all });
        }
    }

    Ok(needs)
}

/// The budgets that every breaker can carry: as planned, or lowered evenly.
fn budgets<'a>(
    topology: &'a Topology,
    of: &BTreeMap<&'a str, ChassisIndex>,
    generations: Generations<'_>,
) -> Result<Budgets<'a>, LevelsError> {
    let needs = needs(topology, of, generations)?;
    // Down: what each may have of what feeds it.
    let mut given: Vec<_> = topology.nodes.iter().map(|node| node.provisioned).collect();
    let mut lowered = vec![None; given.len()];
    let mut budgets = BTreeMap::new();

    for (at, node) in topology.nodes.iter().enumerate() {
        if let Some(parent) = topology.parents[at] {
            let all = needs[parent];
            let own = Need { planned: needs[at].planned.min(node.provisioned), ..needs[at] };
            if all.planned > given[parent] {
                given[at] = own.part(given[parent], all, Watts::from_milli(1));
                lowered[at] = lowered[parent];
            }
        }

        let all = needs[at];
        if all.planned > given[at] && given[at] == node.provisioned {
            lowered[at] = Some(at);
        }
        for chassis in &node.chassis {
            let generation = generations.of(of[chassis.as_str()]);
            let need = Need::of(generation);
            let step = generation.draws.resolution();
            let budget = if all.planned > given[at] {
                (need.part(given[at], all, step), lowered[at])
            } else {
                (need.planned, None)
            };

            budgets.insert(chassis.as_str(), budget);
        }
    }

    Ok(budgets)
}

/// Nodes that are alike: their draws are those of one population.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind<'a> {
    level: &'a str,
    provisioned: Watts,
    chassis: BTreeMap<&'a str, usize>,
}

impl Kind<'_> {
    /// What all chassis of such a node can give back.
    fn shed(&self, generations: Generations<'_>) -> Reductions {
        let mut shed = Reductions::default();
        for (&generation, &n) in &self.chassis {
            let each = generations.all[generation].plan.reductions;
            for _ in 0..n {
                shed.first += each.first;
                shed.user_facing += each.user_facing;
            }
        }
        shed
    }
}

/// The chassis that each node feeds, by itself and through the nodes below it.
fn fed_by_node(topology: &Topology) -> Vec<Vec<&str>> {
    let mut fed: Vec<Vec<&str>> = vec![vec![]; topology.nodes.len()];
    for (at, node) in topology.nodes.iter().enumerate().rev() {
        fed[at].extend(node.chassis.iter().map(String::as_str));
        if let Some(parent) = topology.parents[at] {
            let under = fed[at].clone();
            fed[parent].extend(under);
        }
    }
    fed
}

/// Every node with what its own sums admit.
fn nodes(
    topology: &Topology,
    of: &BTreeMap<&str, ChassisIndex>,
    budgets: &Budgets<'_>,
    policy: &Policy,
    generations: Generations<'_>,
    terms: &Terms,
) -> Result<Vec<NodePlan>, LevelsError> {
    let readings = generations.readings;
    let fed = fed_by_node(topology);
    let mut kinds = BTreeMap::new();
    let mut seen = vec![];

    for (node, fed) in topology.nodes.iter().zip(&fed) {
        let all: Vec<_> = fed.iter().map(|chassis| of[chassis]).collect();
        let mut chassis = BTreeMap::new();
        for &index in &all {
            *chassis.entry(readings.generation(index)).or_insert(0) += 1;
        }
        let kind = Kind { level: &node.level, provisioned: node.provisioned, chassis };
        let (sums, complete, any) = readings.sums(&all)?;
        let share = complete as f64 / any.max(1) as f64;
        let all = kinds.entry(kind.clone()).or_insert(Histogram::new(sums.resolution())?);

        if share >= MIN_COMPLETE {
            all.merge(&sums)?;
        }
        seen.push((kind, share));
    }

    let alone: BTreeMap<_, _> = kinds
        .iter()
        .map(|(kind, sums)| {
            let terms = Terms { provisioned: kind.provisioned, ..*terms };
            (kind, Plan::with(sums, policy, kind.shed(generations), &terms))
        })
        .collect();
    let nodes = topology.nodes.iter().zip(fed).zip(&seen);

    Ok(nodes
        .map(|((node, fed), (kind, complete_share))| {
            let budget: Watts = fed.iter().map(|chassis| budgets[chassis].0).sum();
            NodePlan {
                name: node.name.clone(),
                level: node.level.clone(),
                chassis: fed.len(),
                provisioned: node.provisioned,
                budget,
                headroom: node.provisioned - budget,
                complete_share: *complete_share,
                alone: alone[kind],
            }
        })
        .collect())
}

#[cfg(test)]
mod tests;
