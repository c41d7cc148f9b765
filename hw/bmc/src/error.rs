use std::io;

use ballast_types::{CapError, Watts};

/// Why a BMC did not do what it was asked, or said nothing usable.
#[derive(Debug, thiserror::Error)]
pub enum BmcError {
    /// The way to the BMC failed: the device, the network, TLS.
    #[error("{of}: {source}")]
    Io { of: String, source: io::Error },
    #[error("{of}: the BMC did not answer within {within_ms} ms")]
    Late { of: String, within_ms: u128 },
    #[error("{of}: the BMC refused: {why}")]
    Refused {
        of: String,
        /// Its reason, or the meaning of its code.
        why: String,
        /// Whether it may take the same request later.
        transient: bool,
    },
    /// An answer that is not what the specification allows.
    #[error("{of} is {value}; expected: {allowed}")]
    Malformed {
        of: String,
        /// What was there, cut to 80 characters.
        value: String,
        allowed: String,
    },
    /// This BMC cannot do it, or it would not be safe.
    #[error("{of}: {why}")]
    Unusable { of: String, why: String },
    /// A limit did not take.
    #[error("{of}: reads {is} after {written} was written")]
    NotKept { of: String, is: String, written: String },
}

impl BmcError {
    pub(crate) fn malformed(
        of: impl Into<String>,
        value: impl std::fmt::Display,
        allowed: impl Into<String>,
    ) -> Self {
        Self::Malformed { of: of.into(), value: cut(&format!("{value}")), allowed: allowed.into() }
    }

    pub(crate) fn unusable(of: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Unusable { of: of.into(), why: why.into() }
    }

    /// Whether trying again may help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Io { source, .. } => {
                !matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
            }
            Self::Late { .. } | Self::NotKept { .. } => true,
            Self::Refused { transient, .. } => *transient,
            Self::Malformed { .. } | Self::Unusable { .. } => false,
        }
    }
}

impl From<BmcError> for CapError {
    fn from(error: BmcError) -> Self {
        Self { reason: error.to_string(), transient: error.is_transient() }
    }
}

/// At most 80 characters, none of them a control character: what a BMC says goes into logs.
pub(crate) fn cut(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(80).collect()
}

/// A reading above zero; zero, negative and implausible ones are missing, never low.
pub(crate) fn above_zero(of: &str, watts: Option<f64>) -> Result<Watts, BmcError> {
    let allowed = "a number of watts, above 0";
    let Some(value) = watts else { return Err(BmcError::malformed(of, "null", allowed)) };
    let watts = Watts::from_f64(value).filter(|watts| *watts > Watts::ZERO && value < 1e6);
    watts.ok_or_else(|| BmcError::malformed(of, value, allowed))
}
