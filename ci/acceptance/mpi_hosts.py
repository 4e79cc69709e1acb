"""E3: ranks of Open MPI on two pretend hosts, which are network namespaces with addresses and names of their own. Checkpointed at
random moments, everything killed; restarted with the hosts swapped, all on one host, and from one host onto both; without mpirun,
by one `shadowib restart --members` on each host. Needs root, for the namespaces."""
import contextlib
import os
import shutil
import subprocess
import time

from common import Case, Line, Skip, check, main
from jobs import descendants, wait_for
from mpi import PATHS, MpiJob
from mpi_programs import Lammps, Ring
from spaces import ip

RANKS = 4
RUNS = {True: 1, False: 10}  # --quick or not
A, B = "a", "b"
# Where the ranks begin (as many on each host), and where each half of them is after each restart.
JOURNEYS = {
    "hosts swapped, and back": ({A: 2, B: 2}, ((B, A), (A, B))),
    "two hosts to one": ({A: 2, B: 2}, ((A, A),)),
    "one host to two, and to the other": ({A: 4}, ((A, B), (B, B))),
}


class Hosts:
    """Two namespaces and the cable between them."""

    def __init__(self, case: Case):
        if os.geteuid() != 0:
            raise Skip("network namespaces need root")
        self.names = {host: f"shadowib-e3-{os.getpid()}-{host}" for host in (A, B)}
        case.cleanups.append(self.remove)
        for name in self.names.values():
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", "e3a", "netns", self.names[A], "type", "veth", "peer", "name", "e3b", "netns", self.names[B])
        for host, number in ((A, 1), (B, 2)):
            ip("-n", self.names[host], "addr", "add", f"10.77.3.{number}/24", "dev", f"e3{host}")
            ip("-n", self.names[host], "link", "set", f"e3{host}", "up")
        self.inodes = {host: os.stat(f"/run/netns/{name}").st_ino for host, name in self.names.items()}
        # What mpirun starts its daemon on the other host with: words after the host's name are for a shell there.
        self.agent = case.work / "agent"
        self.agent.write_text(f'#!/bin/sh\nhost=$1; shift\nexec ip netns exec shadowib-e3-{os.getpid()}-$host unshare --uts '
                              'sh -c "hostname $host; exec $*"\n')
        self.agent.chmod(0o755)

    def remove(self, _failed: bool = False):
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def at(self, host: str, argv: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "sh", "-c", f'hostname {host}; exec "$@"', "sh", *argv]

    def of(self, pid: int) -> str | None:
        """The host that a process is on; None if it has ended."""
        try:
            space = os.stat(f"/proc/{pid}/ns/net").st_ino
        except OSError:
            return None
        return next((host for host, inode in self.inodes.items() if inode == space), "none")

    def give_processors(self):
        """Hosts have processors of their own. These would share this machine's as its kernel shares them between sessions, which for ranks
        that poll and yield may be 30 to 1 (seen with Linux 6.18). So would the sessions of one host, which a restart makes again."""
        found: dict[tuple, list[int]] = {}
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with contextlib.suppress(OSError):  # it has ended
                if (host := self.of(pid)) in (A, B):
                    found.setdefault((host, os.getsid(pid)), []).append(pid)
        hosts = {host for host, _ in found}
        processors = sorted(os.sched_getaffinity(0))
        half = len(processors) // 2
        # Of two hosts each has a half; of one the sessions take turns.
        shares = {group: (processors[:half], processors[half:])[(number if len(hosts) == 1 else group[0] == B) % 2] or processors
                  for number, group in enumerate(sorted(found))}
        for group, pids in found.items():
            for pid in pids:
                with contextlib.suppress(OSError):  # it has ended
                    for thread in os.listdir(f"/proc/{pid}/task"):
                        os.sched_setaffinity(int(thread), shares[group])


