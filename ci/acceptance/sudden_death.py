"""E6: whoever dies, a rank, the exchange, the checkpoint command or the restart command, at any moment: nothing hangs past its
time-out, no process is left behind, and the last set can be restarted and comes to the result of an undisturbed run."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

from common import Case, Line, Skip, check, main
from jobs import descendants, free_port, wait_for
from mpi import PATHS, MpiJob, check_result
from mpi_programs import Ring

RANKS = 2
TIMES = {True: 2, False: 20}  # --quick or not
TIMEOUT_S = 30                # of a checkpoint
MOST_TRIES = 20
SLACK_S = 30                  # of a busy machine, above what the commands were told


def lives(pid: int) -> bool:
    """No zombie, which this line has inherited and does not look at."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Exposed(MpiJob):
    """`uri`: of its exchange, if not its directory."""

    def __init__(self, case: Case, name: str, uri: str = ""):
        super().__init__(case, name, PATHS["ucx rc"], Ring(), RANKS)
        self.environment |= {"SHADOWIB_EXCHANGE": uri} if uri else {}

    def begin_checkpoint(self) -> subprocess.Popen:
        words = [self.shadowib, "checkpoint", self.name, "--dir", str(self.directory), "--timeout", str(TIMEOUT_S)]
        with open(self.case.work / f"{self.name}.checkpoint", "wb") as sink:
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=self.environment)

    def end_everything(self):
        """What is left of this generation, and its launcher."""
        before = self.rank_pids()
        for program in self.programs:
            for pid in [*descendants(program.process.pid), program.process.pid]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self._wait(program, SLACK_S)
        wait_for("the end of all ranks", lambda: not any(map(lives, before)), SLACK_S)
        self.programs = []

    def last_set(self) -> str:
        """The newest that `list` knows, whole."""
        listed = json.loads(self.command("list", "--json").stdout)
        numbers = [(entry["number"], entry["path"]) for entry in listed["sets"] if entry["job"] == self.name and entry["ok"]]
        check(numbers, "no set is left")
        return max(numbers)[1]


def ends(what: str, process: subprocess.Popen, seconds: float) -> int:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        check(False, f"{what} hangs: it has not ended in {seconds:.0f} s")


def prepared(case: Case, number: int, uri: str = "") -> Exposed | None:
    """A job that has one set already, and goes on. None: it has come to its end, or could not be checkpointed just then."""
    job = Exposed(case, f"run{number}-{len(case.cleanups)}", uri)
    job.launch()
    job.await_ranks()
    taken = ends("a checkpoint that nobody disturbs", job.begin_checkpoint(), TIMEOUT_S + SLACK_S)
    if taken == 0 and not job.programs[0].ended():
        return job
    job.end_everything()
    return None


def restart_last(job: Exposed, expected: str):
    job.restart(job.last_set())
    job.finish(300)
    check_result(job, expected)


def end_one_of(ranks: list[int], random):
    if ranks:
        with contextlib.suppress(ProcessLookupError):  # just ended by itself
            os.kill(random.choice(ranks), signal.SIGKILL)


def in_checkpoint(job: Exposed, random, kill) -> bool:
    """`kill(command)` at a random moment of one. False: it had ended before."""
    command = job.begin_checkpoint()
    time.sleep(random.uniform(0, 0.4))
    hit = command.poll() is None
    kill(command)
    ends("the checkpoint", command, TIMEOUT_S + SLACK_S)
    return hit


# Each returns whether it has met what it was to kill at work; if not, it is done again.


def rank_in_checkpoint(job, random, expected) -> bool:
    """Its launcher ends the others, or the job's own end does."""
    def kill(_command):
        end_one_of(job.rank_pids(), random)
    hit = in_checkpoint(job, random, kill)
    launcher = job.programs[0]
    job._wait(launcher, 60 + SLACK_S)
    if "checksum" in launcher.text():
        return False
    job.programs = []
    restart_last(job, expected)
    return hit


