"""ci/test: the quick cut (release, with a sample of the acceptance lines), or with --full the acceptance lines as written."""
import argparse
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import ctest  # noqa: E402
import full  # noqa: E402
from results import ExpectedSkips, Result, close  # noqa: E402
from steps import ROOT, Steps  # noqa: E402

EPILOG = """\
Without options: builds release and runs every test of it: lint, model, unit, conformance, client, chaos, vm and bench, with
a short sample of the acceptance lines, some seconds of every fuzz target, and the programs of tests that are cheap under
AddressSanitizer and ThreadSanitizer. It is made to take less than 45 minutes on two cores; docs/internals/testing.md tells what it leaves
to --full. --preset asan and --preset tsan run the other tests, too, without acceptance lines, and say so; A7 is the whole of it.
--full runs the acceptance lines as written, which takes hours. It goes on where the last one stopped: what has passed is
in build/acceptance/state.json. A line that fails keeps its evidence below build/acceptance and prints how to repeat it.
Logs of every step are in build/logs. A test that cannot run says SKIPPED and why; a skip that ci/expected_skips does
not name is a failure. The last line counts."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ci/test", epilog=EPILOG, description=__doc__.split("\n", 1)[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", nargs="*", metavar="LINE", help="acceptance lines by label or program, E1 or mpi_jobs; none named: all")
    parser.add_argument("--restart", action="store_true", help="with --full: forget what has passed")
    parser.add_argument("--seed", help="with --full: repeats the random choices of a run that printed this seed")
    parser.add_argument("--preset", action="append", help="only this preset (release, debug, asan, tsan); repeatable")
    parser.add_argument("--labels", metavar="REGEX", help="only tests with such a label (model, unit, conformance, "
                        "client, chaos, vm, bench, packages)")
    parser.add_argument("--no-setup", action="store_true", help="do not look for missing packages")
    return parser.parse_args()


# The quick cut of a preset: labels, tests that look at the source and not at what was built, and seconds for the build and the tests.
QUICK = {
    "release": ("", "", 1800, 3600),
    "debug": ("", "", 1800, 3600),
    "asan": ("unit|conformance|client|chaos", "lint.*", 3600, 7200),
    "tsan": ("unit|conformance", "lint.*", 3600, 7200),
}

# Tests that a preset leaves out whatever labels are asked for, and why. Each is told as skipped (ci/expected_skips).
LEFT_OUT = {
    "asan": {"acceptance_.*": "processes are some 5 times slower and images 10 times larger; --full A7 runs it"},
    "tsan": {"acceptance_.*": "not made to work there: programs of others have failed after a restart"},
}

# The test that has clang check all locks. The quick cut without options leaves it to the fuzz targets' build, whose clang does it, too,
# and runs ci/locks for the sources that are not in there.
LOCKS = "lint_locks"

# The programs of tests that the quick cut without options takes of a sanitizer: much code for little time, in one process each.
# The fuzz targets' build has AddressSanitizer and UndefinedBehaviorSanitizer, too; another one of the product would take ten minutes.
CHEAP = {
    "fuzz": ["base_test", "objects_test", "datapath_test", "judge_test", "ports_test", "published_ids_test", "set_test", "store_test",
             "coordinator_test", "exchange_contract_test", "exchange_server_test", "ib2tcp_conformance_test", "ib2tcp_hostile_test"],
    "tsan": ["stop_test", "exchange_server_test", "ib2tcp_random_test"],
}


def quick(options: argparse.Namespace, steps: Steps) -> list[Result]:
    results = []
    all_of_it = not options.preset and not options.labels
    for preset in options.preset or ["release"]:
        if preset not in QUICK:
            raise SystemExit(f"ci/test: no preset {preset}; there are {', '.join(QUICK)}")
        labels, exclude, build_s, test_s = QUICK[preset]
        left_out = LEFT_OUT.get(preset, {})
        if built(steps, preset, results, timeout=build_s):
            beside_fuzz = [LOCKS] if all_of_it else []
            results += ctest.run(steps, preset, options.labels or labels, "|".join([*filter(None, [exclude]), *left_out, *beside_fuzz]),
                                 timeout=test_s)
            results += [Result(preset, tests, "skipped", why) for tests, why in left_out.items()]
    if all_of_it:
        for preset, programs in CHEAP.items():
            fuzzed = preset == "fuzz"
            if built(steps, preset, results, programs + ["fuzzers"] * fuzzed):
                results += ([fuzz(steps), locks(steps)] if fuzzed else []) + ctest.run(steps, preset, only=f"^({'|'.join(programs)})$")
    return results


def built(steps: Steps, preset: str, results: list[Result], targets: list[str] = (), timeout: float = 1800) -> bool:
    done = steps.configure_and_build(preset, targets, timeout)
    results.append(Result(preset, "build", "passed") if done else Result(preset, "build", "failed", "see build/logs"))
    return done


def fuzz(steps: Steps) -> Result:
    """Some seconds of every fuzz target, from its seeds. ci/fuzz/run takes as long as it is told."""
    code = steps.run("fuzz targets", ["ci/fuzz/run", "--seconds", "5", "--seed", "1"], 900)
    return Result("fuzz", "all targets", "passed" if code == 0 else "failed", "see build/logs")


def locks(steps: Steps) -> Result:
    """The test lint_locks, but for the sources that the fuzz targets' build has checked."""
    code = steps.run("locks", ["ci/locks", "--built", "build/fuzz"], 900)
    return Result("fuzz", LOCKS, "passed" if code == 0 else "failed", "see build/logs")


def main() -> int:
    options = parse()
    os.chdir(ROOT)
    steps = Steps()
    if options.full is not None:
        results = full.run(steps, options.full, options.restart, options.seed)
    else:
        results = quick(options, steps)
    return close(results, ExpectedSkips(ROOT / "ci" / "expected_skips"), steps.seconds())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
