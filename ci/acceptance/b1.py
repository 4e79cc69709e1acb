"""B1: rdma-core's own tests (python3-pyverbs) against ib2tcp0 under the shim, by preload and by the drop-in directory. What
has to come of each of its core tests is in pyverbs_expected.txt; the others may pass or skip, but not fail."""
import collections
import gzip
import os
import pathlib
import shutil
import subprocess

from common import Case, Line, Skip, check, main
from jobs import Job

HERE = pathlib.Path(__file__).resolve().parent
SHIPPED = pathlib.Path("/usr/share/doc/rdma-core/tests")
# `run` preloads and sets the drop-in directory: here the latter is to do. A sanitizer's run-time library has to stay.
ONLY_DROPIN = r"""LD_PRELOAD=$(printf %s "$LD_PRELOAD" | tr : '\n' | grep -v libshadowib | paste -sd:); exec "$@" """


def fetch(case: Case) -> pathlib.Path:
    """The tests, unpacked. Images without documentation leave them out of the installed package."""
    shipped = SHIPPED
    if not shipped.is_dir():
        if not shutil.which("apt-get"):
            raise Skip("rdma-core's tests are not installed (package python3-pyverbs, with its documentation)")
        subprocess.run(["apt-get", "download", "python3-pyverbs"], cwd=case.work, capture_output=True, check=False)
        packages = list(case.work.glob("python3-pyverbs*.deb"))
        if not packages:
            raise Skip("rdma-core's tests are not installed, and apt-get cannot download package python3-pyverbs")
        subprocess.run(["dpkg-deb", "-x", packages[0], case.work / "package"], check=True)
        shipped = case.work / "package" / SHIPPED.relative_to("/")
    tests = case.work / "tests"
    tests.mkdir()
    for file in shipped.iterdir():
        content = file.read_bytes()
        packed = file.suffix == ".gz"
        (tests / (file.stem if packed else file.name)).write_bytes(gzip.decompress(content) if packed else content)
    return tests


def expectations() -> dict[str, str]:
    """Outcome by test."""
    lines = [line.split("#", 1)[0].split() for line in (HERE / "pyverbs_expected.txt").read_text().splitlines()]
    return {words[0]: words[1] for words in lines if words}


def judge(results: str) -> str:
    seen = {}
    for line in results.splitlines():
        name, outcome, *reason = line.split(" ", 2)
        seen[name] = (outcome, reason[0] if reason else "")
    wrong = []
    for name, outcome in expectations().items():
        got = seen.pop(name, ("missing", ""))
        if got[0] != outcome:
            wrong.append(f"{name}: {outcome} is due, but: {' '.join(got)}")
    wrong += [f"{name}: {outcome} {reason}" for name, (outcome, reason) in seen.items() if outcome in ("fail", "error")]
    check(not wrong, "\n".join(wrong))
    count = collections.Counter(expectations().values())
    others = collections.Counter(outcome for outcome, _ in seen.values())
    return (f"of {sum(count.values())} core tests {count['pass']} passed, {count['skip']} skipped as explained; "
            f"of {sum(others.values())} others {others['pass']} passed, {others['skip']} skipped")


def suite(case: Case, dropin: bool) -> str:
    python = "/usr/bin/python3"  # the one that the package is for
    if subprocess.run([python, "-c", "import pyverbs"], capture_output=True, check=False).returncode != 0:
        raise Skip("pyverbs is not installed (package python3-pyverbs)")
    tests = fetch(case)
    job = Job(case, "pyverbs")
    results = case.work / "results.txt"
    words = [python, "-B", str(HERE / "programs" / "pyverbs_runner.py"), str(tests), str(results), "--dev", "ib2tcp0", "--gid", "0"]
    if dropin:
        words = ["/bin/sh", "-c", ONLY_DROPIN, "sh", *words]
    job.start("pyverbs", words)
    job.programs[0].process.wait(600)
    check(results.exists(), f"the tests did not come to their end:\n{job.output()[-3000:]}")
    shutil.copy(results, case.line.area / f"b1-{'dropin' if dropin else 'preload'}.txt")
    return judge(results.read_text())


def run() -> int:
    line = Line("b1", __doc__)
    os.makedirs(line.area, exist_ok=True)
    line.case("preload", lambda case: suite(case, False))
    line.case("drop-in", lambda case: suite(case, True))
    return line.finish()


if __name__ == "__main__":
    main(run)
