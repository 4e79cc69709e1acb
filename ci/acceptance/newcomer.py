"""A newcomer's first hour: in a fresh Debian the repository is cloned and ci/quickstart run, as an ordinary user; with --test
ci/test, in another one, as root. Says the seconds, and the packages that came."""
import pathlib
import resource
import subprocess
import sys
import time

from common import ROOT, Case, Line, Skip, check, main

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "chroot"))
from chroot import Chroot, Unavailable  # noqa: E402

HOME = "/home/user"


def fresh() -> Chroot:
    try:
        return Chroot()
    except Unavailable as why:
        raise Skip(str(why)) from why


class Newcomer:
    """Somebody in a fresh Debian, with a clone of what is committed here."""

    def __init__(self, case: Case, root: Chroot):
        self.case, self.root = case, root
        self.run("useradd", "-m", "user")
        clone = root.root / HOME[1:] / "shadowib"
        subprocess.run(["git", "-c", f"safe.directory={ROOT}", "clone", "-q", "--no-hardlinks", ROOT, clone], check=True)
        self.run("chown", "-R", "user:", HOME)

    def run(self, *words, user=None, cwd="/"):
        """Returns the seconds it took: wall, processors."""
        log = self.case.work / "output.log"
        began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        # By a pipe: a file outside of the new root has no name there, and could not be checkpointed.
        done = self.root.run(list(words), user=user, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        with open(log, "ab") as sink:
            sink.write(f"$ {' '.join(words)}\n".encode() + done.stdout)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        check(done.returncode == 0, f"{' '.join(words)} exited with {done.returncode}:\n{log.read_text(errors='replace')[-3000:]}")
        return time.monotonic() - began, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime

    def packages(self) -> set[str]:
        listed = self.root.run(["dpkg-query", "-W", "-f", "${Package}\n"], capture_output=True, text=True, check=True)
        return set(listed.stdout.split())


def quickstart(case: Case):
    with fresh() as root:
        newcomer = Newcomer(case, root)
        before = newcomer.packages()
        wall, _ = newcomer.run("ci/setup", "--product", cwd=HOME + "/shadowib")
        named = root.run(["ci/setup", "--product", "--list"], cwd=HOME + "/shadowib", capture_output=True, text=True).stdout.split()
        came = newcomer.packages() - before
        seconds, processors = newcomer.run("ci/quickstart", "--no-setup", user="user", cwd=HOME + "/shadowib")
        said = (case.work / "output.log").read_text(errors="replace")
        check("verdict: ok" in said, f"ci/quickstart says: {said[-1500:]}")
        text = (f"{seconds:.0f} s after packages were there ({processors:.0f} s of processors); {len(named)} packages named, "
                f"{len(came)} came in {wall:.0f} s: {' '.join(named)}")
        limit = case.line.options.limit
        check(seconds <= limit, f"more than {limit} s: {text}")
        return text


def tests(case: Case):
    with fresh() as root:
        newcomer = Newcomer(case, root)
        newcomer.run("chown", "-R", "root:", HOME)  # git reads no clone of another user's
        seconds, _ = newcomer.run("ci/test", cwd=HOME + "/shadowib")
        said = (case.work / "output.log").read_text(errors="replace").strip().splitlines()
        return f"{said[-1]} ({seconds:.0f} s)"


def options(parser):
    parser.add_argument("--test", action="store_true", help="run ci/test, too, which takes an hour")
    parser.add_argument("--limit", type=float, default=150, metavar="S", help="how long ci/quickstart may take (150)")


def run() -> int:
    line = Line("newcomer", __doc__, options)
    line.case("quickstart", quickstart)
    if line.options.test:
        line.case("test", tests)
    return line.finish()


if __name__ == "__main__":
    main(run)
