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

/// Packs what goes into the guest into the tar file `payload`: the packages from the folder `packages`,
/// and what stands for VMs. The chassis manager is unpacked below `stage`; gives its program.
pub(crate) fn pack(packages: &Path, stage: &Path, payload: &Path) -> anyhow::Result<PathBuf> {
    let put = |to: &str, mode: u32, bytes: &[u8]| -> anyhow::Result<()> {
        let path = stage.join(to);
        fs::create_dir_all(path.parent().unwrap_or(stage))?;
        fs::write(&path, bytes)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        Ok(())
    };
    let vms = include_bytes!("../recipe/guest-vms.service");
    put("etc/systemd/system/guest-vms.service", 0o644, vms)?;
    put("usr/local/sbin/guest-vms", 0o755, include_bytes!("../recipe/guest-vms"))?;
    fs::create_dir_all(stage.join("root"))?;
    for name in ["ballast", "ballast-agent"] {
        fs::copy(package(packages, name)?, stage.join(format!("root/{name}.deb")))?;
    }
    let chassis = stage.join("chassis");
    let deb = package(packages, "ballast-chassis")?;
    run(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(&chassis))?;
    let tar = ["--owner=0", "--group=0", "--numeric-owner", "-cf"];
    let what = ["etc", "root", "usr"];
    run(Command::new("tar").arg("-C").arg(stage).args(tar).arg(payload).args(what))?;
    Ok(chassis.join("usr/bin/ballast-chassis"))
}

/// The file of a package; there must be one version of it.
fn package(packages: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let files = fs::read_dir(packages).with_context(|| format!("{}", packages.display()))?;
    let paths = files.filter_map(|file| Some(file.ok()?.path()));
    let is = |path: &PathBuf| {
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        file.ends_with(".deb") && file.split('_').next() == Some(name)
    };
    let found: Vec<_> = paths.filter(is).collect();
    match <[PathBuf; 1]>::try_from(found) {
        Ok([path]) => Ok(path),
        Err(found) => bail!("{} packages {name} in {}, not one", found.len(), packages.display()),
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
