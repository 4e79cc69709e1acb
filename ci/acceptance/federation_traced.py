"""FED2: jobs of two clusters write down what happens at their border (SHADOWIB_TRACE), and `fedsim --check` judges it, under each policy: every
message once and in order, no CLC too many, none too few. With one message at a time a job takes exactly the CLCs that the simulator takes; one a
second, or in the short sample one when the last one has come."""
import collections
import json
import subprocess
import time

from common import Case, Line, check, main
from federation_clusters import Federation
from jobs import Job, free_port, wait_for

POLICIES = ("paper", "vector", "index")
CLUSTERS = ("A", "B")


class Trace:
    """The file that all members append to. Lines are whole as soon as they are there."""

    def __init__(self, case: Case, path):
        self.fedsim, self.path = case.line.program("fedsim"), path
        self.seen, self.at = [], 0

    def events(self) -> list[dict]:
        """All that there are so far."""
        if self.path.exists():
            with open(self.path, encoding="ascii") as trace:
                trace.seek(self.at)
                for line in trace:
                    if not line.endswith("\n"):
                        break
                    self.at += len(line)
                    self.seen.append(json.loads(line))
        return self.seen

    def count(self, event: str) -> int:
        return sum(e["event"] == event for e in self.events())

    def forced(self, cluster: int) -> list[dict]:
        """Its forced CLCs, as members tell of them."""
        return [e for e in self.events() if e["event"] == "commit" and e["forced"] and e["cluster"] == cluster]

    def is_delivered(self, sender: int, sn: int) -> bool:
        """A message that the sender has posted behind CLC `sn`."""
        of_sender = [e for e in self.events() if sender == (e["cluster"] if e["event"] == "post" else e.get("from"))]
        posted = {(e["flow"], e["number"]) for e in of_sender if e["event"] == "post" and e["sn"] >= sn}
        return any((e["flow"], e["number"]) in posted for e in of_sender if e["event"] == "deliver")

    def check(self, path=None) -> subprocess.CompletedProcess:
        return subprocess.run([self.fedsim, "--check", str(path or self.path)], capture_output=True, text=True, check=False)

    def judge(self) -> str:
        """What `fedsim --check` says, which has to be that all is right."""
        done = self.check()
        check(done.returncode == 0, f"fedsim --check says: {done.stdout[-3000:]}{done.stderr}")
        return done.stdout.strip()

    def clcs(self) -> list[tuple]:
        """Each CLC once: its members all tell of it."""
        told = dict.fromkeys((e["cluster"], e["sn"], e["forced"]) for e in self.events() if e["event"] == "commit")
        return list(told)

    def check_that_it_is_judged(self, case: Case):
        """Without a CLC, or without what was held for one, it is wrong."""
        events = self.events()
        clc = case.random("changes").choice([e for e in events if e["event"] == "commit" and e["forced"]])
        # Messages that were held for it: the last ones of its cluster, under the SN before.
        before = max((e["sn"] for e in events if e["event"] == "hold" and e["cluster"] == clc["cluster"] and e["sn"] < clc["sn"]))
        for what, sn in (("hold", before), ("commit", clc["sn"])):
            left = [e for e in events if (e["event"], e.get("cluster"), e.get("sn")) != (what, clc["cluster"], sn)]
            check(len(left) < len(events), f"there is no {what} to leave out")
            changed = self.path.with_suffix(f".without_{what}")
            changed.write_text("".join(json.dumps(e) + "\n" for e in left), encoding="ascii")
            check(self.check(changed).returncode != 0, f"a trace without a {what} is judged right: {changed}")


class Traced(Federation):
    def __init__(self, case: Case, policy: str):  # pylint: disable=super-init-not-called
        self.case, self.job, self.policy = case, Job(case, "fed"), policy
        self.trace = Trace(case, case.work / "trace.jsonl")
        self.started = {name: [] for name in CLUSTERS}

    def start(self, cluster: str, role: str, words: list[str]):
        prefix = [self.job.shadowib, "run", "--job", "fed", "--dir", str(self.job.directory), "--close-inherited", "--cluster", cluster, "--policy",
                  self.policy, "--hold", "1000", "--"]
        program = self.job._spawn(role, prefix + words, {"SHADOWIB_TRACE": str(self.trace.path)})  # pylint: disable=protected-access
        self.job.programs.append(program)
        self.started[cluster].append(program)
        self.programs = {name: tuple(started) for name, started in self.started.items()}

    def force(self):
        """A takes CLCs until a message behind one has forced B's: under `index` B may have more CLCs than A, which then come first."""
        a, b = (self.cluster(name)["index"] for name in CLUSTERS)
        before = len(self.trace.forced(b))
        while len(self.trace.forced(b)) == before:
            self.take_clc("A")
            sn = max(e["sn"] for e in self.trace.events() if e["event"] == "commit" and e["cluster"] == a)
            wait_for("a message behind A's CLC", lambda sn=sn: self.trace.is_delivered(a, sn), 60)

    def finish(self, stop) -> str:
        stop.write_text("")
        for program in self.job.programs:
            wait_for(f"the end of {program.role}", program.ended, 300)
            check(program.process.returncode == 0, f"{program.role} ended with {program.process.returncode}: {program.text()[-3000:]}")
        self.job.programs = []
        return self.trace.judge()


