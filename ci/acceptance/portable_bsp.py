"""Portable sets of BSP jobs: all processes are saved at one superstep, and the set restarts the program on this or another architecture."""
import os
import pathlib
import shutil
import signal
import subprocess
import time

from common import ROOT, Case, Line, check, main
from portable_jobs import Job
from portable_programs import ALL, HERE, Architecture, at_hand as programs_at_hand

RING = ROOT / "libraries" / "bsp" / "tests" / "programs" / "ring.c"
EXAMPLES = ROOT / "examples" / "bsp"
KILLS, QUICK = 50, 2
INTERVALS_S = (1, 3, 6)  # without --quick
RESTART_S = 2  # images are small
PATIENCE_S = 60
SAVED = (137, 20)  # exit codes of bsprun and of a restart behind --kill
SLOW = {**os.environ, "RING_PAUSE_US": "60000"}
STRUCTS = """#include <bsp.h>
#include <time.h>
struct pair { int first; long second; };
int main(void) {
  bsp_begin(bsp_nprocs());
  for (;;) {
    struct pair pair = {1, 2};
    bsp_send(0, NULL, &pair, sizeof pair);
    bsp_sync();
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  }
}
"""


def compiled(case: Case, source: pathlib.Path, architecture: Architecture = HERE) -> str:
    path = case.work / f"{source.stem}.{architecture.name}"
    target = [f"--target={architecture.target}"] if architecture.target else []
    done = subprocess.run([case.line.program("bspcc"), *target, "-O2", "-w", "-o", str(path), source.name, "-lm"], cwd=source.parent, capture_output=True,
                          text=True, check=False, env={**os.environ, "CC": case.line.program("shadowib-cc")})
    check(done.returncode == 0, f"{source}, {architecture.name}: {done.stderr[-2000:]}")
    return str(path)


def runners(architectures) -> list[str]:
    return [word for a in architectures if a.runner for word in ("--runner", f"{a.name}={' '.join(a.runner)}")]


def at_hand(case: Case) -> list[Architecture]:
    return programs_at_hand(case, "libshadowib-bsp-portable.so")


