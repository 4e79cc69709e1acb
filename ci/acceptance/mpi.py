"""Jobs of MPI under a launcher: Open MPI's mpirun, MPICH's Hydra, the data paths their ranks can take, and moments at which they are
killed."""
import dataclasses
import os
import pathlib
import shutil
import signal
import time

from common import check
from jobs import NOT_FOUND, Job, descendants, wait_for

QUIET = ("--oversubscribe", "--bind-to", "none", "--mca", "btl_openib_warn_no_device_params_found", "0")
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclasses.dataclass(frozen=True)
class Mpi:
    """An implementation: its launcher, and the ring built with it."""
    launcher: str
    package: str
    program: str
    options: tuple = ()


OPEN_MPI = Mpi("mpirun", "openmpi-bin", "mpi_ring", QUIET)
MPICH = Mpi("mpiexec.hydra", "mpich, with libmpich-dev to build the ring", "mpi_ring_mpich")


@dataclasses.dataclass
class Path:
    options: str
    iterations: int = 20_000  # some seconds
    mpi: Mpi = OPEN_MPI


# Open MPI 4.1.4's openib BTL never sets a byte that counts the users of its device (allowed_btls). Where the heap has another value
# than zero there, a rank does not close the device, and ends by SIGSEGV in MPI_Finalize: any rank, with and without us. This has the
# heap zeroed (perturb is what freed memory is filled with; new memory is filled with its complement).
OPENIB = "--mca btl_openib_allow_ib 1 -x GLIBC_TUNABLES=glibc.malloc.perturb=255:glibc.malloc.tcache_count=0"

PATHS = {
    "ucx rc": Path("--mca pml ucx --mca osc ucx --mca btl self -x UCX_TLS=rc_v,self"),
    "ucx ud": Path("--mca pml ucx --mca osc pt2pt --mca btl self -x UCX_TLS=ud_v,self"),
    "openib": Path(f"--mca pml ob1 --mca osc pt2pt --mca btl self,openib {OPENIB}"),
    "ofi": Path("--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm --mca osc pt2pt --mca btl self -x FI_UNIVERSE_SIZE=16"),
    "ucx rc, shared memory": Path("--mca pml ucx --mca osc ucx --mca btl self -x UCX_TLS=rc_v,posix,sysv,self", 50_000),
    "ucx ud, shared memory": Path("--mca pml ucx --mca osc pt2pt --mca btl self -x UCX_TLS=ud_v,posix,sysv,self", 50_000),
    # libfabric's RxM has none of its own: windows and collectives do.
    "ofi, shared memory": Path("--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm --mca osc sm --mca coll_sm_priority 100 "
                               "--mca btl self -x FI_UNIVERSE_SIZE=16"),
    "openib, shared memory": Path(f"--mca pml ob1 --mca btl self,vader,openib {OPENIB}", 300_000),
    "mpich rc": Path("-env MPIR_CVAR_NOLOCAL 1 -env UCX_TLS rc_v,self", mpi=MPICH),
    "mpich ud": Path("-env MPIR_CVAR_NOLOCAL 1 -env UCX_TLS ud_v,self", mpi=MPICH),
    "mpich rc, shared memory": Path("-env MPIR_CVAR_NOLOCAL 1 -env UCX_TLS rc_v,posix,sysv,self", mpi=MPICH),
    "mpich ud, its own shared memory": Path("-env UCX_TLS ud_v,self", mpi=MPICH),
}


