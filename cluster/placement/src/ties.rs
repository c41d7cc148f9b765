//! Who wins among hosts that no rule tells apart.

use core::fmt;
use core::str::FromStr;

use ballast_types::SplitMix64;
use serde::{Serialize, Serializer};

use crate::{Cluster, HostId};

/// Ids run chassis by chassis: ties by id fill some chassis and leave others idle, so that power is uneven before any
/// rule looks at it; a hash spreads hosts alike over chassis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ties {
    /// The lowest id.
    Id,
    /// The lowest hash of this seed and the host's label, or its id where it has none: the same on every run.
    Hash(u64),
}

/// The order of ties: lower wins. The host's id is in the lower half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TieKey(u64);

impl TieKey {
    pub(crate) const LOWEST: Self = Self(0);

    pub(crate) const fn host(self) -> HostId {
        HostId(self.0 as u32)
    }

    /// The next one; past the last there is no host.
    pub(crate) const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl Ties {
    /// The hash that everybody uses who asks for no seed.
    pub const HASH: Self = Self::Hash(0);

    /// Of a host that is there, or was the last of its id.
    pub(crate) fn key(self, cluster: &Cluster, host: HostId) -> TieKey {
        match self {
            Self::Id => TieKey(u64::from(host.0)),
            Self::Hash(seed) => {
                let label = cluster.host(host).label.unwrap_or(u64::from(host.0));
                let hash = SplitMix64::finalise(SplitMix64::first(seed) ^ label);
                TieKey(hash & !u64::from(u32::MAX) | u64::from(host.0))
            }
        }
    }
}

impl fmt::Display for Ties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id => f.write_str("id"),
            Self::Hash(seed) => write!(f, "hash:{seed}"),
        }
    }
}

impl Serialize for Ties {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Ties {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("hash") {
            Some("") => Some(Self::HASH),
            Some(seed) => seed.strip_prefix(':').and_then(|seed| seed.parse().ok()).map(Self::Hash),
            None => (text == "id").then_some(Self::Id),
        }
        .ok_or("id, hash, or hash:SEED, a whole number")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChassisId, Host, Resources};

    #[test]
    fn every_host_has_one_key_and_a_seed_its_own_order() {
        let cluster = Cluster::new(&[Host::new(ChassisId(0), Resources::ZERO); 1000]);
        let order = |ties: Ties| {
            let mut hosts: Vec<u32> = (0..1000).collect();
            hosts.sort_by_key(|id| ties.key(&cluster, HostId(*id)));
            hosts
        };
        assert!(order(Ties::Id).is_sorted());
        assert_eq!(order(Ties::Hash(1)), order(Ties::Hash(1)));
        assert_ne!(order(Ties::Hash(1)), order(Ties::Hash(2)));
        assert!((0..1000).all(|id| Ties::Hash(7).key(&cluster, HostId(id)).host() == HostId(id)));

        // A label stays when ids change.
        let labelled = |label| Host { label: Some(label), ..Host::new(ChassisId(0), Resources::ZERO) };
        let (one, other) = (Cluster::new(&[8, 5, 9].map(labelled)), Cluster::new(&[5, 9].map(labelled)));
        let before =
            |cluster: &Cluster, a, b| Ties::HASH.key(cluster, HostId(a)) < Ties::HASH.key(cluster, HostId(b));
        assert_eq!(before(&one, 1, 2), before(&other, 0, 1));

        // Each tenth of the order has hosts of every tenth of the ids.
        for tenth in order(Ties::HASH).chunks(100) {
            let of = |n: u32| tenth.iter().filter(|id| **id / 100 == n).count();
            assert!((0..10).all(|n| (1..=25).contains(&of(n))), "{tenth:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_and_all_else_refused() {
        for ties in [Ties::Id, Ties::HASH, Ties::Hash(u64::MAX)] {
            assert_eq!(ties.to_string().parse(), Ok(ties));
        }
        assert_eq!("hash".parse(), Ok(Ties::HASH));
        for text in ["", "ids", "hash:", "hash:-1", "hash7", "HASH"] {
            assert!(text.parse::<Ties>().is_err(), "{text}");
        }
    }
}
