//! How much of a daemon one peer, and all of them together, can have.
//!
//! Connections: where there is no room, the one that has gone longest without a request makes room.
//! So stuck clients, slow ones and half-open handshakes never keep out one that speaks. Requests: a
//! token bucket for every peer.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lock;
use ballast_types::Role;
use tokio::sync::Notify;

/// All connections: what they hold must never starve the files that throttle cores.
const CONNECTIONS_MAX: usize = 128;
/// Those of one peer beyond loopback.
const CONNECTIONS_OF_ONE: usize = 16;
/// Handshakes that one address may begin: they are the dearest thing to ask for.
const HANDSHAKES: Rate = Rate { burst: 40, each: Duration::from_millis(50) };
/// Requests of one peer.
const REQUESTS: Rate = Rate { burst: 200, each: Duration::from_millis(5) };

/// Whose room and whose tokens are used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Party {
    /// This machine, over plain HTTP.
    Local,
    /// Somebody who has not said who he is, or has no role: an address, or its IPv6 /64.
    Address(IpAddr),
    /// Somebody with a role.
    Named(Role),
}

impl Party {
    /// Who is known by address alone.
    pub(super) fn at(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(long) => {
                let network = u128::from(long) & !u128::from(u64::MAX);
                IpAddr::V6(Ipv6Addr::from(network))
            }
            short => short,
        })
    }
}

/// What was refused, for metrics.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Connections that made room for others.
    pub(crate) evicted: AtomicU64,
    /// Handshakes that failed, took too long, or came too often.
    pub(crate) handshakes: AtomicU64,
    /// Requests without the role that they need.
    pub(crate) unauthorised: AtomicU64,
    /// Requests that came too often.
    pub(crate) too_many: AtomicU64,
}

/// The bounds of one daemon.
pub(crate) struct Bounds {
    held: Mutex<Held>,
    handshakes: Mutex<Buckets<Party>>,
    requests: Mutex<Buckets<Party>>,
    /// Who always keeps its connections: the one whose alerts must come through.
    first: Option<Role>,
    pub(crate) refusals: Refusals,
}

#[derive(Default)]
struct Held {
    next: u64,
    rooms: BTreeMap<u64, Holder>,
}

struct Holder {
    party: Party,
    /// When its newest request came; its start, before the first.
    spoke: Instant,
    leave: Arc<Notify>,
}

impl Bounds {
    pub(crate) fn new(first: Option<Role>) -> Self {
        Self {
            held: Mutex::default(),
            handshakes: Mutex::new(Buckets::new(HANDSHAKES)),
            requests: Mutex::new(Buckets::new(REQUESTS)),
            first,
            refusals: Refusals::default(),
        }
    }

    /// A room for one more connection.
    pub(super) fn enter(self: &Arc<Self>, party: Party) -> Room {
        let leave = Arc::new(Notify::new());
        let mut held = lock(&self.held);
        self.make_room(&mut held, &party);
        let id = held.next;
        held.next += 1;
        let holder = Holder { party, spoke: Instant::now(), leave: Arc::clone(&leave) };
        held.rooms.insert(id, holder);
        Room { id, bounds: Arc::clone(self), leave }
    }

