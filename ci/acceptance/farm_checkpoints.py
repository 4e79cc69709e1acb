"""MW4: a checkpoint of a task farm costs what its master's memory costs, whatever the number of workers, and stops none of them.

For masters of several sizes and numbers of workers: the master's stop, the image's bytes, the exchange's operations, and the longest
pause in the clock that each worker keeps. Bytes and the fewest operations of the exchange are judged always, times in the full run only: a member
that waits looks into the exchange again.
"""
import json
import os
import pathlib
import shutil
import statistics
import tempfile
import time

from common import Case, Line, check, main
from jobs import Job, wait_for
from task_farms import workers_of

SIZES = {True: (32,), False: (50, 200, 800)}   # MiB
WORKERS = {True: (0, 8), False: (0, 1, 4, 16)}
CHECKPOINTS = {True: 4, False: 3}
ROUNDS = {True: 1, False: 4}         # so 12 checkpoints of each: all numbers of workers in turn, as other work on the machine changes
MOST_BYTES_RATIO = 1.01
MOST_STOP_RATIO, OR_MS = 1.15, 10.0
MOST_PAUSES = 2.0  # of the longest pause in as much time without a checkpoint
PATIENCE_S = 300


class Measured:
    def __init__(self):
        self.stopped_ms, self.bytes, self.operations, self.pauses_ms, self.else_ms = [], [], [], [], []

    def add(self, other: "Measured"):
        for name, values in vars(other).items():
            getattr(self, name).extend(values)


def operations(log: pathlib.Path) -> list[int]:
    """Of the exchange, by checkpoint, as the member has logged them."""
    return [int(line.rsplit("; ", 1)[1].split()[0]) for line in log.read_text(errors="replace").splitlines()
            if line.endswith("exchange operations") and " took ms: " in line]


def pauses_ms(case: Case, since_ns: int, until_ns: int) -> list[float]:
    """The longest pause of each worker's clock between these moments of CLOCK_MONOTONIC."""
    worst = []
    for path in (case.work / "clocks").glob("*"):
        ticks = [int(word) for word in path.read_text().split()]
        ticks = [at for at in ticks if since_ns <= at <= until_ns]
        worst.append(max((b - a for a, b in zip([since_ns, *ticks], [*ticks, until_ns])), default=0) / 1e6)
    return worst


def measure(case: Case, mebibytes: int, workers: int, turn: int) -> Measured:
    where = case.work
    case.work = where / f"{mebibytes}w{workers}t{turn}"
    (case.work / "clocks").mkdir(parents=True)
    log = case.work / "shadowib.log"
    job = Job(case, f"farm{mebibytes}w{workers}t{turn}", environment={"SHADOWIB_LOG": f"debug:{log}"})
    # In memory: a disk's pace changes by more than what is looked for.
    job.directory = pathlib.Path(tempfile.mkdtemp(prefix="shadowib-mw4-", dir="/dev/shm"))
    case.cleanups.append(lambda failed: shutil.rmtree(job.directory, ignore_errors=True))
    program = job.start("master", [case.line.program("ci_big_farm"), str(mebibytes), "clocks", f"--TOPC-num-slaves={workers}"])
    wait_for("the start", lambda: "ready" in program.text() or program.ended(), PATIENCE_S)
    wait_for(f"{workers} workers at work", lambda: len(list((case.work / "clocks").glob("*"))) >= workers or program.ended(), PATIENCE_S)
    found = Measured()
    for _ in range(CHECKPOINTS[case.line.quick]):
        start = time.monotonic_ns()
        member = json.loads(job.command("checkpoint", job.name, "--json", timeout=PATIENCE_S).stdout)["members"][0]
        end = time.monotonic_ns()
        found.pauses_ms += pauses_ms(case, start, end)
        time.sleep((end - start) / 1e9)  # the same time without a checkpoint
        found.else_ms += pauses_ms(case, end, time.monotonic_ns())
        found.stopped_ms.append(member["stopped_ns"] / 1e6)
        found.bytes.append(member["bytes"])
        case.note(f"{mebibytes} MiB, {workers} workers: {member}")
        shutil.rmtree(job.directory / "sets")
    check(len(workers_of(case, "ci_big_farm")) == workers, f"not all of {workers} workers are left")
    (case.work / "finish").touch()
    if workers == 0:
        job.command("worker", job.name, "-n", "1")
    job.finish(PATIENCE_S)
    wait_for("the workers' end", lambda: not workers_of(case, "ci_big_farm"), PATIENCE_S)
    case.work = where
    found.operations = operations(log)
    return found


def same(size: int):
    def run(case: Case):
        quick = case.line.quick
        rows = {workers: Measured() for workers in WORKERS[quick]}
        for turn in range(ROUNDS[quick]):
            for workers, row in rows.items():
                row.add(measure(case, size, workers, turn))
        stops = {workers: statistics.median(row.stopped_ms) for workers, row in rows.items()}
        sizes = {workers: statistics.median(row.bytes) for workers, row in rows.items()}
        counts = {workers: min(row.operations, default=0) for workers, row in rows.items()}  # others have looked again while they waited
        pauses = [pause for row in rows.values() for pause in row.pauses_ms]
        usual = statistics.median(pause for row in rows.values() for pause in row.else_ms)
        text = (f"stop {', '.join(f'{stop:.0f}' for stop in stops.values())} ms, image {', '.join(f'{b / 2**20:.2f}' for b in sizes.values())} MiB "
                f"with {', '.join(map(str, rows))} workers; longest pause of a worker in a checkpoint {statistics.median(pauses):.0f} ms (median), without one {usual:.0f} ms; "
                f"exchange operations {', '.join(map(str, counts.values()))}; load {os.getloadavg()[0]:.1f}")
        check(max(sizes.values()) <= MOST_BYTES_RATIO * min(sizes.values()), f"images differ: {text}")
        check(min(counts.values()) > 0, f"no operation of the exchange is counted: {counts}")
        check(len(set(counts.values())) == 1, f"the exchange's operations differ: {text}")
        if not quick:
            low, high = min(stops.values()), max(stops.values())
            check(statistics.median(pauses) <= MOST_PAUSES * usual + OR_MS, f"workers pause: {text}")
            check(high <= max(MOST_STOP_RATIO * low, low + OR_MS), f"stops differ: {text}")
        return text
    return run


def run() -> int:
    line = Line("farm_checkpoints", __doc__.splitlines()[0])
    for size in SIZES[line.quick]:
        line.case(f"{size} MiB", same(size))
    return line.finish()


if __name__ == "__main__":
    main(run)
