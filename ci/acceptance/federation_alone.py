"""FED3, FED5 and FED6: a cluster goes back alone to its own checkpoint, though another one sends to it that stays and is never stopped. Each message
and each write comes once, with its bytes, in the order that completions tell; with the guard h29 off that order is lost. It is killed at random
moments: between checkpoints, within one, forced or not, within a recovery, and while messages are sent again. What cannot be is refused by name."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

from common import Case, Line, Skip, check, main
from federation_restart import COMMAND_POINTS, Recovered, find_inside
from jobs import REFUSED, Program, free_port, wait_for

CLC_POINTS = (200, 210, 220, 228, 230)  # of the command that takes a CLC


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


class Alone(Recovered):
    """A program of which a process of cluster A sends to each of cluster B."""
    ROLES: dict = {}
    ACCEPTS: tuple = ()  # at each of the places where they meet

    def __init__(self, case: Case, environment: dict | None = None, guard: str = ""):
        super().__init__(case, clusters=())
        self.job.environment |= environment or {}
        if guard:
            self.job.shadowib = str(unguarded_tree(case) / "bin" / "shadowib")
            self.job.environment["SHADOWIB_GUARD_OFF"] = guard
        self.stop = case.work / "stop"
        places = self.places_to_meet()
        for cluster, roles in self.ROLES.items():
            started = [self.run(role, self.words(role, places), "--cluster", cluster) for role in roles]
            self.job.programs += started
            self.programs[cluster] = tuple(started)
            self.job.await_members(len(self.job.programs), cluster)
        self.begun = list(self.job.programs)
        self.await_traffic("A")  # so that A has its CLC 1, and B the one that is forced by A's first message
        self.take_behind_margin()

    def places_to_meet(self) -> list[str]:
        return [str(free_port()) for _ in self.ACCEPTS]

    def words(self, role: str, places: list[str]) -> list[str]:
        raise NotImplementedError

    def take_behind_margin(self):
        """A CLC of B behind what A has had that no log has. Hosts' clocks may differ by a second."""
        time.sleep(1.5)
        self.take_clc("B")

    def await_back(self, command: Program):
        wait_for("B to come back", lambda: command.ended() or "run again" in command.text(), 60, 0.05)
        check("run again" in command.text(), f"the recovery ended with {command.process.returncode}: {command.text()[-3000:]}")
        self.programs["B"] = (command,)

    def kill_and_restart(self):
        self.kill("B")
        command = self.recover()
        self.await_back(command)
        return command

    def await_ends(self, codes: tuple = (0,)):
        self.stop.write_text("")
        for program in (*self.programs["A"], *self.programs["B"]):
            wait_for(f"the end of {program.role}", program.ended, 120)
            check(program.process.returncode in codes, f"{program.role} ended with {program.process.returncode}: {program.text()[-3000:]}")


class Ordered(Alone):
    """ci/acceptance/programs/border_order.c: a1 and a2 of cluster A send to b1 and b2 of cluster B."""
    ROLES = {"A": ("a1", "a2"), "B": ("b1", "b2")}
    ACCEPTS = ("b1", "b2", "a2", "b1")

    def words(self, role: str, places: list[str]) -> list[str]:
        return [self.case.line.program("ci_border_order"), role, *places, str(self.stop)]

    def finish(self):
        self.await_ends()
        _, a2, b1, b2 = [program.text().strip() for program in self.begun]  # members that come back write to the same files
        sent = int(a2.removeprefix("sent "))
        check((b1, b2) == (f"blocks to {sent}", f"received {sent}"), f"A says {a2}, and B {b1}, {b2}")
        return sent


