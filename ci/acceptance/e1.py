"""E1: jobs of Open MPI under mpirun, and of MPICH under Hydra, over ib2tcp, with shared memory between ranks off and on, are
checkpointed at random moments, from MPI_Init on; everything is killed, the launcher included; `shadowib restart` brings the ranks
back with no launcher, and they come to the end of MPI_Finalize with the checksum of an undisturbed run."""
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import time

from common import Line, Skip, check, main
from jobs import A_PROCESS_FAILED, NOT_FOUND, Job, descendants, wait_for

QUIET = ["--oversubscribe", "--bind-to", "none", "--mca", "btl_openib_warn_no_device_params_found", "0"]
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@dataclasses.dataclass(frozen=True)
class Mpi:
    """An implementation: its launcher, and the ring built with it."""
    launcher: str
    package: str
    program: str
    options: tuple = ()


OPEN_MPI = Mpi("mpirun", "openmpi-bin", "mpi_ring", tuple(QUIET))
MPICH = Mpi("mpiexec.hydra", "mpich, with libmpich-dev to build the ring", "mpi_ring_mpich")


@dataclasses.dataclass
class Path:
    options: str
    iterations: int = 20_000  # some seconds
    mpi: Mpi = OPEN_MPI


PATHS = {
    "ucx rc": Path("--mca pml ucx --mca osc ucx --mca btl self -x UCX_TLS=rc_v,self"),
    "ucx ud": Path("--mca pml ucx --mca osc pt2pt --mca btl self -x UCX_TLS=ud_v,self"),
    "openib": Path("--mca pml ob1 --mca osc pt2pt --mca btl self,openib --mca btl_openib_allow_ib 1"),
    "ofi": Path("--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm --mca osc pt2pt -x FI_UNIVERSE_SIZE=16"),
    "ucx rc, shared memory": Path("--mca pml ucx --mca osc ucx --mca btl self -x UCX_TLS=rc_v,posix,sysv,self", 50_000),
    "ucx ud, shared memory": Path("--mca pml ucx --mca osc pt2pt --mca btl self -x UCX_TLS=ud_v,posix,sysv,self", 50_000),
    # libfabric's RxM has none of its own: windows and collectives do.
    "ofi, shared memory": Path("--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm --mca osc sm --mca coll_sm_priority 100 "
                               "-x FI_UNIVERSE_SIZE=16"),
    "openib, shared memory": Path("--mca pml ob1 --mca btl self,vader,openib --mca btl_openib_allow_ib 1", 300_000),
    "mpich rc": Path("-env MPIR_CVAR_NOLOCAL 1 -env UCX_TLS rc_v,self", mpi=MPICH),
    "mpich ud": Path("-env MPIR_CVAR_NOLOCAL 1 -env UCX_TLS ud_v,self", mpi=MPICH),
    "mpich rc, shared memory": Path("-env MPIR_CVAR_NOLOCAL 1 -env UCX_TLS rc_v,posix,sysv,self", mpi=MPICH),
    "mpich ud, its own shared memory": Path("-env UCX_TLS ud_v,self", mpi=MPICH),
}


class MpiJob(Job):
    def __init__(self, case, name, path: Path, ranks: int = 2, abort_at: int | None = None):
        super().__init__(case, name, transport="tcp", environment=ROOT)
        self.path, self.ranks, self.abort_at = path, ranks, abort_at

    def launch(self, iterations: int | None = None):
        mpi = self.path.mpi
        program = [self.case.line.program(mpi.program), str(iterations or self.path.iterations)]
        if self.abort_at is not None:
            program.append(str(self.abort_at))
        self.programs = [self._spawn(mpi.launcher, [
            mpi.launcher, "-np", str(self.ranks), *mpi.options, *self.path.options.split(), self.shadowib, "run", "--job", self.name, "--dir",
            str(self.directory), "--backend", "ib2tcp", "--", *program])]

    def restart_by_launcher(self, ranks: int):
        """The new launcher starts the ranks again, with what ranks of its own it has."""
        self.generation += 1
        self.programs = [self._spawn(f"mpirun{self.generation}", [
            "mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none", self.shadowib, "restart", self.sets[-1], "--dir",
            str(self.directory)])]

    def await_ranks(self):
        """All have come to MPI_Init: they are members from there on."""
        def all_there():
            self.check_running()
            return len(self.members()) == self.ranks
        wait_for(f"{self.ranks} ranks", all_there, 60, 0.01)

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

    def checksum(self) -> str:
        found = re.findall(r"checksum ([0-9a-f]{16})", self.output())
        check(len(found) == 1, f"{len(found)} checksums instead of one:\n{self.output()[-3000:]}")
        return found[0]


