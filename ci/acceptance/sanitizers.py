"""A7: AddressSanitizer and UndefinedBehaviorSanitizer builds pass all labels; ThreadSanitizer builds pass unit, conformance,
and the checking example with checkpoint and resume."""
import os
import pathlib
import subprocess
import sys

from common import ROOT, Case, Line, check, main

sys.path.insert(0, str(ROOT / "ci" / "runner"))


def build(case: Case, preset: str):
    log = case.work / "build.log"
    with open(log, "wb") as sink:
        for words in (["cmake", "--preset", preset], ["cmake", "--build", "--preset", preset, "-j", str(os.cpu_count() or 2)]):
            done = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, check=False)
            check(done.returncode == 0, f"{' '.join(words)} failed, see {log}")


def tests(case: Case, preset: str, labels: str, exclude: str = ""):
    import ctest
    from results import ExpectedSkips
    build(case, preset)
    junit = case.work / "results.xml"
    words = ["ctest", "--test-dir", f"build/{preset}", "--output-on-failure", "--output-junit", str(junit), "--no-tests=error",
             "--test-output-size-passed", "400000", "--test-output-size-failed", "400000", "-j", str(os.cpu_count() or 2)]
    words += (["-L", labels] if labels else []) + (["-E", exclude] if exclude else [])
    with open(case.work / "ctest.log", "wb") as sink:
        subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, check=False,
                       env={**os.environ, **ctest.sanitizer_environment(preset)})
    results = ctest.read_junit(preset, junit)
    expected = ExpectedSkips(ROOT / "ci" / "expected_skips")
    bad = [r for r in results if r.outcome == "failed" or r.outcome == "skipped" and not expected.allows(r)]
    check(not bad, "; ".join(f"{r.name} {r.outcome} {r.reason}" for r in bad) + f"; see {case.work}/ctest.log")
    skipped = sum(r.outcome == "skipped" for r in results)
    return f"{len(results) - skipped} passed, {skipped} skipped as expected"


def resume_under_tsan(case: Case, events: bool, transport: str):
    from pair import campaign
    from random_moments import verbs_check
    case.line.build = pathlib.Path(ROOT / "build" / "tsan")
    try:
        return campaign(case, verbs_check(case.line, transport, events, [], 6.0), 5, kill=False)
    finally:
        case.line.build = case.line.options.build.resolve()


def run() -> int:
    line = Line("sanitizers", __doc__)
    line.case("asan, all labels", lambda case: tests(case, "asan", ""))
    line.case("tsan, unit and conformance", lambda case: tests(case, "tsan", "unit|conformance"))
    for transport in ("shm", "tcp"):
        line.case(f"tsan, verbs_check {transport}", lambda case, t=transport: resume_under_tsan(case, False, t), 5)
        line.case(f"tsan, verbs_check {transport} events", lambda case, t=transport: resume_under_tsan(case, True, t), 5)
    return line.finish()


if __name__ == "__main__":
    main(run)
