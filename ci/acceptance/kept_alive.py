"""Issue 31: `shadowib supervise` keeps an Open MPI job (LAMMPS) and a verbs pair with logs that are appended to alive while a random member is
killed every 30 to 120 s, for 30 minutes: each job ends with the result of an undisturbed run, no line stands in a log twice, and no hand
helps. --quick: a job each, killed once."""
import os
import pathlib
import re
import signal
import time

from common import Case, Line, Skip, check, main
from jobs import Job, descendants, free_port, wait_for
from mpi import PATHS, ROOT, OPEN_MPI
from mpi_programs import Lammps

WHOLE_S = 30 * 60
BETWEEN_S = (30, 120)  # two kills
PROGRESS_S = 60  # between two lines of progress, without --quick
LONGEST_S = 3600
# LAMMPS alone takes this long, on whatever machine: long enough for some kills, and for some jobs in the whole time.
ALONE_S = 300
PACE_STEPS = 1000


class Supervised(Job):
    """`comm`: of the processes that are members. The job runs in a directory of its own."""

    def __init__(self, case: Case, name: str, comm: str, command: list[str], options: tuple = (), prepare=None):
        super().__init__(case, name, environment={**ROOT, "SHADOWIB_BACKEND": "ib2tcp"})
        self.comm, self.kills = comm, 0
        self.place = case.work / name
        self.place.mkdir()
        if prepare:
            prepare(self.place)
        self.supervisor = self._spawn("supervise", [self.shadowib, "supervise", "--job", name, "--dir", str(self.directory), *options, "--",
                                                    *command])
        self.programs = [self.supervisor]

    def living(self) -> list[int]:
        found = []
        for pid in descendants(self.supervisor.process.pid):
            try:
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue  # it has ended
            if status.startswith(f"Name:\t{self.comm}\n") and not re.search(r"^State:\t[ZX]", status, re.MULTILINE):
                found.append(pid)
        return found

    def newest_set(self) -> int:
        sets = self.directory / "sets"
        numbers = [int(path.name.rsplit(".", 1)[1]) for path in sets.glob(f"{self.name}.[0-9]*") if (path / "manifest.json").exists()]
        return max(numbers, default=0)

    def kill_one(self, random) -> bool:
        """False: the job has come to its end."""
        while not self.supervisor.ended():
            living = self.living()
            if living:
                try:
                    os.kill(victim := random.choice(living), signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.kills += 1
                self.case.note(f"kill {self.kills}: process {victim} of {living}, newest set {self.newest_set()}")
                return True
            time.sleep(0.05)
        return False

    def kill_after_progress(self, random, kills: int):
        """Each kill comes when there is a newer set than at the one before. The job may be quicker than that."""
        for _ in range(kills):
            before = self.newest_set()
            wait_for("a newer set", lambda before=before: self.supervisor.ended() or self.newest_set() > before, 240, 0.05)
            time.sleep(random.uniform(0, 0.5))
            if not self.kill_one(random):
                return
            wait_for("the restart", lambda: self.supervisor.ended() or self.supervisor.text().count("restored ") >= self.kills, 240, 0.05)

    def kill_now_and_then(self, random, next_kill: float, progress) -> float:
        """progress(job) is called now and then. Returns when the next one is to be killed, perhaps of the next job: jobs may be shorter than
        the time between two kills."""
        while not self.supervisor.ended():
            progress(self)
            if time.monotonic() >= next_kill and self.kill_one(random):
                next_kill = time.monotonic() + random.uniform(*BETWEEN_S)
            time.sleep(0.2)
        return next_kill


def keep_alive(case: Case, start, judge, quick_kills: int) -> str:
    """Jobs one after the other; start(name, disturbed) and judge(job) are the kind's."""
    random, kills, jobs, began = case.random(), 0, 0, time.monotonic()
    told, next_kill = began, began + random.uniform(*BETWEEN_S)

    def progress(job):
        nonlocal told
        if time.monotonic() < told + PROGRESS_S:
            return
        told = time.monotonic()
        print(f"  {case.name}: {(told - began) / 60:.0f} of {WHOLE_S // 60} min, {jobs} jobs ended, {kills + job.kills} members killed, "
              f"{job.supervisor.text().count('restored ')} restarts of {job.name}, newest set {job.newest_set()}", flush=True)
    while jobs == 0 or (kills == 0 if case.line.quick else time.monotonic() < began + WHOLE_S):
        check(jobs < 8 or not case.line.quick, "jobs keep ending before anybody is killed")
        job = start(f"job{jobs}")
        if case.line.quick:
            job.kill_after_progress(random, quick_kills)
        else:
            next_kill = job.kill_now_and_then(random, next_kill, progress)
        job.finish(LONGEST_S)
        judge(job)
        jobs, kills = jobs + 1, kills + job.kills
    check(case.line.quick or kills >= WHOLE_S / BETWEEN_S[1] / 2, f"only {kills} members were killed: the jobs were not there to be killed")
    return f"{jobs} jobs, {kills} members killed, {time.monotonic() - began:.0f} s: every result is right"


def lammps(case: Case) -> str:
    program = Lammps(steps=300 if case.line.quick else PACE_STEPS)
    if missing := program.missing(PATHS["ucx rc"]):
        raise Skip(missing)
    launch = ["mpirun", "-np", "2", *OPEN_MPI.options, *PATHS["ucx rc"].options.split()]
    # Not --mtbf: its interval is 20 times the pause of a checkpoint, and on a slow machine longer than the time between two kills.
    options = ("--interval", "0.5") if case.line.quick else ("--interval", "15")

    def start(name, given=options):
        return Supervised(case, name, "lmp", [*launch, *program.words(case.line, None)], given, lambda place: program.prepare(place, 2))

    def undisturbed(name):
        job = start(name, ("--interval", "100000"))
        job.finish(LONGEST_S)
        return job, program.result(job)
    if not case.line.quick:
        job, _ = undisturbed("pace")
        seconds = float(re.search(r"^Loop time of (\S+) on 2 procs", (job.place / "log.lammps").read_text(), re.MULTILINE)[1])
        program = Lammps(steps=max(PACE_STEPS, int(PACE_STEPS * ALONE_S / seconds) // 10 * 10))
        case.note(f"{PACE_STEPS} steps took {seconds:.1f} s: {program.steps} steps a job")
    _, expected = undisturbed("undisturbed")

    def judge(job):
        check(program.result(job) == expected, f"LAMMPS ends with {program.result(job)} instead of {expected}")
    return keep_alive(case, start, judge, 1)


PAIR = """
{pingpong} --server {words} >>server.log 2>&1 &
until grep -q @listening server.log; do sleep 0.05; kill -0 $! || exit 9; done
{pingpong} localhost {words} >>client.log 2>&1
code=$?
wait
exit $code
"""


def logged_pair(case: Case) -> str:
    messages = 100_000 if case.line.quick else 6_000_000

    def start(name):
        words = f"-p {free_port()} -s 4096 -w 4 -n {messages} --progress"
        script = PAIR.format(pingpong=case.line.program("shadowib-pingpong"), words=words)
        return Supervised(case, name, "shadowib-pingpo", ["sh", "-c", script],
                          ("--interval", "0.5") if case.line.quick else ("--interval", "10"))

    def judge(job):
        for role in ("server", "client"):
            log = (job.place / f"{role}.log").read_text()
            lines = log.splitlines()
            # It goes on for some more messages after a restart.
            total = re.fullmatch(rf"{role}: (\d+) messages of 4096 bytes each way, 0 wrong", lines[-1])
            check(total and int(total[1]) >= messages and lines.count(f"@done {total[1]}") == 1,
                  f"{role} has not come to its end once: {lines[-3:]}")
            for word in ("listening", "progress", "done"):
                numbers = [int(number) for number in re.findall(rf"^@{word} (\d+)$", log, re.MULTILINE)]
                check(numbers == sorted(set(numbers)), f"{role}.log has lines twice: {numbers}")
        check(len(re.findall(r"^@progress ", (job.place / "client.log").read_text(), re.MULTILINE)) > 20, "the client has logged too little")
    return keep_alive(case, start, judge, 1)


def run() -> int:
    line = Line("kept_alive", __doc__)
    line.case("a pair with logs", logged_pair)
    line.case("LAMMPS by Open MPI", lammps)
    return line.finish()


if __name__ == "__main__":
    main(run)
