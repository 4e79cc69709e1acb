"""Network namespaces that stand for hosts: each has an address of its own on one bridge. They need root."""
import contextlib
import os
import pathlib
import signal
import subprocess

from common import Case, Skip, check
from jobs import wait_for


def ip(*words: str):
    """ip(8), which has to succeed."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}")


class Spaces:
    def __init__(self, case: Case, names: list[str]):
        if os.geteuid() != 0:
            raise Skip("network namespaces need root")
        self.case, self.names = case, names
        self.spaces = {name: f"shadowib-{os.getpid()}-{name}" for name in ["hub", *names]}
        case.cleanups.append(self.remove)
        for space in self.spaces.values():
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
        ip("-n", self.spaces["hub"], "link", "add", "bridge", "type", "bridge")
        ip("-n", self.spaces["hub"], "link", "set", "bridge", "up")
        for name in names:
            ip("link", "add", "eth0", "netns", self.spaces[name], "type", "veth", "peer", "name", f"to-{name}", "netns", self.spaces["hub"])
            ip("-n", self.spaces["hub"], "link", "set", f"to-{name}", "master", "bridge", "up")
            ip("-n", self.spaces[name], "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            ip("-n", self.spaces[name], "link", "set", "eth0", "up")
        self.inodes = {os.stat(f"/run/netns/{self.spaces[name]}").st_ino: name for name in names}

    def address(self, name: str) -> str:
        return f"10.77.4.{self.names.index(name) + 1}"

    def at(self, name: str, argv: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.spaces[name], *argv]

    def sockets(self, name: str) -> str:
        """TCP's, as the kernel writes them."""
        return subprocess.run(Spaces.at(self, name, ["cat", "/proc/net/tcp", "/proc/net/tcp6"]), capture_output=True, text=True, check=True).stdout

    def listens(self, name: str, port: int) -> bool:
        return f":{port:04X} " in self.sockets(name)

    def agent(self) -> str:
        """A remote shell to these hosts: AGENT HOST WORD... ."""
        path = self.case.work / "agent"
        path.write_text(f'#!/bin/sh\nhost=$1; shift\n[ ! -e {self.case.work}/lost.$host ] || exit 255\nexec ip netns exec shadowib-{os.getpid()}-$host sh -c "$*"\n')
        path.chmod(0o755)
        return str(path)

    def pids(self, names) -> list[int]:
        found = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with contextlib.suppress(OSError):  # it has ended
                if self.inodes.get(os.stat(f"/proc/{pid}/ns/net").st_ino, "none") in list(names):
                    found.append(pid)
        return found

    def kill(self, names):
        """All that runs there."""
        for pid in self.pids(names):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for("the processes of these hosts to be gone", lambda: not self.pids(names), 30)

    def lose(self, name: str):
        """For good: its agent does not answer either."""
        (self.case.work / f"lost.{name}").touch()
        self.kill([name])

    def running(self, comm: str) -> set[str]:
        """The hosts on which a program of that name runs."""
        found = set()
        for name in self.names:
            for pid in self.pids([name]):
                with contextlib.suppress(OSError):
                    if pathlib.Path(f"/proc/{pid}/comm").read_text().startswith(comm):
                        found.add(name)
        return found

    def remove(self, _failed: bool = False):
        if hasattr(self, "inodes"):
            for pid in self.pids(self.names):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for space in self.spaces.values():
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
