//! The p-state that every core is meant to have, and the order in which cores are throttled.
//!
//! Cores are addressed by their index in `Params::cores`; with `cpu-max` they are the units of floating VMs,
//! numbered by `fleet`. The methods only decide: they note what they changed, and the agent has it written.

use std::collections::BTreeMap;

use ballast_types::{Core, CoreId, KiloHertz, Ladder};
use serde::{Deserialize, Serialize};

/// Cores that are throttled together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Class {
    /// Lower is throttled first.
    pub(crate) order: u8,
    /// User-facing cores, where the operator allows that: the last class.
    pub(crate) user_facing: bool,
    /// The floor is the lowest p-state of at least this share of the highest frequency.
    pub(crate) floor_percent: u8,
    /// Indices of its cores, ascending.
    pub(crate) cores: Vec<u16>,
}

/// How low each class may go, in percent of the highest frequency.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floors<'a> {
    /// By throttle order; to the end of the ladder where nothing is told.
    pub(crate) by_order: &'a BTreeMap<u8, u8>,
    /// User-facing cores; not at all where nothing is told.
    pub(crate) user_facing: Option<u8>,
}

/// Where a core starts that becomes low-priority and has no class to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joining {
    /// There is no cap: it stays free.
    Free,
    /// There is a cap: as its class, or as the throttle order says.
    Class,
    /// Everything low-priority is held at the floor.
    Floor,
}

/// The meant p-states.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Throttle {
    cores: Vec<Core>,
    level: Vec<u16>,
    top: Vec<u16>,
    /// The lowest p-state that each may be set to, by its class.
    floor: Vec<u16>,
    /// Ascending by `order`; every core is in one class at most.
    classes: Vec<Class>,
    /// One entry for every p-state of every core of a class above its floor: the cores in the order in which they are
    /// raised by one, from all at their floor to all free.
    raise_order: Vec<u16>,
    /// Every core at the same p-state, moved all at once.
    equal: bool,
    changed: Vec<u16>,
    scratch: Vec<u16>,
}

impl Throttle {
    pub(crate) fn new(cores: Vec<Core>, equal: bool) -> Self {
        let top: Vec<u16> = cores.iter().map(|c| c.ladder.top() as u16).collect();
        let size = cores.len();
        Self {
            cores,
            level: top.clone(),
            top,
            floor: vec![0; size],
            classes: Vec::new(),
            raise_order: Vec::new(),
            equal,
            changed: Vec::with_capacity(size),
            scratch: Vec::with_capacity(size),
        }
    }

    /// Takes over a p-state that is set already.
    pub(crate) fn recover(&mut self, core: usize, level: usize) {
        self.level[core] = (level as u16).min(self.top[core]);
    }

    /// Adds free units on `ladder` until there are `size`.
    pub(crate) fn grow(&mut self, size: usize, ladder: &Ladder) {
        for unit in self.len()..size {
            self.cores.push(Core { id: CoreId(unit as u16), ladder: ladder.clone() });
            self.top.push(ladder.top() as u16);
            self.floor.push(0);
            self.level.push(ladder.top() as u16);
        }
    }

    /// Unit `unit` stands for nothing any more: its next owner starts free.
    pub(crate) fn forget(&mut self, unit: u16) {
        for class in &mut self.classes {
            class.cores.retain(|core| *core != unit);
        }
        self.level[usize::from(unit)] = self.top[usize::from(unit)];
    }

