"""FED3: clusters go back to their own checkpoints. One that loses a process comes back alone, in the job's epoch, while the other one's processes are
never stopped; a job of which all processes are dead comes back from the line; a command that is killed at any point of that is repeated; a cluster
that was connected to one that stays is refused by name."""
import fcntl
import json
import os
import pathlib
import signal
import struct
import time

from common import Case, Line, check, main
from federation_clusters import CLUSTERS, Federation
from jobs import BUSY, CORRUPT, NOT_FOUND, REFUSED, Program, descendants, free_port, listening, wait_for

USAGE, PROCESS_FAILED = 2, 20
# Fault points of the command and of the commands it starts (hooks/job/phase.h), and of a restarted member.
COMMAND_POINTS = (240, 250, 260, 300, 310, 320, 330)
MEMBER_POINTS = (110, 122, 124, 130, 140, 145)


class Recovered(Federation):
    """Pairs within clusters. `iterations`: of each pair, which checks every byte."""

    def __init__(self, case: Case, clusters: tuple = CLUSTERS, iterations: int = 10**9, options: tuple = ()):
        self.iterations, self.recoveries = iterations, []
        super().__init__(case, clusters, options)

    def start_pair(self, name: str, *options: str):
        port = free_port()
        words = [self.pingpong, "-p", str(port), "-s", "4096", "-n", str(self.iterations)]
        server = self.run(f"server-{name}", [*words, "--server"], *options)
        wait_for("the server to listen", lambda: server.ended() or listening(port), 30)
        client = self.run(f"client-{name}", [*words, "localhost"], *options)
        self.job.programs += [server, client]
        return server, client

    def kill(self, *clusters: str):
        """All processes of these clusters, whatever has started them."""
        ending = [program for cluster in clusters for program in self.programs[cluster]]
        for program in ending:
            program.process.kill()
        for program in ending:
            program.process.wait(30)
        def dead():
            return not any(m["alive"] for m in self.status()["members"] if m["cluster"] in clusters)
        wait_for(f"the end of {clusters}", dead, 30, 0.05)

    def recover(self, *options: str, fault: str = "") -> Program:
        argv = [self.job.shadowib, "restart", "--job", "fed", "--dir", str(self.job.directory), *options]
        program = self.job._spawn(f"recover{len(self.recoveries)}", argv, {"SHADOWIB_FAULT": fault} if fault else None)  # pylint: disable=protected-access
        self.recoveries.append(program)
        self.job.programs.append(program)
        return program

    def come_back(self, *clusters: str, options: tuple = (), moves: bool = True) -> Program:
        """The command, once all members of these clusters run again. `moves`: and there is traffic in all clusters."""
        command = self.recover(*options)
        wait_for(f"{clusters} to come back", lambda: command.ended() or "run again" in command.text(), 60, 0.05)
        check(not command.ended(), f"the recovery ended with {command.process.returncode}: {command.text()[-3000:]}")
        for cluster in clusters:
            for program in self.programs[cluster]:
                if program in self.job.programs and program is not command:
                    self.job.programs.remove(program)
            self.programs[cluster] = (command,)
        if moves:
            self.await_traffic(*self.programs)
        return command

    def identity(self, cluster: str) -> list:
        """Who its processes are: a number that was given again would have another start time."""
        def start_time(pid: int) -> str:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
                return stat.read().rsplit(")", 1)[1].split()[19]
        return [(m["index"], m["pid"], start_time(m["pid"])) for m in self.status()["members"] if m["cluster"] == cluster]

    def places(self, *options: str) -> dict:
        line = json.loads(self.command("line", "fed", *options, "--json").stdout)["lines"][0]
        return {c["name"]: c for c in line["clusters"]}