    fn make_room(&self, held: &mut Held, party: &Party) {
        let of_party = held.rooms.values().filter(|holder| holder.party == *party).count();
        let full = *party != Party::Local && of_party >= CONNECTIONS_OF_ONE;
        if !full && held.rooms.len() < CONNECTIONS_MAX {
            return;
        }
        let first = self.first.clone().map(Party::Named);
        let may_go = |holder: &Holder| match full {
            true => holder.party == *party,
            false => Some(&holder.party) != first.as_ref(),
        };
        let silent = held.rooms.iter().filter(|(_, holder)| may_go(holder));
        let Some(id) = silent.min_by_key(|(_, holder)| holder.spoke).map(|(id, _)| *id) else {
            return;
        };
        if let Some(holder) = held.rooms.remove(&id) {
            holder.leave.notify_one();
            self.refusals.evicted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether this address may begin a handshake.
    pub(super) fn may_shake_hands(&self, party: &Party) -> bool {
        lock(&self.handshakes).take(party, Instant::now())
    }

    /// Whether this peer may ask for one thing more.
    pub(super) fn may_ask(&self, party: &Party) -> bool {
        lock(&self.requests).take(party, Instant::now())
    }
}

/// One connection's room, until it is dropped.
pub(super) struct Room {
    id: u64,
    bounds: Arc<Bounds>,
    leave: Arc<Notify>,
}

impl Room {
    /// Ends when this connection must make room for another.
    pub(super) async fn taken_away(&self) {
        self.leave.notified().await;
    }

    /// It is known now who this is.
    pub(super) fn belongs_to(&self, party: Party) {
        let mut held = lock(&self.bounds.held);
        // It does not count against itself.
        if let Some(mut holder) = held.rooms.remove(&self.id) {
            self.bounds.make_room(&mut held, &party);
            holder.party = party;
            held.rooms.insert(self.id, holder);
        }
    }

    /// It asked for something.
    pub(super) fn spoke(&self) {
        if let Some(holder) = lock(&self.bounds.held).rooms.get_mut(&self.id) {
            holder.spoke = Instant::now();
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        lock(&self.bounds.held).rooms.remove(&self.id);
    }
}

/// `burst` at once, then one `each`.
#[derive(Clone, Copy)]
struct Rate {
    burst: u32,
    each: Duration,
}

/// Above this many, those that are full again are forgotten.
const BUCKETS_KEPT: usize = 1024;

/// A token bucket for every key.
struct Buckets<K> {
    rate: Rate,
    /// When each will be full again.
    full_at: HashMap<K, Instant>,
    /// Not to look for full ones before: under a flood there are none.
    tidy_at: Option<Instant>,
}

impl<K: Hash + Eq + Clone> Buckets<K> {
    fn new(rate: Rate) -> Self {
        Self { rate, full_at: HashMap::new(), tidy_at: None }
    }

    /// Takes a token of `key`, if there is one.
    fn take(&mut self, key: &K, now: Instant) -> bool {
        let full_at = self.full_at.get(key).copied().map_or(now, |at| at.max(now)) + self.rate.each;
        if full_at > now + self.rate.each * self.rate.burst {
            return false;
        }
        if self.full_at.len() >= BUCKETS_KEPT && self.tidy_at.is_none_or(|at| now >= at) {
            self.tidy_at = Some(now + self.rate.each);
            self.full_at.retain(|_, at| *at > now);
        }
        // Beyond that only a flood from very many: the newest are not counted.
        if self.full_at.len() < BUCKETS_KEPT || self.full_at.contains_key(key) {
            self.full_at.insert(key.clone(), full_at);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(uri: &str) -> Role {
        uri.parse().unwrap()
    }
    fn address(last: u8) -> Party {
        Party::at(IpAddr::from([10, 0, 0, last]))
    }
    /// Whether it was told to make room.
    fn gone(room: &Room) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let soon = Duration::from_millis(1);
        runtime.block_on(async { tokio::time::timeout(soon, room.taken_away()).await.is_ok() })
    }
    fn bounds() -> Arc<Bounds> {
        Arc::new(Bounds::new(Some(role("ballast://chassis/c1"))))
    }

    #[test]
    fn a_token_bucket_gives_a_burst_and_then_one_each() {
        let start = Instant::now();
        let mut buckets = Buckets::new(Rate { burst: 3, each: Duration::from_millis(10) });
        for (ms, expected) in [
            (0, true),
            (0, true),
            (0, true),
            (0, false),
            (9, false),
            (10, true),
            (10, false),
            (20, true),
            (1000, true),
            (1000, true),
            (1000, true),
            (1000, false),
        ] {
            let now = start + Duration::from_millis(ms);
            assert_eq!(buckets.take(&"a", now), expected, "at {ms} ms");
        }
        assert!(buckets.take(&"b", start), "another's tokens are its own");
    }

    #[test]
    fn a_flood_of_addresses_does_not_grow_the_memory() {
        let mut buckets = Buckets::new(Rate { burst: 3, each: Duration::from_millis(10) });
        let now = Instant::now();
        for n in 0..100_000u32 {
            assert!(buckets.take(&n, now));
        }
        assert!(buckets.full_at.len() <= BUCKETS_KEPT);
        assert!(buckets.take(&0, now) && buckets.take(&0, now) && !buckets.take(&0, now));
    }

    #[test]
    fn a_network_counts_as_one_address() {
        let at = |text: &str| Party::at(text.parse().unwrap());
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:2"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(at("::ffff:10.0.0.7"), at("10.0.0.7"));
        assert_ne!(at("10.0.0.7"), at("10.0.0.8"));
    }

    #[test]
    fn who_has_been_silent_longest_makes_room() {
        let bounds = bounds();
        let rooms: Vec<_> = (0..CONNECTIONS_MAX).map(|_| bounds.enter(Party::Local)).collect();
        rooms[0].spoke();
        let _one_more = bounds.enter(Party::Local);
        assert!(!gone(&rooms[0]) && gone(&rooms[1]) && !gone(&rooms[2]));
        assert_eq!(lock(&bounds.held).rooms.len(), CONNECTIONS_MAX);
        assert_eq!(bounds.refusals.evicted.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn one_peer_only_takes_its_own_room() {
        let bounds = bounds();
        let mine = bounds.enter(address(1));
        let theirs: Vec<_> =
            (0..CONNECTIONS_OF_ONE + 3).map(|_| bounds.enter(address(2))).collect();
        assert!(!gone(&mine));
        assert_eq!(theirs.iter().filter(|room| gone(room)).count(), 3);
    }

    #[test]
    fn the_first_peer_is_never_put_out_for_others() {
        let bounds = bounds();
        let chassis = bounds.enter(address(1));
        chassis.belongs_to(Party::Named(role("ballast://chassis/c1")));
        let rooms: Vec<_> = (2..=250)
            .map(|n| {
                let room = bounds.enter(address(n));
                room.belongs_to(Party::Named(role(&format!("ballast://operator/o{n}"))));
                room
            })
            .collect();
        assert!(!gone(&chassis));
        assert_eq!(lock(&bounds.held).rooms.len(), CONNECTIONS_MAX);
        drop((rooms, chassis));
        assert!(lock(&bounds.held).rooms.is_empty());
    }

    #[test]
    fn who_has_left_is_not_counted_again_when_it_gets_a_name() {
        let bounds = bounds();
        let room = bounds.enter(address(1));
        for _ in 0..CONNECTIONS_OF_ONE {
            std::mem::forget(bounds.enter(address(1)));
        }
        room.belongs_to(Party::Local);
        assert!(gone(&room));
        assert_eq!(lock(&bounds.held).rooms.len(), CONNECTIONS_OF_ONE);
    }
}