    pub(crate) fn len(&self) -> usize {
        self.cores.len()
    }
    pub(crate) fn level(&self, core: usize) -> usize {
        usize::from(self.level[core])
    }
    pub(crate) fn restricted(&self, core: usize) -> bool {
        self.level[core] < self.top[core]
    }
    pub(crate) fn ladder(&self, core: usize) -> &Ladder {
        &self.cores[core].ladder
    }
    /// A p-state as a share of the highest frequency.
    pub(crate) fn share(&self, core: usize, level: usize) -> f64 {
        self.ladder(core).khz(level).share_of(self.ladder(core).max())
    }
    pub(crate) fn khz(&self, core: usize) -> KiloHertz {
        self.cores[core].ladder.khz(self.level(core))
    }
    pub(crate) fn max_khz(&self, core: usize) -> KiloHertz {
        self.cores[core].ladder.max()
    }
    /// The classes, in the order of throttling.
    pub(crate) fn classes(&self) -> &[Class] {
        &self.classes
    }
    /// The low-priority cores.
    pub(crate) fn low(&self) -> impl Iterator<Item = usize> + '_ {
        let low = self.classes.iter().filter(|class| !class.user_facing);
        low.flat_map(|class| &class.cores).map(|core| usize::from(*core))
    }
    /// Every core that may be throttled.
    pub(crate) fn throttled(&self) -> impl Iterator<Item = usize> + '_ {
        self.classes.iter().flat_map(|class| &class.cores).map(|core| usize::from(*core))
    }
    /// The lowest p-state that a core may be set to.
    pub(crate) fn floor_level(&self, core: usize) -> usize {
        usize::from(self.floor[core])
    }
    pub(crate) fn at_floor(&self, core: usize) -> bool {
        self.level[core] <= self.floor[core]
    }
    /// Whether no low-priority core can be lowered any more.
    pub(crate) fn all_floored(&self) -> bool {
        self.low().all(|core| self.at_floor(core))
    }
    /// Whether nothing at all can be lowered any more.
    pub(crate) fn nothing_left(&self) -> bool {
        self.throttled().all(|core| self.at_floor(core))
    }
    pub(crate) fn user_facing_restricted(&self) -> bool {
        let user_facing = self.classes.iter().filter(|class| class.user_facing);
        user_facing.flat_map(|class| &class.cores).any(|core| self.restricted(usize::from(*core)))
    }
    pub(crate) fn any_restricted(&self) -> bool {
        self.level != self.top
    }
    /// The lowest p-state, if any core is restricted.
    pub(crate) fn min_khz(&self) -> Option<KiloHertz> {
        (0..self.len()).filter(|core| self.restricted(*core)).map(|core| self.khz(core)).min()
    }

    /// The mean cap on the low-priority cores, as a share of their highest frequency; `None` without such cores.
    pub(crate) fn frequency_ratio(&self) -> Option<f64> {
        let ratio = |core| f64::from(self.khz(core).get()) / f64::from(self.max_khz(core).get());
        let cores = self.low().count();
        (cores > 0).then(|| self.low().map(ratio).sum::<f64>() / cores as f64)
    }

    /// The cores whose meaning changed since the last call.
    pub(crate) fn take_changed(&mut self, into: &mut Vec<u16>) {
        into.clear();
        core::mem::swap(into, &mut self.changed);
    }

    fn set(&mut self, core: usize, level: u16) {
        let level = level.min(self.top[core]);
        if self.level[core] != level {
            self.level[core] = level;
            self.changed.push(core as u16);
        }
    }

    /// The first class that is not at its floor goes there, at once.
    pub(crate) fn floor_next(&mut self) {
        let next = self.classes.iter().position(|class| self.above_floor(class));
        if let Some(class) = next {
            self.floor(class);
        }
    }

    /// Every low-priority class to its floor, at once.
    pub(crate) fn floor_all(&mut self) {
        for class in 0..self.classes.len() {
            if !self.classes[class].user_facing {
                self.floor(class);
            }
        }
    }

    fn floor(&mut self, class: usize) {
        for index in 0..self.classes[class].cores.len() {
            let core = usize::from(self.classes[class].cores[index]);
            // What was found below stays there: this is no raise.
            self.set(core, self.level[core].min(self.floor[core]));
        }
    }

    fn above_floor(&self, class: &Class) -> bool {
        class.cores.iter().any(|core| !self.at_floor(usize::from(*core)))
    }

    /// One p-state down for the `count` highest cores of the first class above its floor.
    ///
    /// A class of fewer cores is lowered again, and then the next one: each time counts as `least` cores.
    pub(crate) fn lower(&mut self, count: usize, least: usize) {
        self.move_cores(count, least, false);
    }

    /// One p-state up for the `count` lowest cores of the last restricted class; likewise.
    pub(crate) fn raise(&mut self, count: usize, least: usize) {
        self.move_cores(count, least, true);
    }

    /// The class whose cores move next: the last one on the way up, the first one on the way down.
    fn next_class(&self, up: bool) -> Option<usize> {
        let mut movable = self
            .classes
            .iter()
            .enumerate()
            .filter(|(_, class)| class.cores.iter().any(|core| self.can_move(usize::from(*core), up)));
        let next = if up { movable.next_back() } else { movable.next() };
        next.map(|(index, _)| index)
    }

    fn move_cores(&mut self, count: usize, least: usize, up: bool) {
        let mut left = count;
        while left > 0 {
            let Some(class) = self.next_class(up) else { return };

            if self.equal {
                return self.move_together(class, if up { 1 } else { -1 });
            }
            let mut pick = core::mem::take(&mut self.scratch);
            pick.clear();
            let cores = self.classes[class].cores.iter();
            pick.extend(cores.filter(|c| self.can_move(usize::from(**c), up)));
            pick.sort_unstable_by_key(|c| {
                let khz = i64::from(self.khz(usize::from(*c)).get());
                (if up { khz } else { -khz }, *c)
            });

            pick.truncate(left);

            for core in pick.iter().map(|core| usize::from(*core)) {
                let level = self.level[core];
                self.set(core, if up { level.saturating_add(1) } else { level.saturating_sub(1) });
            }

            left = left.saturating_sub(pick.len().max(least));
            self.scratch = pick;
        }
    }

    fn can_move(&self, core: usize, up: bool) -> bool {
        if up { self.restricted(core) } else { !self.at_floor(core) }
    }

    /// All cores of `class` to one p-state beside their lowest.
    fn move_together(&mut self, class: usize, by: i32) {
        let cores = &self.classes[class].cores;
        let lowest = cores.iter().map(|c| self.level[usize::from(*c)]).min().unwrap_or(0);
        let level = (i32::from(lowest) + by).max(0) as u16;
        for index in 0..self.classes[class].cores.len() {
            self.set(usize::from(self.classes[class].cores[index]), level);
        }
    }

    /// The p-state of every core.
    pub(crate) fn levels(&self) -> &[u16] {
        &self.level
    }

    /// How many p-states there are between all at their floor and all free.
    pub(crate) fn span(&self) -> usize {
        self.raise_order.len()
    }

    /// Below this height user-facing cores are restricted.
    pub(crate) fn user_facing_span(&self) -> usize {
        let user_facing = self.classes.iter().filter(|class| class.user_facing);
        let span = |core: &u16| {
            usize::from(self.top[usize::from(*core)].saturating_sub(self.floor[usize::from(*core)]))
        };
        user_facing.flat_map(|class| &class.cores).map(span).sum()
    }

    /// The highest height at which `watts` of every core and level come to `room` at most; the floor if even
    /// that is more.
    pub(crate) fn highest_fit(&self, room: f64, watts: impl Fn(usize, usize) -> f64) -> usize {
        let mut drawn: f64 = self.throttled().map(|core| watts(core, self.floor_level(core))).sum();
        let mut level = self.floor.clone();
        for (height, core) in self.raise_order.iter().enumerate() {
            let core = usize::from(*core);
            let at = usize::from(level[core]);
            let next = drawn + watts(core, at + 1) - watts(core, at);
            if next > room {
                return height;
            }
            drawn = next;
            level[core] += 1;
        }
        self.raise_order.len()
    }

    /// The cores to this height: all alike, to one p-state, within the one class that is
    /// neither floored nor free.
    pub(crate) fn step_up_to(&mut self, height: usize) {
        let mut level = core::mem::take(&mut self.scratch);
        level.clone_from(&self.floor);
        for core in &self.raise_order[..height.min(self.raise_order.len())] {
            level[usize::from(*core)] += 1;
        }
        for class in 0..self.classes.len() {
            for index in 0..self.classes[class].cores.len() {
                let core = usize::from(self.classes[class].cores[index]);
                self.set(core, level[core]);
            }
        }
        self.scratch = level;
    }

    /// The order in which cores are raised: the last class first, and within it the lowest p-state first.
    fn plan_raises(&mut self) {
        self.raise_order.clear();
        for class in self.classes.iter().rev() {
            let span = |c: &u16| self.top[usize::from(*c)].saturating_sub(self.floor[usize::from(*c)]);
            let rounds = class.cores.iter().map(span).max().unwrap_or(0);
            for round in 0..rounds {
                self.raise_order.extend(class.cores.iter().filter(|c| span(c) > round));
            }
        }
    }

    /// Every core to the top of its ladder.
    pub(crate) fn lift_all(&mut self) {
        for core in 0..self.len() {
            self.set(core, self.top[core]);
        }
    }

    /// The floor of every core, by its class.
    fn find_floors(&mut self) {
        self.floor.fill(0);
        for class in &self.classes {
            for core in class.cores.iter().map(|core| usize::from(*core)) {
                let ladder = &self.cores[core].ladder;
                let least = u64::from(ladder.max().get()) * u64::from(class.floor_percent);
                let floor = (0..ladder.len())
                    .find(|level| u64::from(ladder.khz(*level).get()) * 100 >= least)
                    .unwrap_or(ladder.top());
                self.floor[core] = floor as u16;
            }
        }
    }

    /// Other classes. What is low-priority no more is lifted; what is newly so joins by `joining`; and
    /// what now comes before a restricted class goes to its floor, as the order wants it.
    pub(crate) fn reclass(&mut self, classes: Vec<Class>, joining: Joining) {
        let mut was_low = vec![false; self.len()];
        for core in self.throttled() {
            was_low[core] = true;
        }
        self.classes = classes;
        self.find_floors();
        self.plan_raises();
        let mut is_low = vec![false; self.len()];

        for core in self.throttled() {
            is_low[core] = true;
        }
        for core in (0..self.len()).filter(|core| !is_low[*core]) {
            self.set(core, self.top[core]);
        }

        // From the last class to the first, so that a later class shows whether its turn has come.
        let mut later_restricted = false;

        for class in (0..self.classes.len()).rev() {
            let cores = core::mem::take(&mut self.classes[class].cores);
            let old = cores.iter().map(|c| usize::from(*c)).filter(|c| was_low[*c]);
            let level = match old.map(|c| self.level[c]).min() {
                Some(level) => level,
                None if joining == Joining::Floor => 0,
                None => u16::MAX,
            };

            let user_facing = self.classes[class].user_facing;

            for core in cores.iter().map(|c| usize::from(*c)) {
                if later_restricted {
                    self.set(core, self.floor[core]);
                } else if !was_low[core] && joining != Joining::Free && !user_facing {
                    self.set(core, level.max(self.floor[core]));
                }
            }

            later_restricted |= cores.iter().any(|c| self.restricted(usize::from(*c)));
            self.classes[class].cores = cores;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn throttle(equal: bool) -> Throttle {
        let mhz = KiloHertz::from_mhz;
        let ladder = Ladder::stepped(mhz(1200), mhz(1500), mhz(100)).unwrap();
        let cores = (0..6).map(|n| Core { id: CoreId(n), ladder: ladder.clone() }).collect();
        Throttle::new(cores, equal)
    }
    fn class(order: u8, cores: &[u16]) -> Class {
        Class { order, user_facing: false, floor_percent: 0, cores: cores.to_vec() }
    }
    fn two_classes() -> Throttle {
        let mut t = throttle(false);
        t.reclass(vec![class(0, &[2, 3]), class(1, &[4, 5])], Joining::Free);
        t
    }

    #[test]
    fn classes_reach_the_floor_in_order_and_are_released_in_reverse() {
        let mut t = two_classes();
        t.floor_next();
        assert_eq!(t.level, [3, 3, 0, 0, 3, 3]);
        t.lower(2, 2);
        assert_eq!(t.level, [3, 3, 0, 0, 2, 2]);
        t.floor_next();
        assert_eq!(t.level, [3, 3, 0, 0, 0, 0]);
        assert!(t.all_floored());
        for expected in [[0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 3, 3], [1, 1, 3, 3]] {
            t.raise(2, 2);
            assert_eq!(t.level[2..], expected);
        }
    }

    #[test]
    fn a_step_moves_the_highest_down_and_the_lowest_up() {
        let mut t = throttle(false);
        t.reclass(vec![class(0, &[1, 2, 3])], Joining::Free);
        t.level = vec![3, 2, 3, 1, 3, 3];
        t.lower(1, 1);
        assert_eq!(t.level, [3, 2, 2, 1, 3, 3]);
        t.raise(1, 1);
        assert_eq!(t.level, [3, 2, 2, 2, 3, 3]);
        t.lower(4, 4);
        assert_eq!(t.level, [3, 1, 1, 1, 3, 3]);
    }

    #[test]
    fn a_large_step_goes_through_small_classes() {
        let mut t = throttle(false);
        t.reclass(vec![class(0, &[0, 1, 2]), class(1, &[3]), class(2, &[4, 5])], Joining::Free);
        t.floor_all();
        // Two cores, three times; then one core, three times.
        t.raise(9, 1);
        assert_eq!(t.level, [0, 0, 0, 3, 3, 3]);
        t.raise(3, 2);
        assert_eq!(t.level, [1, 1, 1, 3, 3, 3]);
        t.lower(6, 2);
        assert_eq!(t.level, [0, 0, 0, 1, 3, 3]);
        t.lower(100, 1);
        assert_eq!(t.level, [0; 6]);
        t.raise(100, 1);
        assert_eq!(t.level, [3; 6]);
    }

    #[test]
    fn a_forgotten_unit_joins_anew() {
        let mut t = two_classes();
        t.floor_all();
        t.forget(3);
        assert_eq!(t.level[2..], [0, 3, 0, 0]);
        t.grow(8, &t.cores[0].ladder.clone());
        t.reclass(vec![class(0, &[2]), class(1, &[3, 4, 5, 7])], Joining::Class);
        assert_eq!(t.level, [3, 3, 0, 0, 0, 0, 3, 0]);
    }

    #[test]
    fn a_new_class_set_lifts_what_left_and_joins_what_came() {
        let mut t = two_classes();
        t.level = vec![3, 3, 0, 1, 3, 3];
        // 3 leaves; 1 joins its class at the class's lowest.
        t.reclass(vec![class(0, &[1, 2]), class(1, &[4, 5])], Joining::Class);
        assert_eq!(t.level, [3, 0, 0, 3, 3, 3]);
        // A class of its own: before a restricted one it is floored, after it free.
        t.reclass(vec![class(0, &[1, 2]), class(1, &[4]), class(2, &[5])], Joining::Class);
        assert_eq!(t.level, [3, 0, 0, 3, 3, 3]);
        t.level[5] = 2;
        t.reclass(vec![class(0, &[0]), class(2, &[5])], Joining::Class);
        assert_eq!(t.level, [0, 3, 3, 3, 3, 2]);
        // What now comes before a restricted class goes to its floor; what comes after stays as it is.
        t.reclass(vec![class(0, &[1]), class(1, &[5]), class(2, &[2])], Joining::Class);
        assert_eq!(t.level, [3, 0, 3, 3, 3, 2]);
        t.reclass(vec![class(0, &[3])], Joining::Floor);
        assert_eq!(t.level, [3, 3, 3, 0, 3, 3]);
    }

    #[test]
    fn the_highest_fit_is_stepped_up_to_evenly_and_class_by_class() {
        let mut t = two_classes();
        // One watt a p-state and core; from floor to top there are 12.
        let fit = |t: &Throttle, room| t.highest_fit(room, |_, level| level as f64);
        for (room, height, levels) in [
            (-1.0, 0, [0, 0, 0, 0]),
            (3.5, 3, [0, 0, 2, 1]),
            (6.0, 6, [0, 0, 3, 3]),
            (8.9, 8, [1, 1, 3, 3]),
            (99.0, 12, [3, 3, 3, 3]),
        ] {
            assert_eq!(fit(&t, room), height);
            t.step_up_to(height);
            assert_eq!(&t.level[2..], &levels[..]);
        }
    }

    #[test]
    fn a_class_ends_at_its_own_floor_and_user_facing_cores_come_last() {
        let mut t = throttle(false);

        // 1300 of 1500 MHz is 87 %, 1400 is 93 %.
        let half = Class { floor_percent: 86, ..class(0, &[2, 3]) };
        let web = Class { user_facing: true, floor_percent: 90, ..class(255, &[0, 1]) };
        t.reclass(vec![half, class(1, &[4]), web], Joining::Free);
        t.floor_all();
        assert_eq!(t.level, [3, 3, 1, 1, 0, 3]);
        assert!(t.all_floored() && !t.nothing_left() && !t.user_facing_restricted());
        t.floor_next();
        assert_eq!(t.level, [2, 2, 1, 1, 0, 3]);
        assert!(t.nothing_left() && t.user_facing_restricted());

        // One watt a p-state: at their floors they draw six.
        assert_eq!((t.span(), t.user_facing_span()), (9, 2));
        let fit = |t: &Throttle, room| t.highest_fit(room, |_, level| level as f64);

        for (room, levels) in
            [(6.0, [2, 2, 1, 1, 0]), (7.0, [3, 2, 1, 1, 0]), (9.5, [3, 3, 1, 1, 1]), (99.0, [3, 3, 3, 3, 3])]
        {
            t.step_up_to(fit(&t, room));
            assert_eq!(t.level[..5], levels, "{room}");
        }

        t.lower(100, 1);
        assert_eq!(t.level, [2, 2, 1, 1, 0, 3]);
        t.raise(2, 2);
        assert_eq!(t.level, [3, 3, 1, 1, 0, 3]);
    }

    #[test]
    fn full_server_keeps_all_cores_equal() {
        let mut t = throttle(true);
        t.reclass(vec![class(0, &[0, 1, 2, 3, 4, 5])], Joining::Free);
        t.level = vec![3, 2, 3, 1, 3, 3];
        t.raise(4, 4);
        assert_eq!(t.level, [2; 6]);
        t.lower(4, 4);
        assert_eq!(t.level, [1; 6]);
        t.lower(4, 4);
        t.lower(4, 4);
        assert_eq!(t.level, [0; 6]);
    }

    fn ratio(t: &Throttle) -> Option<f64> {
        t.frequency_ratio().map(|ratio| (ratio * 1000.0).round())
    }

    #[test]
    fn the_frequency_ratio_is_the_mean_over_low_priority_cores() {
        let mut t = two_classes();
        assert_eq!(ratio(&t), Some(1000.0));
        // Two of four cores at 1200 of 1500 MHz.
        t.floor_next();
        assert_eq!(ratio(&t), Some(900.0));
        assert_eq!(ratio(&throttle(false)), None, "no low-priority core");
    }
}
