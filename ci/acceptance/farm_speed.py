"""MW7: what a null task of 64 bytes costs in a task farm, beside plain verbs and other farms, in one interleaved run.

  instructions  those of the master and of the worker for a task, over a simulated device: the master's with 64 workers at most 1.05 of
                those with one
  round trip    one worker, one task at a time, beside ib_send_lat with a shared receive queue. Medians, as it tells them
  ahead         one worker, 16 tasks posted ahead, beside ib_send_bw with a shared receive queue, both ways, and beside ZeroMQ (ipc),
                mpi4py.futures, Work Queue (by makeflow) and Dask with 16 outstanding

Programs over verbs run under shadowib, with real-time priority where that is allowed; the others without. They take turns, and the best of
each counts. A short run judges instructions alone, and compares with plain verbs and ZeroMQ: ratios are told.
"""
import os
import re
import shutil
import subprocess
import time

from common import ROOT, Case, Line, Skip, check, main
from jobs import Job, free_port, wait_for

RUNS = {True: 1, False: 5}
TASKS = {True: 2000, False: 50000}
PATIENCE_S = 200
ROUND_TRIPS, RATE = 1.3, 0.7  # of plain verbs
MORE_THAN = {"ZeroMQ": 5, "mpi4py.futures": 50, "Work Queue": 300, "Dask": 300}  # times their rate
MOST_INSTRUCTIONS, MOST_OF_A_WORKER = 2214, 770  # for a task: 2108 and 733 were measured, and a twentieth
WITH_64 = 1.05
PYTHON = "/usr/bin/python3"  # the one that packages are for


def real_time() -> list[str]:
    words = ["chrt", "--fifo", "5"]
    return words if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0 else []


class FastJob(Job):
    """Its programs have real-time priority."""

    def start(self, role: str, argv: list[str], environment: dict | None = None, **options):
        run = [*real_time(), self.shadowib, "run", "--job", self.name, "--dir", str(self.directory), "--backend", "ib2tcp", "--", *argv]
        program = self._spawn(role, run, environment, **options)
        self.programs.append(program)
        return program


