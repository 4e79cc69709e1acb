"""C3, within one process: the tests of what a program sees after a restart (shadowib/cr/tests/restart_test.py), over a kernel's RDMA
device instead of ib2tcp. Boots a machine with Soft-RoCE (ci/vm/run) and goes on in there."""
import os
import re
import subprocess
import sys

from common import ROOT, Case, Line, check, main
from guest import run_in_guest

TIMEOUT_S = {True: 1200, False: 3600}  # --quick or not
TESTS = ROOT / "shadowib" / "cr" / "tests" / "restart_test.py"
# Of --quick: what the device itself has a part in, and other tests do not show on it. What the process alone has is tested on the host,
# by the same file.
SAMPLE = """
a_send_queue_that_was_draining
what_a_completion_queue_was_armed_for
objects_that_come_and_go
connections_of_rdma_cm
bound_windows
multicast
"""
FLOW_SAMPLE = """
receives_that_hold_a_write_back
unsignaled_writes_without_end
unsignaled_requests_of_every_kind
unsignaled_messages_before_a_hold
a_peer_that_may_not_be_written_to
"""
ACROSS_SAMPLE = """
of_unsignaled_writes_one_in_four_is_completed
a_group_from_a_device_to_ib2tcp
a_device_that_is_looked_for_afterwards
as_many_reads_as_there_were
"""


def tests(case: Case, line: Line, words: list[str]) -> str:
    done = subprocess.run([sys.executable, "-B", TESTS, line.build, line.program("restart_scenarios"), *words], cwd=case.work,
                          env={**os.environ, "SHADOWIB_TEST_BACKEND": "verbs"}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace", check=False)
    (case.work / "output").write_text(done.stdout + done.stderr)
    for part, reason in re.findall(r"^SKIPPED: (.*?): (.*)", done.stdout, re.MULTILINE):
        line.leave_out(part, reason)
    ran = re.search(r"^Ran (\d+) tests?", done.stderr, re.MULTILINE)
    check(done.returncode == 0, f"{' '.join(words)} exited with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    check(ran is not None and int(ran[1]) >= len(words), f"not all of them ran:\n{done.stderr[-2000:]}")
    return f"{ran[1]} tests"


def in_guest(line: Line) -> int:
    for name, suite, sample in (("receives hold requests back", "Flow", FLOW_SAMPLE), ("restarts", "Restart", SAMPLE),
                                ("to another adapter and back", "AcrossAdapters", ACROSS_SAMPLE)):
        words = [f"{suite}.test_{test}" for test in sample.split()] if line.quick else [suite]
        line.case(name, lambda case, w=words: tests(case, line, w))
    return line.finish()


if __name__ == "__main__":
    main(lambda: run_in_guest(Line("restarts_vm", __doc__), in_guest, TIMEOUT_S))
