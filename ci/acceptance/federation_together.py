"""FED3, FED4 and FED8: two clusters that were connected go back together, each to its own checkpoint: both killed at random moments, or one that takes the other along.
Each message, each byte and each addition comes once, in the order that completions tell; commands are killed in the middle, and repeated."""
import contextlib
import os
import signal
import time

from common import Case, Line, check, main
from federation_alone import Mixed, Ordered
from federation_restart import COMMAND_POINTS, MEMBER_POINTS, PROCESS_FAILED, find_inside
from jobs import REFUSED, wait_for

CLUSTERS = ("A", "B")
TIMEOUT = 7


def take_both(fed):
    """CLCs of both, behind what no log has. What A sends behind its own forces another one of B."""
    fed.take_behind_margin()
    fed.take_clc("A")


def signal_all(fed, cluster: str, number: int):
    pids = [m["pid"] for m in fed.status()["members"] if m["cluster"] == cluster]
    if len(fed.programs[cluster]) == 1:  # they have come back, in a namespace
        pids = [find_inside(fed.programs[cluster][0].process.pid, pid) for pid in pids]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # one that saw another end has ended, too
            os.kill(pid, number)


def kill_alone(fed, cluster: str):
    """Its members, though one command may have brought back others, too."""
    signal_all(fed, cluster, signal.SIGKILL)
    wait_for(f"the end of {cluster}", lambda: not any(m["alive"] for m in fed.status()["members"] if m["cluster"] == cluster), 30, 0.05)


def await_both(fed, command):
    wait_for("both to come back", lambda: command.ended() or "run again" in command.text(), 60, 0.05)
    check("run again" in command.text(), f"the recovery ended with {command.process.returncode}: {command.text()[-3000:]}")
    for cluster in CLUSTERS:
        fed.programs[cluster] = (command,)


def killed(case: Case, program=Mixed) -> str:
    fed, count = program(case), 3 if case.line.quick else 20
    random = case.random()
    take_both(fed)
    for number in range(count):
        fed.await_traffic("A")
        way = random.choice(("at once", "behind CLCs", "one after the other", "behind answers")) if number > 2 else ("behind CLCs", "behind answers",
                                                                                                                   "at once")[number]
        fed.case.note(f"{number + 1}: {way}")
        if way == "behind answers":
            fed.ask()
            take_both(fed)
        elif way == "behind CLCs":
            take_both(fed)
        time.sleep(random.random())
        if way == "one after the other":
            for cluster in random.sample(CLUSTERS, 2):
                kill_alone(fed, cluster)
                time.sleep(random.random())
        else:
            fed.kill(*CLUSTERS)
        points = COMMAND_POINTS + MEMBER_POINTS
        for point in random.sample(COMMAND_POINTS, random.choice((0, 0, 2))) if case.line.quick else points[number:number + 1]:
            command = fed.recover(fault=f"{point}:crash")
            command.process.wait(60)
            check(command.process.returncode != 0, f"the command ended well though something was killed at {point}: {command.text()}")
        await_both(fed, fed.recover())
    fed.await_traffic("A")
    return f"both came back {count} times; {fed.finish()} messages"


def whole(case: Case) -> str:
    """All processes are killed at once. The command alone finds the line, and each cluster comes back to its CLC there."""
    fed, count = Mixed(case), 20
    random = case.random()
    take_both(fed)
    for number in range(count):
        fed.await_traffic("A")
        if random.random() < 0.5:
            take_both(fed)
        time.sleep(random.random())
        fed.kill(*CLUSTERS)
        places = fed.places()
        command = fed.recover()
        await_both(fed, command)
        for name, place in places.items():
            check(f"{name} goes back to CLC {place['sn']}" in command.text(), f"line says {places}, and the command {command.text()[:2000]}")
        fed.await_traffic("A")
        check(fed.cluster("A")["incarnation"] == number + 2, f"after {number + 1} recoveries A is {fed.cluster('A')}")
    return f"the whole job came back {count} times; {fed.finish()} messages"


class Apart(Mixed):
    """Of one that is killed alone the command that has brought both back tells, too."""
    def await_ends(self, codes: tuple = (0, PROCESS_FAILED)):
        super().await_ends(codes)


