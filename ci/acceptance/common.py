"""What every acceptance line is made of: cases that pass, fail or are skipped, seeds, evidence, and a state to resume from.

A line is a program: random_moments.py --help. It runs its cases in order, prints a line for each, and exits with 0 (all passed), 1 (one
failed) or 77 (all skipped). With --state FILE, cases that have passed are not run again.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOLD_EACH_S = 60  # how far a long case is


class Failure(Exception):
    """The case failed; the text says how."""


class Skip(Exception):
    """The case cannot run here; the text says why."""


def check(condition, text: str):
    if not condition:
        raise Failure(text)


def commit() -> str:
    """The commit that is checked out, with + if files differ; "unknown" outside of a repository."""
    def git(*argv):
        return subprocess.run(["git", "-C", str(ROOT), *argv], capture_output=True, text=True, check=True).stdout.strip()
    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


class State:
    """What has passed, in a file that is replaced whole after every case. Without a path it forgets."""

    def __init__(self, path: pathlib.Path | None, line: str, forget: bool):
        self.path, self.line = path, line
        if forget:
            self._write({})

    def _read(self) -> dict:
        return json.loads(self.path.read_text()) if self.path and self.path.exists() else {}

    def _write(self, cases: dict):
        if not self.path:
            return
        everything = self._read()
        everything[self.line] = cases
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(everything, indent=1) + "\n")
        os.replace(new, self.path)

    def get(self, case: str) -> dict:
        return self._read().get(self.line, {}).get(case, {})

    def set(self, case: str, entry: dict):
        cases = self._read().get(self.line, {})
        cases[case] = entry
        self._write(cases)


class Line:
    def __init__(self, name: str, about: str, options=None):
        parser = argparse.ArgumentParser(prog=f"ci/acceptance/{name}.py", description=about)
        parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release", metavar="DIR",
                            help="the build tree to test (build/release)")
        parser.add_argument("--quick", action="store_true", help="a short sample")
        parser.add_argument("--seed", help="repeats the random choices of a run that printed this seed")
        parser.add_argument("--only", default="", metavar="REGEX", help="only cases whose names match")
        parser.add_argument("--list", action="store_true", help="print the cases' names")
        parser.add_argument("--state", type=pathlib.Path, metavar="FILE", help="skip what passed, record what passes")
        parser.add_argument("--restart", action="store_true", help="forget this line's state")
        parser.add_argument("--log", type=pathlib.Path, metavar="FILE", help="writes the cases' lines there, too")
        parser.add_argument("--area", type=pathlib.Path, metavar="DIR", help="where cases keep their files (DIR of --build/acceptance)")
        parser.add_argument("--keep", action="store_true", help="keep the files of cases that pass")
        if options:
            options(parser)
        self.name, self.options = name, parser.parse_args()
        self.quick = self.options.quick
        self.build = self.options.build.resolve()
        self.seed = self.options.seed or f"{random.SystemRandom().getrandbits(32):08x}"
        self.state = State(self.options.state, name + (" --quick" if self.quick else ""), self.options.restart)
        self.area = self.options.area or self.build / "acceptance"
        self.outcomes = {"passed": 0, "FAILED": 0, "SKIPPED": 0}
        self.keep_elsewhere = lambda case: None  # called with a case whose files stay, once its processes have ended
        self.kernel_said = lambda: ""  # of processes that a signal ended, since it was last asked
        self.seconds = time.monotonic()
        if self.options.log:
            self.options.log.parent.mkdir(parents=True, exist_ok=True)
            self.options.log.write_text("")
        if not self.options.list:
            print(f"{name}: seed {self.seed}, {self.build}", flush=True)

    def program(self, name: str) -> str:
        """A program of the build tree."""
        path = self.build / "bin" / name
        if not path.exists():
            raise Skip(f"{path} is not built")
        return str(path)

    def case(self, name: str, function, wanted: int = 1):
        """Runs function(case) unless it passed before."""
        if not re.search(self.options.only, name):
            return
        if self.options.list:
            print(name)
            return
        before = self.state.get(name)
        if before.get("outcome") == "passed" and before.get("wanted", 1) >= wanted:
            self._say("passed", name, f"earlier, at {before['commit']}, {before['seconds']:.0f} s; {before['text']}")
            return
        case = Case(self, name, wanted, before)
        start = time.monotonic()
        try:
            text = function(case) or ""
            outcome = "passed"
        except Skip as skip:
            outcome, text = "SKIPPED", str(skip)
        except Failure as failure:
            outcome, text = "FAILED", str(failure) + case.said_last() + self.kernel_said()
        except Exception:  # pylint: disable=broad-except
            outcome, text = "FAILED", "the test itself: " + traceback.format_exc()
        except BaseException:
            case.end("interrupted", "", 0)
            raise
        took = time.monotonic() - start
        case.end(outcome, text, took)
        self._say(outcome, name, f"{text} ({took:.1f} s)" if outcome == "passed" else text)

    def _say(self, outcome: str, name: str, text: str):
        self.outcomes[outcome] += 1
        self._tell(f"{outcome:8}{name.replace(':', ' ')}: {text.strip()}")

    def leave_out(self, part: str, reason: str):
        """A part of a case does not run. The runner of all tests judges it (ci/expected_skips)."""
        self._tell(f"SKIPPED: {part}: {reason}")

    def _tell(self, line: str):
        print(line, flush=True)
        if self.options.log:
            with open(self.options.log, "a") as log:
                log.write(line + "\n")

    def finish(self) -> int:
        if self.options.list:
            return 0
        o = self.outcomes
        print(f"{self.name}: {o['passed']} passed, {o['FAILED']} failed, {o['SKIPPED']} skipped "
              f"({time.monotonic() - self.seconds:.0f} s)", flush=True)
        if o["FAILED"]:
            return 1
        return 0 if o["passed"] else 77


class Case:
    """One case of a line, with a directory of its own that is removed when it passes."""

    def __init__(self, line: Line, name: str, wanted: int, before: dict):
        self.line, self.name, self.wanted = line, name, wanted
        # How many of `wanted` earlier runs have seen pass. One is left where the case has not: it may have failed behind its last.
        self.done = min(before.get("done", 0), wanted - (before.get("outcome") != "passed"))
        slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
        # Short, because job names and Unix socket paths derive from it.
        self.work = line.area / f"{line.name}-{slug}"
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        self.cleanups, self.told = [], time.monotonic()
        self.logs = [self.work / "shadowib.log"]
        self.figures = {}

    def random(self, what="") -> random.Random:
        return random.Random(f"{self.line.seed}/{self.name}/{what}")

    def goes_on(self, how_far: str):
        """For who waits: a line a minute at most."""
        if time.monotonic() - self.told >= TOLD_EACH_S:
            self.told = time.monotonic()
            print(f"  {self.name}: {how_far}", file=sys.stderr, flush=True)

    def progress(self, done: int):
        """`done` of `wanted` have passed: a resumed run need not repeat them."""
        self.done = done
        self.goes_on(f"{done} of {self.wanted}")
        self.line.state.set(self.name, {"outcome": "partial", "wanted": self.wanted, "done": done, "commit": commit()})

    def said_last(self, lines: int = 6) -> str:
        """The end of the library's log, which often names the cause."""
        said = [line for log in self.logs if log.exists() for line in log.read_text(errors="replace").splitlines()[-lines:]]
        return "\n  the library said last:\n" + "\n".join("    " + line for line in said) if said else ""

    def note(self, text: str):
        """A line in the case's own log, part of the evidence."""
        with open(self.work / "case.log", "a") as log:
            log.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    def end(self, outcome: str, text: str, took: float):
        for cleanup in reversed(self.cleanups):
            try:
                cleanup(outcome in ("FAILED", "interrupted"))
            except Exception as error:  # pylint: disable=broad-except
                self.note(f"cleaning up: {error!r}")
        if outcome == "passed":
            self.line.state.set(self.name, {"outcome": "passed", "wanted": self.wanted, "done": self.wanted, "text": text,
                                            "commit": commit(), "seconds": round(took, 1), "seed": self.line.seed,
                                            **({"figures": self.figures} if self.figures else {})})
        if outcome == "FAILED":
            self.note(text)
            options = f"--build {os.path.relpath(self.line.build, ROOT)} --seed {self.line.seed}"
            quick = " --quick" if self.line.quick else ""
            print(f"  evidence: {self.work}\n  repeat:   python3 ci/acceptance/{self.line.name}.py{quick} {options} "
                  f"--only '^{re.escape(self.name)}$'", file=sys.stderr, flush=True)
        elif outcome != "interrupted" and not self.line.options.keep:
            shutil.rmtree(self.work, ignore_errors=True)
            return
        self.line.keep_elsewhere(self)


def main(run):
    """Runs a line's run() to the process's end; SIGTERM cleans up like an interruption."""
    import signal
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(run())
    except KeyboardInterrupt:
        sys.exit(130)