def instructions_of(case: Case, whose: str, step: str) -> float:
    out, tasks = case.work / f"callgrind.{whose}", 1000
    words = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", f"--toggle-collect={step}", case.line.program("mw_step_cost"),
             whose, str(tasks)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"{' '.join(words)}: {done.stdout[-500:]}{done.stderr[-1000:]}")
    table = subprocess.run(["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(out)], capture_output=True, text=True, check=True).stdout
    total = int(re.search(r"^\s*([0-9,]+).*PROGRAM TOTALS", table, re.M)[1].replace(",", ""))
    device = 0
    for function in ("poll_cq", "post_send", "post_receive"):
        # The same function may stand there by its caller's file, too.
        costs = re.findall(rf"^\s*([0-9,]+) [^\n]*wires\.cc:[^\n]*\(anonymous namespace\)::{function}\(", table, re.M)
        check(costs, f"{function} is not in callgrind's table:\n{table[:3000]}")
        device += max(int(cost.replace(",", "")) for cost in costs)
    return (total - device) / tasks


def instructions(case: Case):
    if not shutil.which("valgrind"):
        raise Skip("valgrind is not installed: instructions are counted by its callgrind")
    one, many = instructions_of(case, "1", "farm_step"), instructions_of(case, "64", "farm_step")
    worker = instructions_of(case, "worker", "worker_step")
    text = f"{one:.0f} instructions of a master for a task with 1 worker, {many:.0f} with 64: {many / one:.3f}; {worker:.0f} of a worker"
    check(one <= MOST_INSTRUCTIONS, f"{text}; at most {MOST_INSTRUCTIONS} may be of a master")
    check(worker <= MOST_OF_A_WORKER, f"{text}; at most {MOST_OF_A_WORKER} may be of a worker")
    check(many <= WITH_64 * one, f"{text}; at most {WITH_64} may be")
    return text


def farm_us(case: Case, number: int, ahead: int) -> float:
    """A task's time: the median of round trips, the mean of tasks that are posted ahead."""
    job = FastJob(case, f"farm{ahead}n{number}")
    job.start("master", [case.line.program("ci_farm_speed"), str(TASKS[case.line.quick]), "--TOPC-num-slaves=1", f"--TOPC-aggregated-tasks={ahead}"])
    job.finish(PATIENCE_S)
    found = re.search(r"([0-9.]+) us a task" if ahead > 1 else r"median ([0-9.]+) us", job.output())
    check(found, job.output()[-2000:])
    return float(found[1])


def verbs_row(case: Case, number: int, tool: str, *words: str) -> list[float]:
    """The figures of one run of perftest, with messages as long as the farm's."""
    if not shutil.which(tool):
        raise Skip(f"{tool} is not installed")
    job, port = FastJob(case, f"{tool}{number}"), free_port()
    argv = [tool, "-s", "128", "-n", str(TASKS[case.line.quick]), "-p", str(port), "--use-srq", *words]
    server = job.start("server", argv)
    wait_for("the server", lambda: server.ended() or f":{port:04X} " in open("/proc/net/tcp").read() + open("/proc/net/tcp6").read(), 60)
    client = job.start("client", [*argv, "127.0.0.1"])
    job.finish(PATIENCE_S)
    rows = [line.split() for line in client.text().splitlines() if re.match(r"\s*128\s", line)]
    check(rows, client.text()[-2000:])
    return [float(word) for word in rows[-1]]


def told_us(case: Case, words: list[str]) -> float:
    """What a program says that a task takes it."""
    done = subprocess.run(words, cwd=case.work, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    found = re.search(r"([0-9.]+) us a task", done.stdout)
    check(done.returncode == 0 and found, f"{' '.join(words)}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    return float(found[1])


def zeromq(case: Case, number: int) -> float:
    return told_us(case, [case.line.program("ci_zmq_farm"), str(TASKS[case.line.quick]), "16", f"ipc://{case.work}/zmq{number}"])


def python_words(kind: str, tasks: int) -> list[str]:
    return [PYTHON, *(["-m", "mpi4py.futures"] if kind == "mpi4py" else []), str(ROOT / "ci/acceptance/programs/python_farm.py"), kind, str(tasks)]


def has_module(name: str) -> bool:
    return subprocess.run([PYTHON, "-c", f"import {name}"], capture_output=True, check=False).returncode == 0


def mpi4py(case: Case, _number: int) -> float:
    if not has_module("mpi4py.futures") or not shutil.which("mpiexec.openmpi"):
        raise Skip("python3-mpi4py or openmpi-bin is not installed")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return told_us(case, ["mpiexec.openmpi", *root, "--oversubscribe", "-n", "2", *python_words("mpi4py", 2000)])


def dask(case: Case, _number: int) -> float:
    if not has_module("distributed"):
        raise Skip("python3-distributed is not installed")
    return told_us(case, python_words("dask", 500))


def work_queue(case: Case, number: int) -> float:
    """Its library is not packaged: makeflow drives it. The time of many tasks less that of few has no start in it."""
    if not shutil.which("makeflow") or not shutil.which("work_queue_worker"):
        raise Skip("coop-computing-tools is not installed")

    def seconds(tasks: int) -> float:
        place = case.work / f"wq{number}t{tasks}"
        place.mkdir()
        (place / "flow").write_text("".join(f"out{i}:\n\techo > out{i}\n\n" for i in range(tasks)))
        port, begun = free_port(), time.monotonic()
        worker = subprocess.Popen(["work_queue_worker", "-t", "60", "--cores", "16", "127.0.0.1", str(port)], cwd=place,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            done = subprocess.run(["makeflow", "-T", "wq", "-p", str(port), "-J", "16", "flow"], cwd=place, capture_output=True, text=True,
                                  timeout=PATIENCE_S, check=False)
        finally:
            took = time.monotonic() - begun
            worker.terminate()
            worker.wait()
        check(done.returncode == 0 and (place / f"out{tasks - 1}").exists(), done.stdout[-1000:] + done.stderr[-1000:])
        return took
    few, many = 20, 220
    return 1e6 * (seconds(many) - seconds(few)) / (many - few)


OTHERS = {"ZeroMQ": zeromq, "mpi4py.futures": mpi4py, "Work Queue": work_queue, "Dask": dask}


def round_trip(case: Case):
    farms, verbs = [], []
    for number in range(RUNS[case.line.quick]):
        farms.append(farm_us(case, number, 1))
        verbs.append(2 * verbs_row(case, number, "ib_send_lat")[4])  # half a round trip, typical
    ratio = min(farms) / min(verbs)
    text = f"{min(farms):.2f} us; plain verbs {min(verbs):.2f} us, so {ratio:.2f} of it; load {os.getloadavg()[0]:.1f}"
    check(case.line.quick or ratio <= ROUND_TRIPS, f"{text}; at most {ROUND_TRIPS} may be")
    return text


def ahead(case: Case):
    farms, verbs, others = [], [], {}
    wanted = {name: run for name, run in OTHERS.items() if name == "ZeroMQ" or not case.line.quick}
    for number in range(RUNS[case.line.quick]):
        farms.append(farm_us(case, number, 16))
        verbs.append(2 / verbs_row(case, number, "ib_send_bw", "-b", "-t", "16")[4])  # millions of messages in a second, both ways
        for name, run in list(wanted.items()):
            try:
                us = run(case, number)
                others.setdefault(name, []).append(us)
            except Skip as skip:
                case.line.leave_out(name, str(skip))
                del wanted[name]
    farm, verb = min(farms), min(verbs)
    text = f"{farm:.2f} us a task; plain verbs {verb:.2f} us, so {verb / farm:.2f} of its rate"
    for name, times in others.items():
        text += f"; {name} {min(times):.1f} us, {min(times) / farm:.0f} times"
    text += f"; load {os.getloadavg()[0]:.1f}"
    if not case.line.quick:
        check(verb / farm >= RATE, f"{text}; {RATE} of plain verbs is wanted")
        for name, times in others.items():
            check(min(times) / farm >= MORE_THAN[name], f"{text}; {MORE_THAN[name]} times {name} is wanted")
    return text


def run() -> int:
    line = Line("farm_speed", __doc__.splitlines()[0])
    line.case("instructions", instructions)
    line.case("round trip", round_trip)
    line.case("ahead", ahead)
    return line.finish()


if __name__ == "__main__":
    main(run)
