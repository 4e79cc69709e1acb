"""S9: a job on pretended hosts loses hosts again and again: any scheme, any hosts that it survives, any moment of a checkpoint or after it. The
newest set that is listed restarts each time, the messages go on, each with its number and every byte right, and copies and parities are made
whole again. Needs root, for the namespaces."""
import json
import pathlib
import random
import subprocess
import time

from common import Case, Line, check, main
from copy_speed import BigJob
from lost_hosts import HOSTS, Hosts, NearJob

SURVIVES = {"mirror": 1, "xor": 1, "rs:2": 2}
ROUNDS, SHORT_ROUNDS = 100, 2
IDLE_S = 10
LONGEST_S = 2.5  # into a checkpoint: beyond the end of most


class StormJob(NearJob):
    """Its sets have any scheme of one tier. It goes on until it is killed: a restart from an older set counts anew."""

    def __init__(self, case: Case, hosts: Hosts, backend: str):
        super().__init__(case, hosts, f"{hosts.tier}:mirror", restarts=1_000_000, spares="", backend=backend)

    def start_checkpoint(self, at: str, store: str, save: str, compress: str) -> subprocess.Popen:
        words = [self.shadowib, "checkpoint", self.name, "--dir", str(self.directory), "--timeout", "120", "--store", store, "--near",
                 str(self.hosts.place), "--save", save, "--compress", compress]
        # pylint: disable-next=consider-using-with
        return subprocess.Popen(self.hosts.at(at, words), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.environment)

    def newest(self) -> dict | None:
        listed = json.loads(self.command("list", "--json").stdout)["sets"]
        return max(listed, key=lambda entry: entry["number"], default=None)


def a_round(job: StormJob, rng: random.Random, number: int, longest_s: float) -> str:
    names, tier, before = job.hosts.names, job.hosts.tier, job.newest()
    scheme, at = rng.choice([scheme for scheme, losses in SURVIVES.items() if losses < len(names)]), rng.choice(names)
    after = before is None or rng.random() < 0.4
    # The newest set may be the one before.
    most = SURVIVES[scheme] if after else min(SURVIVES[scheme], SURVIVES[before["store"].split(":", 1)[1]])
    lost = "".join(rng.sample(names, rng.randint(1, most)))
    save, compress, moment = rng.choice(("stopped", "forked")), rng.choice(("none", "lz4", "zstd")), rng.uniform(0, longest_s)
    text = f"{number}: {scheme}, {save}, {compress}, asked for on {at}; {lost} lost {'after it' if after else f'{moment:.2f} s into it'}"
    job.case.note(text)
    command = job.start_checkpoint(at, f"{tier}:{scheme}", save, compress)
    if after:
        said, _ = command.communicate(timeout=180)
        check(command.returncode == 0, f"{text}: {command.returncode} {said[-1500:]}")
    else:
        time.sleep(moment)
    job.lose(lost)
    said, _ = command.communicate(timeout=180)
    job.case.note(f"the checkpoint ended with {command.returncode}: {said[-300:]}")
    newest = job.newest()
    check(newest is not None and (before is None or newest["number"] >= before["number"]), f"{text}: listed is {newest}, before {before}")
    check(not after or newest["set_id"] != (before or {}).get("set_id"), f"{text}: the set is not listed")
    job.sets.append(newest["path"])
    job.restart_shares()
    job.await_progress()
    rebuilder = rng.choice(names)
    job.at(rebuilder, "rebuild", newest["path"])
    job.at(rng.choice(names), "verify", newest["path"], "--strict")
    job.at(rebuilder, "gc", "--keep", "2")
    return "new" if before is None or newest["number"] > before["number"] else "old"


def storm(case: Case, tier: str, names: str, rounds: int, backend: str = "ib2tcp", longest_s: float = LONGEST_S) -> str:
    job, rng = StormJob(case, Hosts(case, tier, names), backend), case.random()
    sets = []
    for number in range(rounds):
        sets.append(a_round(job, rng, number, longest_s))
        case.goes_on(f"{number + 1} of {rounds} rounds")
    job.await_progress()
    job.kill()
    return f"{rounds} rounds on {len(names)} hosts, {job.count} members; {sets.count('new')} times the new set, {sets.count('old')} times the one before"


def turns(pids: list[int]) -> int:
    """How often threads of shadowib have run in these processes. The programs' own threads are those they begin with."""
    return sum(int((task / "schedstat").read_text().split()[2]) for pid in pids for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
               if int(task.name) != pid)


def idle(case: Case) -> str:
    """Between checkpoints a store has members do nothing."""
    hosts, counts = Hosts(case, "mem", HOSTS[:2]), {}
    for store in ("central", "mem:mirror"):
        job = BigJob(case, hosts, store, 1)
        job.at(HOSTS[0], "checkpoint", job.name)
        job.await_progress()
        pids = [member.pid for member in job.members()]
        time.sleep(1)  # what status has asked for is over
        before = turns(pids)
        time.sleep(IDLE_S)
        counts[store] = turns(pids) - before
        job.kill()
    text = f"in {IDLE_S} s threads of shadowib run {counts['mem:mirror']} times with a store near the members, {counts['central']} times without"
    check(counts["mem:mirror"] <= counts["central"], text)
    return text


def run() -> int:
    line = Line("store_storm", __doc__)
    if line.quick:
        line.case("mem", lambda case: storm(case, "mem", HOSTS[:2], SHORT_ROUNDS))
        line.case("idle", idle)
    else:
        line.case("idle", idle)
        for tier in ("mem", "disk"):
            line.case(tier, lambda case, tier=tier: storm(case, tier, HOSTS, ROUNDS))
    return line.finish()


if __name__ == "__main__":
    main(run)
