"""E1: jobs of Open MPI under mpirun, and of MPICH under Hydra, over ib2tcp, with shared memory between ranks off and on, are
checkpointed at random moments, from MPI_Init on; everything is killed, the launcher included; `shadowib restart` brings the ranks
back with no launcher, and they come to the end of MPI_Finalize with the result of an undisturbed run: a ring of messages, reductions and one-sided access,
ranks that MPI_Comm_spawn has started, LAMMPS, and the HPC Challenge."""
import dataclasses
import os
import signal
import time

from common import Line, Skip, check, main
from jobs import A_PROCESS_FAILED, NOT_FOUND, wait_for
from mpi import MPICH, PATHS, MpiJob, Setup, check_result, kill_within, launched, moments, undisturbed
from mpi_programs import Events, Hpcc, Lammps, Ring, Spawn


def resumed_run(case, setup: Setup, name: str, random, seconds: float, count: int) -> tuple[MpiJob, int]:
    """One job, and the checkpoints that it was there for."""
    job, taken = launched(setup, case, name), 0
    for _ in range(count):
        time.sleep(random.uniform(0, seconds / count))
        result = job.command("checkpoint", job.name, timeout=90, check_code=False)
        check(result.returncode in (0, NOT_FOUND), f"checkpoint exited with {result.returncode}: {result.stderr.strip()}")
        taken += result.returncode == 0
    job.finish(300)
    return job, taken


def resumed(case, setup: Setup, count: int) -> str:
    """Its launcher goes on answering a job that goes on: mpirun ends with 0."""
    expected, seconds = undisturbed(case, setup)
    random, taken, tries = case.random(), 0, 0
    while taken == 0:  # the machine may have become faster since: then it is sooner
        job, taken = resumed_run(case, setup, f"resumed{tries}", random, seconds / 2**tries, count)
        check_result(job, expected)
        tries += 1
        check(taken or tries < 8, "the job keeps ending before its first checkpoint")
    return f"{taken} checkpoints of a job that then came to its end"


def relaunched(case, setup: Setup, counts: tuple[int, ...]) -> str:
    """Restarts under a new mpirun, with other numbers of ranks than there are members, too; which ends with 0 when all have."""
    expected, seconds = undisturbed(case, setup)
    random = case.random()
    for number, count in enumerate(counts):
        longest, tries = 0.7 * seconds, 0
        while True:  # the machine may have become faster since: then it is sooner
            job = launched(setup, case, f"relaunched{number}-{tries}")
            if kill_within(job, random, longest) is not None:
                break
            job.finish(300)
            longest, tries = longest / 2, tries + 1
        job.restart_by_launcher(count)
        job.finish(300)
        check_result(job, expected)
    return f"{setup.ranks} members under {', '.join(map(str, counts))} ranks of a new mpirun; {expected}"


def restarted_later(case, setup: Setup, count: int) -> str:
    """Taken while connections are made, and restarted when UCX would by itself have given them up: what the clock of a processor
    measures goes on between kill and restart."""
    expected, _ = undisturbed(case, setup)
    random, jobs = case.random(), []
    for number in range(count):
        jobs.append(launched(setup, case, f"later{number}"))
        kill_within(jobs[-1], random, 0.5)
    time.sleep(GIVES_UP_S)
    for job in jobs:
        job.restart()
        job.finish(300)
        check_result(job, expected)
    return f"{count} jobs, restarted {GIVES_UP_S} s after their kill; {expected}"


def restarted(case, setup: Setup) -> tuple[MpiJob, object]:
    job = launched(setup, case, "job")
    kill_within(job, case.random(), 0.5)
    return job, job.restart()


def ends_for_all(case, job: MpiJob, restart, why: str):
    job._wait(restart, 300)
    check(restart.process.returncode == A_PROCESS_FAILED, f"restart exited with {restart.process.returncode}:\n{restart.text()[-2000:]}")
    check("checksum" not in restart.text(), "a rank came to its end")
    check(not job.members(), "a rank has outlived the job")
    # UCX may find its peer gone and abort by itself before the rank hears of it; through shared memory nobody finds anything.
    if "shared memory" in case.name:
        check(why in (case.work / "shadowib.log").read_text(), f"nobody heard of it:\n{restart.text()[-2000:]}")


def aborted(case, setup: Setup) -> str:
    """After a restart MPI_Abort of one rank is the end of all. Late enough that no quick path comes there before the checkpoint."""
    late = setup.path.iterations * (2 * SHORTER if case.line.quick else 4)
    job, restart = restarted(case, dataclasses.replace(setup, program=Ring(late, late - 1)))
    ends_for_all(case, job, restart, "has aborted the job with status 3")
    return "the other rank ended too"


