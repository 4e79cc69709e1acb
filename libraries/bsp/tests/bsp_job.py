"""BSP programs under bsprun, for the tests beside: compiled by bspcc, run in a directory of their own."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE_S = 120


class Bench:
    """A directory with compiled programs. `build`: the build tree."""

    def __init__(self, build: str):
        self.build = pathlib.Path(build).resolve()
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="shadowib-bsp-"))
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("SHADOWIB_")}
        self.jobs = 0

    def compile(self, source: pathlib.Path, *options: str, name: str = "", check: bool = True, compiler: str = "bspcc"):
        """The program's path; without `check` the finished compiler."""
        program = self.work / (name or source.stem)
        done = subprocess.run([str(self.build / "bin" / compiler), "-Wall", "-O2", *options, "-o", str(program), str(source)],
                              capture_output=True, text=True, check=False)
        if not check:
            return done
        if done.returncode != 0:
            sys.exit(f"FAILED: {compiler} {source}: {done.stderr}")
        return program

    def command(self, *words: str) -> list[str]:
        """bsprun's words, with a job and directory of its own."""
        self.jobs += 1
        return [str(self.build / "bin" / "bsprun"), "--job", f"job{self.jobs}", "--dir", str(self.work / "ckpt"), *map(str, words)]

    def run(self, *words: str, environment: dict | None = None, stdin: str = "") -> subprocess.CompletedProcess:
        # What a test runner has left open would be named by each process.
        return subprocess.run(self.command(*words), input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
                              cwd=self.work, env={**self.environment, **(environment or {})}, close_fds=True)

    def end(self):
        shutil.rmtree(self.work, ignore_errors=True)


def main(function):
    """function(bench) with argv[1] as the build tree; keeps the directory of a failure."""
    bench = Bench(sys.argv[1])
    try:
        function(bench)
    except BaseException:
        print(f"kept: {bench.work}", file=sys.stderr)
        raise
    bench.end()
    print("ok")


def need(condition, text: str):
    if not condition:
        sys.exit(f"FAILED: {text}")
