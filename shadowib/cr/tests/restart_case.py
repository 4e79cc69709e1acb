"""A test of restarts: programs under the shim, in a directory of their own, that are checkpointed, killed and restarted.

For tests that are started as NAME.py BUILD_DIR PROGRAM [unittest options]; SHADOWIB_TEST_BACKEND=verbs: over an adapter instead
of ib2tcp.
"""
import contextlib
import ctypes
import fcntl
import functools
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import termios
import time
import unittest

CLONE_NEWIPC = 0x08000000


def enter_own_ipc_namespace():
    """A System V queue that nobody has used may be any program's, so it counts as the job's. Restarts put members into pid namespaces of
    their own, and members of several must not share one. An ordinary user stays in the machine's namespace. The tests
    run there, too: that is a note and no skip."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWIPC) != 0:
        print(f"note: no IPC namespace of its own ({os.strerror(ctypes.get_errno())}): unused System V queues of the machine may count as "
              "the job's", flush=True)


enter_own_ipc_namespace()
BUILD, PROGRAM = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
SHADOWIB = BUILD / "bin" / "shadowib"
TIMEOUT_S = 300
BACKEND = os.environ.get("SHADOWIB_TEST_BACKEND", "ib2tcp")
if BACKEND == "verbs":
    os.environ.setdefault("SHADOWIB_SIGNAL_EVERY", "64")  # the way that is not the usual one; other tests over adapters go that
TRANSPORTS = ("shm", "tcp") if BACKEND == "ib2tcp" else ("auto",)  # an adapter of the kernel's has none


def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def await_listener(port, process):
    """Until somebody listens there; looks into the kernel's table and makes no connection."""
    while not any(f":{port:04X} " in line and " 0A " in line
                  for table in ("tcp", "tcp6") for line in pathlib.Path("/proc/net", table).read_text().splitlines()):
        if process.poll() is not None:
            raise AssertionError(process.log.read_text())
        time.sleep(0.01)


def unshare(*namespaces):
    """Words that start a command in namespaces of its own."""
    return ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), *namespaces]


class RestartCase(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="shadowib-restart-"))
        self.processes = []

    def has_signals_at_once(self):
        """Skips a test whose program counts on that. ThreadSanitizer's runtime keeps them for later."""
        if BUILD.name == "tsan":
            why = "ThreadSanitizer holds signals back"
            self.skip(self._testMethodName, why)
            raise unittest.SkipTest(why)

    def skip(self, what, why):
        print(f"\nSKIPPED: {what}: {why}", flush=True)  # as ci/test reads it

    def tearDown(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def start(self, *words, transport="shm", place=None, terminal=None, by=(), log=None, pass_fds=(), **environment):
        """`terminal`: the slave of a pseudo-terminal, which becomes the process's standard input and controls it. `by`: words that
        start the command."""
        log = log or self.dir / f"{len(self.processes)}.log"
        settings = {**os.environ, "SHADOWIB_DIR": str(self.dir), "SHADOWIB_IB2TCP_TRANSPORT": transport, **environment}
        with open(log, "w") as out:
            control = functools.partial(fcntl.ioctl, 0, termios.TIOCSCTTY, 0)
            process = subprocess.Popen([*by, SHADOWIB, *map(str, words)], cwd=place or self.dir, env=settings,
                                       stdin=subprocess.DEVNULL if terminal is None else terminal, stdout=out, stderr=subprocess.STDOUT,
                                       start_new_session=terminal is not None, pass_fds=pass_fds, preexec_fn=None if terminal is None else control)
        process.log = log
        self.processes.append(process)
        return process

    def run_program(self, scenario, **options):
        return self.start("run", "--job", "j", "--backend", BACKEND, "--", PROGRAM, scenario, **options)

    def restart(self, number, *words, **options):
        for command in (self.dir / "jobs" / "j" / "alive").glob("*.ckpt*"):  # of the checkpoint: it outlives the program
            with open(command, "r+b") as lock:
                fcntl.lockf(lock, fcntl.LOCK_EX)
        return self.start("restart", self.dir / "sets" / f"j.{number:04}", *words, **options)

    def ends(self, process, code):
        try:
            ended = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            ended = "nothing: it runs on"  # another one's log may say why
        # What a restarted program says stands where it said it before, too.
        self.assertEqual(ended, code, "".join(p.log.read_text(errors="replace") for p in self.processes))

    def await_file(self, name):
        end = time.monotonic() + TIMEOUT_S
        while not (self.dir / name).exists():
            self.assertLess(time.monotonic(), end, f"no file {name}: " + "".join(p.log.read_text() for p in self.processes))
            time.sleep(0.01)

    def tell(self, name):
        """As the programs tell each other: the file is there with all it says, or not at all."""
        (self.dir / f"{name}.new").write_text("0 0")
        (self.dir / f"{name}.new").rename(self.dir / name)

    def in_exchange(self):
        """Of each key and barrier's entry its path, by components."""
        top = self.dir / "jobs" / "j" / "x"
        return [path.relative_to(top).parts for path in top.rglob("*") if path.is_file() and path.parent not in (top, *(top / name for name in (".tmp", ".alike", ".bundles")))]

    def newest(self):
        return len(list((self.dir / "sets").glob("j.????")))

    def alone(self, scenario, **options):
        self.ends(self.run_program(scenario, **options), -9)
        self.ends(self.restart(self.newest(), **options), 0)

    @contextlib.contextmanager
    def afresh(self, what):
        """A part of a test, in a directory of its own."""
        with self.subTest(what):
            self.tearDown()
            self.setUp()
            yield

    def alone_over_each(self, scenario):
        for transport in TRANSPORTS:
            with self.afresh(transport):
                self.alone(scenario, transport=transport)

    def checkpoint(self, *words):
        done = subprocess.run([SHADOWIB, "checkpoint", "j", *words], env={**os.environ, "SHADOWIB_DIR": str(self.dir)}, timeout=TIMEOUT_S,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr + "".join(p.log.read_text(errors="replace") for p in self.processes))

    def await_members(self, count):
        end = time.monotonic() + TIMEOUT_S
        while len(list((self.dir / "jobs" / "j" / "alive").glob("g0-*"))) < count:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def await_text(self, process, text):
        end = time.monotonic() + TIMEOUT_S
        while text not in process.log.read_text(errors="replace"):
            self.assertLess(time.monotonic(), end, f"it does not say {text!r}: {process.log.read_text()}")
            self.assertIsNone(process.poll(), process.log.read_text())
            time.sleep(0.01)
