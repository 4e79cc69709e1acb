"""C1: programs of others on a kernel's RDMA device: natively, under the shim, and with checkpoint, kill and restart at random
moments of the data phase. Boots a machine with Soft-RoCE (ci/vm/run) and goes on in there."""
from clients import Client, pingpong
from common import Case, Failure, Line, main
from guest import run_in_guest
from jobs import Job, free_port
from pair import Pair, campaign

BAD = ("invalid data", "Completion with error", "Failed status", "Couldn't")
TIMEOUT_S = {True: 300, False: 3600}  # --quick or not
# Of an emulated processor: natively some thousand messages a second.
CLIENTS = [
    *pingpong("rc", "-g 1 -c", "-g 1 -e", "-g 1 -N", short=200),
    *pingpong("uc", "-g 1", "-g 1 -e", short=200),
    *pingpong("ud", "-g 1", "-g 1 -e", short=200),
    *pingpong("srq", "-g 1", "-g 1 -e", short=200, requests=1 / 16),
]
SAMPLE = ("ibv_rc_pingpong -g 1 -c", "ibv_ud_pingpong -g 1 -e", "ibv_srq_pingpong -g 1")


def plain(case: Case, client: Client, backend: str | None) -> str:
    port = free_port()
    job = Job(case, backend=backend)
    job.start_pair(client.end(0, port, client.short), client.end(1, port, client.short), port, client.ready)
    job.finish(60)
    for bad in BAD:
        if bad in job.output():
            raise Failure(f"the output says '{bad}':\n{job.output()[-2000:]}")
    return f"{client.short} iterations"


def restarted(case: Case, client: Client) -> str:
    def commands(port: int, n: int):
        return client.end(0, port, n), client.end(1, port, n)
    return campaign(case, Pair(commands, None, requests=client.requests, seconds=8.0, most_iterations=client.most, multiple=client.multiple, bad=BAD,
                               backend="verbs", ready=client.ready), 2)


def in_guest(line: Line) -> int:
    for client in CLIENTS:
        if line.quick and client.name not in SAMPLE:
            continue
        if not line.quick:
            line.case(f"{client.name}, natively", lambda c, k=client: plain(c, k, None))
            line.case(f"{client.name}, shim", lambda c, k=client: plain(c, k, "verbs"))
        line.case(f"{client.name}, restarted", lambda c, k=client: restarted(c, k), 1 if line.quick else 4)
    return line.finish()


if __name__ == "__main__":
    main(lambda: run_in_guest(Line("c1", __doc__), in_guest, TIMEOUT_S))
