//! What is run: one job for each pool of each population, and for each pool of each recording.

use std::sync::Arc;

use ballast_placement::{MemoryKb, MilliCores, Resources};
use ballast_predict::lifetime::data::TooFewLifetimes;
use ballast_predict::lifetime::{LifetimeModel, VmEnd, VmLifetime};
use ballast_sim::cluster::{Noise, NoisyCurves, PowerDownOptions};
use ballast_types::SplitMix64;
use ballast_types::survival::Curves;
use serde::Serialize;

use super::population::{Kinds, Population, Synthetic};
use super::recorded::{RecordedPool, Recording};
use super::training::{ModelQuality, Stretch, learn};
use super::trial::{Contestant, Score, Setting, TrialError};
use super::workload::{DAY_MS, Foresight, LONGEST_MS, PoolVm, Workload};
use super::{IN_SAMPLE, LEARNT, ORACLE, SHUFFLED, noisy};
use crate::OptionError;

/// Best fit places for so long before the policy does.
const WARM_UP_MS: u64 = 2 * DAY_MS;
/// Streams of a pool: what is scored, and what models learn from.
const SCORED: u64 = 1;
const TRAINING: u64 = 2;
/// Load of the pool that models learn from; lifetimes do not depend on it.
const TRAINING_LOAD: f64 = 0.7;
/// Models learn from this part of a recording where the rest is held out.
const LEARNT_FROM: f64 = 0.6;
/// Memory of a host, in GB: of two kinds.
const MEMORY_GB: u16 = 256;
const TIGHT_GB: u16 = 192;

/// What is run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Options {
    /// Pools of each population.
    pub pools: u64,
    pub seed: u64,
    /// Hosts of a synthetic pool; a recorded one has as many as make its load.
    pub hosts: u32,
    pub host_cores: u16,
    /// From when who is there at the start is there, the two days of best fit with them.
    pub days: u64,
    pub sets: Sets,
    pub accuracies: Vec<f64>,
    pub inflate_every_h: u64,
    pub inflations: u64,
    pub power: PowerDownOptions,
}

/// Which pools are run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sets {
    /// Loads of `syn`, with the host's memory in GB.
    pub syn: Vec<(f64, u16)>,
    pub synp: Vec<(f64, u16)>,
    /// At the first load of `syn` that is 70 %: the policy from the first VM on, noise, a useless model.
    pub cold: bool,
    pub noise: bool,
    pub shuffled: bool,
    pub recorded: Vec<f64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pools: 12,
            seed: 1,
            hosts: 200,
            host_cores: 64,
            days: 28,
            sets: Sets {
                syn: vec![(0.6, MEMORY_GB), (0.7, MEMORY_GB), (0.8, MEMORY_GB), (0.7, TIGHT_GB)],
                synp: vec![(0.7, MEMORY_GB)],
                cold: true,
                noise: true,
                shuffled: true,
                recorded: vec![0.7, 0.8],
            },
            accuracies: vec![0.6, 0.7, 0.8, 0.9, 0.95, 1.0],
            inflate_every_h: 12,
            inflations: 3,
            power: PowerDownOptions { reserve_hosts: 4, idle_w: 112.0, off_w: 8.0, wake_ms: 180_000 },
        }
    }
}

impl Options {
    /// As short as shows that all works.
    pub fn quick() -> Self {
        let usual = Self::default();
        Self {
            pools: 3,
            hosts: 60,
            days: 9,
            sets: Sets {
                syn: vec![(0.7, MEMORY_GB)],
                cold: false,
                recorded: vec![0.7],
                ..usual.sets.clone()
            },
            accuracies: vec![0.6, 0.8, 0.95],
            inflate_every_h: 24,
            inflations: 1,
            ..usual
        }
    }

    fn check(&self) -> Result<(), OptionError> {
        let bad = |key, value: String, allowed: &str| Err(OptionError::new(key, value, allowed));
        if !(1..=1000).contains(&self.pools) {
            return bad("pools", self.pools.to_string(), "1 to 1000");
        }
        if !(3..=365).contains(&self.days) {
            return bad("days", self.days.to_string(), "3 to 365: two of them are best fit's");
        }
        if !(10..=100_000).contains(&self.hosts) {
            return bad("hosts", self.hosts.to_string(), "10 to 100000");
        }
        Ok(())
    }
}

/// Recorded arrivals, with what has learnt from them.
pub struct Input {
    recording: Recording,
    /// What is scored on all of them: its name, and where it comes from.
    prediction: &'static str,
    whole: Arc<LifetimeModel>,
    /// What has learnt from the earlier part, and is scored on what comes later.
    earlier: Arc<LifetimeModel>,
    models: Vec<ModelQuality>,
}