def alone(case: Case) -> str:
    fed, count = Recovered(case), 1 if case.line.quick else 20
    before = fed.identity("A")
    fed.take("B")
    fed.take("B")
    sn = 2
    for number in range(count):
        fed.kill("B")
        check(not fed.cluster_of_status("B")["running"], "a cluster whose processes are dead is running")
        places = fed.places("--fail", "B")
        check(places["A"]["stays"] and places["B"]["sn"] == sn, f"line says {places}")
        fed.come_back("B")
        b = fed.settled("B")
        check((b["sn"], b["incarnation"]) == (sn, number + 2), f"after {number + 1} recoveries: {b}")
        check(fed.identity("A") == before, "A has other processes")
        check(fed.cluster("A")["stops"] == 0, "A was stopped")
        fed.take("B")
        sn += 1
        check(fed.settled("B")["sn"] == sn, "the next CLC has not the next number")
    fed.take("A")
    check(fed.settled("A")["sn"] == 1, "A takes no CLC any more")
    events = [e for e in json.loads(fed.command("history", "fed", "--json").stdout)["events"] if e["event"] == "recovery"]
    check([e["clusters"] for e in events] == [["B"]] * count and all(e["lost_s"] >= 0 for e in events), f"the history has {events}")
    check("recovery" in fed.command("history", "fed").stdout, "the history tells of no recovery")
    # A set of the whole job, whose clusters have come back differently often, restarts.
    path = fed.command("checkpoint", "fed", "--kill").stdout.strip().splitlines()[-1]
    for program in fed.job.programs:
        program.process.wait(30)
    fed.command("verify", path)
    fed.job.sets, fed.job.programs = [path], []
    fed.job.restart(path)
    wait_for("the restarted members", lambda: len(fed.job.members()) == 4, 60)
    fed.await_traffic(*CLUSTERS)
    return f"B came back {count} times, and A was never stopped"


def beside_an_end(case: Case) -> str:
    """A cluster that has ended in an orderly way, without a CLC and without a connection to others, bars no line."""
    fed = Recovered(case)
    before = fed.identity("A")
    short = fed.run("short", ["python3", "-c", "import time; time.sleep(1)"], "--cluster", "C", "--join-children")
    wait_for("the third cluster", lambda: short.ended() or len(fed.job.members()) == 5, 30)
    check(short.process.wait(30) == 0, f"it ended with {short.process.returncode}: {short.text()}")
    fed.take("B")
    fed.kill("B")
    places = fed.places("--fail", "B")
    check(places["A"]["stays"] and places["C"]["stays"] and places["B"]["sn"] == 1, f"line says {places}")
    fed.come_back("B")
    check(fed.settled("B")["sn"] == 1 and fed.identity("A") == before and fed.cluster("A")["stops"] == 0, "A was touched")
    return "B came back beside A, after C had ended"


def to_the_end(case: Case) -> str:
    """Every byte of a pair that has gone back is right, up to the last one."""
    fed = Recovered(case, iterations=2_000_000)  # A still runs when B comes back
    fed.take("B")
    fed.kill("B")
    command = fed.come_back("B", moves=False)
    for program in [command, *fed.programs["A"]]:
        program.process.wait(600)
        check(program.process.returncode == 0, f"{program.role} ended with {program.process.returncode}: {program.text()[-2000:]}")
    return "both pairs have had all messages"


def living(case: Case) -> str:
    """A cluster that is named goes back although it lives; so does one of which a single process has died."""
    fed = Recovered(case)
    before = fed.identity("A")
    fed.take("B")
    result = fed.command("restart", "--job", "fed", code=BUSY)
    check("no cluster" in result.stderr, f"the refusal says {result.stderr}")
    old = list(fed.programs["B"])
    fed.come_back("B", options=("--cluster", "B"))
    check(all(program.process.wait(10) == -signal.SIGKILL for program in old), "what was left of B was not ended")
    # One of its two processes dies; the other one is ended by the recovery.
    fed.take("B")
    last = fed.recoveries[-1]
    children = [m["pid"] for m in fed.status()["members"] if m["cluster"] == "B"]
    victim = find_inside(last.process.pid, children[0])
    os.kill(victim, signal.SIGKILL)
    wait_for("the command to tell of the death", lambda: "ended with signal 9" in last.text(), 30, 0.05)
    fed.come_back("B")
    check(fed.settled("B")["incarnation"] == 3 and fed.identity("A") == before and fed.cluster("A")["stops"] == 0, "A was touched")
    return "ended, and back; A was never stopped"


