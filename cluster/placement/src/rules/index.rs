//! Hosts by what is free of them, and by a number of the rule's own, such as when they are expected to be empty.

use std::collections::BTreeSet;

use super::best_fit::Left;
use crate::ties::TieKey;
use crate::{Cluster, HostId, Resources, Ties};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) key: u64,
    pub(super) tie: TieKey,
    pub(super) free_kb: u64,
}

/// Hosts of one size with guests that have as many free cores, in two orders.
#[derive(Clone, Debug, Default)]
pub(super) struct IndexRow {
    pub(super) free_milli: u32,
    /// Sorted, so that hosts from one key on are one slice.
    pub(super) hosts: Vec<Entry>,
    /// By their free memory, then by their ties.
    by_memory: Vec<(u64, TieKey, u64)>,
}

impl IndexRow {
    /// Hosts that have so much memory, those with the least first: free memory, tie and key.
    pub(super) fn by_memory(&self, least_kb: u64) -> &[(u64, TieKey, u64)] {
        &self.by_memory[self.by_memory.partition_point(|host| host.0 < least_kb)..]
    }

    fn insert(&mut self, host: Entry) {
        self.hosts.insert(self.hosts.partition_point(|other| *other < host), host);
        let other = (host.free_kb, host.tie, host.key);
        self.by_memory.insert(self.by_memory.partition_point(|it| *it < other), other);
    }

    fn remove(&mut self, host: Entry) {
        if let Ok(at) = self.hosts.binary_search(&host) {
            self.hosts.remove(at);
        }
        if let Ok(at) = self.by_memory.binary_search(&(host.free_kb, host.tie, host.key)) {
            self.by_memory.remove(at);
        }
    }
}

/// Hosts of one size.
#[derive(Clone, Debug)]
pub(super) struct Size {
    pub(super) room: Resources,
    /// By free cores; none is empty.
    rows: Vec<IndexRow>,
    /// Apart from the rows: nothing of them is ever taken.
    pub(super) empty: BTreeSet<TieKey>,
}

impl Size {
    /// The rows of hosts that have so many cores, those with the fewest first.
    pub(super) fn rows(&self, cores_milli: u32) -> &[IndexRow] {
        &self.rows[self.rows.partition_point(|row| row.free_milli < cores_milli)..]
    }

    fn insert(&mut self, place: &IndexedHost) {
        let Some(key) = place.key else {
            self.empty.insert(place.tie);
            return;
        };
        let free_milli = place.free.cores.milli();
        let row = self.rows.partition_point(|row| row.free_milli < free_milli);
        if self.rows.get(row).is_none_or(|row| row.free_milli != free_milli) {
            self.rows.insert(row, IndexRow { free_milli, ..IndexRow::default() });
        }
        let entry = Entry { key, tie: place.tie, free_kb: place.free.memory.kb() };
        self.rows[row].insert(entry);
    }

