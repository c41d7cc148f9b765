//! The model for `stateright`: which actions there are, how far they go, and what a search found.

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};

use ballast_types::SplitMix64;
use stateright::{Checker as _, Chooser, Model as _, Property};

use crate::broken::{LONE_WORD, NO_RULER, ONE_EPOCH, TWICE, TWO_RULERS};
use crate::world::{Disk, Kept, Mail, Reply, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Half a second passes; what is under way arrives first.
    Tick,
    /// A message is lost.
    Lose(usize),
    /// A message will arrive at another time.
    Delay(usize),
    /// A message arrives now, and once more at another time.
    Double(usize),
    /// A message arrives, its answer does not.
    LoseAnswer(usize),
    /// A message arrives now, its answer at another time.
    DelayAnswer(usize),
    /// A message that was late arrives.
    Late(usize),
    /// A manager cannot reach a server any more.
    Cut(usize, usize),
    /// It can again.
    Join(usize, usize),
    StopManager(usize),
    StartManager(usize, Disk),
    StopAgent(usize),
    StartAgent(usize, Kept),
    /// A server's user-facing VM becomes busy, or calm.
    Load(usize),
}

#[derive(Clone, Debug)]
pub struct Model {
    pub faults: u8,
    pub loads: u8,
    /// For so long faults may begin.
    pub horizon: Duration,
    /// While it is searched: nothing new is looked at after this. A history is told without.
    until: Arc<Mutex<Option<std::time::Instant>>>,
    settled: Arc<AtomicUsize>,
}

impl Model {
    pub fn new(faults: u8, loads: u8, horizon: Duration) -> Self {
        Self { faults, loads, horizon, until: Arc::default(), settled: Arc::default() }
    }

    fn faults_of(world: &World, actions: &mut Vec<Action>) {
        for (i, mail) in world.flight.iter().enumerate() {
            if matches!(mail, Mail::Alert { .. }) {
                actions.extend([Action::Lose(i), Action::Delay(i), Action::Double(i)]);
                actions.extend([Action::LoseAnswer(i), Action::DelayAnswer(i)]);
            }
        }

        for (m, manager) in world.managers.iter().enumerate() {
            if manager.chassis.is_some() {
                actions.push(Action::StopManager(m));
                let reached = (0..2).filter(|&s| !world.cut[m][s]);
                actions.extend(reached.map(|s| Action::Cut(m, s)));
            } else if !manager.stopped {
                let disks = [Disk::Lost, Disk::Copied];
                actions.extend(disks.map(|disk| Action::StartManager(m, disk)));
            }
        }

        let alive = (0..2).filter(|&s| world.servers[s].agent.is_some());
        actions.extend(alive.map(Action::StopAgent));
    }

    /// Notes what ten seconds without a fault break.
    fn settle(&self, world: &mut World) {
        let mut after = world.clone();
        after.settle(|_| {
            self.settled.fetch_add(1, Ordering::Relaxed);
        });
        world.broken = after.broken;
    }

    /// Goes on from `world` by one action, and says whether that was more than time passing.
    fn apply(world: &mut World, action: Action) {
        let fault = &mut world.left.0;
        match action {
            Action::Lose(_)
            | Action::Delay(_)
            | Action::Double(_)
            | Action::LoseAnswer(_)
            | Action::DelayAnswer(_)
            | Action::Cut(..)
            | Action::StopManager(_)
            | Action::StopAgent(_) => *fault -= 1,
            Action::StartManager(m, _) if !world.managers[m].stopped => *fault -= 1,
            _ => {}
        }

        match action {
            Action::Tick => world.tick(),
            Action::Lose(i) => drop(world.flight.remove(i)),
            Action::Delay(i) => {
                let mail = world.flight.remove(i);
                world.late.push(mail);
            }
            Action::Double(i) => world.late.push(world.flight[i].clone()),
            Action::LoseAnswer(i) => {
                let mail = world.flight.remove(i);
                world.arrive(mail, Reply::Lost);
            }
            Action::DelayAnswer(i) => {
                let mail = world.flight.remove(i);
                world.arrive(mail, Reply::Late);
            }
            Action::Late(i) => {
                let mail = world.late.remove(i);
                world.arrive(mail, Reply::Arrives);
            }
            Action::Cut(m, s) => world.cut[m][s] = true,
            Action::Join(m, s) => world.cut[m][s] = false,
            Action::StopManager(m) => world.stop_manager(m),
            Action::StartManager(m, disk) => world.start_manager(m, disk),
            Action::StopAgent(s) => world.stop_agent(s),
            Action::StartAgent(s, kept) => world.start_agent(s, kept),
            Action::Load(s) => {
                world.left.1 -= 1;
                world.servers[s].busy ^= true;
            }
        }
    }
}