def messages(policy: str):
    """Of each kind and in all directions, while CLCs of both clusters are taken at random moments."""
    def run(case: Case) -> str:
        fed, wanted, random = Traced(case, policy), 1000 if case.line.quick else 10_000, case.random()
        ports, ask, stop = [str(free_port()) for _ in range(4)], case.work / "ask", case.work / "stop"
        for role in ("a0", "a1", "b0", "b1"):
            fed.start(role[0].upper(), role, [case.line.program("ci_border_mix"), role, *ports, case.line.seed, str(ask), str(stop)])
        wait_for("all members", lambda: len(fed.job.members()) == 4, 120)
        fed.force()
        asked = 0
        while fed.trace.count("deliver") < wanted:
            fed.take_clc(random.choice(CLUSTERS))
            if asked == 0 or all(ask.with_name(f"ask.{role}").exists() and int(ask.with_name(f"ask.{role}").read_text() or 0) == asked
                                 for role in ("a0", "a1", "b0", "b1")):
                asked += 1
                with open(ask, "a", encoding="ascii") as to:
                    to.write(f"{asked} {'reads' if random.random() < 0.3 else 'all'}\n")
            time.sleep(random.random())
        said = fed.finish(stop)
        fed.trace.check_that_it_is_judged(case)
        return said
    return run


class Simulated:
    """What fedsim does with a job of two clusters: its posts and CLCs, in their order."""

    def __init__(self, case: Case, policy: str, seconds: int):
        def write(name: str, value: dict) -> str:
            path = case.work / f"{name}.json"
            path.write_text(json.dumps(value), encoding="ascii")
            return str(path)
        network, many = {"latency_us": 10, "megabytes_per_s": 80}, seconds * 2 // 3
        trace = case.work / "simulated.jsonl"
        done = subprocess.run([case.line.program("fedsim"), "--policy", policy, "--seed", str(case.random("seed").randrange(1, 10**6)), "--trace", "3",
                               "--trace-file", str(trace), "--topology",
                               write("topology", {"clusters": [{"nodes": 2, "network": network}] * 2, "between": [[network]], "mtbf_s": None}),
                               "--application", write("application", {"total_s": seconds, "message_bytes": 64, "messages": [[0, many], [seconds - many, 0]]}),
                               "--timers", write("timers", {"clc_s": [7, 11], "in_step": True, "clc_takes_s": 0, "collection_s": None})],
                              capture_output=True, text=True, check=False)
        check(done.returncode == 0, f"fedsim: {done.stdout}{done.stderr}")
        self.events = [json.loads(line) for line in trace.read_text(encoding="ascii").splitlines()]
        self.clcs = [(e["cluster"], e["sn"], e["forced"]) for e in self.events if e["event"] == "commit"]


def one_at_a_time(policy: str, pause_s: float):
    """The job posts the messages that the simulator has posted, and takes the CLCs that it has taken unforced, in their order."""
    def run(case: Case) -> str:
        fed, simulated = Traced(case, policy), Simulated(case, policy, 15 if case.line.quick else 100)
        asks = [case.work / f"ask{node}" for node in range(2)]
        ports = [str(free_port()) for _ in asks]
        for number, side in enumerate("ab"):  # one after the other, so that indices are the simulator's
            for node in range(2):
                fed.start(side.upper(), f"{side}{node}", [case.line.program("ci_border_steps"), side, ports[node], str(asks[node])])
            fed.job.await_members(2 * number + 2, f"side {side}", 120)
        wait_for("the border", lambda: all(m["state"] and len(m["state"]["objects"]["queue_pairs"]) == 1 for m in fed.status()["members"]), 60)
        sent, last = collections.Counter(), 0.0
        for event in simulated.events:
            if event["event"] == "commit" and not event["forced"]:
                fed.take_clc(CLUSTERS[event["cluster"]])
            if event["event"] != "post":
                continue
            time.sleep(max(0.0, last + pause_s - time.monotonic()))
            last = time.monotonic()
            flow = event["member"], "ab"[event["cluster"]]
            sent[flow] += 1
            asks[flow[0]].with_suffix(f".{flow[1]}").write_text(str(sent[flow]), encoding="ascii")
            wait_for("the message", lambda: fed.trace.count("deliver") == sent.total(), 60)
        asks[1].with_suffix(".stop").write_text("")
        said, real = fed.finish(asks[0].with_suffix(".stop")), fed.trace.clcs()
        check(real == simulated.clcs, f"the simulator takes {simulated.clcs}, and the job took {real}")
        return f"{sum(forced for _, _, forced in real)} of {len(real)} CLCs forced, as simulated; {said}"
    return run


def run() -> int:
    line = Line("federation_traced", __doc__)
    for policy in POLICIES:
        line.case(f"{policy}, messages", messages(policy))
    for policy in POLICIES:
        line.case(f"{policy}, one {'at a time' if line.quick else 'a second'}", one_at_a_time(policy, 0.0 if line.quick else 1.0))
    return line.finish()


if __name__ == "__main__":
    main(run)
