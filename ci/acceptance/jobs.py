"""A job under test: programs under `shadowib run`, checkpoints, kills, restarts, and what became of it all."""
import ctypes
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

import patience
from common import Case, Failure, check

PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what outlives its parent is ours to end

# What rdma_cm's servers get ready by, where no socket tells: the words of a job's status; and of a program that runs natively
# a command and its words.
READY = {
    "listening": ('"state": "listening"', ("rdma", "resource", "show", "cm_id"), "state LISTEN"),
    "joined": ('"multicast_groups": 1', ("ip", "maddress", "show"), "inet  239.1.2.3"),
}

# Exit codes of the command, as shadowib(1) documents them.
NOT_FOUND, REFUSED, CORRUPT, IO, TIMEOUT, ABORTED, PERMISSION, VERSION, BUSY = 3, 4, 5, 6, 7, 8, 9, 10, 11
A_PROCESS_FAILED = 20


def free_port() -> int:
    with socket.socket(socket.AF_INET6) as s:
        s.bind(("::", 0))
        return s.getsockname()[1]


def listening(port: int) -> bool:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                return True
    return False


def wait_for(what: str, condition, timeout: float, pause: float = 0.02):
    """Returns the first true value of condition(); Failure after `timeout` seconds."""
    end = time.monotonic() + timeout
    while True:
        if value := condition():
            return value
        if time.monotonic() > end:
            raise Failure(f"waited {timeout:.0f} s in vain for {what}")
        time.sleep(pause)


def descendants(pid: int) -> list[int]:
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = pathlib.Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
                children.setdefault(int(fields[1]), []).append(int(entry))
            except OSError:
                pass
    found, todo = [], [pid]
    while todo:
        todo += children.get(todo[0], [])
        found.append(todo.pop(0))
    return found[1:]


@dataclasses.dataclass
class Program:
    role: str
    process: subprocess.Popen
    output: pathlib.Path

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def ended(self) -> bool:
        return self.process.poll() is not None


@dataclasses.dataclass
class Member:
    index: int
    pid: int
    alive: bool
    answered: bool
    queue_pairs: list

    def counters(self) -> tuple:
        return tuple((q["sends_retired"], q["receives_completed"]) for q in self.queue_pairs)

    def connected(self) -> bool:
        """RTS, or RTR: the end that only serves writes or reads need not go on to RTS, and perftest's does not."""
        return bool(self.queue_pairs) and all(q["state"] in ("RTR", "RTS") for q in self.queue_pairs)

    def sending(self) -> bool:
        return any(q["state"] == "RTS" for q in self.queue_pairs)


def sends(members: list[Member]) -> int:
    """Requests retired by the busiest queue pair of all members."""
    return max((q["sends_retired"] for m in members for q in m.queue_pairs), default=0)


def settings(line) -> dict:
    """What a sanitizer build needs to know; what the caller has set wins."""
    sys_path = str(pathlib.Path(__file__).resolve().parents[1] / "runner")
    import sys
    if sys_path not in sys.path:
        sys.path.insert(0, sys_path)
    import ctest
    return ctest.sanitizer_environment(line.build.name)


class OneEndFinished(Failure):
    """A checkpoint found a part of the job, since the other part had come to its good end."""


