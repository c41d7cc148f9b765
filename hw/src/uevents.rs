//! What the kernel tells of CPUs that come and go, by the socket that udev listens to as well.
//!
//! A message is a line `ACTION@DEVPATH` and then `KEY=VALUE` lines, each ended by a zero byte. It is sent when
//! the change is done, so the policy of a CPU that came is there. It may be lost: whoever listens looks for
//! himself from time to time.
//!
//! Source: `lib/kobject_uevent.c`, `drivers/base/core.c` (`device_online`), `kernel/cpu.c` (SMT control);
//! netlink(7).

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, socket,
};

/// The kernel's own messages; udev's go to another group.
const KERNEL: u32 = 1;
/// More than a message may have: `UEVENT_BUFFER_SIZE` and its first line.
const MAX: usize = 8 * 1024;

/// A socket on which the kernel tells of CPUs.
#[derive(Debug)]
pub struct CpuEvents(OwnedFd);

impl CpuEvents {
    /// Starts to listen. Fails where that is not allowed: a sandbox needs `AF_NETLINK`.
    pub fn open() -> io::Result<Self> {
        let (family, kind) = (AddressFamily::Netlink, SockType::Datagram);
        let protocol = SockProtocol::NetlinkKObjectUEvent;
        let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, protocol)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, KERNEL))?;
        Ok(Self(socket))
    }

    /// Waits until a CPU went or came, or messages were lost. Fails if the socket is of no use any more.
    pub fn wait(&mut self) -> io::Result<()> {
        let mut bytes = [0; MAX];
        loop {
            match recvfrom::<NetlinkAddr>(self.0.as_raw_fd(), &mut bytes) {
                // Only the kernel has this address.
                Ok((length, from)) if from.is_some_and(|from| from.pid() == 0) => {
                    if bytes.get(..length).is_some_and(is_cpu) {
                        return Ok(());
                    }
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::ENOBUFS) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Whether a message says that a CPU went or came.
fn is_cpu(message: &[u8]) -> bool {
    let value = |key: &[u8]| {
        let mut lines = message.split(|byte| *byte == 0).skip(1);
        lines.find_map(|line| line.strip_prefix(key))
    };
    let went_or_came = [&b"online"[..], b"offline", b"add", b"remove"];
    value(b"SUBSYSTEM=") == Some(b"cpu")
        && value(b"ACTION=").is_some_and(|action| went_or_came.contains(&action))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cpus_that_go_or_come_count() {
        let of = |action: &str, path: &str, subsystem: &str| {
            format!(
                "{action}@{path}\0ACTION={action}\0DEVPATH={path}\0SUBSYSTEM={subsystem}\0\
                 DRIVER=processor\0MODALIAS=cpu:type:x86,ven0000fam0006\0SEQNUM=4711\0"
            )
        };

        let cpu = "/devices/system/cpu/cpu3";
        for (message, counts) in [
            (of("online", cpu, "cpu"), true),
            (of("offline", cpu, "cpu"), true),
            (of("add", cpu, "cpu"), true),
            (of("remove", cpu, "cpu"), true),
            (of("change", cpu, "cpu"), false),
            (of("online", "/devices/system/memory/memory3", "memory"), false),
            (of("add", "/devices/virtual/net/veth1", "net"), false),
            ("online@/devices/system/cpu/cpu3\0".to_owned(), false),
            ("libudev\0SUBSYSTEM=cpu\0".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(is_cpu(message.as_bytes()), counts, "{message:?}");
        }

        assert!(!is_cpu(&[0xff; 64]));
    }

    #[test]
    fn the_kernel_lets_us_listen_unless_a_sandbox_does_not() {
        let sandbox = [Errno::EPERM, Errno::EACCES, Errno::EAFNOSUPPORT, Errno::EPROTONOSUPPORT];
        if let Err(error) = CpuEvents::open() {
            let errno = error.raw_os_error().map(Errno::from_raw);
            assert!(errno.is_some_and(|errno| sandbox.contains(&errno)), "{error}");
        }
    }
}
