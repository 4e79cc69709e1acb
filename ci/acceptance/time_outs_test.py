"""Tests of acceptance/patience.py: which time counts, and what is told of a command that hangs.

time_outs_test.py BINARIES [unittest options]
"""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import patience  # noqa: E402

BINARIES = ""


class Patience(unittest.TestCase):
    def test_waiting_for_a_disk_does_not_count(self):
        """Though it has not waited from the first."""
        begin = "import os, time\nwhile time.process_time() < 0.55: pass\n"
        wait = f"os.execv('{BINARIES}/ci_uninterruptible', ['ci_uninterruptible', '3'])"
        self.assertEqual(patience.run([sys.executable, "-c", begin + wait], 1).returncode, 0)

    def test_who_sleeps_is_late_and_tells_where(self):
        with self.assertRaises(patience.TimedOut) as late:
            patience.run(["sleep", "60"], 1)
        self.assertRegex(late.exception.doing, r"\d+ \d+ sleep S \S*nanosleep")


if __name__ == "__main__":
    BINARIES = sys.argv.pop(1)
    unittest.main()
