"""B1: rdma-core's own tests (python3-pyverbs) against ib2tcp0 under the shim, by preload and by the drop-in directory. What
has to come of each of its core tests is in pyverbs_expected.txt; the others may pass or skip, but not fail."""
import collections
import os
import pathlib

from common import Case, Line, check, main
from jobs import Job
from rdma_core_tests import Outcome, fetch, run as run_tests

HERE = pathlib.Path(__file__).resolve().parent


def expectations() -> dict[str, str]:
    """Outcome by test."""
    lines = [line.split("#", 1)[0].split() for line in (HERE / "pyverbs_expected.txt").read_text().splitlines()]
    return {words[0]: words[1] for words in lines if words}


def judge(seen: dict[str, Outcome]) -> str:
    wrong = []
    for name, outcome in expectations().items():
        got = seen.pop(name, Outcome("missing"))
        if got.what != outcome:
            wrong.append(f"{name}: {outcome} is due, but: {got}")
    wrong += [f"{name}: {outcome}" for name, outcome in seen.items() if outcome.what in ("fail", "error")]
    check(not wrong, "\n".join(wrong))
    count = collections.Counter(expectations().values())
    others = collections.Counter(outcome.what for outcome in seen.values())
    return (f"of {sum(count.values())} core tests {count['pass']} passed, {count['skip']} skipped as explained; "
            f"of {sum(others.values())} others {others['pass']} passed, {others['skip']} skipped")


def suite(case: Case, dropin: bool) -> str:
    tests = fetch(case.work / "tests")
    how = "dropin" if dropin else "preload"
    return judge(run_tests(Job(case, how), tests, "ib2tcp0", 0, dropin, keep=f"b1-{how}.txt"))


def run() -> int:
    line = Line("rdma_core", __doc__)
    os.makedirs(line.area, exist_ok=True)
    line.case("preload", lambda case: suite(case, False))
    line.case("drop-in", lambda case: suite(case, True))
    return line.finish()


if __name__ == "__main__":
    main(run)