impl Input {
    /// Learns. A `model` of other arrivals is scored on all of these; without one, one that has learnt from these very arrivals
    /// is, and that is said.
    pub fn new(
        recording: Recording,
        table: Vec<VmLifetime>,
        model: Option<Arc<LifetimeModel>>,
    ) -> Result<Self, LifetimesError> {
        let name = recording.name.clone();
        let failed = |error| LifetimesError::Learn { pool: name.clone(), number: 0, error };
        let earlier = known_by(&table, recording.calendar_s(cut_ms(&recording)));
        let (earlier, quality) = learn(&name, 0, LEARNT, earlier).map_err(failed)?;
        let mut models = vec![quality];
        let (prediction, whole) = match model {
            Some(model) => (LEARNT, model),
            None => {
                let (model, quality) = learn(&name, 0, IN_SAMPLE, table).map_err(failed)?;
                models.push(quality);
                (IN_SAMPLE, Arc::new(model))
            }
        };
        Ok(Self { recording, prediction, whole, earlier: Arc::new(earlier), models })
    }

    pub fn name(&self) -> &str {
        &self.recording.name
    }

    /// How good the models are.
    pub fn models(&self) -> &[ModelQuality] {
        &self.models
    }
}

/// Where what is held out begins, in milliseconds from the first arrival.
fn cut_ms(recording: &Recording) -> u64 {
    (recording.span_ms() as f64 * LEARNT_FROM) as u64
}

/// One pool under one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    pub pool: String,
    pub number: u64,
    pub scenario: String,
    pub prediction: String,
    pub policy: Contestant,
    pub hosts: u32,
    pub score: Score,
}

/// What a job came to.
#[derive(Clone, Debug, Default)]
pub struct Done {
    pub runs: Vec<Run>,
    pub models: Vec<ModelQuality>,
}

/// Why a pool cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum LifetimesError {
    #[error("{pool} {number}: {error}")]
    Trial { pool: String, number: u64, error: TrialError },
    #[error("{pool} {number}: {error}")]
    Learn { pool: String, number: u64, error: TooFewLifetimes },
}

/// One pool.
pub struct Job<'a> {
    options: &'a Options,
    of: Of<'a>,
    number: u64,
}

#[derive(Clone, Copy)]
enum Of<'a> {
    Synthetic(Population),
    Recorded(&'a Input),
}

/// All pools, each with its own seed.
pub fn jobs<'a>(options: &'a Options, inputs: &'a [Input]) -> Result<Vec<Job<'a>>, OptionError> {
    options.check()?;
    let numbers = 0..options.pools;
    let job = |of| move |number| Job { options, of, number };
    let mut jobs: Vec<Job<'_>> = Vec::new();
    if !options.sets.syn.is_empty() {
        jobs.extend(numbers.clone().map(job(Of::Synthetic(Population::Syn))));
    }
    if !options.sets.synp.is_empty() {
        jobs.extend(numbers.clone().map(job(Of::Synthetic(Population::Synp))));
    }
    for input in inputs.iter().filter(|_| !options.sets.recorded.is_empty()) {
        jobs.extend(numbers.clone().map(job(Of::Recorded(input))));
    }
    Ok(jobs)
}

