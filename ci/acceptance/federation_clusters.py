"""FED11: two clusters of two members each, with traffic inside. One is checkpointed alone while the other one never stops; a command that is
killed at any point of that leaves a checkpoint that counts for all members or for none; what `status`, `list`, `line` and `gc` tell is so;
what cannot be is refused by name, and a set of the whole job restarts as ever."""
import json
import os
import shutil
import signal
import time

from common import Case, Line, Skip, check, main
from jobs import BUSY, NOT_FOUND, REFUSED, Job, free_port, listening, wait_for
from mpi import QUIET
from mpi import ROOT as ALLOWED

USAGE, RUN_FAILED = 2, 125
CLUSTERS = ("A", "B")
# Fault points of the command (hooks/job/phase.h), and whether a CLC whose command is killed there counts.
POINTS = {200: False, 210: False, 220: False, 228: False, 230: True}


class Federation:
    def __init__(self, case: Case, clusters: tuple = CLUSTERS, options: tuple = ()):
        self.case, self.job = case, Job(case, "fed")
        self.pingpong = case.line.program("shadowib-pingpong")
        self.programs = {}
        for cluster in clusters:  # one after the other, so that indices are as expected
            self.programs[cluster] = self.start_pair(cluster, "--cluster", cluster, *options)
            self.job.await_members(2 * len(self.programs), cluster)
        self.job.await_members(2 * len(clusters), "all clusters")
        if clusters:
            self.await_traffic(*clusters)

    address = "localhost"  # of what listens for other processes of the job

    def at(self, _role: str, argv: list[str]) -> list[str]:
        """What starts that on the process's host."""
        return argv

    def listens(self, port: int) -> bool:
        return listening(port)

    def run(self, role: str, words: list[str], *options: str):
        prefix = [self.job.shadowib, "run", "--job", self.job.name, "--dir", str(self.job.directory), "--close-inherited", *options, "--"]
        return self.job._spawn(role, self.at(role, prefix + words))  # pylint: disable=protected-access

    def start_pair(self, name: str, *options: str):
        port = free_port()
        words = [self.pingpong, "-p", str(port), "-s", "4096", "-n", str(10**9)]
        server = self.run(f"server-{name}", [*words, "--server"], *options)
        wait_for("the server to listen", lambda: server.ended() or listening(port), 30)
        client = self.run(f"client-{name}", [*words, "localhost"], *options)
        self.job.programs += [server, client]
        return server, client

    def command(self, *argv: str, fault: str = "", code: int | None = 0):
        result = self.job.command(*argv, check_code=False, environment={"SHADOWIB_FAULT": fault} if fault else None)
        said = result.stdout + result.stderr
        check(code is None or result.returncode == code, f"shadowib {' '.join(argv)}: exit code {result.returncode}, expected {code}: {said}")
        return result

    def take(self, cluster: str, *options: str, fault: str = "", code: int | None = 0):
        return self.command("checkpoint", self.job.name, "--cluster", cluster, *options, fault=fault, code=code)

    def take_clc(self, cluster: str):
        """Once no other one is under way: messages may have forced it."""
        def taken():
            result = self.take(cluster, code=None)
            check(result.returncode in (0, BUSY), f"a CLC of {cluster} ended with {result.returncode}: {result.stderr}")
            return result.returncode == 0
        wait_for(f"a CLC of {cluster}", taken, 120)

    def status(self) -> dict:
        return json.loads(self.command("status", self.job.name, "--json").stdout)

    def cluster(self, name: str) -> dict:
        """Once all its members answer: one that is just stopped may not."""
        def answers():
            found = next(c for c in self.status()["clusters"] if c["name"] == name)
            return found if "sn" in found else None
        return wait_for(f"the answers of all members of {name}", answers, 30, 0.1)

    def cluster_of_status(self, name: str) -> dict:
        """As it is told now, whether its members answer or not."""
        return next(c for c in self.status()["clusters"] if c["name"] == name)

    def settled(self, name: str) -> dict:
        """The cluster once no checkpoint is under way: its members agree with its last CLC."""
        def agreed():
            cluster = self.cluster(name)
            last = max((clc["sn"] for clc in cluster["clcs"]), default=0)
            return cluster if cluster["running"] and cluster["sn"] == last else None
        return wait_for(f"the members of {name} to agree", agreed, 30, 0.1)

    def counters(self, *clusters: str) -> dict[int, int]:
        """How many requests each member with queue pairs has sent."""
        pairs = {m["index"]: m["state"]["objects"]["queue_pairs"] for m in self.status()["members"] if m["cluster"] in clusters and m["state"]}
        return {index: sum(q["sends_retired"] for q in of_it) for index, of_it in pairs.items() if of_it}

    def await_traffic(self, *clusters: str):
        """More of it than there is now, of each of their members: each pair is connected then, and has closed its sockets."""
        before = self.counters(*clusters)
        wait_for("traffic of all members", lambda: (now := self.counters(*clusters)) and all(n > before.get(i, 0) for i, n in now.items()), 120)

    def sets(self) -> list[dict]:
        return json.loads(self.command("list", "--json").stdout)["sets"]

    def check_alive(self):
        for pair in self.programs.values():
            for program in pair:
                check(not program.ended(), f"{program.role} ended with {program.process.returncode}: {program.text()[-2000:]}")
        self.await_traffic(*self.programs)


