"""D6: a program blocked in read, poll, epoll_wait, select, nanosleep, futex wait, ibv_get_cq_event, rdma_get_cm_event and others
goes through checkpoints and restarts without an EINTR or a short count that it would not have seen; what it waits for arrives;
relative time-outs last as long as they were asked for, the time it was stopped not counted and what had passed not forgotten; no
clock runs back; and its own signals interrupt it as ever. One exception is known, and checked to end all the same: read and write on
a socket with SO_RCVTIMEO or SO_SNDTIMEO have all of that time again after a stop.

The program is ci_blocked (programs/blocked), a thread for each call. It tells what each returned and when, by its own clock.
"""
import ctypes
import json
import pathlib
import re
import subprocess
import time

from common import Case, Line, Skip, check, main
from jobs import REFUSED, Job, Program, wait_for

PAUSE_S = 1.5       # of running, before each checkpoint
DEAD_S = 1.0        # between a kill and the restart
NS = 1_000_000_000
TICK_NS = NS // 100      # the kernel counts the time-outs of sockets in ticks, and one that began late in its tick may seem that much early
IPC_RMID = 0
LATE_NS = 3 * NS // 2   # so late may a thread be to read its clock, after its call has said what is left


class Blocked:
    """The program under test, and what became of it."""

    def __init__(self, case: Case, *words: str, **settings):
        self.program: Program | None = None
        case.cleanups.append(lambda _: self.remove_system_v())  # before the job's own, which comes first then
        self.job = Job(case, **settings)
        self.dead_s = 0.0                # between kills and restarts, by the machine's clock
        self.restarts: list[bool] = []   # of the checkpoints so far
        self.program = self.job.start("blocked", [case.line.program("ci_blocked"), *words])
        wait_for("every thread to be blocked", lambda: "ready" in self.program.text() or self.program.ended(), 60)
        check(not self.program.ended(), self.program.text())

    def remove_system_v(self):
        """Semaphores and queues of the first life, which is killed: a restart makes its own in another IPC namespace."""
        text = self.program.text() if self.program else ""
        libc = ctypes.CDLL(None)
        for kind, number in re.findall(r"^made (sem|msg) (\d+)$", text, re.MULTILINE):
            if kind == "sem":
                libc.semctl(int(number), 0, IPC_RMID)  # fails if the program has removed it
            else:
                libc.msgctl(int(number), IPC_RMID, None)
            listed = {line.split()[1] for line in pathlib.Path("/proc/sysvipc", kind).read_text().splitlines()}
            check(number not in listed, f"{kind} {number} cannot be removed")

    def checkpoint(self, kill: bool, **how):
        time.sleep(PAUSE_S)
        self.job.check_running()
        self.job.checkpoint(kill)
        self.restarts.append(kill)
        if not kill:
            return
        killed = time.monotonic()
        time.sleep(DEAD_S)
        self.dead_s += time.monotonic() - killed
        self.job.restart(**how)
        wait_for("the restarted member", lambda: self.job.check_running() or self.job.members(), 60)
        self.job.remove_old_sets()

    def finish(self, seconds: float = 0) -> dict:
        """Wakes those that wait, once those with a time-out may have ended, and returns the report."""
        time.sleep(seconds)
        (self.job.case.work / "wake").touch()
        self.job.finish()
        text = self.program.text()
        return json.loads(text[text.index("{"):text.rindex("}") + 1])


def stopped_ns(call: dict, windows: list[dict]) -> int:
    """At most so long was the call stopped: hooks run before the threads stop and after they have been let go."""
    return sum(max(0, min(w["to_ns"], call["ended_ns"]) - max(w["from_ns"], call["began_ns"])) for w in windows)


def judge_time(call: dict, report: dict, dead_ns: int) -> str:
    """What is wrong with the time it took, or ''."""
    windows = [w for w in report["windows"] if w["from_ns"] < call["ended_ns"]]
    lasted, asked, stopped = call["ended_ns"] - call["began_ns"], report["timeout_ms"] * 1_000_000, stopped_ns(call, windows)
    if call["ending"] == "deadline":
        return "" if max(lasted, call["wall_ns"]) >= asked else "was early"
    if call["ending"].startswith("times out"):
        if lasted + TICK_NS < asked + dead_ns:
            return f"was early: it lasted {lasted / NS:.3f} s"
        if windows and call["ending"] == "times out":
            ran_before_last = windows[-1]["from_ns"] - call["began_ns"] - stopped_ns(call, windows[:-1])
            if lasted > asked + stopped + ran_before_last // 2:
                return f"began its time-out afresh: it lasted {lasted / NS:.3f} s, of which it was stopped for {stopped / NS:.3f}"
    if call["left_ns"] >= 0 and call["ending"] == "interrupted":
        left, most = call["left_ns"], report["long_ms"] * 1_000_000
        if not most - lasted - 1_000_000 <= left <= most - (lasted - stopped) + LATE_NS:
            return f"says that {left / NS:.6f} s are left after {lasted / NS:.6f}"
    return ""


