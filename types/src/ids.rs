//! Names of things: servers, chassis, VMs, cores, messages and actions.

use core::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, de};

/// Why a text is no id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{:?} is not an id: 1 to 64 of A-Z a-z 0-9 . _ - : @, not starting with a dot",
    text.chars().take(80).collect::<String>()
)]
pub struct IdError {
    text: String,
}

fn check(text: &str) -> Result<(), IdError> {
    let ok = (1..=64).contains(&text.len())
        && !text.starts_with('.')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-:@".contains(&b));
    if ok { Ok(()) } else { Err(IdError { text: text.to_owned() }) }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks and takes the text: 1 to 64 of `A-Z a-z 0-9 . _ - : @`, no leading dot.
            ///
            /// # Errors
            /// Where the text is anything else.
            pub fn new(text: &str) -> Result<Self, IdError> {
                check(text).map(|()| Self(text.into()))
            }
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                Self::new(&String::deserialize(d)?).map_err(de::Error::custom)
            }
        }
    };
}

text_id! {
    /// A server's name, unique in its chassis.
    ServerId
}
text_id! {
    /// A chassis's name; an agent obeys one chassis only.
    ChassisId
}
text_id! {
    /// A virtual machine's name, unique on its server.
    VmId
}
text_id! {
    /// The name of an operator, an outside power source or a placement daemon, in its certificate.
    PeerName
}
text_id! {
    /// One boot of one machine: `/proc/sys/kernel/random/boot_id`.
    BootId
}

/// A number that names something: `number_id! { /// What it names. Name(u64) }`.
#[macro_export]
macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize,
            serde::Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The next one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }
        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_id! {
    /// One core that is clocked by itself, named by its lowest CPU number.
    CoreId(u16)
}
number_id! {
    /// One life of a chassis manager; rises at every start and is persisted before use.
    Epoch(u64)
}
number_id! {
    /// One start of a chassis manager, drawn at random: two managers of one epoch are told apart by it.
    Instance(u64)
}
number_id! {
    /// A message's number within its epoch.
    Seq(u64)
}
number_id! {
    /// One action that an actuator must answer.
    ActionId(u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_refuse_what_could_leave_a_folder() {
        for bad in ["", "a/b", "..", ".hidden", "a b", "é", &"x".repeat(65)] {
            assert!(ServerId::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(ServerId::new("s-01.rack:3").unwrap().as_str(), "s-01.rack:3");
    }
}