class MpiJob(Job):
    """`program`: one of mpi_programs.py. It runs in a directory of its own."""

    def __init__(self, case, name, path: Path, program, ranks: int = 2, backend: str = "ib2tcp"):
        super().__init__(case, name, transport="tcp", environment=ROOT, backend=backend)
        self.path, self.program, self.ranks = path, program, ranks
        self.all_ranks = ranks + getattr(program, "spawned", 0)
        self.place = case.work / name
        self.place.mkdir()
        program.prepare(self.place, ranks)

    def launch(self):
        mpi = self.path.mpi
        self.programs = [self._spawn(mpi.launcher, [
            mpi.launcher, "-np", str(self.ranks), *mpi.options, *self.path.options.split(), self.shadowib, "run", "--job", self.name, "--dir",
            str(self.directory), "--backend", self.backend, "--", *self.program.words(self.case.line, self.path)])]

    def restart_by_launcher(self, ranks: int):
        """The new launcher starts the ranks again, with what ranks of its own it has."""
        self.generation += 1
        self.programs = [self._spawn(f"mpirun{self.generation}", [
            "mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none", self.shadowib, "restart", self.sets[-1], "--dir",
            str(self.directory)])]

    def rank_pids(self) -> list[int]:
        """The living ones: below the launcher, or below the restart."""
        def is_rank(pid: int) -> bool:
            try:
                return pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == self.path.mpi.program
            except OSError:
                return False
        return [pid for program in self.programs for pid in descendants(program.process.pid) if is_rank(pid)]

    def await_ranks(self):
        """All have come to MPI_Init: they are members from there on."""
        def all_there():
            self.check_running()
            return len(self.members()) == self.all_ranks
        wait_for(f"{self.all_ranks} ranks", all_there, 60, 0.01)

    def kill_everything(self) -> bool:
        """A checkpoint, after which neither the ranks nor what has started them live. False: they had come to their end."""
        result = self.command("checkpoint", self.name, "--kill", timeout=90, check_code=False)
        if result.returncode == NOT_FOUND:
            return False
        check(result.returncode == 0, f"checkpoint exited with {result.returncode}: {result.stderr.strip()}")
        self.sets.append(result.stdout.strip().splitlines()[-1])
        for program in self.programs:
            if self.generation == 0 and not program.ended():
                os.kill(program.process.pid, signal.SIGKILL)
            self._wait(program, 30)
        check(not self.members(), "somebody has outlived checkpoint --kill")
        self.programs = []
        return True

    def result(self) -> str:
        """What is the same in every run that is right."""
        return self.program.result(self)


@dataclasses.dataclass(frozen=True)
class Setup:
    """Of a kind of job."""
    path: Path
    program: object
    ranks: int = 2
    backend: str = "ib2tcp"

    def job(self, case, name: str) -> MpiJob:
        return MpiJob(case, name, self.path, self.program, self.ranks, self.backend)

    def missing(self) -> str:
        """What is not installed; or nothing."""
        if not shutil.which(self.path.mpi.launcher):
            return f"{self.path.mpi.launcher} is not installed (package {self.path.mpi.package})"
        return self.program.missing(self.path)


def launched(setup: Setup, case, name: str) -> MpiJob:
    job = setup.job(case, name)
    job.launch()
    job.await_ranks()
    return job


def check_result(job: MpiJob, expected: str):
    check(job.result() == expected, f"{job.program.name} ends with {job.result()} instead of {expected}")


UNDISTURBED: dict[str, tuple[str, float]] = {}


def undisturbed(case, setup: Setup) -> tuple[str, float]:
    """The result, and the seconds from MPI_Init to the end; of a sample's equal jobs the first is measured."""
    if case.line.quick and repr(setup) in UNDISTURBED:
        return UNDISTURBED[repr(setup)]
    job = launched(setup, case, "undisturbed")
    start = time.monotonic()
    job.finish(300)
    UNDISTURBED[repr(setup)] = job.result(), time.monotonic() - start
    return UNDISTURBED[repr(setup)]


def kill_within(job: MpiJob, random, longest: float) -> float | None:
    """At a random moment of the next `longest` seconds, or every other time of their beginning. None: the end came first."""
    delay = random.uniform(0, longest * (0.15 if random.random() < 0.5 else 1))
    time.sleep(delay)
    if any(program.ended() for program in job.programs):
        return None
    return delay if job.kill_everything() else None


def one_run(case, setup: Setup, name: str, random, longest: float, backends: list[str]) -> tuple[MpiJob, list[float]]:
    """Killed and restarted once for each of `backends`, on which it goes on."""
    job, moments_taken = launched(setup, case, name), []
    for backend in backends:
        delay = kill_within(job, random, longest)
        if delay is None:
            break
        moments_taken.append(delay)
        job.restart(environment={"SHADOWIB_BACKEND": backend})
        wait_for("the restarted ranks", lambda: job.programs[0].ended() or job.members(), 60, 0.05)
    job.finish(300)
    return job, moments_taken


def moments(case, setup: Setup, count: int, restarts: int = 1, backends: list[str] | None = None) -> str:
    expected, seconds = undisturbed(case, setup)
    backends = backends or restarts * [setup.backend]
    taken: list[float] = []
    for number in range(case.done, count):
        random, longest, found = case.random(number), 0.7 * seconds / len(backends), []
        while len(found) < len(backends):  # the machine may have become faster since: then it is sooner
            job, found = one_run(case, setup, f"moment{number}-{len(case.cleanups)}", random, longest, backends)
            check_result(job, expected)
            shutil.rmtree(job.directory, ignore_errors=True)
            longest /= 2
        taken += found
        case.progress(number + 1)
    delays = ", ".join(f"{delay:.2f}" for delay in taken)
    return f"{setup.ranks} ranks, {len(taken)} kills and restarts, {delays} s after MPI_Init or the last; {setup.program.name}: {expected}"
