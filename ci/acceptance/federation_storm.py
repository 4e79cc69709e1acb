"""FED_STORM: storms of random verbs (shadowib-storm), one in each of two clusters. B is checkpointed alone and killed at random moments, goes back to its
last CLC, and A is never stopped. A ledger knows every byte: nothing is lost, doubled, early, corrupted or reordered, and nothing hangs.
A storm across clusters is no case: its processes keep sockets to each other, so no cluster can be checkpointed alone."""
import json
import pathlib
import random
import time

from common import Case, Failure, Line, check, main
from federation_clusters import CLUSTERS
from federation_restart import Recovered
from jobs import REFUSED, wait_for
from storms import FAULTS

PROCESSES, MOST_REFUSED, MOST_IDLE_S = 2, 3, 300


class Storms(Recovered):
    def __init__(self, case: Case):
        super().__init__(case, clusters=())
        self.rng, self.refusals = random.Random(case.random().getrandbits(48)), []
        self.areas = {name: case.work / f"area-{name}" for name in CLUSTERS}
        for cluster, area in self.areas.items():
            area.mkdir()
            seed = self.rng.getrandbits(48) | 1
            for rank in range(PROCESSES):
                words = [case.line.program("shadowib-storm"), "--seed", str(seed), "--processes", str(PROCESSES), "--area", str(area), "--rank", str(rank),
                         "--transports", "rc"]
                self.job.programs.append(self.run(f"{cluster}{rank}", words, "--cluster", cluster))
            self.programs[cluster] = tuple(self.job.programs[-PROCESSES:])
        self.job.await_members(2 * PROCESSES, "both clusters")
        self.await_moves(*CLUSTERS)

    def operations(self, *clusters: str) -> list[int]:
        def read(path: pathlib.Path) -> int:
            text = path.read_text().strip() if path.exists() else ""
            return int(text) if text.isdigit() else 0
        return [read(self.areas[name] / f"progress-{rank}") for name in clusters for rank in range(PROCESSES)]

    def await_moves(self, *clusters: str):
        before = self.operations(*clusters)

        def moved():
            self.check_no_fault()
            return all(now > then for now, then in zip(self.operations(*clusters), before))
        wait_for(f"all processes of {clusters} to go on", moved, 120, 0.01)

    def check_no_fault(self):
        failed = [area for area in self.areas.values() if (area / "failed").exists()]
        check(not failed, f"a process has found a fault:\n{self.said()}")

    def said(self) -> str:
        lines = [line for program in self.job.everything for line in program.text().splitlines() if line.startswith("storm ")]
        return "\n".join(lines[:12])

    def try_clc(self, cluster: str) -> bool:
        result = self.take(cluster, code=None)
        if result.returncode == REFUSED:
            self.refusals.append(result.stderr.strip())
            check(len(self.refusals) <= MOST_REFUSED, "too many CLCs were refused:\n" + "\n".join(self.refusals))
            return False
        check(result.returncode == 0, f"a CLC of {cluster} ended with {result.returncode}: {result.stderr}\n{self.said()}")
        return True

    def end(self) -> str:
        for area in self.areas.values():
            (area / "stop").touch()
        operations, since = self.operations(*CLUSTERS), time.monotonic()
        while not all(program.ended() for programs in self.programs.values() for program in programs):
            time.sleep(0.05)
            if (now := self.operations(*CLUSTERS)) != operations:
                operations, since = now, time.monotonic()
            if time.monotonic() - since > MOST_IDLE_S:
                raise Failure(f"the processes neither end nor go on:\n{self.said()}")
        codes = {program.role: program.process.returncode for programs in self.programs.values() for program in programs}
        check(not any(codes.values()), f"the processes ended with {codes}:\n{self.said()}")
        reports = [json.loads((self.areas[name] / f"report-{rank}.json").read_text()) for name in CLUSTERS for rank in range(PROCESSES)]
        faults = {fault: sum(report["faults"][fault] for report in reports) for fault in FAULTS}
        check(not any(faults.values()), f"faults: {faults}\n{self.said()}")
        return f"{sum(operations)} operations" + "".join(f"; refused: {reason}" for reason in sorted(set(self.refusals)))


def within(case: Case) -> str:
    fed = Storms(case)
    before, clcs, kills = fed.identity("A"), 0, 0
    want_clcs, want_kills = (4, 2) if case.line.quick else (200, 50)
    while clcs < want_clcs or kills < want_kills:
        time.sleep(fed.rng.uniform(0, 0.3))
        fed.check_no_fault()
        kill = clcs > 0 and kills < want_kills and fed.rng.random() < want_kills / (want_clcs + want_kills)
        if kill or clcs >= want_clcs:
            fed.kill("B")  # a command that has taken it back takes its processes along
            fed.come_back("B", moves=False)
            kills += 1
        elif fed.try_clc("B"):
            clcs += 1
            fed.command("gc", "fed")
        if fed.rng.random() < 0.8:
            fed.await_moves(*CLUSTERS)
    a = fed.cluster("A")
    check(fed.identity("A") == before and a["stops"] == 0, f"A was touched: {a}")
    return f"{clcs} CLCs of B, {kills} times killed and back; A was never stopped; {fed.end()}"


def run() -> int:
    line = Line("federation_storm", __doc__)
    line.case("within", within)
    return line.finish()


if __name__ == "__main__":
    main(run)
