"""Jobs of many members: what a checkpoint costs a member does not grow with members, over a directory (ext4, tmpfs) and Redis.
Real idle members on this machine, without a queue pair and with one each; then the messages alone of a checkpoint and a restart
of 2,048 members. Bounds are on counts, and on ratios within a run; of a short sample on counts alone."""
import importlib.machinery
import importlib.util
import shutil
import sys
import types

from common import ROOT, Case, Line, Skip, check, main

sys.path.insert(0, str(ROOT / "perftest"))
loader = importlib.machinery.SourceFileLoader("members", str(ROOT / "perftest" / "members"))
members = importlib.util.module_from_spec(importlib.util.spec_from_loader("members", loader))
loader.exec_module(members)

EXCHANGES = ("ext4", "tmpfs", "redis")
CPU_GROWTH = 1.2      # of a member's processor time, from the fewest members to the most
SLEEPS_GROWTH_ONCE = 3.0  # of how often it sleeps in one checkpoint, 8 to 64 members: growth with the square would show 8
CALLS_GROWTH = 1.1     # of its system calls, from the fewest simulated members to the most
CALLS_GROWTH_ONCE = 1.5  # the same, 64 to 256 members: waiting takes some calls, more on a busy machine; growth with members would show 4
REQUESTS = 41         # of one of the fewest to a Redis server, in all: 35, and more on a slow machine, since waits are in slices
SECONDS = 3.0         # for all messages of the most members: processor time of members, command and server over two processors


def options_of(case: Case, repeats: int) -> types.SimpleNamespace:
    case.line.program("round_scale"), case.line.program("settle_scale")
    return types.SimpleNamespace(build=case.line.build, area=str(case.work), repeats=repeats)


def needs(kind: str):
    if kind == "redis" and shutil.which("redis-server") is None:
        raise Skip("there is no redis-server; ci/setup installs it")


def jobs(case: Case, kind: str, queue_pairs: int) -> str:
    """Growth with `counts` of members; settling may grow as members do between the last two, since they share processors. A sample
    judges how often members sleep: one checkpoint's milliseconds say nothing on a machine with other work."""
    needs(kind)
    quick = case.line.quick
    counts = (8, 64) if quick else (8, 64, 256)
    rows = {count: members.measure_job(options_of(case, 1 if quick else 3), kind, count, queue_pairs) for count in counts}
    few, middle, many = (rows[count] for count in (counts[0], *counts[-2:]))
    case.figures.update({str(count): row for count, row in rows.items()})
    text = ", ".join(f"{row['members']}: {row['cpu_ms']:.1f} ms CPU, {row['sleeps']:.0f} sleeps, settle {row['settle_ms']:.1f} ms"
                     for row in rows.values())
    case.note(text)
    if quick:
        check(many["sleeps"] <= SLEEPS_GROWTH_ONCE * few["sleeps"], f"a member sleeps {many['sleeps'] / few['sleeps']:.2f} times as often: {text}")
        return text
    check(many["cpu_ms"] <= CPU_GROWTH * few["cpu_ms"], f"a member works {many['cpu_ms'] / few['cpu_ms']:.2f} times as long: {text}")
    growth = counts[2] / counts[1]
    check(many["settle_ms"] <= growth * middle["settle_ms"], f"settling grows {many['settle_ms'] / middle['settle_ms']:.1f} times: {text}")
    return text


def messages(case: Case, kind: str) -> str:
    needs(kind)
    quick = case.line.quick
    few, many = (members.measure_messages(options_of(case, 1 if quick else 3), kind, count) for count in ((64, 256) if quick else (256, 2048)))
    case.figures.update({"few": few, "many": many})
    text = ", ".join(f"{row['members']}: {row['calls']:.0f} calls, {row['sleeps']:.0f} sleeps, {row['least_seconds']:.2f} s, {row['cpu_s']:.2f} s CPU"
                     + (f", {row['requests']:.1f} requests" if row["requests"] else "")
                     for row in (few, many))
    case.note(text)
    check(many["calls"] <= (CALLS_GROWTH_ONCE if quick else CALLS_GROWTH) * few["calls"], f"a member makes {many['calls'] / few['calls']:.2f} times as many system calls: {text}")
    check(few["requests"] <= REQUESTS, f"Redis reads {few['requests']:.1f} times of a member: {text}")
    if not quick:
        check(many["cpu_s"] <= 2 * SECONDS, f"all messages take {many['cpu_s']:.2f} s of processors: {text}")
    return text


def same_operations(case: Case) -> str:
    """The simulated member asks the exchange for what a real one does, or the simulation tells nothing."""
    real = members.measure_job(options_of(case, 1), "tmpfs", 8, 1)["operations"]
    simulated = members.measure_messages(options_of(case, 1), "tmpfs", 8)["round_operations"]
    # A wait that finds its key at the first look asks two times less; a member waits twice.
    check(abs(real - simulated) <= 4, f"a real member asked {real} times, a simulated one {simulated}")
    return f"a real member asked {real} times, a simulated one {simulated:.1f}"


def run() -> int:
    line = Line("many", __doc__)
    line.case("operations", same_operations)
    for kind in EXCHANGES:
        line.case(f"messages over {kind}", lambda c, k=kind: messages(c, k))
    for kind in EXCHANGES:
        for queue_pairs in (0, 1) if kind == "tmpfs" or not line.quick else (1,):
            line.case(f"idle members over {kind}, {queue_pairs} queue pairs", lambda c, k=kind, q=queue_pairs: jobs(c, k, q))
    return line.finish()


if __name__ == "__main__":
    main(run)
