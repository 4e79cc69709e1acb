"""rdma-core's own tests (package python3-pyverbs), for the lines that run them."""
import dataclasses
import gzip
import pathlib
import shutil
import subprocess
import tempfile

from common import Case, Skip, check
from jobs import Job

RUNNER = pathlib.Path(__file__).resolve().parent / "programs" / "pyverbs_runner.py"
SHIPPED = pathlib.Path("/usr/share/doc/rdma-core/tests")
PYTHON = "/usr/bin/python3"  # the one that the package is for
TIMEOUT_S = 1200
# `run` preloads and sets the drop-in directory: here the latter is to do. A sanitizer's run-time library has to stay.
ONLY_DROPIN = r"""LD_PRELOAD=$(printf %s "$LD_PRELOAD" | tr : '\n' | grep -v libshadowib | paste -sd:); exec "$@" """


def _shipped(work: pathlib.Path) -> pathlib.Path:
    """Images without documentation leave them out of the installed package: then of one that is downloaded to `work`."""
    if SHIPPED.is_dir():
        return SHIPPED
    if not shutil.which("apt-get"):
        raise Skip("rdma-core's tests are not installed (package python3-pyverbs, with its documentation)")
    subprocess.run(["apt-get", "download", "python3-pyverbs"], cwd=work, capture_output=True, check=False)
    packages = list(work.glob("python3-pyverbs*.deb"))
    if not packages:
        raise Skip("rdma-core's tests are not installed, and apt-get cannot download package python3-pyverbs")
    subprocess.run(["dpkg-deb", "-x", packages[0], work / "package"], check=True)
    return work / "package" / SHIPPED.relative_to("/")


def fetch(tests: pathlib.Path) -> pathlib.Path:
    """Puts the tests, unpacked, into that directory, which is made anew."""
    if subprocess.run([PYTHON, "-c", "import pyverbs"], capture_output=True, check=False).returncode != 0:
        raise Skip("pyverbs is not installed (package python3-pyverbs)")
    shutil.rmtree(tests, ignore_errors=True)
    tests.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        for file in _shipped(pathlib.Path(work)).iterdir():
            content = file.read_bytes()
            packed = file.suffix == ".gz"
            (tests / (file.stem if packed else file.name)).write_bytes(gzip.decompress(content) if packed else content)
    return tests


@dataclasses.dataclass
class Outcome:
    what: str  # pass, fail, error, skip or missing
    reason: str = ""

    def __str__(self):
        return f"{self.what} {self.reason}".rstrip()


def run(job: Job, tests: pathlib.Path, device: str, gid: int, dropin: bool = False, only: str = "", keep: str = "") -> dict[str, Outcome]:
    """Runs them as the job's only program. `only`: a regular expression their names have to match. `keep`: the name of a copy of
    the results in the line's area."""
    case: Case = job.case
    results = case.work / f"{job.name}.txt"
    words = [PYTHON, "-B", str(RUNNER), str(tests), str(results), only, "--dev", device, "--gid", str(gid)]
    if dropin:
        words = ["/bin/sh", "-c", ONLY_DROPIN, "sh", *words]
    program = job.start(job.name, words)
    program.process.wait(TIMEOUT_S)
    check(results.exists(), f"the tests did not come to their end:\n{job.output()[-3000:]}")
    if keep:
        shutil.copy(results, case.line.area / keep)
    outcomes = {}
    for line in results.read_text().splitlines():
        name, what, *reason = line.split(" ", 2)
        outcomes[name] = Outcome(what, *reason)
    return outcomes
