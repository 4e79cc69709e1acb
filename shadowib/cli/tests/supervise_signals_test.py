"""Signals to `shadowib supervise`."""
import fcntl
import os
import re
import signal
import sys
import time

from supervise_case import free_port, main, PAIR, ROLES, SAVED, SHADOWIB, SuperviseCase

# Instead of the second end in the foreground: SIGTERM goes to the first end.
TOLD = r"""$2 localhost &
trap 'kill -TERM $server' TERM
>trapped
while kill -0 $server 2>/dev/null; do wait; done
exit 7
"""


class Signals(SuperviseCase):
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


if __name__ == "__main__":
    main()