impl stateright::Model for Model {
    type State = World;
    type Action = Action;

    /// Calm; one server busy, so that the alert threshold is just reached; both busy.
    fn init_states(&self) -> Vec<World> {
        let busy = [[false, false], [false, true], [true, true]];
        let mut worlds = busy.map(|busy| World::ruled(busy, self.faults, self.loads));
        worlds.iter_mut().for_each(|world| self.settle(world));
        worlds.into()
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        let over = until.is_some_and(|until| std::time::Instant::now() > until);
        if over || world.broken.is_some() || world.passed() >= self.horizon {
            return;
        }
        if world.left.0 > 0 {
            Self::faults_of(world, actions);
        }
        if world.left.1 > 0 {
            actions.extend([Action::Load(0), Action::Load(1)]);
        }

        // What ends a fault is free.
        actions.extend((0..world.late.len()).map(Action::Late));

        for m in 0..2 {
            if world.managers[m].stopped {
                actions.extend([Disk::Own, Disk::Lost].map(|disk| Action::StartManager(m, disk)));
            }
            actions.extend((0..2).filter(|&s| world.cut[m][s]).map(|s| Action::Join(m, s)));
            if world.servers[m].agent.is_none() {
                let kept = [Kept::Memory, Kept::Nothing, Kept::Reboot];
                actions.extend(kept.map(|kept| Action::StartAgent(m, kept)));
            }
        }

        // Where nothing can happen any more, the ten seconds have been looked at already.
        if !actions.is_empty() {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        Self::apply(&mut next, action);
        next.judge_sum();
        // A tick of a whole world lies on the ten seconds that its predecessor has been followed for.
        if next.broken.is_none() && !(action == Action::Tick && next.is_whole()) {
            self.settle(&mut next);
        }
        next.seal();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn holds(world: &World, promise: &str) -> bool {
            world.broken.as_ref().is_none_or(|broken| broken.promise != promise)
        }
        vec![
            Property::always(TWICE, |_, world| holds(world, TWICE)),
            Property::always(ONE_EPOCH, |_, world| holds(world, ONE_EPOCH)),
            Property::always(TWO_RULERS, |_, world| holds(world, TWO_RULERS)),
            Property::always(NO_RULER, |_, world| holds(world, NO_RULER)),
            Property::always(LONE_WORD, |_, world| holds(world, LONE_WORD)),
        ]
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Search {
    /// Every history, shorter ones first, or as many as the time allows.
    Short(Duration),
    /// The same in little memory, one history after the other.
    Deep(Duration),
    /// Random histories for so long, from this seed.
    Random(Duration, u64),
}

/// What a search reached, and what it found.
#[derive(Debug)]
pub struct Outcome {
    /// States, without those that were reached again.
    pub states: usize,
    /// States that were looked at while ten seconds passed.
    pub settled: usize,
    /// The longest history, in actions.
    pub depth: usize,
    /// Whether there was time for all.
    pub complete: bool,
    pub took: Duration,
    /// For every broken promise its name, and the history that breaks it.
    pub broken: Vec<(&'static str, String)>,
}

impl Model {
    /// Searches. With one thread the histories found are the shortest.
    #[must_use]
    pub fn search(self, search: Search, threads: usize) -> Outcome {
        let begin = std::time::Instant::now();
        let (settled, model) = (self.settled.clone(), self.clone());
        let (Search::Short(limit) | Search::Deep(limit) | Search::Random(limit, _)) = search;
        let set = |until| {
            *model.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
        };
        set(Some(begin + limit));
        let builder = self.checker().threads(threads);
        let (states, depth, found) = match search {
            Search::Short(_) => {
                let checker = builder.spawn_bfs().join();
                set(None);
                (checker.unique_state_count(), checker.max_depth(), checker.discoveries())
            }
            Search::Deep(_) => {
                let checker = builder.spawn_dfs().join();
                set(None);
                (checker.unique_state_count(), checker.max_depth(), checker.discoveries())
            }
            Search::Random(_, seed) => {
                let checker = builder.timeout(limit).spawn_simulation(seed, Mostly).join();
                set(None);
                (checker.state_count(), checker.max_depth(), checker.discoveries())
            }
        };

        let took = begin.elapsed();
        let mut broken: Vec<_> =
            found.into_iter().map(|(promise, path)| (promise, model.tell(path.into_vec()))).collect();
        broken.sort_unstable();
        let settled = settled.load(Ordering::Relaxed);

        Outcome { states, settled, depth, complete: took < limit, took, broken }
    }

    /// A history in lines: every state, what happened then, and the ten seconds after.
    fn tell(&self, path: Vec<(World, Option<Action>)>) -> String {
        let mut lines = Vec::new();
        let mut end = None;
        for (world, action) in path {
            lines.push(format!("{world:?}"));
            lines.extend(action.map(|action| format!("    {}", told(&world, action))));
            end = Some(world);
        }

        let Some(mut end) = end else { return String::new() };
        let broken = end.broken.take().map(|it| format!("BROKEN: {}: {}", it.promise, it.what));
        end.judge_sum();

        if end.broken.is_none() {
            lines.push("    no more faults".to_owned());
            let mut ticks = 0;
            end.settle(|world| {
                ticks += 1;

                // The first second, and the last.
                if ticks <= 2 || ticks >= 19 || world.broken.is_some() {
                    lines.push(format!("{world:?}"));
                }
            });
        }

        lines.extend(broken);

        lines.join("\n")
    }
}

fn told(world: &World, action: Action) -> String {
    let mail = match action {
        Action::Lose(i)
        | Action::Delay(i)
        | Action::Double(i)
        | Action::LoseAnswer(i)
        | Action::DelayAnswer(i) => world.flight.get(i),
        Action::Late(i) => world.late.get(i),
        _ => None,
    };
    mail.map_or_else(|| format!("{action:?}"), |mail| format!("{action:?}: {mail}"))
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, settled, depth, complete, took, broken } = self;
        let all = if *complete { "all of them" } else { "time was up" };
        writeln!(
            f,
            "{states} states ({all}), {depth} actions deep, and {settled} in the ten seconds after them, in \
             {:.1} s",
            took.as_secs_f64()
        )?;
        broken.iter().try_for_each(|(promise, history)| writeln!(f, "\nbroken: {promise}\n{history}"))
    }
}

/// Lets time pass three times in four, so that faults do not all come in one instant.
#[derive(Clone)]
struct Mostly;

impl Chooser<Model> for Mostly {
    type State = u64;

    fn new_state(&self, seed: u64) -> u64 {
        seed
    }

    fn choose_initial_state(&self, state: &mut u64, worlds: &[World]) -> usize {
        (draw(state) % worlds.len().max(1) as u64) as usize
    }

    fn choose_action(&self, state: &mut u64, _: &World, actions: &[Action]) -> usize {
        let last = actions.len().saturating_sub(1);
        if draw(state) % 4 < 3 { last } else { (draw(state) % actions.len().max(1) as u64) as usize }
    }
}

/// The next number of the stream with this state.
fn draw(state: &mut u64) -> u64 {
    *state = SplitMix64::first(*state);
    *state
}
