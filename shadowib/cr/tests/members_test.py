"""What members of a job are beside their objects: signals, terminals, shared memory, who joins and who leaves. restart_scenarios under the shim,
checkpointed, killed and restarted.

members_test.py BUILD_DIR PROGRAM [unittest options]
"""
import ctypes
import fcntl
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest

from restart_case import BACKEND, BUILD, PROGRAM, SHADOWIB, TIMEOUT_S, RestartCase, unshare


class Members(RestartCase):
    def test_a_checkpoint_before_the_helper_thread_has_begun(self):
        self.ends(self.run_program("at_once", SHADOWIB_FAULT="5:slow:0"), -9)
        self.ends(self.restart(2), 0)

    def test_a_fault_as_a_member_comes_back(self):
        self.ends(self.run_program("at_once"), -9)
        for point in (120, 121):  # in the agent, and in the loader thread
            self.processes[0].log.write_text("")  # a restored program writes where it was, over what the one before has said
            restarted = self.restart(1, SHADOWIB_FAULT=f"{point}:fault:0")
            self.assertNotEqual(restarted.wait(TIMEOUT_S), 0)
            self.assertRegex(restarted.log.read_text(), r"member 0 \(pid \d+\) ended with signal 4")
            self.assertRegex(self.processes[0].log.read_text(),
                             r"member 0 dies by signal 4 while it comes back, at address 0x[0-9a-f]+, in code at /.*\+0x[0-9a-f]+;")
        self.ends(self.restart(2), 0)

    def test_sigterm_beside_the_checkpoint(self):
        for scenario, restarts in (("terminated", 2), ("handles_termination", 1), ("awaits_termination", 1)):
            with self.afresh(scenario):
                self.ends(self.run_program(scenario, SHADOWIB_FAULT="40:term:0"), -9)
                if restarts == 2:
                    self.restart(1, SHADOWIB_FAULT="40:term:0").wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
                    self.assertEqual(self.newest(), 2, self.processes[-1].log.read_text())
                self.ends(self.restart(restarts), 0)

    def test_what_a_terminal_tells_its_foreground(self):
        # To who leads a group of its own and to its child, which was forked after the restart.
        self.ends(self.run_program("foreground"), -9)
        master, slave = os.openpty()
        self.addCleanup(os.close, master)
        restarted = self.restart(1, terminal=slave)
        os.close(slave)
        self.await_file("waits")
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", 50, 100, 0, 0))
        self.await_file("resized")
        os.write(master, b"\x03")
        self.ends(restarted, 0)

    def test_a_terminal_of_the_programs_own(self):
        self.ends(self.run_program("terminal"), -9)
        self.ends(self.restart(2), 0)

    def test_a_family(self):
        """Parents get their children back, living ones and those that had ended, in sessions and groups as they were."""
        self.ends(self.run_program("family"), -9)
        for member in "01":
            parted = self.restart(1, "--members", member)
            self.ends(parted, 4)
            self.assertRegex(parted.log.read_text(), "is a child of member . .* restarted together")
        self.restart(1).wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        restarted = self.restart(2)
        self.ends(restarted, 0)
        self.assertEqual(restarted.log.read_text().count("its parent has the status"), 4)  # two children, when it comes and at the end

    def test_a_family_with_a_later_device(self):
        self.ends(self.run_program("family_with_a_later_device"), -9)
        self.ends(self.restart(1), 0)

    def test_a_family_with_channels(self):
        self.ends(self.run_program("family_with_channels"), -9)
        self.restart(1).wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        self.ends(self.restart(2), 0)

    def test_a_family_whose_command_was_told_to_ignore_its_children(self):
        """As by a shell's `trap '' CHLD`, which is inherited: the ends of processes would go unseen."""
        self.ends(self.run_program("family"), -9)
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            first = self.restart(1)
        finally:
            signal.signal(signal.SIGCHLD, before)
        first.wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        self.ends(self.restart(2), 0)

    def test_a_family_on_a_terminal(self):
        self.ends(self.run_program("family_on_a_terminal"), -9)
        self.ends(self.restart(1), 0)

    def test_a_child_that_is_no_member(self):
        program = self.run_program("family_with_an_outsider")
        self.ends(program, 0)
        self.assertRegex(program.log.read_text(), r"child process \d+ \(sleep\) of pid \d+, member 0, .* is no member of the job")

    def test_values(self):
        """Published by two members, looked up by each, and there again after a restart."""
        first, second = self.run_program("values_first"), self.run_program("values_second")
        self.ends(first, -9)
        self.ends(second, -9)
        self.ends(self.restart(1), 0)

    def test_files_of_threads(self):
        """Open in /proc: of a thread of the program's, and of another member."""
        first, second = self.run_program("files_first"), self.run_program("files_second")
        self.ends(first, -9)
        self.ends(second, -9)
        self.restart(1).wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        self.ends(self.restart(2), 0)

    def test_file_locks(self):
        """Of each kind, on one file of two members, and with a thread that waits for one: over resumes and restarts."""
        first, second = (self.run_program(name) for name in ("locks_first", "locks_second"))
        name = pathlib.Path(f"/dev/shm/shadowib-test-{first.pid}")
        self.addCleanup(name.unlink, missing_ok=True)
        self.ends(first, -9)
        self.ends(second, -9)
        self.restart(2).wait(TIMEOUT_S)  # they have themselves checkpointed and killed once more
        self.ends(self.restart(4), 0)

    def test_semaphores_and_queues(self):
        """Of two members, with what SEM_UNDO does at the end of each, and one that waits: over resumes and restarts."""
        first, second = (self.run_program(name) for name in ("semaphores_first", "semaphores_second"))
        key = hex(0x5e000000 + first.pid)
        # The killed ones leave theirs on the machine; the restarted ones have an IPC namespace of their own.
        self.addCleanup(subprocess.run, ["ipcrm", "-S", key, "-Q", key], check=True)
        self.ends(first, -9)
        self.ends(second, -9)
        self.restart(2).wait(TIMEOUT_S)  # they have themselves checkpointed and killed once more
        self.ends(self.restart(4), 0)

    def test_file_locks_that_somebody_else_has(self):
        self.ends(self.run_program("locks_held"), -9)
        for file, lock, named in (("records", lambda f: fcntl.lockf(f, fcntl.LOCK_EX, 4, 12), "exclusive record lock of bytes 8 to 15"),
                                  ("flocked", lambda f: fcntl.flock(f, fcntl.LOCK_SH), "exclusive flock")):
            with open(self.dir / file, "r+b") as held:
                os.set_inheritable(held.fileno(), False)
                lock(held)
                refused = self.restart(1)
                self.ends(refused, 11)
                self.assertIn(f"{file}: its {named} cannot be taken again: pid {os.getpid()} ", refused.log.read_text())
                told = subprocess.run([SHADOWIB, "doctor", "--json", "--set", self.dir / "sets" / "j.0001"], capture_output=True, text=True, check=False)
                found = {finding["what"]: finding for finding in json.loads(told.stdout)["findings"] if finding["subject"].startswith("set ")}
                self.assertEqual(found["files"]["verdict"], "ok")
                self.assertIn(f"pid {os.getpid()} ", found["held files"]["detail"])
                self.assertIn("let it unlock the file", found["held files"]["remedy"])
        self.ends(self.restart(1), 0)

    def test_files_that_have_grown(self):
        """What was appended between a checkpoint and the kill stands there twice after a restart, unless that rolls back."""
        for way, expected in (("keep", "1\n2\n2\n3\n"), ("roll-back", "1\n2\n3\n")):
            with self.afresh(way):
                self.ends(self.run_program("appends"), -9)
                told = subprocess.run([SHADOWIB, "verify", "--json", self.dir / "sets" / "j.0001"], capture_output=True, check=True, text=True)
                log = str(self.dir / "appended")
                changed = [file for file in json.loads(told.stdout)["changed_files"] if not file["path"].endswith(".log")]
                self.assertEqual(changed, [
                    {"path": log, "state": "grown", "bytes": 4, "bytes_at_checkpoint": 2, "roll_back_cuts": True, "writer": None}])
                restarted = self.restart(1, "--files", way)
                restarted.wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
                self.assertIn(f"files: {log} has 4 bytes, 2 at the checkpoint: it is "
                              + ("left as it is; --files roll-back would cut it" if way == "keep" else "cut to that"), restarted.log.read_text())
                self.ends(self.restart(3, "--files", way), 0)
                self.assertEqual(pathlib.Path(log).read_text(), expected)
        self.ends(self.restart(3, "--files", "back"), 2)

    def test_a_roll_back_of_a_restart_that_fails(self):
        """Files are cut when all members are ready, and no sooner: a restart that fails leaves them as they are."""
        self.ends(self.run_program("appends"), -9)
        log = self.dir / "appended"
        failed = self.restart(1, "--files", "roll-back", SHADOWIB_FAULT="140:fail")
        self.assertNotEqual(failed.wait(TIMEOUT_S), 0)
        self.assertIn("restored 1 process", failed.log.read_text())
        self.assertEqual(log.read_text(), "1\n2\n")
        slow = self.restart(1, "--files", "roll-back", SHADOWIB_FAULT="130:slow")
        while "restored 1 process" not in slow.log.read_text() and slow.poll() is None:
            time.sleep(0.01)
        with open(log, "a"):  # by another process, behind the first look
            self.ends(slow, 4)
        self.assertIn(f"cannot roll back {log}: pid {os.getpid()} ", slow.log.read_text())
        self.assertEqual(log.read_text(), "1\n2\n")
        self.restart(1, "--files", "roll-back").wait(TIMEOUT_S)
        self.ends(self.restart(3, "--files", "roll-back"), 0)
        self.assertEqual(log.read_text(), "1\n2\n3\n")

    def test_an_output_that_is_emptied(self):
        """`job >out; restart >out`, as a batch system's requeue has it: the same file, anew."""
        job = self.run_program("appends")
        self.ends(job, -9)
        restarted = self.restart(1, log=job.log)
        restarted.wait(TIMEOUT_S)
        self.assertIn("restored 1 process", job.log.read_text())
        self.ends(self.restart(3, log=job.log), 0)
        self.assertIn("says 3\n", job.log.read_text())

    def test_a_pipe_that_is_left_open_in_a_job(self):
        """By an IDE or a CI runner: told at the start, no hindrance, and gone where it is wished."""
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        self.addCleanup(os.close, writing)
        told = f"shadowib: descriptor {writing} (pipe:[{os.fstat(writing).st_ino}]) is inherited and may lead out of the job"
        for words in ((), ("--close-inherited",)):
            with self.afresh(words):
                job = self.start("run", "--job", "j", "--backend", BACKEND, *words, "--", PROGRAM, "appends", pass_fds=(writing,))
                self.ends(job, -9)
                self.assertEqual(told in job.log.read_text(), not words)
                restarted = self.restart(1)
                restarted.wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
                gone = f"descriptor {writing} of member 0 (pipe:[{os.fstat(writing).st_ino}]), which the job was started with, has nobody"
                self.assertEqual(gone in restarted.log.read_text(), not words)
                again = self.restart(3, pass_fds=(writing,))  # the command's own stands in for it
                self.ends(again, 0)
                self.assertNotIn("has nobody", again.log.read_text())

    def test_what_cannot_be_checkpointed_is_told_at_the_start(self):
        inotify = ctypes.CDLL(None).inotify_init1(0)
        self.addCleanup(os.close, inotify)
        job = self.run_program("appends", pass_fds=(inotify,))
        self.ends(job, 1)
        self.assertIn(f"shadowib: descriptor {inotify} (anon_inode:inotify) is inherited and cannot be checkpointed", job.log.read_text())
        self.assertRegex(job.log.read_text(), f"no checkpoint: .* descriptor {inotify} \\(inotify\\)")
        (self.dir / "appended").unlink()
        job = self.start("run", "--job", "k", "--backend", BACKEND, "--close-inherited", "--", PROGRAM, "appends", pass_fds=(inotify,))
        self.ends(job, -9)
        self.assertNotIn("inherited", job.log.read_text())

    def test_children_that_join_as_they_start(self):
        """A shell's filter, which has no device: refused, but for who has it join. What was on its way arrives once."""
        line = f"{PROGRAM} appends > >(cat >> copied)"
        refused = self.start("run", "--job", "j", "--backend", BACKEND, "--", "bash", "-c", line)
        self.ends(refused, 1)
        self.assertRegex(refused.log.read_text(), r"child process \d+ \((cat|bash)\) .* is no member of the job")
        for file in ("copied", "appended"):
            (self.dir / file).unlink()
        self.ends(self.start("run", "--job", "k", "--backend", BACKEND, "--join-children", "--", "bash", "-c", line), -9)
        self.ends(self.start("restart", self.dir / "sets" / "k.0002"), 0)
        self.assertEqual((self.dir / "copied").read_text(), "says 1\nsays 2\nsays 3\n")

    def test_memory_that_members_share(self):
        first, second = (self.run_program(name) for name in ("memory_first", "memory_second"))
        self.addCleanup(subprocess.run, ["ipcrm", "-M", str(0x5b000000 + first.pid)], check=False)  # of what was killed
        self.ends(first, -9)
        self.ends(second, -9)
        size = sum(image.stat().st_size for image in (self.dir / "sets" / "j.0002").glob("*.img"))
        self.assertLess(size, 200 << 20)  # most of the ring is a hole
        name = pathlib.Path(f"/dev/shm/shadowib-test-{first.pid}")
        self.addCleanup(name.unlink, missing_ok=True)
        with open(name) as held:  # somebody uses the file that was left behind
            refused = self.restart(2)
            self.ends(refused, 11)
            self.assertIn(f"({name}): process", refused.log.read_text())
            self.assertEqual(name.stat().st_ino, os.fstat(held.fileno()).st_ino)
        self.restart(2).wait(TIMEOUT_S)  # they have themselves checkpointed and killed once more
        self.ends(self.restart(3), 0)

    def test_memory_that_an_outsider_has(self):
        first = self.run_program("memory_first")
        name = pathlib.Path(f"/dev/shm/shadowib-test-{first.pid}")
        self.addCleanup(subprocess.run, ["ipcrm", "-M", str(0x5b000000 + first.pid)], check=False)
        self.addCleanup(name.unlink, missing_ok=True)
        self.await_file("doomed")
        with open(name):
            self.run_program("memory_second")
            self.ends(first, 1)  # it wanted a checkpoint
        self.assertRegex(first.log.read_text(), f"no checkpoint: .*shared memory \\({name}\\) .* process {os.getpid()} .* is no member of the job")

    def test_memory_of_id_zero(self):
        self.ends(self.run_program("memory_of_id_zero", by=unshare("--ipc")), -9)
        self.restart(1).wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        self.ends(self.restart(2), 0)

    def test_memory_about_to_be_mapped(self):
        """Its file goes with what a launcher tidies up, and is on no other machine."""
        first = self.run_program("memory_about_to_be_mapped")
        name = pathlib.Path(f"/dev/shm/shadowib-test-{first.pid}")
        self.addCleanup(name.unlink, missing_ok=True)
        self.ends(first, -9)
        name.unlink()
        self.restart(1).wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        name.unlink()
        self.ends(self.restart(2), 0)

    def test_memory_that_members_have_inherited(self):
        self.ends(self.run_program("memory_inherited"), 0)
        self.ends(self.restart(1), 0)

    def test_checkpoints_leave_no_more_than_the_last(self):
        program = self.run_program("lasting")
        self.await_file("ready")
        counts = []
        for _ in range(4):
            self.checkpoint()
            counts.append(len(self.in_exchange()))
        self.assertEqual(counts, counts[:1] * 4)
        self.tell("enough")
        self.ends(program, 0)

    def set_numbers(self):
        return sorted(int(path.name[2:]) for path in (self.dir / "sets").glob("j.????"))

    def await_true(self, condition):
        end = time.monotonic() + TIMEOUT_S
        while not condition():
            self.assertLess(time.monotonic(), end, "".join(p.log.read_text() for p in self.processes))
            time.sleep(0.01)

    def await_sets(self, wanted):
        end = time.monotonic() + TIMEOUT_S
        while not wanted(numbers := self.set_numbers()):
            self.assertLess(time.monotonic(), end, f"sets {numbers}: " + "".join(p.log.read_text() for p in self.processes))
            time.sleep(0.01)
        return numbers[-1]

    def test_a_signal_that_asks_for_a_checkpoint(self):
        """Whoever gets it. Sets beyond --keep go."""
        self.has_signals_at_once()
        options = ("run", "--job", "j", "--backend", BACKEND, "--checkpoint-on", "USR1", "--kill-on", "SIGTERM,HUP", "--keep", "2")
        programs = [self.start(*options, "--", PROGRAM, f"asked_by_signals_{name}") for name in ("one", "two")]
        for name in ("one", "two"):
            self.await_file(name)
        for whom in (programs, programs[:1], programs[1:]):
            before = max(self.set_numbers(), default=0)
            for program in whom:
                program.send_signal(signal.SIGUSR1)
            newest = self.await_sets(lambda numbers, n=before: numbers and numbers[-1] > n)
        for program in programs:
            program.send_signal(signal.SIGTERM)
        for program in programs:
            self.ends(program, -9)
        newest = self.set_numbers()[-1]
        restarted = self.restart(newest)
        self.await_text(restarted, "restored 2 processes")
        restarted.send_signal(signal.SIGUSR1)  # to both
        self.await_sets(lambda numbers: numbers[-1] > newest and len(numbers) == 2)
        self.tell("finish")
        self.ends(restarted, 0)

    def test_a_signal_that_ends_a_restarted_job(self):
        """The command that a member starts ends with the restart's pid namespace: by then it has noted the set and removed old ones."""
        self.has_signals_at_once()
        metrics = self.dir / "metrics"
        program = self.start("run", "--job", "j", "--backend", BACKEND, "--kill-on", "TERM", "--keep", "2", "--metrics", metrics, "--",
                             PROGRAM, "asked_by_signals_one")
        self.await_file("one")
        program.send_signal(signal.SIGTERM)
        self.ends(program, -9)
        for number in (1, 2, 3):
            restarted = self.restart(number)
            self.await_text(restarted, "restored 1 process")
            restarted.send_signal(signal.SIGTERM)
            self.ends(restarted, 20)
            wanted = list(range(1, number + 2))
            with self.subTest(number):
                events = json.loads(subprocess.run([SHADOWIB, "history", "j", "--json", "--dir", self.dir], check=True, capture_output=True).stdout)
                self.assertEqual([(e["number"], e["kill"]) for e in events["events"] if e["event"] == "checkpoint"], [(n, True) for n in wanted])
                self.assertIn(f'shadowib_checkpoints_total{{job="j",result="committed"}} {len(wanted)}\n', metrics.read_text())
                self.assertEqual(self.set_numbers(), wanted[-2:])
        restarted = self.restart(4)
        self.await_text(restarted, "restored 1 process")
        self.tell("finish")
        self.ends(restarted, 0)

    def test_a_signal_that_asks_for_what_is_refused(self):
        """It is tried again now and then, not at once, and given up."""
        self.has_signals_at_once()
        program = self.start("run", "--job", "j", "--backend", BACKEND, "--kill-on", "USR1", "--", PROGRAM, "asked_by_signals_one",
                             SHADOWIB_FAULT="30:fail", SHADOWIB_LOG="warn")
        self.await_file("one")
        begun = time.monotonic()
        program.send_signal(signal.SIGUSR1)
        self.await_text(program, "none of 3 was one; the job goes on")
        self.assertGreater(time.monotonic() - begun, 14)
        self.tell("finish")
        self.ends(program, 0)
        self.assertEqual(self.set_numbers(), [])

    def test_who_joins_waits_for_the_epoch_that_a_restart_makes(self):
        alive = self.dir / "jobs" / "j" / "alive"
        alive.mkdir(parents=True)
        with open(alive / "renewing", "w") as lock:  # as a restart holds it
            fcntl.lockf(lock, fcntl.LOCK_EX)
            program = self.run_program("held")
            time.sleep(0.5)
            self.assertIsNone(program.poll(), "it waits")
            self.assertEqual(list(alive.glob("g*")), [], "and is no member yet")
        self.ends(program, -9)

    def test_who_joins_reads_no_epoch_that_a_restart_replaces(self):
        job = self.dir / "jobs" / "j"
        (job / "alive").mkdir(parents=True)
        os.mkfifo(job / "epoch")  # who reads it stays there
        reading = os.open(job / "epoch", os.O_RDWR)
        with open(job / "alive" / "renewing", "w") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            program = self.run_program("held")
            time.sleep(0.5)
            (job / "renewed").write_text("g0-00000002")
            (job / "renewed").rename(job / "epoch")
        os.write(reading, b"g0-00000001")
        self.ends(program, -9)
        self.assertEqual({path.name.split(".")[0] for path in (job / "alive").glob("g*")}, {"g0-00000002"})
        os.close(reading)

    def test_who_joins_waits_for_a_restart_that_comes_meanwhile(self):
        """It has looked for one before, and reads the epoch of the dead then."""
        job = self.dir / "jobs" / "j"
        (job / "alive").mkdir(parents=True)
        (job / "x" / "g0-00000001" / "member").mkdir(parents=True)
        (job / "x" / "g0-00000001" / "member" / "=0").write_text("")
        os.mkfifo(job / "epoch")
        reading = os.open(job / "epoch", os.O_RDWR)
        program = self.run_program("held")

        def reads():
            try:
                return any(os.readlink(link) == str(job / "epoch") for link in pathlib.Path(f"/proc/{program.pid}/fd").iterdir())
            except FileNotFoundError:
                return False  # one was closed meanwhile

        def joins():
            with open(job / "alive" / "joining", "w") as lock:
                try:
                    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
            return False
        self.await_true(reads)
        self.assertTrue(joins())
        with open(job / "alive" / "renewing", "w") as renewing, open(job / "alive" / "restart", "w") as restart:
            fcntl.lockf(renewing, fcntl.LOCK_EX)
            fcntl.lockf(restart, fcntl.LOCK_EX)
            (job / "renewed").write_text("g0-00000002")
            (job / "renewed").rename(job / "epoch")
            os.write(reading, b"g0-00000001")
            self.await_true(lambda: not joins())
            self.assertEqual(list((job / "alive").glob("g*")), [], "it has gone away again")
        self.ends(program, -9)
        self.assertEqual({path.name.split(".")[0] for path in (job / "alive").glob("g*")}, {"g0-00000002"})
        os.close(reading)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
