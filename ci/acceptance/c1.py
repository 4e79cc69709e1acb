"""C1: programs of others on a kernel's RDMA device: natively, under the shim, and with checkpoint, kill and restart at random
moments of the data phase. Boots a machine with Soft-RoCE (ci/vm/run) and goes on in there."""
import os
import pathlib
import shutil
import subprocess
import sys

from clients import Client, pingpong
from common import ROOT, Case, Failure, Line, main
from jobs import Job, free_port
from pair import Pair, campaign

BAD = ("invalid data", "Completion with error", "Failed status", "Couldn't")
TIMEOUT_S = {True: 300, False: 3600}
# Of an emulated processor: natively some thousand messages a second.
CLIENTS = [
    *pingpong("rc", "-g 1 -c", "-g 1 -e", "-g 1 -N", short=200),
    *pingpong("uc", "-g 1", "-g 1 -e", short=200),
    *pingpong("ud", "-g 1", "-g 1 -e", short=200),
    *pingpong("srq", "-g 1", "-g 1 -e", short=200, requests=1 / 16),
]
SAMPLE = ("ibv_rc_pingpong -g 1 -c", "ibv_ud_pingpong -g 1 -e", "ibv_srq_pingpong -g 1")


def plain(case: Case, client: Client, backend: str | None) -> str:
    port = free_port()
    job = Job(case, backend=backend)
    job.start_pair(client.end(0, port, client.short), client.end(1, port, client.short), port, client.ready)
    job.finish(60)
    for bad in BAD:
        if bad in job.output():
            raise Failure(f"the output says '{bad}':\n{job.output()[-2000:]}")
    return f"{client.short} iterations"


def restarted(case: Case, client: Client) -> str:
    def commands(port: int, n: int):
        return client.end(0, port, n), client.end(1, port, n)
    return campaign(case, Pair(commands, None, requests=client.requests, seconds=8.0, most_iterations=client.most, multiple=client.multiple, bad=BAD,
                               backend="verbs", ready=client.ready), 2)


def in_guest(line: Line) -> int:
    for client in CLIENTS:
        if line.quick and client.name not in SAMPLE:
            continue
        if not line.quick:
            line.case(f"{client.name}, natively", lambda c, k=client: plain(c, k, None))
            line.case(f"{client.name}, shim", lambda c, k=client: plain(c, k, "verbs"))
        line.case(f"{client.name}, restarted", lambda c, k=client: restarted(c, k), 1 if line.quick else 4)
    return line.finish()


def on_host(line: Line, evidence: pathlib.Path) -> int:
    """The same line again, in the guest. What it leaves when a case fails is copied out of it."""
    shutil.rmtree(evidence, ignore_errors=True)
    evidence.mkdir(parents=True)
    argv = [ROOT / "ci" / "vm" / "run", "--timeout", str(TIMEOUT_S[line.quick]), "--log", evidence / "vm.log", "--share", evidence]
    for path in filter(None, (line.options.state, line.options.log)):
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
        argv += ["--share", path.resolve().parent]
    words = [sys.executable, "-B", ROOT / "ci" / "acceptance" / "c1.py", *sys.argv[1:], "--seed", line.seed]
    return subprocess.run([*argv, "--", *words], check=False).returncode


def run() -> int:
    inside = os.environ.get("SHADOWIB_VM") == "1"
    if inside:
        sys.argv += ["--area", "/tmp/area"]  # sockets and FIFOs need a file system of the guest's own
    line = Line("c1", __doc__)
    if line.options.list:
        return in_guest(line)
    evidence = line.build / "acceptance" / "c1-vm"
    if not inside:
        return on_host(line, evidence)
    try:
        code = in_guest(line)
    finally:
        if line.area.exists():
            shutil.copytree(line.area, evidence / "area", dirs_exist_ok=True, symlinks=True,
                            ignore=shutil.ignore_patterns("ckpt"))
    return code


if __name__ == "__main__":
    main(run)
