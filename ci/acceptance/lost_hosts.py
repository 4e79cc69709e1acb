"""S1: images near the members survive what their store says. Ten members on five pretended hosts (network namespaces with memory and a
disk of their own) exchange numbered messages; a host is lost and erased, the job restarts on the rest and an empty spare, and every message
arrives once, every byte right. What no host has any more is refused by name. Needs root, for the namespaces."""
import contextlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

from common import Case, Line, Skip, check, main
from jobs import Job, descendants, wait_for
from mpi import PATHS, ROOT
from mpi_programs import Lammps
from spaces import Spaces

HOSTS = "abcde"
SPARE = "f"
USAGE, NOT_FOUND = 2, 3
# Fault points, hooks/job/phase.h. A keeper is about to give a piece; a piece is about to get its name; what is left of lost images is known.
GIVE, TAKE, SURVEYED = 72, 74, 290
# Of restored members, in their order. What comes before, the first process of a pid namespace does, which cannot stop itself.
RESTARTING = (110, 120, 121, 122, 123, 124, 125, 130, 140, 145)


class Hosts(Spaces):
    """The place for near images is one path, behind which each host has a directory of its own."""

    def __init__(self, case: Case, tier: str, names: str):
        super().__init__(case, [*names])
        self.tier = tier
        self.machines = True  # each stands for a machine of its own
        self.place = case.work / "place"
        self.place.mkdir()
        for name in names:
            self.own(name).mkdir()
            if tier == "mem":
                subprocess.run(["mount", "-t", "tmpfs", "tmpfs", self.own(name)], check=True)

    def own(self, name: str):
        return self.case.work / f"{self.tier}-of-{name}"

    def at(self, name: str, argv: list[str]) -> list[str]:
        domain = f"export SHADOWIB_DOMAIN={name}; " if self.machines else ""
        # --ipc: a new System V queue that nobody has used counts as the job's, also if another program on this machine has made it.
        return super().at(name, ["unshare", "--mount", "--uts", "--ipc", "sh", "-c",
                                 f'hostname {name}; mount --bind {self.own(name)} {self.place}; {domain}exec "$@"', "sh", *argv])

    def lose(self, names: str):
        """All that ran there, and all that lay there."""
        self.kill(names)
        for name in names:
            for entry in self.own(name).iterdir():
                shutil.rmtree(entry)

    def remove(self, failed: bool = False):
        super().remove(failed)
        for name in self.names:
            if self.tier == "mem":
                subprocess.run(["umount", "--lazy", self.own(name)], capture_output=True, check=False)