def alone(case: Case) -> str:
    fed, count = Federation(case), 3 if case.line.quick else 20
    pids = [m["pid"] for m in fed.status()["members"]]
    for number in range(1, count + 1):
        result = fed.take("B")
        path = result.stdout.strip().splitlines()[-1]
        check(os.path.basename(path) == f"fed.B.{number:04d}", f"the set is called {path}")
        check("restart --job fed --cluster B" in result.stderr, f"it is not told how the set restarts: {result.stderr}")
        b = fed.settled("B")
        check((b["sn"], b["kept"], b["unforced"], b["forced"]) == (number, number, number, 0), f"after {number} CLCs: {b}")
    a, b = fed.cluster("A"), fed.cluster("B")
    check(a["stops"] == 0 and a["sn"] == 0, f"A was stopped, though only B was checkpointed: {a}")
    check(b["stops"] >= count, f"B's members were stopped {b['stops']} times for {count} CLCs")
    record = json.loads((fed.job.directory / "sets" / "fed.B.0002" / "manifest.json").read_text())
    check(record["format"] == 5 and record["wired"] == [] and record["cluster"] == {"name": "B", "index": 1, "sn": 2, "incarnation": 1, "before": [0, 0],
                                                           "after": [0, 0], "forced": False}, f"the manifest says {record['cluster']}")
    check([m["index"] for m in record["members"]] == [2, 3], f"the set has the members {record['members']}")
    fed.command("verify", "fed.B.0002")
    listed = {s["name"]: s for s in fed.sets()}
    check(listed["fed.B.0002"]["cluster"] == "B" and listed["fed.B.0002"]["sn"] == 2, f"list says {listed['fed.B.0002']}")
    # One fails alone, and the other one stays; nothing came over the border.
    line = json.loads(fed.command("line", "fed", "--fail", "B", "--json").stdout)["lines"][0]
    places = {c["name"]: c for c in line["clusters"]}
    check(places["A"]["stays"] and places["B"]["sn"] == count and places["B"]["set"] == f"fed.B.{count:04d}", f"line says {line}")
    check(0 <= line["lost_s"] < 600, f"line says that {line['lost_s']} s are lost")
    # None goes before the dry run, all but the last one in the end.
    first = [f"fed.B.{n:04d}" for n in range(1, count)]
    check(all(name in fed.command("gc", "fed", "--dry-run").stdout for name in first), "gc --dry-run does not name the CLCs that may go")
    check(len(fed.sets()) == count, "gc --dry-run has removed something")
    fed.command("gc", "fed")
    check([s["name"] for s in fed.sets()] == [f"fed.B.{count:04d}"], f"after gc there is {fed.sets()}")
    check([m["pid"] for m in fed.status()["members"]] == pids, "members have changed")
    fed.check_alive()
    return f"{count} CLCs of B, and A was never stopped"


