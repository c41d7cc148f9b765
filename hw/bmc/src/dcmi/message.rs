//! DCMI's power messages as bytes. Nothing here does I/O.
//!
//! Source: Data Center Manageability Interface Specification 1.5, chapter 6.6. Numbers are little-endian;
//! every body begins with the group extension's id.

use ballast_types::Watts;
use serde::{Deserialize, Serialize};

use crate::BmcError;
use crate::error::above_zero;

/// The group extension network function; an answer's has its lowest bit set.
pub const NETFN: u8 = 0x2c;
/// DCMI's id within it.
const GROUP: u8 = 0xdc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Command {
    GetReading = 0x02,
    GetLimit = 0x03,
    SetLimit = 0x04,
    Activate = 0x05,
}

impl Command {
    fn name(self) -> &'static str {
        match self {
            Self::GetReading => "DCMI Get Power Reading",
            Self::GetLimit => "DCMI Get Power Limit",
            Self::SetLimit => "DCMI Set Power Limit",
            Self::Activate => "DCMI Activate/Deactivate Power Limit",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerReading {
    pub current: Watts,
    /// The lowest draw of the period, in watts; many BMCs repeat the current one.
    pub minimum_w: u16,
    pub maximum_w: u16,
    pub average_w: u16,
    /// When it was measured: seconds by the BMC's own clock.
    pub timestamp_s: u32,
    /// The period of the statistics, in milliseconds.
    pub period_ms: u32,
}

/// A power limit as the BMC has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DcmiCapState {
    pub active: bool,
    /// What the BMC does when it cannot hold it: [`NO_ACTION`], [`HARD_POWER_OFF`], [`LOG_EVENT`], or an OEM's.
    pub action: u8,
    /// The limit, in watts; 0 if none was ever set.
    pub limit_w: u16,
    /// How long the draw may stay above it before the action, in milliseconds.
    pub correction_ms: u32,
    /// The period over which the BMC averages, in seconds.
    pub sampling_s: u16,
}

/// The exception action: none.
pub const NO_ACTION: u8 = 0x00;
/// The exception action that this crate never writes: the server is switched off.
pub const HARD_POWER_OFF: u8 = 0x01;
/// The exception action: an entry in the event log.
pub const LOG_EVENT: u8 = 0x11;

impl DcmiCapState {
    /// The action that may be written: what was found if it does no harm, else none.
    pub fn safe_action(&self) -> u8 {
        if self.action == LOG_EVENT { LOG_EVENT } else { NO_ACTION }
    }
}

/// Asks for the draw (system power statistics).
pub fn get_reading() -> Vec<u8> {
    vec![GROUP, 0x01, 0, 0]
}

pub fn get_limit() -> Vec<u8> {
    vec![GROUP, 0, 0]
}

/// Sets the limit's values, with its [safe action](DcmiCapState::safe_action); does not activate it.
pub fn set_limit(limit: &DcmiCapState) -> Vec<u8> {
    let mut body = vec![GROUP, 0, 0, 0, limit.safe_action()];
    body.extend(limit.limit_w.to_le_bytes());
    body.extend(limit.correction_ms.to_le_bytes());
    body.extend([0, 0]);
    body.extend(limit.sampling_s.to_le_bytes());
    body
}

pub fn activate(on: bool) -> Vec<u8> {
    vec![GROUP, u8::from(on), 0, 0]
}

/// Takes the answer to [`get_reading`], completion code first.
pub fn take_reading(answer: &[u8]) -> Result<PowerReading, BmcError> {
    let body: &[u8; 17] = body(Command::GetReading, answer)?;
    let &[c0, c1, l0, l1, h0, h1, a0, a1, t0, t1, t2, t3, p0, p1, p2, p3, state] = body;
    if state & (1 << 6) == 0 {
        let why = "power measurement is not active (bit 6 of the state)";
        return Err(BmcError::unusable(Command::GetReading.name(), why));
    }
    let current = f64::from(u16::from_le_bytes([c0, c1]));
    Ok(PowerReading {
        current: above_zero(Command::GetReading.name(), Some(current))?,
        minimum_w: u16::from_le_bytes([l0, l1]),
        maximum_w: u16::from_le_bytes([h0, h1]),
        average_w: u16::from_le_bytes([a0, a1]),
        timestamp_s: u32::from_le_bytes([t0, t1, t2, t3]),
        period_ms: u32::from_le_bytes([p0, p1, p2, p3]),
    })
}

/// Takes the answer to [`get_limit`], completion code first. The code 0x80 says that no limit is active; its
/// values follow all the same, but on some BMCs.
pub fn take_limit(answer: &[u8]) -> Result<DcmiCapState, BmcError> {
    const INACTIVE: u8 = 0x80;
    let active = answer.first() != Some(&INACTIVE);
    let none = DcmiCapState { active: false, action: NO_ACTION, limit_w: 0, correction_ms: 0, sampling_s: 0 };

    if matches!(answer, [INACTIVE] | [INACTIVE, GROUP]) {
        return Ok(none);
    }
    let values = if active { answer.to_vec() } else { [&[0], &answer[1..]].concat() };
    let body: &[u8; 13] = body(Command::GetLimit, &values)?;
    let &[_, _, action, l0, l1, c0, c1, c2, c3, _, _, s0, s1] = body;

    Ok(DcmiCapState {
        active,
        action,
        limit_w: u16::from_le_bytes([l0, l1]),
        correction_ms: u32::from_le_bytes([c0, c1, c2, c3]),
        sampling_s: u16::from_le_bytes([s0, s1]),
    })
}

/// Takes the answer to [`set_limit`] or [`activate`], completion code first.
pub fn take_done(command: Command, answer: &[u8]) -> Result<(), BmcError> {
    body::<0>(command, answer).map(|_| ())
}

/// What follows the completion code 0 and the group's id; exactly `N` bytes.
fn body<const N: usize>(command: Command, answer: &[u8]) -> Result<&[u8; N], BmcError> {
    let malformed = || {
        let allowed = format!("completion code 0, group id 0xdc and {N} bytes");
        BmcError::malformed(command.name(), format_args!("{answer:02x?}"), allowed)
    };
    match answer {
        [0, GROUP, body @ ..] => body.try_into().map_err(|_| malformed()),
        [code, ..] if *code != 0 => Err(refused(command, *code)),
        _ => Err(malformed()),
    }
}

/// The meaning of a completion code (IPMI 2.0, table 5-2; DCMI 1.5, 6.6.2 to 6.6.4).
fn refused(command: Command, code: u8) -> BmcError {
    let meaning = match (command, code) {
        (Command::SetLimit, 0x84) => "power limit out of range",
        (Command::SetLimit, 0x85) => "correction time out of range",
        (Command::SetLimit, 0x89) => "statistics reporting period out of range",
        (_, 0xc0) => "node busy",
        (_, 0xc1) => "invalid command: this BMC has no DCMI power management",
        (_, 0xc3) => "timeout while processing",
        (_, 0xc7) => "request data length invalid",
        (_, 0xc9) => "parameter out of range",
        (_, 0xcb) => "sensor or record not present",
        (_, 0xcc) => "invalid data field",
        (_, 0xce) => "response could not be provided",
        (_, 0xcf) => "duplicated request",
        (_, 0xd0) => "sensor repository being updated",
        (_, 0xd1) => "firmware being updated",
        (_, 0xd2) => "BMC initialising",
        (_, 0xd4) => "insufficient privilege",
        (_, 0xd5) => "not supported in the present state",
        (_, 0xd6) => "disabled or unavailable",
        (_, 0xdf) => "timeout at the BMC",
        (_, 0xff) => "unspecified error",
        _ => "a code of its own",
    };

    let transient = matches!(code, 0xc0 | 0xc3 | 0xce | 0xcf | 0xd0..=0xd2 | 0xdf | 0xff);
    let why = format!("{meaning} (completion code 0x{code:02x})");

    BmcError::Refused { of: command.name().into(), why, transient }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const READING: [u8; 19] = [0, 0xdc, 0xe6, 0, 0x70, 0, 0x36, 1, 0xc8, 0, 1, 2, 3, 4, 0xe8, 3, 0, 0, 0x40];
    const LIMIT: [u8; 15] = [0, 0xdc, 0, 0, 0x11, 0x2c, 1, 0xe8, 3, 0, 0, 0, 0, 5, 0];

    #[test]
    fn a_reading_is_read() {
        let reading = take_reading(&READING).unwrap();
        assert_eq!(reading.current, Watts::from_whole(230));
        assert_eq!((reading.minimum_w, reading.maximum_w, reading.average_w), (112, 310, 200));
        assert_eq!((reading.timestamp_s, reading.period_ms), (0x0403_0201, 1000));
    }

    #[test]
    fn requests_are_the_bytes_of_the_specification() {
        assert_eq!(get_reading(), [0xdc, 1, 0, 0]);
        assert_eq!(get_limit(), [0xdc, 0, 0]);
        assert_eq!((activate(true), activate(false)), (vec![0xdc, 1, 0, 0], vec![0xdc, 0, 0, 0]));
        let limit = take_limit(&LIMIT).unwrap();
        let request = [0xdc, 0, 0, 0, 0x11, 0x2c, 1, 0xe8, 3, 0, 0, 0, 0, 5, 0];
        assert_eq!(set_limit(&limit), request);
    }

    /// One row: a fault in an answer, and what comes of it.
    #[test]
    fn answers_that_are_not_usable_are_named() {
        let changed = |at: usize, to: u8| {
            let mut bytes = READING.to_vec();
            bytes[at] = to;
            bytes
        };

        let zero = [&READING[..2], &[0, 0], &READING[4..]].concat();
        for (answer, says, transient) in [
            (vec![], "17 bytes", false),
            (vec![0], "17 bytes", false),
            (READING[..18].to_vec(), "17 bytes", false),
            ([&READING[..], &[0]].concat(), "17 bytes", false),
            (changed(1, 0xdd), "group id 0xdc", false),
            (changed(18, 0), "not active", false),
            (zero, "above 0", false),
            (changed(0, 0xc1), "no DCMI", false),
            (vec![0xcb], "not present", false),
            (vec![0xdf, 0xdc], "timeout at the BMC", true),
            (vec![0xc0], "busy", true),
            (vec![0xd4], "privilege", false),
            (vec![0x7e], "0x7e", false),
        ] {
            let error = take_reading(&answer).unwrap_err();
            assert!(error.to_string().contains(says), "{answer:02x?}: {error}");
            assert_eq!(error.is_transient(), transient, "{error}");
        }

        for (code, says) in [(0x84, "limit out of range"), (0x85, "correction"), (0x89, "period")] {
            let error = take_done(Command::SetLimit, &[code, 0xdc]).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }

        assert!(take_done(Command::Activate, &[0, 0xdc]).is_ok());
        assert!(take_done(Command::Activate, &[0, 0xdc, 0]).is_err());
    }

    #[test]
    fn an_inactive_limit_is_read_with_or_without_its_values() {
        let mut answer = LIMIT;
        assert!(take_limit(&answer).unwrap().active);
        answer[0] = 0x80;
        let limit = take_limit(&answer).unwrap();
        assert_eq!((limit.active, limit.limit_w, limit.sampling_s), (false, 300, 5));
        for bare in [&[0x80][..], &[0x80, 0xdc]] {
            let limit = take_limit(bare).unwrap();
            assert_eq!((limit.active, limit.limit_w), (false, 0));
        }
        assert!(take_limit(&answer[..9]).is_err(), "half of the values");
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = take_limit(&bytes);
            let _ = take_done(Command::SetLimit, &bytes);
            if let Ok(reading) = take_reading(&bytes) {
                prop_assert!(reading.current > Watts::ZERO && bytes.len() == 19);
            }
        }

        #[test]
        fn a_limit_survives_its_bytes_and_never_switches_off(
            active in any::<bool>(), action in any::<u8>(), limit_w in any::<u16>(),
            correction_ms in any::<u32>(), sampling_s in any::<u16>(),
        ) {
            let limit = DcmiCapState { active, action, limit_w, correction_ms, sampling_s };
            let request = set_limit(&limit);
            prop_assert!([NO_ACTION, LOG_EVENT].contains(&request[4]));
            // An answer has two reserved bytes, a request three.
            let answer = [&[if active { 0 } else { 0x80 }, 0xdc, 0, 0], &request[4..]].concat();
            let expected = DcmiCapState { action: limit.safe_action(), ..limit };
            prop_assert_eq!(take_limit(&answer).unwrap(), expected);
        }
    }
}