def taken_along(case: Case) -> str:
    """A has had WRITEs that B has undone, so it goes back, too, and before them. Without them it stays."""
    fed, count = Apart(case), 2 if case.line.quick else 20
    random, along = case.random(), 0
    for number in range(count):
        take_both(fed)
        fed.await_traffic("A")
        depends, before = number % 2 == 0, fed.identity("A")
        if depends:
            fed.ask("pause", "A")
            fed.take_behind_margin()
            fed.ask("marks", "B")  # A is silent, so that B has no later CLC
        time.sleep(random.random())
        kill_alone(fed, "B")
        places = fed.places("--fail", "B")
        check(places["A"]["stays"] != depends, f"A depends on B: {depends}; line says {places}")
        command = fed.recover()
        if depends:
            await_both(fed, command)
            along += 1
        else:
            fed.await_back(command)
            check(fed.identity("A") == before, "A has other processes")
        if depends:
            fed.ask("go-on")
        fed.await_traffic("A")
    return f"A went back with B {along} times of {count}; {fed.finish()} messages"


def in_order(case: Case) -> str:
    """B sleeps while A takes its CLC, so that all of A comes again what B has had since its own."""
    fed = Ordered(case)
    for _ in range(2 if case.line.quick else 10):
        fed.take_behind_margin()
        fed.await_traffic("A")
        time.sleep(0.3)
        signal_all(fed, "B", signal.SIGSTOP)
        fed.take_clc("A")
        fed.kill(*CLUSTERS)
        await_both(fed, fed.recover())
        fed.await_traffic("A")
    return f"nothing is stale; {fed.finish()} messages"


def refusals(case: Case) -> str:
    """What A's log does not have cannot come again: B has read from A behind its own CLC, and before A's."""
    fed = Mixed(case)
    take_both(fed)
    fed.await_traffic("A")
    time.sleep(1.5)
    fed.ask("reads", "B")
    signal_all(fed, "B", signal.SIGSTOP)
    fed.take_clc("A")
    result = fed.command("restart", "--job", "fed", "--cluster", "A", "--cluster", "B", code=REFUSED)
    check("cluster A, which goes back to" in result.stderr and "was read from" in result.stderr, f"the refusal says {result.stderr}")
    signal_all(fed, "B", signal.SIGCONT)
    fed.await_traffic("A")
    return f"refused by name; {fed.finish()} messages"


RECEIVES = 800  # more messages than B has receives for, and looks at before it hears that it is to be deaf


def await_many(fed) -> None:
    def sent() -> int:
        return sum(fed.counters("A").values())
    before = sent()
    wait_for("A to send more than B can take at once", lambda: sent() > before + RECEIVES, 120, 0.1)


def later_than(fed) -> None:
    """A's last CLC is behind B's, and messages lie between them: all of A comes again what B has had since its own."""
    fed.take_behind_margin()
    await_many(fed)
    signal_all(fed, "B", signal.SIGSTOP)
    fed.take_clc("A")


def be_deaf(fed) -> None:
    """B hears of it when it comes back, and takes nothing that is sent again."""
    fed.kill("B")
    fed.asked.append("deaf")
    new = fed.case.work / "ask.new"
    new.write_text("".join(f"{number} {word}\n" for number, word in enumerate(fed.asked, 1)))
    os.replace(new, fed.case.work / "ask")


def impatient(case: Case) -> str:
    """B takes nothing of what A sends again, so A goes back as well: to before that."""
    fed = Apart(case)
    take_both(fed)
    await_many(fed)
    be_deaf(fed)
    command = fed.recover("--patience", "3")
    wait_for("both to come back", lambda: command.ended() or command.text().count("run again") == 2, 90, 0.05)
    check("A goes back, too" in command.text() and not command.ended(), f"the recovery says {command.text()[-3000:]}")
    for program in fed.programs["A"]:
        wait_for(f"the end of {program.role}", program.ended, 30)
    for cluster in CLUSTERS:
        fed.programs[cluster] = (command,)
    fed.ask("go-on", "B")
    fed.await_traffic("A")
    return f"A went back as well; {fed.finish()} messages"


def in_vain(case: Case) -> str:
    """A's CLC is later than what stands, so nothing helps."""
    fed = Apart(case)
    later_than(fed)
    be_deaf(fed)
    command = fed.recover("--patience", "3")
    wait_for("the command to give up", command.ended, 90, 0.1)
    said = command.text()
    check(command.process.returncode == TIMEOUT, f"the recovery ended with {command.process.returncode}: {said[-3000:]}")
    check("its cluster has gone back as well" in said and "newest set of the whole job" in said, f"it says {said[-3000:]}")
    check(not any(m["alive"] for m in fed.status()["members"]), "somebody is alive")
    return "told, and ended with 7"


def run() -> int:
    line = Line("federation_together", __doc__)
    line.case("both killed", killed)
    line.case("taken along", taken_along)
    if not line.quick:
        line.case("whole job", whole)
    line.case("in order", in_order)
    line.case("refusals", refusals)
    line.case("impatient", impatient)
    line.case("impatient in vain", in_vain)
    return line.finish()


if __name__ == "__main__":
    main(run)
