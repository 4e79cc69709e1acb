"""Guests of a job: restart_scenarios under the shim, some as guests. The members are checkpointed, killed and restarted.

guests_test.py BUILD_DIR PROGRAM [unittest options]
"""
import json
import os
import signal
import subprocess
import sys
import time
import unittest

from restart_case import BACKEND, PROGRAM, SHADOWIB, TIMEOUT_S, TRANSPORTS, RestartCase

PATIENT = {"SCENARIO_ANY_TIME": "60"}


class Guests(RestartCase):
    def member(self, scenario, **options):
        """Returns once it is one: guests wait for a member for 5 s only."""
        program = self.run_program(scenario, **PATIENT, **options)
        self.await_true(lambda: list((self.dir / "jobs" / "j" / "alive").glob("g0-*.0")) or program.poll() is not None)
        return program

    def guest(self, role, **options):
        return self.start("run", "--job", "j", "--guest", "--backend", BACKEND, "--", PROGRAM, "guest_client", GUEST_ROLE=role, **PATIENT, **options)

    def end_with_the_job(self, guests, why):
        for guest in guests:
            # Again and again: one that goes on may come to where it stops itself once more, before it hears of the end.
            self.await_true(lambda guest=guest: self.has_ended(guest))
            self.ends(guest, -signal.SIGTERM)
            self.assertRegex(guest.log.read_text(), f"guest [0-9]+ of job j ends: {why}")

    def await_true(self, condition):
        end = time.monotonic() + TIMEOUT_S
        while not condition():
            self.assertLess(time.monotonic(), end, "".join(p.log.read_text() for p in self.processes))
            time.sleep(0.01)

    @staticmethod
    def has_ended(guest):
        if guest.poll() is None:
            os.kill(guest.pid, signal.SIGCONT)
        return guest.poll() is not None

    def status(self):
        told = subprocess.run([SHADOWIB, "status", "j", "--json", "--dir", self.dir], capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
        return json.loads(told.stdout)

    def test_no_checkpoint_waits_for_guests_and_a_restart_ends_them(self):
        """An idle one, one that posts no receive, and a stopped one."""
        for transport in TRANSPORTS:
            with self.afresh(transport):
                server = self.member("guest_server", transport=transport)
                guests = [self.guest(role, transport=transport) for role in ("idle", "busy", "stopped")]
                self.await_file("stops")
                status = self.status()
                self.assertEqual(len(status["members"]), 1)
                self.assertEqual(sorted(g["pid"] for g in status["guests"]), sorted(g.pid for g in guests))
                self.assertEqual(sorted(g["guest"] for g in status["guests"]), [0, 1, 2])
                self.tell("go")
                self.ends(server, -9)
                self.end_with_the_job(guests, "its job was saved and ended")
                restarted = self.restart(2, transport=transport)
                self.await_file("server_new")
                new = self.guest("new", transport=transport)
                self.ends(new, 0)
                self.ends(restarted, 0)

    def test_datagrams_to_guests(self):
        server, guest = self.member("datagrams_to_guest"), self.guest("stopped")
        self.ends(server, -9)
        self.end_with_the_job([guest], "its job was saved and ended")
        self.ends(self.restart(1), 0)

    def test_forked_guests(self):
        self.ends(self.member("guests_by_fork"), -9)
        self.restart(2).wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        self.ends(self.restart(3), 0)

    def test_a_guest_of_the_time_before_a_restart(self):
        """Stopped while the members die and come back: it does not get in."""
        server = self.member("guest_server")
        guests = [self.guest(role) for role in ("idle", "busy", "stopped")]
        self.await_file("stops")
        for guest in guests:
            os.kill(guest.pid, signal.SIGSTOP)
        self.checkpoint()
        server.kill()
        server.wait()
        restarted = self.restart(1)
        self.await_true(lambda: list((self.dir / "jobs" / "j" / "alive").glob("g1-*.0")))
        self.end_with_the_job(guests, "its job was restarted")
        self.assertNotIn("guests", self.status())
        self.checkpoint("--kill")
        restarted.wait(TIMEOUT_S)

    def test_without_members(self):
        """A guest founds no job, and ends when all members have."""
        nobody = self.guest("idle")
        self.ends(nobody, 125)
        self.assertIn("no job j in", nobody.log.read_text())
        server, guest = self.member("guest_server"), self.guest("idle")
        self.await_file("client_idle")
        server.kill()
        server.wait()
        self.end_with_the_job([guest], "no member of its job has lived for 5 s")
        for option in (("--interval", "5"), ("--incremental",), ("--processes", "2"), ("--save", "forked"), ("--compress", "lz4"),
                       ("--keep", "2")):
            refused = self.start("run", "--job", "j", "--guest", *option, "--", PROGRAM, "guest_client")
            self.ends(refused, 125)
            self.assertIn("a guest is in no checkpoint", refused.log.read_text(), option)

    def ask_for_workers(self, *words):
        return subprocess.run([SHADOWIB, "worker", "j", "--dir", self.dir, *words], capture_output=True, text=True, check=False, timeout=TIMEOUT_S)

    def test_wishes_for_workers(self):
        master = self.member("master_of_workers")
        self.await_file("joined")
        refused = self.ask_for_workers("-n", "3")
        self.assertEqual(refused.returncode, 3, refused.stderr)
        self.assertIn("no process of job j is a master of workers", refused.stderr)
        self.tell("be_master")
        self.await_true(lambda: self.ask_for_workers("-n", "3").returncode == 0)
        asked = self.ask_for_workers("--json")
        self.assertEqual((asked.returncode, json.loads(asked.stdout)), (0, {"job": "j", "workers": 1, "wish": 1}), asked.stderr)
        self.ends(master, -9)
        restarted = self.restart(1, "--workers", "16")
        self.await_true(lambda: list((self.dir / "jobs" / "j" / "alive").glob("g1-*.0")))
        self.await_true(lambda: self.ask_for_workers("-n", "2").returncode == 0)
        self.ends(restarted, 0)
        self.assertEqual(self.ask_for_workers().returncode, 3)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
