"""Runs CTest and reads what it has to say about every test."""
import os
import re
import sys
import xml.etree.ElementTree as ElementTree

from results import Result
from steps import LOGS, ROOT, Steps

# A GoogleTest program that skips a case passes as a whole: "[  SKIPPED ] Suite.Case (0 ms)", the reason two lines above.
GTEST_SKIP = re.compile(r"^\[ {2}SKIPPED \] (\S+) \(\d+ ms\)$")
# What says why a test failed: an assertion of GoogleTest (the lines after it), a script's last word, a sanitizer.
WHY = re.compile(r": Failure$|^E  |^FAILED|^FAIL:|Error: |ERROR: |SUMMARY: |error: |terminate called")
SCRIPT_SKIP = re.compile(r"^SKIPPED:? (?:the rest: )?(.*)$")


def skips_within(test: str, output: str) -> list[tuple[str, str]]:
    """(part, reason) of what a test that ran left out."""
    found = []
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if match := GTEST_SKIP.match(line):
            reason = ""
            for before in reversed(lines[max(0, number - 8):number]):
                if before.startswith("[ RUN"):
                    break
                if before.strip() and not before.rstrip().endswith("Skipped"):
                    reason = before.strip()
            found.append((f"{test}: {match[1]}", reason or "gives no reason"))
        elif match := SCRIPT_SKIP.match(line):
            part, _, reason = match[1].partition(": ")
            found.append((f"{test}: {part}", reason) if reason else (test, part))
    return found


def why(output: str, lines: int = 12, closing: int = 12) -> str:
    """The lines of a failed test's output that are most likely to say why, and its last: for those who see the closing lines only."""
    said = output.rstrip().splitlines()
    first = next((number for number, line in enumerate(said) if WHY.search(line)), max(0, len(said) - lines))
    shown = said[first:first + lines]
    if rest := said[first + lines:]:
        shown += ["..."] * (len(rest) > closing) + rest[-closing:]
    return "".join(f"\n      {line}" for line in shown)


def read_junit(suite: str, path) -> list[Result]:
    results = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name, output = case.get("name"), case.findtext("system-out") or ""
        within = skips_within(name, output)
        if case.get("status") == "run":
            results.append(Result(suite, name, "passed"))
        elif case.get("status") == "fail":
            results.append(Result(suite, name, "failed", why(output)))
        else:  # notrun, disabled
            skipped = case.find("skipped")
            missing = skipped is None or "SKIP" not in (skipped.get("message") or "")
            whole = next((match[1] for line in output.splitlines() if (match := SCRIPT_SKIP.match(line))), "")
            reason = whole or (within[0][1] if within else "") or ((skipped is not None and skipped.get("message")) or "not run")
            results.append(Result(suite, name, "failed" if missing else "skipped", reason))
            continue
        results += [Result(suite, part, "skipped", reason) for part, reason in within]
    return results


def places(preset: str) -> int:
    """How many places tests have at once. Most wait more than they compute: two for each processor. What computes all the time takes two
    (PROCESSORS in the CMakeLists.txt). A sanitizer makes most of what waits compute."""
    return (os.cpu_count() or 2) * (1 if preset in ("asan", "tsan") else 2)


def run(steps: Steps, preset: str, labels: str = "", exclude: str = "", only: str = "", timeout: float = 3600,
        jobs: int | None = None) -> list[Result]:
    """Runs the tests whose labels match and returns one Result each."""
    junit = LOGS / f"ctest-{preset}.xml"
    junit.unlink(missing_ok=True)
    argv = ["ctest", "--test-dir", f"build/{preset}", "-j", str(jobs or places(preset)), "--output-on-failure",
            "--output-junit", str(junit), "--no-tests=error", "--test-output-size-passed", "400000",
            "--test-output-size-failed", "400000"]
    argv += ["-L", labels] if labels else []
    argv += ["-E", exclude] if exclude else []
    argv += ["-R", only] if only else []
    name = f"ctest {preset}" + (f" ({labels})" if labels else "")
    code = steps.run(name, argv, timeout, env=sanitizer_environment(preset), tail=60)
    if not junit.exists():
        return [Result(preset, "ctest", "failed", f"exit code {code} and no results, see build/logs")]
    results = read_junit(preset, junit)
    if code != 0 and not any(r.outcome == "failed" for r in results):
        results.append(Result(preset, "ctest", "failed", f"exit code {code}"))
    return results


def sanitizer_environment(preset: str) -> dict:
    """What the sanitizers need to know; what the caller has set wins."""
    # Freed memory held back is part of an image: 256 MiB, if nobody says less.
    address = {"ASAN_OPTIONS": "abort_on_error=0:detect_leaks=0:detect_stack_use_after_return=0:use_sigaltstack=0:quarantine_size_mb=16",
               "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"}
    settings = {
        "asan": address,
        "fuzz": address,
        # A process may end while its threads run: an aborted rank does. One with threads may fork, and its child may make some.
        "tsan": {"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:history_size=7:report_thread_leaks=0:die_after_fork=0:"
                                 f"suppressions={ROOT / 'ci' / 'tsan_suppressions'}"},
    }
    return {name: os.environ.get(name, value) for name, value in settings.get(preset, {}).items()}


if __name__ == "__main__":  # python3 ci/runner/ctest.py FILE.xml: what a run's results say
    for result in read_junit("file", sys.argv[1]):
        print(result)
