"""D3 on Soft-RoCE: a storm of random verbs of several processes (shadowib-storm) goes on while it is checkpointed at random moments,
resumed, or killed and restarted, on Soft-RoCE and from there to ib2tcp and back. Boots a machine with Soft-RoCE (ci/vm/run) and
goes on in there."""
from common import Line, main
from guest import run_in_guest
from storms import Storm, run_storm

TIMEOUT_S = {True: 1200, False: 4 * 3600}  # --quick or not
# Soft-RoCE has no XRC. Without shadowib as well queue pairs stand still for good there (Linux 6.1 and 6.12) if a fenced request
# finds no receive and a read or an atomic behind it was sent: req_retry() keeps what those have of rd_atomic, which the fence
# waits for. And where windows are bound behind refused requests the bind fails without shadowib, and the storm stands still
# with it. So neither fences nor windows. What is refused is repeated in the processor's time, which an emulated one has little of.
OPTIONS = ("--transports", "rc,uc,ud", "--no-fences", "--no-windows", "--rnr-timer", "22", "--patience", "180")


def in_guest(line: Line) -> int:
    storms, counts = (1, (6, 3)) if line.quick else (5, (10, 3))
    for name, where in {"verbs": ("verbs",), "few signals": ("verbs, 64",), "verbs and ib2tcp": ("verbs", "shm", "tcp")}.items():
        for i in range(storms):
            line.case(f"{name}, {i + 1}", lambda case, w=where: run_storm(case, Storm(*counts, w, options=OPTIONS, time_out=180)))
    return line.finish()


if __name__ == "__main__":
    main(lambda: run_in_guest(Line("storm_vm", __doc__), in_guest, TIMEOUT_S))