class NearJob(Job):
    """Pairs of shadowib-pingpong, a server on each host that is no spare and its client on the next: every message has its number, and is
    checked byte by byte. They end by themselves after `restarts`."""

    def __init__(self, case: Case, hosts: Hosts, store: str, restarts: int, spares: str = SPARE, backend: str = "ib2tcp"):
        super().__init__(case, "pairs", backend=backend)
        self.hosts, self.store = hosts, store
        # Copies and parities are of files, whatever is in them.
        self.environment["SHADOWIB_COMPRESS"] = {"mem:mirror": "zstd", "mem:xor": "lz4", "mem:rs:2": "zstd"}.get(store, "none")
        names = [name for name in hosts.names if name not in spares]
        for number, name in enumerate(names):
            port = 7000 + number
            words = ["-p", str(port), "-s", "20000", "-w", "4", "-n", "50", "--progress", "--restarts", str(restarts),
                     *(["--gid-idx", "1"] if backend == "verbs" else [])]
            self.start_at(name, f"server{number}", ["--server", *words])
            wait_for(f"the server on port {port}", lambda name=name, port=port: hosts.listens(name, port), 60)
            self.start_at(names[(number + 1) % len(names)], f"client{number}", [f"10.77.4.{number + 1}", *words])
        self.count = 2 * len(names)
        self.await_progress()
        self.where = {member.index: self.host_of(member.pid) for member in self.members()}

    def start_at(self, name: str, role: str, words: list[str]):
        run = [self.shadowib, "run", "--job", self.name, "--dir", str(self.directory), "--backend", self.backend, "--store", self.store, "--near",
               str(self.hosts.place), "--", self.case.line.program("shadowib-pingpong"), *words]
        self.programs.append(self._spawn(role, self.hosts.at(name, run)))

    def host_of(self, pid: int) -> str:
        return self.hosts.inodes[os.stat(f"/proc/{pid}/ns/net").st_ino]

    def await_progress(self):
        first: dict[int, tuple] = {}

        def moved():
            self.check_running()
            now = {member.index: member.counters() for member in self.members() if member.queue_pairs}
            for index, counters in now.items():
                first.setdefault(index, counters)
            return len(now) == self.count and all(now[index] != first[index] for index in now)

        wait_for("every member to make progress", moved, 240, 0.05)

    def save(self, fault: str = "") -> str | None:
        """On a host of the job, as an operator would. None: the command has come to its `fault`."""
        words = [self.shadowib, "checkpoint", self.name, "--dir", str(self.directory), "--timeout", "120", "--json"]
        result = subprocess.run(self.hosts.at(next(iter(self.where.values())), words), text=True, capture_output=True, timeout=180,
                                env={**self.environment, **({"SHADOWIB_FAULT": fault} if fault else {})}, check=False)
        if fault:
            check(result.returncode < 0 or result.returncode > 128, f"the command survived {fault}: {result.returncode} {result.stdout}")
            return None
        check(result.returncode == 0, f"checkpoint: {result.returncode} {result.stdout}{result.stderr[-1500:]}")
        told = json.loads(result.stdout)
        check(told["store"] == self.store, f"the set has store {told.get('store')}")
        keepers = json.loads(self.command("status", self.name, "--json").stdout)["keepers"]
        wanted = [] if self.store.endswith("single") else sorted(set(self.where.values()))
        check(set(wanted) <= set(keepers), f"keepers are on {keepers}, members on {wanted}")
        self.sets.append(told["set"])
        return told["set"]

    def kill(self):
        """The job as a whole: it cannot go on without a host. Keepers stay."""
        for program in self.programs:
            for pid in [*descendants(program.process.pid), program.process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            program.process.wait()
        self.programs = []

    def lose(self, names: str):
        self.hosts.lose(names)
        self.kill()

    def move(self, lost: str, to: str):
        """Members of lost hosts go to other ones, in turn."""
        homeless = [member for member, name in self.where.items() if name in lost]
        for number, member in enumerate(homeless):
            self.where[member] = to[number % len(to)]

    def restart_shares(self, but: str = ""):
        self.generation += 1
        for name in sorted(set(self.where.values()) - set(but)):
            share = ",".join(str(member) for member, at in self.where.items() if at == name)
            words = [self.shadowib, "restart", self.sets[-1], "--dir", str(self.directory), "--members", share]
            self.programs.append(self._spawn(f"restart{self.generation}-{name}", self.hosts.at(name, words)))

    def at(self, name: str, *words: str, code: int = 0) -> str:
        result = subprocess.run(self.hosts.at(name, [self.shadowib, *words, "--dir", str(self.directory)]), text=True, capture_output=True,
                                timeout=180, env=self.environment, check=False)
        self.case.note(f"at {name}: {' '.join(words)}: {result.returncode} {result.stdout}{result.stderr}")
        check(result.returncode == code, f"{' '.join(words)} at {name}: {result.returncode} {result.stdout}{result.stderr}")
        return result.stdout + result.stderr

    def start_keeper(self, name: str, fault: str = ""):
        """In place of the one that is there, if any."""
        for pid in self.hosts.pids(name):
            with contextlib.suppress(OSError):  # it has ended
                if b"\0keeper\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
                    wait_for("a keeper to be gone", lambda pid=pid: state_of(pid) in ("", "Z"), 30)
        words = [self.shadowib, "keeper", self.name, "--dir", str(self.directory)]
        self.everything.append(self._spawn(f"keeper-{name}", self.hosts.at(name, words), {"SHADOWIB_FAULT": fault}))
        wait_for(f"the keeper on {name}", lambda: name in json.loads(self.command("status", self.name, "--json").stdout)["keepers"], 30)

    def keeper(self, name: str) -> int:
        for pid in self.hosts.pids(name):
            with contextlib.suppress(OSError):  # it has ended
                if b"\0keeper\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        raise AssertionError(f"no keeper runs on {name}")

    def redundancy(self, name: str, state: str, survives: int, silent: str, text: str) -> dict:
        """Checks what status tells on a host of the newest set."""
        told = json.loads(self.at(name, "status", self.name, "--timeout", "60", "--json"))["redundancy"]
        expected = {"set": pathlib.Path(self.sets[-1]).name, "store": self.store, "state": state, "survives": survives, "no_answer": [*silent]}
        check({key: told[key] for key in expected} == expected, f"status tells {told}, not {expected}")
        check(text in self.at(name, "status", self.name, "--timeout", "60"), f"status does not say: {text}")
        return told

    def begin_with_fault(self, name: str, words: list[str], fault: str = ""):
        """A command on host `name`. The fault is in what a restart restores, too."""
        argv = self.hosts.at(name, ["env", f"SHADOWIB_FAULT={fault}", self.shadowib, *words, "--dir", str(self.directory)])
        return self._spawn(f"{words[0]}-{name}", argv)

    def await_stopped(self, names: str, program) -> str:
        """On which of the hosts a process has stopped at its fault point."""
        def stopped():
            check(program.process.poll() is None, f"{program.role} has ended: {program.text()[-2000:]}")
            return "".join(name for name in names if any(state_of(pid) == "T" for pid in self.hosts.pids(name)))

        return wait_for(f"a process on {names} to stop at its fault point", stopped, 120)[0]

    def go_on(self):
        """All that is stopped, on any host."""
        for pid in self.hosts.pids(self.hosts.names):
            if state_of(pid) == "T":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def lose_meanwhile(self, name: str, words: list[str], lost: str, point: int = SURVEYED, taker: str = "", spare: str = ""):
        """A command on host `name` stops at a point, or the keeper does that gives to it or takes for it; it goes on when one more host is
        lost, and host `spare` has a keeper. Returns the program."""
        fault = f"{point}:stop:-1:1"
        stops = {GIVE: lost, TAKE: taker}.get(point) or name
        if stops != name:
            self.start_keeper(stops, fault)
        program = self.begin_with_fault(name, words, fault if stops == name else "")
        self.await_stopped(stops, program)
        if spare:
            self.start_keeper(spare)
        self.hosts.lose(lost)
        self.go_on()
        return program


class NearLammps(NearJob):
    """LAMMPS on Open MPI, a rank on each host that is no spare. Only its first start has an mpirun: restarts are of `shadowib` alone."""

    def __init__(self, case: Case, hosts: Hosts, store: str, program: Lammps, name: str):
        Job.__init__(self, case, name, environment=ROOT, transport="tcp")
        self.hosts, self.store, self.program = hosts, store, program
        self.names = [name for name in hosts.names if name not in SPARE]
        self.place = case.work / name
        self.place.mkdir()
        program.prepare(self.place, len(self.names))
        # What mpirun starts its daemons with: words after the host's name are for a shell there.
        agent = case.work / "agent"
        begin = f"hostname $host; mount --bind {hosts.case.work}/{hosts.tier}-of-$host {hosts.place}; export SHADOWIB_DOMAIN=$host"
        agent.write_text(f'#!/bin/sh\nhost=$1; shift\nexec ip netns exec shadowib-{os.getpid()}-$host unshare --mount --uts --ipc '
                         f'sh -c "{begin}; exec $*"\n')
        agent.chmod(0o755)
        path = PATHS["ucx rc"]
        words = ["mpirun", "-np", str(len(self.names)), "-H", ",".join(f"{name}:1" for name in self.names), "--mca", "plm_rsh_agent", str(agent),
                 *path.mpi.options, *path.options.split()]
        words += [self.shadowib, "run", "--job", name, "--dir", str(self.directory), "--backend", "ib2tcp",
                  *(["--store", store, "--near", str(hosts.place)] if store else []), "--"]
        self.programs = [self._spawn("mpirun", hosts.at(self.names[0], [*words, *program.words(case.line, path)]))]
        self.count = len(self.names)
        self.await_progress()
        self.where = {member.index: self.host_of(member.pid) for member in self.members()}
        check(sorted(self.where.values()) == self.names, f"the ranks are on {self.where}")

    def kill(self):
        """All but the keepers, which outlive their members."""
        for pid in self.hosts.pids(self.hosts.names):
            with contextlib.suppress(OSError):  # it has ended
                if b"\0keeper\0" not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        for program in self.programs:
            program.process.wait()
        self.programs = []


def lammps(case: Case, store: str) -> str:
    """LAMMPS loses each of its hosts in turn, at random moments, and ends as it does undisturbed: every digit of every atom."""
    program = Lammps(4000)
    if missing := program.missing(None) or ("" if shutil.which("mpirun") else "mpirun is not installed (package openmpi-bin)"):
        raise Skip(missing)
    hosts = Hosts(case, store.split(":")[0], HOSTS + SPARE)
    expected = NearLammps(case, hosts, "", program, "undisturbed")
    expected.finish(600)
    job = NearLammps(case, hosts, store, program, "disturbed")
    spare, took, random = SPARE, [], case.random(store)
    for lost in HOSTS:
        time.sleep(random.uniform(0, 1))
        job.save()
        job.lose(lost)
        job.move(lost, spare)
        spare = lost
        began = time.monotonic()
        job.restart_shares()
        job.await_progress()
        took.append(time.monotonic() - began)
    job.finish(600)
    check(program.result(job) == program.result(expected), f"LAMMPS ends with {program.result(job)} instead of {program.result(expected)}")
    return f"{len(HOSTS)} hosts lost in turn, the result is {program.result(job)}; back after {max(took):.1f} s at most"


def each_host_once(case: Case, tier: str) -> str:
    """Every host is lost in turn; a lost one comes back empty, as the spare."""
    quick = case.line.quick
    names = HOSTS[:3] if quick else HOSTS
    hosts = Hosts(case, tier, names + SPARE)
    losses = names[:1] if quick else names
    job = NearJob(case, hosts, f"{tier}:mirror", len(losses))
    spare, took = SPARE, []
    for lost in losses:
        job.save()
        job.lose(lost)
        job.move(lost, spare)
        spare = lost
        began = time.monotonic()
        job.restart_shares()
        if lost != losses[-1]:
            job.await_progress()
            took.append(time.monotonic() - began)
    job.finish(240)
    return f"{len(losses)} hosts lost in turn, {len(job.where)} members" + (f"; back after {max(took):.1f} s at most" if took else "")


def each_choice_lost(case: Case, store: str, losses: int) -> str:
    """Each choice of up to `losses` hosts is lost at once, and they come back empty; the last time the rest takes their members."""
    hosts = Hosts(case, store.split(":")[0], HOSTS)
    choices = [lost for count in range(1, losses + 1) for lost in itertools.combinations(HOSTS, count)]
    if case.line.quick:
        choices = [choices[0], choices[-1]]
    job = NearJob(case, hosts, store, len(choices))
    took = []
    for lost in choices:
        job.save()
        job.lose("".join(lost))
        if lost == choices[-1]:
            job.move("".join(lost), "".join(name for name in HOSTS if name not in lost))
        began = time.monotonic()
        job.restart_shares()
        if lost != choices[-1]:
            job.await_progress()
            took.append(time.monotonic() - began)
    job.finish(240)
    decoded = job.output().count("decoded member-")
    check(decoded == 2 * sum(map(len, choices)), f"{decoded} images were decoded, two of each lost host were expected")
    return f"{len(choices)} choices of up to {losses} of {len(HOSTS)} hosts, {len(job.where)} members; back after {max(took):.1f} s at most"


def too_many_lost(case: Case, store: str) -> str:
    """What survives one host does not survive two at once: the piece and its hosts are named, and nothing is made."""
    hosts = Hosts(case, "mem", HOSTS[:3] + SPARE)
    job = NearJob(case, hosts, store, 1)
    job.save()
    job.lose("ab")
    before = sorted(hosts.own("c").glob("shadowib-*/*/*/*"))
    told = job.at("c", "restart", job.sets[-1], code=NOT_FOUND)
    check("member-" in told and ("on no host that answers" in told or "parts are left" in told), told)
    check(sorted(hosts.own("c").glob("shadowib-*/*/*/*")) == before, "images were made nevertheless")
    check(any(f"no keeper on {name}" in told or f", {name}" in told for name in "ab"), f"no host is named: {told}")
    return told.strip().splitlines()[-1][:100]


def single_is_refused(case: Case, tier: str) -> str:
    """Without copies a lost host is a lost set; all hosts there, it restarts. Old images go from all hosts."""
    hosts = Hosts(case, tier, HOSTS[:2] + SPARE)
    job = NearJob(case, hosts, f"{tier}:single", 2)
    job.save()
    job.save()
    wait_for("the keepers", lambda: set(HOSTS[:2]) <= set(json.loads(job.command("status", job.name, "--json").stdout)["keepers"]), 30)
    for words in (("gc", "--keep", "1"), ("checkpoint", job.name, "--keep", "1")):
        told = job.at("a", *words)
        for name in HOSTS[:2]:
            kept = list(hosts.own(name).glob("shadowib-*/*/*/member-*.img"))
            check(len({image.parent for image in kept}) == 1, f"images on {name}: {kept}; {words}: {told}")
    job.save()
    job.kill()
    job.restart_shares()
    job.await_progress()
    job.save()
    job.lose("b")
    told = job.at("a", "restart", job.sets[-1], code=NOT_FOUND)
    check("was saved on host b" in told and "member-" in told, told)
    return "restarted with all hosts, refused without one; old images went from both"


def containers_of_one_machine(case: Case) -> str:
    """They fail together, though each has a network and a place of its own."""
    hosts = Hosts(case, "mem", HOSTS[:2])
    hosts.machines = False
    job = NearJob(case, hosts, "mem:mirror", 2, "")
    told = job.at("a", "checkpoint", job.name, code=USAGE)
    check("failure domains" in told, told)
    job.await_progress()
    return "a mirror between two containers is refused"


def rebuilt(case: Case, store: str) -> str:
    """After a loss copies and parities are made again, without a restart; then another host may be lost."""
    hosts = Hosts(case, "mem", HOSTS[:3] + SPARE)
    job = NearJob(case, hosts, store, 1)
    job.save()
    job.at("a", "verify", job.sets[-1], "--strict")
    listed = json.loads(job.at("a", "list", "--json"))["sets"][-1]
    check(listed["survives"] == {"hosts": 1, "per": "set", "power_failure": False}, f"list: {listed}")
    told = job.redundancy("a", "whole", 1, "", "all copies and parities are there; it survives the loss of 1 host")
    check((told["promised"], told["pieces"], told["missing"]) == (1, 12 if store.endswith("mirror") else 9, 0), f"status: {told}")
    os.kill(job.keeper("c"), signal.SIGSTOP)
    job.redundancy("a", "not known", 0, "c", "not known, since no keeper answers on c")
    os.kill(job.keeper("c"), signal.SIGCONT)
    job.lose("b")
    job.move("b", SPARE)
    job.redundancy("a", "not known", 0, "b", "not known, since no keeper answers on b; by the others it survives the loss of 0 hosts")
    told = job.at("a", "verify", job.sets[-1])
    check("one host only" in told or "the loss of 0 hosts now" in told, f"verify does not tell of the loss: {told}")
    job.at("a", "verify", job.sets[-1], "--strict", code=5)
    if not store.endswith("mirror"):
        check("no keeper runs" in job.at("a", "rebuild", job.sets[-1], code=NOT_FOUND), "rebuild does not tell what it needs")
    job.start_keeper(SPARE)
    told = on_terminal(job, "a", "rebuild", job.sets[-1])
    for words in (f"asking hosts what they have of {pathlib.Path(job.sets[-1]).name}  [..", "]  3 of 3",
                  f"{'copying 4 images' if store.endswith('mirror') else 'making 3 images and parities'} of ", "]  0 B of ", "##]  "):
        check(words in told, f"rebuild does not show '{words}': {told}")
    check("survives the loss of a host" in told, told)
    job.at("a", "verify", job.sets[-1], "--strict")
    job.redundancy("a", "whole", 1, "", "all copies and parities are there")
    next(iter(sorted(hosts.own("c").glob("shadowib-*/*/*/member-*.img")))).unlink()
    degraded = job.redundancy("a", "degraded", 0, "", "copies and parities are missing; it survives the loss of 0 hosts, until")
    check(degraded["missing"] == 1, f"status: {degraded}")
    check("1 of" in job.at("a", "rebuild", job.sets[-1]), "the image is not made again")
    check("0 of" in job.at("a", "rebuild", job.sets[-1]), "there is more to rebuild")
    hosts.lose("c")
    job.move("c", "a")
    job.restart_shares()
    job.finish(240)
    check(store.endswith("mirror") or "fetching and decoding 2 images of" in job.output(), job.output()[-2000:])
    return told.strip().splitlines()[-1].rsplit("\033[K", 1)[-1]


def lost_during_rebuild(case: Case, point: int = SURVEYED) -> str:
    """A second host is lost while what the first had is made again: rs:2 goes on, xor refuses and leaves the set as it was."""
    hosts = Hosts(case, "mem", HOSTS + SPARE)
    job = NearJob(case, hosts, "mem:rs:2", 1, spares=HOSTS[4] + SPARE)
    job.save()
    job.lose("b")
    job.start_keeper(HOSTS[4])  # that of the other spare comes later: of two empty hosts any may take
    source, *rest = "acd"  # groups are in the order of failure domains, and lost pieces come from the first that are enough
    program = job.lose_meanwhile(rest[0], ["rebuild", job.sets[-1]], source, point, taker=HOSTS[4], spare=SPARE)
    check(program.process.wait(120) == 0, f"rebuild: {program.text()}")
    check("trying without that host" in program.text() and "any 2 hosts" in program.text(), program.text())
    job.at(rest[0], "verify", job.sets[-1], "--strict")
    job.move("b", HOSTS[4])
    job.move(source, SPARE)
    hosts.lose("".join(rest))
    job.move("".join(rest), HOSTS[4] + SPARE)
    job.restart_shares()
    job.finish(240)
    return "two more hosts were lost then, and the job came back"


def lost_twice(case: Case, point: int = SURVEYED) -> str:
    hosts = Hosts(case, "mem", HOSTS[:3] + SPARE)
    job = NearJob(case, hosts, "mem:xor", 1)
    saved = job.save()
    job.lose("b")
    job.start_keeper(SPARE)
    before = (pathlib.Path(saved) / "placement.json").read_bytes()
    program = job.lose_meanwhile("a", ["rebuild", saved], "c", point, taker=SPARE)
    check(program.process.wait(120) == NOT_FOUND, f"rebuild: {program.text()}")
    check("is lost" in program.text() and "restart an older set" in program.text(), program.text())
    check((pathlib.Path(saved) / "placement.json").read_bytes() == before, "the placement has changed")
    return program.text().strip().splitlines()[-1][:100]


def lost_during_restart(case: Case, point: int = SURVEYED) -> str:
    """A second host is lost while a restart makes the images of the first: it goes on with the others."""
    hosts = Hosts(case, "mem", HOSTS[:4] + SPARE)
    job = NearJob(case, hosts, "mem:rs:2", 1)
    job.save()
    job.lose("b")
    job.move("b", SPARE)
    share = ",".join(str(member) for member, at in job.where.items() if at == SPARE)
    source, *rest = "acd"  # groups are in the order of failure domains, and lost pieces come from the first that are enough
    program = job.lose_meanwhile(SPARE, ["restart", job.sets[-1], "--members", share], source, point)
    job.move(source, rest[0])
    job.programs.append(program)
    job.restart_shares(but=SPARE)
    job.finish(240)
    check("trying without that host" in program.text() and program.text().count("decoded member-") == 2, program.text()[-2000:])
    return "decoded without either"


def lost_while_restarting(case: Case, store: str, points: tuple) -> str:
    """A second host is lost when members of the first are at a point of their restart. The job restarts once more if its store survives two
    hosts. If not, it is refused, and the set is as it was."""
    goes_on, rng = store.endswith("rs:2"), case.random(store)
    hosts = Hosts(case, "mem", HOSTS[:4])
    job = NearJob(case, hosts, store, len(points), spares="")
    for point in points:
        first, second = rng.sample(HOSTS[:4], 2)
        case.note(f"at {point}: {first}, then {second}")
        saved = job.save()
        job.lose(first)
        share = ",".join(str(member) for member, at in job.where.items() if at == first)
        program = job.begin_with_fault(first, ["restart", saved, "--members", share], f"{point}:stop:-1:1")
        job.programs.append(program)
        job.restart_shares(but=first)
        job.await_stopped(first, program)
        before = (pathlib.Path(saved) / "placement.json").read_bytes()
        job.lose(second + first)  # what was made there, too
        check((pathlib.Path(saved) / "placement.json").read_bytes() == before, "the placement has changed")
        if not goes_on:
            told = job.at(next(name for name in HOSTS if name not in first + second), "restart", saved, code=NOT_FOUND)
            check("is lost" in told and "member-" in told, told)
            check((pathlib.Path(saved) / "placement.json").read_bytes() == before, "the placement has changed")
            return told.strip().splitlines()[-1][:100]
        job.restart_shares()
        if point != points[-1]:
            job.await_progress()
    job.finish(240)
    return f"a second host lost at {', '.join(map(str, points))}"


def state_of(pid: int) -> str:
    with contextlib.suppress(OSError):  # it has ended
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0]
    return ""