def killed(case: Case) -> str:
    fed = Federation(case)
    fed.take("B")
    sn, told = 1, []
    for point, counts in POINTS.items():
        if case.line.quick and point < 220:
            continue
        for _ in range(1 if case.line.quick else 30 if point >= 220 else 5):
            voids = fed.settled("B")["void"]
            result = fed.take("B", fault=f"{point}:crash", code=None)
            check(result.returncode == -signal.SIGKILL, f"the command was to be killed at {point}, and exits with {result.returncode}")
            sn += counts
            # Members hear of the end within seconds, and go on.
            def decided(sn=sn, counts=counts, voids=voids, point=point):
                b = fed.settled("B")
                saved = point >= 220
                return b if b["sn"] == sn and (b["void"] > voids or counts or not saved) else None
            wait_for(f"a decision of the members after {point}", decided, 30, 0.1)
            fed.check_alive()
        told.append(f"{point} {'counts' if counts else 'does not'}")
    # Whatever was void is gone after gc, what counts is what `list` has, and the next one is as ever.
    names = {clc["set"] for clc in fed.cluster("B")["clcs"]}
    fed.command("gc", "fed")
    left = {s["name"] for s in fed.sets()}
    check(left <= names, f"gc has left {left - names}, which do not count")
    check(not [n for n in os.listdir(fed.job.directory / "sets") if n.startswith(".")], "gc has left staging directories")
    fed.take("B")
    check(fed.settled("B")["sn"] == sn + 1, "the next CLC has not the next number")
    check(fed.cluster("A")["stops"] == 0, "A was stopped")
    return ", ".join(told)


def whole(case: Case) -> str:
    fed = Federation(case)
    fed.take("A")
    fed.take("B", "--timeout", "0.001", code=None)
    path = fed.command("checkpoint", "fed").stdout.strip().splitlines()[-1]
    manifest = json.loads((fed.job.directory / "sets" / "fed.0001" / "manifest.json").read_text())
    check(manifest["federation"] == {"policy": "paper", "clusters": [{"name": "A", "index": 0, "members": [0, 1]},
                                                                    {"name": "B", "index": 1, "members": [2, 3]}]},
          f"the manifest says {manifest.get('federation')}")
    events = json.loads(fed.command("history", "fed", "--json").stdout)["events"]
    told = [(e["event"], e.get("cluster")) for e in events if e["event"] != "started"]
    check(told == [("clc", "A"), ("clc_failed", "B"), ("checkpoint", None)], f"the history says {told}")
    check(fed.cluster("A")["stops"] >= 2 and fed.cluster("B")["stops"] >= 1, "not all clusters were stopped")
    refused = fed.command("restart", "fed.A.0001", code=REFUSED)
    check("restart --job fed --cluster A" in refused.stderr, f"restart says {refused.stderr}")
    fed.command("checkpoint", "fed", "--kill")
    for program in fed.job.programs:
        program.process.wait(30)
    fed.job.sets.append(path)
    fed.job.programs = []
    fed.job.restart("fed")
    wait_for("the restarted members", lambda: len(fed.job.members()) == 4, 60)
    clusters = [fed.cluster(name) for name in CLUSTERS]
    check([(c["name"], c["index"], c["sn"], c["incarnation"]) for c in clusters] == [("A", 0, 0, 2), ("B", 1, 0, 2)],
          f"after the restart the clusters are {clusters}")
    fed.await_traffic(*CLUSTERS)
    fed.take("B")
    check(fed.settled("B")["sn"] == 1 and fed.cluster("A")["stops"] == 0, "a CLC of the restarted job")
    return "a set of the whole job restarts, and its clusters begin anew"