impl Job<'_> {
    pub fn run(&self) -> Result<Done, LifetimesError> {
        match self.of {
            Of::Synthetic(population) => self.synthetic(population),
            Of::Recorded(input) => self.recorded(input),
        }
    }

    fn seed(&self) -> u64 {
        SplitMix64::first(self.options.seed ^ SplitMix64::first(self.number))
    }

    fn host(&self, memory_gb: u16) -> Resources {
        let memory = MemoryKb::from_gb(memory_gb.into()).unwrap_or(MemoryKb::ZERO);
        Resources::new(MilliCores::from_cores(self.options.host_cores), memory)
    }

    fn synthetic(&self, population: Population) -> Result<Done, LifetimesError> {
        let (options, seed) = (self.options, self.seed());
        let kinds = Kinds::new(population, seed);
        let cores = |load| load * f64::from(options.hosts) * f64::from(options.host_cores);
        let length_ms = options.days * DAY_MS;

        let training = Synthetic::new(&kinds, seed, TRAINING, cores(TRAINING_LOAD));
        let stretch = Stretch::of(training, length_ms.max(14 * DAY_MS));
        let (mix, lives) = (stretch.mix(seed), stretch.lives());
        let pool = population.name();
        let mut pool = PoolJob::new(self, pool.to_owned());
        let model = pool.learn(LEARNT, stretch.table(None))?;
        let is_syn = population == Population::Syn;
        let sets = &options.sets;
        let useless = match sets.shuffled && is_syn {
            true => Some(pool.learn(SHUFFLED, stretch.table(Some(seed)))?),
            false => None,
        };
        drop(stretch);

        let loads = if is_syn { &sets.syn } else { &sets.synp };
        let mut is_first = true;
        for (load, memory_gb) in loads {
            let setting = self.setting(&mix, options.hosts, *memory_gb, LONGEST_MS, length_ms);
            let workload = || Synthetic::new(&kinds, seed, SCORED, cores(*load));
            let scenario = scenario(*load, *memory_gb);
            pool.baselines(&setting, &scenario, &workload)?;
            pool.with_oracle(&setting, &scenario, &workload)?;
            pool.with_model(&setting, &scenario, LEARNT, &model, &workload)?;

            if !is_syn || *load != TRAINING_LOAD || !std::mem::take(&mut is_first) {
                continue;
            }
            if sets.cold {
                let cold = Setting { is_cold: true, ..setting.clone() };
                let scenario = format!("{scenario}, cold");
                pool.baselines(&cold, &scenario, &workload)?;
                pool.with_oracle(&cold, &scenario, &workload)?;
                pool.with_model(&cold, &scenario, LEARNT, &model, &workload)?;
            }
            if let Some(useless) = &useless {
                pool.with_model(&setting, &scenario, SHUFFLED, useless, &workload)?;
            }
            for accuracy in options.accuracies.iter().filter(|_| sets.noise) {
                let Some(noise) = Noise::new(*accuracy, seed) else { continue };
                let believed = NoisyCurves::new(noise, &lives);
                pool.with_noise(&setting, &scenario, *accuracy, noise, &believed, &workload)?;
            }
        }
        Ok(pool.done)
    }

    fn recorded(&self, input: &Input) -> Result<Done, LifetimesError> {
        let (seed, recording) = (self.seed(), &input.recording);
        let workload = || RecordedPool::new(recording, seed);
        let mut pool = PoolJob::new(self, recording.name.clone());
        let from_ms = recording.begins_ms();
        let end_ms = from_ms + recording.span_ms();
        let stretch = Stretch::of(workload(), end_ms);
        let mix = stretch.mix(seed);
        drop(stretch);

        let cut_ms = from_ms + cut_ms(recording);
        let stretches = [
            ("", from_ms, input.prediction, &input.whole),
            (", held out in time", cut_ms, LEARNT, &input.earlier),
        ];
        for load in &self.options.sets.recorded {
            for (part, switch_ms, prediction, model) in stretches {
                let cores = mean_cores(workload(), switch_ms, end_ms);
                let hosts = (cores / load / f64::from(self.options.host_cores)).ceil().max(1.0) as u32;
                let first_ms = switch_ms.saturating_sub(WARM_UP_MS);
                let setting = self.setting(&mix, hosts, MEMORY_GB, first_ms, end_ms - first_ms);
                let scenario = format!("{}{part}", scenario(*load, MEMORY_GB));
                pool.baselines(&setting, &scenario, &workload)?;
                pool.with_oracle(&setting, &scenario, &workload)?;
                pool.with_model(&setting, &scenario, prediction, model, &workload)?;
            }
        }
        Ok(pool.done)
    }

    fn setting<'m>(
        &self,
        mix: &'m [Resources],
        hosts: u32,
        memory_gb: u16,
        from_ms: u64,
        length_ms: u64,
    ) -> Setting<'m> {
        let options = self.options;
        Setting {
            hosts,
            host: self.host(memory_gb),
            from_ms,
            switch_ms: from_ms + WARM_UP_MS,
            end_ms: from_ms + length_ms,
            is_cold: false,
            mix,
            inflate_every_ms: options.inflate_every_h.max(1) * 3_600_000,
            inflations: options.inflations,
            power: options.power,
            seed: self.seed(),
        }
    }
}

/// A load in words, with the memory of a host where that is another.
fn scenario(load: f64, memory_gb: u16) -> String {
    let tight = if memory_gb < MEMORY_GB { ", memory-tight" } else { "" };
    format!("{:.0} %{tight}", load * 100.0)
}

/// The VMs that had come by then, and what was known of them.
fn known_by(table: &[VmLifetime], cut_s: i64) -> Vec<VmLifetime> {
    let earlier = table.iter().filter(|vm| vm.start_s < cut_s).cloned();
    let known = earlier.map(|vm| {
        let seen_s = cut_s - vm.start_s;
        let end = match vm.end {
            VmEnd::At(end_s) if end_s <= cut_s => vm.end,
            VmEnd::Between { to_s, .. } if to_s <= seen_s => vm.end,
            VmEnd::Between { from_s, .. } => VmEnd::Running { seen_s: from_s.min(seen_s) },
            VmEnd::Running { .. } | VmEnd::At(_) => VmEnd::Running { seen_s },
        };
        VmLifetime { end, ..vm }
    });
    known.collect()
}

