#!/bin/sh
# A virsh for tests: commands are parted by semicolons, the threads of a domain are the groups below its
# scope, and its tables and marks are those of virsh 9.0.
root=$(dirname "$0")/../..
echo "$*" >>"$root/virsh.log"
if [ -e "$root/virsh.slow" ]; then
    : >"$root/virsh.sleeps"
    exec sleep 60
fi
if [ -e "$root/virsh.leaves" ]; then sleep 20 & fi
if [ -e "$root/virsh.fails" ]; then
    cat "$root/virsh.fails" >&2
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
run() {
    command=$1 id=$2
    if [ "$command" = echo ]; then
        echo "$id"
        return
    fi
    if [ -e "$root/virsh.hangs.$id" ]; then exec sleep 60; fi
    for dir in "$root"/sys/fs/cgroup/machine.slice/machine-qemu?x2d"$id"?x2d*.scope/libvirt; do :; done
    if [ ! -d "$dir" ]; then
        echo "error: failed to get domain '$id'" >&2
        return 1
    fi
    case "$command $#" in
    "vcpupin 3") printf ' VCPU   CPU Affinity\n----------------------\n' && show vcpu ;;
    "vcpupin 5") pin "vcpu$3" "$4" ;;
    "emulatorpin 3")
        printf 'emulator: CPU Affinity\n----------------------------------\n'
        echo "       *: $(cat "$dir/emulator/cpuset.cpus.effective")"
        echo
        ;;
    "emulatorpin 4") pin emulator "$3" ;;
    "iothreadinfo 3")
        if [ -d "$dir/iothread1" ]; then
            printf ' IOThread ID   CPU Affinity\n-----------------------------\n' && show iothread
        else
            echo 'No IOThreads found for the domain'
        fi
        ;;
    "iothreadpin 5") pin "iothread$3" "$4" ;;
    *)
        echo "error: unknown command: '$command'" >&2
        return 1
        ;;
    esac
}
set -f
IFS=';'
set -- $3
IFS=' '
for line; do
    # Globs are for the folder of the domain alone.
    set -- $line
    set +f
    run "$@"
    status=$?
    set -f
done
exit "$status"