def find_inside(command: int, pid: int) -> int:
    """The process below `command` that has this number in the innermost namespace it is in."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/status", encoding="utf-8", errors="replace") as status:
                fields = dict(line.split(":", 1) for line in status.read().splitlines() if ":" in line)
            numbers = fields["NSpid"].split()
            if len(numbers) > 1 and int(numbers[-1]) == pid and is_below(int(name), command):
                found.append(int(name))
        except (OSError, KeyError, ValueError):
            continue
    check(len(found) == 1, f"{found} are process {pid} below {command}")
    return found[0]


def is_below(pid: int, above: int) -> bool:
    while pid > 1:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            pid = int(stat.read().rsplit(")", 1)[1].split()[1])
        if pid == above:
            return True
    return False


def whole(case: Case) -> str:
    fed = Recovered(case)
    for cluster in ("A", "B", "B"):
        fed.take(cluster)
    fed.kill("A", "B")
    # The line of a command that was killed binds the next one.
    first = fed.recover(fault="260:crash")
    check(first.process.wait(60) == -signal.SIGKILL, f"the first command was to be killed: {first.text()}")
    command = fed.come_back(*CLUSTERS)
    a, b = fed.settled("A"), fed.settled("B")
    check((a["sn"], a["incarnation"], b["sn"], b["incarnation"]) == (1, 3, 2, 3), f"they came back as {a}, {b}")
    if case.line.quick:
        return "both clusters from their own sets"
    # Once more: by the signal of a person, and of all clusters from newer CLCs.
    fed.take("A")
    command.process.send_signal(signal.SIGTERM)
    command.process.wait(30)
    check(command.process.returncode != 0, "processes that a signal has ended count as ended well")
    told = fed.recover("--json")
    wait_for("both to come back", lambda: told.ended() or len(fed.job.members()) == 4, 60)
    fed.await_traffic(*CLUSTERS)
    check((fed.settled("A")["sn"], fed.settled("B")["sn"]) == (2, 2), "they are not at their last CLCs")
    for cluster in CLUSTERS:
        fed.programs[cluster] = (told,)
    told.process.send_signal(signal.SIGTERM)
    told.process.wait(30)
    json_text = told.text()[told.text().index("{"):]
    said = json.loads(json_text[:json_text.rindex("}") + 1])
    check(said["recovery"] == 3 and said["reached"] and not said["ok"] and [c["sn"] for c in said["line"]] == [2, 2], f"--json says {said}")
    check(all(len(c["restart"]["processes"]) == 2 for c in said["clusters"]), f"--json has the processes {said['clusters']}")
    return "both clusters from their own sets, twice"


def killed(case: Case) -> str:
    """A line that was published binds the next recovery; whatever was begun, it is repeated and goes well."""
    fed = Recovered(case)
    before = fed.identity("A")
    fed.take("B")
    told = []
    for point in COMMAND_POINTS + MEMBER_POINTS:
        fed.kill("B")
        incarnation = fed.cluster_of_status("B").get("incarnation", 1)
        command = fed.recover(fault=f"{point}:crash")
        command.process.wait(60)
        check(command.process.returncode != 0, f"the command ended well though something was killed at {point}: {command.text()}")
        # At 145 all were ready: the recovery is over, and the cluster has failed again.
        check(("run again" in command.text()) == (point == 145), f"killed at {point}, and the command says {command.text()}")
        fed.come_back("B")
        b = fed.settled("B")
        check(b["sn"] == 1 and b["incarnation"] > incarnation, f"after {point}: {b}")
        check(fed.identity("A") == before and fed.cluster("A")["stops"] == 0, f"A was touched at {point}")
        told.append(str(point))
    fed.take("B")
    check(fed.settled("B")["sn"] == 2, "the next CLC has not the next number")
    return "killed at " + ", ".join(told) + ", and repeated"


def refusals(case: Case) -> str:
    fed = Recovered(case)
    said = []

    def refused(words: str, code: int, *argv: str):
        result = fed.job.command(*argv, check_code=False)
        check(result.returncode == code and words in result.stderr, f"shadowib {' '.join(argv)}: {result.returncode}, {result.stderr}")
        said.append(words)

    refused("no line", NOT_FOUND, "restart", "--job", "fed", "--cluster", "B")  # no CLC yet
    fed.take("B")
    refused("has no cluster", NOT_FOUND, "restart", "--job", "fed", "--cluster", "X")
    refused("no job", NOT_FOUND, "restart", "--job", "none")
    refused("leave out SET", USAGE, "restart", "fed.B.0001", "--job", "fed")
    refused("need --job", USAGE, "restart", "fed.B.0001", "--cluster", "B")
    refused("which SET", USAGE, "restart")
    refused("restart --job fed --cluster B", REFUSED, "restart", "fed.B.0001")
    # A damaged set is told before anything is ended.
    image = next(path for path in (fed.job.directory / "sets" / "fed.B.0001").iterdir() if path.suffix == ".img")
    whole_image = image.read_bytes()
    image.write_bytes(whole_image[:-1])
    refused("is truncated", CORRUPT, "restart", "--job", "fed", "--cluster", "B")
    image.write_bytes(whole_image)
    # So is a place where the set cannot run.
    before = fed.identity("B")
    environment = {"SHADOWIB_IBVERBS": fed.job.shadowib}
    result = fed.job.command("restart", "--job", "fed", "--cluster", "B", "--backend", "verbs", check_code=False, environment=environment)
    check(result.returncode == NOT_FOUND and "verbs library" in result.stderr, f"--backend verbs: {result.returncode}, {result.stderr}")
    said.append("verbs library")
    check(fed.identity("B") == before, "members were ended before the place was judged")
    # Another command has the turn.
    slow = fed.recover("--cluster", "B", fault="240:slow")
    wait_for("a recovery under way", lambda: slow.ended() or "goes back" in slow.text(), 30, 0.05)
    refused("being recovered", BUSY, "restart", "--job", "fed", "--cluster", "B")
    wait_for("the slow one", lambda: slow.ended() or "run again" in slow.text(), 60, 0.05)
    fed.programs["B"] = (slow,)
    fed.check_alive()
    check(fed.cluster("A")["stops"] == 0, "A was stopped")
    return f"{len(said)} refusals"


def at_once(case: Case) -> str:
    """A process that dies after all were ready, and before it has said that it runs: the recovery is over all the same, and the next one may come."""
    fed = Recovered(case)
    before = fed.identity("A")
    fed.take("B")
    fed.kill("B")
    last = [m["index"] for m in fed.status()["members"] if m["cluster"] == "B"][-1]
    first = fed.recover("--json", fault=f"145:crash:{last}")
    wait_for("the recovery to be over", lambda: first.ended() or "has failed again" in first.text(), 60, 0.05)
    check(f"member {last} ended before it ran" in first.text(), f"the command says {first.text()[-2000:]}")
    fed.programs["B"] = (first,)
    fed.come_back("B")
    first.process.wait(30)
    # What the cluster's command says is passed on before it.
    said = json.loads(first.text()[first.text().index('\n{\n  "job"'):])
    check(first.process.returncode == PROCESS_FAILED and said["reached"] and said["died"] == [last], f"--json says {said}")
    check(fed.settled("B")["incarnation"] == 3 and fed.identity("A") == before and fed.cluster("A")["stops"] == 0, "A was touched")
    return "told, and taken back once more"


def sizes(case: Case) -> str:
    """One cluster's images take longer to read than members wait for each other: the other cluster waits before its members run."""
    fed, timeout = Recovered(case), 5
    for cluster in CLUSTERS:
        fed.take(cluster)
    fed.kill(*CLUSTERS)
    command = fed.recover("--timeout", str(timeout), fault="320:slow")
    def is_of_a(pid: int) -> bool:
        try:
            return b"fed.A.0001" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:  # it has ended
            return False
    def of_a():
        return [pid for pid in descendants(command.process.pid) if is_of_a(pid)]
    # Its command, and what reads the images.
    large = wait_for("the command of A's set", lambda: (found := of_a()) and len(found) >= 3 and found, 60, 0.005)
    for pid in large:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2 * timeout + 3)  # longer than members wait
    check("restored" not in command.text(), f"members run already: {command.text()}")
    for pid in large:
        os.kill(pid, signal.SIGCONT)
    wait_for("both to come back", lambda: command.ended() or "run again" in command.text(), 60, 0.05)
    check(not command.ended(), f"the recovery ended with {command.process.returncode}: {command.text()[-3000:]}")
    for cluster in CLUSTERS:
        fed.programs[cluster] = (command,)
    fed.await_traffic(*CLUSTERS)
    return f"waited {2 * timeout + 3} s, with --timeout {timeout}"