class Mixed(Alone):
    """ci/acceptance/programs/border_mix.c: each of a0 and a1 sends all kinds of messages to each of b0 and b1."""
    ROLES = {"A": ("a0", "a1"), "B": ("b0", "b1")}
    ACCEPTS = ("b0", "b1", "b0", "b1")
    ADDED = 10  # to each counter, when asked

    def __init__(self, case: Case, environment: dict | None = None, far: str = ""):
        """`far`: that process takes itself to be on another host."""
        self.asked, self.far = [], far
        super().__init__(case, environment)

    def at(self, role: str, argv: list[str]) -> list[str]:
        return ["unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh", *argv] if role == self.far else super().at(role, argv)

    def words(self, role: str, places: list[str]) -> list[str]:
        return [self.case.line.program("ci_border_mix"), role, *places, "0x" + self.case.line.seed, str(self.case.work / "ask"), str(self.stop)]

    def ask(self, what: str = "all", *clusters: str):
        """Atomics and READs, each way; or something else, which these clusters answer."""
        self.asked.append(what)
        new = self.case.work / "ask.new"
        new.write_text("".join(f"{number} {word}\n" for number, word in enumerate(self.asked, 1)))
        os.replace(new, self.case.work / "ask")
        said = [self.case.work / f"ask.{role}" for name, roles in self.ROLES.items() for role in roles if not clusters or name in clusters]
        wait_for("all processes to be answered", lambda: all(s.exists() and s.read_text().strip() == str(len(self.asked)) for s in said), 60, 0.05)

    def finish(self):
        self.await_ends()
        a, b = [[program.text().split() for program in self.begun[i:i + 2]] for i in (0, 2)]
        sent, received = [[[int(n) for n in words[1:5]] for words in side] for side in (a, b)]
        for i in range(2):
            for j in range(2):
                check(sent[i][2 * j:2 * j + 2] == received[j][2 * i:2 * i + 2], f"A has sent {sent}, and B has received {received}")
        added = [int(words[6]) for words in (*a, *b)]
        check(added == 4 * [self.asked.count("all") * self.ADDED], f"counters are {added}, asked for {self.asked}")
        marked, last = [words[8:10] for words in a], max((n for n, what in enumerate(self.asked, 1) if what == "marks"), default=0)
        check(marked == 2 * [2 * [str(last)]], f"A has been told {marked}, asked for {self.asked}")
        return sum(map(sum, sent))


def kills(case: Case, program=Ordered, count: int = 100) -> str:
    """FED5."""
    fed = program(case)
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


class Moments:
    """Ways for B to fail, each at a moment of chance."""

    def __init__(self, fed: Mixed):
        self.fed, self.random = fed, fed.case.random()

    def pause(self, most: float):
        time.sleep(self.random.random() * most)

    def between(self):
        self.fed.await_traffic("A")
        self.pause(2)
        self.fed.kill("B")

    def behind_a_clc(self):
        self.fed.take_clc("B")
        self.pause(0.3)
        self.fed.kill("B")

    def in_a_clc(self):
        """Its command sleeps at one of its points meanwhile, or has just come by it."""
        point = self.random.choice(CLC_POINTS)
        argv = [self.fed.job.shadowib, "checkpoint", "fed", "--cluster", "B", "--dir", str(self.fed.job.directory)]
        command = self.fed.job._spawn("clc", argv, {"SHADOWIB_FAULT": f"{point}:slow"})  # pylint: disable=protected-access
        self.pause(2.5)
        self.fed.kill("B")
        command.process.wait(120)

    def in_a_forced_clc(self):
        """A's next message carries a number that B has not seen."""
        self.fed.take_clc("A")
        self.pause(0.4)
        self.fed.kill("B")

    def while_all_is_sent_again(self):
        """At once behind a recovery, and before another CLC."""
        self.fed.await_traffic("A")
        self.fed.kill_and_restart()
        self.pause(0.1)
        self.fed.kill("B")

    def in_its_recovery(self):
        self.fed.kill("B")
        for point in self.random.sample(COMMAND_POINTS, 2):
            command = self.fed.recover(fault=f"{point}:crash")
            command.process.wait(60)
            check(command.process.returncode != 0, f"the command ended well though it was killed at {point}: {command.text()}")
        self.fed.programs["B"] = (command,)

    def behind_answers(self):
        """Atomics and READs each way, and a CLC of either cluster that has them."""
        self.fed.ask()
        self.fed.take_behind_margin()
        self.pause(1)
        self.fed.kill("B")

    def one_process(self):
        pid = self.random.choice([m["pid"] for m in self.fed.status()["members"] if m["cluster"] == "B"])
        if len(self.fed.programs["B"]) == 1:
            pid = find_inside(self.fed.programs["B"][0].process.pid, pid)
        os.kill(pid, signal.SIGKILL)

    def a_sleeps(self):
        """A process of A neither hears nor sends for a while, as B comes back."""
        asleep = self.random.choice(self.fed.programs["A"]).process
        self.fed.kill("B")
        asleep.send_signal(signal.SIGSTOP)
        command = self.fed.recover()
        self.pause(1)
        asleep.send_signal(signal.SIGCONT)
        self.fed.await_back(command)
        self.fed.kill("B")


