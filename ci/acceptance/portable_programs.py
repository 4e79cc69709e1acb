"""Programs with portable images: compiled for each architecture at hand, run there, and told where their images are."""
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess

from common import ROOT, Case, Skip, check

PROGRAMS = ROOT / "libraries" / "portable" / "tests" / "programs"
PATIENCE_S = 600


@dataclasses.dataclass(frozen=True)
class Architecture:
    name: str
    target: str  # as clang names it; empty: this machine's
    runner: tuple[str, ...]


HERE = Architecture("x86_64", "", ())
ALL = (HERE,
       Architecture("i686", "i686-linux-gnu", ("qemu-i386", "-L", "/usr/i686-linux-gnu")),
       Architecture("aarch64", "aarch64-linux-gnu", ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")),
       Architecture("powerpc", "powerpc-linux-gnu", ("qemu-ppc", "-L", "/usr/powerpc-linux-gnu")),
       Architecture("s390x", "s390x-linux-gnu", ("qemu-s390x", "-L", "/usr/s390x-linux-gnu")))


def at_hand(case: Case, library: str = "libshadowib-portable.so") -> list[Architecture]:
    """Those whose library is built, and whose programs can run here."""
    case.line.program("shadowib-cc")
    found = [a for a in ALL if not a.target or ((case.line.build / "lib/shadowib/portable" / a.target / library).exists()
                                                and shutil.which(a.runner[0]))]
    if len(found) < 2:
        raise Skip("no cross compiler and qemu-user of another architecture are installed")
    return found


class Program:
    """One source, compiled for one architecture."""

    def __init__(self, case: Case, source: pathlib.Path, architecture: Architecture, level: str = "-O2"):
        self.architecture, self.case = architecture, case
        self.path = case.work / f"{source.stem}.{architecture.name}"
        target = [f"--target={architecture.target}"] if architecture.target else []
        # In the source's directory: the file's name is then the same for all.
        compiler = [case.line.program("shadowib-c++"), "-std=c++17"] if source.suffix == ".cc" else [case.line.program("shadowib-cc")]
        done = subprocess.run([*compiler, *target, level, "-w", "-o", str(self.path), source.name, "-lm"],
                              cwd=source.parent, capture_output=True, text=True, check=False)
        check(done.returncode == 0, f"{source}, {architecture.name}: {done.stderr[-2000:]}")

    def command(self, *arguments: str) -> list[str]:
        return [*self.architecture.runner, str(self.path), *arguments]

    def run(self, *arguments: str, **options: str) -> subprocess.CompletedProcess:
        """Options are the runtime's, as FROM for SHADOWIB_PORTABLE_FROM."""
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=environment(options))

    def output(self, *arguments: str, **options: str) -> str:
        done = self.run(*arguments, **options)
        check(done.returncode == 0, f"{self.path} {arguments} {options}: {done.returncode}, {done.stderr[-2000:]}")
        return done.stdout

    def visits(self, *arguments: str) -> int:
        done = self.run(*arguments, REPORT="1")
        counts = re.search(r"(\d+) visits of sites", done.stderr)
        check(counts, f"{self.path}: {done.stderr[-2000:]}")
        return int(counts[1])

    def save(self, directory: pathlib.Path, *arguments: str, **options: str) -> tuple[pathlib.Path, str]:
        """An image, and what the program printed that wrote it and went on."""
        directory.mkdir(exist_ok=True)
        image = directory / "member-0.psi"
        image.unlink(missing_ok=True)
        done = self.run(*arguments, DIR=str(directory), **options)
        check(done.returncode == 0 and image.exists(), f"{self.path} {options} wrote no image: {done.returncode}, {done.stderr[-2000:]}")
        return image, done.stdout


def environment(options: dict[str, str]) -> dict[str, str]:
    return {**os.environ, **{f"SHADOWIB_PORTABLE_{name}": value for name, value in options.items()}}


def values(case: Case, image: pathlib.Path, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run([case.line.program("shadowib-values"), *options, str(image)], capture_output=True, text=True, check=False)


def digest(case: Case, image: pathlib.Path) -> str:
    done = values(case, image, "--digest")
    check(done.returncode == 0, f"{image}: {done.stderr}")
    return done.stdout.split()[0]
