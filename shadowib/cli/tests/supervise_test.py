"""Jobs that `shadowib supervise` keeps alive: members are killed, supervisors are killed, sets are damaged, the exchange is lost.

supervise_test.py BUILD_DIR [unittest options]: two of rdma-core's ibv_rc_pingpong are the job.
"""
import contextlib
import fcntl
import json
import os
import pathlib
import re
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
IO = 6
BUSY = 11
LOST_HOST = 21
PROCESS_FAILED = 20

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

# Both ends share no open file, and so may be restarted on two hosts.
APART = r"""
ibv_rc_pingpong -p $1 -n $2 </dev/null >server.log 2>&1 & server=$!
until grep -q ":$(printf %04X $1) .* 0A " /proc/net/tcp /proc/net/tcp6; do sleep 0.05; kill -0 $server || exit 9; done
ibv_rc_pingpong -p $1 -n $2 localhost </dev/null >client.log 2>&1
wait
"""

# A remote shell that knows hosts by name only. Each restart on a host has its members in a line of `restarts`.
RSH = r"""
host=$1
shift
[ ! -e down.$host ] || exit 255
case "$*" in *"'restart'"*) echo $$ >pid.$host; echo "$host ${*##* }" >>restarts;; esac
exec sh -c "$*"
"""

# Instead of the second end in the foreground: SIGTERM goes to the first end.
TOLD = r"""$2 localhost &
trap 'kill -TERM $server' TERM
>trapped
while kill -0 $server 2>/dev/null; do wait; done
exit 7
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


# Writes its lines to a file, one by one.
LINES = r"""
import ctypes, os, time
assert ctypes.CDLL(None).shadowib_join() == 0
file = os.open("lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
n = 0
while True:
    n += 1
    os.write(file, b"%d\n" % n)
    time.sleep(0.02)
"""


def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


class Supervise(unittest.TestCase):
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

    def test_the_result_is_the_command_s(self):
        self.end(self.supervise_pair(messages=1000), 0)
        self.end(self.supervise(command=("sh", "-c", "exit 3")), 3)
        self.assertEqual([e["event"] for e in self.events()].count("ended"), 2)

    def test_the_job_is_saved_before_its_time_is_over(self):
        (self.top / "roles").write_text(ROLES)
        process = self.supervise("--interval", "1000", "--until", "60s", command=(sys.executable, "roles", "deaf"))
        self.await_told(process)
        self.assertIn("the job is saved and has ended", self.end(process, SAVED))
        self.assertEqual([(e["event"], e.get("kill")) for e in self.events()], [("started", None), ("checkpoint", True)])
        # The next one goes on. It has time.
        process = self.supervise("--until", "slurm", command=("false",), SLURM_JOB_END_TIME=str(int(time.time()) + 3600))
        self.wait_for("a restart", lambda: "restored 1 process" in process.log.read_text(), process)
        (self.top / "end").touch()
        self.end(process, 0)

    def test_the_next_checkpoint_would_be_after_the_time(self):
        """The end of the first one plans it so. The last one comes all the same, as early as one has taken: 24 s before the end."""
        (self.top / "roles").write_text(ROLES)
        self.remember(16)
        process = self.supervise("--interval", "34", "--until", "66", command=(sys.executable, "roles", "stay"))
        self.assertIn("the job is saved and has ended", self.end(process, SAVED))

    def test_the_time_is_over(self):
        """Nothing can be saved: the job ends all the same, and nothing is started when there is no time for it."""
        process = self.supervise("--until", "16", "--on-event", 'echo "$SHADOWIB_EVENT/$SHADOWIB_EVENT_TEXT" >event',
                                 command=("sh", "-c", ">begun; sleep 1000"))
        self.assertIn("the time is over (--until), and the job has no set", self.end(process, SAVED))
        self.assertEqual((self.top / "event").read_text(), "time_over/the time is over (--until), and the job has no set\n")
        self.wait_for("the end of all", lambda: not self.running())
        process = self.supervise("--until", "30", command=("sh", "-c", "echo >>starts; kill -9 $$"))
        self.assertIn("the time is over (--until); start this command again", self.end(process, SAVED))
        for wrong, why in {"soon": "is no time", "@5": "has passed", "slurm": "SLURM_JOB_END_TIME is not set"}.items():
            self.assertIn(why, self.end(self.supervise("--until", wrong, command=("true",)), 2))

    def remember(self, took_s):
        """As if one checkpoint had taken so long."""
        history = self.dir / "history" / "demo"
        history.mkdir(parents=True, exist_ok=True)
        event = {"time": "2026-01-01T00:00:00.000000Z", "event": "checkpoint", "host": "other", "took_ms": took_s * 1000}
        (history / "other.1.jsonl").write_text(json.dumps(event) + "\n")

    def supervise_noticed(self, notice, *options, **variables):
        """A member that stays. What is put into the file `left` is the notice."""
        (self.top / "roles").write_text(ROLES)
        process = self.supervise("--interval", "1000", "--notice", notice, *options, command=(sys.executable, "roles", "stay"), **variables)
        self.wait_for("a member", lambda: (self.top / "stays").exists(), process)
        return process

    def notices(self):
        """An answer that stays as it is puts the end off again and again: each is a notice."""
        return {(e["fits"], e.get("left_s")) for e in self.events() if e["event"] == "notice"}

    def await_answers(self, process, count):
        asked = self.top / "asked"
        before = len(asked.read_text()) if asked.exists() else 0
        self.wait_for("answers", lambda: asked.exists() and len(asked.read_text()) >= before + count, process)

    def test_a_notice_that_leaves_time(self):
        """The job goes on as long as a save of 1000 s has time, then it is saved and ends. Words that are no numbers change nothing."""
        self.remember(1000)
        ask = "printf . >>asked; echo complaint >&2; cat left 2>/dev/null"
        process = self.supervise_noticed(ask, "--on-event", 'echo "$SHADOWIB_EVENT" >>events')
        self.await_answers(process, 1)
        (self.top / "left").write_text("2000\n")
        self.wait_for("the notice", self.notices, process)
        self.assertEqual(self.notices(), {(True, 2000)})
        (self.top / "left").write_text("soon\n")
        self.wait_for("a complaint", lambda: "'soon' is no number of seconds" in process.log.read_text(), process)
        (self.top / "left").unlink()
        self.wait_for("the withdrawal", lambda: "the notice is withdrawn" in process.log.read_text(), process)
        self.assertEqual(self.checkpoints(), 1, "only the remembered one")
        (self.top / "left").write_text("1501\n")  # 1.5 times as long: one second passes, or has passed
        said = self.end(process, SAVED)
        self.assertIn("notice: the place goes away in 1501.0 s; the job is saved before", said)
        self.assertIn("the job is saved and has ended", said)
        self.assertEqual(self.notices(), {(True, 2000), (True, 1501)})
        self.assertEqual([e.get("kill") for e in self.events() if e["event"] == "checkpoint"], [None, True])
        self.assertEqual(set((self.top / "events").read_text().split()), {"notice", "saved"})

    def test_a_notice_that_leaves_too_little_time(self):
        """Nothing is begun, the good set stays, and the next start goes on from it."""
        self.remember(1000)
        ask = "end=$(cat end_s 2>/dev/null) || exit; now=$(date +%s); echo $((end > now ? end - now : 0))"
        process = self.supervise_noticed(ask)
        self.command("checkpoint", "demo")
        (self.top / "new").write_text(str(int(time.time()) + 8))
        (self.top / "new").rename(self.top / "end_s")
        said = self.end(process, SAVED)
        self.assertRegex(said, r"notice: the place goes away in [0-8].0 s, and a save is to have 15\d\d.\d s: none is begun; "
                               r"[0-9.]+ minutes since the newest set will be lost")
        self.assertIn("the time is over (--notice): ", said)
        [(fits, left_s)] = self.notices()
        self.assertTrue(not fits and left_s <= 8)
        self.assertEqual(self.checkpoints(), 2, "the remembered one, and the one by hand")
        self.assertEqual([path.name for path in (self.dir / "sets").glob("demo.*")], ["demo.0001"])
        self.assertIn("too late for it", self.command("history", "demo").stdout)
        (self.top / "end_s").unlink()
        process = self.supervise("--notice", ask, command=("false",))
        self.wait_for("a restart", lambda: "restored 1 process" in process.log.read_text(), process)
        (self.top / "end").touch()
        self.end(process, 0)

    def test_a_notice_by_a_signal(self):
        """It does not come to the job. Where nobody knows how long a save takes, or what is left, it begins at once."""
        for notice, sent in (("USR1@1h", signal.SIGUSR1), ("SIGXCPU", signal.SIGXCPU)):
            process = self.supervise_noticed(notice)
            if sent == signal.SIGXCPU:
                self.wait_for("a restart", lambda process=process: "restored 1 process" in process.log.read_text(), process)
            process.send_signal(sent)
            self.assertIn("the job is saved and has ended", self.end(process, SAVED))
        self.assertEqual(self.notices(), {(True, 3600), (True, None)})
        for wrong in ("KILL", "USR1@soon"):
            self.assertIn("--notice", self.end(self.supervise("--notice", wrong, command=("true",)), 2))

    def test_members_on_several_hosts(self):
        """Hosts are pretended. One does not answer at first, one is lost twice, and is left out then."""
        (self.top / "apart").write_text(APART)
        (self.top / "rsh").write_text(RSH)
        (self.top / "down.c").touch()
        process = self.supervise("--interval", "1000", "--hosts", "c:1,a:1,b:1", "--rsh", "sh rsh",
                                 command=("sh", "apart", free_port(), 500_000_000))

        def await_restart(number):
            self.wait_for(f"restart {number}", lambda: process.log.read_text().count("restored ") >= number, process)
            self.await_pair(process)
            self.command("checkpoint", "demo")
        self.await_pair(process)
        self.command("checkpoint", "demo")
        os.kill(self.pingpongs()[0], signal.SIGKILL)
        await_restart(2)
        self.assertIn("host c does not answer; it is left out", process.log.read_text())
        self.assertEqual(sorted((self.top / "restarts").read_text().splitlines()), ["a '0'", "b '1'"])
        for loss in (1, 2):
            os.kill(int((self.top / "pid.b").read_text()), signal.SIGKILL)
            self.wait_for("the loss", lambda loss=loss: process.log.read_text().count("lost host b") == loss, process)
            await_restart((4, 5)[loss - 1])
        self.assertEqual(sorted((self.top / "restarts").read_text().splitlines()), ["a '0'", "a '0'", "a '0,1'", "b '1'", "b '1'"])
        self.assertEqual(len(self.pingpongs()), 2, "survivors of earlier lives")
        self.assertEqual([e["on"] for e in self.events() if e["event"] == "host_lost"], ["b", "b"])
        self.command("checkpoint", "demo", "--kill")
        self.end(process, SAVED)
        self.wait_for("the end of all", lambda: not self.running())

    def restart_on_hosts(self):
        """A pair that was saved on this one, on two pretended hosts."""
        (self.top / "apart").write_text(APART)
        (self.top / "rsh").write_text(RSH)
        process = self.supervise("--interval", "1000", command=("sh", "apart", free_port(), 500_000_000))
        self.await_pair(process)
        self.command("checkpoint", "demo", "--kill")
        self.end(process, SAVED)
        restart = self.start(SHADOWIB, "restart", "demo", "--dir", self.dir, "--hosts", "a:1,b:1", "--rsh", "sh rsh")
        self.await_pair(restart)
        return restart

    def test_what_holds_members_on_a_host(self):
        """The end of the command that has started them, also by SIGKILL: nothing lives on unseen."""
        restart = self.restart_on_hosts()
        restart.kill()
        restart.wait()
        self.wait_for("the end of all", lambda: not self.running())
        (self.top / "down.a").touch()
        self.assertIn("lost host a: its remote shell failed",
                      self.command("restart", "demo", "--hosts", "a:1,b:1", "--rsh", "sh rsh", code=LOST_HOST).stderr)
        self.wait_for("the end of all", lambda: not self.running())
        (self.top / "down.a").unlink()
        # A command that stands still says nothing, and its pipes do not end.
        restart = self.start(SHADOWIB, "restart", "demo", "--dir", self.dir, "--hosts", "a:1,b:1", "--rsh", "sh rsh", "--lease", "5")
        self.await_pair(restart)
        restart.send_signal(signal.SIGSTOP)
        self.wait_for("the end of members", lambda: not self.pingpongs())
        restart.send_signal(signal.SIGCONT)
        self.assertIn("no word of the command that has started these members for 5 s", self.end(restart, LOST_HOST))
        self.wait_for("the end of all", lambda: not self.running())
        # One host finds its image damaged, after the other has begun.
        image = sorted((self.dir / "sets/demo.0001").glob("*.img"))[1]
        with open(image, "r+b") as file:
            file.truncate(image.stat().st_size // 2)
        said = self.end(self.supervise("--hosts", "a:1,b:1", "--rsh", "sh rsh", command=("false",)), GIVEN_UP)
        self.assertIn("none of the job's 1 sets can be restarted", said)
        self.wait_for("the end of all", lambda: not self.running())
        self.assertIn("--hosts does not go with", self.command("restart", "demo", "--hosts", "a", "--members", "0", code=2).stderr)
        self.assertIn("is no HOST:SLOTS", self.command("restart", "demo", "--hosts", "a:0", code=2).stderr)
        self.assertIn("--lease S goes with --hosts", self.end(self.supervise("--lease", "5", command=("true",)), 2))
        for wrong, why in {"a:x": "is no HOST:SLOTS", "slurm": "SLURM_JOB_NODELIST is not set"}.items():
            self.assertIn(why, self.end(self.supervise("--hosts", wrong, command=("true",)), 2))

    def test_members_that_write_by_one_offset_stay_on_one_host(self):
        (self.top / "roles").write_text(ROLES)
        (self.top / "rsh").write_text(RSH)
        with open(self.top / "output", "wb") as output:
            output.write(b"something")
            output.flush()
            processes = [self.start(SHADOWIB, "run", "--job", "demo", "--dir", self.dir, "--", sys.executable, "roles", "stay",
                                    pass_fds=[output.fileno()]) for _ in range(3)]
        self.wait_for("members", lambda: len([m for m in self.members() if m["state"]]) == 3)
        self.command("checkpoint", "demo", "--kill")
        for process in processes:
            process.wait(TIMEOUT_S)
        said = self.command("verify", "demo").stdout
        self.assertEqual(said.count("by one offset"), 1, said)
        self.assertIn("1 more pair of members", said)
        self.assertEqual([b["members"] for b in json.loads(self.command("verify", "demo", "--json").stdout)["one_offset"]], [[0, 1], [0, 2]])
        self.assertRegex(self.command("restart", "demo", "--members", "0", code=4).stderr, r"file .*/output\).* restart --hosts .*O_APPEND")
        restart = self.start(SHADOWIB, "restart", "demo", "--dir", self.dir, "--hosts", "a:2,b:1", "--rsh", "sh rsh")
        self.wait_for("a restart", lambda: len([m for m in self.members() if m["alive"] and m["state"]]) == 3, restart)
        self.assertEqual((self.top / "restarts").read_text(), "a '0,1,2'\n")
        (self.top / "end").touch()
        self.end(restart, 0)

    def test_a_signal_goes_to_members_on_other_hosts(self):
        """Not to the command that has started them, which would end, and they with it."""
        self.env["SHADOWIB_CHECKPOINT_ON"] = "USR1"
        restart = self.restart_on_hosts()
        restart.send_signal(signal.SIGUSR1)
        self.wait_for("the set", lambda: (self.dir / "sets/demo.0002").exists(), restart)
        self.await_pair(restart)
        restart.send_signal(signal.SIGTERM)
        self.end(restart, PROCESS_FAILED)
        self.wait_for("the end of all", lambda: not self.running())

    def test_a_signal_while_the_job_is_ended(self):
        """Something holds the end up. A signal of before does not stop the waiting for it, one that comes then does."""
        process = self.supervise("--until", "20", command=("sh", "-c", "trap '' HUP; >begun; sleep 1000"))
        self.wait_for("the command", lambda: (self.top / "begun").exists(), process)
        process.send_signal(signal.SIGHUP)
        with open(self.dir / "jobs/demo/alive/restart", "w") as restart:
            fcntl.lockf(restart, fcntl.LOCK_EX)
            self.wait_for("the end to be held up", lambda: "the command that holds restart" in process.log.read_text(), process)
            process.terminate()
            self.end(process, SAVED)

    def test_a_command_hears_of_events(self):
        """It outlives the end of the job's processes, and what it needs is in its environment."""
        tells = 'sleep 0.5; echo "$SHADOWIB_EVENT/$SHADOWIB_JOB/$SHADOWIB_DIR/$SHADOWIB_EVENT_SET/$SHADOWIB_EVENT_TEXT" >>events'
        said = self.end(self.supervise("--on-event", tells, "--restarts", "2", command=("sh", "-c", "kill -9 $$")), GIVEN_UP)
        how, place = "the command was killed by signal 9", f"demo/{self.dir}"
        self.assertEqual(sorted((self.top / "events").read_text().splitlines()), sorted(
            [f"failure/{place}//{how}", f"restart/{place}//{how}", f"failure/{place}//{how}",
             f"given_up/{place}//2 failures without a newer set; the last: {how}"]), said)

    def test_a_set_is_in_the_event(self):
        (self.top / "roles").write_text(ROLES)
        told = self.top / "events"
        tells = 'echo "$SHADOWIB_EVENT $SHADOWIB_EVENT_SET" >>events'
        process = self.supervise("--interval", "1000", "--on-event", tells, command=(sys.executable, "roles", "stay"))
        self.wait_for("a member", lambda: (self.top / "stays").exists(), process)
        self.command("checkpoint", "demo", "--kill")
        self.end(process, SAVED)
        self.assertEqual(told.read_text(), "saved demo.0001\n")
        image = next((self.dir / "sets/demo.0001").glob("*.img"))
        with open(image, "r+b") as file:
            file.truncate(image.stat().st_size // 2)
        self.end(self.supervise("--on-event", tells, command=("false",)), GIVEN_UP)
        self.assertEqual(sorted(told.read_text().splitlines()),
                         ["given_up demo.0001", "refused demo.0001", "restart demo.0001", "saved demo.0001"])

    def test_codes_that_are_failures(self):
        """Of the command, and of a restarted member, which has the command's place."""
        process = self.supervise("--retry-on", "4,7-9", command=("sh", "-c", "[ -e first ] && exit 3; >first; exit 8"))
        self.assertIn("the job ended with exit code 8 (--retry-on)", self.end(process, 3))
        self.assertEqual([e["event"] for e in self.events()], ["started", "failure", "started", "ended"])
        for wrong in ("0", "5-3", "many"):
            self.assertIn("use exit codes from 1 to 255", self.end(self.supervise("--retry-on", wrong, command=("true",)), 2))

    def test_a_code_of_a_restarted_member(self):
        (self.top / "roles").write_text(ROLES)
        process = self.supervise("--interval", "1000", command=(sys.executable, "roles", "stay"))
        self.wait_for("a member", lambda: (self.top / "stays").exists(), process)
        self.command("checkpoint", "demo", "--kill")
        self.end(process, SAVED)
        process = self.supervise("--retry-on", "6", "--restarts", "2", command=("false",))
        self.wait_for("a restart", lambda: "restored 1 process" in process.log.read_text(), process)
        (self.top / "six").write_text("6")
        (self.top / "six").rename(self.top / "end")
        said = self.end(process, GIVEN_UP)
        self.assertEqual(said.count("restored 1 process"), 2)
        self.assertIn("the job ended with exit code 6", said)

    def test_signals_that_the_caller_ignores(self):
        """nohup ignores SIGHUP, some services SIGCHLD. So does the command then, and only it."""
        ignored = (signal.SIGHUP, signal.SIGCHLD)
        script = "import os, sys, time\n" \
                 "open('ignored', 'w').write(open('/proc/self/status').read())\n" \
                 "while not os.path.exists('go'): time.sleep(0.05)\n" \
                 "sys.exit(3)"
        process = self.supervise(command=(sys.executable, "-c", script), ignored=ignored)
        mask = self.wait_for("the command", lambda: (self.top / "ignored").exists() and re.search(r"SigIgn:\s*([0-9a-f]+)", (self.top / "ignored").read_text()), process)
        process.send_signal(signal.SIGHUP)
        (self.top / "go").touch()
        self.end(process, 3)
        self.assertEqual([e["event"] for e in self.events()], ["started", "ended"])
        for number in ignored:
            self.assertTrue(int(mask[1], 16) & (1 << (number - 1)), mask[0])
        # The processes of a restart are waited for, too.
        for restarts in range(2):
            process = self.supervise_pair("--interval", "1000", ignored=ignored)
            self.await_pair(process)
            process.send_signal(signal.SIGHUP)
            self.command("checkpoint", "demo", "--kill")
            self.assertEqual("restored 2 processes" in self.end(process, SAVED), restarts == 1)

    def test_a_number_of_processes_that_is_none(self):
        """It comes to the program past the command."""
        for value in ("few", "0", "100001", "1234567"):
            said = self.command("run", "--job", "demo", "--", "env", f"SHADOWIB_PROCESSES={value}", "ibv_rc_pingpong", code=1).stderr
            self.assertIn(f"SHADOWIB_PROCESSES='{value}' is no number of processes", said)

    def test_a_killed_member_is_no_result(self):
        """Before the first set the job begins anew; then it restarts. The command hides all that."""
        process = self.supervise_pair("--interval", "1000", HIDE="1")
        self.await_pair(process)
        os.kill(self.pingpongs()[0], signal.SIGKILL)
        self.wait_for("a second start", lambda: "starting from the beginning" in process.log.read_text(), process)
        self.await_pair(process)
        self.command("checkpoint", "demo")
        os.kill(self.pingpongs()[1], signal.SIGKILL)
        self.wait_for("a restart", lambda: "restored 2 processes" in process.log.read_text(), process)
        self.await_pair(process)
        self.assertEqual(len(self.pingpongs()), 2, "survivors of earlier lives")
        self.command("checkpoint", "demo", "--kill")
        self.end(process, SAVED)
        self.assertEqual([e["event"] for e in self.events() if e["event"] != "ended"],
                         ["started", "failure", "started", "checkpoint", "failure", "restart", "checkpoint"])
        # What was ended on request goes on where it was, and is taken over from a supervisor that dies.
        process = self.supervise_pair("--interval", "1000")
        self.wait_for("a restart", lambda: "restored 2 processes" in process.log.read_text(), process)
        self.assertNotIn("rolled back", process.log.read_text())
        second = self.supervise_pair()
        self.assertIn("is supervised already", self.end(second, BUSY))
        self.await_pair(process)
        heir = self.heir_of(process, "--interval", "1000")
        os.kill(self.pingpongs()[0], signal.SIGKILL)
        self.wait_for("a restart", lambda: "restored 2 processes" in heir.log.read_text(), heir)
        self.await_pair(heir)
        self.assertEqual(len(self.pingpongs()), 2, "survivors of earlier lives")
        heir.terminate()
        self.end(heir, 128 + signal.SIGTERM)
        self.wait_for("the end of all", lambda: not self.running())

    def test_the_exchange_is_gone_and_a_member_too(self):
        """And the command says that all is well."""
        process = self.supervise_pair("--interval", "1000", "--restarts", "1", HIDE="1")
        self.await_pair(process)
        place = self.dir / "jobs" / "demo" / "x"
        place.rename(self.top / "lost")
        place.touch()  # no directory that could be made again
        os.kill(self.pingpongs()[0], signal.SIGKILL)
        said = self.end(process, GIVEN_UP)
        self.assertIn("died", said)
        self.wait_for("the end of all", lambda: not self.running())

    def test_checkpoints_are_taken_and_old_sets_go(self):
        process = self.supervise_pair("--interval", "0.3", "--keep", "1", "--metrics", "figures")
        self.wait_for("a set", lambda: list((self.dir / "sets").glob("demo.*")), process)
        self.await_checkpoints(3, process)
        self.wait_for("old sets to go", lambda: len(list((self.dir / "sets").glob("demo.*"))) == 1, process)
        self.wait_for("figures", lambda: (self.top / "figures").exists(), process)
        self.assertIn("shadowib_checkpoints_total", (self.top / "figures").read_text())

    def test_a_signal_that_saves(self):
        """A batch system's signal: the job saves itself and ends. The code says so, and not how a shell took it."""
        (self.top / "told").write_text(PAIR.split("$2 localhost")[0] + TOLD)
        process = self.supervise("--interval", "1000", command=("sh", "told", free_port(), 500_000_000), SHADOWIB_KILL_ON="TERM")
        self.await_pair(process)
        self.wait_for("the trap", lambda: (self.top / "trapped").exists(), process)
        process.terminate()
        self.end(process, SAVED)
        # After a restart, and to a supervisor that has found it running.
        process = self.supervise_pair("--interval", "1000")
        self.wait_for("a restart", lambda: "restored 2 processes" in process.log.read_text(), process)
        self.await_pair(process)
        heir = self.heir_of(process, "--interval", "1000")
        heir.terminate()
        self.end(heir, SAVED)

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

    def test_a_job_that_goes_on_after_a_signal(self):
        """It may read its settings again, or take its time to end: it is saved as before."""
        (self.top / "roles").write_text(ROLES)
        process = self.supervise("--interval", "0.3", "--keep", "1", command=(sys.executable, "roles", "deaf"))
        self.await_told(process)
        self.await_checkpoints(self.checkpoints() + 2, process)  # one may have been under way
        (self.top / "end").touch()
        self.end(process, 0)

    def test_signals_come_to_an_adopted_job(self):
        """It may act on them. The command below a second `run` gets them from the one above, if at all."""
        listens = "import os, signal, sys, time\n" \
                  "name = sys.argv[1]\n" \
                  "def told(number, frame): open(name, 'a').write(f'{signal.Signals(number).name} ')\n" \
                  "for number in (signal.SIGUSR1, signal.SIGTERM): signal.signal(number, told)\n" \
                  "open(name, 'w').close()\n" \
                  "below = len(sys.argv) > 2 and os.spawnlp(os.P_NOWAIT, sys.argv[2], *sys.argv[2:])\n" \
                  "while 'SIGTERM' not in open(name).read(): time.sleep(0.05)\n" \
                  "if below: os.kill(below, signal.SIGKILL)\n" \
                  "sys.exit(5)"
        (self.top / "listens").write_text(listens)
        listens = (sys.executable, "listens")
        process = self.supervise(command=(*listens, "first", SHADOWIB, "run", "--job", "demo", "--dir", self.dir, "--", *listens, "second"))
        for name in ("first", "second"):
            self.wait_for(name, lambda name=name: (self.top / name).exists(), process)
        heir = self.heir_of(process)
        heir.send_signal(signal.SIGUSR1)
        self.wait_for("the signal", lambda: (self.top / "first").read_text() == "SIGUSR1 ", heir)
        heir.terminate()
        self.end(heir, 128 + signal.SIGTERM)
        self.assertEqual((self.top / "first").read_text(), "SIGUSR1 SIGTERM ")
        self.assertEqual((self.top / "second").read_text(), "")

    def test_members_that_nobody_tells_to_end(self):
        """The shell that was told has ended without a word to them."""
        process = self.supervise_pair("--interval", "1000")
        self.await_pair(process)
        process.terminate()
        self.end(process, 128 + signal.SIGTERM)
        self.wait_for("the end of all", lambda: not self.running())

    def test_a_signal_while_the_rest_is_ended(self):
        """A member on a lost host holds up the end of those that nobody has told. One more signal ends the waiting."""
        (self.top / "roles").write_text(ROLES)
        process = self.supervise("--interval", "1000", command=("sh", "-c", f"{sys.executable} roles stay & wait"))
        self.wait_for("a member", lambda: (self.top / "stays").exists(), process)
        member, = (m["pid"] for m in self.members())
        epoch = (self.dir / "jobs/demo/epoch").read_text().strip()
        with open(self.dir / "jobs/demo/alive" / f"{epoch}.7", "w") as lost:
            fcntl.lockf(lost, fcntl.LOCK_EX)
            process.terminate()
            self.wait_for("the end of the member here", lambda: member not in self.running(), process)
            process.send_signal(signal.SIGHUP)
            said = self.end(process, 128 + signal.SIGHUP)
        self.assertIn("a signal ends the waiting: processes of the job may live on", said)

    def test_members_whose_restart_is_on_another_host(self):
        """It holds its lock as long as they live, and nobody here can tell it of a signal."""
        (self.top / "roles").write_text(ROLES)
        job = self.dir / "jobs" / "demo"
        member = self.start(SHADOWIB, "run", "--job", "demo", "--dir", self.dir, "--", sys.executable, "roles", "stay")
        self.wait_for("a member", lambda: (self.top / "stays").exists(), member)
        for started in (job / "started").iterdir():
            started.rename(started.with_name("elsewhere," + started.name.partition(",")[2]))
        (job / "alive" / "restart").write_text("elsewhere 1 1\n")
        with open(job / "alive" / "restart", "r+") as restart:
            fcntl.lockf(restart, fcntl.LOCK_EX)
            process = self.supervise("--interval", "1000", command=("false",))
            self.wait_for("the supervisor", lambda: "the job runs already" in process.log.read_text(), process)
            process.terminate()
            self.wait_for("the end of the member", lambda: member.poll() is not None, process)
        self.end(process, 128 + signal.SIGTERM)

    def test_an_upgrade_meanwhile(self):
        """The command's file is replaced, as a package manager does. Then it is gone for a moment, and at last for good."""
        (self.top / "bin").mkdir()
        (self.top / "lib").symlink_to(BUILD / "lib")
        program, other = self.top / "bin" / "shadowib", self.top / "bin" / "other"
        script = 'n=$(ls | grep -c ^start); >start$n; until [ -e go$n ]; do sleep 0.05; done; kill -9 $$'
        shutil.copy(SHADOWIB, program)
        process = self.supervise("--restarts", "6", command=("sh", "-c", script), program=program)
        for start in range(3):
            self.wait_for("a start", lambda start=start: (self.top / f"start{start}").exists(), process)
            if start == 0:
                shutil.copy(SHADOWIB, other)
                other.rename(program)
            else:
                program.rename(other)
            (self.top / f"go{start}").touch()
            if start == 1:
                self.wait_for("a try", lambda: "cannot execute" in process.log.read_text(), process)
                other.rename(program)
        said = self.end(process, GIVEN_UP)
        self.assertRegex(said, f"given up: 6 failures without a newer set; the last: cannot execute {program}")

    def test_children_of_before_are_spared(self):
        """A batch script starts a helper, and becomes the supervisor by exec."""
        (self.top / "script").write_text('(sleep 1000 & echo $! >below; wait) & echo $! >helper\nuntil [ -s below ]; do sleep 0.05; done\nexec "$@"\n')
        failing = "[ -e first ] && exit 3; >first; sleep 1000 & echo $! >own; kill -9 $$"
        process = self.supervise(command=("sh", "-c", failing), before=("sh", "script"))
        self.end(process, 3)
        self.assertFalse(self.lives("own"), "the job's own was left")
        for name in ("helper", "below"):
            self.assertTrue(self.lives(name), f"{name} was ended")

    def lives(self, name):
        """The process whose number is in that file."""
        stat = pathlib.Path("/proc", (self.top / name).read_text().strip(), "stat")
        try:
            return stat.read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def test_a_job_that_is_a_child_of_before(self):
        """A container's script starts the job, and becomes its supervisor by exec."""
        (self.top / "roles").write_text(ROLES)
        (self.top / "job").write_text(f"sleep 1000 & echo $! >own\n{sys.executable} roles stay & echo $! >member\nwait\n")
        (self.top / "script").write_text(f"sleep 1000 & echo $! >helper\n{SHADOWIB} run --job demo --dir {self.dir} -- sh job &\n"
                                         'until [ -e stays ] && [ -s member ]; do sleep 0.05; done\nexec "$@"\n')
        process = self.supervise(command=("sh", "-c", "exit 3"), before=("sh", "script"))
        self.wait_for("the supervisor", lambda: "the job runs already" in process.log.read_text(), process)
        os.kill(int((self.top / "member").read_text()), signal.SIGKILL)
        self.assertIn("died", self.end(process, 3))
        self.assertFalse(self.lives("own"), "the job's own was left")
        self.assertTrue(self.lives("helper"), "helper was ended")

    def test_a_set_saved_before_is_none_of_this_start(self):
        """It is damaged: nothing can be restarted, and so nothing is "saved, start me again"."""
        process = self.supervise_pair("--interval", "1000")
        self.await_pair(process)
        self.command("checkpoint", "demo", "--kill")
        self.end(process, SAVED)
        image = next((self.dir / "sets/demo.0001").glob("*.img"))
        with open(image, "r+b") as file:
            file.truncate(image.stat().st_size // 2)
        self.assertIn("none of the job's 1 sets can be restarted", self.end(self.supervise_pair(), GIVEN_UP))

    def broken_off(self, *options, **variables):
        """A member, and `checkpoint --kill` whose command does not come to tell it of its end."""
        (self.top / "roles").write_text(ROLES)
        for name in ("stays", "end", "far-called"):
            (self.top / name).unlink(missing_ok=True)
        process = self.supervise("--interval", "1000", command=(sys.executable, "roles", "stay"))
        self.wait_for("a member", lambda: (self.top / "stays").exists(), process)
        command = self.start(SHADOWIB, "checkpoint", "demo", "--kill", "--dir", self.dir, *options, env={**self.env, **variables})
        return process, command

    def test_a_save_that_is_broken_off_at_the_far_place(self):
        """The set is committed, and the command is ended while it copies it. The job goes on, and its end is its own."""
        far = self.top / "far"
        far.write_text("#!/bin/sh\n>far-called\nexec sleep 1000\n")
        far.chmod(0o755)
        process, command = self.broken_off("--flush", "all", "--far", f"exec:{far}")
        self.wait_for("the copy", lambda: (self.top / "far-called").exists(), process)
        command.terminate()
        self.assertEqual(command.wait(TIMEOUT_S), -signal.SIGTERM)
        (self.top / "end").touch()
        self.end(process, 0)
        self.assertNotIn("checkpoint", [e["event"] for e in self.events()])

    def test_a_save_that_is_broken_off_before_it_is_told(self):
        """By SIGKILL, at the only moment when the history says more than the members know. A death later is a death."""
        process, command = self.broken_off(SHADOWIB_FAULT="232:crash")
        self.assertEqual(command.wait(TIMEOUT_S), -signal.SIGKILL)
        self.wait_for("the supervisor's note", lambda: "kill_failed" in [e["event"] for e in self.events()], process)
        (pid,) = [m["pid"] for m in self.members() if m["alive"]]
        os.kill(pid, signal.SIGKILL)
        self.wait_for("a restart", lambda: "restored 1 process" in process.log.read_text(), process)
        (self.top / "end").touch()
        self.end(process, 0)
        self.assertEqual([e["event"] for e in self.events()], ["started", "checkpoint", "kill_failed", "failure", "restart", "ended"])

    def member_alone(self):
        """A member that nobody supervises."""
        (self.top / "roles").write_text(ROLES)
        process = self.start(SHADOWIB, "run", "--job", "demo", "--dir", self.dir, "--", sys.executable, "roles", "stay")
        self.wait_for("a member", lambda: (self.top / "stays").exists(), process)
        return process

    def supervise_what_ended(self):
        process = self.supervise("--interval", "1000", "--files", "roll-back", command=("false",))
        self.wait_for("a restart", lambda: "restored 1 process" in process.log.read_text(), process)
        (self.top / "end").touch()
        self.end(process, 0)
        return process.log.read_text(), [e["event"] for e in self.events()]

    def test_a_save_that_was_broken_off_unseen(self):
        """Nobody supervised the job, and it went on and died. That end was not on request."""
        process = self.member_alone()
        command = self.start(SHADOWIB, "checkpoint", "demo", "--kill", "--dir", self.dir, env={**self.env, "SHADOWIB_FAULT": "232:crash"})
        self.assertEqual(command.wait(TIMEOUT_S), -signal.SIGKILL)
        self.wait_for("the job to go on", lambda: any(m["alive"] and m["state"] for m in self.members()), process)
        process.kill()
        process.wait(TIMEOUT_S)
        said, events = self.supervise_what_ended()
        self.assertIn("files rolled back", said)
        self.assertEqual(events, ["started", "checkpoint", "kill_failed", "restart", "ended"])

    def test_a_save_that_nobody_saw_and_whose_exchange_is_gone(self):
        """The members' records tell that it was one."""
        process = self.member_alone()
        self.command("checkpoint", "demo", "--kill")
        self.assertEqual(process.wait(TIMEOUT_S), -signal.SIGKILL)
        shutil.rmtree(self.dir / "jobs" / "demo" / "x")
        said, events = self.supervise_what_ended()
        self.assertNotIn("files rolled back", said)
        self.assertEqual(events, ["started", "checkpoint", "restart", "ended"])

    def test_a_save_that_was_broken_off_before_gc(self):
        """It removes what tells of the end. The history has it first."""
        process = self.member_alone()
        command = self.start(SHADOWIB, "checkpoint", "demo", "--kill", "--dir", self.dir, env={**self.env, "SHADOWIB_FAULT": "232:crash"})
        self.assertEqual(command.wait(TIMEOUT_S), -signal.SIGKILL)
        (self.top / "end").touch()
        process.wait(TIMEOUT_S)
        self.command("gc", "--keep", "1")
        self.assertFalse((self.dir / "jobs" / "demo").exists())
        self.assertEqual([e["event"] for e in self.events()], ["started", "checkpoint", "kill_failed"])

    def test_a_save_whose_end_cannot_be_told(self):
        process, command = self.broken_off(SHADOWIB_FAULT="232:fail")
        self.assertEqual(command.wait(TIMEOUT_S), IO, command.log.read_text())
        self.assertIn("is committed, but the job goes on", command.log.read_text())
        (self.top / "end").touch()
        self.end(process, 0)
        self.assertEqual([e["event"] for e in self.events()], ["started", "checkpoint", "kill_failed", "ended"])

    def test_a_save_that_is_told_although_a_signal_comes(self):
        process, command = self.broken_off(SHADOWIB_FAULT="232:stop")
        self.wait_for("the command to stop", lambda: "T (stopped)" in (pathlib.Path("/proc") / str(command.pid) / "status").read_text())
        command.terminate()
        command.send_signal(signal.SIGCONT)
        self.end(process, SAVED)
        self.assertEqual([e["event"] for e in self.events()], ["started", "checkpoint"])

    def test_files_of_a_set_before_the_last(self):
        """The job was saved and ended, and that set is damaged. Its files go back to the set that is taken instead."""
        (self.top / "writer").write_text(LINES)
        lines = self.top / "lines"

        def grown(process):
            before = lines.stat().st_size if lines.exists() else 0
            self.wait_for("lines", lambda: lines.exists() and lines.stat().st_size > before + 100, process)

        def started():
            process = self.supervise("--interval", "1000", command=(sys.executable, "writer"))
            grown(process)
            return process
        process = started()
        self.command("checkpoint", "demo")
        grown(process)
        self.command("checkpoint", "demo", "--kill")
        self.end(process, SAVED)
        image = next((self.dir / "sets/demo.0002").glob("*.img"))
        with open(image, "r+b") as file:
            file.truncate(image.stat().st_size // 2)
        process = self.supervise("--interval", "1000", command=(sys.executable, "writer"))
        self.wait_for("the restart", lambda: "restored 1 process" in process.log.read_text(), process)
        grown(process)
        self.command("checkpoint", "demo", "--kill")
        self.end(process, SAVED)
        told = lines.read_text().split()
        self.assertEqual(told, [str(n + 1) for n in range(len(told))])

    def test_a_history_that_cannot_be_read(self):
        """It is needed to tell a death from a save: nothing is started without it."""
        process = self.supervise_pair("--interval", "1000")
        self.await_pair(process)
        self.command("checkpoint", "demo", "--kill")
        self.end(process, SAVED)
        history = self.dir / "history/demo"
        history.rename(self.top / "away")
        history.symlink_to("demo")
        process = self.supervise_pair("--interval", "1000")
        self.wait_for("two tries", lambda: process.log.read_text().count("next try") >= 2 or self.pingpongs(), process)
        history.unlink()
        (self.top / "away").rename(history)
        self.wait_for("a restart", lambda: "restored 2 processes" in process.log.read_text(), process)
        self.await_pair(process)
        os.kill(self.pingpongs()[0], signal.SIGKILL)
        self.wait_for("a failure", lambda: "died; the others are ended" in process.log.read_text(), process)
        self.wait_for("a restart", lambda: process.log.read_text().count("restored 2 processes") == 2, process)
        self.command("checkpoint", "demo", "--kill")
        self.end(process, SAVED)

    def test_a_damaged_set_is_passed_over(self):
        process = self.supervise_pair("--interval", "1000")
        self.await_pair(process)
        for _ in range(2):
            self.command("checkpoint", "demo")
        image = next((self.dir / "sets/demo.0002").glob("*.img"))
        with open(image, "r+b") as file:
            file.truncate(image.stat().st_size // 2)
        os.kill(self.pingpongs()[0], signal.SIGKILL)
        self.wait_for("the set before", lambda: "restarting demo.0001" in process.log.read_text(), process)
        self.await_pair(process)
        self.assertIn("demo.0002: restart exited with 5", process.log.read_text())
        # If none is left, nothing is begun anew in silence.
        image = next((self.dir / "sets/demo.0001").glob("*.img"))
        with open(image, "r+b") as file:
            file.truncate(image.stat().st_size // 2)
        os.kill(self.pingpongs()[0], signal.SIGKILL)
        self.assertIn("none of the job's 2 sets can be restarted", self.end(process, GIVEN_UP))

    def test_sets_that_cannot_be_listed(self):
        """They are there still: nothing is begun anew, and no checkpoint removes any."""
        process = self.supervise_pair("--interval", "1000")
        self.await_pair(process)
        self.command("checkpoint", "demo")
        sets = self.dir / "sets"
        sets.rename(self.top / "away")
        sets.symlink_to("sets")
        os.kill(self.pingpongs()[0], signal.SIGKILL)
        self.wait_for("three tries", lambda: process.log.read_text().count("cannot read directory") >= 3, process)
        sets.unlink()
        (self.top / "away").rename(sets)
        self.wait_for("a restart", lambda: "restored 2 processes" in process.log.read_text(), process)
        self.assertNotIn("from the beginning", process.log.read_text())
        self.command("checkpoint", "demo", "--kill")
        self.end(process, SAVED)

    def test_a_refusal_says_nothing_against_the_set(self):
        """The place lacks something for a while, a file here: the newest set waits for it, and no older one is taken."""
        data = self.top / "data"
        data.write_text("words")
        process = self.supervise("--interval", "1000", command=("sh", "-c", 'exec sh pair "$@" 7<data', "sh", free_port(), 500_000_000))
        self.await_pair(process)
        for _ in range(2):
            self.command("checkpoint", "demo")
        data.rename(self.top / "away")
        os.kill(self.pingpongs()[0], signal.SIGKILL)
        self.wait_for("three refusals", lambda: len(re.findall("demo.0002: restart exited with [0-9]+", process.log.read_text())) >= 3, process)
        (self.top / "away").rename(data)
        self.wait_for("a restart", lambda: "restored 2 processes" in process.log.read_text(), process)
        self.assertNotIn("restarting demo.0001", process.log.read_text())
        self.command("checkpoint", "demo", "--kill")
        self.end(process, SAVED)

    def await_look(self, process):
        """Until the supervisor has looked once more: it passes on a signal between two looks."""
        for _ in range(2):
            before = (self.top / "told").read_text()
            process.send_signal(signal.SIGUSR1)
            self.wait_for("the signal", lambda before=before: (self.top / "told").read_text() != before, process)

    def await_end_of(self, name, process):
        self.wait_for(name, lambda: (self.top / name).exists() and (self.top / name).read_text(), process)
        self.wait_for(f"the end of {name}", lambda: not self.lives(name), process)
        self.await_look(process)

    def test_a_member_that_executes_another_program(self):
        """Itself, and joins again, or one that is no member. Neither end is a death."""
        (self.top / "roles").write_text(ROLES)
        process = self.supervise("--interval", "1000", command=(sys.executable, "roles", "command"))
        self.await_end_of("again", process)
        self.wait_for("the other program", lambda: (self.top / "other").exists(), process)
        self.await_look(process)
        (self.top / "over").touch()
        self.await_end_of("other", process)
        (self.top / "end").touch()
        self.assertNotIn("died", self.end(process, 0))

    def test_a_lock_of_a_stranger_is_no_death(self):
        (self.top / "roles").write_text(ROLES)
        process = self.supervise("--interval", "1000", command=(sys.executable, "roles", "command"))
        self.await_end_of("again", process)
        self.wait_for("the other program", lambda: (self.top / "other").exists(), process)
        epoch = (self.dir / "jobs/demo/epoch").read_text().strip()
        for name in (f"{epoch}.7", f"{epoch}.seven", "notes"):
            (self.dir / "jobs/demo/alive" / name).touch()
        self.await_look(process)
        for name in ("over", "end"):
            (self.top / name).touch()
        self.assertNotIn("died", self.end(process, 0))


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and all below would
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
