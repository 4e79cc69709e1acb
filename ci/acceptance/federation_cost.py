"""FED7: what a federation costs while nothing fails. Inside a cluster a message needs at most 1 % more instructions than in a job without clusters,
from post_send to the completion that the peer polls. Over a border half a round trip of 64 bytes takes at most 5 % and 0.3 us more, and messages of
1 MiB have 45 % of the bandwidth of a bare TCP stream over loopback, and 95 % over a link of 10 Gbit/s. While a message is held for 200 ms the
helper thread runs less than 2 ms. Times are compared by pairs, right after each other; nothing is judged where they scatter. The short sample judges
no times but the helper's: instructions are counted there, over the border, too."""
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

from common import ROOT, Case, Line, Skip, check, main
from federation_border import ENDLESS, Across
from federation_restart import take_lock
from jobs import Job, wait_for
from spaces import ip

sys.path.insert(0, str(ROOT / "perftest"))
import pairs  # pylint: disable=wrong-import-position

MOST_MORE = 0.01
MESSAGES = {"64 bytes": ["--bytes", "64"], "64 bytes inline": ["--bytes", "64", "--inline"], "4096 bytes": ["--bytes", "4096"]}
# Over a border: what was measured and a twentieth. A request is copied into the log, with its times of leaving and completion.
BORDER_MORE = {"64 bytes": 1330, "4096 bytes": 1752}


