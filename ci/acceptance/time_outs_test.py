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
    def test_of_a_step_in_the_queue_counts_what_has_run(self):
        """Waiting 13 s for a processor or a disk, from the middle of a step on, is not late."""
        run, disk = (0.0, True, 0.55), (0.0, True, 0.56)
        self.assertAlmostEqual(patience.counted((0.0, True, 0.0), run, 0.6), 0.55)
        self.assertAlmostEqual(patience.counted(run, disk, 13.0), 0.01)

    def test_of_a_step_that_was_not_all_in_the_queue_counts_all_but_the_queue(self):
        asleep, ready = (2.0, False, 0.5), (2.0, True, 0.5)
        self.assertAlmostEqual(patience.counted(asleep, asleep, 0.5), 0.5)
        self.assertAlmostEqual(patience.counted(asleep, ready, 0.5), 0.5)
        self.assertAlmostEqual(patience.counted(ready, (14.5, False, 0.6), 13.0), 0.5)

    def test_no_step_counts_for_more_than_it_lasted_or_for_less_than_nothing(self):
        """A process of four threads runs 2 s in 0.5 s, or waits for as long. Of one that has just ended, nothing is read."""
        self.assertEqual(patience.counted((0.0, True, 0.0), (0.0, True, 2.0), 0.5), 0.5)
        self.assertEqual(patience.counted((0.0, False, 0.0), (2.0, True, 0.0), 0.5), 0.0)
        self.assertEqual(patience.counted((2.0, True, 2.0), (0.0, False, 0.0), 0.5), 0.5)

    def test_waiting_for_a_disk_does_not_count(self):
        self.assertEqual(patience.run([f"{BINARIES}/ci_uninterruptible", "3"], 1).returncode, 0)

    def test_who_sleeps_is_late_and_tells_where(self):
        with self.assertRaises(patience.TimedOut) as late:
            patience.run(["sleep", "60"], 1)
        self.assertRegex(str(late.exception), r"\d+ \d+ sleep S \S*nanosleep")


if __name__ == "__main__":
    BINARIES = sys.argv.pop(1)
    unittest.main()
