"""A restart that several commands make, each of its share of the members, and one in several pid namespaces.

shares_test.py BUILD_DIR PROGRAM [unittest options]; the program is restart_scenarios, two verbs_check with a TCP connection are the
job of most tests.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import unittest

import restart_case
from restart_case import BUILD, SHADOWIB, TIMEOUT_S, await_listener, free_port

ITERATIONS, REST_US = 3_000, 2_000  # long enough for what is done meanwhile, however fast the machine is

# As far as its name tells.
ON_ANOTHER_HOST = [*restart_case.unshare("--uts"), "sh", "-c", 'hostname shadowib-elsewhere && exec "$0" "$@"']


class Shares(restart_case.RestartCase):
    def begin(self, **options):
        """A server (member 0) and a client (member 1) that have exchanged something, saved and killed."""
        port = free_port()
        words = ["run", "--job", "j", "--backend", "ib2tcp", "--", BUILD / "bin" / "verbs_check", "--port", port, "--iters", ITERATIONS,
                 "--depth", "8", "--talk", REST_US]
        server = self.start(*words, **options)
        await_listener(port, server)
        self.await_members(1)
        client = self.start(*words, "127.0.0.1", **options)
        self.programs = (server, client)
        self.await_sends(0)
        self.save(1)
        self.ends(server, -9)
        self.ends(client, -9)

    def sends(self):
        said = subprocess.run([SHADOWIB, "status", "j", "--json", "--dir", str(self.dir)], capture_output=True, text=True, check=True)
        found = [int(n) for n in re.findall(r'"sends_retired": *(\d+)', said.stdout)]
        return min(found) if len(found) == 2 else 0

    def await_sends(self, beyond):
        end = time.monotonic() + TIMEOUT_S
        while self.sends() <= beyond:
            self.assertLess(time.monotonic(), end, self.said())
            time.sleep(0.01)
        return self.sends()

    def save(self, number):
        done = subprocess.run([SHADOWIB, "checkpoint", "--kill", "j", "--json", "--dir", str(self.dir)], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + self.said())
        self.assertTrue(json.loads(done.stdout)["set"].endswith(f"j.{number:04}"))

    def share(self, number, members, *words, **environment):
        return self.start("restart", f"j.{number:04}", "--members", members, *words, **environment)

    def said(self):
        return "".join(f"{p.log.name}: {p.log.read_text(errors='replace')}" for p in self.processes)

    def goes_well(self):
        text = self.said()
        for end in ("server", "client"):
            self.assertIn(f"{end}: {ITERATIONS} iterations of 8 messages", text)

    def test_apart_and_together_again(self):
        for transport in ("shm", "tcp"):
            with self.subTest(transport):
                self.tearDown()
                self.setUp()
                self.begin()
                late = self.share(1, "1", transport=transport)
                self.await_text(late, "waiting for who restarts member 0")
                early = self.share(1, "0", transport=transport)
                saved = self.await_sends(0)
                self.save(2)
                self.ends(early, 20)
                self.ends(late, 20)
                # One command makes both now, each in a pid namespace of its own, since their pids may be the same.
                together = self.restart(2, transport=transport)
                self.await_sends(saved)
                self.save(3)
                self.ends(together, 20)
                # And apart again, in the other order.
                first = self.share(3, "0", transport=transport)
                self.await_text(first, "waiting for who restarts member 1")
                second = self.share(3, "1-1", transport=transport)
                self.ends(first, 0)
                self.ends(second, 0)
                self.goes_well()

    def test_a_file_that_both_roll_back(self):
        """Each command finds the other's member writing to it, too."""
        both = self.dir / "both.log"
        self.begin(log=both)
        with open(both, "a") as log:
            log.write(10_000 * "after the checkpoint\n")
        late = self.share(1, "1", "--files", "roll-back")
        self.await_text(late, "waiting for who restarts member 0")
        self.assertIn("after the checkpoint", both.read_text())
        early = self.share(1, "0", "--files", "roll-back")
        self.await_sends(0)
        self.save(2)
        self.ends(early, 20)
        self.ends(late, 20)
        for command in (early, late):
            self.assertIn(f"files: {both} has ", command.log.read_text())
        self.assertNotIn("after the checkpoint", both.read_text())

    def test_a_file_that_one_rolls_back(self):
        """The other command has nothing to cut, and its member waits for the cut all the same."""
        self.begin()
        verified = subprocess.run([SHADOWIB, "verify", "j.0001", "--dir", str(self.dir)], capture_output=True, text=True, check=True)
        server = self.programs[0].log
        if grown := re.search(rf"{re.escape(str(server))} has \d+ bytes, (\d+) at the checkpoint", verified.stdout + verified.stderr):
            os.truncate(server, int(grown[1]))
        with open(self.programs[1].log, "a") as log:
            log.write(10_000 * "after the checkpoint\n")
        early, late = (self.share(1, member, "--files", "roll-back") for member in "01")
        self.await_sends(0)
        self.save(2)
        self.ends(early, 20)
        self.ends(late, 20)
        self.assertNotIn("files: ", early.log.read_text())
        self.assertIn(f"files: {self.programs[1].log} has ", late.log.read_text())
        self.assertNotIn("after the checkpoint", self.programs[1].log.read_text())

    def test_memory_that_both_have(self):
        programs = [self.run_program(name) for name in ("memory_first", "memory_second")]
        self.addCleanup(subprocess.run, ["ipcrm", "-M", str(0x5b000000 + programs[0].pid)], check=False)
        self.addCleanup(pathlib.Path(f"/dev/shm/shadowib-test-{programs[0].pid}").unlink, missing_ok=True)
        for program in programs:
            self.ends(program, -9)
        for member in (0, 1):
            alone = self.share(2, member)
            self.ends(alone, 4)
            self.assertRegex(alone.log.read_text(), "member 0 shares memory .* with member 1: they have to be restarted together")
        # A launcher's three ranks on two hosts, to each of which one of them falls by order.
        launch = {"PMIX_NAMESPACE": "launch", "OMPI_COMM_WORLD_SIZE": "3"}
        ranks = [self.start("restart", "j.0002", **launch, OMPI_COMM_WORLD_RANK="0")]
        for rank in "12":
            ranks.append(self.start("restart", "j.0002", by=ON_ANOTHER_HOST, **launch, OMPI_COMM_WORLD_RANK=rank))
        self.ends(ranks[1], 0)
        self.ends(ranks[2], 0)
        self.ends(ranks[0], 20)  # they have themselves checkpointed and killed once more
        self.ends(self.restart(3), 0)

    def test_nobody_comes(self):
        self.begin()
        alone = self.share(1, "0", "--wait", "1")
        self.ends(alone, 7)
        self.assertIn("nobody restarts member 1; start that share with --members 1", alone.log.read_text())
        self.ends(self.restart(1), 0)

    def test_who_comes_twice(self):
        self.begin()
        first = self.share(1, "0")
        self.await_text(first, "waiting for who restarts member 1")
        again = self.share(1, "0")
        self.ends(again, 11)
        self.assertIn("member 0 is being restarted by another command already", again.log.read_text())
        whole = self.restart(1)
        self.ends(whole, 11)
        second = self.share(1, "1")
        self.ends(first, 0)
        self.ends(second, 0)

    def test_who_would_treat_files_otherwise(self):
        """Members of both would wait in vain: one for a cut that nobody makes."""
        self.begin()
        for first_words, other_words, names in (((), ("--files", "roll-back"), ("keep", "roll-back")),
                                                (("--files", "roll-back"), (), ("roll-back", "keep"))):
            first = self.share(1, "0", *first_words)
            self.await_text(first, "waiting for who restarts member 1")
            other = self.share(1, "1", *other_words)
            self.ends(other, 2)
            self.assertIn("another command of this restart has --files {}, this one --files {}".format(*names), other.log.read_text())
            first.kill()
            first.wait()
        first, second = (self.share(1, member) for member in "01")
        self.ends(first, 0)
        self.ends(second, 0)

    def test_whoever_dies_takes_the_others_with_it(self):
        self.begin()
        # While the other waits for the rest.
        first = self.share(1, "0")
        self.await_text(first, "waiting for who restarts member 1")
        first.kill()
        first.wait()
        second = self.share(1, "1", "--wait", "1")
        self.ends(second, 7)  # it is a restart of its own: that of the dead is over
        # When all have come, and before all members run.
        first = self.share(1, "0", SHADOWIB_FAULT="320:crash")
        second = self.share(1, "1")
        self.assertNotEqual(first.wait(TIMEOUT_S), 0)
        self.assertNotIn(second.wait(TIMEOUT_S), (0, 20), self.said())
        self.ends(self.restart(1), 0)

    def test_lists_that_are_none(self):
        self.begin()
        for text in ("", "x", "0,", "2", "0-2", "1-0", "0;1", "-1", "0 1", "99999999999"):
            with self.subTest(text):
                wrong = self.start("restart", "j.0001", f"--members={text}")
                self.ends(wrong, 2)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
