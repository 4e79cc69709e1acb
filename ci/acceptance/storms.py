"""Drives a storm (shadowib-storm): checkpoints it at random moments, resumes it, or kills and restarts it on the same or another
transport or backend, ends it, and reads what its ledger says."""
import dataclasses
import json
import pathlib
import random
import signal
import time

from common import Case, Failure, check
from jobs import A_PROCESS_FAILED, REFUSED, Job, wait_for

# A checkpoint that was refused is none, and no fault: the reason is in the case's line. But it is to be rare.
MOST_REFUSED = 0.02
# Nor is a message of an unreliable transport that did not come. But none of these fabrics loses any: many are a route that leads nowhere.
MOST_DROPPED = 0.001
MOST_IDLE_S = 300  # at the end, when the storm's own patience is over
FAULTS = ("lost", "doubled", "early", "corrupted", "reordered", "hung", "completion", "event", "refused", "identity")


@dataclasses.dataclass
class Storm:
    """`where`: the environments that restarts choose from; the first is where it begins."""
    checkpoints: int
    restarts: int
    where: tuple
    processes: int = 3
    options: tuple = ()
    longest_pause: float = 0.3  # seconds between checkpoints
    time_out: int = 60          # seconds that a checkpoint may take; more is a fault
    sets_kept: int = 2
    incremental: bool = False


def backend(name: str) -> dict:
    """An environment by name: shm and tcp are of ib2tcp; "verbs, 64" signals few requests."""
    if name == "verbs, 64":
        return {"SHADOWIB_BACKEND": "verbs", "SHADOWIB_SIGNAL_EVERY": "64"}
    return {"SHADOWIB_BACKEND": "verbs"} if name == "verbs" else {"SHADOWIB_BACKEND": "ib2tcp", "SHADOWIB_IB2TCP_TRANSPORT": name}


class Driver:
    def __init__(self, case: Case, storm: Storm, seed: int):
        self.case, self.storm, self.seed = case, storm, seed
        self.rng = random.Random(seed)
        self.area = case.work / "area"
        self.area.mkdir()
        first = backend(storm.where[0])
        how = {"SHADOWIB_INCREMENTAL": "1"} if storm.incremental else {}
        self.job = Job(case, "storm", environment=first | how, backend=first["SHADOWIB_BACKEND"])
        self.checkpoints = self.restarts = self.with_packs = 0
        self.refusals: list[str] = []

    def start(self):
        words = [self.case.line.program("shadowib-storm"), "--processes", str(self.storm.processes), "--seed", str(self.seed),
                 "--area", str(self.area), *self.storm.options]
        for rank in range(self.storm.processes):
            self.job.start(f"rank{rank}", [*words, "--rank", str(rank)])

    def operations(self) -> list[int]:
        """So far, of each process."""
        def read(path: pathlib.Path) -> int:
            text = path.read_text().strip() if path.exists() else ""
            return int(text) if text.isdigit() else 0
        return [read(self.area / f"progress-{rank}") for rank in range(self.storm.processes)]

    def await_traffic(self):
        """Every process has moved on."""
        before = self.operations()

        def moved():
            self.check_running()
            return all(now > then for now, then in zip(self.operations(), before))
        wait_for("all processes to go on", moved, 120, 0.01)

    def check_running(self):
        if any(program.ended() for program in self.job.programs) or (self.area / "failed").exists():
            self.await_end(60)
            raise Failure(f"a process has ended before it was told to:\n{self.said()}")

    def said(self) -> str:
        """The faults, without the processes' descriptions of themselves."""
        lines = [line for line in self.job.output().splitlines() if line.startswith("storm ")]
        return "\n".join(lines[:12]) or self.job.output()[-2000:]

    def await_end(self, timeout: float):
        end = time.monotonic() + timeout
        while time.monotonic() < end and not all(program.ended() for program in self.job.programs):
            time.sleep(0.05)

    def await_good_end(self):
        """However long it takes: what a queue pair refuses again and again is slow on a slow machine."""
        operations, since = self.operations(), time.monotonic()
        while not all(program.ended() for program in self.job.programs):
            time.sleep(0.05)
            if (now := self.operations()) != operations:
                operations, since = now, time.monotonic()
            if time.monotonic() - since > MOST_IDLE_S:
                (self.area / "failed").touch()  # upon which they describe themselves
                self.await_end(60)
                raise Failure(f"the processes neither end nor go on for {MOST_IDLE_S} s:\n{self.job.output()[-6000:]}")

    def take(self, kill: bool) -> bool:
        """A checkpoint. False: it was refused."""
        argv = ["checkpoint", self.job.name, "--timeout", str(self.storm.time_out), *(["--kill"] if kill else [])]
        result = self.job.command(*argv, check_code=False, timeout=self.storm.time_out + 60)
        if result.returncode == REFUSED:
            self.refusals.append(result.stderr.strip())
            most = max(3, MOST_REFUSED * self.storm.checkpoints)
            check(len(self.refusals) <= most, f"{len(self.refusals)} checkpoints were refused, {self.checkpoints} taken")
            return False
        if result.returncode != 0:
            self.check_running()
            raise Failure(f"checkpoint exited with {result.returncode}: {result.stderr.strip()}\n{self.said()}")
        self.checkpoints += 1
        self.job.sets.append(result.stdout.strip().splitlines()[-1])
        self.with_packs += any(pathlib.Path(self.job.sets[-1]).glob("member-*.pages"))  # of a set before
        return True

    def kill_and_restart(self) -> bool:
        if not self.take(kill=True):
            return False
        self.await_end(30)
        expected = -signal.SIGKILL if self.job.generation == 0 else A_PROCESS_FAILED
        codes = [program.process.poll() for program in self.job.programs]
        check(all(code == expected for code in codes), f"after checkpoint --kill the processes ended with {codes}:\n{self.said()}")
        where = self.rng.choice(self.storm.where)
        self.case.note(f"restart on {where}")
        self.job.restart(environment=backend(where))
        self.restarts += 1

        def alive():
            self.check_running()
            return len(self.job.members()) == self.storm.processes
        wait_for("the restarted processes", alive, 120)
        return True

    def collect_sets(self):
        if len(self.job.sets) > self.storm.sets_kept:
            self.job.command("gc", "--keep", str(self.storm.sets_kept))
            self.job.sets = self.job.sets[-self.storm.sets_kept:]

    def run(self):
        self.start()
        self.await_traffic()
        while self.checkpoints < self.storm.checkpoints:
            left = self.storm.checkpoints - self.checkpoints
            kill = self.rng.random() < (self.storm.restarts - self.restarts) / left
            time.sleep(self.rng.uniform(0, self.storm.longest_pause))
            self.check_running()
            if (self.kill_and_restart() if kill else self.take(kill=False)):
                self.collect_sets()
            # Where nothing has run in between two checkpoints are one: mostly, but not always, something has to.
            if self.rng.random() < 0.8:
                self.await_traffic()
        (self.area / "stop").touch()
        self.await_good_end()
        codes = [program.process.poll() for program in self.job.programs]
        check(all(code == 0 for code in codes), f"the processes ended with {codes}:\n{self.said()}")

    def totals(self) -> dict:
        totals: dict[str, dict[str, int]] = {"operations": {}, "counts": {}, "faults": {}}
        for rank in range(self.storm.processes):
            report = json.loads((self.area / f"report-{rank}.json").read_text())
            for part, numbers in totals.items():
                for name, value in report[part].items():
                    numbers[name] = max(numbers.get(name, 0), value) if name == "deepest" else numbers.get(name, 0) + value
        return totals


