//! A small BMC behind QEMU's IPMI device: enough for Linux's driver, and DCMI power.
//!
//! The wire is OpenIPMI's VM protocol (`ipmi_sim`): messages end with 0xA0, commands to the machine with
//! 0xA1, and 0xAA escapes the byte after it. A message is a number, IPMI's network function and command,
//! data, and a byte that makes the sum zero. Sources: QEMU's `hw/ipmi/ipmi_bmc_extern.c`; IPMI 2.0,
//! section 22; DCMI 1.5, section 6.6.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

const MESSAGE_END: u8 = 0xA0;
const COMMAND_END: u8 = 0xA1;
const ESCAPE: u8 = 0xAA;
/// Set in a byte that is escaped.
const ESCAPED: u8 = 0x10;

const APP: u8 = 0x06;
const DCMI: u8 = 0x2C;
/// DCMI's group: the first byte of every body.
const GROUP: u8 = 0xDC;

const OK: u8 = 0x00;
const NOT_ACTIVE: u8 = 0x80;
const INVALID_COMMAND: u8 = 0xC1;
const INVALID_LENGTH: u8 = 0xC7;
const OUT_OF_RANGE: u8 = 0x84;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Limit {
    active: bool,
    /// Exception action, watts, correction time and sampling period, as they came.
    action: u8,
    watts: u16,
    correction_ms: u32,
    sampling_s: u16,
}

#[derive(Debug, Default)]
struct State {
    watts: f64,
    limit: Limit,
}

#[derive(Debug)]
pub(crate) struct Bmc {
    state: Mutex<State>,
    /// Its clock counts from here, in seconds.
    began: Instant,
}

impl Default for Bmc {
    fn default() -> Self {
        Self { state: Mutex::default(), began: Instant::now() }
    }
}

impl Bmc {
    pub(crate) fn start(path: &Path) -> anyhow::Result<Arc<Self>> {
        let listener = UnixListener::bind(path)?;
        let bmc = Arc::new(Self::default());
        let inside = Arc::clone(&bmc);
        thread::Builder::new().name("bmc".into()).spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                // Ends when QEMU does.
                let _ = inside.serve(stream);
            }
        })?;
        Ok(bmc)
    }

    /// Tells what the machine draws.
    pub(crate) fn show(&self, watts: f64) {
        self.lock().watts = watts;
    }

    pub(crate) fn limit_w(&self) -> Option<f64> {
        let limit = self.lock().limit;
        limit.active.then(|| f64::from(limit.watts))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut stream: UnixStream) -> std::io::Result<()> {
        let (mut frame, mut escaped, mut buffer) = (Vec::new(), false, [0; 256]);
        loop {
            let read = stream.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            for byte in &buffer[..read] {
                match *byte {
                    MESSAGE_END => {
                        if let Some(answer) = self.message(&frame) {
                            stream.write_all(&encode(&answer))?;
                        }
                        frame.clear();
                    }

                    // The machine's protocol version and abilities: nothing to say to that.
                    COMMAND_END => frame.clear(),
                    ESCAPE => escaped = true,
                    byte => {
                        frame.push(if escaped { byte & !ESCAPED } else { byte });
                        escaped = false;
                    }
                }
            }
        }
    }

    /// The answer to a message, with its sum; `None` if the message is damaged.
    fn message(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let [number, function, command, data @ .., _sum] = frame else { return None };
        if frame.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)) != 0 {
            return None;
        }
        let (code, body) = self.answer(function >> 2, *command, data);
        // The answer's network function is the request's, plus one.
        let mut answer = vec![*number, function | 4, *command, code];
        answer.extend(body);
        let sum = answer.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        answer.push(sum.wrapping_neg());
        Some(answer)
    }

    /// Completion code and data.
    fn answer(&self, function: u8, command: u8, data: &[u8]) -> (u8, Vec<u8>) {
        match (function, command) {
            // Get Device ID: IPMI 2.0, a sensor device and nothing more.
            (APP, 0x01) => (OK, vec![0x20, 1, 1, 0, 2, 0x01, 0, 0, 0, 0, 0]),
            // Set and Get BMC Global Enables, Clear and Get Message Flags.
            (APP, 0x2E | 0x30) => (OK, vec![]),
            (APP, 0x2F | 0x31) => (OK, vec![0]),
            // Get Message: the queue is empty.
            (APP, 0x33) => (NOT_ACTIVE, vec![]),
            (DCMI, _) => match data.split_first() {
                Some((&GROUP, data)) => {
                    let (code, mut body) = self.dcmi(command, data);
                    body.insert(0, GROUP);
                    (code, body)
                }
                _ => (INVALID_COMMAND, vec![]),
            },
            _ => (INVALID_COMMAND, vec![]),
        }
    }

    fn dcmi(&self, command: u8, data: &[u8]) -> (u8, Vec<u8>) {
        let mut state = self.lock();
        match (command, data) {
            // Get Capabilities: DCMI 1.5, power management is there.
            (0x01, [1]) => (OK, vec![1, 5, 2, 0, 1, 0]),
            // Get Power Reading: now, least, most and mean are the same, over a second; measuring.
            (0x02, [1, ..]) => {
                let watts = (state.watts.round() as u16).to_le_bytes();
                let mut body = watts.repeat(4);
                let stamp = self.began.elapsed().as_secs() as u32;
                body.extend(stamp.to_le_bytes());
                body.extend(1000_u32.to_le_bytes());
                body.push(0x40);

                (OK, body)
            }
            (0x03, [_, _]) => {
                let limit = state.limit;
                let mut body = vec![0, 0, limit.action];
                body.extend(limit.watts.to_le_bytes());
                body.extend(limit.correction_ms.to_le_bytes());
                body.extend([0, 0]);
                body.extend(limit.sampling_s.to_le_bytes());

                (if limit.active { OK } else { NOT_ACTIVE }, body)
            }
            (0x04, &[_, _, _, action, w0, w1, c0, c1, c2, c3, _, _, s0, s1]) => {
                let watts = u16::from_le_bytes([w0, w1]);
                if !(100..=1000).contains(&watts) {
                    return (OUT_OF_RANGE, vec![]);
                }
                let correction_ms = u32::from_le_bytes([c0, c1, c2, c3]);
                let sampling_s = u16::from_le_bytes([s0, s1]);
                let active = state.limit.active;
                state.limit = Limit { active, action, watts, correction_ms, sampling_s };

                (OK, vec![])
            }
            (0x05, [on @ (0 | 1), ..]) => {
                state.limit.active = *on == 1;
                (OK, vec![])
            }
            (0x01..=0x05, _) => (INVALID_LENGTH, vec![]),
            _ => (INVALID_COMMAND, vec![]),
        }
    }
}

