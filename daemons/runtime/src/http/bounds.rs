//! How much of a daemon one peer, and all of them together, can have.
//!
//! Connections: where there is no room, the one that has gone longest without a request makes room, and
//! first of all one that has not proven who it is. So stuck clients, slow ones and half-open handshakes
//! never keep out one that speaks. Requests: a token bucket for every peer.
//!
//! Handshakes cost the most, and whoever asks for one is nobody yet. So there are three shares, and a flood
//! on one leaves the others alone: the peer that must come through shows a reservation, which it was given on
//! an earlier connection; addresses where somebody with a role was lately; everybody else.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::http::StatusCode;

use crate::lock;
use ballast_types::Role;
use tokio::sync::Notify;

/// All connections: what they hold must never starve the files that throttle cores.
const CONNECTIONS_MAX: usize = 128;
/// Those of one peer beyond loopback.
const CONNECTIONS_OF_ONE: usize = 16;
/// Handshakes that one address may begin: they are the dearest thing to ask for.
const HANDSHAKES: Rate = Rate { burst: 40, each: Duration::from_millis(50) };
/// Those of all addresses of a share together: some 3 % of a core.
const HANDSHAKES_OF_ALL: Rate = Rate { burst: 400, each: Duration::from_millis(5) };
/// Addresses that are known at most; the one that has not been heard from longest is forgotten.
const ADDRESSES_KNOWN: usize = 256;
/// Between two lines in the log about refusals.
const TELL_EACH: Duration = Duration::from_secs(10);
/// Requests of one peer to a daemon that controls power.
const REQUESTS: Rate = Rate { burst: 200, each: Duration::from_millis(5) };
/// Requests of one peer to a daemon that is there to answer: above what one core answers.
const QUERIES: Rate = Rate { burst: 50_000, each: Duration::from_micros(20) };

/// Whose room and whose tokens are used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Party {
    /// Anybody on this machine, over plain HTTP.
    Local,
    /// Who came by the daemon's socket: root, or a member of its group. Nobody else on this machine puts its
    /// connections out, or uses its tokens.
    Socket,
    /// Somebody who has not said who he is, or has no role: an address, or its IPv6 /64.
    Address(IpAddr),
    /// Somebody in his handshake who has shown the first peer's reservation. Reservations are shown in the
    /// clear: this is not yet that peer, and has nothing of its.
    Reserved,
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

    /// Whether anybody at all could be this.
    fn is_unproven(&self) -> bool {
        matches!(self, Self::Address(_))
    }
}

/// What was refused, and what became of orders, for metrics.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Connections that made room for others.
    pub evicted: AtomicU64,
    /// Handshakes that failed, took too long, or came too often.
    pub handshakes: AtomicU64,
    /// Requests without the role that they need.
    pub unauthorised: AtomicU64,
    /// Requests that came too often.
    pub too_many: AtomicU64,
    /// Requests as a foreign page in a browser sends them.
    pub foreign: AtomicU64,
    /// Changes that somebody with the right has ordered: done, failed, refused.
    pub orders: [AtomicU64; 3],
}

