"""FED1, FED3, FED4 and FED5 with each of the four processes in a network namespace of its own: all that passes between two of them passes over TCP,
inside a cluster, too. A cluster that goes back is started by a remote shell, each process on its host; one that loses hosts goes on on others.
Needs root."""
import federation_alone
import federation_together
import federation_undisturbed
from common import Case, Line, check, main
from federation_alone import Mixed, Ordered
from jobs import Program, free_port, wait_for
from spaces import Spaces


SPARE = "spare"


class Apart:
    """Processes are named as their hosts are."""

    def __init__(self, case: Case, *args, **options):
        self.hosts = Spaces(case, [*(role for roles in self.ROLES.values() for role in roles), SPARE])
        self.agent, self.address = self.hosts.agent(), self.hosts.address(self.hosts.names[0])
        super().__init__(case, *args, **options)

    def place_of(self, role: str) -> str:
        """Others are pairs of servers and clients, in cluster A."""
        return role if role in self.hosts.names else self.hosts.names[role.startswith("client")]

    def at(self, role: str, argv: list[str]) -> list[str]:
        return self.hosts.at(self.place_of(role), argv)

    def listens(self, port: int) -> bool:
        return self.hosts.listens(self.hosts.names[0], port)

    def places_to_meet(self) -> list[str]:
        return [f"{self.hosts.address(role)}:{free_port()}" for role in self.ACCEPTS]

    def kill(self, *clusters: str):
        """All at once, whatever has started them."""
        self.hosts.kill([role for cluster in clusters for role in self.ROLES[cluster]])
        super().kill(*clusters)
        for program in self.begun:  # as one may that sees another one end
            if any(program.role in self.ROLES[cluster] for cluster in clusters):
                with open(program.output, "a", encoding="ascii") as output:
                    output.write("another process has ended, and this one in its last moments has said so\n")

    def recover(self, *options: str, fault: str = "") -> Program:
        """Files are rolled back: what a process has said when it saw another one end has to go."""
        dead = {m["cluster"] for m in self.status()["members"] if not m["alive"]}
        hosts = ",".join(f"{role}:1" for cluster, roles in self.ROLES.items() if cluster in dead for role in roles)
        return super().recover("--hosts", hosts, "--rsh", self.agent, "--files", "roll-back", *options, fault=fault)

    def tend(self, cluster: str) -> Program:
        hosts = ",".join(f"{name}:1" for name in (*self.ROLES[cluster], SPARE))
        argv = [self.job.shadowib, "tend", "fed", "--dir", str(self.job.directory), "--cluster", cluster, "--hosts", hosts, "--rsh", self.agent]
        program = self.job._spawn("tend", argv)  # pylint: disable=protected-access
        self.job.programs.append(program)
        return program


class MixedApart(Apart, Mixed):
    pass


class OrderedApart(Apart, Ordered):
    pass


def undisturbed(case: Case) -> str:
    return federation_undisturbed.undisturbed(case, MixedApart)


def moments(case: Case) -> str:
    return federation_alone.moments(case, MixedApart)


def together(case: Case) -> str:
    return federation_together.killed(case, MixedApart)


def kills(case: Case) -> str:
    return federation_alone.kills(case, OrderedApart, 3 if case.line.quick else 100)


def tended(case: Case) -> str:
    """B loses a host, and then another one: it goes on on those that are left."""
    fed = MixedApart(case)
    before, stops = fed.identity("A"), fed.cluster("A")["stops"]
    tend = fed.tend("B")
    for number, (lost, left) in enumerate((("b1", {"b0", SPARE}), ("b0", {SPARE})), 1):
        fed.await_traffic("A")
        fed.take_behind_margin()
        fed.hosts.lose(lost)
        wait_for("B to run again", lambda number=number: tend.ended() or tend.text().count("cluster B run again") == number, 60, 0.05)
        check(not tend.ended(), f"tend ended with {tend.process.returncode}: {tend.text()[-3000:]}")
        fed.programs["B"] = (tend,)
        fed.await_traffic("A")
        where = fed.hosts.running("ci_border_mix") - {"a0", "a1"}
        check(where == left, f"B runs on {where} instead of {left}")
        check(f"host {lost} does not answer" in tend.text(), f"nobody is told of the lost host: {tend.text()[-2000:]}")
        check(fed.identity("A") == before and fed.cluster("A")["stops"] == stops, f"A was touched when {lost} was lost")
    return f"B lost two hosts, and A was never stopped; {fed.finish()} messages"


def run() -> int:
    line = Line("federation_hosts", __doc__)
    for function in (undisturbed, moments, together, kills, tended):
        line.case(function.__name__, function)
    return line.finish()


if __name__ == "__main__":
    main(run)
