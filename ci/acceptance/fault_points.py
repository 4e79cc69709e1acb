"""D4: a process, all of them, or a command fails at every fault point of a checkpoint and of a restart (hooks/agent/agent.h), while a storm
of random verbs goes on, and by the storm's ledger nothing is lost, doubled, early or corrupted: the job runs on or stops with a clear
message, nothing half-made is listed, nothing hangs beyond the time that was given, and the last committed set restarts."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

from common import Case, Line, check, main
from jobs import A_PROCESS_FAILED, ABORTED, BUSY, IO, TIMEOUT, wait_for
from storms import Driver, Storm

MEMBER = (10, 20, 30, 35, 40, 50, 60, 70)  # of a checkpoint, in a member, before it is committed
OUTCOME = 90                               # and after: it has been told
COMMAND = (200, 210, 220, 230)             # in the command
AFTER_COMMIT = 230                         # the set is there, the members have not heard
RESTORED = (110, 120, 121, 122, 123, 124, 125, 130, 140)  # of a restart, in a member
RESTART = (300, 310, 320)                  # in the command
PATIENCE_S = 25                            # given to commands by --timeout
GRACE_S = 90                               # beyond that, on a machine with much else to do
PROCESSES = 2
SLOW_S = 2                                 # hooks/threads/fault.h


class Stormy:
    """A storm with a good set behind it; `fault` is set in its processes and acts in the second checkpoint."""

    def __init__(self, case: Case, fault: str = ""):
        self.driver = Driver(case, Storm(0, 0, ("shm",), processes=PROCESSES), case.random().getrandbits(48) | 1)
        self.case, self.job = case, self.driver.job
        self.took = 0.0  # the last command, in seconds
        if fault:
            self.job.environment["SHADOWIB_FAULT"] = fault
        self.driver.start()
        self.job.environment.pop("SHADOWIB_FAULT", None)
        self.driver.await_traffic()
        check(self.driver.take(kill=False), "the first checkpoint was refused")
        self.good = self.job.sets[-1]
        self.driver.await_traffic()

    def command(self, *argv, fault: str = "", patience: float = PATIENCE_S) -> subprocess.CompletedProcess:
        """A command that ends within its time, whatever it says."""
        began = time.monotonic()
        result = self.job.command(*argv, check_code=False, environment={"SHADOWIB_FAULT": fault}, timeout=patience + GRACE_S + 30)
        took = self.took = time.monotonic() - began
        check(took < patience + GRACE_S, f"{argv[0]} took {took:.0f} s, with {patience:.0f} given")
        check(result.returncode <= 0 or result.stderr.strip() or result.stdout.strip(), f"{argv[0]} exits with {result.returncode} and says nothing")
        return result

    def checkpoint(self, *options, fault: str = "", patience: float = PATIENCE_S) -> subprocess.CompletedProcess:
        return self.command("checkpoint", self.job.name, "--timeout", str(patience), *options, fault=fault, patience=patience)

    def listed(self) -> list[str]:
        return [s["path"] for s in json.loads(self.job.command("list", "--json").stdout)["sets"]]

    def nothing_half_made(self, *expected: str):
        check(self.listed() == list(expected), f"listed: {self.listed()}, expected {expected}")
        for path in expected:
            self.job.command("verify", path)

    def runs_on(self):
        """Its traffic does, and its next checkpoint, kill and restart are as ever."""
        self.driver.await_traffic()
        check(self.driver.kill_and_restart(), "the next checkpoint was refused")
        self.ends_well()

    def restarts(self, path: str):
        """What is left of the job is ended, and the set restarted."""
        self.job.stop()
        (self.driver.area / "failed").unlink(missing_ok=True)  # who was left may have said that its peer is gone
        self.restart_again(path)

    def restart_again(self, path: str):
        self.job.restart(path)
        wait_for("the restarted processes", lambda: len(self.job.members()) == PROCESSES, 120)
        self.ends_well()

    def ends_well(self):
        self.driver.await_traffic()
        (self.driver.area / "stop").touch()
        self.driver.await_end(120)
        codes = [program.process.poll() for program in self.job.programs]
        check(all(code == 0 for code in codes), f"the processes ended with {codes}:\n{self.driver.said()}")
        faults = self.driver.totals()["faults"]
        check(not any(faults.values()), f"faults: {faults}\n{self.driver.said()}")


def last(result: subprocess.CompletedProcess) -> str:
    return (result.stderr.strip() or result.stdout.strip() or "(nothing)").splitlines()[-1]


def member_dies(case: Case, point: int, everybody: bool) -> str:
    storm = Stormy(case, f"{point}:crash:{-1 if everybody else 1}:2")
    result = storm.checkpoint()
    if point == OUTCOME:
        check(result.returncode in (0, ABORTED), f"exit code {result.returncode}: {result.stderr}")
    else:
        check(result.returncode == ABORTED, f"exit code {result.returncode} instead of {ABORTED}: {result.stderr}")
    sets = storm.listed()
    check(sets[:1] == [storm.good] and len(sets) == (2 if point == OUTCOME else 1), f"listed: {sets}")
    storm.restarts(sets[-1])
    return last(result)


def member_fails(case: Case, point: int, how: str) -> str:
    storm = Stormy(case, f"{point}:{how}:1:2")
    result = storm.checkpoint()
    check(result.returncode == IO, f"exit code {result.returncode} instead of {IO}: {result.stderr}")
    storm.nothing_half_made(storm.good)
    storm.runs_on()
    return last(result)


def disk_is_full(case: Case) -> str:
    """Its first checkpoint, too: where writes fail they fail always."""
    driver = Driver(case, Storm(0, 0, ("shm",), processes=PROCESSES), case.random().getrandbits(48) | 1)
    driver.job.environment["SHADOWIB_FAULT"] = "70:enospc:1"
    driver.start()
    driver.await_traffic()
    result = driver.job.command("checkpoint", driver.job.name, check_code=False, environment={"SHADOWIB_FAULT": ""})
    check(result.returncode == IO and "space" in result.stderr.lower(), f"exit code {result.returncode}: {result.stderr}")
    driver.await_traffic()
    (driver.area / "stop").touch()
    driver.await_end(120)
    check(not any(driver.totals()["faults"].values()), driver.said())
    return last(result)


def member_is_slow(case: Case, point: int) -> str:
    storm = Stormy(case, f"{point}:slow:1:2")
    result = storm.checkpoint()
    check(result.returncode == 0, f"exit code {result.returncode}: {result.stderr}")
    check(storm.took >= SLOW_S, f"the checkpoint took {storm.took:.1f} s: nobody was slow")
    storm.runs_on()
    return f"{storm.took:.1f} seconds"


def member_is_terminated(case: Case, point: int) -> str:
    """SIGTERM of a batch system: to a program without a handler that is its end."""
    storm = Stormy(case, f"{point}:term:1:2")
    result = storm.checkpoint()
    check(result.returncode in (0, ABORTED), f"exit code {result.returncode}: {result.stderr}")
    sets = storm.listed()
    check(sets[:1] == [storm.good] and len(sets) == (2 if result.returncode == 0 else 1), f"listed: {sets}")
    wait_for("the member's end", lambda: any(program.process.poll() == -signal.SIGTERM for program in storm.job.programs), 30)
    storm.restarts(sets[-1])
    return last(result)


def member_is_stopped(case: Case, point: int) -> str:
    """SIGSTOP: the command gives up in time, and the job runs on once the member does."""
    storm = Stormy(case, f"{point}:stop:1:2")
    result = storm.checkpoint(patience=10)
    check(result.returncode in (TIMEOUT, ABORTED), f"exit code {result.returncode}: {result.stderr}")
    storm.nothing_half_made(storm.good)
    for member in storm.job.members():
        os.kill(member.pid, signal.SIGCONT)
    storm.runs_on()
    return last(result)


def command_dies(case: Case, point: int) -> str:
    storm = Stormy(case)
    result = storm.checkpoint(fault=f"{point}:crash")
    check(result.returncode == -signal.SIGKILL, f"exit code {result.returncode}: {result.stderr}")
    sets = storm.listed()
    check(sets[:1] == [storm.good] and len(sets) == (2 if point == AFTER_COMMIT else 1), f"listed: {sets}")
    storm.runs_on()
    return f"{len(sets)} set(s) listed"


def asked_twice(case: Case) -> str:
    """Two requests at one time; each takes its time in a phase. Both are done one after the other, or one is told that the other is."""
    storm = Stormy(case, "40:slow:1:2")
    job = storm.job
    words = [job.shadowib, "checkpoint", job.name, "--timeout", str(PATIENCE_S), "--dir", str(job.directory)]
    began = time.monotonic()
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=job.environment) for _ in range(2)]
    said = [command.communicate(timeout=PATIENCE_S + GRACE_S)[1] for command in both]
    codes = sorted(command.returncode for command in both)
    took = time.monotonic() - began
    check(took >= SLOW_S, f"both took {took:.1f} s: nobody was slow")
    check(codes in ([0, 0], [0, BUSY]), f"exit codes {codes}: {said}")
    check(len(storm.listed()) == 1 + codes.count(0), f"listed: {storm.listed()}")
    storm.runs_on()
    return f"exit codes {codes}"


def exchange_is_away(case: Case) -> str:
    """The exchange's directory is not there during a checkpoint: normal running is not disturbed, and it can come back."""
    storm = Stormy(case)
    exchange = pathlib.Path(storm.job.directory) / "jobs" / storm.job.name / "x"
    away = exchange.with_name("away")
    exchange.rename(away)
    result = storm.checkpoint(patience=10)
    check(result.returncode > 0, "a checkpoint without an exchange succeeds")
    storm.driver.await_traffic()
    if exchange.exists():  # what the command has begun there
        shutil.rmtree(exchange)
    away.rename(exchange)
    storm.nothing_half_made(storm.good)
    storm.runs_on()
    return last(result)