def judge(report: dict, restarts: list[bool], dead_s: float) -> str:
    wrong = []
    for call in report["calls"]:
        if call["early"]:
            wrong.append(f"{call['name']} ended before it was woken: {call['result']} {call['error']}")
        elif not call["right"]:
            wrong.append(f"{call['name']} returned {call['result']} {call['error']}")
        elif at_fault := judge_time(call, report, int(dead_s * NS)):
            wrong.append(f"{call['name']} {at_fault}")
    check(not wrong, f"{len(wrong)} of {len(report['calls'])} calls:\n  " + "\n  ".join(wrong))
    seen = [w["restart"] for w in report["windows"]]
    check(seen == restarts, f"hooks saw {seen}, there were {restarts}")
    for clock in report["clocks"]:
        check(clock["readings"] > 1000, f"{clock['name']} was read {clock['readings']} times only")
        check(clock["back"] == 0, f"{clock['name']} ran back {clock['back']} times, by {clock['worst_ns']} ns")
    readings = sum(clock["readings"] for clock in report["clocks"])
    return f"{len(report['calls'])} calls, {len(restarts)} checkpoints, {sum(restarts)} restarts, {readings} readings of clocks"


def natively(case: Case, timeout_ms: int):
    """The control: what the line expects is what the kernel does by itself."""
    lines = []
    for words in ((), ("--refused",)):
        job = Blocked(case, "--natively", "--timeout", str(timeout_ms), *words, name="natively", backend=None)
        lines.append(judge(job.finish(timeout_ms / 1000), [], 0))
        (case.work / "wake").unlink()
    return "; ".join(lines)


def checkpoints(case: Case, kills: list[bool], timeout_ms: int, **settings):
    blocked = Blocked(case, "--timeout", str(timeout_ms), **settings)
    for kill in kills:
        blocked.checkpoint(kill)
    return judge(blocked.finish(timeout_ms / 1000), blocked.restarts, blocked.dead_s)


def clocks_behind(case: Case, timeout_ms: int):
    """Restarted where the machine's clocks stand lower, as after a reboot, twice; the second from a time namespace of ours."""
    behind = int(time.clock_gettime(time.CLOCK_MONOTONIC) / 4)
    prefix = ("unshare", "--user", "--map-root-user", "--fork", "--kill-child", "--time", "--monotonic", str(-behind),
              "--boottime", str(-behind))
    probe = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        raise Skip(f"no time namespace can be made: {probe.stderr.strip()}")
    blocked = Blocked(case, "--timeout", str(timeout_ms))
    blocked.checkpoint(True, prefix=prefix)
    blocked.checkpoint(False)
    blocked.checkpoint(True, prefix=prefix)
    # The program's clock goes on where it stood: time between a kill and a restart is not in it.
    return f"{behind} s behind: " + judge(blocked.finish(timeout_ms / 1000), blocked.restarts, 0)


def refused(case: Case):
    """Calls on what a checkpoint refuses: they know nothing of it."""
    blocked = Blocked(case, "--refused")
    said = set()
    for _ in range(3):
        time.sleep(PAUSE_S)
        result = blocked.job.command("checkpoint", blocked.job.name, "--kill", check_code=False)
        check(result.returncode == REFUSED, f"exit code {result.returncode} instead of {REFUSED}: {result.stderr}")
        said.add(result.stderr.strip().splitlines()[-1])
    report = blocked.finish()
    return judge(report, [False] * 3, 0) + ": " + "; ".join(sorted(said))


def run() -> int:
    line = Line("blocked_calls", __doc__)
    rounds = 2 if line.quick else 5
    timeout_ms = 6000 if line.quick else 15000
    line.case("natively", lambda case: natively(case, 2000))
    for transport in ("shm",) if line.quick else ("shm", "tcp"):
        line.case(f"resume, {transport}",
                  lambda case, t=transport: checkpoints(case, [False] * rounds, timeout_ms, transport=t))
        line.case(f"restart, {transport}",
                  lambda case, t=transport: checkpoints(case, [True] * rounds, timeout_ms, transport=t))
    if not line.quick:
        line.case("in turn", lambda case: checkpoints(case, [False, True, True, False, True], timeout_ms))
    line.case("restart, clocks behind", lambda case: clocks_behind(case, timeout_ms))
    line.case("refused", refused)
    return line.finish()


if __name__ == "__main__":
    main(run)
