"""C3 over two machines with Soft-RoCE and a directory of both: from one machine to two and back, each process on its own; from two
to one and to two again; and rping and ib_write_bw -R whose ends change places. Data checked by content and sequence, and nothing
of a killed or restarted job stays in either kernel. Boots the machines (ci/vm/run --nodes 2) and goes on in there."""
import os
import time

import nodes as other_node
from adapters_vm import left_in_kernel
from clients import RXE, Client, perftest, rdma_cm
from common import Case, Failure, Line, check, main
from guest import run_in_guest
from jobs import Job, OneEndFinished, free_port, sends

TIMEOUT_S = {True: 1200, False: 7000}  # --quick or not
RUNS = {True: 1, False: 20}
DEPTH = 8
SERVER, CLIENT = 0, 1  # members
# Where the server and the client are, from the first generation on.
TOGETHER, APART, SWAPPED, MOVED = (0, 0), (0, 1), (1, 0), (1, 1)
ADDRESS = RXE.address  # node 0's: the first generation's server is there


# Between two machines Soft-RoCE repeats requests now and then. Natively a repeated atomic is answered with an older result
# ("compare-and-swap found 196" instead of 197), reads end in "fatal error (19)", and messages of several packets in "remote
# invalid request error (9)", each within a few runs: so none of those.
def verbs_check(line: Line) -> Client:
    return Client(f"{line.build}/bin/verbs_check --depth {DEPTH} --gid 1 --talk 0 --one-way --size 512", port="--port",
                  iterations="--iters", client=ADDRESS)


# Four writes at a time: with perftest's 128 the network that both machines have their directory by, too, is so full that a
# checkpoint takes minutes.
def rdma_cm_clients() -> list[tuple[Client, int]]:
    """And with how many iterations to begin."""
    return [(client, 1000) for client in rdma_cm(RXE) if client.tool == "rping"][:1] + \
        [(client, 16000) for client in perftest(RXE, "ib_write_bw", "RC", "-R -s 4096 -t 4")]


def kernel_of_both() -> list[dict]:
    """The objects that each node's kernel holds."""
    words = ["rdma", "-j", "resource", "show", "rxe0"]
    output = other_node.shared_area() / "resources"
    process = other_node.RemoteProcess(words, output, "/", dict(os.environ))
    check(process.wait(30) == 0, "rdma resource show fails on the other node")
    return [left_in_kernel(), left_in_kernel(output.read_text())]


def travel(case: Case, client: Client, places: tuple, run: int, iterations: int) -> bool:
    """One job that is at those places in turn. False: it was over before all its restarts."""
    rng = case.random(f"run{run}")
    before = kernel_of_both()
    job, port = Job(case, f"run{run}", backend="verbs"), free_port()
    job.start_pair(client.end(SERVER, port, iterations), client.end(CLIENT, port, iterations), port, client.ready, nodes=places[0])
    reached = 0
    for place in places[1:]:
        try:
            job.wait_data_phase(beyond=reached, timeout=120)
            time.sleep(rng.uniform(0, 0.5))
            reached = sends(job.members())
            job.checkpoint(kill=True)
        except OneEndFinished:
            job.stop()
            return False
        except Failure:
            job.finish(60)  # if it came to its good end
            return False
        check(kernel_of_both() == before, f"of killed processes the kernels hold {kernel_of_both()}, before {before}")
        if place[SERVER] == place[CLIENT] == 0:
            job.restart()
        else:
            job.restart_on({SERVER: place[SERVER], CLIENT: place[CLIENT]})
        job.remove_old_sets()
    job.finish(300)
    text = job.output()
    for bad in ("invalid data", "Completion with error", "Failed status", "Couldn't", "mismatch"):
        check(bad not in text, f"the output says '{bad}':\n{text[-2000:]}")
    if "verbs_check" in client.tool:
        for end in ("server", "client"):
            check(f"{end}: {iterations} iterations of {DEPTH} messages" in text, f"the {end} does not say that all was right:\n{text[-2000:]}")
    check(kernel_of_both() == before, f"of a job that has ended the kernels hold {kernel_of_both()}, before {before}")
    return True


def journeys(case: Case, client: Client, places: tuple, iterations: int) -> str:
    run = case.done
    tries = 0
    while case.done < case.wanted:
        tries += 1
        check(tries < 4 * case.wanted + 6, "the runs keep ending before their restarts")
        try:
            whole = travel(case, client, places, run, iterations)
        except Failure as failure:
            raise Failure(f"run {run}, {iterations} iterations: {failure}") from None
        if not whole:
            iterations *= 2
            continue
        run += 1
        case.progress(run)
    return f"{case.done} x, {len(places) - 1} restarts each, at last {iterations} iterations"


def in_guest(line: Line) -> int:
    def case(name, client, places, iterations):
        line.case(name, lambda c: journeys(c, client, places, iterations), RUNS[line.quick])

    check_pair = verbs_check(line)
    case("one machine to two and back", check_pair, (TOGETHER, APART, TOGETHER), 300)
    case("two machines to one and to two", check_pair, (APART, MOVED, SWAPPED), 300)
    for client, iterations in rdma_cm_clients():
        case(f"{client.name}, ends change places", client, (APART, SWAPPED, APART), iterations)
    return line.finish()


if __name__ == "__main__":
    main(lambda: run_in_guest(Line("hosts_vm", __doc__), in_guest, TIMEOUT_S, nodes=2))
