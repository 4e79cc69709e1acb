"""What became of every test, and the closing lines."""
import dataclasses
import pathlib
import re


@dataclasses.dataclass
class Result:
    suite: str    # "release", "asan", "lint", "a2"
    name: str     # the test's name, and for a part of a test "test: part"
    outcome: str  # "passed", "failed" or "skipped"
    reason: str = ""


class ExpectedSkips:
    """ci/expected_skips: lines "suite | test | reason", each a regular expression that has to match wholly. A part of a test is
    found by "test: part" and by its name alone."""

    def __init__(self, path: pathlib.Path):
        self.rules = []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            line = line.split("#", 1)[0].strip()
            if not line:
                continue
            parts = re.split(r"\s+\|\s+", line, maxsplit=2)  # without blanks, | is part of an expression
            if len(parts) != 3:
                raise SystemExit(f"{path}:{number}: expected suite | test | reason")
            self.rules.append([re.compile(part) for part in parts])

    def allows(self, result: Result) -> bool:
        names = {result.name, result.name.partition(": ")[2] or result.name}
        return any(suite.fullmatch(result.suite) and reason.fullmatch(result.reason) and any(map(test.fullmatch, names))
                   for suite, test, reason in self.rules)


def close(results: list[Result], expected: ExpectedSkips, seconds: float) -> int:
    """Prints the skips with their reasons, the failures and the two closing lines. Returns the exit code."""
    count = {outcome: sum(r.outcome == outcome for r in results) for outcome in ("passed", "failed", "skipped")}
    skips = [r for r in results if r.outcome == "skipped"]
    unexpected = [r for r in skips if not expected.allows(r)]
    if skips:
        print("\nSkipped:")
        for r in skips:
            mark = "  UNEXPECTED" if r in unexpected else ""
            print(f"  {r.suite}: {r.name}: {r.reason}{mark}")
        if unexpected:
            print(f"{len(unexpected)} skip(s) that ci/expected_skips does not name: this counts as a failure")
    failures = [r for r in results if r.outcome == "failed"]
    if failures:
        print("\nFailed:")
        for r in failures:
            print(f"  {r.suite}: {r.name}" + (f": {r.reason}" if r.reason else ""))
    ran = count["passed"] + count["failed"]
    percent = int(100 * count["passed"] / ran) if ran else 0
    print(f"\n{percent}% tests passed, {count['failed']} tests failed out of {ran}")
    print(f"Total time: {seconds:.0f} s")
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped", flush=True)
    return 1 if failures or unexpected or not ran else 0
