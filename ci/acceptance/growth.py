"""I5: threads, descriptors, mappings and regions of one member cost little each, and each as much as the first.

Processor time is compared, which other work on the machine does not add to: of the checkpoint's thread while the program stands, and of
all processes of a restart. A goal in microseconds is of a quiet machine. Where the kernel's own calls alone take longer than that,
measured by the same program in the same run, the goal is a multiple of theirs."""
import pathlib
import re
import resource
import subprocess

from common import Case, Line, check, main
from jobs import Job, wait_for

KINDS = ("threads", "descriptors", "mappings", "regions")
FULL = {"threads": 3000, "descriptors": 9000, "mappings": 60000, "regions": 60000}
QUICK = {"threads": 300, "descriptors": 1500, "mappings": 6000, "regions": 3000}
GOAL_US = {"threads": 100.0, "descriptors": 10.0, "mappings": 5.0}
OF_BARE = {"threads": 4.0, "descriptors": 1.8, "mappings": 1.8}
# Milliseconds scatter. A short sample is for growth with the square, where the others cost four times as much each.
SCATTER_MS, GROWTH, SHORT_GROWTH = 40.0, 1.5, 3.0
TRIES, SHORT_TRIES = (7, 3), (3, 1)  # checkpoints and restarts
LOOKS = 5  # until the growth is linear: what grows with the square stays so
STOPPED = ("stop", "settle", "quiesce", "inspect", "save")


def bare_us(case: Case, kind: str, count: int) -> float:
    """What the kernel's calls alone take for each, the quickest of three runs."""
    def once() -> float:
        return float(subprocess.run([case.line.program("ci_many"), "bare", kind, str(count)], cwd=case.work, capture_output=True,
                                    text=True, check=True).stdout)
    return min(once() for _ in range(3))


def stopped_ms(log: pathlib.Path) -> list[float]:
    """Of each checkpoint so far: processor time of its thread from the stop to the image's end."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        if match := re.search(r"took ms of processor time: (.*)", line):
            phases = dict(part.rsplit(" ", 1) for part in match[1].split(", "))
            found.append(sum(float(phases[name]) for name in STOPPED))
    return found


def restart_ms(job: Job, text: str) -> float:
    """Milliseconds of processor time of a restart, to the end of the program, which says `text` if all has come back."""
    job.restart()
    wait_for("the restarted member", lambda: job.check_running() or len(job.members()) == 1, 120, 0.2)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    (job.case.work / "finish").touch()
    job.finish(120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (job.case.work / "finish").unlink()
    check(text in job.output(), job.output()[-2000:])
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(case: Case, kind: str, count: int, checkpoints: int, restarts: int) -> tuple[float, float]:
    """Milliseconds of processor time: while the program stands, and of a restart; the least of some each."""
    name = f"{kind}{count}"
    log = case.work / f"{name}.log"
    job = Job(case, name, environment={"SHADOWIB_LOG": f"debug:{log}"})
    program = job.start(name, [case.line.program("ci_many"), kind, str(count)])
    wait_for(f"{count} {kind}", lambda: "ready" in program.text() or program.ended(), 120)
    check("ready" in program.text(), program.text())
    for i in range(checkpoints):
        job.checkpoint(kill=i + 1 == checkpoints, timeout=120)
    stopped = stopped_ms(log)
    check(len(stopped) >= checkpoints - 1 > 0, f"{log} tells of {len(stopped)} checkpoints")
    took = min(restart_ms(job, f"all of {count} {kind} are right") for _ in range(restarts))
    job.remove_old_sets()
    return min(stopped), took


def judged(case: Case, kind: str, most: int, least: list) -> tuple[bool, float, str]:
    """Measures once more, and keeps the least of everything in `least`: other work on the machine only adds to it."""
    third = most // 3
    tries = SHORT_TRIES if case.line.quick else TRIES
    least[:] = [tuple(map(min, before, measure(case, kind, n, *tries))) for before, n in zip(least, (1, third, most))]
    # The figure of a kind: threads are slow at a restart, descriptors and mappings while the program stands.
    at = [figures[kind in ("threads", "regions")] for figures in least]
    first, rest = (at[1] - at[0]) / third, (at[2] - at[1]) / (most - third)
    each_us = 1e3 * (at[2] - at[0]) / most
    text = f"{each_us:.1f} us each; of the first {third} {1e3 * first:.1f}, of the {most - third} others {1e3 * rest:.1f}"
    growth = SHORT_GROWTH if case.line.quick else GROWTH
    return rest <= growth * max(first, 0.0) + 2e-3 + SCATTER_MS / (most - third), each_us, text


def grows(case: Case, kind: str, most: int) -> str:
    least = [(float("inf"), float("inf"))] * 3
    for _ in range(LOOKS):
        linear, each_us, text = judged(case, kind, most, least)
        if linear:
            break
        case.note(text)
    check(linear, f"growth is not linear: {text}")
    if kind in GOAL_US and not case.line.quick:
        bare = bare_us(case, kind, most)
        # Calls that keep the goal by themselves excuse nothing.
        goal = OF_BARE[kind] * bare if bare > GOAL_US[kind] else GOAL_US[kind]
        text += f"; the kernel's calls alone {bare:.1f}; goal {GOAL_US[kind]:.0f}, or {OF_BARE[kind]} times those if they take longer"
        check(each_us <= goal, f"too slow: {text}")
    return text


def run() -> int:
    line = Line("growth", __doc__)
    for kind in KINDS:
        most = (QUICK if line.quick else FULL)[kind]
        line.case(f"{most} {kind}", lambda case, kind=kind, most=most: grows(case, kind, most))
    return line.finish()


if __name__ == "__main__":
    main(run)
