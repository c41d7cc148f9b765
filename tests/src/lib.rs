//! Every parser that eats bytes from outside, as a function of bytes. libFuzzer calls the functions (`proof/fuzz/`), and
//! the test `corpus` replays what it has found.
//!
//! A target does not only see whether a parser panics: what was read and is written again reads the same, a number
//! that came out is in its range, and an error says something.

mod bmc;
mod config;
mod disk;
mod kernel;
mod machine;
mod scheduler;
mod telemetry;
mod wire;

pub use bmc::{dcmi, redfish};
pub use config::{agent_config, chassis_config, place_config};
pub use disk::{journal, model, recording, records};
pub use kernel::{cgroup, cpu_list, cpus, meters, virsh};
pub use scheduler::{extender, host_file, place_questions, watch};
pub use telemetry::telemetry;
pub use wire::wire;

/// Takes whatever comes, and panics where a parser does not do as it should.
pub type Target = fn(&[u8]);

/// Each target by its name, which is that of its file in `proof/fuzz/fuzz_targets` and of its folder in `proof/fuzz/corpus`.
pub const TARGETS: [(&str, Target); 20] = [
    ("agent_config", agent_config),
    ("cgroup", cgroup),
    ("chassis_config", chassis_config),
    ("cpu_list", cpu_list),
    ("cpus", cpus),
    ("dcmi", dcmi),
    ("extender", extender),
    ("host_file", host_file),
    ("journal", journal),
    ("meters", meters),
    ("model", model),
    ("place_config", place_config),
    ("place_questions", place_questions),
    ("recording", recording),
    ("records", records),
    ("redfish", redfish),
    ("telemetry", telemetry),
    ("virsh", virsh),
    ("watch", watch),
    ("wire", wire),
];

/// The parts of an input, which a zero byte ends; an input has as many as are asked for.
fn parts(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == 0).chain(std::iter::repeat(&[][..]))
}

/// An error that says nothing helps nobody.
fn says_something(error: impl std::fmt::Display) {
    assert!(!error.to_string().trim().is_empty(), "an error without a text");
}