def collecting(case: Case) -> str:
    """While gc looks a recovery may begin; while it removes sets a recovery waits."""
    fed = Recovered(case)
    for _ in range(3):
        fed.take("B")
    asleep = fed.programs["B"][0]
    asleep.process.send_signal(signal.SIGSTOP)  # so that gc waits for an answer
    asked = next((fed.job.directory / "jobs" / "fed" / "x").glob("*/control/=status"))
    before = asked.stat().st_mtime_ns
    lock = fed.job.directory / "jobs" / "fed" / "alive" / "recovery"
    collector = fed.job._spawn("gc", [fed.job.shadowib, "gc", "fed", "--dir", str(fed.job.directory)])  # pylint: disable=protected-access
    wait_for("gc to ask", lambda: asked.stat().st_mtime_ns != before, 30, 0.005)
    held = take_lock(lock)
    check(held is not None, "gc has the lock of recoveries while it looks")
    os.close(held)
    collector.process.wait(60)
    check(collector.process.returncode == 0, f"gc: {collector.text()}")
    asleep.process.send_signal(signal.SIGCONT)
    held = take_lock(lock)
    command = fed.recover("--cluster", "B")
    time.sleep(2)  # longer than it waits for another recovery
    check(not command.ended(), f"the recovery did not wait: {command.text()}")
    os.close(held)
    wait_for("B to come back", lambda: command.ended() or "run again" in command.text(), 60, 0.05)
    check(not command.ended(), f"the recovery ended with {command.process.returncode}: {command.text()}")
    return "a recovery may begin while gc looks, and waits while it removes"


