//! The paper's tables on the substitute population.

use ballast_placement::fits::estimate::{
    EstimateError, Gaussian, Heuristic, Machine, Promise, pack, rebalance,
};
use ballast_sim::packing::population::{HEAVY_SPIKE_VARIATION, Population, SPIKE_VARIATION, averages};
use ballast_sim::packing::{Estimator, Family, Learnt, overflow};
use clap::Args;
use serde::Serialize;

use crate::options::Seeds;

/// The targets of the main table.
pub const TARGETS: [f64; 5] = [0.1, 0.05, 0.01, 0.001, 0.0005];
/// Of the samples so many are seen, and the others judge.
pub const LEVELS: [f64; 6] = [0.001, 0.01, 0.1, 0.3, 0.5, 0.8];
/// Capacities in machines of the paper's.
pub const CAPACITIES: [f64; 5] = [0.5, 0.8, 1.0, 2.0, 5.0];
/// At most so many of all tasks are moved by greedy rebalancing.
const MOVED_MAX: f64 = 0.05;

/// What is drawn and packed.
#[derive(Args, Clone, Debug, PartialEq, Serialize)]
#[command(mut_arg("seeds", |arg| {
    arg.long("instances").default_value("12").help("Instances of the population")
}))]
pub struct Options {
    /// Tasks of an instance
    #[arg(long, value_name = "N", default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(10..=100_000))]
    pub tasks: u32,
    /// Samples of a task
    #[arg(long, value_name = "N", default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1000..=100_000))]
    pub samples: u32,
    /// One instance for each.
    #[command(flatten)]
    pub seeds: Seeds,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "vary", content = "value")]
pub enum Vary {
    /// Nothing: all samples are seen, first fit, capacity 1.
    Nothing,
    /// Best fit instead of first fit.
    BestFit,
    /// Only this share of the samples is seen.
    Observed(f64),
    /// What is seen are five-minute averages.
    Averages,
    Capacity(f64),
    /// Spikes have a heavy tail.
    HeavySpikes,
    RoundRobin,
    Greedy,
}

/// One estimator in one case, the mean over the instances.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaseRow {
    #[serde(flatten)]
    pub vary: Vary,
    #[serde(flatten)]
    pub estimator: Estimator,
    pub machines: f64,
    /// Machines for each that the tasks' mean use fills.
    pub normalised: f64,
    pub realised: f64,
    /// The share of tasks that rebalancing moved.
    pub moved: f64,
    /// Machines of each instance.
    #[serde(skip)]
    each: Vec<u64>,
}

impl CaseRow {
    /// The largest difference in machines between the instances of two rows.
    pub fn largest_difference(&self, other: &Self) -> u64 {
        self.each.iter().zip(&other.each).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or_default()
    }
}

/// What the tasks are like, the mean over the instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shape {
    pub mean: f64,
    pub deviation: f64,
    /// The root of the mean variance.
    pub rms_deviation: f64,
    /// Deviation against mean: intercept and slope.
    pub intercept: f64,
    pub slope: f64,
}

/// One instance's share of a [`CaseRow`].
struct Cell {
    vary: Vary,
    estimator: Estimator,
    machines: u64,
    lower_bound: f64,
    realised: f64,
    moved: f64,
}

pub struct Instance {
    shape: Shape,
    cells: Vec<Cell>,
}

#[derive(Clone, Debug)]
pub struct Job {
    population: Population,
}

pub fn jobs(options: &Options) -> Vec<Job> {
    let (tasks, samples) = (options.tasks as usize, options.samples as usize);
    let job =
        |seed| Job { population: Population { tasks, samples, spike_variation: SPIKE_VARIATION, seed } };
    options.seeds.all().into_iter().map(job).collect()
}

/// Estimators with each of these parameters.
fn of(family: Family, parameters: &[f64]) -> impl Iterator<Item = Estimator> {
    parameters.iter().map(move |parameter| Estimator { family, parameter: *parameter })
}

