//! The guest: a QEMU process and its sockets.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// CPUs of the guest; each has a p-state register.
pub(crate) const CPUS: usize = 4;
/// I/O port of the first p-state register.
const REGISTER: u16 = 0xE0;
/// Where the power meter's registers lie in the guest's RAM; the kernel leaves 64 KiB alone there.
pub(crate) const METER_AT: u64 = 0x2000_0000;
/// A socket of QEMU's is there this long after its start, however busy the host is.
const SOCKETS_WITHIN: Duration = Duration::from_secs(60);

/// The kernel's command line. `force_cap_on`: the meter's cap is writable though this is no IBM machine.
const APPEND: &str = "console=hvc0 quiet nokaslr memmap=64K$0x20000000 mitigations=off \
    random.trust_cpu=on net.ifnames=0 acpi_power_meter.force_cap_on=1";

/// A running guest. It ends with this value, and with the thread that started it.
#[derive(Debug)]
pub(crate) struct Machine {
    qemu: Child,
    dir: PathBuf,
    /// The port on the host that leads to the agent's.
    pub(crate) agent_port: u16,
    /// The guest's RAM, shared with it.
    pub(crate) ram: File,
}

impl Machine {
    /// Starts a guest from the image in `image`; sockets and the console's log go to `dir`, where the BMC's
    /// socket `bmc.sock` must be listening.
    /// `kernel` is the folder of a kernel that needs no initramfs, instead of the image's.
    pub(crate) fn start(
        image: &Path,
        kernel: Option<&Path>,
        payload: &Path,
        dir: &Path,
    ) -> anyhow::Result<Self> {
        let agent_port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();

        // In memory, so that storing a double word takes microseconds. It has no name: QEMU opens its RAM after its sockets are
        // there, and would make another file of a name that is gone.
        let ram = tempfile::tempfile_in("/dev/shm")?;
        // As large as QEMU's: a smaller one that is not empty it refuses, and the plant may write first.
        ram.set_len(1 << 30)?;
        let ram_path = format!("/proc/{}/fd/{}", std::process::id(), ram.as_raw_fd());
        let image = |name: &str| image.join(name).display().to_string();
        let mut command = Command::new("setpriv");

        // QEMU must not outlive the runner, whatever ends that.
        command.args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64"]);
        command.args(["-nodefaults", "-display", "none", "-no-reboot", "-m", "1G", "-smp", "4"]);
        command.args(["-machine", "q35,memory-backend=ram", "-accel", "tcg,thread=multi"]);
        let backend = "memory-backend-file,id=ram,size=1G,share=on,mem-path=";
        command.arg("-object").arg(format!("{backend}{ram_path}"));

        // acpi-cpufreq wants an Intel or a modern AMD.
        command.args(["-cpu", "max,vendor=GenuineIntel,family=6,model=60,stepping=3"]);
        match kernel {
            Some(kernel) => {
                command.arg("-kernel").arg(kernel.join("vmlinuz"));
                command.args(["-append", &format!("{APPEND} root=/dev/vda rw")]);
            }
            None => {
                command.args(["-kernel", &image("vmlinuz"), "-initrd", &image("initramfs")]);
                command.args(["-append", APPEND]);
            }
        }
        command.arg("-acpitable");
        command.arg(format!("file={}", image("ssdt.aml")));
        devices(&mut command, dir, [image("root.img"), payload.display().to_string()], agent_port);
        let qtest = format!("unix:{},server=on,wait=off", dir.join("qtest").display());
        command.args(["-qtest", &qtest, "-qtest-log", "/dev/null"]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(dir.join("qemu.log"))?);
        let qemu = command.spawn().context("qemu-system-x86_64 does not start")?;

        Ok(Self { qemu, dir: dir.to_owned(), agent_port, ram })
    }

