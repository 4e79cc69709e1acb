"""C3, C4: restarts that change the adapter, with data checked by content and sequence: Soft-RoCE with other real numbers, on
another address, ib2tcp, and back again; and nothing of a killed or restarted job stays in the kernel. Boots a machine with
Soft-RoCE (ci/vm/run) and goes on in there."""
import json
import subprocess
import time

from common import Case, Failure, Line, check, main
from guest import run_in_guest
from jobs import Job, OneEndFinished, free_port, listening, sends, wait_for
from spaces import ip

TIMEOUT_S = {True: 1200, False: 6000}  # --quick or not
RUNS = {True: 1, False: 20}
NETDEV = "dummy0"
ADDRESSES = ("192.168.77.1", "192.168.78.9")
# Of the first generation and those after each restart; "moved": Soft-RoCE on another address than the one before.
ARROWS = (
    ("verbs", "verbs"),
    ("verbs", "moved"),
    ("verbs", "ib2tcp"),
    ("ib2tcp", "verbs"),
    ("verbs", "ib2tcp", "verbs", "ib2tcp"),
    ("ib2tcp", "verbs", "ib2tcp", "verbs"),
)
A_USER = 1000
MANNERS = ((), ("--events",), ("--srq",), ("--extended",))
DEPTH = 8


def number_differently(rng):
    """Objects that come and go, so that those of a restart get other real numbers than they had."""
    for _ in range(rng.randint(1, 3)):
        port = free_port()
        words = ["ibv_rc_pingpong", "-g", "0", "-n", "10", "-p", str(port)]  # link-local: stays where addresses move
        server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        wait_for("the server of objects that come and go", lambda: listening(port), 30)
        subprocess.run([*words, "localhost"], check=True, stdout=subprocess.DEVNULL, timeout=30)
        check(server.wait(30) == 0, "a pair of programs that only come and go has failed")


class Adapter:
    """rxe0, whose GIDs follow the addresses of its network device."""

    def __init__(self):
        self.at = 0

    def move(self, to: int):
        ip("addr", "add", f"{ADDRESSES[to]}/24", "dev", NETDEV)
        ip("addr", "del", f"{ADDRESSES[self.at]}/24", "dev", NETDEV)
        self.at = to


def left_in_kernel(said: str = "") -> dict[str, int]:
    """How many objects of each kind the kernel holds for rxe0, its own among them. `said`: what another's `rdma` has said."""
    said = said or subprocess.run(["rdma", "-j", "resource", "show", "rxe0"], capture_output=True, text=True, check=True).stdout
    return {kind: n for kind, n in json.loads(said)[0].items() if isinstance(n, int) and kind != "ifindex"}


def numbers_in_kernel() -> set[int]:
    """Of the queue pairs of programs."""
    said = subprocess.run(["rdma", "-j", "resource", "show", "qp"], capture_output=True, text=True, check=True).stdout
    return {qp["lqpn"] for qp in json.loads(said) if qp["lqpn"] > 1}


def cross(case: Case, adapter: Adapter, arrow: tuple[str, ...], user: int | None, run: int, iterations: int) -> bool:
    """One job along the arrow. False: it was over before all its restarts."""
    rng = case.random(f"run{run}")
    manner, before = MANNERS[run % len(MANNERS)], left_in_kernel()
    job, port = Job(case, f"run{run}", backend=arrow[0], user=user), free_port()
    # On Soft-RoCE addresses are GIDs; ib2tcp's programs go by LID.
    words = [case.line.program("verbs_check"), "--port", str(port), "--iters", str(iterations), "--depth", str(DEPTH), *manner,
             *(("--gid", "1") if arrow[0] == "verbs" else ())]
    job.start_pair(words, [*words, "127.0.0.1"], port)
    reached = 0
    for generation in arrow[1:]:
        try:
            job.wait_data_phase(beyond=reached)
            time.sleep(rng.uniform(0, 0.5))
            reached = sends(job.members())
            old_numbers = numbers_in_kernel()
            job.checkpoint(kill=True)
        except OneEndFinished:
            job.stop()
            return False
        except Failure:
            job.finish(60)  # if it came to its good end
            return False
        check(left_in_kernel() == before, f"of killed processes the kernel holds {left_in_kernel()}, before {before}")
        if generation == "moved":
            adapter.move(1 - adapter.at)
        number_differently(rng)
        job.restart(environment={"SHADOWIB_BACKEND": generation.replace("moved", "verbs")})
        job.remove_old_sets()
        if generation != "ib2tcp":
            wait_for("queue pairs in the kernel", numbers_in_kernel, 60)
            check(not numbers_in_kernel() & old_numbers, "the kernel has given a queue pair the number it had before")
    job.finish(240)
    for end in ("server", "client"):
        check(f"{end}: {iterations} iterations of {DEPTH} messages" in job.output(), f"the {end} does not say that all was right:\n{job.output()[-2000:]}")
    check(left_in_kernel() == before, f"of a restarted job the kernel holds {left_in_kernel()}, before {before}")
    return True


def crossings(case: Case, adapter: Adapter, arrow: tuple[str, ...], user: int | None = None) -> str:
    iterations, run = 1500 if arrow[-1] == "verbs" else 4000, case.done
    tries = 0
    while case.done < case.wanted:
        tries += 1
        check(tries < 4 * case.wanted + 6, "the runs keep ending before their restarts")
        try:
            whole = cross(case, adapter, arrow, user, run, iterations)
        except Failure as failure:
            raise Failure(f"run {run}, {iterations} iterations: {failure}") from None
        finally:
            if adapter.at != 0:
                adapter.move(0)
        if not whole:
            iterations *= 2
            continue
        run += 1
        case.progress(run)
    return f"{case.done} x, {len(arrow) - 1} restart(s) each, at last {iterations} iterations"


def in_guest(line: Line) -> int:
    adapter = Adapter()
    for arrow in ARROWS:
        line.case(" to ".join(arrow), lambda c, a=arrow: crossings(c, adapter, a), RUNS[line.quick])
    # What a restart has the rights for, and the kernel gives its device to: none of root's.
    line.case("verbs to verbs, of an ordinary user", lambda c: crossings(c, adapter, ("verbs", "verbs"), A_USER), RUNS[line.quick])
    return line.finish()


if __name__ == "__main__":
    main(lambda: run_in_guest(Line("adapters_vm", __doc__), in_guest, TIMEOUT_S))
