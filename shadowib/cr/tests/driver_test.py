"""A restart over another verbs library than the checkpoint's: restart_scenarios over fake ones (objects/tests/fake_verbs).

driver_test.py BUILD_DIR PROGRAM [unittest options]
"""
import json
import pathlib
import shutil
import subprocess
import sys
import unittest

import restart_test
from restart_test import BUILD, PROGRAM, SHADOWIB, TIMEOUT_S


class DriverCase(restart_test.RestartCase):
    def setUp(self):
        super().setUp()
        for name in ("old", "new", "none"):
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
        # The first objects are others now: their numbers have changed places, and keys are of another kind.
        kinds = [[line for line in lines if line.startswith("queue pair")] for lines in (first, second)]
        self.assertEqual(kinds[0][:2], list(reversed(kinds[1][:2])))
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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
