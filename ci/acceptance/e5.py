"""E5: what the shim costs LAMMPS and the HPC Challenge at run time, without checkpoints: ranks of Open MPI under mpirun over ib2tcp,
in interleaved pairs of runs, under the shim and with ib2tcp's own objects in the program's hands (perftest/bare). Both have to come
to the same result. The ratio of times is a figure, not a bound: see spread() for what one can say of it."""
import dataclasses
import os
import re
import resource
import shutil
import statistics
import subprocess

from common import Case, Line, Skip, check, main
from mpi import PATHS, MpiJob
from mpi_programs import Hpcc, Lammps

PAIRS = 8
RANKS = 2
PATH = PATHS["ucx rc"]


@dataclasses.dataclass
class Program:
    """`seconds` of a job that has ended: by the program itself, from after MPI_Init to before MPI_Finalize."""
    full: object
    quick: object
    seconds: object


def loop_time(job: MpiJob) -> float:
    found = re.findall(r"^Loop time of ([0-9.]+) on", job.output(), re.MULTILINE)
    check(len(found) == 1, f"{len(found)} loop times:\n{job.output()[-2000:]}")
    return float(found[0])


def of_report(job: MpiJob) -> float:
    """From the birth of its report, which rank 0 opens first of all, to the last line: it says whole seconds only."""
    words = ["stat", "-c", "%.6W %.6Y", str(job.place / "hpccoutf.txt")]
    born, changed = map(float, subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
    if born == 0:
        raise Skip("this file system does not tell when a file was made")
    return changed - born


PROGRAMS = (Program(Lammps(2400), Lammps(100), loop_time), Program(Hpcc(2400), Hpcc(300), of_report))


class BareJob(MpiJob):
    """The same without the shim."""

    def launch(self):
        library = self.case.line.build / "lib" / "bare" / "libibverbs-bare.so"
        if not library.exists():
            raise Skip(f"{library} is not built")
        mpi = self.path.mpi
        self.programs = [self._spawn(mpi.launcher, [
            mpi.launcher, "-np", str(self.ranks), *mpi.options, *self.path.options.split(), "env", f"LD_PRELOAD={library}",
            f"SHADOWIB_BARE_DIR={self.place / 'exchange'}", *self.program.words(self.case.line, self.path)])]


@dataclasses.dataclass
class Run:
    result: str
    seconds: float
    cpu_seconds: float  # user and system, of the launcher and the ranks, from their beginning to their end


def run_once(case: Case, program: Program, shim: bool, number: int) -> Run:
    job = (MpiJob if shim else BareJob)(case, f"{'shim' if shim else 'bare'}{number}", PATH,
                                        program.quick if case.line.quick else program.full, RANKS)
    job.environment["PMIX_MCA_gds"] = "hash"  # as `shadowib run` has it
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    job.launch()
    job.finish(600)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = Run(job.result(), program.seconds(job), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    case.note(f"{job.name}: {run}, load {os.getloadavg()[0]:.1f}")
    shutil.rmtree(job.place, ignore_errors=True)
    return run


def spread(ratios: list[float]) -> str:
    text = f"x {statistics.median(ratios):.4f}"
    if len(ratios) > 1:
        text += f" (mean {statistics.mean(ratios):.4f} +- {statistics.stdev(ratios):.4f}, {min(ratios):.3f} to {max(ratios):.3f})"
    return text


def pairs(case: Case, program: Program) -> str:
    if missing := program.full.missing(PATH):
        raise Skip(missing)
    runs: dict[bool, list[Run]] = {False: [], True: []}
    for pair in range(1 if case.line.quick else PAIRS):
        for shim in (False, True) if pair % 2 == 0 else (True, False):
            runs[shim].append(run_once(case, program, shim, pair))
    results = {run.result for both in runs.values() for run in both}
    check(len(results) == 1, f"the results differ: {', '.join(sorted(results))}")
    time, cpu = ([getattr(shim, what) / getattr(bare, what) for bare, shim in zip(runs[False], runs[True])]
                 for what in ("seconds", "cpu_seconds"))
    case.figures |= {"seconds": {name: [run.seconds for run in runs[shim]] for name, shim in (("bare", False), ("shim", True))},
                     "ratios": time, "cpu_ratios": cpu}
    return f"{len(time)} pairs: time {spread(time)}, processor time {spread(cpu)}; " \
           f"{statistics.median(run.seconds for run in runs[False]):.1f} s each without the shim; {results.pop()}"


def run() -> int:
    line = Line("e5", __doc__)
    for program in PROGRAMS:
        line.case(f"ucx rc: {RANKS} ranks, {program.full.name}", lambda c, p=program: pairs(c, p))
    return line.finish()


if __name__ == "__main__":
    main(run)
