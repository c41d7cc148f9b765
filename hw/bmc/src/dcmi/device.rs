//! `/dev/ipmi0`: the kernel's IPMI message handler.
//!
//! Source: include/uapi/linux/ipmi.h and Documentation/driver-api/ipmi.rst of Linux 6.12. A request is
//! queued by one ioctl and its answer fetched by another, after poll says that there is one.

// The only place with unsafe code: the kernel takes and fills structures that hold pointers.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::{c_int, c_long, c_short, c_uchar, c_uint, c_ushort};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::message::{Command, NETFN};
use super::transport::Transport;
use crate::BmcError;

/// The BMC itself, not a device behind it.
const SYSTEM_INTERFACE: c_int = 0x0c;
const BMC_CHANNEL: c_short = 0x0f;
/// `recv_type` of an answer; there are also events and commands of others.
const RESPONSE: c_int = 1;
/// `IPMI_MAX_MSG_LENGTH`.
const ANSWER_MAX: usize = 272;

#[repr(C)]
struct SystemAddress {
    addr_type: c_int,
    channel: c_short,
    lun: c_uchar,
}

#[repr(C)]
struct Message {
    netfn: c_uchar,
    cmd: c_uchar,
    data_len: c_ushort,
    data: *mut c_uchar,
}

#[repr(C)]
struct Request {
    addr: *mut SystemAddress,
    addr_len: c_uint,
    msgid: c_long,
    msg: Message,
}

#[repr(C)]
struct Received {
    recv_type: c_int,
    addr: *mut c_uchar,
    addr_len: c_uint,
    msgid: c_long,
    msg: Message,
}

mod ioctl {
    // SAFETY: the numbers and structures are those of linux/ipmi.h: `_IOR('i', 13, struct ipmi_req)` and
    // `_IOWR('i', 11, struct ipmi_recv)`. The size of a structure is part of its number, so a kernel with
    // another layout refuses the call.
    nix::ioctl_read!(send_command, b'i', 13, super::Request);
    nix::ioctl_readwrite!(receive_truncated, b'i', 11, super::Received);
}

/// `/dev/ipmi0`, or whatever is at that path.
pub(super) struct Device {
    path: PathBuf,
    deadline: Duration,
    file: Option<File>,
    next_id: c_long,
}

impl Device {
    pub(super) fn new(path: PathBuf, deadline: Duration) -> Self {
        Self { path, deadline, file: None, next_id: 1 }
    }

    fn failed(&self, source: io::Error) -> BmcError {
        BmcError::Io { of: self.path.display().to_string(), source }
    }

    fn exchange(&self, file: &File, id: c_long, command: Command, body: &[u8]) -> Result<Vec<u8>, BmcError> {
        let until = Instant::now() + self.deadline;
        send(file, id, command, body).map_err(|e| self.failed(e.into()))?;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let of = self.path.display().to_string();
                return Err(BmcError::Late { of, within_ms: self.deadline.as_millis() });
            }

            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];

            match poll(&mut fds, timeout) {
                Ok(0) | Err(Errno::EINTR) => continue,
                Ok(_) => {}
                Err(e) => return Err(self.failed(e.into())),
            }

            match receive(file) {
                Ok(answer) if answer.is_to(id, command) => return Ok(answer.data),
                // A late answer to an earlier request, an event, or what another reader took first.
                Ok(_) | Err(Errno::EAGAIN | Errno::EINTR | Errno::EMSGSIZE) => {}
                Err(e) => return Err(self.failed(e.into())),
            }
        }
    }
}

impl Transport for Device {
    fn call(&mut self, command: Command, body: &[u8]) -> Result<Vec<u8>, BmcError> {
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).custom_flags(nix::libc::O_NONBLOCK);
                options.open(&self.path).map_err(|e| self.failed(e))?
            }
        };
        let id = self.next_id;
        self.next_id = id.wrapping_add(1).max(1);
        let answer = self.exchange(&file, id, command, body);
        // After a failure the device is opened anew; after a late answer it need not be.
        if matches!(answer, Ok(_) | Err(BmcError::Late { .. })) {
            self.file = Some(file);
        }
        answer
    }
}

