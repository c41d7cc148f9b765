//! What a BMC says, in band and out of band.

use std::collections::VecDeque;

use ballast_bmc::BmcError;
use ballast_bmc::dcmi::{
    Command, Dcmi, DcmiCap, LOG_EVENT, NO_ACTION, Transport, set_limit, take_done, take_limit, take_reading,
};
use ballast_bmc::redfish::read_resource;
use ballast_types::{Cap as _, Watts};

use super::says_something;

/// One answer of IPMI DCMI, as each kind of answer; and a conversation of several.
pub fn dcmi(bytes: &[u8]) {
    match take_reading(bytes) {
        Ok(reading) => assert!(reading.current > Watts::ZERO && reading.current <= Watts::from_whole(65_535)),
        Err(error) => says_something(error),
    }
    for command in [Command::SetLimit, Command::Activate] {
        take_done(command, bytes).unwrap_or_else(says_something);
    }

    match take_limit(bytes) {
        Ok(limit) => {
            let request = set_limit(&limit);
            assert!([NO_ACTION, LOG_EVENT].contains(&request[4]), "a limit that may switch the server off");
            // An answer has two reserved bytes, a request three.
            let answer = [&[if limit.active { 0 } else { 0x80 }, 0xdc, 0, 0], &request[4..]].concat();
            let again = take_limit(&answer).expect("what was written is read");
            assert_eq!((again.limit_w, again.active), (limit.limit_w, limit.active));
        }
        Err(error) => says_something(error),
    }

    let mut cap = DcmiCap::new(Dcmi::new(Box::new(Script::of(bytes))));
    if let Ok(original) = cap.read() {
        cap.set(Watts::from_whole(180), &original).unwrap_or_else(says_something);
        cap.put_back(&original).unwrap_or_else(says_something);
    }
}

/// Answers that were written beforehand; then silence.
struct Script(VecDeque<Vec<u8>>);

impl Script {
    /// Each answer stands after its length.
    fn of(mut bytes: &[u8]) -> Self {
        let mut answers = VecDeque::new();
        while let Some((length, rest)) = bytes.split_first() {
            let (answer, rest) = rest.split_at(rest.len().min(usize::from(*length)));
            answers.push_back(answer.to_vec());
            bytes = rest;
        }
        Self(answers)
    }
}

impl Transport for Script {
    fn call(&mut self, _: Command, body: &[u8]) -> Result<Vec<u8>, BmcError> {
        assert_eq!(body.first(), Some(&0xdc), "a request without the group's id");
        let silent = || BmcError::Late { of: "the script".into(), within_ms: 0 };
        self.0.pop_front().ok_or_else(silent)
    }
}

/// A body of Redfish, as every resource that is read.
pub fn redfish(bytes: &[u8]) {
    let said = read_resource(bytes);

    let most = Watts::from_whole(1_000_000);
    for draw in said.draws {
        match draw {
            Ok(watts) => assert!(watts > Watts::ZERO && watts <= most, "{watts}"),
            Err(error) => says_something(error),
        }
    }
    for supply in said.supplies {
        assert!(supply.input.is_none_or(|watts| watts >= Watts::ZERO && watts <= most), "{supply:?}");
    }

    for limit in said.limits {
        match limit {
            Ok(limit) => {
                assert!(limit.in_force().is_none_or(|watts| watts > 0.0 && watts.is_finite()), "{limit:?}");
                let text = serde_json::to_string(&limit).expect("a limit is JSON");
                assert_eq!(serde_json::from_str(&text).ok(), Some(limit), "{text}");
            }
            Err(why) => says_something(why),
        }
    }
    for path in said.paths {
        assert!(path.starts_with("/redfish/") && !path.split('/').any(|part| part == ".."), "{path}");
    }
}
