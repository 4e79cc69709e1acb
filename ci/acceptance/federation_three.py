"""FED9: three clusters in a row, A to B and B to C, under the policies `vector` and `index`. Clusters are killed at random moments, one, two or all of
them. Exactly those go back that `line` has named, by one command, the others are never touched, and each message comes once."""
import contextlib
import os
import signal
import time

from common import Case, Line, check, main
from federation_restart import PROCESS_FAILED, Recovered, find_inside
from jobs import free_port, wait_for

CLUSTERS = ("A", "B", "C")
# Whom ci/acceptance/programs/border_mix.c's roles are in: each of a0 and a1 sends to each of b0 and b1.
FLOWS = (("A", "B"), ("B", "C"))


class Row(Recovered):
    def __init__(self, case: Case, policy: str):
        super().__init__(case, clusters=())
        self.started = {name: [] for name in CLUSTERS}
        self.stop = case.work / "stop"
        flows = [[self.start(flow, role, ports, policy) for role in ("a0", "a1", "b0", "b1")]
                 for flow in range(len(FLOWS)) if (ports := [str(free_port()) for _ in range(4)])]
        self.senders, self.receivers = [f[:2] for f in flows], [f[2:] for f in flows]
        self.programs = {name: tuple(started) for name, started in self.started.items()}
        self.random = case.random()
        wait_for("all members", lambda: len(self.job.members()) == 8, 120)
        self.await_messages()

    def start(self, flow: int, role: str, ports: list[str], policy: str):
        cluster = FLOWS[flow]["ab".index(role[0])]
        seed = f"0x{int(self.case.line.seed, 16) + flow:x}"
        words = [self.case.line.program("ci_border_mix"), role, *ports, seed, str(self.case.work / f"ask{flow}"), str(self.stop)]
        program = self.run(f"{role}-{flow}", words, "--cluster", cluster, "--policy", policy)
        self.job.programs.append(program)
        self.started[cluster].append(program)
        return program

    def await_messages(self):
        """More of both flows. Members of C only receive."""
        self.await_traffic("A", "B")

    def await_traffic(self, *clusters: str):
        """Of each cluster: the members of B that receive send nothing."""
        def sent() -> dict[str, int]:
            return {name: sum(self.counters(name).values()) for name in clusters}
        before = sent()
        wait_for("traffic of all clusters", lambda: (now := sent()) and all(now[name] > before[name] for name in clusters), 120)

    def take_all(self):
        """Behind what no log has. Hosts' clocks may differ by a second."""
        time.sleep(1.5)
        for name in self.random.sample(CLUSTERS, len(CLUSTERS)):
            self.take_clc(name)

    def round(self) -> tuple[int, int]:
        """How many clusters have failed, and how many have gone back."""
        self.take_all()
        self.await_messages()
        if self.random.random() < 0.5:
            self.take_clc(self.random.choice(CLUSTERS))
        time.sleep(self.random.random())
        failed = self.random.sample(CLUSTERS, self.random.choice((1, 1, 1, 2, 3)))
        before = {name: self.identity(name) for name in CLUSTERS}
        self.kill(*failed)
        places = self.places("--fail", ",".join(failed))
        back = [name for name in CLUSTERS if not places[name]["stays"]]
        self.case.note(f"{', '.join(failed)} killed; {', '.join(back)} go back")
        command = self.recover()
        wait_for(f"{back} to come back", lambda: command.ended() or "run again" in command.text(), 90, 0.05)
        check("run again" in command.text(), f"the recovery ended with {command.process.returncode}: {command.text()[-3000:]}")
        for name in back:
            self.programs[name] = (command,)
        gone = [name for name in CLUSTERS if self.identity(name) != before[name]]
        check(gone == back, f"{failed} failed, {back} were to go back, and {gone} have other processes")
        self.await_messages()
        return len(failed), len(back)

    def pid(self, member: dict) -> int:
        """Members that have come back are in a namespace that their command has made."""
        command = self.programs[member["cluster"]][0]
        return find_inside(command.process.pid, member["pid"]) if command in self.recoveries else member["pid"]

    def identity(self, cluster: str) -> list:
        return [self.pid(m) for m in self.status()["members"] if m["cluster"] == cluster]

    def kill(self, *clusters: str):
        """Not the command that has brought them back, perhaps with others."""
        for pid in [self.pid(m) for m in self.status()["members"] if m["cluster"] in clusters]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(f"the end of {clusters}", lambda: not any(m["alive"] for m in self.status()["members"] if m["cluster"] in clusters), 30, 0.05)

    def finish(self) -> int:
        self.stop.write_text("")
        for programs in self.programs.values():
            for program in programs:
                wait_for(f"the end of {program.role}", program.ended, 120)
                check(program.process.returncode in (0, PROCESS_FAILED), f"{program.role} ended with {program.process.returncode}: {program.text()[-3000:]}")
        total = 0
        for senders, receivers in zip(self.senders, self.receivers):
            sent, received = [[[int(n) for n in program.text().split()[1:5]] for program in side] for side in (senders, receivers)]
            for i in range(2):
                for j in range(2):
                    check(sent[i][2 * j:2 * j + 2] == received[j][2 * i:2 * i + 2], f"sent were {sent}, and received {received}")
            total += sum(map(sum, sent))
        return total


def kills(policy: str):
    def run(case: Case) -> str:
        row, count = Row(case, policy), 2 if case.line.quick else 50
        rounds = [row.round() for _ in range(count)]
        further = sum(back > failed for failed, back in rounds)
        return f"{count} times killed, {further} times more clusters went back than had failed; {row.finish()} messages"
    return run


def run() -> int:
    line = Line("federation_three", __doc__)
    for policy in ("vector", "index"):
        line.case(policy, kills(policy))
    return line.finish()


if __name__ == "__main__":
    main(run)
