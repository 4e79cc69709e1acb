"""`shadowib supervise` with members on several hosts."""
import contextlib
import fcntl
import json
import os
import pathlib
import signal
import sys

from supervise_case import free_port, GIVEN_UP, main, ROLES, SAVED, SHADOWIB, SuperviseCase, TIMEOUT_S

LOST_HOST = 21
PROCESS_FAILED = 20

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


def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Hosts(SuperviseCase):
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
            shell = int((self.top / "pid.b").read_text())
            restart = parent(shell)
            if loss == 2:  # the members of b are seen to die first
                os.kill(restart, signal.SIGSTOP)
            os.kill(shell, signal.SIGKILL)
            if loss == 2:
                self.wait_for("the end of all members", lambda: not self.pingpongs(), process)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(restart, signal.SIGCONT)
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


if __name__ == "__main__":
    main()