fn encode(message: &[u8]) -> Vec<u8> {
    let mut wire = Vec::with_capacity(message.len() + 4);
    for byte in message {
        match *byte {
            MESSAGE_END | COMMAND_END | ESCAPE => wire.extend([ESCAPE, byte | ESCAPED]),
            byte => wire.push(byte),
        }
    }
    wire.push(MESSAGE_END);
    wire
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request with its number and sum.
    fn request(function: u8, command: u8, data: &[u8]) -> Vec<u8> {
        let mut frame = vec![9, function << 2, command];
        frame.extend(data);
        let sum = frame.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        frame.push(sum.wrapping_neg());
        frame
    }

    /// Completion code and data of the answer.
    fn ask(bmc: &Bmc, function: u8, command: u8, data: &[u8]) -> (u8, Vec<u8>) {
        let answer = bmc.message(&request(function, command, data)).unwrap();
        assert_eq!(answer.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        assert_eq!(answer[..3], [9, (function + 1) << 2, command]);
        (answer[3], answer[4..answer.len() - 1].to_vec())
    }

    #[test]
    fn a_limit_is_in_force_once_it_is_set_and_activated() {
        let bmc = Bmc::default();
        bmc.show(217.4);
        let (code, body) = ask(&bmc, DCMI, 0x02, &[GROUP, 1, 0, 0]);
        assert_eq!((code, &body[..3]), (OK, &[GROUP, 217, 0][..]));
        assert_eq!(ask(&bmc, DCMI, 0x03, &[GROUP, 0, 0]).0, NOT_ACTIVE);
        let set = |watts: u8| [GROUP, 0, 0, 0, 0x11, watts, 0, 0xE8, 3, 0, 0, 0, 0, 1, 0];
        assert_eq!(ask(&bmc, DCMI, 0x04, &set(99)).0, OUT_OF_RANGE);
        assert_eq!(ask(&bmc, DCMI, 0x04, &set(180)).0, OK);
        assert_eq!(bmc.limit_w(), None);
        assert_eq!(ask(&bmc, DCMI, 0x05, &[GROUP, 1, 0, 0]).0, OK);
        assert_eq!(bmc.limit_w(), Some(180.0));
        let (code, body) = ask(&bmc, DCMI, 0x03, &[GROUP, 0, 0]);
        assert_eq!(code, OK);
        assert_eq!(body, [GROUP, 0, 0, 0x11, 180, 0, 0xE8, 3, 0, 0, 0, 0, 1, 0]);
        assert_eq!(ask(&bmc, DCMI, 0x05, &[GROUP, 0, 0, 0]).0, OK);
        assert_eq!(bmc.limit_w(), None);
    }

    #[test]
    fn what_is_damaged_is_not_answered_and_what_is_unknown_is_refused() {
        let bmc = Bmc::default();
        let mut damaged = request(APP, 0x01, &[]);
        damaged[2] = 7;
        assert_eq!(bmc.message(&damaged), None);
        assert_eq!(bmc.message(&[1, 2]), None);
        assert_eq!(ask(&bmc, APP, 0x77, &[]).0, INVALID_COMMAND);
        assert_eq!(ask(&bmc, DCMI, 0x02, &[0xAE, 1, 0, 0]).0, INVALID_COMMAND);
        assert_eq!(ask(&bmc, DCMI, 0x04, &[GROUP, 0]).0, INVALID_LENGTH);
    }

    #[test]
    fn bytes_that_mean_something_on_the_wire_are_escaped() {
        assert_eq!(encode(&[1, 0xA0, 0xA1, 0xAA, 2]), [1, 0xAA, 0xB0, 0xAA, 0xB1, 0xAA, 0xBA, 2, 0xA0]);
    }
}
