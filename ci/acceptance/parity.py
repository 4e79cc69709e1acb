"""What B2 and C1 do with each program of clients.py, and the table of what became of it."""
import json
import os
import pathlib
import re
import shutil
from typing import Callable

from clients import Adapter, Client
from common import Case, Line, Skip, check
from jobs import Job, free_port
from pair import Pair, campaign

BAD = ("invalid data", "Completion with error", "Failed status", "Couldn't")


def environment(case: Case, on: Adapter) -> dict[str, str]:
    return {**on.environment, "PATH": f"{case.line.build / 'bin'}:{os.environ['PATH']}"}  # a program of our own among them


def ends(case: Case, client: Client, on: Adapter, port: int, iterations: int) -> tuple[list[str], list[str]]:
    for tool in client.tools or (client.tool,):
        if not shutil.which(tool, path=environment(case, on)["PATH"]):
            raise Skip(f"{tool} is not installed")
    iterations = -(-iterations // client.multiple) * client.multiple
    return client.end(0, port, iterations), client.end(1, port, iterations)


def undisturbed(case: Case, client: Client, on: Adapter, transport: str | None = None, native: bool = False) -> str:
    port = free_port()
    job = Job(case, transport=transport, environment=environment(case, on), backend=None if native else on.backend)
    server, other = ends(case, client, on, port, client.short)
    if client.needs:
        first = job.start("server", server)
        first.process.wait(on.patience)
        check(first.process.returncode > 0,
              f"exit code {first.process.returncode} without {client.needs}: the table is to be changed\n{first.text()[-1000:]}")
        return f"says that {client.needs} is not there"
    if client.alone:
        job.start("all", server)
    else:
        job.start_pair(server, other, port, client.ready)
    if client.endless:
        job.end_server_after(on.patience)
    else:
        job.finish(on.patience)
    output = job.output()
    for bad in BAD:
        check(bad not in output, f"the output says '{bad}':\n{output[-2000:]}")
    return f"{client.short} iterations" if client.iterations else "done"


def restarted(case: Case, client: Client, on: Adapter, transport: str | None = None, seconds: float = 0, per_run: int = 2) -> str:
    return campaign(case, Pair(lambda port, n: ends(case, client, on, port, n), transport, requests=client.requests, seconds=seconds or on.seconds,
                               most_iterations=client.most, multiple=client.multiple, bad=BAD, ready=client.ready, backend=on.backend,
                               environment=environment(case, on)), per_run)


class Table:
    """What became of each client, by column."""

    def __init__(self, line: Line, *columns: str):
        self.line, self.columns = line, columns
        self.outcomes: dict[str, dict[str, str]] = {}

    def case(self, client: Client, column: str, function: Callable[[Case], str], wanted: int = 1):
        before = dict(self.line.outcomes)
        self.line.case(f"{client.name}, {column}", function, wanted)
        for outcome in ("passed", "FAILED", "SKIPPED"):
            if self.line.outcomes[outcome] != before[outcome]:
                self.set(client, column, outcome.lower())

    def set(self, client: Client, column: str, text: str):
        if re.search(self.line.options.only, f"{client.name}, {column}"):
            self.outcomes.setdefault(client.name, {})[column] = text

    def write(self):
        """To the terminal, to the line's area as JSON, and to --table's file as Markdown."""
        if self.line.options.list:
            return
        width = max(map(len, self.outcomes), default=0)
        print(f"\n{'client':{width}}  " + "  ".join(f"{c:14}" for c in self.columns))
        for name, by in self.outcomes.items():
            print(f"{name:{width}}  " + "  ".join(f"{by.get(c, '-'):14}" for c in self.columns))
        self.line.area.mkdir(parents=True, exist_ok=True)
        (self.line.area / "clients.json").write_text(json.dumps(self.outcomes, indent=1) + "\n")
        if self.line.options.table:
            rows = ["| " + " | ".join([f"`{name}`", *(by.get(c, "–") for c in self.columns)]) + " |" for name, by in self.outcomes.items()]
            head = [f"| client | {' | '.join(self.columns)} |", "|---" * (1 + len(self.columns)) + "|"]
            self.line.options.table.write_text("\n".join([*head, *rows]) + "\n")
        print()


def table_option(parser):
    parser.add_argument("--table", type=pathlib.Path, metavar="FILE", help="writes the table there, as Markdown")
