"""Two programs exchange data; at random moments of the data phase they are checkpointed, killed and restarted."""
import dataclasses
import math
import time
from typing import Callable

from common import Case, Failure, check
from jobs import Job, OneEndFinished, free_port, sends


@dataclasses.dataclass
class Pair:
    """How to start both ends for `iterations`, and how many requests the busier end posts in an iteration."""
    commands: Callable[[int, int], tuple[list[str], list[str]]]  # (port, iterations) -> server, client
    transport: str | None
    requests: float = 1
    seconds: float = 6.0       # of a run without checkpoints
    most_iterations: int = 2**31 - 1
    multiple: int = 1          # what the iterations have to be a multiple of
    bad: tuple = ("invalid data",)
    good: tuple = ()           # what the output has to hold, once at least
    backend: str = "ib2tcp"
    ready: str = ""            # what tells that the server is (jobs.READY); "": it listens on the port
    environment: dict | None = None


def start(case: Case, pair: Pair, iterations: int, name: str) -> Job:
    job = Job(case, name, pair.transport, pair.environment, pair.backend)
    port = free_port()
    server, client = pair.commands(port, iterations)
    job.start_pair(server, client, port, pair.ready)
    return job


def sample(job: Job) -> tuple[int, float]:
    """Requests retired, and when that was: an answer that took long (the exchange's files wait for the disk now and then) tells
    too little of the moment, and would make the runs many times longer than meant."""
    best = None
    for _ in range(5):
        asked = time.monotonic()
        seen = sends(job.members())
        took = time.monotonic() - asked
        if best is None or took < best[0]:
            best = (took, seen, asked + took / 2)
        if took < 0.1 or (best[0] < took < 1.5 * best[0]):
            break
    return best[1], best[2]


def iterations_for(case: Case, pair: Pair) -> int:
    """So many that an undisturbed run lasts pair.seconds, from the pace of a run that is then ended."""
    job = start(case, pair, min(pair.most_iterations, int(200_000_000 / pair.requests)), "pace")
    job.wait_data_phase()
    first, began = sample(job)
    time.sleep(0.7)
    last, ended = sample(job)
    while last == first and ended < began + 20:  # two programs that spin, on a machine with much else to do
        time.sleep(0.3)
        last, ended = sample(job)
    took = ended - began
    job.stop()
    check(last > first, "no request was retired in 20 s")
    pace = (last - first) / took / pair.requests
    case.note(f"{pace:.0f} iterations/s")
    return possible(pair, max(200, math.ceil(pace * pair.seconds)))


def possible(pair: Pair, iterations: int) -> int:
    return min(pair.most_iterations, math.ceil(iterations / pair.multiple) * pair.multiple)


def verify_output(job: Job, pair: Pair):
    text = job.output()
    for bad in pair.bad:
        check(bad not in text, f"the output says '{bad}':\n{text[-3000:]}")
    for good in pair.good:
        check(good in text, f"the output does not say '{good}':\n{text[-3000:]}")


class Ended(Exception):
    """Both ends have finished well: as they should, or before the moment chosen since the run was shorter than promised."""


def guarded(job: Job, pair: Pair, function):
    """function(), or Ended if it fails because both ends have finished well."""
    try:
        return function()
    except OneEndFinished:
        raise
    except Failure as failure:
        try:
            job.finish(10)
            verify_output(job, pair)
        except Failure:
            raise failure from None
        raise Ended from None


def reach(job: Job, requests: float):
    """Waits until the busiest queue pair has retired that many, by the pace so far in ever smaller steps."""
    seen, at = sends(job.members()), time.monotonic()
    moved = at
    while seen < requests:
        check(at < moved + 30, f"no progress for 30 s: {seen} requests retired")
        time.sleep(0.02)
        job.check_running()
        now, when = sends(job.members()), time.monotonic()
        if now > seen:
            moved = when
            time.sleep(max(0.0, min(0.5, 0.6 * (requests - now) * (when - at) / (now - seen))))
        seen, at = now, when


def run_once(case: Case, pair: Pair, iterations: int, moments: int, name: str, kill: bool = True,
             latest: float = 0.85) -> tuple[int, bool]:
    """One run with checkpoints at `moments` random moments, to its good end. Returns how many were taken, and if all. `latest`: by what part of
    the run the last one is asked for."""
    rng = case.random(name)
    total = iterations * pair.requests
    points = sorted(rng.uniform(0.02, latest) for _ in range(moments))
    job = start(case, pair, iterations, name)
    reached, taken = 0, 0
    try:
        for point in points:
            guarded(job, pair, lambda: job.wait_data_phase(beyond=reached))
            guarded(job, pair, lambda: reach(job, point * total))
            time.sleep(rng.uniform(0, 0.02))
            reached = sends(job.members())
            guarded(job, pair, lambda: job.checkpoint(kill=kill))
            taken += 1
            if kill:
                job.restart()
                job.remove_old_sets()
        if not all(program.ended() for program in job.programs):
            guarded(job, pair, lambda: reach(job, float("inf")))
        job.finish()
        verify_output(job, pair)
    except OneEndFinished as late:
        for bad in pair.bad:
            check(bad not in job.output(), f"the output says '{bad}':\n{job.output()[-3000:]}")
        case.note(f"{name}: {late} at checkpoint {taken + 1} of {moments}")
    except Ended:
        case.note(f"{name} ended well after {taken} of {moments} checkpoints")
    job.stop()
    return taken, taken == moments


def campaign(case: Case, pair: Pair, per_run: int, kill: bool = True) -> str:
    """case.wanted checkpoints over as many runs as it takes, `per_run` in each."""
    enough = iterations = iterations_for(case, pair)
    run, too_short = case.done, 0
    while case.done < case.wanted:
        run += 1
        began = time.monotonic()
        try:
            taken, all_taken = run_once(case, pair, iterations, min(per_run, case.wanted - case.done), f"run{run}", kill,
                                        0.85 / (1 + too_short))
        except Failure as failure:
            raise Failure(f"run {run}, checkpoint {case.done + 1}ff of {case.wanted}, {iterations} iterations: {failure}"
                          ) from None
        case.progress(case.done + taken)
        if all_taken:
            iterations = possible(pair, max(enough, iterations // 2))
            too_short = 0
        else:  # the machine was in our way, or the pace was taken while it was in the program's
            check(run - case.done < 12, "the runs keep ending before the moments chosen")
            too_short += 1
            # Its own pace, or a little more: the first one, taken without a processor, may be a thousandth of the real one.
            lasted = time.monotonic() - began
            iterations = possible(pair, max(iterations * 3 // 2, math.ceil(iterations / lasted * pair.seconds * (1 + too_short))))
    what = "checkpoint, kill, restart" if kill else "checkpoint, resume"
    return f"{case.done} x {what} with {iterations} iterations a run"