def refusals(case: Case) -> str:
    fed = Federation(case)
    said = []

    def refused(words: str, code: int, *argv: str):
        result = fed.job.command(*argv, check_code=False)
        check(result.returncode == code and words in result.stderr, f"shadowib {' '.join(argv)}: {result.returncode}, {result.stderr}")
        said.append(words)

    for words, options in {"is a federation": [], "policy paper": ["--cluster", "C", "--policy", "index"], "first a letter": ["--cluster", "a.b"],
                           "no borders": ["--cluster", "C", "--backend", "verbs"], "a guest is in no cluster": ["--guest"],
                           "job fed's cluster A have that name": ["--job", "fed.A", "--cluster", "C"],
                           "names have at most 64 letters": ["--job", "j" * 60, "--cluster", "east"]}.items():
        result = fed.run("refused", ["true"], *options)
        result.process.wait(30)
        check(result.process.returncode == RUN_FAILED and words in result.text(), f"run {options}: {result.process.returncode}, {result.text()}")
        said.append(words)
    refused("has no cluster", NOT_FOUND, "checkpoint", "fed", "--cluster", "X")
    refused("has no cluster", NOT_FOUND, "line", "fed", "--fail", "X")
    refused("--kill does not go", USAGE, "checkpoint", "fed", "--cluster", "B", "--kill")
    refused("--save forked does not go", USAGE, "checkpoint", "fed", "--cluster", "B", "--save", "forked")
    refused("--keep-far goes with no job", USAGE, "gc", "fed", "--keep-far", "1")
    refused("--store central", USAGE, "checkpoint", "fed", "--cluster", "B", "--store", "mem:single")
    # Its turn is taken while another command is held up; other clusters' are not.
    slow = fed.job._spawn("slow", [fed.job.shadowib, "checkpoint", "fed", "--cluster", "B", "--dir", str(fed.job.directory)],  # pylint: disable=protected-access
                          {"SHADOWIB_FAULT": "200:stop"})
    wait_for("a checkpoint under way", lambda: any(name.endswith(".ckpt1.turn") for name in os.listdir(fed.job.directory / "jobs" / "fed" / "alive")), 20)
    refused("under way", BUSY, "checkpoint", "fed", "--cluster", "B")
    refused("under way", BUSY, "checkpoint", "fed", "--timeout", "0.2")
    fed.take("A")
    slow.process.send_signal(signal.SIGCONT)
    fed.command("checkpoint", "fed")  # waits for its turn
    slow.process.wait(60)
    check(slow.process.returncode == 0, f"the slow command: {slow.text()}")
    fed.check_alive()
    return f"{len(said)} refusals"


def without_clusters(case: Case) -> str:
    """A set of a time when the job had no clusters."""
    fed = Federation(case, clusters=())
    fed.start_pair("plain", "--backend", "ib2tcp")
    wait_for("two members", lambda: len(fed.job.members()) == 2, 60)
    path = fed.command("checkpoint", "fed", "--kill").stdout.strip().splitlines()[-1]
    for program in fed.job.programs:
        program.process.wait(30)
    later = fed.run("later", ["true"], "--cluster", "A")
    later.process.wait(30)
    record = fed.job.directory / "jobs" / "fed" / "clusters"
    check(later.process.returncode == 0 and record.exists(), f"the later federation: {later.text()}")
    fed.job.sets, fed.job.programs = [path], []
    fed.job.restart(path)
    wait_for("the restarted members", lambda: len(fed.job.members()) == 2, 60)
    check(not record.exists(), "the restarted job has clusters")
    joins = fed.run("joins", ["true"])
    joins.process.wait(30)
    check(joins.process.returncode == 0, f"a process that joins the restarted job: {joins.text()}")
    return "its restart has none, and processes may join"


