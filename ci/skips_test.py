"""Tests of what is made of a test that skips: ci/runner/ctest.py finds it, ci/expected_skips names it.

skips_test.py [unittest options]
"""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "runner"), str(HERE / "acceptance")]
from common import Line  # noqa: E402
from ctest import skips_within  # noqa: E402
from full import read_log  # noqa: E402
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

    def test_a_part_of_a_line_is_judged_by_the_whole_run_too(self):
        with tempfile.TemporaryDirectory() as place:
            with unittest.mock.patch.object(sys, "argv", ["line", "--log", f"{place}/log", "--area", f"{place}/area"]), \
                    contextlib.redirect_stdout(io.StringIO()):
                line = Line("restarts_vm", "")
                line.case("restarts", lambda case: line.leave_out("test_objects_that_come_and_go with XRC", "Soft-RoCE has no XRC"))
                line.case("others", lambda case: line.leave_out("test_others", "no time"))
            results = read_log("restarts_vm", pathlib.Path(place, "log"), 0)
        self.assertEqual([(r.name, r.outcome) for r in results],
                         [("restarts_vm: test_objects_that_come_and_go with XRC", "skipped"), ("restarts", "passed"),
                          ("restarts_vm: test_others", "skipped"), ("others", "passed")])
        self.assertEqual([self.expected.allows(r) for r in results if r.outcome == "skipped"], [True, False])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
