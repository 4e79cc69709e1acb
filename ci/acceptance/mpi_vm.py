"""E2: E1's ring and LAMMPS over Soft-RoCE: killed at a random moment with their launcher and restarted on Soft-RoCE, killed once more
and restarted over ib2tcp, where they come to their end; and nothing of a killed or restarted job stays in the kernel. Boots a machine
with Soft-RoCE (ci/vm/run) and goes on in there."""
import argparse
import dataclasses

from adapters_vm import left_in_kernel
from common import Case, Line, Skip, check, main
from guest import run_in_guest
from mpi import PATHS, Setup, moments
from mpi_programs import Lammps, Ring

TIMEOUT_S = {True: 1200, False: 6500}  # --quick or not
JOURNEY = ["verbs", "ib2tcp"]  # after a beginning on Soft-RoCE
# Soft-RoCE's own: UCX takes the adapter it is told, and datagrams (RC's connections are made by them) are not looked through for
# the receiver's GID.
ADAPTER = "-x UCX_NET_DEVICES=rxe0:1 -x UCX_UD_VERBS_ETH_DGID_CHECK=n"
# Options beside E1's, and the iterations of the ring that take some seconds in there.
ROWS = {
    "ucx rc": (ADAPTER, 400),
    "ucx ud": (ADAPTER, 400),
    "ofi": ("", 400),
    "ucx rc, shared memory": (ADAPTER, 4000),
    "ucx ud, shared memory": (ADAPTER, 4000),
    "ofi, shared memory": ("", 400),
}
QUICK = ("ucx rc", "ucx ud")  # of the ring
MACHINE = ["--memory", "6144"]  # two sets of four ranks' images beside them: 0.25 GB each


def killed(case: Case, setup: Setup, count: int) -> str:
    if missing := setup.missing():
        raise Skip(missing)
    before = left_in_kernel()
    said = moments(case, setup, count, backends=JOURNEY)
    check(left_in_kernel() == before, f"of jobs that have ended the kernel holds {left_in_kernel()}, before {before}")
    return said


def in_guest(line: Line) -> int:
    for kind in ("ring", "lammps"):
        for ranks in (2,) if line.quick else (2, 4):
            for name, (more, iterations) in ROWS.items():
                if line.quick and (kind != "ring" or name not in QUICK):
                    continue
                program = Ring(iterations) if kind == "ring" else Lammps(60)
                path = dataclasses.replace(PATHS[name], options=f"{PATHS[name].options} {more}")
                count = 1 if line.quick else line.options.journeys if kind == "ring" else min(4, line.options.journeys)
                setup = Setup(path, program, ranks, "verbs")
                line.case(f"{name}: {ranks} ranks, {program.name}", lambda c, s=setup, n=count: killed(c, s, n), count)
    return line.finish()


def options(parser: argparse.ArgumentParser):
    parser.add_argument("--journeys", type=int, default=20, metavar="N", help="of each kind of job (20; LAMMPS: no more than 4)")


if __name__ == "__main__":
    main(lambda: run_in_guest(Line("mpi_vm", __doc__, options), in_guest, TIMEOUT_S, machines=(MACHINE,)))
