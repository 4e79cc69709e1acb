"""C2: rdma-core's own tests (python3-pyverbs) on a kernel's RDMA device: what passes natively passes under the shim, by preload
and by the drop-in directory. Boots a machine with Soft-RoCE (ci/vm/run) and goes on in there."""
import collections
import os
import pathlib

from common import Case, Line, Skip, check, main
from guest import run_in_guest
from jobs import Job
from rdma_core_tests import Outcome, fetch, run as run_tests

TIMEOUT_S = {True: 1200, False: 3600}  # --quick or not
DEVICE, GID = "rxe0", 1
# All of them pass natively: objects, requests, events, windows, what is refused, rdma_cm and its groups.
SAMPLE = r"""
test_cq\.CQTest
test_device\.DeviceTest\.test_query_(device|gid|port)
test_qpex\.QpExTestCase\.test_(post|full_rq|qp_ex_ud_send$|qp_ex_rc_bind_mw)
test_atomic\.AtomicTest\.test_atomic_(fetch|invalid_rkey)
test_cq_events\.
test_rdmacm\.CMTestCase\.test_rdmacm_async_(multicast|udp|write)
"""
AS_SHIPPED = 86  # of version 44 pass natively


def fully(outcomes: dict[str, Outcome]) -> str:
    """What all of them came to, and by name what neither passed nor was skipped."""
    count = collections.Counter(outcome.what for outcome in outcomes.values())
    bad = [f"{name} ({outcome})" for name, outcome in outcomes.items() if outcome.what not in ("pass", "skip")]
    return f"{count['pass']} of {sum(count.values())} passed, {count['skip']} skipped" + "".join(f"; not: {text}" for text in bad)


def passed(outcomes: dict[str, Outcome]) -> set[str]:
    return {name for name, outcome in outcomes.items() if outcome.what == "pass"}


class Suite:
    """The tests, and what becomes of them natively, which is found out once."""

    def __init__(self, line: Line, tests: pathlib.Path):
        self.tests, self.quick, self.native = tests, line.quick, {}

    def run(self, case: Case, name: str, backend: str | None, dropin: bool = False) -> dict[str, Outcome]:
        only = "|".join(SAMPLE.split()) if self.quick else ""
        return run_tests(Job(case, name, backend=backend), self.tests, DEVICE, GID, dropin, only, f"c2-{name}.txt")

    def natively(self, case: Case) -> str:
        self.native = self.run(case, "natively", None)
        enough = len(self.native) if self.quick else AS_SHIPPED
        check(len(passed(self.native)) >= enough > 0, f"{fully(self.native)}: fewer than they were")
        return fully(self.native)

    def shim(self, case: Case, how: str) -> str:
        if not self.native:
            self.natively(case)
        seen = self.run(case, how, "verbs", how == "dropin")
        due = passed(self.native)
        wrong = [f"{name}: passes natively, but: {seen.get(name, Outcome('missing'))}" for name in sorted(due - passed(seen))]
        check(not wrong, "\n".join(wrong))
        beyond = sorted(passed(seen) - due)
        return f"the same {len(due)} passed" + "".join(f"; only here: {name}" for name in beyond)


def in_guest(line: Line, tests: pathlib.Path) -> int:
    suite = Suite(line, tests)
    line.case("natively", suite.natively)
    for how in ("preload", "dropin"):
        line.case(how, lambda case, h=how: suite.shim(case, h))
    return line.finish()


def run() -> int:
    line = Line("rdma_core_vm", __doc__)
    tests = line.build / "acceptance" / "c2-tests"
    if os.environ.get("SHADOWIB_VM") != "1" and not line.options.list:
        try:
            fetch(tests)  # which the guest, without a network and with the host's files read-only, cannot
        except Skip as skip:
            print(f"SKIPPED: {skip}")
            return 77
    return run_in_guest(line, lambda guest_line: in_guest(guest_line, tests), TIMEOUT_S)


if __name__ == "__main__":
    main(run)