def command_in_checkpoint(job, random, expected) -> bool:
    """The ranks go on, to their end; and so does the last set."""
    hit = in_checkpoint(job, random, lambda command: command.kill())
    job.finish(300)
    check_result(job, expected)
    job.everything.clear()  # whose checksum has been looked at
    restart_last(job, expected)
    return hit


def in_restart(job: Exposed, random, expected: str, kill) -> bool:
    """`kill(restart)` at a random moment of one, which ends by it; another comes to the result. False: the job had come to its end before."""
    launcher = job.programs[0]
    job.end_everything()
    if "checksum" in launcher.text():
        return False
    restart = job.restart(job.last_set())
    time.sleep(random.uniform(0, 1.5))
    kill(restart)
    job._wait(restart, 60 + SLACK_S)
    if "checksum" in restart.text():
        return False
    restart_last(job, expected)
    return True


def restart_command(job, random, expected) -> bool:
    """With it all ranks end."""
    def kill(restart):
        ranks = job.rank_pids()
        restart.process.kill()
        job._wait(restart, SLACK_S)
        wait_for("the ranks' end", lambda: not any(map(lives, ranks)), SLACK_S)
    return in_restart(job, random, expected, kill)


def rank_in_restart(job, random, expected) -> bool:
    def kill(restart):
        wait_for("ranks", lambda: job.rank_pids() or restart.ended(), SLACK_S, 0.01)
        end_one_of(job.rank_pids(), random)
    return in_restart(job, random, expected, kill)


class Server:
    """Redis, of this case alone."""

    def __init__(self, case: Case):
        if not shutil.which("redis-server"):
            raise Skip("redis-server is not installed (package redis-server)")
        self.port = free_port()
        with open(case.work / f"redis{self.port}.out", "wb") as sink:
            self.process = subprocess.Popen(["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--dir", str(case.work)],
                                            stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT)
        case.cleanups.append(lambda _failed: self.kill())
        wait_for("redis", lambda: b"Ready to accept" in (case.work / f"redis{self.port}.out").read_bytes(), 30)
        self.uri = f"redis://127.0.0.1:{self.port}/job"

    def kill(self):
        self.process.kill()
        self.process.wait()


def exchange(job, random, expected) -> bool:
    """The job goes on without it, or ends and says why; its last set is restarted by another."""
    hit = in_checkpoint(job, random, lambda _command: job.server.kill())
    launcher = job.programs[0]
    job.end_everything()
    if "checksum" in launcher.text():
        return False
    job.environment.pop("SHADOWIB_EXCHANGE")
    job.generation += 1
    words = [job.shadowib, "restart", job.last_set(), "--dir", str(job.directory), "--exchange", f"dir:{job.directory}/again"]
    job.programs = [job._spawn(f"restart{job.generation}", words)]
    job.finish(300)
    check_result(job, expected)
    return hit


VICTIMS = {
    "a rank in a checkpoint": rank_in_checkpoint,
    "the checkpoint command": command_in_checkpoint,
    "the restart command": restart_command,
    "a rank in a restart": rank_in_restart,
    "the exchange in a checkpoint": exchange,
}


def one_run(case: Case, victim, number: int, random, expected: str) -> bool:
    server = Server(case) if victim is exchange else None
    job = prepared(case, number, server.uri if server else "")
    if job is None:
        return False
    job.server = server
    hit = victim(job, random, expected)
    job.stop()
    shutil.rmtree(job.directory, ignore_errors=True)
    return hit


def repeated(case: Case, victim, count: int) -> str:
    job = Exposed(case, "undisturbed")
    job.launch()
    job.finish(300)
    expected = job.result()
    for number in range(case.done, count):
        random = case.random(number)
        tries = 1
        while not one_run(case, victim, number, random, expected):
            tries += 1
            check(tries < MOST_TRIES, f"{tries} times there was nothing to kill any more: the job is too short for this machine")
        case.progress(number + 1)
    return f"{count} x; {expected}"


def run() -> int:
    line = Line("sudden_death", __doc__)
    for name, victim in VICTIMS.items():
        line.case(f"killed: {name}", lambda c, v=victim: repeated(c, v, TIMES[line.quick]), TIMES[line.quick])
    return line.finish()


if __name__ == "__main__":
    main(run)
