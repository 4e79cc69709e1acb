"""Two programs exchange data; at random moments of the data phase they are checkpointed, killed and restarted."""
import dataclasses
import math
import time
from typing import Callable

from common import Case, Failure, check
from jobs import Job, free_port, sends, wait_for


@dataclasses.dataclass
class Pair:
    """How to start both ends for `iterations`, and how many requests the busier end posts in an iteration."""
    commands: Callable[[int, int], tuple[list[str], list[str]]]  # (port, iterations) -> server, client
    transport: str
    requests: int = 1
    seconds: float = 6.0       # of a run without checkpoints
    most_iterations: int = 2**31 - 1
    bad: tuple = ("invalid data",)
    good: tuple = ()           # what the output has to hold, once at least


def start(case: Case, pair: Pair, iterations: int, name: str) -> Job:
    job = Job(case, name, pair.transport)
    port = free_port()
    server, client = pair.commands(port, iterations)
    job.start_pair(server, client, port)
    return job


def iterations_for(case: Case, pair: Pair) -> int:
    """So many that an undisturbed run lasts pair.seconds, from the pace of a run that is then ended."""
    job = start(case, pair, min(pair.most_iterations, 200_000_000 // pair.requests), "pace")
    job.wait_data_phase()
    first, began = sends(job.members()), time.monotonic()
    time.sleep(0.7)
    last, took = sends(job.members()), time.monotonic() - began
    job.stop()
    check(last > first, "no request was retired in 0.7 s")
    pace = (last - first) / took / pair.requests
    case.note(f"{pace:.0f} iterations/s")
    return min(pair.most_iterations, max(200, math.ceil(pace * pair.seconds)))


def verify_output(job: Job, pair: Pair):
    text = job.output()
    for bad in pair.bad:
        check(bad not in text, f"the output says '{bad}':\n{text[-3000:]}")
    for good in pair.good:
        check(good in text, f"the output does not say '{good}':\n{text[-3000:]}")


def run_once(case: Case, pair: Pair, iterations: int, moments: int, name: str, kill: bool = True) -> int:
    """One run with checkpoints at `moments` random moments, to its good end. Returns how many were taken."""
    rng = case.random(name)
    total = iterations * pair.requests
    points = sorted(rng.uniform(0.02, 0.85) for _ in range(moments))
    job = start(case, pair, iterations, name)
    reached, taken = 0, 0
    for point in points:
        members = job.wait_data_phase(beyond=reached)
        # Up to the moment in steps of what is left by the present pace, then some milliseconds more.
        def there():
            job.check_running()
            return sends(job.members()) >= point * total
        wait_for(f"{point:.0%} of {total} requests", there, 600, 0.01)
        time.sleep(rng.uniform(0, 0.02))
        reached = sends(members)
        job.checkpoint(kill=kill)
        taken += 1
        if kill:
            job.restart()
            job.remove_old_sets()
    job.wait_data_phase(beyond=reached) if moments else None
    job.finish(600)
    verify_output(job, pair)
    job.stop()
    return taken


def campaign(case: Case, pair: Pair, per_run: int, kill: bool = True) -> str:
    """case.wanted checkpoints over as many runs as it takes, `per_run` in each."""
    iterations = iterations_for(case, pair)
    run = case.done
    while case.done < case.wanted:
        run += 1
        try:
            taken = run_once(case, pair, iterations, min(per_run, case.wanted - case.done), f"run{run}", kill)
        except Failure as failure:
            raise Failure(f"run {run}, checkpoint {case.done + 1}ff of {case.wanted}, {iterations} iterations: {failure}"
                          ) from None
        case.progress(case.done + taken)
    what = "checkpoint, kill, restart" if kill else "checkpoint, resume"
    return f"{case.done} x {what} with {iterations} iterations a run"