fn rules_of_thumb() -> impl Iterator<Item = Estimator> {
    of(Family::Average, &[1.0, 1.25, 2.0])
        .chain(of(Family::Percentile, &[50.0, 70.0, 90.0, 95.0, 99.0, 100.0]))
        .chain(of(Family::Cantelli, &[1.0, 1.7, 4.4]))
}

impl Job {
    pub fn run(&self) -> Result<Instance, EstimateError> {
        let used = self.population.draw();
        let mut cells = Vec::new();

        // All samples are seen.
        let learnt = Learnt::new(used.clone(), 1.0, 0.0, 300.0)?;
        let shape = Shape::of(&learnt);
        let risks = [Family::Gaussian, Family::Skewed, Family::Convolution, Family::GaussianSorted];
        let risks = risks.into_iter().flat_map(|family| of(family, &TARGETS));
        for estimator in risks.chain(rules_of_thumb()) {
            cells.push(cell(Vary::Nothing, &learnt, &used, estimator, Heuristic::FirstFit, 1.0)?);
        }
        for estimator in of(Family::Gaussian, &TARGETS) {
            cells.push(cell(Vary::BestFit, &learnt, &used, estimator, Heuristic::BestFit, 1.0)?);
        }
        for target in [0.05, 0.01, 0.001] {
            cells.extend(rebalanced(&learnt, &used, target)?);
        }

        for level in LEVELS {
            let seen = (libm::round(level * self.population.samples as f64) as usize).max(1);
            let part = |from: usize, to: usize| used.iter().map(|task| task[from..to].to_vec()).collect();
            let (before, after): (Vec<_>, Vec<Vec<f32>>) =
                (part(0, seen), part(seen, self.population.samples));
            let learnt = Learnt::new(before, 1.0, 0.0, 300.0)?;
            for estimator in few() {
                cells.push(cell(
                    Vary::Observed(level),
                    &learnt,
                    &after,
                    estimator,
                    Heuristic::FirstFit,
                    1.0,
                )?);
            }
        }

        for capacity in CAPACITIES {
            let learnt = Learnt::new(used.clone(), capacity, 0.0, 300.0)?;
            let vary = Vary::Capacity(capacity);
            for estimator in few() {
                cells.push(cell(vary, &learnt, &used, estimator, Heuristic::FirstFit, capacity)?);
            }
        }

        let learnt = Learnt::new(averages(&used, self.population.seed), 1.0, 0.0, 300.0)?;
        for estimator in of(Family::Gaussian, &TARGETS).chain(rules_of_thumb()) {
            cells.push(cell(Vary::Averages, &learnt, &used, estimator, Heuristic::FirstFit, 1.0)?);
        }

        let heavy = Population { spike_variation: HEAVY_SPIKE_VARIATION, ..self.population }.draw();
        let learnt = Learnt::new(heavy.clone(), 1.0, 0.0, 300.0)?;
        for family in [Family::Gaussian, Family::Skewed, Family::Convolution] {
            for estimator in of(family, &[0.01, 0.001]) {
                cells.push(cell(Vary::HeavySpikes, &learnt, &heavy, estimator, Heuristic::FirstFit, 1.0)?);
            }
        }

        Ok(Instance { shape, cells })
    }
}

/// The four that the paper's further figures show.
fn few() -> impl Iterator<Item = Estimator> {
    of(Family::Gaussian, &[0.1, 0.01, 0.001]).chain(of(Family::Average, &[1.25, 2.0]))
}

fn cell(
    vary: Vary,
    learnt: &Learnt,
    used: &[Vec<f32>],
    estimator: Estimator,
    heuristic: Heuristic,
    capacity: f64,
) -> Result<Cell, EstimateError> {
    let machines = learnt.pack_by(estimator, heuristic)?;
    Ok(judged(vary, learnt, used, estimator, &machines, capacity, 0.0))
}

