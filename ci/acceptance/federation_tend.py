"""Clusters that `shadowib tend` looks after: one that loses processes comes back by itself, again and again, while the other one is never stopped; the
command gives up where it says so, and ends with the job's result; a job goes on without it."""
import json
import os
import pathlib
import signal

from common import Case, Line, check, main
from federation_clusters import CLUSTERS
from federation_restart import Recovered, find_inside
from jobs import BUSY, NOT_FOUND, Program, wait_for

USAGE, GIVEN_UP, SAVED = 2, 70, 75


# A member without a device, which ends when it is told to.
WAITER = "import os, time\nwhile not os.path.exists('over'): time.sleep(0.05)"


class Tended(Recovered):
    def __init__(self, case: Case, clusters: tuple = CLUSTERS):
        super().__init__(case, clusters)
        case.cleanups.append(self.end_orphans)

    def end_orphans(self, _failed: bool = False):
        """Commands that have outlived the one that has started them."""
        for entry in pathlib.Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                if os.fsencode(self.job.directory) in words and b"--job" in words:
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue

    def start_waiter(self, cluster: str):
        before = len(self.job.members())
        waiter = self.run(f"waiter-{cluster}", ["python3", "-c", WAITER], "--cluster", cluster, "--join-children")
        self.programs[cluster] = (waiter,)
        wait_for(f"the member of {cluster}", lambda: len(self.job.members()) > before, 60, 0.1)

    def tend(self, *options: str) -> Program:
        argv = [self.job.shadowib, "tend", "fed", "--json", "--dir", str(self.job.directory), *options]
        program = self.job._spawn(f"tend{len(self.recoveries)}", argv)  # pylint: disable=protected-access
        self.recoveries.append(program)
        wait_for("the command to watch", lambda: program.ended() or self.told(program, "watching"), 30, 0.05)
        return program

    @staticmethod
    def told(program: Program, event: str) -> list[dict]:
        lines = [line for line in program.text().splitlines() if line.startswith("{") and line.endswith("}")]
        return [told for line in lines if (told := json.loads(line)).get("event") == event]

    def await_event(self, program: Program, event: str, count: int = 1):
        wait_for(f"{count} times {event}", lambda: program.ended() or len(self.told(program, event)) >= count, 90, 0.05)
        check(len(self.told(program, event)) >= count, f"tend ended with {program.process.returncode}: {program.text()[-3000:]}")

    def kill_one(self, tender: Program, cluster: str):
        """A process that has come back, in the namespace that its command has made."""
        pid = next(m["pid"] for m in self.status()["members"] if m["cluster"] == cluster and m["alive"])
        os.kill(find_inside(tender.process.pid, pid), signal.SIGKILL)


def comes_back(case: Case) -> str:
    fed, count = Tended(case, clusters=()), 2 if case.line.quick else 5
    for cluster in CLUSTERS:
        fed.start_waiter(cluster)
    before = fed.identity("A")
    fed.take("B")
    # Who looks after one cluster keeps others from the whole job; who looks after another cluster may come.
    one, other = fed.tend("--cluster", "A"), fed.tend("--cluster", "B")
    check(not one.ended() and not other.ended(), f"one keeps the other one off: {one.text()} {other.text()}")
    for words in (["tend", "fed"], ["supervise", "--job", "fed", "--dir", str(fed.job.directory), "--", "true"]):
        check("is looked after already" in fed.command(*words, code=BUSY).stderr, f"{words} may come beside it")
    for tender in (one, other):
        tender.process.send_signal(signal.SIGTERM)
        check(tender.process.wait(30) == 128 + signal.SIGTERM, f"tend ended with {tender.process.returncode}: {tender.text()}")
    tender = fed.tend()
    for number in range(1, count + 1):
        if number == 1:
            fed.kill("B")
        else:
            fed.take("B")  # or it would count as failing again and again
            fed.kill_one(tender, "B")
        fed.await_event(tender, "recovered", number)
        check(fed.settled("B")["incarnation"] == number + 1, f"after {number} recoveries B is {fed.cluster('B')}")
        check(fed.identity("A") == before and fed.cluster("A")["stops"] == 0, "A was touched")
    check([e["clusters"] for e in fed.told(tender, "failure")] == [["B"]] * count, f"it tells of {fed.told(tender, 'failure')}")
    # Somebody has the job already.
    for words in (["tend", "fed"], ["tend", "fed", "--cluster", "B"]):
        check("supervised already" in fed.command(*words, code=BUSY).stderr, f"{words} may come beside it")
    # The result: that of processes which ended in an orderly way.
    (case.work / "over").touch()
    tender.process.wait(60)
    check(tender.process.returncode == 0 and fed.told(tender, "ended"), f"tend ended with {tender.process.returncode}: {tender.text()[-3000:]}")
    return f"B came back {count} times, A was never stopped, and the result is 0"


