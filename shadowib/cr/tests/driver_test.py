"""A restart over another verbs library than the checkpoint's: restart_scenarios over fake ones (objects/tests/fake_verbs).

driver_test.py BUILD_DIR PROGRAM [unittest options]
"""
import json
import pathlib
import shutil
import subprocess
import sys
import unittest

import restart_case
from restart_case import BUILD, PROGRAM, SHADOWIB, TIMEOUT_S


class DriverCase(restart_case.RestartCase):
    def setUp(self):
        super().setUp()
        for name in ("old", "new", "none", "part"):
            shutil.copy(BUILD / "lib" / f"libfake_verbs_{name}.so", self.library(name))

    def library(self, name):
        return self.dir / f"lib{name}.so"

    def over(self, name):
        """The environment of a command that is to use it."""
        return {"SHADOWIB_BACKEND": "verbs", "FAKE_VERBS_DIR": str(self.dir), "SHADOWIB_IBVERBS": str(self.library(name))}

    def run_over(self, name, scenario):
        return self.start("run", "--job", "j", "--", PROGRAM, scenario, **self.over(name))

    def put_away(self, name):
        """No longer there, and whoever calls into the copy an image holds aborts."""
        self.library(name).rename(self.dir / f"{name}.away")
        (self.dir / f"{name}.forbidden").touch()

    def bring_back(self, name):
        (self.dir / f"{name}.away").rename(self.library(name))
        (self.dir / f"{name}.forbidden").unlink()

    def made(self, name):
        """What it has made, a line for each."""
        calls = self.dir / f"{name}.calls"
        return calls.read_text().splitlines() if calls.exists() else []

    def said(self):
        return "".join(p.log.read_text(errors="replace") for p in self.processes)