def on_terminal(job: NearJob, name: str, *words: str) -> str:
    """All that a command says whose standard error is a terminal."""
    master, terminal = os.openpty()
    argv = job.hosts.at(name, [job.shadowib, *words, "--dir", str(job.directory)])
    with subprocess.Popen(argv, env=job.environment, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        told = b""
        with contextlib.suppress(OSError):  # EIO: its end
            while part := os.read(master, 65536):
                told += part
    os.close(master)
    check(process.returncode == 0, f"{' '.join(words)} at {name}: {process.returncode} {told!r}")
    return told.decode()


def killed_job(case: Case, store: str, names: str) -> tuple[NearJob, dict[str, list[pathlib.Path]]]:
    """A saved job without its processes, and the images on each host."""
    hosts = Hosts(case, "mem", names + SPARE)
    job = NearJob(case, hosts, store, 1)
    job.save()
    job.kill()
    return job, {name: sorted(hosts.own(name).glob("shadowib-*/*/*/member-*.img")) for name in names}


def damaged(case: Case) -> str:
    """A damaged image is as good as a lost one: it comes from its copy. Both damaged, it is refused."""
    job, own = killed_job(case, "mem:mirror", "ab")
    check(len(own["a"]) == len(own["b"]) == job.count, f"images on a and b: {own}")
    damage(own["a"][0])
    job.restart_shares()
    job.finish(240)
    check("looking for a copy" in job.output() and f"fetched {own['a'][0].name} from host b" in job.output(), job.output()[-2000:])
    check(f"fetching 1 image of {pathlib.Path(job.sets[-1]).name} from other hosts" in job.output(), job.output()[-2000:])
    for name in "ab":
        damage(own[name][1])
    told = job.at("a", "restart", job.sets[-1], code=NOT_FOUND)
    check(own["a"][1].name in told, told)
    return "fetched from the copy; refused if that is damaged, too"


def damage(image):
    with open(image, "r+b") as file:
        file.seek(image.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def damaged_in_groups(case: Case) -> str:
    """A damaged image is decoded, a damaged parity made again. More in one stripe than there are parities is refused."""
    job, own = killed_job(case, "mem:xor", "abc")
    damage(next(job.hosts.own("b").glob("shadowib-*/*/*/parity-*.par")))
    job.at("a", "verify", job.sets[-1], "--strict", code=5)
    told = job.at("a", "rebuild", job.sets[-1])
    check("1 of 9 images and parities made again" in told, told)
    job.at("a", "verify", job.sets[-1], "--strict")
    damage(own["a"][0])
    job.restart_shares()
    job.finish(240)
    check(f"decoded {own['a'][0].name}" in job.output(), job.output()[-2000:])
    for name in "ab":
        for image in own[name]:
            damage(image)
    told = job.at("a", "restart", job.sets[-1], code=NOT_FOUND)
    check("is lost" in told and "member-" in told, told)
    return told.strip().splitlines()[-1][:100]


def deaths(case: Case, store: str) -> str:
    """The command dies at each of its points, and all keepers: the job goes on, the next set is whole, and gc finds what was left."""
    points = [220, 225] if case.line.quick else [200, 210, 220, 225, 230]
    hosts = Hosts(case, "mem", HOSTS[:2] + SPARE)
    job = NearJob(case, hosts, store, 1)
    for point in points:
        job.save(fault=f"{point}:crash")
        job.await_progress()
        for pid in hosts.pids("ab"):
            with contextlib.suppress(OSError):  # it has ended
                if b"\0keeper\0" in open(f"/proc/{pid}/cmdline", "rb").read():
                    os.kill(pid, signal.SIGKILL)
        job.save()
        job.at("b", "verify", job.sets[-1], "--strict")
    told = job.at("a", "gc", "--keep", "100")
    check("removed images b:" in told, f"gc has removed nothing on b: {told}")
    listed = {s["set_id"] for s in json.loads(job.command("list", "--json").stdout)["sets"]}
    for name in "ab":
        there = {path.name for path in hosts.own(name).glob("shadowib-*/*/*")}
        check(there == listed, f"on {name} are {there}, listed are {listed}")
    job.lose("a")
    job.move("a", "b")
    job.restart_shares()
    job.finish(240)
    return f"at points {', '.join(map(str, points))}"


def named(store: str) -> str:
    return store.replace(":", " ")


def run() -> int:
    line = Line("lost_hosts", __doc__)
    for tier in ("mem", "disk"):
        line.case(f"{tier} mirror, each host lost in turn", lambda case, tier=tier: each_host_once(case, tier))
    for store, losses in (("mem:xor", 1), ("disk:rs:2", 2)) if line.quick else (("mem:xor", 1), ("mem:rs:2", 2), ("disk:xor", 1), ("disk:rs:2", 2)):
        line.case(f"{named(store)}, up to {losses} of five hosts lost", lambda case, store=store, losses=losses: each_choice_lost(case, store, losses))
    for store in ("mem:mirror", "mem:xor"):
        if store == "mem:xor" or not line.quick:
            line.case(f"{named(store)}, two hosts lost at once", lambda case, store=store: too_many_lost(case, store))
        line.case(f"{named(store)}, rebuilt between two losses", lambda case, store=store: rebuilt(case, store))
    for store in () if line.quick else ("mem:xor", "mem:mirror"):
        line.case(f"{named(store)}, LAMMPS", lambda case, store=store: lammps(case, store))
    line.case("mem mirror, containers of one machine", containers_of_one_machine)
    line.case("mem mirror, a damaged image", damaged)
    line.case("mem xor, damaged images and parities", damaged_in_groups)
    line.case("mem rs 2, a host lost during a restart", lost_during_restart)
    line.case("mem rs 2, a host lost during rebuild", lost_during_rebuild)
    line.case("mem xor, a host lost during rebuild", lost_twice)
    if not line.quick:
        line.case("mem rs 2, a host lost that gives for a restart", lambda case: lost_during_restart(case, GIVE))
        line.case("mem rs 2, a host lost when a restart takes", lambda case: lost_during_restart(case, TAKE))
        line.case("mem rs 2, a host lost that gives for rebuild", lambda case: lost_during_rebuild(case, GIVE))
        line.case("mem rs 2, a host lost when rebuild takes", lambda case: lost_during_rebuild(case, TAKE))
        line.case("mem xor, a host lost that gives for rebuild", lambda case: lost_twice(case, GIVE))
        line.case("mem xor, a host lost when rebuild takes", lambda case: lost_twice(case, TAKE))
        line.case("mem rs 2, two hosts lost by a restart", lambda case: lost_while_restarting(case, "mem:rs:2", RESTARTING))
        line.case("mem xor, two hosts lost by a restart", lambda case: lost_while_restarting(case, "mem:xor", RESTARTING[-1:]))
    for store in ("mem:mirror",) if line.quick else ("mem:mirror", "mem:xor"):
        line.case(f"{named(store)}, dead commands and keepers", lambda case, store=store: deaths(case, store))
    for tier in ("disk",) if line.quick else ("mem", "disk"):
        line.case(f"{tier} single, a host lost", lambda case, tier=tier: single_is_refused(case, tier))
    return line.finish()


if __name__ == "__main__":
    main(run)