/// How many cores are asked for between two times, on average.
fn mean_cores(mut workload: impl Workload, from_ms: u64, end_ms: u64) -> f64 {
    let (mut batch, mut core_ms) = (Vec::<PoolVm>::new(), 0.0);
    while let Some(at_ms) = workload.next_batch(&mut batch).filter(|at_ms| *at_ms < end_ms) {
        for vm in &batch {
            let there = (at_ms + vm.lifetime_ms).min(end_ms).saturating_sub(at_ms.max(from_ms));
            core_ms += there as f64 * vm.resources.cores.cores();
        }
    }
    core_ms / (end_ms - from_ms) as f64
}

/// A pool, as it is played again and again.
struct PoolJob {
    pool: String,
    number: u64,
    done: Done,
}

/// How a workload is begun again.
type Again<'w, W> = dyn Fn() -> W + 'w;

impl PoolJob {
    fn new(job: &Job<'_>, pool: String) -> Self {
        Self { pool, number: job.number, done: Done::default() }
    }

    fn learn(
        &mut self,
        prediction: &str,
        table: Vec<VmLifetime>,
    ) -> Result<Arc<LifetimeModel>, LifetimesError> {
        let learnt = learn(&self.pool, self.number, prediction, table);
        let (model, quality) = learnt.map_err(|error| LifetimesError::Learn {
            pool: self.pool.clone(),
            number: self.number,
            error,
        })?;
        self.done.models.push(quality);
        Ok(Arc::new(model))
    }

    fn baselines<W: Workload>(
        &mut self,
        setting: &Setting<'_>,
        scenario: &str,
        again: &Again<'_, W>,
    ) -> Result<(), LifetimesError> {
        for policy in [Contestant::BestFit, Contestant::FirstFit] {
            self.play(setting, scenario, "none", policy, (Foresight::Nothing, Arc::default()), again)?;
        }
        Ok(())
    }

    fn with_oracle<W: Workload>(
        &mut self,
        setting: &Setting<'_>,
        scenario: &str,
        again: &Again<'_, W>,
    ) -> Result<(), LifetimesError> {
        for policy in Contestant::FORESEEING {
            self.play(setting, scenario, ORACLE, policy, (Foresight::Oracle, Arc::default()), again)?;
        }
        Ok(())
    }

    fn with_model<W: Workload>(
        &mut self,
        setting: &Setting<'_>,
        scenario: &str,
        prediction: &str,
        model: &LifetimeModel,
        again: &Again<'_, W>,
    ) -> Result<(), LifetimesError> {
        let curves = Arc::new(model.curves().clone());
        for policy in Contestant::FORESEEING {
            let foresight = (Foresight::Model(model), Arc::clone(&curves));
            self.play(setting, scenario, prediction, policy, foresight, again)?;
        }
        Ok(())
    }

    /// Who weighs chances is told what the word of the predictor is worth; the others take it as it is.
    fn with_noise<W: Workload>(
        &mut self,
        setting: &Setting<'_>,
        scenario: &str,
        accuracy: f64,
        noise: Noise,
        believed: &NoisyCurves,
        again: &Again<'_, W>,
    ) -> Result<(), LifetimesError> {
        let curves = Arc::new(believed.curves().clone());
        for policy in [Contestant::Nilas, Contestant::Lava, Contestant::LavaFlat, Contestant::ExpectedExit] {
            let foresight = match policy {
                Contestant::ExpectedExit => (Foresight::Believed(believed), Arc::clone(&curves)),
                _ => (Foresight::Noisy(noise), Arc::default()),
            };
            self.play(setting, scenario, &noisy(accuracy), policy, foresight, again)?;
        }
        Ok(())
    }

    fn play<W: Workload>(
        &mut self,
        setting: &Setting<'_>,
        scenario: &str,
        prediction: &str,
        policy: Contestant,
        (foresight, curves): (Foresight<'_>, Arc<Curves>),
        again: &Again<'_, W>,
    ) -> Result<(), LifetimesError> {
        let score = setting.play(&self.pool, again(), policy, foresight, curves);
        let score = score.map_err(|error| LifetimesError::Trial {
            pool: self.pool.clone(),
            number: self.number,
            error,
        })?;
        self.done.runs.push(Run {
            pool: self.pool.clone(),
            number: self.number,
            scenario: scenario.to_owned(),
            prediction: prediction.to_owned(),
            policy,
            hosts: setting.hosts,
            score,
        });
        Ok(())
    }
}