def moments(case: Case, program=Mixed) -> str:
    """FED3."""
    fed, count = program(case), 9 if case.line.quick else 50
    at, before, told = Moments(fed), fed.identity("A"), {}
    ways = [at.between, at.behind_a_clc, at.in_a_clc, at.in_a_forced_clc, at.while_all_is_sent_again, at.in_its_recovery, at.behind_answers, at.one_process,
            at.a_sleeps]
    for number in range(count):
        way = ways[number] if number < len(ways) else at.random.choice(ways)
        fed.case.note(f"{number + 1}: {way.__name__}")
        way()
        if way == at.between:  # retries have run out before anybody comes
            wait_for("A to say that it waits", lambda: fed.cluster_of_status("A")["waits_for"] == ["B"], 30, 0.1)
        at.pause(1)
        fed.await_back(fed.recover())
        check(fed.identity("A") == before, f"A has other processes after {number + 1} kills")
        told[way.__name__] = told.get(way.__name__, 0) + 1
    fed.await_traffic("A")
    messages = fed.finish()
    return f"B came back {count} times ({', '.join(f'{n} {way}' for way, n in told.items())}), and has {messages} messages"


def refused(fed: Alone, *words: str):
    """B cannot go back, and is told why; nobody is ended for that."""
    def living():
        return [(m["index"], m["pid"]) for m in fed.status()["members"] if m["alive"]]
    before = living()
    result = fed.command("restart", "--job", "fed", "--cluster", "B", code=REFUSED)
    check(all(word in result.stderr for word in words), f"{words} are missed in: {result.stderr}")
    check(living() == before, "somebody was ended")


def end_shortly(fed: Alone, cluster: str):
    short = fed.run("short", ["python3", "-c", "pass"], "--cluster", cluster, "--join-children")
    check(short.process.wait(60) == 0, f"it ended with {short.process.returncode}: {short.text()}")


def refusals(case: Case) -> str:
    fed = Mixed(case)
    fed.ask("reads", "B")
    refused(fed, "cluster A", "was read from")
    # A goes back alone where B has had nothing of it since, and has no log of before.
    fed.ask("pause")
    fed.take_behind_margin()
    time.sleep(1.5)
    fed.take_clc("A")
    fed.kill("A")
    command = fed.recover()
    wait_for("A to come back", lambda: command.ended() or "run again" in command.text(), 60, 0.05)
    check("run again" in command.text(), f"the recovery ended with {command.process.returncode}: {command.text()[-3000:]}")
    fed.programs["A"] = (command,)
    fed.ask("go-on")
    fed.await_traffic("A")
    refused(fed, "cluster A", "came back")
    # From its next CLC on B may go back as ever.
    fed.take_behind_margin()
    fed.kill_and_restart()
    fed.await_traffic("A")
    end_shortly(fed, "A")
    refused(fed, "has ended, with what it had sent")
    return f"refused by name; {fed.finish()} messages"


def ended_before(case: Case) -> str:
    """A process of B has ended: peers might wait for it."""
    fed = Mixed(case)
    end_shortly(fed, "B")
    fed.take_behind_margin()
    refused(fed, "has ended before")
    return f"refused by name; {fed.finish()} messages"


def two_hosts(case: Case) -> str:
    """A sends from two hosts, by their names: clocks cannot be compared."""
    if subprocess.run(["unshare", "--uts", "true"], check=False, capture_output=True).returncode != 0:
        raise Skip("no namespace for the name of a host may be made")
    fed = Mixed(case, far="a1")
    refused(fed, "member 1", "has sent from another host, and clocks differ")
    return f"refused by name; {fed.finish()} messages"


def waits(case: Case) -> str:
    """While B does not take what comes again, the whole job is not saved, and a process of A neither ends nor ends a queue pair. B gets it all."""
    fed, way = Mixed(case), case.name.split()[-1]
    fed.await_traffic("A")
    time.sleep(2)  # in which more comes than B has receives for
    fed.ask("deaf", "B")
    fed.kill_and_restart()
    result = fed.command("checkpoint", "fed", code=REFUSED)
    check("has not got all messages of this member again" in result.stderr, f"the refusal says {result.stderr}")
    fed.ask(f"leave-{way}", "B")
    time.sleep(2)  # in which what may end does
    check(not any(program.ended() for program in fed.programs["A"]), "a process of A has ended while B was deaf")
    fed.ask("go-on", "B")
    for program in fed.programs["A"]:
        wait_for(f"the end of {program.role}", program.ended, 60)
        check(program.process.returncode == 0, f"{program.role} ended with {program.process.returncode}: {program.text()[-3000:]}")
    completed = [[int(n) for n in program.text().split()[1:5]] for program in fed.begun[:2]]
    new = case.work / "report.new"
    new.write_text("".join(f"b{j} {' '.join(str(n) for i in range(2) for n in completed[i][2 * j:2 * j + 2])}\n" for j in range(2)))
    os.replace(new, case.work / "stop.report")
    def received():
        counts = [[int(n) for n in program.text().split()[1:5]] for program in fed.begun[2:]]
        return counts if all(len(of_it) == 4 for of_it in counts) else None
    counts = wait_for(f"B to have what A has completed: {completed}", received, 60)
    return f"the end and {way} of queue pairs have waited; {sum(map(sum, counts))} messages"


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
    fed.await_back(command)
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
    fed = Ordered(case, {"SHADOWIB_LOG_BYTES": "64K", "SHADOWIB_LOG_INTERVAL": "0"})
    wait_for("a log to be begun anew", lambda: "is begun anew" in (case.work / "shadowib.log").read_text(errors="replace"), 60)
    result = fed.command("restart", "--job", "fed", "--cluster", "B", code=REFUSED)
    check("SHADOWIB_LOG_BYTES" in result.stderr and "cluster A" in result.stderr, f"the refusal says {result.stderr}")
    fed.finish()
    return "refused, and all went on"


