//! The image, built once and kept; and the project's own files, packed anew for every run.

use std::fs;
use std::hash::Hasher as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use siphasher::sip::SipHasher13;

/// What the image is made of: a change of any of them makes a new one.
const RECIPE: [(&str, &str); 6] = [
    ("build-image", include_str!("../recipe/build-image")),
    ("customize", include_str!("../recipe/customize")),
    ("init", include_str!("../recipe/init")),
    ("shell", include_str!("../recipe/shell")),
    ("guest-shell.service", include_str!("../recipe/guest-shell.service")),
    ("ssdt.asl", include_str!("../recipe/ssdt.asl")),
];

/// The folder of the image in `cache`, built if it is not there.
pub(crate) fn ready(cache: &Path) -> anyhow::Result<PathBuf> {
    let mut hasher = SipHasher13::new();
    for (_, text) in RECIPE {
        hasher.write(text.as_bytes());
        hasher.write_u8(0xFF);
    }
    let image = cache.join(format!("image-{:016x}", hasher.finish()));
    // QEMU is checked even with a cached image: the machine may be another one.
    let qemu = Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status();
    if image.is_dir() && qemu.is_ok_and(|status| status.success()) {
        return Ok(image);
    }
    fs::create_dir_all(cache)?;
    let work = tempfile::Builder::new().prefix("build-").tempdir_in(cache)?;
    for (name, text) in RECIPE {
        let path = work.path().join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    let out = work.path().join("image");
    fs::create_dir(&out)?;
    // The summary has stdout for itself.
    let status = Command::new(work.path().join("build-image"))
        .arg(&out)
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status()
        .context("build-image does not start")?;
    if !status.success() {
        bail!("build-image failed: {status}");
    }
    if !image.is_dir() {
        fs::rename(&out, &image)?;
    }
    Ok(image)
}

/// Packs what is installed in the guest into the tar file `payload`: the daemons from the folder `binaries`,
/// their units, and a config.
pub(crate) fn pack(binaries: &Path, stage: &Path, payload: &Path) -> anyhow::Result<()> {
    let put = |to: &str, mode: u32, bytes: &[u8]| -> anyhow::Result<()> {
        let path = stage.join(to);
        fs::create_dir_all(path.parent().unwrap_or(stage))?;
        fs::write(&path, bytes)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        Ok(())
    };
    let units = "usr/lib/systemd/system";
    let unit = include_bytes!("../../../systemd/ballast-agent.service");
    put(&format!("{units}/ballast-agent.service"), 0o644, unit)?;
    let orphan = include_bytes!("../../../systemd/ballast-agent-orphan.service");
    put(&format!("{units}/ballast-agent-orphan.service"), 0o644, orphan)?;
    put("etc/ballast/agent.toml", 0o644, include_bytes!("../recipe/agent.toml"))?;
    let vms = include_bytes!("../recipe/guest-vms.service");
    put("etc/systemd/system/guest-vms.service", 0o644, vms)?;
    put("usr/local/sbin/guest-vms", 0o755, include_bytes!("../recipe/guest-vms"))?;
    // Without debug information it is a third of the size, and the guest reads it through emulation.
    put("usr/bin/ballast-agent", 0o755, b"")?;
    let to = stage.join("usr/bin/ballast-agent");
    run(Command::new("strip").arg("-o").arg(to).arg(binaries.join("ballast-agent")))?;
    let tar = ["--owner=0", "--group=0", "--numeric-owner", "-cf"];
    run(Command::new("tar").arg("-C").arg(stage).args(tar).arg(payload).args(["etc", "usr"]))
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
