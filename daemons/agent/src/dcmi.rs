//! The server's own BMC as its power meter: DCMI in band.

use ballast_bmc::dcmi::Dcmi;
use ballast_hw::{Sampled, Sensor, SensorError};
use ballast_types::Instant;

/// The draw as the BMC tells it, in whole watts. Its time timestamp says whether a value is a new one.
pub(super) struct DcmiMeter(pub(super) Dcmi);

impl Sensor for DcmiMeter {
    fn read(&mut self, _: Instant) -> Result<Sampled, SensorError> {
        let reading = self.0.reading().map_err(|error| SensorError::Device(error.to_string()))?;
        Ok(Sampled { watts: reading.current, mark: Some(reading.timestamp_s.into()) })
    }
}

#[cfg(test)]
mod tests {
    use ballast_bmc::BmcError;
    use ballast_bmc::dcmi::{Command, Transport};
    use ballast_hw::PowerMeter;
    use ballast_types::Watts;

    use super::*;

    /// Answers one after the other; after the last there is no BMC.
    struct Answers(std::vec::IntoIter<Vec<u8>>);

    impl Transport for Answers {
        fn call(&mut self, command: Command, _: &[u8]) -> Result<Vec<u8>, BmcError> {
            let gone = || std::io::ErrorKind::TimedOut.into();
            self.0.next().ok_or_else(|| BmcError::Io { of: format!("{command:?}"), source: gone() })
        }
    }

    fn answer(watts: u8, timestamp: u8, state: u8) -> Vec<u8> {
        vec![0, 0xdc, watts, 0, 1, 0, 9, 1, 2, 0, timestamp, 0, 0, 0, 0xe8, 3, 0, 0, state]
    }

    #[test]
    fn whole_watts_with_a_new_stamp_are_fresh_and_what_is_no_reading_is_missing() {
        let answers = vec![
            answer(217, 1, 0x40),
            answer(217, 1, 0x40),
            answer(217, 2, 0x40),
            answer(0, 3, 0x40),
            answer(217, 4, 0),
            vec![0xc1],
            answer(230, 5, 0x40)[..9].to_vec(),
            answer(230, 6, 0x40),
        ];

        let dcmi = Dcmi::new(Box::new(Answers(answers.into_iter())));
        let mut meter = PowerMeter::new(DcmiMeter(dcmi), Watts::from_whole(225));
        let mut sample = |s: u64| meter.sample(Instant::from_millis(1000 * s));
        let taken = |s: u64| (Watts::from_whole(217), Instant::from_millis(1000 * s));
        assert_eq!(sample(1).unwrap(), taken(1));
        assert_eq!(sample(2).unwrap(), taken(1), "the same value");
        assert_eq!(sample(3).unwrap(), taken(3), "the same watts, measured anew");

        for s in 4..=7 {
            assert!(matches!(sample(s), Err(SensorError::Device(_))), "answer {s}");
        }
        assert!(matches!(sample(8), Err(SensorError::Implausible { .. })));
        assert!(matches!(sample(9), Err(SensorError::Device(_))));
    }
}