class Drivers(DriverCase):
    def test_another_library_and_back(self):
        self.ends(self.run_over("old", "drivers"), -9)
        first = self.made("old")
        self.assertIn("context of old0", first)
        self.assertEqual(self.made("new"), [])
        self.put_away("old")
        restarted = self.restart(1, **self.over("new"))
        self.await_file("on the second")
        second = self.made("new")
        self.assertIn("context of new1", second)
        self.assertEqual(sum(line.startswith("GID") for line in second), 0, "a table of GIDs is one question")
        # The first objects are others now: their numbers have changed places, and keys are of another kind.
        kinds = [[line for line in lines if line.startswith("queue pair")] for lines in (first, second)]
        self.assertEqual(kinds[0][:2], list(reversed(kinds[1][:2])))
        for lines in (first, second):
            self.assertEqual({line for line in lines if line.startswith("P_Key")}, {"P_Key 0x8001"})
        self.assertFalse({line for line in first if line.startswith("region")} & set(second))
        self.assertEqual(self.made("old"), first)
        status = subprocess.run([SHADOWIB, "status", "j", "--json", "--dir", str(self.dir)], capture_output=True, text=True,
                                check=True).stdout
        objects = json.loads(status)["members"][0]["state"]["objects"]
        self.assertEqual((objects["backend"], objects["backend_figures"]), ("verbs", {"library": str(self.library("new"))}))
        self.tell("seen")
        restarted.wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        self.put_away("new")
        self.bring_back("old")
        self.ends(self.restart(2, **self.over("old")), 0)
        self.assertGreater(len(self.made("old")), len(first), self.said())

    def test_more_restarts_than_the_loader_has_link_namespaces(self):
        self.ends(self.run_over("old", "many_drivers"), -9)
        for number in range(1, 19):
            self.restart(number, **self.over(("old", "new")[number % 2])).wait(TIMEOUT_S)
            self.assertTrue((self.dir / "sets" / f"j.{number + 1:04}").exists(), f"restart {number}: {self.said()}")
        self.tell("enough")
        self.ends(self.restart(19, **self.over("old")), 0)

    def test_what_had_not_run(self):
        for scenario in ("held", "arming", "current_state", "attributes", "unmapped_region", "opened_later",
                         "error_by_completion", "drain_event", "receives_as_flow_control", "write_behind_a_send", "peer_in_init", "full_queue",
                         "many_unsignaled", "changed_queue", "changed_region"):
            for before, after in (("old", "new"), ("new", "old")):
                with self.afresh(f"{scenario}: {before} to {after}"):
                    self.ends(self.run_over(before, scenario), -9)
                    self.put_away(before)
                    self.ends(self.restart(self.newest(), **self.over(after)), 0)

    def test_a_process_that_was_about_to_end(self):
        """In a destructor of the library that it had: which the restart must not take away from under it."""
        for after in ("new", "old"):
            with self.afresh(after):
                (self.dir / "old.slow").touch()
                program = self.run_over("old", "one_driver")
                self.await_file("old.ending")
                self.checkpoint("--kill")
                self.ends(program, -9)
                (self.dir / "old.slow").unlink()
                self.ends(self.restart(self.newest(), **self.over(after)), 0)

    def test_a_process_that_looks_after_the_restart(self):
        for scenario in ("opens_later", "opens_after_a_look"):
            with self.afresh(scenario):
                later = self.run_over("old", scenario)
                self.ends(self.run_over("old", "opens_before"), -9)
                self.ends(later, -9)
                self.ends(self.restart(self.newest(), **self.over("new")), 0)

    def test_a_port_outside_the_partition(self):
        (self.dir / "new.unpartitioned").touch()
        self.ends(self.run_over("old", "drivers"), -9)
        refused = self.restart(1, **self.over("new"))
        self.ends(refused, 4)
        self.assertIn("is in the partition of P_Key 0x8001, of which port 1 of this adapter is no member", refused.log.read_text())
        (self.dir / "new.unpartitioned").unlink()
        restarted = self.restart(1, **self.over("new"))  # the set is as good as it was
        self.await_file("on the second")
        restarted.kill()

    def test_an_alternate_path(self):
        def ways(name):
            return [line for line in self.made(name) if line.startswith("another way")]

        self.ends(self.run_over("old", "alternate_path"), -9)
        self.assertEqual(ways("old"), ["another way to LID 0x11, P_Key 0x8001"])
        self.ends(self.restart(1, **self.over("new")), 0)  # over which the program then loads it anew
        self.assertEqual(ways("new"), ["another way to LID 0x21, P_Key 0x8001"] * 2)
        (self.dir / "new.one_way").touch()
        self.ends(self.restart(1, **self.over("new")), 0)
        self.assertEqual(len(ways("new")), 2)
        self.assertIn("this adapter knows no alternate paths, and the program's is not loaded", self.said())

    def test_a_device_with_small_completion_queues(self):
        # No room for completions that the program did not ask for: it goes on without them.
        (self.dir / "new.entries").write_text("300\n")
        self.ends(self.run_over("old", "held"), -9)
        restarted = self.restart(self.newest(), **self.over("new"))
        self.ends(restarted, 0)
        self.assertIn("has no completion queue of", self.said())

    def test_a_library_that_will_not_do(self):
        self.ends(self.run_over("old", "many_drivers"), -9)
        self.library("text").write_text("no library\n")
        shutil.copy(BUILD / "lib" / "libforeign_library_victim.so", self.library("other"))
        # The command fails as the manual says, and with the reason on its own standard error.
        job = self.dir / "jobs" / "j"
        for name, code, text in (("gone", 3, "cannot load the system's verbs library"),
                                 ("text", 3, "file too short"),
                                 ("other", 2, "is not a verbs library: it exports no ibv_open_device"),
                                 ("part", 2, "it lacks ibv_destroy_qp, ibv_get_device_guid, ibv_query_pkey"),
                                 ("none", 4, "finds no RDMA device here; use --backend ib2tcp")):
            with self.subTest(name):
                before = [(job / file).read_bytes() for file in ("epoch", "key")]
                restarted = self.restart(1, **self.over(name))
                self.ends(restarted, code)
                self.assertIn("shadowib: ", restarted.log.read_text())
                self.assertIn(text, restarted.log.read_text())
                # The library was looked at before anything was made.
                self.assertEqual([(job / file).read_bytes() for file in ("epoch", "key")], before)
                self.assertNotIn("member 0", restarted.log.read_text())
        self.tell("enough")
        self.ends(self.restart(1, **self.over("new")), 0)

    def test_a_library_without_functions_that_are_needed(self):
        """Which ended the program by SIGSEGV in ibv_get_device_list."""
        program = self.run_over("part", "many_drivers")
        self.assertGreater(program.wait(TIMEOUT_S), 0, self.said())
        self.assertRegex(self.said(), "ibv_get_device_list: .*libpart.so cannot be used: it lacks "
                                      "ibv_destroy_qp, ibv_get_device_guid, ibv_query_pkey; name a complete verbs library")

    def test_a_device_that_cannot_be_opened(self):
        (self.dir / "old.unopenable").touch()
        program = self.run_over("old", "many_drivers")
        self.assertGreater(program.wait(TIMEOUT_S), 0, self.said())
        self.assertRegex(self.said(), "ibv_open_device: backend verbs cannot open device old[01]: Device or resource busy")

    def test_a_path_from_where_the_command_stands(self):
        self.ends(self.run_over("old", "many_drivers"), -9)
        self.put_away("old")
        self.tell("enough")
        elsewhere = self.dir / "elsewhere"
        elsewhere.mkdir()
        self.ends(self.restart(1, place=elsewhere, **{**self.over("new"), "SHADOWIB_IBVERBS": "../libnew.so"}), 0)
        self.assertIn("context of new1", self.made("new"))

    def test_without_a_word_what_the_program_was_started_with(self):
        self.ends(self.run_over("old", "many_drivers"), -9)
        self.tell("enough")
        before = len(self.made("old"))
        self.ends(self.restart(1, **{**self.over("new"), "SHADOWIB_IBVERBS": ""}), 0)
        self.assertGreater(len(self.made("old")), before)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
