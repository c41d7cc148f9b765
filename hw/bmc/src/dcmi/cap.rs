use ballast_types::{Cap, CapError, Watts};
use tracing::warn;

use super::{Dcmi, DcmiCapState, HARD_POWER_OFF};
use crate::BmcError;

/// A BMC may round a limit by so much.
const ROUNDING_W: u16 = 1;

/// The server's power limit at its BMC.
pub struct DcmiCap(Dcmi);

impl DcmiCap {
    pub fn new(dcmi: Dcmi) -> Self {
        Self(dcmi)
    }

    fn verify(&mut self, wanted: &DcmiCapState) -> Result<(), BmcError> {
        let is = self.0.limit()?;
        let near = is.limit_w.abs_diff(wanted.limit_w) <= ROUNDING_W;
        if is.active == wanted.active && (near || !is.active) {
            return Ok(());
        }
        Err(BmcError::NotKept { of: "DCMI limit".into(), is: text(&is), written: text(wanted) })
    }
}

impl Cap for DcmiCap {
    type State = DcmiCapState;

    fn read(&mut self) -> Result<DcmiCapState, CapError> {
        Ok(self.0.limit()?)
    }

    fn set(&mut self, watts: Watts, original: &DcmiCapState) -> Result<(), CapError> {
        let before = if limits(original) { original.limit_w } else { u16::MAX };
        let limit_w = u16::try_from(watts.milli() / 1000).ok().filter(|limit| *limit > 0);
        let limit_w = limit_w.ok_or_else(|| BmcError::malformed("DCMI limit", watts, "1 to 65535 W"))?;
        let limit = DcmiCapState { active: true, limit_w: limit_w.min(before), ..*original };
        self.0.set_limit(&limit)?;
        Ok(self.verify(&limit)?)
    }

    fn put_back(&mut self, original: &DcmiCapState) -> Result<(), CapError> {
        if original.action == HARD_POWER_OFF {
            warn!(
                "the DCMI limit would have switched the server off when exceeded: it is put back without \
                 that action"
            );
        }
        // What never was in force need not be written: many BMCs refuse a limit of 0.
        let none = DcmiCapState { active: false, ..*original };
        let (wanted, done) = if original.limit_w == 0 {
            (&none, self.0.activate(false))
        } else {
            (original, self.0.set_limit(original))
        };
        // A refusal matters only if the limit now stands otherwise: deactivating twice is one.
        match self.verify(wanted) {
            Ok(()) => Ok(()),
            Err(unlike) => Err(done.err().unwrap_or(unlike).into()),
        }
    }

    fn is_on(now: &DcmiCapState, original: &DcmiCapState) -> bool {
        limits(now) && (!limits(original) || now.limit_w.saturating_add(ROUNDING_W) < original.limit_w)
    }
}

/// Whether anything is limited: 0 W in force is how some BMCs say that there is no limit.
fn limits(limit: &DcmiCapState) -> bool {
    limit.active && limit.limit_w > 0
}

