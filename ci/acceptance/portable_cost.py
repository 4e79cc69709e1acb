"""What portable state costs a program that takes no checkpoint: instructions, beside the same program by clang alone. And what a checkpoint costs.

Instructions are counted by callgrind, so other programs on the machine do not matter. Bounds: 1 % for a program with sites, after what its start costs once.
"""
import pathlib
import re
import shutil
import subprocess

from common import Case, Line, Skip, check, main
from portable_programs import HERE, PROGRAMS, Program

MOST = 0.01
# Programs as they are would end before their start is paid for.
SIZES = {"lu": (": 20;", ": 200;"), "heat": ("kSide = 24, kSteps = 12", "kSide = 200, kSteps = 60"), "gradient": ("{24,", "{300,"),
         "similarity": ("(7, 60)", "(7, 1500)")}
# A call by pointer may reach a site, and is tested each time. This one stands in the innermost loop: its cost is told, without a bound.
BY_POINTER = {"gradient"}
STUB = """#define SHADOWIB_PORTABLE_H
#define SHADOWIB_NO_SITE
#define SHADOWIB_MAY_SITE
#define shadowib_portable_site() ((void)0)
#define shadowib_portable_due() ((void)0)
"""
EMPTY = """#include <shadowib/portable.h>
int main(void) { shadowib_portable_site(); return 0; }
"""
COPY = """#include <shadowib/portable.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}
int main(void) {
  const long count = 1 << 22;
  double *from = malloc(count * sizeof *from), *to = malloc(count * sizeof *to);
  for (long i = 0; i < count; i++) from[i] = to[i] = i;
  double copy = 1e9;
  for (int i = 0; i < 5; i++) {
    double begin = now();
    memcpy(to, from, count * sizeof *to);
    if (now() - begin < copy) copy = now() - begin;
  }
  double begin = now();
  shadowib_portable_site();
  printf("%.6f %.6f %g\\n", copy, now() - begin, to[17]);
  return 0;
}
"""


def instructions(command: list[str]) -> int:
    done = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *command], capture_output=True, text=True, check=False)
    counted = re.search(r"Collected : (\d+)", done.stderr)
    check(done.returncode == 0 and counted, f"{command}: {done.returncode}, {done.stderr[-1000:]}")
    return int(counted[1])


def plain(case: Case, source: pathlib.Path) -> list[str]:
    (case.work / "stub.h").write_text(STUB)
    (case.work / "shadowib").mkdir(exist_ok=True)
    (case.work / "shadowib" / "portable.h").write_text("")
    path = case.work / f"{source.stem}.plain"
    done = subprocess.run(["clang-14", "-O2", "-w", "-ffp-contract=off", "-include", str(case.work / "stub.h"), "-I", str(case.work), "-o", str(path),
                           str(source), "-lm"], capture_output=True, text=True, check=False)
    check(done.returncode == 0, done.stderr[-1000:])
    return [str(path)]


def counted(case: Case) -> str:
    for tool in ("valgrind", "clang-14"):
        if not shutil.which(tool):
            raise Skip(f"{tool} is not installed")
    (case.work / "empty.c").write_text(EMPTY)
    start = instructions(Program(case, case.work / "empty.c", HERE).command()) - instructions(plain(case, case.work / "empty.c"))
    told = [f"a start {start / 1e6:.1f} million"]
    for name, (small, large) in SIZES.items():
        if case.line.quick and name not in ("lu", "heat"):
            continue
        text = (PROGRAMS / f"{name}.c").read_text()
        check(small in text, f"{name}.c has another size")
        source = case.work / f"{name}.c"
        source.write_text(text.replace(small, large))
        before, after = instructions(plain(case, source)), instructions(Program(case, source, HERE).command()) - start
        told.append(f"{name} {100 * (after / before - 1):+.2f} % of {before / 1e6:.0f} million")
        check(name in BY_POINTER or after <= before * (1 + MOST), f"{told[-1]}")
    return ", ".join(told)


def saved(case: Case) -> str:
    """The time of the processor for a checkpoint of 64 MiB, beside that for copying half of it."""
    (case.work / "copy.c").write_text(COPY)
    program, images = Program(case, case.work / "copy.c", HERE), case.work / "images"
    images.mkdir()
    copy, save, _ = program.output(DIR=str(images), AT="1").split()
    return f"copying 32 MiB {float(copy) * 1e3:.0f} ms, a checkpoint of 64 MiB {float(save) * 1e3:.0f} ms"


def run() -> int:
    line = Line("portable_cost", __doc__)
    line.case("counted", counted)
    line.case("saved", saved)
    return line.finish()


if __name__ == "__main__":
    main(run)