    /// A connection to one of QEMU's sockets.
    pub(crate) fn connect(&mut self, name: &str) -> anyhow::Result<UnixStream> {
        let path = self.dir.join(name);
        let until = Instant::now() + SOCKETS_WITHIN;
        loop {
            match UnixStream::connect(&path) {
                Ok(stream) => return Ok(stream),
                Err(e) if Instant::now() > until => {
                    return Err(e).with_context(|| path.display().to_string());
                }
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
            if let Some(status) = self.qemu.try_wait()? {
                let log = fs::read_to_string(self.dir.join("qemu.log")).unwrap_or_default();
                bail!("QEMU ended with {status}: {log}");
            }
        }
    }

    /// The end of what the guest's kernel and systemd said.
    pub(crate) fn console(&self) -> String {
        let log = fs::read(self.dir.join("console.log")).unwrap_or_default();
        let tail = &log[log.len().saturating_sub(2000)..];
        String::from_utf8_lossy(tail).into_owned()
    }
}

/// Serial ports, drives, the BMC and the network; the guest's agent is reached at `agent_port`.
fn devices(command: &mut Command, dir: &Path, drives: [String; 2], agent_port: u16) {
    command.args(["-device", "pc-testdev", "-device", "virtio-serial"]);
    for file in drives {
        command.arg("-drive").arg(format!("file={file},if=virtio,format=raw,snapshot=on"));
    }
    let console = format!("file,id=console,path={}", dir.join("console.log").display());
    command.args(["-chardev", &console, "-device", "virtconsole,chardev=console"]);
    let shell = dir.join("shell");
    let shell = format!("socket,id=shell,path={},server=on,wait=off", shell.display());
    command.args(["-chardev", &shell]);
    command.args(["-device", "virtserialport,chardev=shell,name=ballast.shell"]);
    let bmc = format!("socket,id=bmc,path={},reconnect=1", dir.join("bmc.sock").display());
    command.args(["-chardev", &bmc, "-device", "ipmi-bmc-extern,id=bmc0,chardev=bmc"]);
    command.args(["-device", "isa-ipmi-kcs,bmc=bmc0"]);
    let forward = format!("user,id=net,hostfwd=tcp:127.0.0.1:{agent_port}-:7101");
    command.args(["-netdev", &forward, "-device", "virtio-net-pci,netdev=net,romfile="]);
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Fails only when it has ended already.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// The p-state registers, read from outside through QEMU's qtest protocol.
#[derive(Debug)]
pub(crate) struct Registers {
    qtest: BufReader<UnixStream>,
}

impl Registers {
    pub(crate) fn new(qtest: UnixStream) -> Self {
        Self { qtest: BufReader::new(qtest) }
    }

    /// What every CPU is asked to run at: its number in the table of p-states, counted from 1; 0 before
    /// the driver's first write.
    pub(crate) fn read(&mut self) -> anyhow::Result<[u8; CPUS]> {
        let mut all = [0; CPUS];
        for (register, port) in all.iter_mut().zip(REGISTER..) {
            let answer = self.ask(&format!("inb {port:#x}"))?;
            *register = parse(&answer).with_context(|| format!("qtest answered {answer:?}"))?;
        }
        Ok(all)
    }

    /// Sets one register behind the kernel's back.
    pub(crate) fn write(&mut self, cpu: usize, value: u8) -> anyhow::Result<()> {
        let port = REGISTER + cpu as u16;
        self.ask(&format!("outb {port:#x} {value:#x}")).map(drop)
    }

    fn ask(&mut self, command: &str) -> anyhow::Result<String> {
        writeln!(self.qtest.get_mut(), "{command}")?;
        let mut answer = String::new();
        self.qtest.read_line(&mut answer)?;
        Ok(answer)
    }
}

fn parse(line: &str) -> Option<u8> {
    u8::from_str_radix(line.trim().strip_prefix("OK 0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn an_answer_of_qtest_is_a_byte() {
        for (line, byte) in [
            ("OK 0x0007\n", Some(7)),
            ("OK 0x00ff\n", Some(255)),
            ("OK 0x0100\n", None),
            ("OK\n", None),
            ("FAIL Unknown command\n", None),
            ("", None),
        ] {
            assert_eq!(parse(line), byte, "{line:?}");
        }
    }
}