fn text(limit: &DcmiCapState) -> String {
    format!("{} W, {}", limit.limit_w, if limit.active { "active" } else { "not active" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dcmi::{Command, LOG_EVENT, NO_ACTION, Transport, set_limit};
    use std::sync::{Arc, Mutex, MutexGuard};

    /// A BMC in memory, which talks in bytes.
    struct Model {
        limit: DcmiCapState,
        /// Commands that are answered with this code only.
        refuse: Vec<(Command, u8)>,
        /// A change is answered with success and not done.
        forgetful: bool,
        /// Whether an inactive limit is told with its values.
        values_when_inactive: bool,
        /// The lowest limit that is taken.
        least_w: u16,
    }

    #[derive(Clone)]
    struct Fake(Arc<Mutex<Model>>);

    impl Fake {
        fn new(limit: DcmiCapState) -> Self {
            let (forgetful, values_when_inactive) = (false, true);
            let model = Model { limit, refuse: vec![], forgetful, values_when_inactive, least_w: 1 };
            Self(Arc::new(Mutex::new(model)))
        }
        fn model(&self) -> MutexGuard<'_, Model> {
            self.0.lock().unwrap()
        }
        fn cap(&self) -> DcmiCap {
            DcmiCap::new(Dcmi::new(Box::new(self.clone())))
        }
    }

    impl Transport for Fake {
        fn call(&mut self, command: Command, body: &[u8]) -> Result<Vec<u8>, BmcError> {
            let mut model = self.model();
            if let Some((_, code)) = model.refuse.iter().find(|(refused, _)| *refused == command) {
                return Ok(vec![*code]);
            }
            match command {
                Command::GetReading => unreachable!("a cap reads no power"),
                Command::GetLimit if !model.limit.active && !model.values_when_inactive => {
                    return Ok(vec![0x80, 0xdc]);
                }
                Command::GetLimit => {
                    let code = if model.limit.active { 0 } else { 0x80 };

                    // A request's bytes, but for one reserved byte; its action is the one found.
                    let mut values = set_limit(&model.limit).split_off(4);
                    values[0] = model.limit.action;
                    return Ok([&[code, 0xdc, 0, 0], &values[..]].concat());
                }
                Command::SetLimit => {
                    assert_ne!(body[4], HARD_POWER_OFF, "the server would be switched off");
                    let limit_w = u16::from_le_bytes([body[5], body[6]]);
                    if limit_w < model.least_w {
                        return Ok(vec![0x84]);
                    }
                    if !model.forgetful {
                        let mut number = [0; 4];
                        number.copy_from_slice(&body[7..11]);
                        model.limit.action = body[4];
                        model.limit.limit_w = limit_w;
                        model.limit.correction_ms = u32::from_le_bytes(number);
                        model.limit.sampling_s = u16::from_le_bytes([body[13], body[14]]);
                    }
                }
                Command::Activate if !model.forgetful => model.limit.active = body[1] == 1,
                Command::Activate => {}
            }

            Ok(vec![0, 0xdc])
        }
    }

    const OFF: DcmiCapState =
        DcmiCapState { active: false, action: LOG_EVENT, limit_w: 400, correction_ms: 2000, sampling_s: 5 };
    const ON: DcmiCapState = DcmiCapState { active: true, limit_w: 300, ..OFF };
    const CAP: Watts = Watts::from_milli(180_900);

    #[test]
    fn a_limit_is_set_verified_and_put_back() {
        let bare = DcmiCapState { limit_w: 0, correction_ms: 0, sampling_s: 0, action: 0, active: false };
        for (original, values_when_inactive, cap_w) in [
            (OFF, true, 180),
            (ON, true, 180),
            (bare, false, 180),
            (DcmiCapState { limit_w: 0, ..ON }, true, 180),
            (DcmiCapState { limit_w: 150, ..ON }, true, 150),
        ] {
            let fake = Fake::new(original);
            fake.model().values_when_inactive = values_when_inactive;
            let mut cap = fake.cap();
            let saved = cap.read().unwrap();
            assert_eq!(saved, original);
            cap.set(CAP, &saved).unwrap();
            let now = fake.model().limit;
            assert_eq!((now.active, now.limit_w, now.action), (true, cap_w, original.action));
            assert_eq!(DcmiCap::is_on(&now, &saved), cap_w == 180);

            for _ in 0..2 {
                fake.cap().put_back(&saved).unwrap();
                let now = fake.model().limit;
                assert_eq!(now.active, limits(&original));

                if original.limit_w != 0 {
                    assert_eq!(now, original);
                }
            }
        }
    }

    /// One row: the action found, and the one that a limit of ours and one put back have.
    #[test]
    fn an_action_that_may_switch_off_is_never_written() {
        for (found, written) in [
            (NO_ACTION, NO_ACTION),
            (LOG_EVENT, LOG_EVENT),
            (HARD_POWER_OFF, NO_ACTION),
            (0x02, NO_ACTION),
            (0xff, NO_ACTION),
        ] {
            let original = DcmiCapState { action: found, ..ON };
            let fake = Fake::new(original);
            fake.cap().set(CAP, &original).unwrap();
            assert_eq!(fake.model().limit.action, written, "{found:#x}");
            fake.cap().put_back(&original).unwrap();
            assert_eq!(fake.model().limit, DcmiCapState { action: written, ..original });
        }
    }

    /// One row: a fault of the BMC, what is said, and whether trying again may help.
    #[test]
    fn faults_of_a_bmc_are_named() {
        type Row = (fn(&mut Model), Watts, &'static str, bool);
        let rows: [Row; 9] = [
            (|m| m.forgetful = true, CAP, "reads 400 W, not active after 180 W, active", true),
            (|m| m.refuse = vec![(Command::SetLimit, 0x85)], CAP, "correction time", false),
            (|m| m.refuse = vec![(Command::SetLimit, 0xc1)], CAP, "no DCMI", false),
            (|m| m.refuse = vec![(Command::Activate, 0xdf)], CAP, "timeout at the BMC", true),
            (|m| m.refuse = vec![(Command::GetLimit, 0xc0)], CAP, "busy", true),
            (|m| m.least_w = 200, CAP, "out of range", false),
            (|_| {}, Watts::ZERO, "1 to 65535 W", false),
            (|_| {}, Watts::from_whole(-5), "1 to 65535 W", false),
            (|_| {}, Watts::from_whole(70_000), "1 to 65535 W", false),
        ];

        for (n, (fault, watts, says, transient)) in rows.into_iter().enumerate() {
            let fake = Fake::new(OFF);
            fault(&mut fake.model());
            let error = fake.cap().set(watts, &OFF).unwrap_err();
            assert!(error.reason.contains(says), "row {n}: {error}");
            assert_eq!(error.transient, transient, "row {n}: {error}");
        }
    }

    #[test]
    fn a_put_back_that_does_not_take_is_an_error_until_it_does() {
        let fake = Fake::new(OFF);
        fake.cap().set(CAP, &OFF).unwrap();
        fake.model().refuse = vec![(Command::Activate, 0xc0)];
        assert!(fake.cap().put_back(&OFF).unwrap_err().transient);
        fake.model().refuse.clear();
        // A BMC that refuses to deactivate what is not active has done all the same.
        fake.cap().put_back(&OFF).unwrap();
        fake.model().refuse = vec![(Command::Activate, 0xd5)];
        fake.cap().put_back(&OFF).unwrap();
    }
}