class Job:
    """`backend` None: the programs run natively, without the command. `user`: who runs it all, on node 0, if not the line's own."""

    def __init__(self, case: Case, name: str = "job", transport: str | None = None, environment: dict | None = None,
                 backend: str | None = "ib2tcp", user: int | None = None):
        self.case, self.name, self.backend = case, name, backend
        self.directory = case.work / "ckpt"
        self.place = case.work  # where programs run
        self.shadowib = case.line.program("shadowib")
        self.environment = {**os.environ, **settings(case.line), "SHADOWIB_LOG": f"info:{case.work}/shadowib.log",
                            **({"SHADOWIB_IB2TCP_TRANSPORT": transport} if transport else {}), **(environment or {})}
        self.identity = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        if user is not None:
            os.chown(case.work, user, user)
        self.programs: list[Program] = []  # of the current generation
        self.everything: list[Program] = []
        self.generation = 0
        self.sets: list[str] = []
        case.cleanups.append(self.stop)

    # Starting and stopping.

    def _spawn(self, role: str, argv: list[str], environment: dict | None = None, node: int = 0, **options) -> Program:
        """`node` 1: on the other machine (nodes.py)."""
        output = self.case.work / f"{len(self.everything):02d}-{role}.out"
        self.case.note(f"{output.name}: {' '.join(argv)}")
        everything = {**self.environment, **(environment or {})}
        if node:
            import nodes
            process = nodes.RemoteProcess(argv, output, self.place, everything)
        else:
            with open(output, "wb") as sink:
                if self.identity:
                    os.chown(output, self.identity["user"], self.identity["group"])  # who restarts it has to open it again
                process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, cwd=self.place,
                                           env=everything, **self.identity, **options)
        program = Program(role, process, output)
        self.everything.append(program)
        return program

    def start(self, role: str, argv: list[str], environment: dict | None = None, **options) -> Program:
        """A program of the job, under `shadowib run`."""
        prefix = [self.shadowib, "run", "--job", self.name, "--dir", str(self.directory), "--backend", self.backend, "--"]
        program = self._spawn(role, (prefix if self.backend else []) + argv, environment, **options)
        self.programs.append(program)
        return program

    def start_pair(self, server: list[str], client: list[str], port: int, ready: str = "", nodes: tuple[int, int] = (0, 0)):
        """A server, and once it listens on `port`, or is `ready` as READY has it, a client. A server on node 1 needs `ready`."""
        first = self.start("server", server, node=nodes[0])
        listens = (lambda: self.ready(ready)) if ready else (lambda: listening(port))
        wait_for(f"the server to listen on port {port}", lambda: first.ended() or listens(), 30)
        check(not first.ended(), f"the server ended at once:\n{first.text()}")
        self.start("client", client, node=nodes[1])

    def stop(self, failed: bool = False):
        if failed:
            self.collect_evidence()
        for program in self.everything:
            if program.ended():
                continue
            if not isinstance(program.process, subprocess.Popen):
                program.process.kill()
                program.process.wait(30)
            else:
                for pid in descendants(program.process.pid) + [program.process.pid]:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                program.process.wait()

    def collect_evidence(self):
        """What hangs says where: status and stacks, in files named after the job."""
        running = [program for program in self.programs if not program.ended()]
        if not running:
            return
        result = self.command("status", self.name, "--json", check_code=False, timeout=30)
        (self.case.work / f"{self.name}.status.json").write_text(result.stdout)
        with open(self.case.work / f"{self.name}.stacks.txt", "w") as sink:
            for pid in [pid for p in running if isinstance(p.process, subprocess.Popen)
                        for pid in [p.process.pid, *descendants(p.process.pid)]]:
                print(patience.doing(pid), file=sink, flush=True)

    # Commands.

    def command(self, *argv: str, timeout: float = 120, check_code: bool = True, environment: dict | None = None
                ) -> subprocess.CompletedProcess:
        """Runs `shadowib argv… --dir D`; Failure unless it exits 0."""
        words = [self.shadowib, *argv, "--dir", str(self.directory)]
        try:
            result = patience.run(words, timeout, text=True, errors="replace", env={**self.environment, **(environment or {})},
                                  **self.identity)
        except patience.TimedOut as late:
            raise Failure(f"`shadowib {' '.join(argv)}` did not end within {timeout:.0f} s\n{late.doing}") from None
        if argv[0] != "status":
            self.case.note(f"shadowib {' '.join(argv)}: {result.returncode} {result.stderr.strip()[-600:]}")
        if check_code:
            check(result.returncode == 0,
                  f"`shadowib {' '.join(argv)}` exited with {result.returncode}: {result.stderr.strip()}")
        return result

    def members(self) -> list[Member]:
        """The live members that answer, by index; empty if there is no job."""
        result = self.command("status", self.name, "--json", check_code=False, timeout=30)
        if result.returncode != 0:
            return []
        found = []
        for m in json.loads(result.stdout)["members"]:
            objects = (m.get("state") or {}).get("objects") or {}
            if m["alive"]:
                found.append(Member(m["index"], m["pid"], True, m["answered"], objects.get("queue_pairs") or []))
        return found

    def ready(self, how: str) -> bool:
        """One of READY."""
        in_status, command, in_kernel = READY[how]
        if not self.backend:
            return in_kernel in subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return in_status in self.command("status", self.name, "--json", check_code=False, timeout=30).stdout

    def end_server_after(self, timeout: float):
        """For a server that goes on for ever: waits for the client alone, which has to exit with 0."""
        server, client = self.programs
        self._wait(client, timeout)
        check(client.process.returncode == 0, f"{client.role} exited with {client.process.returncode}:\n{client.text()[-3000:]}")
        check(not server.ended(), f"the server ended: {server.text()[-2000:]}")
        server.process.terminate()
        self._wait(server, 30)

    def wait_data_phase(self, count: int = 2, beyond: int = 0, timeout: float = 60) -> list[Member]:
        """Waits until `count` members have connected queue pairs, and the counters of one in RTS move beyond `beyond`."""
        last: dict[int, tuple] = {}

        def moving():
            self.check_running()
            members = self.members()
            now = {m.index: m.counters() for m in members}
            moved = [m for m in members if m.sending() and m.index in last and now[m.index] != last[m.index]]
            last.update(now)
            good = len(members) == count and all(m.connected() for m in members) and moved and sends(members) > beyond
            return members if good else None

        return wait_for(f"{count} members with RTS queue pairs whose counters move", moving, timeout, 0.01)

    def check_running(self):
        for program in self.programs:
            check(not program.ended(), f"{program.role} ended (exit code {program.process.returncode}) in the data phase:\n"
                  f"{program.text()[-2000:]}")

    def await_members(self, count: int, whose: str, timeout: float = 60):
        """Until so many members live. Failure at once if a program has ended: then they never will."""
        def there():
            self.check_running()
            return len(self.members()) == count
        wait_for(f"the members of {whose}", there, timeout)

    def checkpoint(self, kill: bool = True, timeout: float = 60, environment: dict | None = None) -> str:
        """Takes a checkpoint; with `kill` waits until the processes are gone. Returns the set's path. OneEndFinished: it came
        when one program had ended well and the other had not, and that one was killed."""
        argv = ["checkpoint", self.name, "--timeout", str(timeout)] + (["--kill"] if kill else [])
        result = self.command(*argv, timeout=timeout + 30, environment=environment)
        lines = result.stdout.strip().splitlines()
        check(lines and os.path.isdir(lines[-1]), f"the last line of checkpoint is no set: {result.stdout!r}")
        self.sets.append(lines[-1])
        if kill:
            for program in self.programs:
                self._wait(program, 30)
            codes = [program.process.returncode for program in self.programs]
            if self.generation == 0 and 0 in codes and -signal.SIGKILL in codes:
                raise OneEndFinished(f"exit codes {codes}")
            for program in self.programs:
                expected = -signal.SIGKILL if self.generation == 0 else A_PROCESS_FAILED
                check(program.process.returncode == expected,
                      f"{program.role} ended with {program.process.returncode} after checkpoint --kill:\n"
                      f"{program.text()[-2000:]}")
            self.programs = []
        return lines[-1]

    def restart(self, path: str | None = None, environment: dict | None = None, prefix: tuple = (), options: tuple = ()) -> Program:
        """`prefix`: of the command, like unshare(1) and its words. `options`: of `restart`."""
        path = path or self.sets[-1]
        self.generation += 1
        argv = [*prefix, self.shadowib, "restart", path, "--dir", str(self.directory), *options]
        self.programs = [self._spawn(f"restart{self.generation}", argv, environment)]
        return self.programs[0]

    def restart_on(self, nodes: dict[int, int], environment: dict | None = None):
        """Each node starts its share: `nodes` by member."""
        self.generation += 1
        self.programs = []
        for node in sorted(set(nodes.values())):
            share = ",".join(str(member) for member, at in nodes.items() if at == node)
            argv = [self.shadowib, "restart", self.sets[-1], "--dir", str(self.directory), "--members", share]
            self.programs.append(self._spawn(f"restart{self.generation}-node{node}", argv, environment, node))

    def _wait(self, program: Program, timeout: float):
        try:
            program.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Failure(f"{program.role} did not end within {timeout:.0f} s:\n{program.text()[-2000:]}") from None

    def finish(self, timeout: float = 120):
        """Waits for the end of all programs: each has to exit with 0."""
        end = time.monotonic() + timeout
        for program in self.programs:
            self._wait(program, max(1.0, end - time.monotonic()))
        for program in self.programs:
            check(program.process.returncode == 0, f"{program.role} exited with {program.process.returncode}:\n"
                  f"{program.text()[-3000:]}")

    def output(self) -> str:
        return "\n".join(program.text() for program in self.everything)

    def remove_old_sets(self):
        """Keeps the disk from filling: only the newest set stays."""
        for path in self.sets[:-1]:
            shutil.rmtree(path, ignore_errors=True)
        self.sets = self.sets[-1:]


def finish_big(job: Job):
    """Lets the job's ci_big_processes check their memory and end."""
    (job.case.work / "finish").touch()
    job.finish()
    (job.case.work / "finish").unlink()