def undisturbed(case, path: Path, ranks: int) -> tuple[str, float]:
    """The checksum, and the seconds from MPI_Init to the end."""
    job = MpiJob(case, "undisturbed", path, ranks)
    job.launch()
    job.await_ranks()
    start = time.monotonic()
    job.finish(300)
    return job.checksum(), time.monotonic() - start


def kill_within(job: MpiJob, random, longest: float) -> float | None:
    """At a random moment of the next `longest` seconds, or every other time of their beginning. None: the end came first."""
    delay = random.uniform(0, longest * (0.15 if random.random() < 0.5 else 1))
    time.sleep(delay)
    if any(program.ended() for program in job.programs):
        return None
    return delay if job.kill_everything() else None


def one_run(case, path: Path, ranks: int, name: str, random, longest: float, restarts: int) -> tuple[MpiJob, list[float]]:
    job, moments_taken = MpiJob(case, name, path, ranks), []
    job.launch()
    job.await_ranks()
    for _ in range(restarts):
        delay = kill_within(job, random, longest)
        if delay is None:
            break
        moments_taken.append(delay)
        job.restart()
        wait_for("the restarted ranks", lambda: job.programs[0].ended() or job.members(), 60, 0.05)
    job.finish(300)
    return job, moments_taken


def moments(case, path: Path, ranks: int, count: int, restarts: int = 1) -> str:
    expected, seconds = undisturbed(case, path, ranks)
    taken: list[float] = []
    for number in range(case.done, count):
        random, longest, found = case.random(number), 0.7 * seconds / restarts, []
        while len(found) < restarts:  # the machine may have become faster since: then it is sooner
            job, found = one_run(case, path, ranks, f"moment{number}-{len(case.cleanups)}", random, longest, restarts)
            check(job.checksum() == expected, f"checksum {job.checksum()} instead of {expected}")
            shutil.rmtree(job.directory, ignore_errors=True)
            longest /= 2
        taken += found
        case.progress(number + 1)
    delays = ", ".join(f"{delay:.2f}" for delay in taken)
    return f"{ranks} ranks, {len(taken)} kills and restarts, {delays} s after MPI_Init or the last; checksum {expected}"


def resumed_run(case, path: Path, name: str, random, seconds: float, count: int) -> tuple[MpiJob, int]:
    """One job, and the checkpoints that it was there for."""
    job = MpiJob(case, name, path)
    job.launch()
    job.await_ranks()
    taken = 0
    for _ in range(count):
        time.sleep(random.uniform(0, seconds / count))
        result = job.command("checkpoint", job.name, timeout=90, check_code=False)
        check(result.returncode in (0, NOT_FOUND), f"checkpoint exited with {result.returncode}: {result.stderr.strip()}")
        taken += result.returncode == 0
    job.finish(300)
    return job, taken


def resumed(case, path: Path, count: int) -> str:
    """Its launcher goes on answering a job that goes on: mpirun ends with 0."""
    expected, seconds = undisturbed(case, path, 2)
    random, taken, tries = case.random(), 0, 0
    while taken == 0:  # the machine may have become faster since: then it is sooner
        job, taken = resumed_run(case, path, f"resumed{tries}", random, seconds / 2**tries, count)
        check(job.checksum() == expected, f"checksum {job.checksum()} instead of {expected}")
        tries += 1
        check(taken or tries < 8, "the job keeps ending before its first checkpoint")
    return f"{taken} checkpoints of a job that then came to its end"


