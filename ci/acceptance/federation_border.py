"""FED_BORDER: pairs whose ends are in two clusters. Nothing leaves before CLC 1; each cluster is checkpointed alone while messages cross; what a
CLC's number forces is taken by itself; a set of the whole job restarts with its borders; images hold no memory that logs keep for later. Every byte is checked by the pair."""
import os
import pathlib
import signal

from common import Case, Line, check, main
from federation_clusters import Federation
from jobs import Job, free_port, listening, wait_for

ENDLESS = 10**9


class Across(Federation):
    """`pairs`: (size, window) of each; its server is in A, its client in B. Both ways talk, so the policy is `index`: with `paper` each
    message would force a CLC."""
    WORDS: tuple = ()  # more of shadowib-pingpong's

    def __init__(self, case: Case, pairs: tuple, iterations: int, *options: str):  # pylint: disable=super-init-not-called
        self.case, self.job = case, Job(case, "fed")
        self.pingpong = case.line.program("shadowib-pingpong")
        options = ("--policy", "index", *options)
        self.programs = {}
        for number, (size, window) in enumerate(pairs):
            port = free_port()
            words = [self.pingpong, "-p", str(port), "-s", str(size), "-w", str(window), "-n", str(iterations), *self.WORDS]
            server = self.run(f"server-{number}", [*words, "--server"], "--cluster", "A", *options)
            wait_for("the server to listen", lambda server=server, port=port: server.ended() or listening(port), 30)
            client = self.run(f"client-{number}", [*words, "localhost"], "--cluster", "B", *options)
            self.job.programs += [server, client]
        self.programs = {"A": self.job.programs[0::2], "B": self.job.programs[1::2]}
        if iterations == ENDLESS:
            self.job.await_members(2 * len(pairs), "all pairs", 120)
            self.await_traffic("A", "B")

    def equal(self) -> tuple[int, int] | None:
        a, b = self.cluster("A"), self.cluster("B")
        return (a["sn"], b["sn"]) if a["sn"] == b["sn"] else None


def across(pairs: tuple):
    def run(case: Case) -> str:
        fed, count = Across(case, pairs, ENDLESS), 2 if case.line.quick else 20
        check(fed.cluster("A")["sn"] >= 1 and fed.cluster("B")["sn"] >= 1, "messages crossed before CLC 1")
        for number in range(count):
            name = "AB"[number % 2]
            before = fed.cluster(name)["sn"]
            fed.take(name)
            # The other one takes its number, since messages of the first one come.
            wait_for("the other cluster's forced CLC", lambda before=before: (sns := fed.equal()) and sns[0] > before, 60, 0.1)
            fed.check_alive()
        a, b = fed.cluster("A"), fed.cluster("B")
        check(a["forced"] + b["forced"] >= count, f"too few were forced: {a}, {b}")
        return f"{count} CLCs asked for, {a['forced']} and {b['forced']} forced"
    return run


def whole(case: Case) -> str:
    fed = Across(case, ((4096, 8), (1 << 20, 2)), ENDLESS, "--hold", "10")
    fed.take("B")
    path = fed.command("checkpoint", "fed", "--kill").stdout.strip().splitlines()[-1]
    for program in fed.job.programs:
        program.process.wait(30)
    fed.job.sets, fed.job.programs = [path], []
    fed.job.restart(path)
    wait_for("the restarted members", lambda: len(fed.job.members()) == 4, 60)
    fed.await_traffic("A", "B")
    fed.take("A")
    wait_for("the other cluster's forced CLC", fed.equal, 60, 0.1)
    fed.await_traffic("A", "B")
    return "restarted, and checkpointed again by clusters"


def to_the_end(case: Case) -> str:
    """CLCs of both all the time; then all messages have come, each byte right."""
    fed = Across(case, ((4096, 8),), 20_000 if case.line.quick else 500_000)
    taken = 0
    while not any(program.ended() for program in fed.job.programs):
        taken += fed.take("AB"[taken % 2], code=None).returncode == 0  # refused while a forced one is under way, and at the end
    fed.job.finish(120)
    return f"{taken} CLCs asked for meanwhile"


def images(case: Case) -> str:
    """A log that was begun anew has little in it and keeps the rest of its memory: an image has no more than what is in it, and the program's 82 MiB."""
    mib = 1 << 20
    fed = Across(case, ((mib, 4),), ENDLESS)
    b = next(m["pid"] for m in fed.status()["members"] if m["cluster"] == "B")
    wait_for("a log to be begun anew", lambda: "is begun anew" in (case.work / "shadowib.log").read_text(errors="replace"), 120)

    def nearly_empty() -> int | None:
        os.kill(b, signal.SIGSTOP)  # A soon waits for B
        if (used := fed.cluster("A")["log_bytes"]) < 64 * mib:
            return used
        os.kill(b, signal.SIGCONT)
        return None
    used = wait_for("a log that is nearly empty", nearly_empty, 120, 0.1)
    fed.take("A")
    path = pathlib.Path(next(s for s in reversed(fed.sets()) if s["cluster"] == "A")["path"])
    size = sum(image.stat().st_size for image in path.glob("*.img"))
    os.kill(b, signal.SIGCONT)
    fed.await_traffic("A", "B")
    fed.check_alive()
    check(size < used + 128 * mib, f"an image of {size / mib:.0f} MiB, {used / mib:.0f} of the log")
    return f"an image of {size / mib:.0f} MiB, {used / mib:.0f} of the log"


def run() -> int:
    line = Line("federation_border", __doc__)
    if not line.quick:
        line.case("small messages", across(((4096, 8), (64, 16))))
    line.case("large messages", across(((1 << 20, 4),)))
    line.case("whole job", whole)
    line.case("to the end", to_the_end)
    line.case("images", images)
    return line.finish()


if __name__ == "__main__":
    main(run)
