"""BSP jobs with processes of x86-64, aarch64 and s390x: results as on one architecture, also after kills and restarts with other roles. Values
that cannot be handed over are refused by name."""
import dataclasses
import os
import pathlib
import random as randoms
import shutil
import signal
import subprocess
import time

from common import Case, Line, Skip, check, main
from portable_bsp import EXAMPLES, PATIENCE_S, RING, SLOW, BspJob, at_hand, compiled, runners
from portable_programs import HERE

PROGRAMS = RING.parent
RESTARTS, QUICK = 20, 2
ABORTED = 124
NAMES = ("x86_64", "aarch64", "s390x")
WRONG = """#include <bsp.h>
#include <stdlib.h>
#include <string.h>
struct list { int value; struct list* next; };
struct bits { int low : 5; int high : 20; };
struct pair { int first; double second; };
union either { int whole; float real; };
static struct list lists[2];
static struct bits bits[2];
static union either either[2];
static int is(const char* what, const char* wanted) { return !strcmp(what, wanted); }
int main(int argc, char** argv) {
  const char* what = argv[1];
  bsp_begin(bsp_nprocs());
  char room[16] = {0};
  char* letters = room;
  double numbers[4] = {0, 1, 2, 3};
  int* block = malloc(8 * sizeof *block);
  float* floats = malloc(8 * sizeof *floats);
  struct pair pair = {1, 2};
  int three = 3;
  if (is(what, "pointer")) bsp_push_reg(lists, sizeof lists);
  if (is(what, "bits")) bsp_push_reg(bits, sizeof bits);
  if (is(what, "union")) bsp_push_reg(either, sizeof either);
  if (is(what, "letters")) bsp_push_reg(letters, sizeof room);
  if (is(what, "void")) bsp_push_reg((void*)numbers, sizeof numbers);
  if (is(what, "cast")) bsp_push_reg((double*)block, 8 * sizeof *block);
  if (is(what, "beyond")) bsp_push_reg(block, 9 * sizeof *block);
  if (is(what, "types") && bsp_pid() == 0) bsp_push_reg(numbers, sizeof numbers);
  if (is(what, "types") && bsp_pid() != 0) bsp_push_reg(floats, 8 * sizeof *floats);
  bsp_push_reg(numbers, sizeof numbers);
  bsp_sync();
  if (is(what, "put")) bsp_put(1, numbers, numbers, 4, 8);
  if (is(what, "put end")) bsp_put(1, numbers, numbers, 8, 12);
  if (is(what, "hpput")) bsp_hpput(1, numbers, numbers, 7, 1);
  if (is(what, "get")) bsp_get(1, numbers, 16, room, 5);
  if (is(what, "struct")) bsp_send(1 - bsp_pid(), NULL, &pair, sizeof pair);
  if (is(what, "bytes")) bsp_send(1 - bsp_pid(), NULL, room, sizeof room);
  if (is(what, "half")) bsp_send(1 - bsp_pid(), NULL, &three, 3);
  bsp_sync();
  bsp_end();
  return 0;
}
"""
REFUSED = {"pointer": "member next is a pointer", "bits": "member low is a bit-field", "union": "a value is a union", "letters": "its pointer is one to characters",
           "void": "the type of the memory", "cast": "made for values of another type", "beyond": "only 32 of 36 bytes", "types": "memory of another type",
           "put": "bsp_put: bytes 4 to 12 split a number", "put end": "bsp_put: bytes 8 to 20 split a number", "hpput": "bsp_hpput: bytes 7 to 8 split a number",
           "get": "bsp_get: bytes 16 to 21 split a number", "struct": "has values whose type is not known", "bytes": "has bytes, which may be anything",
           "half": "has 3 bytes, which are no whole numbers"}
ONCE = """#include <bsp.h>
#include <stdio.h>
int main(void) {
  bsp_begin(bsp_nprocs());
  char word[8] = "local";  /* an array, so its characters are meant */
  double half[2] = {bsp_pid() + 0.5, 0};
  bsp_push_reg(word, sizeof word);
  bsp_push_reg(half, sizeof half);
  bsp_sync();
  double now = 0;
  bsp_direct_get((bsp_pid() + 1) % bsp_nprocs(), half, 0, &now, sizeof now);
  const long sent = 1L << 33 | bsp_pid();
  bsp_hpsend((bsp_pid() + 1) % bsp_nprocs(), NULL, &sent, sizeof sent);
  bsp_put((bsp_pid() + 1) % bsp_nprocs(), "there", word, 0, 6);
  bsp_sync();
  long came = 0;
  bsp_move(&came, sizeof came);
  printf("process %u: %g %ld %s\\n", bsp_pid(), now, came, word);
  bsp_end();
  return 0;
}
"""


@dataclasses.dataclass
class Mixture:
    """A program for each architecture, as they are dealt to the processes in turn."""
    name: str
    programs: list[str]
    arguments: tuple[str, ...] = ()

    def words(self, order: list[int], run: list[str]) -> list[str]:
        programs = [self.programs[i] for i in order]
        return [*(word for program in programs for word in ("--program", program)), *run, programs[0], *self.arguments]


def architectures(case: Case):
    found = [a for a in at_hand(case) if a.name in NAMES]
    if [a.name for a in found] != list(NAMES):
        raise Skip("cross compilers and qemu-user of aarch64 and s390x are needed")
    return found


