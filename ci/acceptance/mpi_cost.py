"""E5: what the shim costs LAMMPS and the HPC Challenge at run time, without checkpoints: ranks of Open MPI under mpirun over ib2tcp,
in interleaved pairs of runs, under the shim and with ib2tcp's own objects in the program's hands (perftest/bare). Both have to come
to the same result. Ratios are figures, not bounds: how much of the processors others had meanwhile stands beside them."""
import dataclasses
import json
import os
import pathlib
import re
import resource
import shutil
import statistics
import subprocess
import time

from common import Case, Failure, Line, Skip, check, main
from jobs import Job
from mpi import PATHS, MpiJob
from mpi_programs import Hpcc, Lammps

PAIRS = 8
UNDISTURBED = 0.03  # of the processors, at most, that others have had while either run of a pair went on
RANKS = 2
PATH = PATHS["ucx rc"]


class Slow(Failure):
    """Too slow, with what others do on the machine, to do all it does otherwise."""


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
    """From the birth of its report, which rank 0 opens first of all, to the last line, since it says whole seconds only. Without
    the test of latencies, which goes on for as long as they tell it to."""
    report = job.place / "hpccoutf.txt"
    words = ["stat", "-c", "%.6W %.6Y", str(report)]
    born, changed = map(float, subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
    if born == 0:
        raise Skip("this file system does not tell when a file was made")
    text = report.read_text()
    latencies = re.search(r"^Execution time \(wall clock\) += +([0-9.]+) sec", text, re.MULTILINE)
    updates = re.findall(r"number of updates \(RECOMMENDED\) = (\d+)\nNumber of updates EXECUTED = (\d+)", text)
    check(latencies and updates, f"a report of another kind:\n{text[-2000:]}")
    if any(wanted != done for wanted, done in updates):
        raise Slow(f"hpcc has left out updates so as to end in a minute: {updates}")
    return changed - born - float(latencies[1])


PROGRAMS = (Program(Lammps(2400), Lammps(100), loop_time), Program(Hpcc(1400), Hpcc(200), of_report))


def bare(line: Line, exchange: pathlib.Path) -> list[str]:
    """The words that stand for `shadowib run`."""
    library = line.build / "lib" / "bare" / "libibverbs-bare.so"
    if not library.exists():
        raise Skip(f"{library} is not built")
    return ["env", f"LD_PRELOAD={library}", f"SHADOWIB_BARE_DIR={exchange}"]


class BareJob(MpiJob):
    """The same without the shim."""

    def launch(self):
        mpi = self.path.mpi
        self.programs = [self._spawn(mpi.launcher, [
            mpi.launcher, "-np", str(self.ranks), *mpi.options, *self.path.options.split(),
            *bare(self.case.line, self.place / "exchange"), *self.program.words(self.case.line, self.path)])]


@dataclasses.dataclass
class Run:
    result: str
    seconds: float
    cpu_seconds: float  # user and system, of the launcher and the ranks, from their beginning to their end
    others: float       # part of the processors that others had meanwhile, the host of a virtual machine among them


def busy_seconds() -> float:
    """Of all processors, whoever had them."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, pathlib.Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run_once(case: Case, program: Program, transport: str, shim: bool, number: int, tries: int = 3) -> Run:
    job = (MpiJob if shim else BareJob)(case, f"{'shim' if shim else 'bare'}{number}" + "abc"[3 - tries], PATH,
                                        program.quick if case.line.quick else program.full, RANKS)
    job.environment |= {"SHADOWIB_IB2TCP_TRANSPORT": transport, "PMIX_MCA_gds": "hash"}  # which `shadowib run` sets, too
    start, busy, own = time.monotonic(), busy_seconds(), own_seconds()
    job.launch()
    job.finish(600)
    took, own = time.monotonic() - start, own_seconds() - own
    others = max(0.0, busy_seconds() - busy - own) / (took * os.cpu_count())
    try:
        run = Run(job.result(), program.seconds(job), own, others)
    except Slow:
        if tries == 1:
            raise
        case.figures["done again"] = case.figures.get("done again", 0) + 1
        return run_once(case, program, transport, shim, number, tries - 1)
    case.note(f"{job.name}: {run}")
    shutil.rmtree(job.place, ignore_errors=True)
    return run


def spread(ratios: list[float]) -> str:
    text = f"x {statistics.median(ratios):.4f}"
    return text if len(ratios) == 1 else text + f" (mean {statistics.mean(ratios):.4f} +- {statistics.stdev(ratios):.4f})"


def ratios(pairs: list[dict[bool, Run]], what: str) -> list[float]:
    return [getattr(pair[True], what) / getattr(pair[False], what) for pair in pairs]


def measured(case: Case, program: Program, transport: str) -> str:
    if missing := program.full.missing(PATH):
        raise Skip(missing)
    pairs: list[dict[bool, Run]] = []
    for number in range(1 if case.line.quick else case.line.options.pairs):
        order = (False, True) if number % 2 == 0 else (True, False)
        pairs.append({shim: run_once(case, program, transport, shim, number) for shim in order})
    runs = [run for pair in pairs for run in pair.values()]
    results = {run.result for run in runs}
    check(len(results) == 1, f"the results differ: {', '.join(sorted(results))}")
    case.figures |= {"pairs": [{name: dataclasses.asdict(pair[shim]) for name, shim in (("bare", False), ("shim", True))} for pair in pairs]}
    again = f", {case.figures['done again']} runs done again" if "done again" in case.figures else ""
    quiet = [pair for pair in pairs if max(run.others for run in pair.values()) <= UNDISTURBED]
    said = f"time {spread(ratios(pairs, 'seconds'))}, processor time {spread(ratios(pairs, 'cpu_seconds'))}, {len(pairs)} pairs{again}"
    if len(pairs) > 1:
        fastest = {shim: min(pair[shim].seconds for pair in pairs) for shim in (False, True)}
        said += f"; time x {fastest[True] / fastest[False]:.4f} of the fastest of each"
    if 0 < len(quiet) < len(pairs):
        said += f"; time {spread(ratios(quiet, 'seconds'))} of the {len(quiet)} undisturbed"
    return f"{said}; {statistics.median(pair[False].seconds for pair in pairs):.1f} s each without the shim, others had " \
           f"{100 * statistics.median(run.others for run in runs):.0f} % of the processors; {results.pop()}"


def request(case: Case) -> str:
    """A receive, a send to itself and both completions, in processor time of the thread: nobody is waited for, so that others on
    the machine matter less."""
    words = [case.line.program("shim_overhead"), "verbs", "--qps", "1", "--iterations", "20000", "--repeats", "5"]
    took: dict[bool, list[float]] = {False: [], True: []}
    for number in range(1 if case.line.quick else 3 * case.line.options.pairs):
        for shim in (False, True) if number % 2 == 0 else (True, False):
            job = Job(case, f"request{number}", backend="ib2tcp" if shim else None)
            program = job.start("request", words if shim else bare(case.line, case.work / f"exchange{number}") + words)
            job.finish(60)
            took[shim].append(json.loads(program.text())["ns_min"])
    case.figures |= {"bare_ns": took[False], "shim_ns": took[True]}
    added = [shim - bare for bare, shim in zip(took[False], took[True])]
    spread_of = f" (mean {statistics.mean(added):.0f} +- {statistics.stdev(added):.0f})" if len(added) > 1 else ""
    return f"{statistics.median(took[False]):.0f} ns without the shim, {statistics.median(added):+.0f} ns with it{spread_of}, {len(added)} pairs; " \
           f"of the fastest {min(took[True]) - min(took[False]):+.0f} ns to {min(took[False]):.0f}"


def run() -> int:
    line = Line("mpi_cost", __doc__, lambda parser: parser.add_argument("--pairs", type=int, default=PAIRS, metavar="N", help=f"of runs ({PAIRS})"))
    line.case("one request", request)
    for transport in ("tcp",) if line.quick else ("tcp", "shm"):
        for program in PROGRAMS:
            line.case(f"ucx rc, {transport}: {RANKS} ranks, {program.full.name}", lambda c, p=program, t=transport: measured(c, p, t))
    return line.finish()


if __name__ == "__main__":
    main(run)
