"""C5: what the shim costs on a kernel's RDMA device: instructions added to an iteration, on a machine whose clock counts them
(ci/vm/run --count-instructions: all of them, the kernel's and both programs'), and the ratio of times of interleaved pairs of
runs, natively and under the shim, on an ordinary one. Boots both machines, one after the other, and goes on in there."""
import dataclasses
import os
import re
import statistics
import subprocess

from common import Case, Line, check, main
from guest import run_in_guest
from jobs import free_port, listening, wait_for

TIMEOUT_S = {True: 1200, False: 3600}  # --quick or not
PAIRS = 8
GOAL = 1.02


@dataclasses.dataclass
class Program:
    """`per` finds what it says of its pace; in microseconds an iteration that is `microseconds(found)`."""
    words: str
    counted: int          # iterations where instructions are counted
    timed: int            # and where the time is taken
    most: float = GOAL    # instructions with the shim, over those without
    per: str = r"= ([0-9.]+) usec/iter"
    microseconds: object = float


def perftest(words: str, counted: int, timed: int, most: float = GOAL) -> Program:
    return Program(words, counted, timed, most, r"^\s*\d+\s+\d+\s+[\d.]+\s+[\d.]+\s+([\d.]+)\s*$", lambda rate: 1 / float(rate))


# Two programs that poll take turns by the scheduler's clock on a machine with one processor, so those that are counted sleep, or
# have enough outstanding. What asks for a completion now and then has them all asked for (objects/forced_signals.h): messages of
# 64 bytes, which cost the least besides, show most of it, and more if it sleeps until each of those that it has asked for.
PROGRAMS = [
    Program("ibv_rc_pingpong -g 1 -e", 500, 16000),
    perftest("ib_send_bw -F", 500, 4500),
    perftest("ib_send_bw -F -s 64", 2000, 20000, most=1.04),
    perftest("ib_send_bw -F -s 64 -e", 2000, 20000, most=1.25),
]


def microseconds(case: Case, program: Program, iterations: int, shim: bool, run: int) -> float:
    """An iteration's, by the client. While it is measured nothing of ours runs on the machine."""
    port = free_port()
    words = [*program.words.split(), "-n", str(iterations), "-p", str(port)]
    if shim:
        words = [case.line.program("shadowib"), "run", "--backend", "verbs", "--job", f"run{run}", "--dir", str(case.work / "ckpt"), "--", *words]
    with open(case.work / f"server{run}.txt", "w") as log, subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT) as server:
        try:
            wait_for("the server to listen", lambda: server.poll() is not None or listening(port), 60)
            client = subprocess.run([*words, "localhost"], capture_output=True, text=True, timeout=600, check=False)
            check(client.returncode == 0, f"the client exits with {client.returncode}:\n{client.stdout}{client.stderr}")
            check(server.wait(60) == 0, f"the server exits with {server.returncode}")
        finally:
            server.kill()
    found = re.search(program.per, client.stdout, re.MULTILINE)
    check(found, f"the client does not say how fast it was:\n{client.stdout}")
    return program.microseconds(found[1])


def counted(case: Case, program: Program) -> str:
    """A nanosecond is an instruction. The first run with the shim is not measured: files are read from the host."""
    microseconds(case, program, program.counted, True, 0)
    native, shim = (1000 * microseconds(case, program, program.counted, s, 1 + s) for s in (False, True))
    case.figures |= {"native": native, "shim": shim}
    check(shim <= program.most * native,
          f"{native:.0f} instructions natively, {shim:.0f} under the shim: more than {program.most} times as many")
    return f"{native:.0f} instructions natively, {shim - native:+.0f} under the shim, x {shim / native:.4f} (at most {program.most})"


def timed(case: Case, program: Program) -> str:
    """A figure, not a bound: on an emulated processor, next to others, single runs differ by more than the goal."""
    ratios = []
    for pair in range(PAIRS):
        order = (False, True) if pair % 2 == 0 else (True, False)
        took = {shim: microseconds(case, program, program.timed, shim, 2 * pair + shim) for shim in order}
        ratios.append(took[True] / took[False])
    case.figures |= {"ratios": ratios}
    quartiles = statistics.quantiles(ratios, n=4)
    return f"x {statistics.median(ratios):.3f} (quartiles {quartiles[0]:.3f} to {quartiles[2]:.3f}, " \
           f"mean {statistics.mean(ratios):.3f} +- {statistics.stdev(ratios):.3f}, {PAIRS} pairs)"


def in_guest(line: Line) -> int:
    counts = line.options.list or os.environ["SHADOWIB_VM_COUNTS"] == "1"
    for program in PROGRAMS:
        if counts:
            line.case(f"{program.words}, instructions an iteration", lambda c, p=program: counted(c, p))
        if (line.options.list or not counts) and not line.quick:
            line.case(f"{program.words}, time an iteration", lambda c, p=program: timed(c, p))
    return line.finish()


if __name__ == "__main__":
    main(lambda: run_in_guest(line := Line("cost_vm", __doc__), in_guest, TIMEOUT_S,
                              machines=(["--count-instructions"],) if line.quick else (["--count-instructions"], [])))