def relaunched(case, path: Path, ranks: int, launched: tuple[int, ...]) -> str:
    """Restarts under a new mpirun, with other numbers of ranks than there are members, too; which ends with 0 when all have."""
    expected, seconds = undisturbed(case, path, ranks)
    random = case.random()
    for number, count in enumerate(launched):
        longest, tries = 0.7 * seconds, 0
        while True:  # the machine may have become faster since: then it is sooner
            job = MpiJob(case, f"relaunched{number}-{tries}", path, ranks)
            job.launch()
            job.await_ranks()
            if kill_within(job, random, longest) is not None:
                break
            job.finish(300)
            longest, tries = longest / 2, tries + 1
        job.restart_by_launcher(count)
        job.finish(300)
        check(job.checksum() == expected, f"{count} ranks: checksum {job.checksum()} instead of {expected}")
    return f"{ranks} members under {', '.join(map(str, launched))} ranks of a new mpirun; checksum {expected}"


def restarted(case, path: Path, **options) -> tuple[MpiJob, object]:
    job = MpiJob(case, "job", path, **options)
    job.launch()
    job.await_ranks()
    kill_within(job, case.random(), 0.5)
    return job, job.restart()


def ends_for_all(case, job: MpiJob, restart, why: str):
    job._wait(restart, 120)
    check(restart.process.returncode == A_PROCESS_FAILED, f"restart exited with {restart.process.returncode}:\n{restart.text()[-2000:]}")
    check("checksum" not in restart.text(), "a rank came to its end")
    check(not job.members(), "a rank has outlived the job")
    # UCX may find its peer gone and abort by itself before the rank hears of it; through shared memory nobody finds anything.
    if "shared memory" in case.name:
        check(why in (case.work / "shadowib.log").read_text(), f"nobody heard of it:\n{restart.text()[-2000:]}")


def aborted(case, path: Path) -> str:
    """After a restart MPI_Abort of one rank is the end of all."""
    job, restart = restarted(case, path, abort_at=path.iterations - 1)
    ends_for_all(case, job, restart, "has aborted the job with status 3")
    return "the other rank ended too"


def killed(case, path: Path) -> str:
    """And so is its death."""
    job, restart = restarted(case, dataclasses.replace(path, iterations=1_000_000_000))
    wait_for("the restarted ranks", lambda: restart.ended() or len(job.members()) == 2, 60, 0.05)
    ranks = [pid for pid in descendants(restart.process.pid) if is_rank(pid, path.mpi)]
    check(len(ranks) == 2, f"{len(ranks)} ranks:\n{restart.text()}")
    os.kill(case.random("whom").choice(ranks), signal.SIGKILL)
    ends_for_all(case, job, restart, "has ended with signal 9")
    return "the other rank ended too"


def is_rank(pid: int, mpi: Mpi) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == mpi.program
    except OSError:
        return False


def run() -> int:
    line = Line("e1", __doc__)

    def on(path: Path, function, *arguments):
        def body(case):
            if not shutil.which(path.mpi.launcher):
                raise Skip(f"{path.mpi.launcher} is not installed (package {path.mpi.package})")
            return function(case, path, *arguments)
        return body

    count = 1 if line.quick else 20
    for name, path in PATHS.items():
        if line.quick and path.mpi is MPICH and name != "mpich rc":
            continue  # what differs from Open MPI is the launcher
        for ranks in (2,) if line.quick else (2, 4):
            line.case(f"{name}: {ranks} ranks", on(path, moments, ranks, count), count)
    for name in ("ucx rc",) if line.quick else ("ucx rc", "mpich rc"):
        line.case(f"{name}: two restarts", on(PATHS[name], moments, 2, 1, 2))
        line.case(f"{name}: resumed", on(PATHS[name], resumed, 3 if line.quick else 20))
    line.case("ucx rc, shared memory: new launcher", on(PATHS["ucx rc, shared memory"], relaunched, 2, (2,) if line.quick else (2, 3, 1)))
    if not line.quick:
        line.case("ucx rc: new launcher of 4 ranks", on(PATHS["ucx rc"], relaunched, 4, (4,)))
    for name in ("ucx rc", "openib, shared memory", *(() if line.quick else ("mpich rc", "mpich ud, its own shared memory"))):
        line.case(f"{name}: abort", on(PATHS[name], aborted))
        line.case(f"{name}: death of a rank", on(PATHS[name], killed))
    return line.finish()


if __name__ == "__main__":
    main(run)