def restart_fails(case: Case, fault: str) -> str:
    """A restart that fails at a point leaves the set as it was: the next one comes to its good end."""
    storm = Stormy(case)
    check(storm.driver.take(kill=True), "the checkpoint was refused")
    storm.driver.await_end(30)
    path = storm.job.sets[-1]
    result = storm.command("restart", path, fault=fault, patience=120)
    check(result.returncode != 0, f"the restart succeeds: {result.stdout}")
    check(result.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL, IO, ABORTED, A_PROCESS_FAILED),
          f"exit code {result.returncode}: {result.stderr}")
    wait_for("its processes to be gone", lambda: not any(member.alive for member in storm.job.members()), 30)
    storm.restart_again(path)
    return last(result)


def run() -> int:
    line = Line("fault_points", __doc__)

    def cases(what: str, points, function, *arguments):
        for point in points:
            line.case(f"{what} at {point}", lambda case, p=point: function(case, p, *arguments))

    few = line.quick
    cases("one process dies", (40,) if few else (*MEMBER, OUTCOME), member_dies, False)
    cases("all processes die", () if few else (*MEMBER, OUTCOME), member_dies, True)
    for how in ("fail", "emfile", "enomem"):
        cases(f"a phase ends in {how}", ((70,) if how == "fail" else ()) if few else MEMBER, member_fails, how)
    line.case("the disk is full", disk_is_full)
    cases("one process is slow", () if few else MEMBER, member_is_slow)
    cases("SIGTERM comes", () if few else (30, 40, 70), member_is_terminated)
    cases("SIGSTOP comes", () if few else (20, 40, 60, 70), member_is_stopped)
    cases("the command dies", (220,) if few else COMMAND, command_dies)
    if not few:
        line.case("a second request during the first", asked_twice)
        line.case("the exchange is away", exchange_is_away)
    for how in ("crash", "fail"):
        for point in (() if few and how == "fail" else (124,) if few else RESTORED):
            line.case(f"{how} of one process at {point}", lambda case, p=point, h=how: restart_fails(case, f"{p}:{h}:1"))
        for point in (() if few else RESTART):
            line.case(f"{how} of the restart command at {point}", lambda case, p=point, h=how: restart_fails(case, f"{p}:{h}"))
    return line.finish()


if __name__ == "__main__":
    main(run)