    fn remove(&mut self, place: &IndexedHost) {
        let Some(key) = place.key else {
            self.empty.remove(&place.tie);
            return;
        };
        let free_milli = place.free.cores.milli();
        let Ok(row) = self.rows.binary_search_by_key(&free_milli, |row| row.free_milli) else { return };
        let entry = Entry { key, tie: place.tie, free_kb: place.free.memory.kb() };
        self.rows[row].remove(entry);
        if self.rows[row].hosts.is_empty() {
            self.rows.remove(row);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IndexedHost {
    size: u32,
    tie: TieKey,
    free: Resources,
    /// `None` where it has no guests.
    key: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Index {
    ties: Ties,
    sizes: Vec<Size>,
    places: Vec<Option<IndexedHost>>,
}

impl Index {
    /// Of hosts without guests.
    pub(super) fn new(cluster: &Cluster, ties: Ties) -> Self {
        let mut this = Self { ties, sizes: Vec::new(), places: Vec::new() };
        cluster.ids().for_each(|host| this.update(cluster, host, None));
        this
    }

    pub(super) fn sizes(&self) -> &[Size] {
        &self.sizes
    }

    /// The key of a host; `None` where it has no guests.
    pub(super) fn key(&self, host: HostId) -> Option<u64> {
        self.places.get(host.0 as usize).copied().flatten()?.key
    }

    /// Best fit among all: the host of which the VM leaves the least.
    pub(super) fn best_fit(
        &self,
        asked: Resources,
        admits: &mut dyn FnMut(HostId) -> bool,
    ) -> Option<HostId> {
        let (cores, memory) = (asked.cores.milli(), asked.memory.kb());
        let mut best = Best::new(admits);
        for size in self.sizes.iter().filter(|size| size.room.hold(asked)) {
            for row in size.rows(cores) {
                let left = Left::of(size.room, row.free_milli - cores);
                if !best.may_win(left.score(0)) {
                    break;
                }
                for (kb, tie, _) in row.by_memory(memory) {
                    let score = left.score(kb - memory);
                    if !best.may_win(score) {
                        break;
                    }
                    best.offer(score, *tie);
                }
            }
            best.offer_empty(size, asked);
        }
        best.host.map(|(_, tie)| tie.host())
    }

    /// A host may be another, have other guests, or be gone.
    pub(super) fn update(&mut self, cluster: &Cluster, host: HostId, key: Option<u64>) {
        let at = host.0 as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, None);
        }
        let before = self.places[at];
        let after = cluster.contains(host).then(|| {
            let room = cluster.host(host).room;
            let known = before.filter(|it| self.sizes[it.size as usize].room == room);
            let (size, tie) = match known {
                Some(known) => (known.size, known.tie),
                None => (self.size(room), self.ties.key(cluster, host)),
            };
            IndexedHost { size, tie, free: cluster.free(host), key }
        });
        if before == after {
            return;
        }
        if let Some(place) = before {
            self.sizes[place.size as usize].remove(&place);
        }
        if let Some(place) = after {
            self.sizes[place.size as usize].insert(&place);
        }
        self.places[at] = after;
    }

    /// The number of a size; one that no host has any more is given anew.
    fn size(&mut self, room: Resources) -> u32 {
        let unused = |size: &Size| size.rows.is_empty() && size.empty.is_empty();
        let known = self.sizes.iter().position(|size| size.room == room);
        let size = known.or_else(|| self.sizes.iter().position(unused)).unwrap_or(self.sizes.len());
        if size == self.sizes.len() {
            self.sizes.push(Size { room, rows: Vec::new(), empty: BTreeSet::new() });
        }
        self.sizes[size].room = room;
        size as u32
    }
}

/// The best admitted host that a search has come to.
pub(super) struct Best<'a> {
    pub(super) host: Option<(i64, TieKey)>,
    admits: &'a mut dyn FnMut(HostId) -> bool,
}

impl<'a> Best<'a> {
    pub(super) fn new(admits: &'a mut dyn FnMut(HostId) -> bool) -> Self {
        Self { host: None, admits }
    }

    /// Whether a host with this score at most can be better, or as good and before it by its tie.
    pub(super) fn may_win(&self, most: i64) -> bool {
        self.host.is_none_or(|(best, _)| most >= best)
    }

    fn wins(&self, score: i64, tie: TieKey) -> bool {
        self.host.is_none_or(|(best, lowest)| score > best || score == best && tie < lowest)
    }

    /// A host; it is asked for only where it would be the best.
    pub(super) fn offer(&mut self, score: i64, tie: TieKey) {
        if self.wins(score, tie) && (self.admits)(tie.host()) {
            self.host = Some((score, tie));
        }
    }

    /// Hosts of a size without guests, by best fit's score.
    pub(super) fn offer_empty(&mut self, size: &Size, asked: Resources) {
        let left = Left::of(size.room, size.room.cores.milli() - asked.cores.milli());
        self.offer_first(left.score(size.room.memory.kb() - asked.memory.kb()), &size.empty);
    }

    /// Hosts that are alike, by their ties: the first that is admitted is offered.
    pub(super) fn offer_first<'t>(&mut self, score: i64, ties: impl IntoIterator<Item = &'t TieKey>) {
        for tie in ties {
            if !self.wins(score, *tie) {
                break;
            }
            self.offer(score, *tie);
        }
    }
}
