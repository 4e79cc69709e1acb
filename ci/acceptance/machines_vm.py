"""C3 between this machine and another, whose kernel, processor and adapter are others: jobs that are checkpointed and killed on one
at random moments of the data phase go on on the other, on Soft-RoCE there or on ib2tcp; and processes with all that an image
holds (imager_subject), vector registers of interrupted code among it. Jobs are told to keep to what both processors have (`run
--cpu`); one that is not is refused by name. Makes what goes there, boots a machine with Soft-RoCE (ci/vm/run), goes on in there,
makes what comes back, and goes on here."""
import json
import os
import pathlib
import shutil
import subprocess
import time

from adapters_vm import left_in_kernel
from common import Case, Failure, Line, Skip, check, main
from guest import run_in_guest
from jobs import REFUSED, Job, OneEndFinished, free_port

LEVEL = "x86-64-v3"
TIMEOUT_S = {True: 1200, False: 3000}  # --quick or not
RUNS = {True: 1, False: 20}
RUNS_BACK = {True: 0, False: 20}  # of --quick only processes: a job is made slowly there
ITERATIONS = {True: 600, False: 1500}
DEPTH = 8
REST_US = 1000  # an iteration, so that there is something left to do
MANNERS = ((), ("--events",), ("--srq",), ("--extended",))
# What an image of one process holds. Those that keep files need a directory that is on both, and are left to imager_test.
SUBJECTS = ("single", "identity", "heap", "language", "deep_stack", "threads", "agent_thread", "vector_registers",
            "vector_registers_of_two", "signals", "parked_on_alternate_stack", "timers", "many_threads", "robust_mutex")
QUICK_SUBJECTS = ("vector_registers_of_two", "timers")
SAVED, RIGHT = 10, 42


class Place:
    """Stands for a case whose files are in a directory of both machines."""

    def __init__(self, case: Case, work: pathlib.Path):
        self.case, self.work, self.line, self.cleanups, self.note = case, work, case.line, case.cleanups, case.note
        work.mkdir(parents=True, exist_ok=True)
        case.logs = [work / "shadowib.log"]


def shared_area(line: Line) -> pathlib.Path:
    return line.build / "acceptance" / "c3_machines-both"


def backend_in_guest(run: int) -> str:
    return "ib2tcp" if run % 2 else "verbs"


def with_less_privilege(words: list[str]) -> list[str]:
    """As in a container: a restart by who has more takes it away again, and from all threads at once, since the kernel's device
    asks who writes to it whether it is who has opened it."""
    return ["setpriv", "--bounding-set", "-sys_time", *words] if os.geteuid() == 0 and shutil.which("setpriv") else words


