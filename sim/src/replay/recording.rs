//! Runs a machine again from a recording, and compares what it wants done with what was written.

use core::hash::Hash;

use std::io::{BufRead, ErrorKind};

use ballast_types::recording::{Header, MachineState, Step, VERSION};
use ballast_types::{Cause, Instant, Machine};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Longer lines are refused: no step comes near it, and a binary file must not fill the memory.
const LINE_LIMIT: u64 = 64 << 20;

/// Why a recording cannot be replayed. Every text names the file, and the line where there is one.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// There is no file, or none holds a line.
    #[error("there is no recording: no file holds a line")]
    Empty,
    #[error("{file}:{line}: cannot be read: {source}")]
    Io {
        file: String,
        /// Which line, from 1.
        line: usize,
        source: std::io::Error,
    },
    /// A line is no header or step of such a machine.
    #[error("{file}:{line}: damaged: {reason}")]
    Damaged {
        file: String,
        /// Which line, from 1.
        line: usize,
        reason: String,
    },
}

/// One file of a recording, oldest first.
pub struct Part<R> {
    /// Its name, for messages.
    pub name: String,
    pub lines: R,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RecordingReport {
    pub machine: String,
    pub files: usize,
    pub starts: usize,
    /// How often it was taken up as a file's header describes it, because steps before that file are missing.
    pub resumed: usize,
    pub steps: u64,
    pub outputs: u64,
    /// Time covered, the starts added up, in seconds.
    pub recorded_s: f64,
    /// Last lines cut short by a crash.
    pub damaged_tails: usize,
    /// Steps whose outputs differ.
    pub mismatches: u64,
    pub first_mismatch: Option<Mismatch>,
    /// 128 bits over all outputs and their instants.
    pub outputs_hash: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mismatch {
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    pub at: Instant,
    /// The outputs as recorded, in JSON.
    pub recorded: String,
    /// The outputs of this run, in JSON.
    pub replayed: String,
}

/// A machine that a recording can bring back.
pub trait Recorded: DeserializeOwned
where
    Self: Machine<Input: DeserializeOwned, Output: DeserializeOwned + Serialize + PartialEq + Hash>,
{
    /// Its name in the header.
    const NAME: &'static str;
    type Params: DeserializeOwned;
    type Start: DeserializeOwned;
    /// Makes it, as the daemon did.
    fn make(params: Self::Params, start: Self::Start, at: Instant) -> Self;
}

impl Recorded for ballast_agent_core::Agent {
    const NAME: &'static str = "agent";
    type Params = ballast_agent_core::Params;
    type Start = ballast_agent_core::RecoveredState;
    fn make(params: Self::Params, start: Self::Start, at: Instant) -> Self {
        Self::new(params, start, at)
    }
}

impl Recorded for ballast_chassis_core::Chassis {
    const NAME: &'static str = "chassis";
    type Params = ballast_chassis_core::Params;
    type Start = ballast_chassis_core::Ledger;
    fn make(params: Self::Params, start: Self::Start, at: Instant) -> Self {
        Self::new(params, start, at)
    }
}

/// Replays the recording of whichever machine its first header names. This fails if there is nothing to
/// replay, a file cannot be read, or a line is damaged that is not the last one before a crash.
pub fn replay<R: BufRead>(parts: Vec<Part<R>>) -> Result<RecordingReport, RecordingError> {
    #[derive(Deserialize)]
    struct Named {
        machine: String,
    }
    let mut lines = Lines::new(parts);
    let first = lines.next()?.ok_or(RecordingError::Empty)?;
    let named: Named = parse(&first.text).map_err(|reason| first.damaged(reason))?;
    match named.machine.as_str() {
        "agent" => run::<ballast_agent_core::Agent, _>(first, lines),
        "chassis" => run::<ballast_chassis_core::Chassis, _>(first, lines),
        other => Err(first.damaged(format!("machine = {other:?}: allowed are \"agent\" and \"chassis\""))),
    }
}

struct Replaying<M> {
    machine: M,
    /// Which start of the machine, and how many of its steps were done.
    origin: (Instant, Option<i64>),
    steps: u64,
    from: Instant,
    to: Instant,
}

/// The state is read only where it is needed: other versions wrote it otherwise.
type RecordedHeader<M> = Header<<M as Recorded>::Params, <M as Recorded>::Start, Box<RawValue>>;

impl<M: Recorded> Replaying<M> {
    fn start(header: RecordedHeader<M>) -> Result<Self, String> {
        let (origin, at) = (header.origin(), header.at);
        match (header.start, header.state) {
            (Some(start), _) => {
                let machine = M::make(header.params, start, at);
                Ok(Self { machine, origin, steps: 0, from: at, to: at })
            }
            (None, Some(MachineState { at, steps, machine })) => {
                let machine = parse(machine.get().as_bytes())
                    .map_err(|reason| format!("the machine's state, perhaps of another version: {reason}"))?;
                Ok(Self { machine, origin, steps, from: at, to: at })
            }
            (None, None) => {
                Err("it continues an earlier file (`start` is null) that is not among the files given".into())
            }
        }
    }

    /// Whether the file of this header goes on where this one is.
    fn is_continued_by(&self, header: &RecordedHeader<M>) -> bool {
        let follows = header.state.as_ref().is_none_or(|state| state.steps == self.steps);
        header.start.is_none() && self.origin == header.origin() && follows
    }

    fn recorded_s(&self) -> f64 {
        self.to.since(self.from).as_secs_f64()
    }
}

fn run<M: Recorded, R: BufRead>(
    first: RecordedLine,
    mut lines: Lines<R>,
) -> Result<RecordingReport, RecordingError> {
    let mut report = RecordingReport { machine: M::NAME.to_owned(), ..RecordingReport::default() };
    let mut hash = crate::world::OutputHash::default();
    let mut replaying: Option<Replaying<M>> = None;
    let mut next = Some(first);

    // A line that cannot be read; tolerated if nothing that needs it follows.
    let mut torn: Option<RecordingError> = None;

    while let Some(line) = next {
        if line.opens_file {
            match parse::<RecordedHeader<M>>(&line.text) {
                Ok(header) => {
                    check::<M, _, _, _>(&header).map_err(|reason| line.damaged(reason))?;
                    open(&mut replaying, header, &line, &mut torn, &mut report)?;
                }
                Err(reason) if replaying.is_some() && torn.is_none() => torn = Some(line.damaged(reason)),
                Err(reason) => return Err(line.damaged(reason)),
            }
        } else if let Some(error) = torn {
            return Err(error);
        } else if let Some(replaying) = &mut replaying {
            match parse::<Step<M::Input, M::Output>>(&line.text) {
                Ok(step) if step.at < replaying.to => {
                    return Err(line.damaged(format!(
                        "time runs back from {} ns to {} ns",
                        replaying.to.as_nanos(),
                        step.at.as_nanos()
                    )));
                }
                Ok(step) => redo(replaying, step, &line, &mut report, &mut hash),
                Err(reason) => torn = Some(line.damaged(reason)),
            }
        }

        next = lines.next()?;
    }

    report.damaged_tails += usize::from(torn.is_some());
    report.recorded_s += replaying.map_or(0.0, |it| it.recorded_s());
    report.files = lines.opened;
    report.outputs_hash = hash.hex();

    Ok(report)
}

/// Goes on with the machine, or with another one, as the header of the next file says.
fn open<M: Recorded>(
    replaying: &mut Option<Replaying<M>>,
    header: RecordedHeader<M>,
    line: &RecordedLine,
    torn: &mut Option<RecordingError>,
    report: &mut RecordingReport,
) -> Result<(), RecordingError> {
    if replaying.as_ref().is_some_and(|it| it.is_continued_by(&header)) {
        return torn.take().map_or(Ok(()), Err);
    }
    let starts = header.start.is_some();
    let new = Replaying::start(header).map_err(|reason| line.damaged(reason))?;

    report.damaged_tails += usize::from(torn.take().is_some());
    report.starts += usize::from(starts);
    report.resumed += usize::from(!starts);
    report.recorded_s += replaying.replace(new).map_or(0.0, |it| it.recorded_s());
    Ok(())
}

pub(super) fn check<M: Recorded, P, S, T>(header: &Header<P, S, T>) -> Result<(), String> {
    if header.ballast_recording != VERSION {
        return Err(format!(
            "ballast_recording = {}: this program reads version {VERSION}",
            header.ballast_recording
        ));
    }
    if header.machine != M::NAME {
        return Err(format!("machine = {:?}: the files before it are of {:?}", header.machine, M::NAME));
    }
    Ok(())
}

fn redo<M: Recorded>(
    replaying: &mut Replaying<M>,
    step: Step<M::Input, M::Output>,
    line: &RecordedLine,
    report: &mut RecordingReport,
    hash: &mut crate::world::OutputHash,
) {
    (replaying.to, replaying.steps) = (step.at, replaying.steps + 1);
    match step.cause {
        Cause::Timeout => replaying.machine.handle_timeout(step.at),
        Cause::Input(input) => replaying.machine.handle_input(step.at, input),
    }

    let outputs: Vec<_> = std::iter::from_fn(|| replaying.machine.poll_output()).collect();

    for output in &outputs {
        hash.add(0, step.at, output);
    }
    report.steps += 1;
    report.outputs += outputs.len() as u64;

    if outputs != step.outputs {
        report.mismatches += 1;
        report.first_mismatch.get_or_insert_with(|| Mismatch {
            file: line.file.clone(),
            line: line.number,
            at: step.at,
            recorded: json(&step.outputs),
            replayed: json(&outputs),
        });
    }
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("not JSON: {error}"))
}

pub(super) fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

pub(super) struct RecordedLine {
    file: String,
    number: usize,
    /// Whether it is the first of its file: a header.
    pub(super) opens_file: bool,
    pub(super) text: Vec<u8>,
}

impl RecordedLine {
    pub(super) fn damaged(&self, reason: String) -> RecordingError {
        RecordingError::Damaged { file: self.file.clone(), line: self.number, reason }
    }
}

/// The lines of all files, one after the other; empty ones are left out.
pub(super) struct Lines<R> {
    parts: std::vec::IntoIter<Part<R>>,
    part: Option<Part<R>>,
    number: usize,
    at_start: bool,
    opened: usize,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(parts: Vec<Part<R>>) -> Self {
        Self { parts: parts.into_iter(), part: None, number: 0, at_start: true, opened: 0 }
    }

    pub(super) fn next(&mut self) -> Result<Option<RecordedLine>, RecordingError> {
        loop {
            if self.part.is_none() {
                self.part = self.parts.next();
                self.number = 0;
                self.at_start = true;
                self.opened += usize::from(self.part.is_some());
            }

            let Some(part) = &mut self.part else { return Ok(None) };
            self.number += 1;
            let mut text = Vec::new();
            let read = std::io::Read::take(&mut part.lines, LINE_LIMIT).read_until(b'\n', &mut text);
            let read = match read {
                // A compressed file that a crash has cut off, or that is still being written.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(text.len()),
                read => read,
            };
            match read {
                Ok(0) => self.part = None,
                Ok(_) if text.trim_ascii().is_empty() => {}
                Ok(_) => {
                    let opens_file = core::mem::take(&mut self.at_start);
                    let file = part.name.clone();
                    return Ok(Some(RecordedLine { file, number: self.number, opens_file, text }));
                }
                Err(source) => {
                    return Err(RecordingError::Io { file: part.name.clone(), line: self.number, source });
                }
            }
        }
    }
}
