//! A root shell in the guest, on a virtio port; its other end is `recipe/shell`.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// A connection that runs one command at a time.
#[derive(Debug)]
pub(crate) struct Shell {
    stream: UnixStream,
    commands: u64,
    /// What has come and belongs to no answer yet.
    rest: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) code: i32,
}

impl Shell {
    /// Waits until the guest is up.
    pub(crate) fn open(stream: UnixStream, within: Duration) -> anyhow::Result<Self> {
        let mut shell = Self { stream, commands: 0, rest: Vec::new() };
        shell.answer("ready", within).context("the guest does not boot")?;
        Ok(shell)
    }

    /// Runs a command, at most for `within`; gives its output (both streams) and exit code.
    pub(crate) fn try_run(&mut self, command: &str, within: Duration) -> anyhow::Result<Said> {
        self.commands += 1;
        let token = format!("answer{}", self.commands);
        writeln!(self.stream, "{token} {}", base64(command.as_bytes()))?;
        self.answer(&token, within).with_context(|| format!("in the guest: {command}"))
    }

    /// Runs a command that must succeed; gives its output.
    pub(crate) fn run(&mut self, command: &str) -> anyhow::Result<String> {
        let said = self.try_run(command, Duration::from_secs(120))?;
        if said.code != 0 {
            bail!("in the guest, exit code {}: {command}\n{}", said.code, said.text);
        }
        Ok(said.text)
    }

    fn answer(&mut self, token: &str, within: Duration) -> anyhow::Result<Said> {
        let until = Instant::now() + within;
        let mut buffer = [0; 65536];
        loop {
            if let Some((said, end)) = find(&self.rest, token) {
                self.rest.drain(..end);
                return Ok(said);
            }

            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let so_far = String::from_utf8_lossy(&self.rest);
                bail!("no answer within {} s; so far: {so_far}", within.as_secs());
            }

            self.stream.set_read_timeout(Some(left))?;

            match self.stream.read(&mut buffer) {
                Ok(0) => bail!("the guest's shell has closed"),
                Ok(n) => self.rest.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// The answer before the line `token code`, and where that line ends.
fn find(bytes: &[u8], token: &str) -> Option<(Said, usize)> {
    let mark = format!("\n{token} ");
    let at = bytes.windows(mark.len()).position(|window| window == mark.as_bytes())?;
    let code = at + mark.len();
    let end = code + bytes[code..].iter().position(|byte| *byte == b'\n')?;
    let text = String::from_utf8_lossy(&bytes[..at]).into_owned();
    let code = String::from_utf8_lossy(&bytes[code..end]).trim().parse().ok()?;
    Some((Said { text, code }, end + 1))
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |n: usize| u32::from(chunk.get(n).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for n in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * n) & 63) as usize];
            text.push(if n <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
            ("\u{ff}\u{fe}", "w7/Dvg=="),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded, "{plain:?}");
        }
    }

    #[test]
    fn an_answer_ends_with_its_token_and_the_exit_code() {
        let said = |text: &str, code| Said { text: text.into(), code };
        let bytes = b"one\ntwo\n\nanswer1 3\nrest";
        assert_eq!(find(bytes, "answer1"), Some((said("one\ntwo\n", 3), 19)));
        assert_eq!(find(b"\nanswer2 0\n", "answer2"), Some((said("", 0), 11)));
        for unfinished in ["", "one\n", "\nanswer1 ", "\nanswer1 3", "\nanswer10 3\n"] {
            assert_eq!(find(unfinished.as_bytes(), "answer1"), None, "{unfinished:?}");
        }
    }
}