def both(case: Case) -> str:
    """Both fail; only the first member of one, and all of the other."""
    fed = Tended(case)
    for cluster in CLUSTERS:
        fed.take(cluster)
    tender = fed.tend()
    fed.programs["A"][0].process.kill()
    fed.kill("B")
    def all_back():
        return all(fed.cluster_of_status(name)["running"] and fed.cluster_of_status(name)["incarnation"] >= 2 for name in CLUSTERS)
    wait_for("both clusters", lambda: tender.ended() or all_back(), 90, 0.2)
    check(not tender.ended(), f"tend ended with {tender.process.returncode}: {tender.text()[-3000:]}")
    fed.await_traffic(*CLUSTERS)
    # Asked to end, it leaves the job alone; the next one finds it.
    tender.process.send_signal(signal.SIGTERM)
    tender.process.wait(30)
    check(tender.process.returncode == 128 + signal.SIGTERM and fed.told(tender, "stopped"), f"tend ended with {tender.process.returncode}")
    fed.await_traffic(*CLUSTERS)
    second = fed.tend()
    fed.command("checkpoint", "fed", "--kill")
    second.process.wait(60)
    check(second.process.returncode == SAVED and not fed.told(second, "failure"), f"tend ended with {second.process.returncode}: {second.text()}")
    return "back; the job outlives the command, and a job that is saved and ended is left alone"


def given_up(case: Case) -> str:
    fed = Tended(case)
    if not case.line.quick:
        # It fails again and again without a newer checkpoint.
        fed.start_waiter("C")
        fed.take("C")
        second = fed.tend("--cluster", "C", "--restarts", "3")
        fed.kill("C")
        for number in (1, 2):
            fed.await_event(second, "recovered", number)
            fed.kill_one(second, "C")
        second.process.wait(90)
        check(second.process.returncode == GIVEN_UP and len(fed.told(second, "failure")) == 3,
              f"tend ended with {second.process.returncode}: {second.text()}")
        fed.await_traffic("A")
    # Without a checkpoint there is nothing to go back to, now or later, for this cluster and any other that is dead.
    first = fed.tend("--cluster", "B")
    fed.kill("B")
    first.process.wait(90)
    check(first.process.returncode == GIVEN_UP and "no line" in first.text(), f"tend ended with {first.process.returncode}: {first.text()}")
    fed.await_traffic("A")
    for words, code in ((["tend", "none"], NOT_FOUND), (["tend", "fed", "--cluster", "X"], NOT_FOUND), (["tend", "fed", "--cluster", "a.b"], USAGE)):
        fed.command(*words, code=code)
    return "without a checkpoint" if case.line.quick else "after 3 failures without a newer checkpoint, and without one"


def run() -> int:
    line = Line("federation_tend", __doc__)
    for function in (comes_back, both, given_up):
        if line.quick and function is both:
            continue
        line.case(function.__name__, function)
    return line.finish()


if __name__ == "__main__":
    main(run)
