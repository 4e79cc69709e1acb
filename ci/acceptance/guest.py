"""Lines that need a kernel's RDMA device: started on the host, they boot a machine with Soft-RoCE (ci/vm/run) and go on in there."""
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Callable

import nodes as other_node
from common import ROOT, Line

SKIPPED = 77
EVIDENCE = "SHADOWIB_CI_EVIDENCE"  # where it is to leave what failed, told to a guest


def _on_host(line: Line, evidence: pathlib.Path, timeout: float, nodes: int, machine: list[str], shared: tuple) -> int:
    """The same line again, in the guest. What it leaves when a case fails is copied out of it."""
    shutil.rmtree(evidence, ignore_errors=True)
    evidence.mkdir(parents=True)
    argv = [ROOT / "ci" / "vm" / "run", *machine, "--timeout", str(timeout), "--log", evidence / "vm.log", "--share", evidence]
    if nodes == 2:
        argv += ["--nodes", "2", "--shared-directory"]
    for path in shared:
        argv += ["--share", path]
    for path in filter(None, (line.options.state, line.options.log, getattr(line.options, "table", None))):
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
        argv += ["--share", path.resolve().parent]
    # The guest has a /tmp of its own: sockets and FIFOs need a file system that is.
    words = [sys.executable, "-B", sys.argv[0], *sys.argv[1:], "--seed", line.seed, "--area", "/tmp/area"]
    return subprocess.run([*argv, "--", *words], env={**os.environ, EVIDENCE: str(evidence)}, check=False).returncode


def _bring_out(case):
    """At once, since the machine may end before the line does. Sockets, which cannot be copied, stay. Images do not: the machine's
    memory is its only space, which the cases to come need."""
    try:
        shutil.copytree(case.work, pathlib.Path(os.environ[EVIDENCE]) / "area" / case.work.name, dirs_exist_ok=True, symlinks=True,
                        ignore=shutil.ignore_patterns("ckpt"))
    except (OSError, shutil.Error) as error:
        case.note(f"not all of the evidence could be brought out: {error}")
    for images in case.work.rglob("sets"):
        shutil.rmtree(images, ignore_errors=True)


class KernelLog:
    """The guest's kernel names each process that a fault ended, and where in which file it was."""

    def __init__(self):
        self.told = len(self._lines())

    @staticmethod
    def _lines() -> list[str]:
        return subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace", check=True).stdout.splitlines()

    def news(self) -> str:
        lines = self._lines()
        new, self.told = lines[self.told:], len(lines)
        return "\n  the kernel said:\n" + "\n".join("    " + line for line in new[-20:]) if new else ""


def run_in_guest(line: Line, in_guest: Callable[[Line], int], timeouts: dict[bool, float], nodes: int = 1,
                 machines: tuple[list[str], ...] = ([],), shared: tuple[pathlib.Path, ...] = ()) -> int:
    """`in_guest` runs the line's cases; `timeouts` of the whole, by line.quick. Returns the exit code. Of two nodes, node 0 runs the
    cases, in the directory of both, and node 1 starts what it is told to (nodes.py). `machines`: options of ci/vm/run, for each
    machine that is booted, one after the other. `shared`: directories of the host that it may write to."""
    if line.options.list:
        return in_guest(line)
    evidence = line.build / "acceptance" / f"{line.name}-vm"
    if os.environ.get("SHADOWIB_VM") != "1":
        codes = [_on_host(line, evidence.with_name(evidence.name + str(i or "")), timeouts[line.quick], nodes, machine, shared)
                 for i, machine in enumerate(machines)]
        return max((code for code in codes if code != SKIPPED), default=SKIPPED)
    if nodes == 2 and os.environ["SHADOWIB_VM_NODE"] == "1":
        return other_node.serve()
    if nodes == 2:
        line.area = other_node.shared_area()
    line.keep_elsewhere = _bring_out
    line.kernel_said = KernelLog().news
    try:
        return in_guest(line)
    finally:
        if nodes == 2:
            other_node.quit_other()
        for file in line.area.glob("*"):
            if file.is_file():
                shutil.copy(file, pathlib.Path(os.environ[EVIDENCE]))
