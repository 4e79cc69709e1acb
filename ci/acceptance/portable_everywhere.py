"""The B1 hazard of portable state: programs made at random by csmith, sites at random places, their stack left and entered again at each.

The stack is poisoned between, so a value that was not saved changes the output. It must be the output of the plain build. A seed gives the
program, the sites, and how it is optimised."""
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess

from common import Case, Line, Skip, check, main

PROGRAMS, QUICK = 500, 4
# A csmith program may run for ever: such a seed makes no case, and the next one is taken. It is counted by the plain build.
QUICK_SEEDS = (12, 5, 6, 13, 14, 15)
LEAVES = 3000
HEADERS = "/usr/include/csmith"
LEVELS = ("-O0", "-O1", "-O2", "-O3")
# Seconds of a processor, not of a clock: the plain build ends in far less than one, or not at all.
ENDS_CPU_S = 20
PATIENCE_S = 1800


def made(case: Case, seed: int) -> pathlib.Path:
    source = case.work / f"{seed}.c"
    made = subprocess.run(["csmith", "--seed", str(seed), "--max-funcs", "6", "--max-block-depth", "3"], cwd=case.work, capture_output=True, text=True, check=True)
    source.write_text(made.stdout)
    return source


def compiled(command: list[str], source: pathlib.Path, program: pathlib.Path, *options: str) -> pathlib.Path:
    result = subprocess.run([*command, *options, "-w", "-I", HEADERS, "-o", str(program), str(source)], capture_output=True, text=True, check=False)
    check(result.returncode == 0, f"{source}: {result.stderr[-2000:]}")
    return program


def ran(program: pathlib.Path, environment: dict[str, str]) -> tuple[str, str]:
    result = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=PATIENCE_S, env={**os.environ, **environment})
    check(result.returncode == 0, f"{program} ended with {result.returncode}: {result.stderr[-2000:]}")
    return result.stdout, result.stderr


def output_of_plain(program: pathlib.Path) -> str | None:
    """None: it does not end."""
    result = subprocess.run(["prlimit", f"--cpu={ENDS_CPU_S}:{ENDS_CPU_S + 10}", "--core=0", str(program)], capture_output=True, text=True, check=False,
                            timeout=PATIENCE_S)
    if result.returncode == -signal.SIGXCPU:
        return None
    check(result.returncode == 0, f"{program} ended with {result.returncode}: {result.stderr[-2000:]}")
    return result.stdout


def one_program(case: Case, seed: int) -> int:
    """Returns how often the stack was left; -1 if the plain program does not end."""
    source, level = made(case, seed), LEVELS[seed % len(LEVELS)]
    plain = compiled(["clang-14"], source, case.work / f"{seed}.plain", level, "-ffp-contract=off")
    wanted = output_of_plain(plain)
    if wanted is None:
        return -1
    ours = compiled([case.line.program("shadowib-cc")], source, case.work / f"{seed}.sites", level, f"-fshadowib-everywhere={seed}")
    options = {"SHADOWIB_PORTABLE_EVERYWHERE": str(LEAVES), "SHADOWIB_PORTABLE_REPORT": "1"}
    output, told = ran(ours, options)
    check(output == wanted, f"{source}, {level}: left and entered it prints {output!r}, plain {wanted!r}")
    counts = re.search(r"(\d+) visits of sites, (\d+) leaves, (\d+) refused", told)
    check(counts and counts[3] == "0", f"{source}: {told[-2000:]}")
    for file in case.work.glob(f"{seed}.*"):
        file.unlink()
    return int(counts[2])


def everywhere(case: Case) -> str:
    if not shutil.which("csmith") or not shutil.which("clang-14"):
        raise Skip("csmith or clang-14 is not installed")
    seeds = iter(QUICK_SEEDS)
    if not case.line.quick:
        numbers = random.Random(case.line.seed)
        seeds = iter(lambda: numbers.randrange(1, 1 << 31), None)
    wanted, programs, leaves, endless = QUICK if case.line.quick else PROGRAMS, 0, 0, 0
    while programs < wanted:
        left = one_program(case, next(seeds))
        if left < 0:
            endless += 1
            continue
        programs, leaves = programs + 1, leaves + left
    check(leaves >= 20 * programs, f"{programs} programs were left only {leaves} times")
    return f"{programs} programs, left and entered {leaves} times, 0 differ; {endless} seeds without an end"


def run() -> int:
    line = Line("portable_everywhere", __doc__)
    line.case("csmith", everywhere)
    return line.finish()


if __name__ == "__main__":
    main(run)
