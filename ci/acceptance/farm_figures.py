"""Figures 7 to 9 of the paper on task farms: what a checkpoint of the master costs, by its memory and by its number of workers.

Prints a table, and writes three plots to --plots DIR. Figures are shown and not judged: other work on the machine is in them.
"""
import json
import os
import pathlib
import statistics
import sys
import time

from common import ROOT, Case, Line, main
from jobs import Job, wait_for

sys.path.insert(0, str(ROOT / "perftest"))
import svg  # noqa: E402  pylint: disable=wrong-import-position

LOAD: list[float] = []
TAKEN = {False: 5, True: 2}  # checkpoints of each kind, by --quick


def measure(case: Case, mebibytes: int, workers: int) -> dict[str, list[float]]:
    """Milliseconds by kind, and the images' bytes."""
    job = Job(case, f"figure{mebibytes}w{workers}")
    job.place = case.work / job.name
    job.place.mkdir()
    program = job.start("master", [case.line.program("ci_big_farm"), str(mebibytes), f"--TOPC-num-slaves={workers}"])
    wait_for("the first result", lambda: "ready" in program.text() or program.ended(), 300)
    found: dict[str, list[float]] = {"stop": [], "written": [], "stop, forked": [], "sync": [], "bytes": []}
    for number in range(2 * TAKEN[case.line.quick]):
        forked = number % 2 == 1
        os.sync()
        words = ["checkpoint", job.name, "--json", *(["--save", "forked"] if forked else [])]
        member = json.loads(job.command(*words, timeout=300).stdout)["members"][0]
        start = time.monotonic()
        os.sync()
        found["sync"].append(1e3 * (time.monotonic() - start))
        found["stop, forked" if forked else "stop"].append(member["stopped_ns"] / 1e6)
        found["written"].append(member["save_ns"] / 1e6)
        found["bytes"].append(member["bytes"])
        LOAD.append(os.getloadavg()[0])
        case.note(f"{mebibytes} MiB, {workers} workers: {member}")
    (job.place / "finish").touch()
    job.finish(300)
    return found


def show(title: str, rows: dict[int, dict]) -> dict[str, list]:
    kinds = ("stop", "stop, forked", "written", "sync")
    print(f"  {title:12}" + "".join(f"{kind:>16}" for kind in kinds) + f"{'image MiB':>16}")
    for x, row in rows.items():
        print(f"  {x:<12}" + "".join(f"{statistics.median(row[kind]):13.1f} ms" for kind in kinds)
              + f"{statistics.median(row['bytes']) / 2**20:16.1f}")
    sys.stdout.flush()
    return {kind: [(x, statistics.median(row[kind])) for x, row in rows.items()] for kind in kinds}


def plot(case: Case, number: int, title: str, x_title: str, series: dict):
    directory = case.line.options.plots
    if directory:
        directory.mkdir(parents=True, exist_ok=True)
        svg.line_plot(directory / f"task_farm_{number}.svg", title, x_title, "ms", series)


def memory(case: Case):
    series = show("MiB", {size: measure(case, size, 2) for size in ((8, 32) if case.line.quick else (25, 50, 100, 200, 400))})
    plot(case, 7, "The master stands still for a checkpoint", "MiB of memory",
         {"it writes its image itself": series["stop"], "a forked copy writes it": series["stop, forked"]})
    plot(case, 8, "The image gets to the disk", "MiB of memory", {"written": series["written"], "sync(2) directly after": series["sync"]})
    return f"load {min(LOAD):.1f} to {max(LOAD):.1f}"


def workers(case: Case):
    rows = {number: measure(case, 16 if case.line.quick else 100, number) for number in ((1, 4) if case.line.quick else (1, 2, 4, 8, 16))}
    series = show("workers", rows)
    plot(case, 9, "The master stands still for a checkpoint, with more workers", "workers",
         {"it writes its image itself": series["stop"], "a forked copy writes it": series["stop, forked"]})
    (few, small), (many, large) = ((n, statistics.median(rows[n]["bytes"])) for n in (min(rows), max(rows)))
    grown = f"{(large - small) / (many - few) / 1024:.0f} KiB of image for each worker"
    return f"{grown}, load {min(LOAD):.1f} to {max(LOAD):.1f}"


def run() -> int:
    line = Line("farm_figures", __doc__.splitlines()[0],
                lambda parser: parser.add_argument("--plots", type=pathlib.Path, metavar="DIR", help="writes the plots there"))
    line.case("memory", memory)
    line.case("workers", workers)
    return line.finish()


if __name__ == "__main__":
    main(run)
