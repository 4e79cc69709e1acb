"""What the tests of `shadowib supervise` share.

X_test.py BUILD_DIR [unittest options]: two of rdma-core's ibv_rc_pingpong are the job, where no other is named.
"""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = pathlib.Path(sys.argv[1]).resolve()
SHADOWIB = BUILD / "bin" / "shadowib"
TIMEOUT_S = 120
GIVEN_UP, SAVED = 70, 75

# Both ends; the code is the client's. With HIDE=1 it is 0, whatever becomes of them.
PAIR = r"""
ibv_rc_pingpong -p $1 -n $2 & server=$!
until grep -q ":$(printf %04X $1) .* 0A " /proc/net/tcp /proc/net/tcp6; do sleep 0.05; kill -0 $server || exit 9; done
ibv_rc_pingpong -p $1 -n $2 localhost
code=$?
wait
[ -z "$HIDE" ] || exit 0
exit $code
"""

# Members without a device: one stays, one executes itself and joins again, one becomes a shell, which is none.
ROLES = r"""
import ctypes, os, signal, subprocess, sys, time
role = sys.argv[1]
def note(name, text):
    with open(name + ".new", "w") as file: file.write(text)
    os.rename(name + ".new", name)
def until(name):
    while not os.path.exists(name): time.sleep(0.02)
def join():
    assert ctypes.CDLL(None).shadowib_join() == 0
if role == "command":
    count = 0
    def told(number, frame):
        global count
        count += 1
        note("told", str(count))
    note("told", "0")
    signal.signal(signal.SIGUSR1, told)
    children = [subprocess.Popen([sys.executable, "roles", name]) for name in ("stay", "again", "other")]
    sys.exit(sum(child.wait() for child in children))
if role == "deaf":
    signal.signal(signal.SIGHUP, lambda number, frame: note("told", ""))
    role = "stay"
if role == "stay":
    join()
    note("stays", "")
    until("end")
    sys.exit(int(open("end").read() or "0"))
until("stays")
join()
if role == "again":
    os.execv(sys.executable, [sys.executable, "roles", "second"])
if role == "second":
    note("again", str(os.getpid()))
if role == "other":
    os.execv("/bin/sh", ["sh", "-c", "echo $$ >it; mv it other; until [ -e over ]; do sleep 0.02; done"])
"""



def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


class SuperviseCase(unittest.TestCase):
    def setUp(self):
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="shadowib-supervise-"))
        self.dir = self.top / "ckpt"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("SHADOWIB_")}
        self.env["SHADOWIB_BACKEND"] = "ib2tcp"
        (self.top / "pair").write_text(PAIR)
        self.processes = []

    def tearDown(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        while running := self.running():
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        shutil.rmtree(self.top, ignore_errors=True)

    def running(self):
        """All processes of this test: they have its directory as theirs."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink(f"/proc/{pid}/cwd") == str(self.top) and not os.path.samefile(f"/proc/{pid}", "/proc/self"):
                    found.append(int(pid))
            except OSError:
                pass  # it has ended
        return found

    def command(self, *words, code=0):
        place = ["--dir", self.dir]
        done = subprocess.run([SHADOWIB, words[0], *place, *map(str, words[1:])], env=self.env, cwd=self.top, text=True,
                              capture_output=True, timeout=TIMEOUT_S)
        self.assertEqual(done.returncode, code, f"{words}\n{done.stdout}{done.stderr}")
        return done

    def supervise(self, *options, command, ignored=(), program=SHADOWIB, before=(), **variables):
        def ignore():
            for number in ignored:
                signal.signal(number, signal.SIG_IGN)
        return self.start(*before, program, "supervise", "--job", "demo", "--dir", self.dir, *options, "--", *command,
                          preexec_fn=ignore, env={**self.env, **variables})

    def start(self, *words, **options):
        log = self.top / f"log{len(self.processes)}"
        with open(log, "w") as out:
            process = subprocess.Popen(list(map(str, words)), cwd=self.top, stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT, **{"env": self.env, **options})
        process.log = log
        self.processes.append(process)
        return process

    def supervise_pair(self, *options, messages=500_000_000, **variables):
        return self.supervise(*options, command=("sh", "pair", free_port(), messages), **variables)

    def wait_for(self, what, condition, process=None):
        end = time.monotonic() + TIMEOUT_S
        while not (value := condition()):
            if process is not None:
                self.assertIsNone(process.poll(), process.log.read_text())
            self.assertLess(time.monotonic(), end, f"waited for {what}\n" + "".join(p.log.read_text() for p in self.processes))
            time.sleep(0.05)
        return value

    def members(self):
        done = subprocess.run([SHADOWIB, "status", "demo", "--json", "--dir", self.dir], env=self.env, text=True, capture_output=True,
                              timeout=TIMEOUT_S)
        return json.loads(done.stdout)["members"] if done.returncode == 0 else []

    def await_pair(self, process):
        def connected():
            alive = [m for m in self.members() if m["alive"] and m["state"]]
            pairs = [qp for m in alive for qp in m["state"]["objects"]["queue_pairs"]]
            return alive if len(pairs) == 2 and all(qp["state"] == "RTS" and qp["sends_posted"] > 0 for qp in pairs) else None
        return self.wait_for("both ends to be connected", connected, process)

    def pingpongs(self):
        found = []
        for pid in self.running():
            with contextlib.suppress(OSError):  # it has ended
                if "pingpong" in pathlib.Path(f"/proc/{pid}/comm").read_text():
                    found.append(pid)
        return found

    def events(self):
        return json.loads(self.command("history", "demo", "--json").stdout)["events"]

    def checkpoints(self):
        return [e["event"] for e in self.events()].count("checkpoint")

    def await_checkpoints(self, count, process):
        """Of a job that is saved every moment: a set may be gone before it is seen."""
        self.wait_for(f"{count} checkpoints", lambda: self.checkpoints() >= count, process)

    def end(self, process, code):
        self.assertEqual(process.wait(TIMEOUT_S), code, process.log.read_text())
        return process.log.read_text()

    def heir_of(self, process, *options):
        process.kill()
        process.wait()
        heir = self.supervise_pair(*options)
        self.wait_for("the heir", lambda: "the job runs already" in heir.log.read_text(), heir)
        return heir

    def await_told(self, process):
        self.wait_for("a member", lambda: (self.top / "stays").exists(), process)
        process.send_signal(signal.SIGHUP)
        self.wait_for("the signal", lambda: (self.top / "told").exists(), process)


def main():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and all below would
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
