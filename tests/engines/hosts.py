"""Hosts on one machine: network namespaces n1, n2, ... with names and addresses of their own, joined by a bridge.

Everything happens in a mount and a network namespace of the calling process's own (see in_own_namespaces()),
so that nothing is left of it and nothing reaches the real network.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ADDRESS = "10.77.0.1"
MARK = "TROUPE_ENGINES_TEST_NAMESPACES"


def missing(*programs):
    """What keeps a test with these programs from running; empty if nothing does."""
    absent = [program for program in ("unshare", "nsenter", "ip", *programs) if shutil.which(program) is None]
    if absent:
        return "not installed: " + ", ".join(absent)
    return "" if os.geteuid() == 0 else "network namespaces need root"


def in_own_namespaces():
    """Starts this script again in namespaces of its own, and returns there."""
    if MARK not in os.environ:
        os.environ[MARK] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child",
                              sys.executable, *sys.orig_argv[1:]])


def named(count):
    """The addresses of n1 to the last of that many hosts."""
    return {f"n{number}": f"10.77.0.{10 + number}" for number in range(1, count + 1)}


HOSTS = named(2)


def make(folder: Path, hosts=HOSTS):
    """The bridge, the hosts, and an /etc/hosts in which all have names."""
    name = os.uname().nodename
    table = folder / "hosts"
    table.write_text(f"127.0.0.1 localhost\n::1 localhost\n{ADDRESS} {name}\n"
                     + "".join(f"{address} {host}\n" for host, address in hosts.items()))
    run("mount", "--bind", table, "/etc/hosts")
    # What jobs beside this test have there is not left behind by it.
    run("mount", "-t", "tmpfs", "none", "/dev/shm")
    Path("/run/netns").mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "none", "/run/netns")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "br0", "type", "bridge")
    run("ip", "address", "add", ADDRESS + "/24", "dev", "br0")
    run("ip", "link", "set", "br0", "up")
    for host, address in hosts.items():
        run("ip", "netns", "add", host)
        run("ip", "link", "add", "to-" + host, "type", "veth", "peer", "name", "eth0", "netns", host)
        run("ip", "link", "set", "to-" + host, "master", "br0", "up")
        run("ip", "-n", host, "address", "add", address + "/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            run("ip", "-n", host, "link", "set", link, "up")


def on(host, *command):
    """The command, as it runs on a host."""
    # Not `ip netns exec`: it mounts another /sys, without control groups.
    return ["nsenter", f"--net=/run/netns/{host}", "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', host,
            *map(str, command)]


def run(*command):
    subprocess.run(list(map(str, command)), check=True)
