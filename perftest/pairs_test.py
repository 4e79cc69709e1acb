#!/usr/bin/env python3
"""What pairs.py says of figures made up for it."""
import os
import tempfile
import unittest

import pairs


class Judge(unittest.TestCase):
    def test_noise_that_touches_both_is_no_noise(self):
        theirs = [1.0, 2.0, 1.5, 1.2, 1.9]
        result = pairs.judge([0.8 * t for t in theirs], theirs)
        self.assertEqual((result["verdict"], result["pairs"]), ("ok", 5))
        self.assertAlmostEqual(result["ratio"], 0.8)

    def test_scattered_ratios_are_not_judged(self):
        result = pairs.judge([1.0, 1.5, 0.7, 2.0, 1.1], [1.0] * 5)
        self.assertEqual(result["verdict"], "noisy")
        self.assertIn("too noisy", pairs.say(result))
        self.assertNotIn("x (", pairs.say(result))

    def test_one_stray_pair_does_no_harm(self):
        self.assertEqual(pairs.judge([1.0, 1.01, 7.0, 1.0, 0.99], [1.0] * 5)["verdict"], "ok")

    def test_too_few_pairs_are_not_judged(self):
        self.assertEqual(pairs.judge([1.0] * 4, [1.0] * 4)["verdict"], "noisy")

    def test_peer_at_three_times_its_usual_is_not_compared(self):
        self.assertEqual(pairs.judge([2.0] * 5, [2.99] * 5, usual=1.0)["verdict"], "ok")
        result = pairs.judge([2.0] * 5, [3.0] * 5, usual=1.0)
        self.assertEqual(result["verdict"], "strange")
        self.assertIn("1.00 us is its usual", pairs.say(result))

    def test_peer_is_strange_beside_its_own_best(self):
        self.assertEqual(pairs.judge([3.0, 3.0, 3.0, 3.0, 1.0], [3.0, 3.0, 3.0, 3.0, 1.0], usual=None)["verdict"], "strange")


class UsualFigures(unittest.TestCase):
    def test_best_is_kept_and_only_judged_ones_count(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "usual.json")
            usual = pairs.Usual(path)
            self.assertIsNone(usual.of("peer", 64))
            for figure, verdict in ((2.0, "ok"), (1.5, "ok"), (1.8, "ok"), (0.1, "noisy")):
                usual.note("peer", 64, {"verdict": verdict, "theirs_us": figure})
            usual.save()
            self.assertEqual(pairs.Usual(path).of("peer", 64), 1.5)


if __name__ == "__main__":
    unittest.main()
