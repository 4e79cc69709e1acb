"""Which set `shadowib supervise` goes back to: sets that are damaged, lost, or broken off."""
import os
import pathlib
import re
import shutil
import signal
import sys
import time

from supervise_case import free_port, GIVEN_UP, main, ROLES, SAVED, SHADOWIB, SuperviseCase, TIMEOUT_S

IO = 6

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


class Sets(SuperviseCase):
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


if __name__ == "__main__":
    main()