def take_lock(path: pathlib.Path) -> int | None:
    """As commands do; the lock ends with the descriptor. None: somebody has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.fcntl(descriptor, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))  # F_OFD_SETLK
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def fenced(case: Case) -> str:
    """A process that cannot be ended: it is named, a person vouches for it, and when it wakes up after all it ends by itself."""
    fed = Recovered(case)
    fed.take("B")
    asleep, other = fed.programs["B"]
    asleep.process.send_signal(signal.SIGSTOP)
    result = fed.command("restart", "--job", "fed", "--cluster", "B", code=REFUSED)
    check("was told to end" in result.stderr and f"pid {asleep.process.pid}" in result.stderr, f"the refusal says {result.stderr}")
    check(other.process.wait(10) == -signal.SIGKILL, "the other one was not ended")
    fed.come_back("B", options=("--cluster", "B", "--fenced"))
    check(not asleep.ended(), "the process that sleeps has ended")
    asleep.process.send_signal(signal.SIGCONT)
    check(asleep.process.wait(30) == -signal.SIGKILL, "a process of a dead incarnation lives on")
    fed.check_alive()
    check(fed.cluster("A")["stops"] == 0, "A was stopped")
    return "named, vouched for, and ended when it woke up"


def later(case: Case) -> str:
    """A cluster that went back is who it was: a process that joins it since is connected to one that joins the other cluster."""
    fed = Recovered(case, options=("--policy", "index"))
    fed.take("B")
    fed.kill("B")
    fed.come_back("B")
    port = free_port()
    words = [fed.pingpong, "-p", str(port), "-s", "4096", "-n", str(10**9)]
    server = fed.run("server-border", [*words, "--server"], "--cluster", "B", "--policy", "index")
    wait_for("the server to listen", lambda: server.ended() or listening(port), 30)
    client = fed.run("client-border", [*words, "localhost"], "--cluster", "A", "--policy", "index")
    fed.job.programs += [server, client]
    def moving():
        counts = [[q["sends_retired"] for q in m["state"]["objects"]["queue_pairs"]] for m in fed.status()["members"] if m["index"] >= 4 and m["state"]]
        return len(counts) == 2 and all(count and count[0] > 100 for count in counts)
    wait_for("traffic between a cluster that went back and the other one", moving, 60)
    fed.take("B")
    wait_for("the other cluster's forced CLC", lambda: fed.cluster("A")["forced"] >= 1, 60, 0.1)
    check(fed.cluster_of_status("B")["wired"] == ["A"], "the clusters are not known to be wired")
    result = fed.command("restart", "--job", "fed", "--cluster", "B", code=REFUSED)
    check("connected to cluster" in result.stderr, f"the refusal says {result.stderr}")
    fed.await_traffic("A", "B")
    return "connected, checkpointed by clusters, and refused from then on"


def border(case: Case) -> str:
    """A pair over the border, with messages both ways: neither goes back to before its connection. A third cluster that is connected to none goes back,
    and CLCs know that nothing of it was delivered."""
    fed = Recovered(case, clusters=("C",), options=("--policy", "index"))
    port = free_port()
    words = [fed.pingpong, "-p", str(port), "-s", "4096", "-n", str(10**9)]
    server = fed.run("server-border", [*words, "--server"], "--cluster", "A", "--policy", "index")
    wait_for("the server to listen", lambda: server.ended() or listening(port), 30)
    client = fed.run("client-border", [*words, "localhost"], "--cluster", "B", "--policy", "index")
    fed.job.programs += [server, client]
    fed.programs |= {"A": (server,), "B": (client,)}
    wait_for("all members", lambda: len(fed.job.members()) == 4, 60)
    fed.await_traffic("A", "B", "C")
    fed.take("C")
    record = json.loads((fed.job.directory / "sets" / "fed.C.0001" / "manifest.json").read_text())
    check(record["wired"] == [], f"the manifest of C says {record['wired']}")
    a = fed.settled("A")
    record = json.loads((fed.job.directory / "sets" / a["clcs"][-1]["set"] / "manifest.json").read_text())
    check(record["wired"] == [fed.cluster("B")["index"]], f"the manifest of A says {record['wired']}")
    for cluster in ("A", "B"):
        result = fed.command("restart", "--job", "fed", "--cluster", cluster, code=REFUSED)
        check("which goes back to" in result.stderr and "has newer connections" in result.stderr, f"the refusal says {result.stderr}")
    fed.check_alive()  # nothing was ended
    before = fed.identity("A") + fed.identity("B")
    fed.kill("C")
    fed.come_back("C")
    check(fed.identity("A") + fed.identity("B") == before, "others have changed")
    fed.await_traffic("A", "B")
    fed.take("A")
    record = json.loads((fed.job.directory / "sets" / fed.settled("A")["clcs"][-1]["set"] / "manifest.json").read_text())["cluster"]
    check(record["before"][fed.cluster("C")["index"]] == 0, f"A was never connected to C: {record}")
    return "A and B are refused, C comes back"


def run() -> int:
    line = Line("federation_restart", __doc__)
    for function in (alone, beside_an_end, to_the_end, living, whole, killed, refusals, at_once, sizes, collecting, fenced, later, border):
        if line.quick and function in (beside_an_end, to_the_end, living, killed, refusals, sizes, collecting, fenced, later):
            continue
        line.case(function.__name__, function)
    return line.finish()


if __name__ == "__main__":
    main(run)
