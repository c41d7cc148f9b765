//! What the kernel does for a daemon at all, by seccomp.
//!
//! The units let through what services need (`SystemCallFilter=@system-service`), as whoever starts a service must:
//! it is executed. From here on it executes nothing, and makes no other process; nor has it a use for what is
//! refused beside that. A list of all that is allowed would be stronger, and would end with the next C library.
//!
//! Source: seccomp(2), clone(2), systemd.exec(5) for what its groups of calls hold.

use std::collections::BTreeMap;

use nix::errno::Errno;
use nix::libc::{self, c_long};
use seccompiler::{
    BackendError, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

/// What no daemon has a use for: other processes' memory, the kernel's parts, mounts, clocks, keys.
const USELESS: [c_long; 54] = [
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mbind,
    libc::SYS_migrate_pages,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_move_pages,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_personality,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_set_mempolicy,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];
/// The families of sockets that are used: TCP, UNIX, and netlink for addresses and for CPUs that come and go.
const FAMILIES: [i32; 4] = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX, libc::AF_NETLINK];

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// Bounds this thread, and those that it starts; without `commands` they make no process.
pub(super) fn bound(commands: bool) -> Result<(), String> {
    let told = |error: seccompiler::Error| error.to_string();
    let refused = refused(commands).map_err(|error| error.to_string())?;
    apply(refused, Errno::EPERM).map_err(told)?;

    if !commands {
        // Its flags lie where no filter can see them. The C library then takes clone, whose flags can be seen.
        apply([(libc::SYS_clone3, vec![])].into(), Errno::ENOSYS).map_err(told)?;
    }
    Ok(())
}

fn refused(commands: bool) -> Result<Rules, BackendError> {
    let mut rules: Rules = USELESS.into_iter().map(|call| (call, vec![])).collect();

    let other = |family: &i32| is(0, SeccompCmpOp::Ne, family.cast_unsigned().into());
    let other = FAMILIES.iter().map(other).collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(other)?]);

    // No memory is both written and executed, nor becomes executable.
    let exec = libc::PROT_EXEC.cast_unsigned().into();
    let both = exec | u64::from(libc::PROT_WRITE.cast_unsigned());
    let rule = |bits| SeccompRule::new(vec![is(2, SeccompCmpOp::MaskedEq(bits), bits)?]);
    rules.insert(libc::SYS_mmap, vec![rule(both)?]);
    rules.insert(libc::SYS_mprotect, vec![rule(exec)?]);
    rules.insert(libc::SYS_pkey_mprotect, vec![rule(exec)?]);

    if commands {
        return Ok(rules);
    }
    for call in [libc::SYS_execve, libc::SYS_execveat] {
        rules.insert(call, vec![]);
    }
    #[cfg(target_arch = "x86_64")]
    for call in [libc::SYS_fork, libc::SYS_vfork] {
        rules.insert(call, vec![]);
    }
    let thread = libc::CLONE_THREAD.cast_unsigned().into();
    let process = is(0, SeccompCmpOp::MaskedEq(thread), 0)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![process])?]);

    Ok(rules)
}

fn is(argument: u8, like: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, like, value)
}

fn apply(refused: Rules, error: Errno) -> seccompiler::Result<()> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let answer = SeccompAction::Errno((error as i32).cast_unsigned());
    let filter = SeccompFilter::new(refused, SeccompAction::Allow, answer, arch)?;
    let program: seccompiler::BpfProgram = filter.try_into()?;
    apply_filter(&program)
}
