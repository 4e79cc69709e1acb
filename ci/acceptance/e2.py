"""E2: E1's ring and LAMMPS over Soft-RoCE: killed at random moments with their launcher, and restarted on Soft-RoCE or over ib2tcp;
and nothing of a killed or restarted job stays in the kernel. Boots a machine with Soft-RoCE (ci/vm/run) and goes on in there."""
import dataclasses

from c3 import left_in_kernel
from common import Case, Line, Skip, check, main
from guest import run_in_guest
from mpi import PATHS, Setup, moments
from mpi_programs import Lammps, Ring

TIMEOUT_S = {True: 600, False: 6500}  # --quick or not
MOMENTS = {True: 1, False: 20}
# Soft-RoCE's own: UCX takes the adapter it is told, and datagrams (RC's connections are made by them) are not looked through for
# the receiver's GID.
ADAPTER = "-x UCX_NET_DEVICES=rxe0:1 -x UCX_UD_VERBS_ETH_DGID_CHECK=n"
MORE = {
    "ucx rc": ADAPTER,
    "ucx ud": ADAPTER,
    "ofi": "",
}
PROGRAMS = (Ring(200), Lammps(60))


def killed(case: Case, setup: Setup, to: str, count: int) -> str:
    if missing := setup.missing():
        raise Skip(missing)
    before = left_in_kernel()
    said = moments(case, setup, count, backends=[to])
    check(left_in_kernel() == before, f"of jobs that have ended the kernel holds {left_in_kernel()}, before {before}")
    return said


def in_guest(line: Line) -> int:
    for name, more in MORE.items():
        path = dataclasses.replace(PATHS[name], options=f"{PATHS[name].options} {more}")
        for to in ("verbs", "ib2tcp"):
            for ranks in (2, 4):
                for program in PROGRAMS:
                    if line.quick and (ranks == 4 or program.name != "ring" or name == "ofi"):
                        continue
                    count = MOMENTS[line.quick] if program.name == "ring" else 4
                    setup = Setup(path, program, ranks, "verbs")
                    line.case(f"{name} to {to}: {ranks} ranks, {program.name}", lambda c, s=setup, t=to, n=count: killed(c, s, t, n), count)
    return line.finish()


if __name__ == "__main__":
    main(lambda: run_in_guest(Line("e2", __doc__), in_guest, TIMEOUT_S))