def start(case: Case, work: pathlib.Path, run: int, backend: str, level: str) -> tuple[Job, int]:
    """A job that has been checkpointed and killed within its data phase, and its iterations."""
    rng, iterations = case.random(f"run{run}"), ITERATIONS[case.line.quick]
    while True:
        shutil.rmtree(work, ignore_errors=True)
        job, port = Job(Place(case, work), f"run{run}", backend=backend, environment={"SHADOWIB_CPU": level}), free_port()
        words = [case.line.program("verbs_check"), "--port", str(port), "--iters", str(iterations), "--depth", str(DEPTH), "--talk",
                 str(REST_US), *MANNERS[run // 2 % len(MANNERS)], *(("--gid", "1") if backend == "verbs" else ())]
        job.start_pair(with_less_privilege(words), with_less_privilege([*words, "127.0.0.1"]), port)
        try:
            job.wait_data_phase()
            time.sleep(rng.uniform(0, iterations * REST_US / 3e6))
            job.checkpoint(kill=True)
            return job, iterations
        except OneEndFinished:
            job.stop()
        except Failure:
            job.finish(60)  # if it came to its good end
        iterations *= 2
        check(iterations < 200_000, "the job keeps ending before its checkpoint")


def send_off(case: Case, area: pathlib.Path, backend_of, runs: int) -> str:
    """Jobs and processes for the other machine."""
    shutil.rmtree(area, ignore_errors=True)
    for run in range(runs):
        job, iterations = start(case, area / f"run{run}", run, backend_of(run), LEVEL)
        (area / f"run{run}" / "job.json").write_text(json.dumps({"set": job.sets[-1], "iterations": iterations}))
    for subject in QUICK_SUBJECTS if case.line.quick else SUBJECTS:
        work = area / subject
        work.mkdir(parents=True)
        with open(work / "saved.txt", "w") as sink:
            words = [case.line.program("shadowib"), "run", "--cpu", LEVEL, "--dir", str(work / "ckpt"), "--", "env", "-u", "LD_PRELOAD",  # its tunables, and not it
                     case.line.program("imager_subject"), subject, str(work)]
            done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, timeout=60, check=False,
                                  start_new_session=True)
        check(done.returncode == SAVED, f"{subject} exits with {done.returncode}:\n{(work / 'saved.txt').read_text()}")
    return f"{runs} jobs"


def arrive(case: Case, area: pathlib.Path, run: int, backend: str, in_guest: bool):
    work = area / f"run{run}"
    told = json.loads((work / "job.json").read_text())
    before = left_in_kernel() if in_guest else None
    job = Job(Place(case, work), f"run{run}", backend=backend)
    job.restart(told["set"], {"SHADOWIB_BACKEND": backend})
    job.finish(240)
    said = "\n".join(path.read_text(errors="replace") for path in sorted(work.glob("*.out")))
    for end in ("server", "client"):
        check(f"{end}: {told['iterations']} iterations of {DEPTH} messages" in said, f"run {run}: the {end} does not say that all was right:\n{said[-2000:]}")
    if in_guest:
        check(left_in_kernel() == before, f"of a restarted job the kernel holds {left_in_kernel()}, before {before}")


def jobs_arrive(case: Case, area: pathlib.Path, backend_of, in_guest: bool) -> str:
    for run in range(case.wanted):
        arrive(case, area, run, backend_of(run), in_guest)
        case.progress(run + 1)
    backends = sorted({backend_of(run) for run in range(case.wanted)})
    return f"{case.wanted} x, on {' and '.join(backends)}"


def subject_arrives(case: Case, work: pathlib.Path) -> str:
    done = subprocess.run([case.line.program("imager_restart_tool"), str(work), "0"], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=120, check=False, start_new_session=True)
    check(done.returncode == RIGHT, f"exits with {done.returncode}:\n{done.stdout}{done.stderr}")
    return ""


def refused(case: Case) -> str:
    """One that was not told to keep to less is refused there, by the name of what is missing, and nothing is touched."""
    work = shared_area(case.line) / "refused"
    said = json.loads((work / "job.json").read_text())
    ours = [work / "ckpt" / "jobs" / "run0" / name for name in ("epoch", "key")]
    before = [path.read_bytes() for path in ours]
    job = Job(Place(case, work), "run0")
    result = job.command("restart", said["set"], check_code=False)
    if result.returncode == 0:
        raise Skip("the machines' processors are the same: nothing is there to be refused")
    check(result.returncode == REFUSED and "processor: " in result.stderr and "--cpu" in result.stderr,
          f"exit code {result.returncode}: {result.stderr}")
    check([path.read_bytes() for path in ours] == before, "the refused restart has changed the job's files")
    return result.stderr.strip().splitlines()[-1]


def make_refused(case: Case) -> str:
    work = shared_area(case.line) / "refused"
    job, _ = start(case, work, 0, "ib2tcp", "")
    (work / "job.json").write_text(json.dumps({"set": job.sets[-1]}))
    return ""


def another_kernel(case: Case) -> str:
    """Whether this run has crossed one, which depends on the machine that the line is run on."""
    theirs, ours = (shared_area(case.line) / "kernel").read_text(), os.uname().release
    if theirs == ours:
        raise Skip(f"both machines run Linux {ours}")
    return f"Linux {theirs} and {ours}"


def all_arrive(line: Line, area: pathlib.Path, name: str, backend_of, in_guest: bool, runs: int):
    if runs:
        line.case(f"{name}: jobs", lambda c: jobs_arrive(c, area, backend_of, in_guest), runs)
    for subject in QUICK_SUBJECTS if line.quick else SUBJECTS:
        line.case(f"{name}: {subject}", lambda c, s=subject: subject_arrives(c, area / s))


def on_ib2tcp(_run: int) -> str:
    return "ib2tcp"


def in_guest(line: Line) -> int:
    both = shared_area(line)
    line.case("another kernel", another_kernel)
    all_arrive(line, both / "there", "to the other machine", backend_in_guest, True, RUNS[line.quick])
    line.case("refused on the other machine", refused)
    line.case("made on the other machine", lambda c: send_off(c, both / "back", backend_in_guest, RUNS_BACK[line.quick]))
    return line.finish()


def run() -> int:
    line = Line("machines_vm", __doc__)
    if os.environ.get("SHADOWIB_VM") == "1":
        return run_in_guest(line, in_guest, TIMEOUT_S)
    both = shared_area(line)
    if not line.options.list:
        shutil.rmtree(both, ignore_errors=True)
        both.mkdir(parents=True)
        (both / "kernel").write_text(os.uname().release)
    line.case("made here", lambda c: send_off(c, both / "there", on_ib2tcp, RUNS[line.quick]))
    line.case("made here, for this processor", make_refused)
    code = 0 if line.outcomes["FAILED"] else run_in_guest(line, in_guest, TIMEOUT_S, shared=(both,))
    if code == 0:
        all_arrive(line, both / "back", "from the other machine", on_ib2tcp, False, RUNS_BACK[line.quick])
    return max(code, line.finish())


if __name__ == "__main__":
    main(run)
