"""B2: programs of others (clients.py) run under the shim on ib2tcp, over shm and tcp, undisturbed and with checkpoint, kill
and restart at random moments of the data phase. A table says what became of each."""
import json
import pathlib
import shutil

from clients import CLIENTS, Client
from common import Case, Line, Skip, check, main
from jobs import Job, free_port
from pair import Pair, campaign

BAD = ("invalid data", "Completion with error", "Failed status", "Couldn't")
SAMPLE = ("ibv_uc_pingpong", "ibv_ud_pingpong -e", "ibv_srq_pingpong", "ibv_rc_pingpong -N", "ib_send_bw -F -c RC --use-srq",
          "ib_write_bw -F -c UC", "ib_send_lat -F -c UD")


def ends(client: Client, port: int, iterations: int) -> tuple[list[str], list[str]]:
    for tool in client.tools or (client.tool,):
        if not shutil.which(tool):
            raise Skip(f"{tool} is not installed")
    # perftest asks for a completion of every hundredth request, takes each for a hundred, and with several queue pairs may never
    # end if that is not so.
    if client.tool.startswith("ib_"):
        iterations = -(-iterations // 100) * 100
    return client.end(0, port, iterations), client.end(1, port, iterations)


def plain(case: Case, client: Client, transport: str) -> str:
    port = free_port()
    job = Job(case, transport=transport)
    server, other = ends(client, port, client.short)
    if client.needs:
        first = job.start("server", server)
        first.process.wait(60)
        check(first.process.returncode > 0,
              f"exit code {first.process.returncode} without {client.needs}: the table is to be changed\n{first.text()[-1000:]}")
        return f"says that {client.needs} is not there"
    job.start_pair(server, other, port, client.ready)
    if client.endless:
        job.end_server_after(60)
    else:
        job.finish(60)
    output = job.output()
    for bad in BAD:
        check(bad not in output, f"the output says '{bad}':\n{output[-2000:]}")
    return f"{client.short} iterations" if client.iterations else "done"


def restarted(case: Case, client: Client, transport: str, seconds: float) -> str:
    return campaign(case, Pair(lambda port, n: ends(client, port, n), transport, requests=client.requests, seconds=seconds,
                               most_iterations=client.most, multiple=client.multiple, bad=BAD, ready=client.ready), 2)


def table(line: Line, outcomes: dict[str, dict[str, str]]):
    columns = ("shm", "tcp", "shm, restarted", "tcp, restarted")
    width = max(map(len, outcomes), default=0)
    print(f"\n{'client':{width}}  " + "  ".join(f"{c:14}" for c in columns))
    for name, by in outcomes.items():
        print(f"{name:{width}}  " + "  ".join(f"{by.get(c, '-'):14}" for c in columns))
    (line.area / "clients.json").write_text(json.dumps(outcomes, indent=1) + "\n")
    if line.options.table:
        rows = ["| " + " | ".join([f"`{name}`", *(by.get(c, "–") for c in columns)]) + " |" for name, by in outcomes.items()]
        line.options.table.write_text("\n".join([f"| client | {' | '.join(columns)} |", "|---" * 5 + "|", *rows]) + "\n")
    print(f"\nas JSON: {line.area / 'clients.json'}")


def run() -> int:
    line = Line("b2", __doc__, lambda parser: parser.add_argument(
        "--table", type=pathlib.Path, metavar="FILE", help="writes the table there, as Markdown"))
    outcomes: dict[str, dict[str, str]] = {}

    def case(client: Client, column: str, function, wanted: int = 1):
        before = dict(line.outcomes)
        line.case(f"{client.name}, {column}", function, wanted)
        for outcome in ("passed", "FAILED", "SKIPPED"):
            if line.outcomes[outcome] != before[outcome]:
                outcomes.setdefault(client.name, {})[column] = outcome.lower()

    for client in CLIENTS:
        if line.quick and client.name not in SAMPLE:
            continue
        for transport in ("tcp",) if line.quick else ("shm", "tcp"):
            if not line.quick:
                case(client, transport, lambda c, k=client, t=transport: plain(c, k, t))
            if client.restart != "survives":
                outcomes.setdefault(client.name, {})[f"{transport}, restarted"] = client.restart
            elif not client.needs:
                case(client, f"{transport}, restarted",
                     lambda c, k=client, t=transport: restarted(c, k, t, 2.0 if line.quick else 3.0), 1 if line.quick else 2)
    line.area.mkdir(parents=True, exist_ok=True)
    if not line.options.list:
        table(line, outcomes)
    return line.finish()


if __name__ == "__main__":
    main(run)
