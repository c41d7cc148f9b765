//! What is run: one job for each pool of each population, and for each pool of each recording.

use std::sync::Arc;

use ballast_placement::{MemoryKb, MilliCores, Resources};
use ballast_predict::lifetime::{LifetimeModel, VmEnd, VmLifetime};
use ballast_sim::cluster::{Noise, NoisyCurves};
use ballast_types::SplitMix64;

use super::options::{MEMORY_GB, Options};
use super::pool_job::{Done, LifetimesError, PoolJob};
use super::population::{Kinds, Population, Synthetic};
use super::recorded::{RecordedPool, Recording};
use super::training::{ModelQuality, Stretch, learn};
use super::trial::Setting;
use super::workload::{DAY_MS, LONGEST_MS, PoolVm, Workload};
use super::{IN_SAMPLE, LEARNT, SHUFFLED};
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
/// All of a recording is scored from here on: where copies meet the load jumps, and that lies in the warm-up.
const SCORED_FROM: f64 = 0.365;

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

    pub fn models(&self) -> &[ModelQuality] {
        &self.models
    }
}

/// Where what is held out begins, in milliseconds from the first arrival.
fn cut_ms(recording: &Recording) -> u64 {
    (recording.span_ms() as f64 * LEARNT_FROM) as u64
}

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
        let mut pool = PoolJob::new(population.name(), self.number);
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

            if *load != TRAINING_LOAD || !std::mem::take(&mut is_first) {
                continue;
            }
            if sets.drains {
                pool.drains(&setting, &scenario, (LEARNT, &model), &workload)?;
            }
            if !is_syn {
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
        let mut pool = PoolJob::new(&recording.name, self.number);
        let from_ms = recording.begins_ms();
        let end_ms = from_ms + recording.span_ms();
        let stretch = Stretch::of(workload(), end_ms);
        let mix = stretch.mix(seed);
        drop(stretch);

        let cut_ms = from_ms + cut_ms(recording);
        let scored_ms = from_ms + (recording.span_ms() as f64 * SCORED_FROM) as u64;
        let stretches = [
            ("", scored_ms, input.prediction, &input.whole),
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
                if self.options.sets.drains && prediction == LEARNT {
                    pool.drains(&setting, &scenario, (prediction, model), &workload)?;
                }
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