def killed(case, setup: Setup) -> str:
    """And so is its death."""
    job, restart = restarted(case, dataclasses.replace(setup, program=Ring(iterations=1_000_000_000)))
    wait_for("the restarted ranks", lambda: restart.ended() or len(job.members()) == 2, 60, 0.05)
    ranks = job.rank_pids()
    check(len(ranks) == 2, f"{len(ranks)} ranks:\n{restart.text()}")
    os.kill(case.random("whom").choice(ranks), signal.SIGKILL)
    ends_for_all(case, job, restart, "has ended with signal 9")
    return "the other rank ended too"


def told_of_events(case, setup: Setup) -> str:
    """With no launcher, which would have carried them: each event is heard once by each rank that it is for, and by no handler that is
    gone. Restarted twice, so that handlers of before the first and of after it hear of them."""
    job = launched(setup, case, "events")
    for _ in range(2):
        wait_for("the ranks' handlers", lambda: "ready" in job.output(), 60)
        check(job.kill_everything(), "the ranks came to their end")
        job.restart()
        wait_for("the restarted ranks", lambda: len(job.members()) == setup.ranks, 60, 0.05)
    (job.place / "go").touch()
    job.finish(120)
    check_result(job, "; ".join(f"rank {rank} has heard 1 1 1 1" for rank in range(setup.ranks)))
    return f"{setup.ranks} ranks, each told of four events, once"


PROGRAMS = ((Ring(), 20), (Lammps(), 4), (Hpcc(), 4))  # and the moments of each
RING = PROGRAMS[0][0]
GIVES_UP_S = 40  # UCX 1.13's UCX_UD_TIMEOUT is 30 s
CROWDED = 20  # fewer iterations of MPICH's ring where ranks outnumber processors
SAMPLE = ("ucx rc", "openib", "ofi, shared memory", "openib, shared memory", "mpich rc")  # of the paths, where it is --quick
SHORTER = 4  # a sample's rings: fewer iterations


def run() -> int:
    line = Line("mpi_jobs", __doc__)

    def case(name: str, setup: Setup, function, *arguments, count: int = 1):
        def body(case):
            if missing := setup.missing():
                raise Skip(missing)
            return function(case, setup, *arguments)
        line.case(name, body, count)

    for name, path in PATHS.items():
        if line.quick:
            path.iterations //= SHORTER
            if name not in SAMPLE:
                continue
        for ranks in (2,) if line.quick else (2, 4):
            for program, count in PROGRAMS:
                if line.quick and name == "ucx rc":  # its two restarts are in the sample
                    continue
                if program is RING or not (line.quick or path.mpi is MPICH):  # Debian's are built with Open MPI
                    count = 1 if line.quick else count
                    words = f"{name}: {ranks} ranks" + ("" if program is RING else f", {program.name}")
                    if path.mpi is MPICH and ranks > os.cpu_count():  # whose ranks poll and do not yield: each message costs a time slice
                        program = Ring(path.iterations // CROWDED)
                    case(words, Setup(path, program, ranks), moments, count, count=count)
    for name in ("ucx rc",) if line.quick else ("ucx rc", "mpich rc"):
        case(f"{name}: two restarts", Setup(PATHS[name], RING), moments, 1, 2)
        case(f"{name}: resumed", Setup(PATHS[name], RING), resumed, 3 if line.quick else 20)
    case("ucx rc, shared memory: new launcher", Setup(PATHS["ucx rc, shared memory"], RING), relaunched, (2,) if line.quick else (2, 3, 1))
    case("ucx rc: spawned ranks", Setup(PATHS["ucx rc"], Spawn(5000) if line.quick else Spawn(), 1), moments, 1 if line.quick else 10, count=1 if line.quick else 10)
    case("events without a launcher", Setup(PATHS["ucx rc"], Events(), 3), told_of_events)
    if not line.quick:
        case("ucx rc: restarted later", Setup(PATHS["ucx rc"], Ring(100_000)), restarted_later, 8)
        case("ucx rc: new launcher of 4 ranks", Setup(PATHS["ucx rc"], RING, 4), relaunched, (4,))
    for name in ("openib, shared memory", *(() if line.quick else ("ucx rc", "mpich rc", "mpich ud, its own shared memory"))):
        case(f"{name}: abort", Setup(PATHS[name], RING), aborted)
        case(f"{name}: death of a rank", Setup(PATHS[name], RING), killed)
    return line.finish()


if __name__ == "__main__":
    main(run)