class BspJob(Job):
    def __init__(self, case: Case):
        super().__init__(case, "ring")
        self.bsprun = case.line.program("bsprun")
        self.end_file = case.work / "end"
        # The ring is saved at any of its supersteps, and does not end before.
        self.holding = {**SLOW, "RING_HOLD": str(self.end_file)}

    def words(self, *words: str) -> list[str]:
        return [self.bsprun, "--dir", str(self.directory), *words]

    def begin(self, processes: int, *words: str, environment: dict | None = None) -> subprocess.Popen:
        process = subprocess.Popen(self.words("--portable", "-n", str(processes), "--job", self.name, *words), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=environment or self.holding)
        self.started.append(process)
        return process

    def all_of(self, processes: int, *words: str) -> list[str]:
        """The sorted lines that a run without checkpoints prints."""
        process = self.begin(processes, *words, environment={**os.environ})
        out, err = process.communicate(timeout=PATIENCE_S)
        check(process.returncode == 0, f"{words}: {process.returncode}, {err}")
        shutil.rmtree(self.directory / "jobs" / self.name / "portable")
        return sorted(out.splitlines())

    def save_when_begun(self, process: subprocess.Popen, *options: str, may_end: bool = False) -> pathlib.Path | None:
        """The first checkpoint that finds all processes of this bsprun in the parallel part. With --kill bsprun has ended behind it.
        None: a job that nothing holds (`may_end`) came to its good end before."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            done = self.command("checkpoint", self.name, "--timeout", "60", *options)
            if done.returncode == 0:
                if "--kill" in options:
                    _, err = process.communicate(timeout=PATIENCE_S)
                    check(process.returncode in SAVED, f"bsprun behind --kill: {process.returncode}, {err}")
                return pathlib.Path(done.stdout.splitlines()[-1])
            if may_end and (done.returncode == 8 or process.poll() is not None):
                _, err = process.communicate(timeout=PATIENCE_S)
                check(process.returncode == 0, f"checkpoint: {done.returncode}, {done.stderr}, bsprun: {process.returncode}, {err}")
                shutil.rmtree(self.directory / "jobs" / self.name / "portable", ignore_errors=True)
                return None
            if process.poll() is not None:
                check(False, f"bsprun ended before a checkpoint: {process.returncode}, {process.communicate()}")
            check(done.returncode in (3, 11) and time.monotonic() < deadline, f"checkpoint: {done.returncode}, {done.stderr}")

    def restarted(self, name: str, *words: str) -> list[str]:
        done = subprocess.run(self.words("--from", name, *words), capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        check(done.returncode == 0, f"bsprun --from {name} {words}: {done.returncode}, {done.stdout}, {done.stderr}")
        return sorted(line for line in done.stdout.splitlines() if not line.startswith("pid "))


def restarted(case: Case) -> str:
    job, ring = BspJob(case), compiled(case, RING)
    wanted = job.all_of(3, ring)
    process = job.begin(3, ring)
    job.save_when_begun(process)
    job.checkpoint()
    job.end_file.touch()
    out, err = process.communicate(timeout=PATIENCE_S)
    check(sorted(out.splitlines()) == wanted, f"checkpoints change the result: {out} {err}")
    supersteps = set()
    for entry in job.sets():
        check(job.command("verify", entry["name"]).returncode == 0 and entry["members"] == 3, f"{entry}")
        supersteps.add(job.command("inspect", entry["name"]).stdout.split("superstep ")[1].split()[0])
        check(job.restarted(entry["name"]) == wanted, f"{entry['name']} leads to another result")
    check(len(supersteps) == 2, f"both sets are of superstep {supersteps}")
    return f"supersteps {sorted(supersteps)}"


def moved(case: Case) -> str:
    """One job goes from architecture to architecture."""
    job, architectures = BspJob(case), at_hand(case)
    if case.line.quick:
        architectures = [HERE, architectures[-1]]
    programs = {a: compiled(case, RING, a) for a in architectures}
    wanted = job.all_of(3, programs[HERE])
    path = job.save_when_begun(job.begin(3, programs[HERE]), "--kill")
    for architecture in architectures[1:]:
        words = job.words("--from", str(path), "--program", programs[architecture], *runners(architectures))
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=job.holding) as process:
            path = job.save_when_begun(process, "--kill")
        if not case.line.quick or architecture == architectures[-1]:
            check(job.restarted(path.name, "--program", programs[HERE]) == wanted, f"{architecture.name} leads to another result")
    return " -> ".join(a.name for a in architectures)


def mixed(case: Case) -> str:
    """Processes of two architectures of one byte order in one job, which change roles; other widths are refused by name. portable_mixed has the rest."""
    job, architectures = BspJob(case), at_hand(case)
    by_name = {a.name: a for a in architectures}
    programs = {a.name: compiled(case, RING, a) for a in architectures}
    run = runners(architectures)
    wanted = job.all_of(3, programs[HERE.name])
    told = []
    for one, other in ((HERE.name, "i686"), ("s390x", "i686")):
        if one in by_name and other in by_name:
            process = job.begin(2, "--program", programs[one], "--program", programs[other], *run, programs[one])
            _, err = process.communicate(timeout=PATIENCE_S)
            check(process.returncode == 124 and "lays out long, pointers or long double otherwise" in err, f"{one} with {other}: {process.returncode}, {err}")
            told.append(f"{one} with {other}")
    if "aarch64" not in by_name:
        return f"refused {told}; no aarch64"
    pair = [programs[HERE.name], programs["aarch64"]]
    path = job.save_when_begun(job.begin(3, "--program", pair[0], "--program", pair[1], *run, pair[0]), "--kill")
    for first, second in (pair[::-1],) if case.line.quick else (pair, pair[::-1]):
        check(job.restarted(path.name, "--program", first, "--program", second, *run) == wanted, "other roles lead to another result")
    return f"x86_64 with aarch64; refused {' and '.join(told)}"


def example(case: Case) -> str:
    """A program as it is, with long doubles. Nothing holds it, so where a checkpoint comes too late the next run has more to compute."""
    job, rows, path = BspJob(case), 200, None
    program = compiled(case, EXAMPLES / "matrix_multiply.c")
    while path is None:
        wanted = job.all_of(3, program, str(rows))
        process = job.begin(3, program, str(rows))
        path = job.save_when_begun(process, "--kill", may_end=True)
        rows *= 2
    check(job.restarted(path.name) == wanted, "another result")
    there = [a for a in at_hand(case) if a != HERE]
    if not case.line.quick:
        for architecture in there:
            other = compiled(case, EXAMPLES / "matrix_multiply.c", architecture)
            check(job.restarted(path.name, "--program", other, *runners(there)) == wanted, f"{architecture.name}: another result")
    return "matrix_multiply"


def killed(case: Case) -> str:
    """Any process, bsprun or the command dies at any moment; the newest set leads to the result."""
    job, ring, random = BspJob(case), compiled(case, RING), case.random()
    processes, intervals = (3, (0.1,)) if case.line.quick else (4, INTERVALS_S)
    wanted, sets, slowest = job.all_of(processes, ring), 0, 0.0
    for i in range(QUICK if case.line.quick else KILLS):
        interval = intervals[i % len(intervals)]
        process = job.begin(processes, "--interval", str(interval), "--keep", "2", ring, environment=SLOW)
        time.sleep(random.uniform(0.1, max(1, 3 * interval)))
        if i % 3 == 2:
            process.kill()
        else:
            started = job.directory / "jobs" / job.name / "started"
            pids = [int(p.name.split(",")[1]) for p in started.iterdir()] if started.exists() else []
            try:
                os.kill(random.choice(pids or [process.pid]), signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.communicate(timeout=PATIENCE_S)
        for entry in job.sets():
            check(job.command("verify", entry["name"]).returncode == 0, f"{entry['name']} is damaged")
        if job.sets():
            sets += 1
            began = time.monotonic()
            check(job.restarted(job.name) == wanted, "the newest set leads to another result")
            slowest = max(slowest, time.monotonic() - began)
        shutil.rmtree(job.directory)
    text = f"{sets} restarts, the slowest came to its end in {slowest:.1f} s"
    check(case.line.quick or (sets >= KILLS / 3 and slowest <= RESTART_S), text)
    return text


def goes_on_saving(case: Case) -> str:
    """A restarted job takes checkpoints as the first one did, without being told again."""
    job = BspJob(case)
    (case.work / "structs.c").write_text(STRUCTS)  # which does not end
    process = job.begin(3, "--interval", "0.2", "--keep", "2", compiled(case, case.work / "structs.c"))

    def newest() -> str:
        return max((entry["name"] for entry in job.sets()), default="")

    def await_newer(than: str, process: subprocess.Popen) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while newest() <= than:
            check(process.poll() is None, f"the job ended, and {than or 'nothing'} is the newest set: {process.returncode}")
            check(time.monotonic() < deadline, f"no set after {than or 'the start'}")
            time.sleep(0.02)
        return newest()

    await_newer("", process)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    before = newest()
    with subprocess.Popen(job.words("--from", before), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        after = await_newer(await_newer(before, process), process)
        process.terminate()
    check(len(job.sets()) <= 3, f"--keep 2 and one under way, and there are {job.sets()}")
    return f"{before}, then {after}"


def refusals(case: Case) -> str:
    job, ring = BspJob(case), compiled(case, RING)
    path = job.save_when_begun(job.begin(3, ring), "--kill")
    for words, text in ((("--portable", "--backend", "ib2tcp", ring), "--portable does not go with --backend"), (("--program", ring, ring), "go with --portable"),
                        (("--from", "ring", "--portable"), "leave --portable out")):
        done = subprocess.run(job.words(*words), capture_output=True, text=True, check=False)
        check(done.returncode == 125 and text in done.stderr, f"{words}: {done.returncode}, {done.stderr}")
    # A program of the plain library has no part in the meeting, and would wait for the others without an end.
    plain = case.work / "plain"
    done = subprocess.run([case.line.program("bspcc"), "-o", str(plain), RING.name, "-lm"], cwd=RING.parent, capture_output=True, text=True, check=False)
    check(done.returncode == 0, done.stderr)
    done = subprocess.run(job.words("--portable", "-n", "3", "--job", "plain", str(plain)), capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)
    check(done.returncode == 124 and "compiled by CC=shadowib-cc bspcc; this one was not" in done.stderr, f"plain: {done.returncode}, {done.stderr}")
    # Images of two processes change places: the manifest finds it, and so does the library without one.
    one, two = path / "member-1.psi", path / "member-2.psi"
    done = subprocess.run(job.words("--portable", "-n", "3", "--job", "ring", "--images", str(swapped(case, one, two)), ring), capture_output=True, text=True,
                          check=False, timeout=PATIENCE_S)
    check(done.returncode != 0 and "the image is of process" in done.stderr, f"swapped images: {done.returncode}, {done.stderr}")
    architectures = [a for a in ALL if a in at_hand(case) and a != HERE]
    (case.work / "structs.c").write_text(STRUCTS)
    here, there = (compiled(case, case.work / "structs.c", a) for a in (HERE, architectures[-1]))
    path = job.save_when_begun(job.begin(2, here), "--kill")
    done = subprocess.run(job.words("--from", str(path), "--program", there, *runners(architectures)), capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)
    check(done.returncode == 20 and "an unread message of process 0 has values of x86_64 whose type is not known" in done.stderr,
          f"structs: {done.returncode}, {done.stderr}")
    return "options, a plain program, swapped images, untyped messages"


def swapped(case: Case, one: pathlib.Path, two: pathlib.Path) -> pathlib.Path:
    directory = case.work / "swapped"
    shutil.copytree(one.parent, directory)
    shutil.copy(one, directory / two.name)
    shutil.copy(two, directory / one.name)
    return directory


def run() -> int:
    line = Line("portable_bsp", __doc__)
    for case in (restarted, moved, mixed, example, killed, goes_on_saving, refusals):
        line.case(case.__name__, case)
    return line.finish()


if __name__ == "__main__":
    main(run)