def table(rows: list[dict]) -> str:
    names = list(rows[0])
    widths = [max(len(name), *(len(str(row[name])) for row in rows)) for name in names]
    return "\n".join("  " + "  ".join(str(cell).rjust(width) for cell, width in zip(line, widths))
                     for line in [names] + [[row[name] for name in names] for row in rows])


def run_storm(case: Case, storm: Storm) -> str:
    seed = case.random().getrandbits(48) | 1
    driver = Driver(case, storm, seed)
    failure = None
    try:
        driver.run()
    except Failure as caught:
        failure = caught
    row = {"operations": sum(driver.operations()), "checkpoints": driver.checkpoints, "restarts": driver.restarts, "not taken": len(driver.refusals)}
    reports = [driver.area / f"report-{rank}.json" for rank in range(storm.processes)]
    if all(report.exists() for report in reports):
        totals = driver.totals()
        row["operations"] = sum(n for kind, n in totals["operations"].items() if kind not in ("credit", "flush"))
        row |= {"dropped": totals["counts"]["dropped"]} | {fault: totals["faults"][fault] for fault in FAULTS}
        case.figures = {"seed": seed, **totals, "checkpoints": driver.checkpoints, "restarts": driver.restarts}
        (case.work / "totals.json").write_text(json.dumps(case.figures, indent=1) + "\n")
        if failure is None:
            check(not any(totals["faults"].values()), f"faults: {totals['faults']}\n{driver.said()}")
            if row["dropped"] > MOST_DROPPED * row["operations"]:
                failure = Failure(f"{row['dropped']} messages of unreliable transports were dropped")
    elif failure is None:
        failure = Failure("a process has left no report")
    if storm.incremental:
        row["with packs"] = driver.with_packs
        if failure is None and driver.with_packs != driver.checkpoints - 1:
            failure = Failure("not every set but the first takes from the one before")
    text = "\n".join([f"seed {seed}", table([row]), *(f"  refused: {reason}" for reason in sorted(set(driver.refusals)))])
    if failure is not None:
        raise Failure(f"{failure}\n{text}")
    return text
