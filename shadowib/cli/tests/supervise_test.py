"""Jobs that `shadowib supervise` keeps alive: results, exit codes, events, checkpoints, lives of before."""
import os
import pathlib
import shutil
import signal
import sys

from supervise_case import BUILD, GIVEN_UP, main, ROLES, SAVED, SHADOWIB, SuperviseCase

BUSY = 11


class Supervise(SuperviseCase):
    def test_the_result_is_the_command_s(self):
        self.end(self.supervise_pair(messages=1000), 0)
        self.end(self.supervise(command=("sh", "-c", "exit 3")), 3)
        self.assertEqual([e["event"] for e in self.events()].count("ended"), 2)

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

    def test_members_that_nobody_tells_to_end(self):
        """The shell that was told has ended without a word to them."""
        process = self.supervise_pair("--interval", "1000")
        self.await_pair(process)
        process.terminate()
        self.end(process, 128 + signal.SIGTERM)
        self.wait_for("the end of all", lambda: not self.running())

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
    main()