def at_once(case: Case) -> str:
    """None takes the others' record for one of an earlier job."""
    job, names = Job(case, "fed"), [f"C{number}" for number in range(8)]
    for name in names:
        argv = [job.shadowib, "run", "--job", "fed", "--dir", str(job.directory), "--close-inherited", "--cluster", name, "--", "sleep", "3"]
        job.programs.append(job._spawn(name, argv))  # pylint: disable=protected-access
    for program in job.programs:
        program.process.wait(60)
        check(program.process.returncode == 0, f"{program.role}: {program.process.returncode}, {program.text()}")
    record = sorted(os.listdir(job.directory / "jobs" / "fed" / "clusters"))
    check(record == sorted([*names, "policy.txt"]), f"the record has {record}")
    return f"{len(names)} processes that start at once are in their clusters"


def variables(case: Case) -> str:
    """A process of a cluster may start another job: the cluster's variables are none of that."""
    job = Job(case, "fed")
    told = 'echo "[$SHADOWIB_CLUSTER $SHADOWIB_CLUSTER_POLICY $SHADOWIB_CLUSTER_HOLD]"'
    inherited = {"SHADOWIB_JOB": "fed", "SHADOWIB_CLUSTER": "A", "SHADOWIB_CLUSTER_POLICY": "index", "SHADOWIB_CLUSTER_HOLD": "3"}

    def run(name: str, changed: dict, words: str, code: int = 0):
        argv = [job.shadowib, "run", "--job", name, "--dir", str(job.directory), "--close-inherited", "--", "sh", "-c", told]
        program = job._spawn(name, argv, {**inherited, **changed})  # pylint: disable=protected-access
        program.process.wait(30)
        check(program.process.returncode == code and words in program.text(), f"{name}, {changed}: {program.process.returncode}, {program.text()}")

    run("other", {}, "[  ]")
    run("fed", {}, "[A index 3.0")
    run("fed", {"SHADOWIB_CLUSTER_HOLD": "soon"}, "SHADOWIB_CLUSTER_HOLD", RUN_FAILED)
    return "another job has no cluster, and a wrong time is named"


def interval(case: Case) -> str:
    """CLCs that a cluster takes by itself are central, whatever the job's store is."""
    fed = Federation(case, options=("--interval", "2", "--keep", "1", "--store", "mem:single"))
    wait_for("CLCs of both clusters", lambda: all(fed.cluster(name)["sn"] >= 3 for name in CLUSTERS), 90, 0.2)
    check(all(s.get("cluster") for s in fed.sets()), "the interval takes sets of the whole job")
    wait_for("old CLCs to go", lambda: len(fed.sets()) <= 4, 30, 0.2)
    fed.check_alive()
    return "each cluster takes its own"


# Each holds one end of something: the first one makes it and prints its name, the second one is given that.
ENDS = {"a connection": ("s = socket.create_server(('127.0.0.1', 0))\nprint(s.getsockname()[1], flush=True)\nc = s.accept()",
                         "c = socket.create_connection(('127.0.0.1', int(sys.argv[1])))"),
        "a Unix socket": ("s = socket.socket(socket.AF_UNIX)\ns.bind('end')\ns.listen()\nprint('end', flush=True)\nc = s.accept()",
                          "c = socket.socket(socket.AF_UNIX)\nc.connect(sys.argv[1])"),
        "a pipe": ("os.mkfifo('pipe')\nprint('pipe', flush=True)\nc = open('pipe', 'rb')", "c = open(sys.argv[1], 'wb')")}


