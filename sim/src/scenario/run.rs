//! The engine: the one loop that every scenario runs in.

use ballast_types::Instant;

use super::{Controller, Scenario};
use crate::baseline::Acting;
use crate::plant::{Plant, STEP, Truth};
use crate::world::{Bucket, Outcome, Violation, World};

/// Looks at a run while it goes on, and never acts on it.
pub trait Probe {
    /// When it looks next: a stretch of time begins at `now` and ends there, or with the run.
    fn next(&self, now: Instant) -> Instant {
        now + STEP
    }

    /// A stretch begins. The plant shows what holds until the end of its step.
    fn begins(&mut self, _run: &Run) {}

    fn ends(&mut self, _run: &Run) {}

    /// Whether there is nothing more to look for: then the run ends early.
    fn is_done(&self) -> bool {
        false
    }
}

#[derive(Debug)]
pub struct Run {
    engine: Engine,
    end: Instant,
}

#[derive(Debug)]
enum Engine {
    /// The project's controllers around the plant.
    World(Box<World>),
    Plant(Box<Plant>, Acting),
}

impl Run {
    /// The scenario at instant zero, about to start.
    pub fn new(scenario: Scenario) -> Self {
        let end = Instant::ZERO + scenario.length;
        let engine = match &scenario.controller {
            Controller::Baseline(baseline) => {
                let baseline = *baseline;
                let mut plant = Plant::new(scenario.plant, scenario.seed);
                let acting = baseline.start(&mut plant, scenario.seed);
                Engine::Plant(Box::new(plant), acting)
            }
            Controller::Manager | Controller::FixedCap { .. } => {
                Engine::World(Box::new(World::new(scenario)))
            }
        };
        Self { engine, end }
    }

    /// Goes on to the scenario's end, or until a probe has seen enough.
    fn finish(&mut self, probes: &mut [&mut dyn Probe]) -> Result<(), Violation> {
        let mut looks = vec![self.now(); probes.len()];
        while self.now() < self.end {
            for (probe, at) in probes.iter_mut().zip(&mut looks) {
                if *at <= self.now() {
                    probe.begins(self);
                    *at = probe.next(self.now()).min(self.end);
                }
            }

            let to = looks.iter().copied().min().unwrap_or(self.end);
            self.step(to)?;

            for (probe, at) in probes.iter_mut().zip(&looks) {
                if *at <= to {
                    probe.ends(self);
                }
            }
            if probes.iter().any(|probe| probe.is_done()) {
                break;
            }
        }
        Ok(())
    }

    fn step(&mut self, to: Instant) -> Result<(), Violation> {
        match &mut self.engine {
            Engine::World(world) => world.run(to),
            Engine::Plant(plant, acting) => {
                plant.advance(to);
                acting.act(to, plant);
                Ok(())
            }
        }
    }

    pub fn now(&self) -> Instant {
        self.plant().now()
    }

    pub fn plant(&self) -> &Plant {
        match &self.engine {
            Engine::World(world) => world.plant(),
            Engine::Plant(plant, _) => plant,
        }
    }

    /// The world around the plant; `None` under a baseline.
    pub fn world(&self) -> Option<&World> {
        match &self.engine {
            Engine::World(world) => Some(world),
            Engine::Plant(..) => None,
        }
    }
}

#[derive(Debug)]
pub struct Report {
    run: Run,
    /// The first promise that was broken; the run ended there.
    pub violation: Option<Violation>,
}

impl Report {
    pub fn truth(&self) -> &Truth {
        self.run.plant().truth()
    }

    pub fn run(&self) -> &Run {
        &self.run
    }

    /// What it came to for the controllers; `None` under a baseline.
    pub fn outcome(&self) -> Option<Outcome> {
        self.run.world().map(World::outcome)
    }

    /// The draw and the frequencies over time; empty under a baseline.
    pub fn curve(&self) -> &[Bucket] {
        self.run.world().map_or(&[], World::curve)
    }

    /// The report of a run in which nothing was broken.
    pub fn kept(self) -> Result<Self, Violation> {
        match self.violation {
            None => Ok(self),
            Some(violation) => Err(violation),
        }
    }
}

impl Scenario {
    /// Runs it to its end, to the first broken promise, or until a probe has seen enough.
    #[must_use]
    pub fn run(self, probes: &mut [&mut dyn Probe]) -> Report {
        let mut run = Run::new(self);
        let violation = run.finish(probes).err();
        Report { run, violation }
    }
}
