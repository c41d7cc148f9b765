//! Who a peer is, by its certificate.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{ChassisId, PeerName, ServerId};

/// What every role's URI begins with.
const SCHEME: &str = "ballast://";

/// Who a peer is: the one `ballast://` URI among its certificate's subject alternative names.
///
/// ```
/// use ballast_types::Role;
/// let role: Role = "ballast://agent/s01".parse().unwrap();
/// assert_eq!(role.to_string(), "ballast://agent/s01");
/// assert!("ballast://king/s01".parse::<Role>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// `ballast://chassis/ID`: the manager of this chassis; it may alert the chassis's agents.
    Chassis(ChassisId),
    /// `ballast://agent/ID`: the agent of this server.
    Agent(ServerId),
    /// `ballast://operator/NAME`: may set budgets and VMs.
    Operator(PeerName),
    /// `ballast://power/SOURCE`: may post power readings.
    Power(PeerName),
    /// `ballast://place/NAME`: the placement daemon of this name.
    Place(PeerName),
}

impl Role {
    /// `"chassis"`, `"agent"`, `"operator"`, `"power"` or `"place"`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Chassis(_) => "chassis",
            Self::Agent(_) => "agent",
            Self::Operator(_) => "operator",
            Self::Power(_) => "power",
            Self::Place(_) => "place",
        }
    }

    /// The id or name after the kind.
    pub fn id(&self) -> &str {
        match self {
            Self::Chassis(id) => id.as_str(),
            Self::Agent(id) => id.as_str(),
            Self::Operator(name) | Self::Power(name) | Self::Place(name) => name.as_str(),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.kind(), self.id())
    }
}

/// Why a text is no role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{:?} is not ballast://chassis/ID, agent/ID, operator/NAME, power/SOURCE or place/NAME",
    .0.chars().take(100).collect::<String>()
)]
pub struct RoleError(String);

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        let role =
            text.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/')).and_then(
                |(kind, id)| match kind {
                    "chassis" => ChassisId::new(id).ok().map(Self::Chassis),
                    "agent" => ServerId::new(id).ok().map(Self::Agent),
                    "operator" => PeerName::new(id).ok().map(Self::Operator),
                    "power" => PeerName::new(id).ok().map(Self::Power),
                    "place" => PeerName::new(id).ok().map(Self::Place),
                    _ => None,
                },
            );
        role.ok_or_else(|| RoleError(text.to_owned()))
    }
}

impl Serialize for Role {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_its_uri_and_nothing_near_it() {
        for good in [
            "ballast://chassis/rack3-c1",
            "ballast://agent/s-01.rack:3",
            "ballast://operator/ann@site",
            "ballast://power/pdu-7",
            "ballast://place/cluster-2",
        ] {
            let role: Role = good.parse().unwrap();
            assert_eq!(role.to_string(), good);
        }

        for bad in [
            "",
            "ballast://",
            "ballast://chassis",
            "ballast://chassis/",
            "ballast://chassis/a/b",
            "ballast://chassis/a?b",
            "ballast://CHASSIS/a",
            "BALLAST://chassis/a",
            "https://chassis/a",
            " ballast://chassis/a",
            "ballast://agent/..",
            "ballast://agent/s%301",
        ] {
            assert!(bad.parse::<Role>().is_err(), "{bad:?}");
        }
    }
}