def bonds(case: Case) -> str:
    """A CLC would have half of it."""
    what = case.name.removeprefix("bonds: ")
    fed = Federation(case, clusters=("A",))
    ends = []
    for cluster, act in zip(CLUSTERS, ENDS[what]):
        words = ["python3", "-c", f"import os, socket, sys, time\n{act}\nprint('connected', flush=True)\ntime.sleep(600)"]
        ends.append(fed.run(f"end-{cluster}", words + [end.text().split()[0] for end in ends], "--cluster", cluster, "--join-children"))
        wait_for("an end", lambda: ends[-1].ended() or ends[-1].text().strip(), 30)
    wait_for("both ends", lambda: all("connected" in end.text() for end in ends), 30)
    wait_for("four members", lambda: len(fed.job.members()) == 4, 30)
    for cluster in CLUSTERS:
        result = fed.take(cluster, code=REFUSED)
        check(what.split()[-1] in result.stderr or "connection" in result.stderr, f"the refusal names nothing of {what}: {result.stderr}")
    check(fed.cluster("B")["sn"] == 0 and not fed.sets(), "something was committed")
    fed.command("checkpoint", "fed")
    fed.check_alive()
    return f"{what} between clusters is named, and the whole job is saved"


def need_mpirun():
    if not shutil.which("mpirun"):
        raise Skip("mpirun is not installed (package openmpi-bin)")


def launchers_exchange(case: Case) -> str:
    """It ends with the launcher, so clusters cannot go back by it."""
    need_mpirun()
    job = Job(case, "fed")
    argv = ["mpirun", "-np", "1", *QUIET, job.shadowib, "run", "--job", "fed", "--dir", str(job.directory), "--cluster", "A", "--exchange", "pmix:", "--", "true"]
    program = job._spawn("mpirun", argv, ALLOWED)  # pylint: disable=protected-access
    program.process.wait(60)
    said = program.text()
    check(program.process.returncode == RUN_FAILED and "is a launcher's (pmix:)" in said and "name another with --exchange" in said,
          f"it ended with {program.process.returncode}: {said}")
    check(not (job.directory / "jobs" / "fed" / "clusters").exists(), "the cluster is recorded")
    return "refused by name, and nothing is recorded"


def ranks(case: Case) -> str:
    """mpirun's two ranks, one in each cluster: neither cluster is checkpointed without the other one."""
    need_mpirun()
    fed = Federation(case, clusters=())
    rank = [case.line.program("ci_pmix_events")]
    each = [["-np", "1", fed.job.shadowib, "run", "--job", "fed", "--dir", str(fed.job.directory), "--cluster", name, "--join-children", "--", *rank]
            for name in CLUSTERS]
    job = fed.job._spawn("mpirun", ["mpirun", *QUIET, *each[0], ":", *each[1]], ALLOWED)  # pylint: disable=protected-access
    wait_for("both ranks", lambda: job.ended() or "ready" in job.text(), 60)
    check(len(fed.job.members()) == 2, f"there are not two members: {job.text()}")
    for name in CLUSTERS:
        result = fed.take(name, code=REFUSED)
        check("1 of the 2 ranks of the launcher's job" in result.stderr and "checkpoint without --cluster" in result.stderr,
              f"the refusal says {result.stderr}")
    check(all(fed.cluster(name)["sn"] == 0 for name in CLUSTERS) and not fed.sets(), "something was committed")
    fed.command("checkpoint", "fed")
    check(not job.ended() and len(fed.job.members()) == 2, f"the ranks have ended: {job.text()}")
    return "a CLC is refused by name, and the whole job is saved"


def run() -> int:
    line = Line("federation_clusters", __doc__)
    for function in (alone, killed, whole, without_clusters, refusals, at_once, variables, interval):
        if line.quick and function is interval:
            continue
        line.case(function.__name__, function)
    for what in list(ENDS)[:1 if line.quick else None]:
        line.case(f"bonds: {what}", bonds)
    line.case("a launcher's exchange", launchers_exchange)
    line.case("ranks of one launcher", ranks)
    return line.finish()


if __name__ == "__main__":
    main(run)
