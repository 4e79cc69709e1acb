"""S7: with --interval auto the time between checkpoints is Young's, sqrt(2 C M), or Daly's M where a checkpoint costs half of it or more. C is
what checkpoints of this job cost; a fault point makes that seconds, beside which the pace of the machine is small. Not in CI's sample: it
takes minutes. What simulated jobs lose with that interval is judged by best_interval_test."""
import datetime
import json
import math
import statistics

from common import Case, Line, check, main
from jobs import Job, wait_for

SLOW = {"SHADOWIB_FAULT": "70:slow"}  # hooks/threads/fault.h: each save takes 2 s more
OF_YOUNGS = 0.1
ROUNDS = 4


def checkpoints(job: Job) -> list[dict]:
    """When each began and ended, and what it cost, in seconds."""
    found = []
    for path in (job.directory / "history" / job.name).iterdir():
        for event in map(json.loads, path.read_text().splitlines()):
            if event["event"] == "checkpoint":
                end = datetime.datetime.fromisoformat(event["time"]).timestamp()
                found.append({"begin": end - event["took_ms"] / 1e3, "end": end, "cost": event["stopped_ms"] / 1e3})
    return sorted(found, key=lambda entry: entry["end"])


def by_itself(case: Case, mtbf_s: float) -> str:
    job = Job(case, environment=SLOW)
    program = job._spawn("member", [job.shadowib, "run", "--job", job.name, "--dir", str(job.directory), "--backend", "ib2tcp", "--interval", "auto",
                                    "--mtbf", str(mtbf_s), "--", case.line.program("ci_big_process"), "1"])
    job.programs.append(program)
    wait_for("the process", lambda: "ready" in program.text() or program.ended(), 60)
    wait_for("the checkpoints", lambda: program.ended() or len(checkpoints(job)) > ROUNDS, 60 + 2 * ROUNDS * mtbf_s)
    check(not program.ended(), program.text())
    # The first one comes by a guess of what it costs.
    taken = checkpoints(job)
    intervals = [after["begin"] - before["end"] for before, after in zip(taken, taken[1:])]
    cost_s, interval_s = statistics.median(c["cost"] for c in taken), statistics.median(intervals)
    wanted_s = math.sqrt(2 * cost_s * mtbf_s) if cost_s < mtbf_s / 2 else mtbf_s
    text = (f"{interval_s:.2f} s between checkpoints ({', '.join(f'{i:.2f}' for i in intervals)}) that cost {cost_s:.2f} s, MTBF {mtbf_s} s: "
            f"{interval_s / wanted_s:.3f} of {wanted_s:.2f} s")
    check(abs(interval_s / wanted_s - 1) <= OF_YOUNGS, text)
    return text


def run() -> int:
    line = Line("own_interval", __doc__)
    line.case("Young's", lambda case: by_itself(case, 40))
    line.case("Daly's", lambda case: by_itself(case, 3.8))
    return line.finish()


if __name__ == "__main__":
    main(run)