def log_asks(case: Case) -> str:
    """Nobody takes CLCs of B but for A's log, which would be full after some seconds. B comes back alone each time, and takes no more of them than it may."""
    interval, count = 3, 1 if case.line.quick else 20
    fed = Ordered(case, {"SHADOWIB_LOG_BYTES": "4M", "SHADOWIB_LOG_INTERVAL": str(interval)})
    def taken():
        events = json.loads(fed.command("history", "fed", "--json").stdout)["events"]
        return sum(e["event"] == "clc" and e["cluster"] == "B" for e in events)
    begin, before, identity = time.monotonic(), taken(), fed.identity("A")
    for number in range(1, count + 1):
        wait_for("a CLC of B for A's log", lambda number=number: taken() >= before + number, 120, 0.2)
        fed.kill_and_restart()
        fed.await_traffic("A")
    count, most = taken() - before, (time.monotonic() - begin) / interval + 1
    check(count <= most, f"B has taken {count} CLCs in {most * interval:.1f} s")
    check(fed.identity("A") == identity, "A has other processes")
    check("is begun anew" not in (case.work / "shadowib.log").read_text(errors="replace"), "the log was full")
    return f"{count} CLCs of B for A's log; {fed.finish()} messages"


def bounded(case: Case) -> str:
    """FED6. A takes a CLC each 20 s, which forces one of B; `gc` removes old ones each 10 s; A's log has less room than all its messages need."""
    limit, seconds, kills, pause_s, most_kept = 32 << 20, 1200, 10, 10, 3
    fed = Ordered(case, {"SHADOWIB_LOG_BYTES": str(limit), "SHADOWIB_LOG_INTERVAL": str(pause_s)})
    begin, before, most = time.monotonic(), fed.identity("A"), 0
    due = sorted(case.random().uniform(0, seconds) for _ in range(kills))
    number = done = 0
    while time.monotonic() < begin + seconds or due:
        number += 1
        if number % 2 == 0:
            fed.take_clc("A")
        round_end = time.monotonic() + pause_s
        while time.monotonic() < round_end:
            most = max(most, fed.cluster("A")["log_bytes"])
            check(most <= limit, f"A's log has {most} bytes")
            if due and time.monotonic() >= begin + due[0]:
                due.pop(0)
                fed.kill_and_restart()
                fed.await_traffic("A")
            time.sleep(0.2)
        fed.command("gc", "fed")
        done += 1
        kept = {name: fed.cluster_of_status(name)["kept"] for name in ("A", "B")}
        check(all(n <= most_kept for n in kept.values()), f"behind a collection there are {kept} CLCs")
    check(fed.identity("A") == before, "A has other processes")
    check("is begun anew" not in (case.work / "shadowib.log").read_text(errors="replace"), "the log was full")
    return f"{kills} kills, {done} collections, at most {most / 2**20:.1f} MiB of log; {fed.finish()} messages"


def run() -> int:
    line = Line("federation_alone", __doc__)
    line.case("moments", moments)
    line.case("in order", in_order)
    line.case("log asks", log_asks)
    if not line.quick:
        line.case("kills", kills)
        line.case("bounded", bounded)
        line.case("without the gate", unguarded)
        line.case("full log", full_log)
        line.case("refusals", refusals)
        line.case("ended before", ended_before)
        line.case("two hosts", two_hosts)
        for way in ("err", "reset", "destroy", "close"):
            line.case(f"waits {way}", waits)
    return line.finish()


if __name__ == "__main__":
    main(run)
