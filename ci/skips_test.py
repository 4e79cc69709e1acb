"""Tests of what is made of a test that skips: ci/runner/ctest.py finds it, ci/expected_skips names it.

skips_test.py [unittest options]
"""
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "runner"))
from ctest import skips_within  # noqa: E402
from results import ExpectedSkips, Result  # noqa: E402

GTEST = """[ RUN      ] {name}
x_test.cc:1: Skipped
{reason}

[  SKIPPED ] {name} (0 ms)
"""


class Skips(unittest.TestCase):
    expected = ExpectedSkips(HERE / "expected_skips")

    def outcome(self, suite, test, name, reason):
        parts = skips_within(test, GTEST.format(name=name, reason=reason))
        self.assertEqual(parts, [(f"{test}: {name}", reason)])
        return self.expected.allows(Result(suite, parts[0][0], "skipped", parts[0][1]))

    def test_a_skipped_case_of_a_program_is_found_by_its_own_name(self):
        for test, name, reason in (
                ("imager_test", "All/Restored.AfterARestart/state_speculation",
                 "this processor and kernel have no control of speculative stores"),
                ("imager_test", "All/Refusals.NamesTheObject/refuse_protection_key", "this machine has no such memory"),
                ("kernel_state_test", "All/Refused.IsNamed/core_scheduling", "this machine does not allow it"),
                ("kernel_state_test", "All/Refused.IsNamed/port_access", "this machine does not allow it"),
                ("memory_test", "Memory.IsNoNewerForWhatIsWritten", "this kernel knows no births of files in /dev/shm")):
            self.assertTrue(self.outcome("release", test, name, reason), name)
        self.assertTrue(self.outcome("asan", "base_test", "MallocArenas.AreFound", "a sanitizer's malloc has no arenas"))

    def test_another_reason_suite_or_case_is_not_expected(self):
        self.assertFalse(self.outcome("release", "imager_test", "All/Refusals.NamesTheObject/refuse_protection_key", "no time"))
        self.assertFalse(self.outcome("release", "base_test", "MallocArenas.AreFound", "a sanitizer's malloc has no arenas"))
        self.assertFalse(self.outcome("release", "stop_test", "Stop.EndsEarly", "this machine does not allow it"))

    def test_a_whole_test_is_found_by_its_name(self):
        self.assertTrue(self.expected.allows(Result("tsan", "install_test_x", "skipped",
                                                    "outside programs would have to be built with sanitizers, too")))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