fn judged(
    vary: Vary,
    learnt: &Learnt,
    used: &[Vec<f32>],
    estimator: Estimator,
    machines: &[Vec<usize>],
    capacity: f64,
    moved: f64,
) -> Cell {
    let mean: f64 = learnt.moments().iter().map(|task| task.mean()).sum();
    let instants = used.first().map_or(0, Vec::len);
    let all = (machines.len() * instants).max(1) as f64;
    Cell {
        vary,
        estimator,
        machines: machines.len() as u64,
        lower_bound: libm::ceil(mean / capacity).max(1.0),
        realised: overflow(machines, used, capacity) as f64 / all,
        moved,
    }
}

/// First fit, then both ways to fill the last machine.
fn rebalanced(learnt: &Learnt, used: &[Vec<f32>], target: f64) -> Result<[Cell; 2], EstimateError> {
    let (tasks, promise) = (learnt.moments(), Promise::new(1.0, target)?);
    let estimator = Estimator { family: Family::Gaussian, parameter: target };
    let packed = pack::<Gaussian>(tasks, 0..tasks.len(), &promise, Heuristic::FirstFit);
    let limit = (MOVED_MAX * tasks.len() as f64) as usize;

    let cell = |vary, machines: &[Machine<Gaussian>], moved: usize| {
        let machines: Vec<Vec<usize>> = machines.iter().map(|machine| machine.vms().to_vec()).collect();
        judged(vary, learnt, used, estimator, &machines, 1.0, moved as f64 / tasks.len() as f64)
    };
    let mut robin = packed.clone();
    let moved = rebalance::round_robin(&mut robin, tasks, &promise);
    let robin = cell(Vary::RoundRobin, &robin, moved);
    let mut greedy = packed;
    let moved = rebalance::greedy(&mut greedy, tasks, |task| tasks[task].mean(), &promise, limit);
    Ok([robin, cell(Vary::Greedy, &greedy, moved)])
}

impl Shape {
    fn of(learnt: &Learnt) -> Self {
        let count = learnt.moments().len().max(1) as f64;
        let sum = |f: &dyn Fn(f64, f64) -> f64| {
            learnt.moments().iter().map(|task| f(task.mean(), task.deviation())).sum::<f64>() / count
        };
        let (mean, deviation) = (sum(&|mean, _| mean), sum(&|_, deviation| deviation));
        let slope = sum(&|m, d| (m - mean) * (d - deviation)) / sum(&|m, _| (m - mean) * (m - mean));
        Self {
            mean,
            deviation,
            rms_deviation: libm::sqrt(sum(&|_, deviation| deviation * deviation)),
            intercept: deviation - slope * mean,
            slope,
        }
    }
}

/// The mean of the instances, which all have the same cases.
pub fn rows(instances: &[Instance]) -> (Shape, Vec<CaseRow>) {
    let count = instances.len().max(1) as f64;
    let mean = |f: &dyn Fn(&Instance) -> f64| instances.iter().map(f).sum::<f64>() / count;
    let shape = Shape {
        mean: mean(&|i| i.shape.mean),
        deviation: mean(&|i| i.shape.deviation),
        rms_deviation: mean(&|i| i.shape.rms_deviation),
        intercept: mean(&|i| i.shape.intercept),
        slope: mean(&|i| i.shape.slope),
    };

    let cases = instances.first().map_or(0, |instance| instance.cells.len());
    let row = |n: usize| {
        let mean = |f: &dyn Fn(&Cell) -> f64| mean(&|instance: &Instance| f(&instance.cells[n]));
        CaseRow {
            vary: instances[0].cells[n].vary,
            estimator: instances[0].cells[n].estimator,
            machines: mean(&|cell| cell.machines as f64),
            normalised: mean(&|cell| cell.machines as f64 / cell.lower_bound),
            realised: mean(&|cell| cell.realised),
            moved: mean(&|cell| cell.moved),
            each: instances.iter().map(|instance| instance.cells[n].machines).collect(),
        }
    };
    (shape, (0..cases).map(row).collect())
}
