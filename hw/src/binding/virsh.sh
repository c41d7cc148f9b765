#!/bin/sh
# A virsh for tests: the threads of a domain are the groups below its scope, and its tables are those of
# virsh 9.0.
root=$(dirname "$0")/../..
echo "$*" >>"$root/virsh.log"
if [ -e "$root/virsh.slow" ]; then sleep 5; fi
if [ -e "$root/virsh.leaves" ]; then sleep 20 & fi
if [ -e "$root/virsh.fails" ]; then
    cat "$root/virsh.fails" >&2
    exit 1
fi
command=$3 id=$4
for dir in "$root"/sys/fs/cgroup/machine.slice/machine-qemu?x2d"$id"?x2d*.scope/libvirt; do :; done
if [ ! -d "$dir" ]; then
    echo "error: failed to get domain '$id'" >&2
    exit 1
fi
show() {
    for thread in "$dir/$1"*; do
        [ -d "$thread" ] && echo " ${thread##*/"$1"}      $(cat "$thread/cpuset.cpus.effective")"
    done
    echo
}
pin() {
    [ -e "$root/virsh.ignores" ] && return
    echo "$2" >"$dir/$1/cpuset.cpus.effective"
}
case "$command $#" in
"vcpupin 5") printf ' VCPU   CPU Affinity\n----------------------\n' && show vcpu ;;
"vcpupin 7") pin "vcpu$5" "$6" ;;
"emulatorpin 5")
    printf 'emulator: CPU Affinity\n----------------------------------\n'
    echo "       *: $(cat "$dir/emulator/cpuset.cpus.effective")"
    ;;
"emulatorpin 6") pin emulator "$5" ;;
"iothreadinfo 5")
    if [ -d "$dir/iothread1" ]; then
        printf ' IOThread ID   CPU Affinity\n-----------------------------\n' && show iothread
    else
        echo 'No IOThreads found for the domain'
    fi
    ;;
"iothreadpin 7") pin "iothread$5" "$6" ;;
*)
    echo "error: unknown command: '$command'" >&2
    exit 1
    ;;
esac
