"""MW2, MW3, MW5: how soon a task farm gets over workers that are killed or stopped, and over the end of all its processes.

  deaths 1, 4   workers are killed; how long until another one begins their task
  stopped       one of four is stopped: the others go on, a checkpoint waits for no one, and after SIGCONT the fourth has tasks again
  restarts      all processes are killed, then a restart with 1, 2, 8, or 0 and later 2 workers, and again; what it costs, told apart

Each farm ends with the result of one process. A short run judges that and counts; times are judged in the full one only.
"""
import os
import signal
import statistics
import time

from common import Case, Line, check, main
from jobs import Job, wait_for
from task_farms import (PATIENCE_S, await_rounds, begun, busy_worker, has_workers, held_back, hurry, kill_all, kill_with_task, marks,
                        workers_of)

MOST_SECOND_HANDOUT_S = 1.0  # of 99 in 100
MOST_STOPPED_RATIO = 1.4     # of the time with three workers
MOST_LOST_RATIO = 1.5        # of (mean task / 2) x (workers before / after)
MOST_TASK_US = {True: 20000, False: 400000}


def quantile(values: list[float], share: float) -> float:
    """The least value that so many are not above."""
    return sorted(values)[max(0, -(-len(values) * int(share * 100) // 100) - 1)]


def second_handouts(case: Case, kills: list[tuple[int, int]]) -> list[float]:
    """Seconds from a kill to another worker's beginning of the task; of tasks that had no result."""
    rounds, found = begun(case), []
    for pid, at_ns in kills:
        mine = [one for one in rounds if one.pid == pid]
        again = [one.at_ns for one in rounds if mine and one.task == mine[-1].task and one.pid != pid and one.at_ns > at_ns]
        if again:
            found.append((min(again) - at_ns) / 1e9)
    return found


def deaths(workers: int, kills: int):
    def run(case: Case):
        random = case.random()
        job, wanted = held_back(case, ["100", str(random.randrange(1 << 30)), "40000", "2000", "--plain"], workers)
        killed = []
        for _ in range(kills):
            has_workers(case, job, workers)
            await_rounds(case, job, marks(case) + 3)
            killed.append(kill_with_task(case, job, random))
            await_rounds(case, job, marks(case) + 1)
        has_workers(case, job, workers)
        counts = hurry(case, job, wanted)
        check(counts["workers lost"] >= kills, f"{kills} workers were killed: {counts}")
        delays = second_handouts(case, killed)
        check(len(delays) == kills, f"{kills} workers were killed with a task, {len(delays)} tasks were begun again")
        worst = quantile(delays, 0.99)
        text = (f"{kills} workers killed, each with a task; kill to second hand-out {statistics.median(delays):.2f} s (median), "
                f"{worst:.2f} s (p99), load {os.getloadavg()[0]:.1f}")
        check(case.line.quick or worst <= MOST_SECOND_HANDOUT_S, text)
        return text
    return run


def pace(case: Case, job: Job, rounds: int) -> float:
    """Seconds for so many rounds."""
    start, before = time.monotonic(), marks(case)
    await_rounds(case, job, before + rounds)
    return (time.monotonic() - start) * rounds / (marks(case) - before)


def checkpoint_ms(job: Job, number: int) -> float:
    def once() -> float:
        start = time.monotonic()
        job.checkpoint(kill=False)
        return 1e3 * (time.monotonic() - start)
    return statistics.median(once() for _ in range(number))


def stopped(case: Case):
    random = case.random()
    quick = case.line.quick
    rounds, checkpoints = (15, 1) if quick else (600, 7)
    job, wanted = held_back(case, ["100", str(random.randrange(1 << 30)), "20000", "2000"], 3)
    has_workers(case, job, 3)
    await_rounds(case, job, 20)
    three = pace(case, job, rounds)
    saved_before = checkpoint_ms(job, checkpoints)
    job.command("worker", job.name, "-n", "1")
    has_workers(case, job, 4)
    victim = busy_worker(case, job, random)
    os.kill(victim, signal.SIGSTOP)
    try:
        four = pace(case, job, rounds)
        saved_after = checkpoint_ms(job, checkpoints)
    finally:
        os.kill(victim, signal.SIGCONT)
    seen = len(begun(case))
    wait_for("a task for the worker that goes on", lambda: job.programs[-1].ended() or any(one.pid == victim for one in begun(case)[seen:]),
             PATIENCE_S)
    counts = hurry(case, job, wanted)
    check(any(one.pid == victim for one in begun(case)[seen:]), f"worker {victim} goes on, and has no task: {counts}")
    check(counts["workers lost"] == 0, f"a stopped worker is not lost: {counts}")
    text = (f"{four / three:.2f} of the time with three; a checkpoint took {saved_before:.0f} ms before, {saved_after:.0f} ms with it stopped; "
            f"load {os.getloadavg()[0]:.1f}")
    check(quick or (four <= MOST_STOPPED_RATIO * three and saved_after <= 1.3 * saved_before + 20), text)
    return text


class Costs:
    """Of restarts, in seconds."""

    def __init__(self):
        self.read, self.up, self.lost, self.bound = [], [], [], []

    def text(self) -> str:
        mean = statistics.mean
        return (f"read {mean(self.read):.2f} s, workers up {mean(self.up):.2f} s, work lost {mean(self.lost):.3f} s, "
                f"(mean task / 2) x (before / after) {mean(self.bound):.3f} s")


def lost_at(case: Case, at_ns: int, alive: list[int]) -> float:
    """Seconds of work on tasks that have no result at this time."""
    latest = {one.pid: one.at_ns for one in begun(case) if one.at_ns <= at_ns and one.pid in alive}
    return sum(at_ns - begin for begin in latest.values()) / 1e9


def save_kill_restart(case: Case, job: Job, before: int, workers: tuple[int, ...], costs: Costs, most_us: int):
    """`workers`: how many the restart makes, and how many are asked for then. `before` workers run now."""
    alive = workers_of(case, "mw_storm")
    taken = job.checkpoint(kill=False)
    lost = lost_at(case, time.monotonic_ns(), alive)
    await_rounds(case, job, marks(case) + 2)
    kill_all(case, job)
    start = time.monotonic()
    job.restart(taken, options=("--workers", str(workers[0])))
    wait_for("the master", lambda: job.programs[-1].ended() or job.members(), PATIENCE_S)
    costs.read.append(time.monotonic() - start)
    start = time.monotonic()
    for more in workers[1:]:
        job.command("worker", job.name, "-n", str(more))
    after = sum(workers)
    has_workers(case, job, after)
    costs.up.append(time.monotonic() - start)
    costs.lost.append(lost / after)
    costs.bound.append(most_us / 4e6 * before / after)  # tasks take up to most_us, all times as often
    await_rounds(case, job, marks(case) + 2)


def restarts(farms: int, in_a_row: int):
    def run(case: Case):
        random, where, costs = case.random(), case.work, Costs()
        most_us = MOST_TASK_US[case.line.quick]
        for i in range(farms):
            case.work = where / str(i)
            case.work.mkdir()
            running = random.choice((2, 4))
            job, wanted = held_back(case, ["24", str(random.randrange(1 << 30)), str(most_us), "2000", "--plain"], running)
            has_workers(case, job, running)
            for _ in range(in_a_row):
                await_rounds(case, job, marks(case) + random.randint(1, 6))
                wanted_now = random.choice(((1,), (2,), (8,), (0, 2)))
                save_kill_restart(case, job, running, wanted_now, costs, most_us)
                running = sum(wanted_now)
            hurry(case, job, wanted)
            wait_for("the workers' end", lambda: not workers_of(case, "mw_storm"), PATIENCE_S)
        case.work = where
        text = f"{len(costs.read)} restarts; {costs.text()}; load {os.getloadavg()[0]:.1f}"
        check(case.line.quick or statistics.mean(costs.lost) <= MOST_LOST_RATIO * statistics.mean(costs.bound), text)
        return text
    return run


def run() -> int:
    line = Line("farm_recovery", __doc__.splitlines()[0])
    quick = line.quick
    line.case("deaths 1", deaths(1, 1 if quick else 50))
    line.case("deaths 4", deaths(4, 1 if quick else 50))
    line.case("stopped", stopped)
    line.case("restarts", restarts(1 if quick else 7, 1 if quick else 3))
    return line.finish()


if __name__ == "__main__":
    main(run)