def source(case: Case, name: str, text: str) -> pathlib.Path:
    path = case.work / name
    path.write_text(text)
    return path


def without_long_double(case: Case, name: str) -> pathlib.Path:
    """Its values are whole numbers, which a double has exactly."""
    return source(case, name, (EXAMPLES / name).read_text().replace("long double", "double").replace("%.0Lf", "%.0f"))


def mixture(case: Case, path: pathlib.Path, *arguments: str) -> Mixture:
    return Mixture(path.stem, [compiled(case, path, a) for a in architectures(case)], arguments)


def mixtures(case: Case) -> list[Mixture]:
    short = case.line.quick
    return [mixture(case, PROGRAMS / "mixture.c"), mixture(case, PROGRAMS / "lu.c", "12" if short else "40"), mixture(case, RING),
            mixture(case, EXAMPLES / "similarity.c", "300" if short else "1500"),
            mixture(case, without_long_double(case, "matrix_multiply.c"), "20" if short else "60"),
            mixture(case, without_long_double(case, "graph.c"), "50" if short else "500")]


def programs(case: Case) -> str:
    """Each program on x86-64 alone, then mixed."""
    job, run, told = BspJob(case), runners(architectures(case)), []
    for each in mixtures(case):
        wanted = job.all_of(3, each.programs[0], *each.arguments)
        for order in ([0, 1, 2],) if case.line.quick else ([0, 1, 2], [2, 1, 0], [2, 0], [1, 2]):
            found = job.all_of(3, *each.words(order, run))
            check(found == wanted, f"{each.name}, {order}: {found} instead of {wanted}")
        told.append(each.name)
    once = source(case, "once.c", "#define BSP_MULTICORE\n" + ONCE)
    each = mixture(case, once)
    wanted = job.all_of(3, each.programs[0])
    check(job.all_of(3, *each.words([2, 1, 0], run)) == wanted, "direct_get or hpsend has another result")
    return ", ".join(told)


def killed(case: Case) -> str:
    """Saved and killed at a superstep, or a process killed at any moment; restarted with other roles, again and again."""
    random, run, done = case.random(), runners(architectures(case)), {}
    held = [mixture(case, PROGRAMS / "mixture.c"), mixture(case, RING)]
    lost = [held[0], mixture(case, PROGRAMS / "lu.c", "40")]
    for number in range(QUICK if case.line.quick else RESTARTS):
        loses = number % 2 == 1
        each = (lost if loses else held)[number // 2 % 2]
        job = BspJob(case)
        wanted = job.all_of(3, each.programs[0], *each.arguments)
        orders = [random.sample(range(3), 3) for _ in range(3)]
        if loses:
            name = lost_process(job, each, orders[0], run, random)
        else:
            process = job.begin(3, *each.words(orders[0], run), environment={**job.holding, "RING_PAUSE_US": "3000"})
            name = job.save_when_begun(process, "--kill").name
        if not loses:  # once more, from the roles of the restart
            words = job.words("--from", name, *[w for i in orders[1] for w in ("--program", each.programs[i])], *run)
            with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**job.holding, "RING_PAUSE_US": "3000"}) as process:
                name = job.save_when_begun(process, "--kill").name
        found = job.restarted(name, *[w for i in orders[2] for w in ("--program", each.programs[i])], *run)
        check(found == wanted, f"{each.name}, {name}, roles {orders}: {found} instead of {wanted}")
        done[each.name] = done.get(each.name, 0) + 1
        shutil.rmtree(job.directory)
    return ", ".join(f"{name} {count} times" for name, count in done.items())


def lost_process(job: BspJob, each: Mixture, order: list[int], run: list[str], random: randoms.Random) -> str:
    """The newest set when any process is killed."""
    process = job.begin(3, "--interval", "0.2", "--keep", "2", *each.words(order, run), environment=SLOW)
    deadline = time.monotonic() + PATIENCE_S
    while not job.sets():
        check(process.poll() is None and time.monotonic() < deadline, "no set")
        time.sleep(0.05)
    time.sleep(random.uniform(0, 0.3))
    started = job.directory / "jobs" / job.name / "started"
    pids = [int(p.name.split(",")[1]) for p in started.iterdir()] if started.exists() else []
    for pid in random.sample(pids, min(1, len(pids))):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.communicate(timeout=PATIENCE_S)
    return max(entry["name"] for entry in job.sets())


def refusals(case: Case) -> str:
    """B14, and each type that cannot be handed over: one message, exit code 124. In a job of one byte order all is well."""
    job, run = BspJob(case), runners(architectures(case))
    each = mixture(case, source(case, "wrong.c", WRONG))
    for what, words in REFUSED.items():
        process = job.begin(2, *each.words([2, 0], run), what, environment={**os.environ})
        _, err = process.communicate(timeout=PATIENCE_S)
        check(process.returncode == ABORTED and words in err, f"{what}: {process.returncode}, {err}")
        shutil.rmtree(job.directory / "jobs" / job.name / "portable", ignore_errors=True)
        if not case.line.quick:
            job.all_of(2, *each.words([0, 1], run), what)
    return ", ".join(REFUSED)


def run() -> int:
    line = Line("portable_mixed", __doc__)
    for case in (programs, killed, refusals):
        line.case(case.__name__, case)
    return line.finish()


if __name__ == "__main__":
    main(run)
