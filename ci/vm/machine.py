"""One guest under QEMU: its command line, what it prints, and what became of its command."""
import ctypes
import dataclasses
import os
import pathlib
import re
import secrets
import signal
import subprocess
import time

import newc
from kernel import Kernel, tool

HERE = pathlib.Path(__file__).resolve().parent
PR_SET_PDEATHSIG = 1
# What names things of the host that a guest does not have.
NOT_PASSED = ("TMPDIR", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
OWN = ("/tmp", "/run", "/dev/shm")  # the guest's own, empty
SHARED = "/run/shared"              # both guests', by NFS


@dataclasses.dataclass
class Job:
    """What every node runs, and where."""
    command: list[str]
    nodes: int
    memory_mib: int
    seen: list[pathlib.Path]    # directories of the host that are shown even if they are below OWN
    shared: list[pathlib.Path]  # and those the guest may write to
    nfs: str                    # options to mount a directory of both nodes with; empty: there is none
    counts: bool                # instructions: a nanosecond of the guest's clock is one of them
    work: pathlib.Path          # for sockets and archives, short and empty


class Node:
    """A guest that runs; `outcome` is None until it is known, then "exited", "panicked", "broken", or what stop() was told."""

    def __init__(self, number: int, job: Job, kernel: Kernel):
        self.number, self.job = number, job
        self.marker = f"shadowib-vm-{secrets.token_hex(8)}"
        self.began = time.monotonic()
        self.boot_seconds: float | None = None
        self.seconds: float | None = None
        self.outcome: str | None = None
        self.exit_code: int | None = None
        self.text = ""  # of an outcome
        self.last_words = ""  # of the kernel, or of QEMU
        initrd = job.work / f"{number}.cpio"
        modules = kernel.nfs_modules.read_bytes() if job.nfs else b""
        initrd.write_bytes(kernel.initramfs.read_bytes() + modules + self._own_root())
        console, console_end = os.pipe()
        output, output_end = os.pipe()
        self.streams = {console: Stream("kernel"), output: Stream("output")}
        self.process = subprocess.Popen(self._argv(kernel, initrd, console_end, output_end), stdin=subprocess.DEVNULL,
                                        stdout=console_end, stderr=console_end, pass_fds=(console_end, output_end),
                                        start_new_session=True, preexec_fn=self._end_with_parent)
        os.close(console_end)
        os.close(output_end)

    @staticmethod
    def _end_with_parent():
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def _own_root(self) -> bytes:
        """What is this run's and this node's, unpacked over the cached part."""
        job = self.job
        here = pathlib.Path.cwd()
        settings = {"MARK": self.marker, "NODE": self.number, "NODES": job.nodes, "MTU": 9000, "SHARED": SHARED if job.nfs else "",
                    "MOUNT_OPTIONS": f"'{quoted(job.nfs)}'", "DIRECTORY": f"'{quoted(here)}'"}
        environment = {name: value for name, value in os.environ.items() if name not in NOT_PASSED}
        environment |= {"SHADOWIB_VM": "1", "SHADOWIB_VM_NODE": str(self.number), "SHADOWIB_VM_NODES": str(job.nodes),
                        "SHADOWIB_VM_ADDRESS": address(self.number), "SHADOWIB_VM_COUNTS": str(int(job.counts)),
                        "SHADOWIB_VM_PEER": address(1 - self.number if job.nodes == 2 else 0)}
        if job.nfs:
            environment["SHADOWIB_VM_SHARED"] = SHARED
        seen = [str(path) for path in (here, *job.seen) if str(path).startswith(tuple(own + "/" for own in OWN))]

        def lines(paths) -> bytes:
            return "".join(f"{path}\n" for path in paths).encode()

        def strings(values) -> bytes:
            return b"".join(os.fsencode(value) + b"\0" for value in values)

        return newc.archive([
            newc.file("init", HERE / "init"),
            newc.file("job/guest", HERE / "guest"),
            newc.file("job/shared_directory", HERE / "shared_directory"),
            newc.text("job/settings", "".join(f"{name}={value}\n" for name, value in settings.items()).encode()),
            newc.text("job/seen", lines(dict.fromkeys(seen))),
            newc.text("job/shared", lines(job.shared)),
            newc.text("job/environment", strings(f"{name}={value}" for name, value in environment.items())),
            newc.text("job/command", strings(job.command)),
        ])

    def _argv(self, kernel: Kernel, initrd: pathlib.Path, console: int, output: int) -> list[str]:
        job = self.job
        threads = "single" if job.counts else "multi"
        argv = [tool("qemu-system-x86_64", "qemu-system-x86"), "-nodefaults", "-no-user-config", "-nographic", "-no-reboot",
                # Without KVM, which the machines of a CI rarely have. The features left out are those TCG does badly.
                "-machine", "q35", "-accel", f"tcg,thread={threads}", "-cpu", "max,la57=off,pku=off,mpx=off,svm=off",
                "-smp", str(1 if job.nodes == 2 or job.counts else 2), "-m", str(job.memory_mib),
                "-kernel", str(kernel.image), "-initrd", str(initrd),
                # The kernel's tests of its own cryptography have hung at boot under TCG, for good, once in hundreds of boots. Its
                # test of the timer counts interrupts, and panics where this machine has given QEMU no processor for them in time.
                "-append", "console=ttyS0 panic=-1 oops=panic quiet mitigations=off random.trust_cpu=on cryptomgr.notests no_timer_check",
                "-chardev", f"file,id=console,path=/dev/fd/{console}", "-serial", "chardev:console",
                "-chardev", f"file,id=output,path=/dev/fd/{output}", "-serial", "chardev:output",
                "-virtfs", "local,path=/,mount_tag=host,security_model=none,multidevs=remap,readonly=on"]
        if job.counts:
            argv += ["-icount", "shift=0"]
        for number, path in enumerate(job.shared):
            argv += ["-virtfs", f"local,path={path},mount_tag=share{number},security_model=none,multidevs=remap"]
        if job.nodes == 2:
            sockets = [job.work / f"net{end}" for end in (self.number, 1 - self.number)]
            argv += ["-netdev", "dgram,id=net,local.type=unix,local.path={},remote.type=unix,remote.path={}".format(*sockets),
                     "-device", f"virtio-net-pci,netdev=net,mac=52:54:00:77:00:0{self.number + 1},host_mtu=9000"]
        return argv

    def read(self, fd: int) -> list[tuple[str, bytes]]:
        """What has come on that stream: (stream, line) each. Closes it at its end."""
        stream = self.streams[fd]
        data = os.read(fd, 1 << 16)
        if not data:
            os.close(fd)
            del self.streams[fd]
        shown = [(stream.name, self._heard(stream, line)) for line in stream.lines(data)]
        return [(name, line) for name, line in shown if line]

    def _heard(self, stream: "Stream", line: bytes) -> bytes:
        """Notes what the guest's own programs say of the run, and what the kernel says at its end. Returns the rest."""
        if stream.name == "kernel":
            if not self.text and (match := re.search(rb"Kernel panic - not syncing: (.*?)\s*$", line)):
                self.text = match[1].decode(errors="replace")
            self.last_words = line.decode(errors="replace").strip() or self.last_words
            return line
        before, mark, after = line.partition(self.marker.encode() + b" ")
        if not mark:
            return line
        kind, _, rest = after.decode(errors="replace").strip().partition(" ")
        if kind == "ready":
            self.boot_seconds = round(time.monotonic() - self.began, 1)
        elif kind == "exit":
            self._end("exited", "", int(rest))
        else:
            self._end("broken", rest)
        return before

    def _end(self, outcome: str, text: str = "", exit_code: int | None = None):
        self.outcome, self.exit_code, self.seconds = outcome, exit_code, round(time.monotonic() - self.began, 1)
        self.text = text or self.text

    def poll(self):
        """Notices a guest that has ended without a word."""
        if self.outcome is None and not self.streams:
            code = self.process.wait()
            if self.text:
                self._end("panicked")
            else:
                self._end("broken", f"the guest ended without telling a result (QEMU's exit code: {code}; last words: {self.last_words!r})")

    def stop(self, outcome: str):
        """Ends the guest; `outcome` is what it is given if its command had not ended."""
        if self.outcome is None:
            self._end(outcome)
        self.process.kill()
        self.process.wait()


class Stream:
    """Bytes to lines; the last one may lack its end."""

    def __init__(self, name: str):
        self.name, self.rest = name, b""

    def lines(self, data: bytes) -> list[bytes]:
        if not data:
            rest, self.rest = self.rest, b""
            return [rest] if rest else []
        *whole, self.rest = (self.rest + data).split(b"\n")
        return [line + b"\n" for line in whole]


def address(node: int) -> str:
    return f"192.168.77.{node + 1}"


def quoted(text: pathlib.Path | str) -> str:
    return str(text).replace("'", "'\\''")