def instructions(case: Case, words: list[str]) -> float:
    done = subprocess.run(["python3", "-B", str(ROOT / "perftest" / "path"), "--build", str(case.line.build), "--json", *words],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"perftest/path {' '.join(words)}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    return json.loads(done.stdout)["post_to_completion"]


def need_callgrind():
    if not shutil.which("valgrind"):
        raise Skip("valgrind is not installed: instructions are counted by its callgrind")


def inside(case: Case) -> str:
    need_callgrind()
    words = MESSAGES[case.name.removeprefix("inside a cluster, ")]
    without, within = instructions(case, words), instructions(case, [*words, "--cluster"])
    case.figures = {"without": without, "within": within}
    check(within <= without * (1 + MOST_MORE), f"{within:.0f} instructions inside of a cluster, {without:.0f} without clusters")
    return f"{within:.0f} instructions inside of a cluster, {without:.0f} without clusters"


def over_border(case: Case) -> str:
    need_callgrind()
    what = case.name.removeprefix("over a border, instructions of ")
    words = MESSAGES[what]
    without, across = instructions(case, words), instructions(case, [*words, "--border"])
    case.figures = {"without": without, "across": across}
    said = f"{across - without:.0f} instructions more than {without:.0f} without clusters, at most {BORDER_MORE[what]} may be"
    check(across - without <= BORDER_MORE[what], said)
    return said


# --- by the clock ---


class Place:
    """Where the two ends run: on this host, or in two network namespaces with a link between."""
    address = "127.0.0.1"  # of the first one

    def at(self, _end: str, argv: list[str]) -> list[str]:
        return argv


class Link(Place):
    """A namespace for each end, and a cable between them whose ends let through no more than `rate` (Gbit/s)."""
    address = "10.77.9.1"

    def __init__(self, case: Case):
        if os.geteuid() != 0:
            raise Skip("network namespaces need root")
        if not shutil.which("tc"):
            raise Skip("tc is not installed (package iproute2)")
        self.spaces = {end: f"shadowib-fed7-{os.getpid()}-{end}" for end in ENDS}
        case.cleanups.append(self.remove)
        for space in self.spaces.values():
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
        ip("link", "add", "cable", "netns", self.spaces["first"], "type", "veth", "peer", "name", "cable", "netns", self.spaces["second"])
        for number, space in enumerate(self.spaces.values(), 1):
            ip("-n", space, "addr", "add", f"10.77.9.{number}/24", "dev", "cable")
            ip("-n", space, "link", "set", "cable", "up")

    def shape(self, rate: float):
        for space in self.spaces.values():
            words = ["tc", "-n", space, "qdisc", "replace", "dev", "cable", "root", "tbf", "rate", f"{rate}gbit", "burst", "4mb", "limit", "32mb"]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Skip(f"this kernel cannot shape a link: {' '.join(words)}: {done.stderr.strip()}")

    def at(self, end: str, argv: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.spaces[end], *argv]

    def remove(self, _failed: bool = False):
        for space in self.spaces.values():
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


ENDS = ("first", "second")


@dataclasses.dataclass
class Speeds:
    """link_speed between two processes, again and again: microseconds of a message."""
    case: Case
    place: Place
    transport: str
    words: tuple  # latency or stream, bytes, count
    runs: int = 0

    def border(self) -> float:
        return self.measure("verbs", ("A", "B"))

    def without(self) -> float:
        return self.measure("verbs", ("", ""))

    def bare(self) -> float:
        return self.measure(self.place.address, None)

    def measure(self, over: str, clusters: tuple | None) -> float:
        self.runs += 1
        job = Job(self.case, f"speed{self.runs}", self.transport)
        program = self.case.line.program("link_speed")
        started = []
        # Not pinned: on Linux 6.18 the kernel's threads of a processor, which complete direct writes, get no turn
        # beside a pinned process that polls and wakes its helper. Checkpoints would wait for them.
        for number, end in enumerate(ENDS):
            argv = [program, end, f"meeting{self.runs}", over, *self.words]
            if clusters is not None:
                # Both ends talk: under `paper` each answer would force a CLC.
                cluster = ["--cluster", clusters[number], "--policy", "index", "--hold", "1000"] if clusters[number] else []
                argv = [job.shadowib, "run", "--job", job.name, "--dir", str(job.directory), "--backend", "ib2tcp", "--close-inherited", *cluster, "--",
                        *argv]
            started.append(job._spawn(end, self.place.at(end, argv)))  # pylint: disable=protected-access
        job.programs = started
        for process in started:
            wait_for(f"the end of {process.role}", lambda process=process: any(p.ended() and p.process.returncode != 0 for p in started) or process.ended(), 120)
        check(all(p.ended() and p.process.returncode == 0 for p in started), "".join(f"{p.role}: {p.process.poll()}, {p.text()[-1500:]}\n" for p in started))
        shutil.rmtree(job.directory, ignore_errors=True)
        return float(started[0].text().splitlines()[-1])

    def compare(self, ours, theirs, usual: float | None = None) -> dict:
        """Pairs of the two, until they scatter little; see pairs.py. One of each in the short sample, which is not judged."""
        mine, its = [], []
        for _ in range(1 if self.case.line.quick else pairs.MOST):
            mine.append(ours())
            its.append(theirs())
            if pairs.settled(mine, its):
                break
        if self.case.line.quick:
            return {"ours": mine[0], "theirs": its[0], "verdict": "short", "reason": "the short sample judges no times"}
        judged = pairs.judge(mine, its, usual)
        return judged | {"ours": statistics.median(mine), "theirs": statistics.median(its), "all": [mine, its]}


def say_or_skip(case: Case, result: dict, said: str, holds: bool, goal: str) -> str:
    case.figures = result
    case.note(f"{said}; {result}")
    if result["verdict"] == "short":
        return f"{said}: not judged, {result['reason']}"
    if result["verdict"] != "ok":
        raise Skip(f"not judged: {result['reason']}; {said}")
    check(holds, f"{said}; {goal}")
    return f"{said} (quartiles of the ratio {result['low']:.2f} to {result['high']:.2f}, {result['pairs']} pairs); {goal}"


MOST_PART, MOST_US = 0.05, 0.3  # of half a round trip


def latency(case: Case) -> str:
    transport = case.name.split()[-1]
    speeds = Speeds(case, Place(), transport, ("latency", "64", "20000"))
    result = speeds.compare(speeds.border, speeds.without)
    most = result["theirs"] * (1 + MOST_PART) + MOST_US
    return say_or_skip(case, result, f"{result['ours']:.3f} us over a border, {result['theirs']:.3f} us without clusters", result["ours"] <= most,
                       f"at most {most:.3f} us may be")


MIB = 1 << 20


def gigabytes(us: float) -> str:
    return f"{MIB / us / 1000:.2f} GB/s"


def beside_bare(speeds: Speeds, least: float) -> str:
    result = speeds.compare(speeds.border, speeds.bare)
    part = result["theirs"] / result["ours"]
    return say_or_skip(speeds.case, result, f"{gigabytes(result['ours'])} over a border, {gigabytes(result['theirs'])} of a bare TCP stream: {part:.0%}",
                       part >= least, f"at least {least:.0%} has to be")


def loopback(case: Case) -> str:
    return beside_bare(Speeds(case, Place(), case.name.split()[-1], ("stream", str(MIB), "50" if case.line.quick else "2000")), 0.45)


RATES = (10, 5, 2.5, 1)  # Gbit/s: the first one that a bare stream fills here
FILLS = 0.9


def shaped(case: Case) -> str:
    link = Link(case)
    speeds = Speeds(case, link, "auto", ("stream", str(MIB), "50" if case.line.quick else "2000"))
    told = []
    for rate in RATES:
        link.shape(rate)
        gbits = MIB * 8 / speeds.bare() / 1000
        told.append(f"a bare stream has {gbits:.2f} of {rate} Gbit/s")
        if case.line.quick or gbits >= FILLS * rate:
            break
    else:
        raise Skip(f"no rate is filled here: {', '.join(told)}")
    return f"{', '.join(told)}; {beside_bare(speeds, 0.95)}"


# --- held messages ---

HELD_MS, MOST_HELPER_MS = 200, 2


class Sleeping(Across):
    """The programs sleep until a completion comes: all that moves is moved by the helper threads."""
    WORDS = ("-e",)


def helper_ms(pid: int) -> float:
    """Time on a processor of the process's helper thread so far."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "shadowib-helper":
            return int((task / "schedstat").read_text().split()[0]) / 1e6
    check(False, f"process {pid} has no helper thread")


def held(case: Case) -> str:
    fed = Sleeping(case, ((MIB, 4),), ENDLESS)
    b = wait_for("both clusters at one CLC", fed.equal, 60, 0.1)[1]
    pids = [m["pid"] for m in fed.status()["members"]]
    # Nobody takes a CLC of B meanwhile.
    epoch = next((fed.job.directory / "jobs" / "fed" / "alive").glob("*.ckpt0.turn")).name.split(".")[0]
    turn = take_lock(fed.job.directory / "jobs" / "fed" / "alive" / f"{epoch}.ckpt{fed.cluster('B')['index']}.turn")
    check(turn is not None, "B has a checkpoint under way")
    took = []
    try:
        fed.take("A")
        wait_for("a message that is held", lambda: fed.cluster_of_status("B").get("held", 0) > 0, 30)
        for _ in range(1 if case.line.quick else 20):
            before = [helper_ms(pid) for pid in pids]
            time.sleep(HELD_MS / 1000)
            took.append(max(helper_ms(pid) - at for pid, at in zip(pids, before)))
        check(fed.cluster_of_status("B")["held"] > 0 and fed.cluster("B")["sn"] == b, "it was not held all the time")
    finally:
        os.close(turn)
    wait_for("B's forced CLC", fed.equal, 60, 0.1)
    fed.check_alive()
    case.figures = {"helper_ms": took}
    check(max(took) < MOST_HELPER_MS, f"a helper ran {max(took):.2f} ms while a message was held for {HELD_MS} ms")
    return f"the helper of either side ran {max(took):.2f} ms at most while a message was held for {HELD_MS} ms, {len(took)} times"


def run() -> int:
    line = Line("federation_cost", __doc__)
    for name in list(MESSAGES)[:1 if line.quick else None]:
        line.case(f"inside a cluster, {name}", inside)
    for name in BORDER_MORE:
        line.case(f"over a border, instructions of {name}", over_border)
    for transport in ("shm", "tcp"):
        line.case(f"over a border, half a round trip, {transport}", latency)
        line.case(f"over a border, 1 MiB, loopback, {transport}", loopback)
    line.case("over a border, 1 MiB, a link of 10 Gbit per s", shaped)
    line.case("while a message is held", held)
    return line.finish()


if __name__ == "__main__":
    main(run)