impl Refusals {
    pub(super) fn ordered(&self, answer: StatusCode) {
        let [done, failed, refused] = &self.orders;
        let count = match answer {
            _ if answer.is_success() => done,
            _ if answer.is_server_error() => failed,
            _ => refused,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

pub struct Bounds {
    held: Mutex<Held>,
    handshakes: Mutex<Handshakes>,
    requests: Mutex<Buckets<Party>>,
    /// Who always keeps its connections: the one whose alerts must come through.
    pub(super) first: Option<Role>,
    /// When the log was last told of refusals.
    warned_at: Mutex<Option<Instant>>,
    pub refusals: Refusals,
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
    /// Of a daemon that controls power.
    pub fn new(first: Option<Role>) -> Self {
        Self::at_rate(REQUESTS, first)
    }

    /// Of a daemon that is there to answer.
    pub(super) fn of_queries() -> Self {
        Self::at_rate(QUERIES, None)
    }

    fn at_rate(requests: Rate, first: Option<Role>) -> Self {
        Self {
            held: Mutex::default(),
            handshakes: Mutex::new(Handshakes::new()),
            requests: Mutex::new(Buckets::new(requests)),
            first,
            warned_at: Mutex::default(),
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
            false => {
                let kept = [Party::Reserved, Party::Socket];
                !kept.contains(&holder.party) && Some(&holder.party) != first.as_ref()
            }
        };

        let order = |holder: &Holder| (!holder.party.is_unproven(), holder.spoke);
        let silent = held.rooms.iter().filter(|(_, holder)| may_go(holder));
        let Some(id) = silent.min_by_key(|(_, holder)| order(holder)).map(|(id, _)| *id) else {
            return;
        };

        if let Some(holder) = held.rooms.remove(&id) {
            holder.leave.notify_one();
            self.refusals.evicted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether one who comes from this address, with the first peer's reservation or without, may begin a
    /// handshake.
    pub(super) fn may_handshake(&self, from: IpAddr, reserved: bool) -> bool {
        lock(&self.handshakes).take(from.to_canonical(), reserved, Instant::now())
    }

    /// Somebody with a role has come from there.
    pub(super) fn knows(&self, from: IpAddr) {
        lock(&self.handshakes).knows(from.to_canonical(), Instant::now());
    }

    /// Whether a refusal is to be told in the log: what anybody can provoke must not fill it. All are
    /// counted.
    pub(super) fn is_told(&self) -> bool {
        let (now, mut told) = (Instant::now(), lock(&self.warned_at));
        let due = told.is_none_or(|at| now.duration_since(at) >= TELL_EACH);
        if due {
            *told = Some(now);
        }
        due
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

struct Handshakes {
    /// Who shows the reservation. Somebody who has read it on the wire can use this up, and then is one of
    /// the others.
    reserved: Buckets<()>,
    first_peer: Share,
    others: Share,
    /// Where somebody with a role was, and when.
    addresses: HashMap<IpAddr, Instant>,
}

/// So many for each address, and so many for all of them.
struct Share {
    of_one: Buckets<Party>,
    of_all: Buckets<()>,
}

impl Share {
    fn new() -> Self {
        Self { of_one: Buckets::new(HANDSHAKES), of_all: Buckets::new(HANDSHAKES_OF_ALL) }
    }

    fn take(&mut self, party: &Party, now: Instant) -> bool {
        self.of_one.take(party, now) && self.of_all.take(&(), now)
    }
}

impl Handshakes {
    fn new() -> Self {
        let (reserved, addresses) = (Buckets::new(HANDSHAKES), HashMap::new());
        Self { reserved, first_peer: Share::new(), others: Share::new(), addresses }
    }

    fn take(&mut self, from: IpAddr, reserved: bool, now: Instant) -> bool {
        if reserved && self.reserved.take(&(), now) {
            return true;
        }
        if self.addresses.contains_key(&from) {
            // Its very own: neighbours in its network are no concern of its.
            return self.first_peer.take(&Party::Address(from), now);
        }
        self.others.take(&Party::at(from), now)
    }

    fn knows(&mut self, from: IpAddr, now: Instant) {
        if self.addresses.len() >= ADDRESSES_KNOWN && !self.addresses.contains_key(&from) {
            let oldest = self.addresses.iter().min_by_key(|(_, at)| **at).map(|(from, _)| *from);
            oldest.and_then(|from| self.addresses.remove(&from));
        }
        self.addresses.insert(from, now);
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

    /// Handshakes under a flood: 10,000 a second from `flood`, for a second; how many of ten tries from
    /// `from`, spread over it, come through.
    fn admitted(
        known: Option<&str>,
        flood: impl Fn(u32) -> IpAddr,
        from: &str,
        reserved: bool,
    ) -> (u32, u32) {
        let (start, from) = (Instant::now(), from.parse().unwrap());
        let mut handshakes = Handshakes::new();
        if let Some(known) = known {
            handshakes.knows(known.parse().unwrap(), start);
        }
        let (mut own, mut theirs) = (0, 0);

        for n in 0..20_000 {
            let now = start + Duration::from_micros(100) * n;
            theirs += u32::from(handshakes.take(flood(n), false, now));

            // The first second uses up every burst.
            if n >= 10_000 && n % 1000 == 500 {
                own += u32::from(handshakes.take(from, reserved, now));
            }
        }

        (own, theirs)
    }

    #[test]
    fn a_flood_of_handshakes_does_not_keep_out_who_was_there_before() {
        let manager = "2001:db8::7";
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let own = |_| at(manager);
        let neighbours = |n: u32| IpAddr::V6(Ipv6Addr::from(u128::from(n) + (0x2001_0db8 << 96)));
        let everybody = |n: u32| IpAddr::from(n.to_be_bytes());
        type Flood<'a> = &'a dyn Fn(u32) -> IpAddr;
        let floods: [(&str, Flood<'_>, u32); 3] = [
            ("its own address", &own, 80),
            ("its network", &neighbours, 80),
            ("everywhere", &everybody, 800),
        ];

        for (what, flood, most) in floods {
            let (passed, theirs) = admitted(Some(manager), flood, manager, true);
            assert_eq!(passed, 10, "{what}: with the reservation");
            assert!(theirs <= most, "{what}: {theirs}");
            let (known, _) = admitted(Some(manager), flood, manager, false);

            // On its very address nothing tells it from the flood.
            assert_eq!(known == 10, what != "its own address", "{what}: by its address: {known}");
            let (unknown, _) = admitted(None, flood, manager, false);
            assert!(unknown < 10, "{what}: an unknown client");
        }
    }

    #[test]
    fn a_reservation_that_was_read_on_the_wire_takes_nothing_from_the_others() {
        let (start, mut handshakes) = (Instant::now(), Handshakes::new());
        let thief = IpAddr::from([10, 0, 0, 66]);
        let taken = (0..10_000).filter(|_| handshakes.take(thief, true, start)).count();
        assert_eq!(taken, 2 * HANDSHAKES.burst as usize, "the reservation's, and its own");
        assert!(handshakes.take(IpAddr::from([10, 0, 0, 7]), true, start), "as one of the others");
        for n in 0..100_000u32 {
            handshakes.knows(IpAddr::from(n.to_be_bytes()), start + Duration::from_secs(n.into()));
        }
        assert_eq!(handshakes.addresses.len(), ADDRESSES_KNOWN);
        assert!(handshakes.addresses.contains_key(&IpAddr::from(99_999u32.to_be_bytes())));
    }

    #[test]
    fn who_has_not_proven_who_he_is_makes_room_first() {
        let bounds = bounds();
        let operator = bounds.enter(address(1));
        operator.belongs_to(Party::Named(role("ballast://operator/ann")));
        let passed = bounds.enter(address(1));
        passed.belongs_to(Party::Reserved);
        let flood: Vec<_> =
            (0..1000u32).map(|n| bounds.enter(Party::at(IpAddr::from((n << 8).to_be_bytes())))).collect();
        assert!(!gone(&operator) && !gone(&passed));
        assert!(gone(&flood[0]) && !gone(&flood[999]));
        assert_eq!(lock(&bounds.held).rooms.len(), CONNECTIONS_MAX);
    }

    #[test]
    fn the_log_is_told_seldom() {
        let bounds = bounds();
        assert_eq!((0..1000).filter(|_| bounds.is_told()).count(), 1);
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
        let theirs: Vec<_> = (0..CONNECTIONS_OF_ONE + 3).map(|_| bounds.enter(address(2))).collect();
        assert!(!gone(&mine));
        assert_eq!(theirs.iter().filter(|room| gone(room)).count(), 3);
    }

    #[test]
    fn nobody_else_on_this_machine_puts_out_who_came_by_the_socket() {
        let bounds = bounds();
        let operator = bounds.enter(Party::Socket);
        let rooms: Vec<_> = (0..=CONNECTIONS_MAX).map(|_| bounds.enter(Party::Local)).collect();
        assert!(!gone(&operator) && gone(&rooms[0]));
        assert_eq!(lock(&bounds.held).rooms.len(), CONNECTIONS_MAX);

        while bounds.may_ask(&Party::Local) {}
        assert!(bounds.may_ask(&Party::Socket), "it has tokens of its own");

        let more: Vec<_> = (0..CONNECTIONS_OF_ONE).map(|_| bounds.enter(Party::Socket)).collect();
        assert!(gone(&operator) && !more.iter().any(gone), "they are bounded all the same");
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
