"""I1, I3 and S9 on Soft-RoCE: a program with registered memory stands for two clones and two memcpys at most; sets of `--incremental` have what
only a peer has written, by the device alone; and a job on pretended hosts loses hosts at any moment of a checkpoint with any scheme. Boots a
machine with Soft-RoCE (ci/vm/run) and goes on in there."""
import functools

from common import Line, main
from guest import run_in_guest
from incremental import WrittenByPeer, in_a_row
from lost_hosts import HOSTS
from pause import registered
from store_storm import storm
from storm_vm import OPTIONS
from storms import Storm, run_storm

TIMEOUT_S = {True: 1200, False: 4 * 3600}  # --quick or not
MEMORY_MIB = 3072
LONGEST_S = 10  # into a checkpoint, which an emulated processor takes its time for


def in_guest(line: Line) -> int:
    quick = line.quick
    line.case("registered memory", lambda case: registered(case, 128 if quick else 256, 1 if quick else 3, "verbs"))
    written = functools.partial(WrittenByPeer, backend="verbs")
    rows, restarts = (3, 3) if quick else (20, 4)
    line.case("written by a peer", lambda case: in_a_row(case, 32 if quick else 64, rows, restarts, "stopped", written))
    line.case("written by a peer, by savers", lambda case: in_a_row(case, 32 if quick else 64, rows, restarts, "forked", written))
    incremental = Storm(*((3, 1) if quick else (40, 12)), ("verbs",), options=OPTIONS, time_out=180, incremental=True)
    line.case("an incremental storm", lambda case: run_storm(case, incremental))
    line.case("hosts are lost", lambda case: storm(case, "mem", HOSTS[:2 if quick else 4], 1 if quick else 20, "verbs", LONGEST_S))
    return line.finish()


if __name__ == "__main__":
    main(lambda: run_in_guest(Line("store_vm", __doc__), in_guest, TIMEOUT_S, machines=(["--memory", str(MEMORY_MIB)],)))