struct Answer {
    recv_type: c_int,
    id: c_long,
    netfn: u8,
    cmd: u8,
    data: Vec<u8>,
}

impl Answer {
    fn is_to(&self, id: c_long, command: Command) -> bool {
        self.recv_type == RESPONSE && self.id == id && (self.netfn, self.cmd) == (NETFN | 1, command as u8)
    }
}

fn send(file: &File, id: c_long, command: Command, body: &[u8]) -> nix::Result<()> {
    let (mut body, data_len) = (body.to_vec(), body.len() as c_ushort);
    let mut address = SystemAddress { addr_type: SYSTEM_INTERFACE, channel: BMC_CHANNEL, lun: 0 };
    let mut request = Request {
        addr: &raw mut address,
        addr_len: size_of::<SystemAddress>() as c_uint,
        msgid: id,
        msg: Message { netfn: NETFN, cmd: command as u8, data_len, data: body.as_mut_ptr() },
    };
    // SAFETY: `request` and the two buffers it points to live until the call returns, with the lengths
    // given; the kernel copies them and keeps no pointer.
    unsafe { ioctl::send_command(file.as_raw_fd(), &raw mut request) }.map(|_| ())
}

fn receive(file: &File) -> nix::Result<Answer> {
    let mut data = vec![0; ANSWER_MAX];

    // `struct ipmi_addr` is 40 bytes long; no kind of address is longer.
    let mut address = [0; 40];
    let mut received = Received {
        recv_type: 0,
        addr: address.as_mut_ptr(),
        addr_len: address.len() as c_uint,
        msgid: 0,
        msg: Message { netfn: 0, cmd: 0, data_len: ANSWER_MAX as c_ushort, data: data.as_mut_ptr() },
    };

    // SAFETY: `received` and the two buffers it points to live until the call returns; the kernel writes at
    // most the lengths given, and keeps no pointer.
    unsafe { ioctl::receive_truncated(file.as_raw_fd(), &raw mut received) }?;
    data.truncate(received.msg.data_len.into());
    let Received { recv_type, msgid, msg: Message { netfn, cmd, .. }, .. } = received;

    Ok(Answer { recv_type, id: msgid, netfn, cmd, data })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// `sizeof` and `offsetof` of linux/ipmi.h with a 64-bit C compiler.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn structures_are_laid_out_as_the_kernels() {
        assert_eq!(size_of::<SystemAddress>(), 8);
        assert_eq!((size_of::<Message>(), offset_of!(Message, data)), (16, 8));
        assert_eq!((size_of::<Request>(), offset_of!(Request, msgid)), (40, 16));
        assert_eq!((size_of::<Received>(), offset_of!(Received, msgid)), (48, 24));
        assert_eq!((offset_of!(Request, msg), offset_of!(Received, msg)), (24, 32));
    }

    #[test]
    fn what_is_not_an_answer_to_this_request_is_dropped() {
        let answer = |recv_type, id, netfn, cmd| Answer { recv_type, id, netfn, cmd, data: vec![] };
        for (answer, expected) in [
            (answer(1, 7, 0x2d, 2), true),
            (answer(1, 6, 0x2d, 2), false),
            (answer(2, 7, 0x2d, 2), false),
            (answer(1, 7, 0x2c, 2), false),
            (answer(1, 7, 0x2d, 3), false),
        ] {
            assert_eq!(answer.is_to(7, Command::GetReading), expected);
        }
    }

    #[test]
    fn a_missing_device_and_one_that_is_none_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ipmi0");
        let mut device = Device::new(path.clone(), Duration::from_millis(50));
        let error = device.call(Command::GetReading, &[]).unwrap_err();
        assert!(error.to_string().contains("ipmi0") && !error.is_transient(), "{error}");
        std::fs::write(&path, "").unwrap();
        let error = device.call(Command::GetReading, &[]).unwrap_err();
        assert!(matches!(error, BmcError::Io { .. }), "{error}");
    }
}
