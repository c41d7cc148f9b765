//! The placements: a line for every VM, hashed and, where wanted, written.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context as _;
use ballast_placement::{Cluster, HostId};
use ballast_sim::cluster::{Probe, Reason, RequestedVm};
use sha2::{Digest, Sha256};

/// So many bytes are hashed and written at a time.
const CHUNK: usize = 1 << 16;

pub(super) struct Tape {
    lines: Vec<u8>,
    hash: Sha256,
    file: Option<(File, String)>,
    failed: io::Result<()>,
}

impl Tape {
    /// Writes to this file, if there is one.
    pub(super) fn new(path: Option<&Path>) -> anyhow::Result<Self> {
        let open = |path: &Path| {
            let name = format!("--output {}", path.display());
            let file = File::create(path).with_context(|| name.clone())?;
            Ok::<_, anyhow::Error>((file, name))
        };
        let file = path.map(open).transpose()?;
        let lines = Vec::with_capacity(CHUNK + 64);
        Ok(Self { lines, hash: Sha256::new(), file, failed: Ok(()) })
    }

    /// Adds the line of a VM: no host where it found none.
    fn line(&mut self, vm: u64, host: Option<HostId>) {
        // Writing to a Vec cannot fail.
        let _ = match host {
            Some(host) => writeln!(self.lines, "{vm},{host}"),
            None => writeln!(self.lines, "{vm},"),
        };
        if self.lines.len() >= CHUNK {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.hash.update(&self.lines);
        if let (Some((file, _)), Ok(())) = (&mut self.file, &self.failed) {
            self.failed = file.write_all(&self.lines);
        }
        self.lines.clear();
    }

    /// The SHA-256 of all lines, in hexadecimal, once they are written.
    pub(super) fn finish(mut self) -> anyhow::Result<String> {
        self.flush();
        if let Some((_, name)) = &self.file {
            self.failed.with_context(|| name.clone())?;
        }
        Ok(self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl Probe for Tape {
    fn placed(&mut self, _: &Cluster, _: u64, vm: &RequestedVm, host: HostId) {
        self.line(vm.request.id.0, Some(host));
    }

    fn failed(&mut self, vms: &[&RequestedVm], _: Reason) {
        vms.iter().for_each(|vm| self.line(vm.request.id.0, None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("placements.csv");
        let mut tape = Tape::new(Some(&path)).unwrap();
        tape.line(17, Some(HostId(4)));
        tape.line(18, None);

        // sha256sum of the two lines.
        assert_eq!(
            tape.finish().unwrap(),
            "cdfd0c551c864b0d758fe99b913a06ba2ae9f7c69cf50855ce5a9b2ae0d242ab"
        );

        assert_eq!(std::fs::read_to_string(&path).unwrap(), "17,4\n18,\n");
        let mut long = Tape::new(None).unwrap();
        let mut all = Sha256::new();

        for vm in 0..20_000 {
            long.line(vm, Some(HostId(1)));
            all.update(format!("{vm},1\n"));
        }

        let hex: String = all.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(long.finish().unwrap(), hex);
        assert!(Tape::new(Some(folder.path())).is_err());
    }
}