class SpreadJob(MpiJob):
    def __init__(self, case: Case, hosts: Hosts, name: str, program, begins: dict[str, int]):
        super().__init__(case, name, PATHS["ucx rc"], program, RANKS)
        self.hosts, self.begins = hosts, begins

    def launch(self):
        words = ["mpirun", "-np", str(self.ranks), "-H", ",".join(f"{host}:{n}" for host, n in self.begins.items()),
                 "--mca", "plm_rsh_agent", str(self.hosts.agent), *self.path.mpi.options, *self.path.options.split(), self.shadowib, "run",
                 "--job", self.name, "--dir", str(self.directory), "--backend", self.backend, "--",
                 *self.program.words(self.case.line, self.path)]
        self.programs = [self._spawn("mpirun", self.hosts.at(next(iter(self.begins)), words))]

    def where(self) -> dict[int, str]:
        return {member.index: self.hosts.of(member.pid) for member in self.members()}

    def check_places(self, places: dict[int, str]):
        """Their numbers are of a namespace of processes that the restart has made; but each is one of its command's."""
        for program in self.programs:
            found = {self.hosts.of(pid) for pid in descendants(program.process.pid)} - {None}
            host = program.role.rsplit("-", 1)[1]
            check(found <= {host} and host in places.values(), f"a restart at {host} has processes at {found}")

    def restart_at(self, places: dict[int, str]):
        """`places`: a host by member."""
        self.generation += 1
        self.programs = []
        for host in sorted(set(places.values())):
            share = ",".join(str(member) for member, at in places.items() if at == host)
            words = [self.shadowib, "restart", self.sets[-1], "--dir", str(self.directory), "--members", share]
            self.programs.append(self._spawn(f"restart{self.generation}-{host}", self.hosts.at(host, words)))


def undisturbed(case: Case, hosts: Hosts, program, begins) -> tuple[str, float]:
    job = SpreadJob(case, hosts, "undisturbed", program, begins)
    job.launch()
    job.await_ranks()
    hosts.give_processors()
    start = time.monotonic()
    job.finish(300)
    return job.result(), time.monotonic() - start


def travel(case: Case, hosts: Hosts, program, begins, legs, name: str, longest: float) -> SpreadJob | None:
    """None: it was over before all its restarts."""
    job, random = SpreadJob(case, hosts, name, program, begins), case.random(name)
    job.launch()
    job.await_ranks()
    placed = job.where()
    check(set(placed.values()) == set(begins), f"the ranks are at {placed}")
    hosts.give_processors()
    # Whose members are whichever came first; on one host any half will do.
    halves = [[m for m, at in placed.items() if at == host] for host in begins] if len(begins) == 2 else \
        [sorted(placed)[:RANKS // 2], sorted(placed)[RANKS // 2:]]
    for first, second in legs:
        time.sleep(random.uniform(0, longest / len(legs)))
        if any(p.ended() for p in job.programs) or not job.kill_everything():
            job.finish(60)
            return None
        places = {member: host for half, host in zip(halves, (first, second)) for member in half}
        job.restart_at(places)
        wait_for("the restarted ranks", lambda: any(p.ended() for p in job.programs) or len(job.members()) == RANKS, 60, 0.05)
        job.check_places(places)
        hosts.give_processors()
    job.finish(300)
    return job


def journey(case: Case, program, begins, legs, count: int) -> str:
    if missing := program.missing(PATHS["ucx rc"]):
        raise Skip(missing)
    hosts = Hosts(case)
    expected, seconds = undisturbed(case, hosts, program, begins)
    for number in range(case.done, count):
        longest, job, tries = 0.7 * seconds, None, 0
        while job is None:  # the machine may have become faster since: then it is sooner
            job = travel(case, hosts, program, begins, legs, f"run{number}-{tries}", longest)
            longest, tries = longest / 2, tries + 1
        check(job.result() == expected, f"{program.name} ends with {job.result()} instead of {expected}")
        shutil.rmtree(job.directory, ignore_errors=True)
        case.progress(number + 1)
    return f"{count} x, {len(legs)} restart(s) each; {program.name}: {expected}"


def run() -> int:
    line = Line("mpi_hosts", __doc__)
    for name, (begins, legs) in JOURNEYS.items():
        for program in (Ring(400),) if line.quick else (Ring(1000), Lammps()):
            count = RUNS[line.quick]
            line.case(f"{name}: {program.name}", lambda c, p=program, b=begins, s=legs: journey(c, p, b, s, count), count)
    return line.finish()


if __name__ == "__main__":
    main(run)
