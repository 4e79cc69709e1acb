"""FED5: a cluster goes back alone to its own checkpoint, though another one sends to it that stays and is never stopped. Each message and each
write comes once, with its bytes, in the order that completions tell. With the guard h29 off that order is lost."""
import pathlib
import shutil
import signal
import time

from common import Case, Line, Skip, check, main
from federation_restart import Recovered
from jobs import REFUSED, free_port, wait_for

ROLES = {"A": ("a1", "a2"), "B": ("b1", "b2")}


def unguarded_tree(case: Case) -> pathlib.Path:
    """The library whose guards can be left out, with the backend of the product."""
    tree, guarded = case.work / "tree", case.line.build / "hazards" / "lib" / "libshadowib.so"
    if not guarded.exists():
        raise Skip(f"{guarded} is not built")
    (tree / "bin").mkdir(parents=True)
    shutil.copytree(case.line.build / "lib" / "shadowib", tree / "lib" / "shadowib")
    shutil.copy(case.line.program("shadowib"), tree / "bin")
    for name in ("libshadowib.so", "libshadowib.so.0"):
        shutil.copy(guarded, tree / "lib" / name)
    return tree


class Ordered(Recovered):
    """ci/acceptance/programs/border_order.c: a1 and a2 of cluster A send to b1 and b2 of cluster B."""

    def __init__(self, case: Case, environment: dict | None = None, guard: str = ""):
        super().__init__(case, clusters=())
        self.job.environment |= {"SHADOWIB_GOES_BACK_ALONE": "1", "SHADOWIB_LOG_BYTES": "256M"} | (environment or {})
        if guard:
            self.job.shadowib = str(unguarded_tree(case) / "bin" / "shadowib")
            self.job.environment["SHADOWIB_GUARD_OFF"] = guard
        self.stop = case.work / "stop"
        ports = [str(free_port()) for _ in range(4)]
        words = {role: [case.line.program("ci_border_order"), role, *ports, str(self.stop)] for roles in ROLES.values() for role in roles}
        for cluster, roles in ROLES.items():
            started = [self.run(role, words[role], "--cluster", cluster) for role in roles]
            self.job.programs += started
            self.programs[cluster] = tuple(started)
            wait_for(f"the members of {cluster}", lambda n=len(self.job.programs): len(self.job.members()) == n, 60)
        self.begun = list(self.job.programs)
        self.await_traffic("A")  # so that A has its CLC 1, and B the one that is forced by A's first message
        time.sleep(1.5)  # hosts' clocks may differ by a second
        self.take("B")

    def kill_and_restart(self):
        self.kill("B")
        command = self.recover()
        wait_for("B to come back", lambda: command.ended() or "run again" in command.text(), 60, 0.05)
        check("run again" in command.text(), f"the recovery ended with {command.process.returncode}: {command.text()[-3000:]}")
        self.programs["B"] = (command,)
        return command

    def finish(self):
        self.stop.write_text("")
        for program in (*self.programs["A"], *self.programs["B"]):
            wait_for(f"the end of {program.role}", program.ended, 120)
            check(program.process.returncode == 0, f"{program.role} ended with {program.process.returncode}: {program.text()[-3000:]}")
        _, a2, b1, b2 = [program.text().strip() for program in self.begun]  # members that come back write to the same files
        sent = int(a2.removeprefix("sent "))
        check((b1, b2) == (f"blocks to {sent}", f"received {sent}"), f"A says {a2}, and B {b1}, {b2}")
        return sent


def kills(case: Case) -> str:
    fed, count = Ordered(case), 5 if case.line.quick else 50
    random, before = case.random(), fed.identity("A")
    for number in range(count):
        fed.await_traffic("A")
        if random.random() < 0.5:
            fed.take("B", code=None)
        time.sleep(random.random() * 2)
        fed.kill_and_restart()
        check(fed.identity("A") == before, f"A has other processes after {number + 1} kills")
        check(fed.cluster("A")["stops"] <= 1, "A was stopped by more than its CLC 1")
    fed.await_traffic("A")
    messages = fed.finish()
    return f"B came back {count} times, and has {messages} messages and as many writes"


def asleep(case: Case, guard: str = "") -> Ordered:
    """B comes back while a1 sleeps, so that a2 could overtake it."""
    fed = Ordered(case, guard=guard)
    fed.await_traffic("A")  # behind the CLC, so that it is sent again
    fed.kill("B")
    command = fed.recover(fault="260:slow")
    lines = fed.job.directory / "jobs" / "fed" / "x"
    wait_for("the line", lambda: command.ended() or list(lines.glob("*/recovery/1/*line")), 60, 0.005)
    a1 = fed.begun[0].process
    a1.send_signal(signal.SIGSTOP)
    wait_for("B to come back", lambda: command.ended() or "run again" in command.text(), 60, 0.05)
    check("run again" in command.text(), f"the recovery ended with {command.process.returncode}: {command.text()[-3000:]}")
    fed.programs["B"] = (command,)
    time.sleep(2)  # in which what may overtake does
    a1.send_signal(signal.SIGCONT)
    return fed


def in_order(case: Case) -> str:
    fed = asleep(case)
    fed.await_traffic("A")
    return f"a2 has waited for a1; {fed.finish()} messages"


def unguarded(case: Case) -> str:
    fed = asleep(case, "h29")
    wait_for("the order to be lost", lambda: "stale" in fed.begun[2].text(), 30)
    return "a2 has overtaken a1"


def full_log(case: Case) -> str:
    """Where the log is full a cluster is refused by name, and nothing is ended."""
    fed = Ordered(case, {"SHADOWIB_LOG_BYTES": "64K"})
    wait_for("a log to be given up", lambda: "is given up" in (case.work / "shadowib.log").read_text(errors="replace"), 60)
    result = fed.command("restart", "--job", "fed", "--cluster", "B", code=REFUSED)
    check("SHADOWIB_LOG_BYTES" in result.stderr and "cluster A" in result.stderr, f"the refusal says {result.stderr}")
    fed.finish()
    return "refused, and all went on"


def run() -> int:
    line = Line("federation_alone", __doc__)
    line.case("kills", kills)
    line.case("in order", in_order)
    line.case("without the gate", unguarded)
    line.case("full log", full_log)
    return line.finish()


if __name__ == "__main__":
    main(run)
