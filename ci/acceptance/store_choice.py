"""S2: --store auto takes the store that has room. One job of six members on three pretended hosts is saved again and again, while memory, disks
and the checkpoint directory fill up in between: copies in memory, parities in memory, copies on disks, parities on disks, central, and a refusal
that tells all sizes and leaves the job unharmed. Needs root, for namespaces and file systems of a chosen size."""
import json
import os
import pathlib
import subprocess

from common import Case, Line, check, main
from jobs import IO
from lost_hosts import HOSTS, Hosts, NearJob

MUCH = 40  # times what a host has to save
USABLE = 0.95


class SmallHosts(Hosts):
    """Each host has memory and a disk of a size that can be changed."""

    def __init__(self, case: Case, names: str):
        super().__init__(case, "mem", names)
        for name in names:
            self.mount(self.disk(name))

    def disk(self, name: str) -> pathlib.Path:
        return self.case.work / f"disk-of-{name}"

    def mount(self, path: pathlib.Path):
        path.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
        self.case.cleanups.append(lambda _: subprocess.run(["umount", "--lazy", path], check=False))

    def at(self, name: str, argv: list[str]) -> list[str]:
        return super().at(name, ["sh", "-c", f'mount --bind {self.disk(name)} /var/tmp; exec "$@"', "sh", *argv])

    def leave(self, path: pathlib.Path, free: float):
        """Makes the file system so large that `free` bytes are left."""
        info = os.statvfs(path)
        size = (info.f_blocks - info.f_bfree) * info.f_frsize + int(free)
        subprocess.run(["mount", "-o", f"remount,size={size // 4096 * 4096}", path], check=True)


class ChosenJob(NearJob):
    def __init__(self, case: Case, hosts: SmallHosts):
        (case.work / "ckpt").mkdir()
        hosts.mount(case.work / "ckpt")
        super().__init__(case, hosts, "auto", restarts=2)  # they go on until they are killed
        self.saved: list[dict] = []  # members of the newest set

    def to_save(self) -> float:
        """Bytes of the largest host's images, before they are compressed: of the newest set, else as if all was in memory."""
        sizes: dict[str, int] = {}
        for member in self.saved or [{"pid": m.pid, "bytes": self.in_memory(m.pid)} for m in self.members()]:
            host = self.host_of(member["pid"])
            sizes[host] = sizes.get(host, 0) + member.get("page_bytes", member["bytes"])
        return max(sizes.values())

    @staticmethod
    def in_memory(pid: int) -> int:
        text = pathlib.Path(f"/proc/{pid}/status").read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(("VmRSS:", "VmSwap:"))) << 10

    def try_to_save(self) -> subprocess.CompletedProcess:
        words = [self.shadowib, "checkpoint", self.name, "--dir", str(self.directory), "--timeout", "120", "--json"]
        result = subprocess.run(self.hosts.at("a", words), text=True, capture_output=True, timeout=180, env=self.environment, check=False)
        if result.returncode == 0:
            self.saved = json.loads(result.stdout)["members"]
        return result


def branches(case: Case) -> str:
    """In units of what a host has to save, a set takes 2 with copies and 1.5 with parities of three hosts. Room for the next set is wanted, too,
    but where the newest one lies."""
    hosts = SmallHosts(case, HOSTS[:3])
    job = ChosenJob(case, hosts)
    taken = []
    for mem, disk, central, wanted in ((MUCH, MUCH, MUCH, "mem:mirror"), (1.75, MUCH, MUCH, "mem:xor"), (1.2, MUCH, MUCH, "disk:mirror"),
                                       (1.2, 1.75, MUCH, "disk:xor"), (1.2, 1.2, MUCH, "central"), (1.2, 1.2, 2.5, "")):
        unit = job.to_save() / USABLE
        for name in hosts.names:
            hosts.leave(hosts.own(name), mem * unit)
            hosts.leave(hosts.disk(name), disk * unit)
        hosts.leave(job.directory, central * unit)
        (job.directory / "jobs" / job.name / "rates").unlink(missing_ok=True)  # of this machine, at this moment
        result = job.try_to_save()
        case.note(f"{mem} {disk} {central}: {result.returncode} {result.stdout}{result.stderr}")
        if not wanted:
            break
        check(result.returncode == 0, f"{wanted}: {result.returncode} {result.stdout}{result.stderr[-1500:]}")
        told = json.loads(result.stdout)
        check(told.get("store", "central") == wanted, f"{told.get('store', 'central')} instead of {wanted}: {told['considered']}")
        job.at("b", "verify", told["set"], "--strict")
        job.sets.append(told["set"])
        taken.append(wanted)
        job.await_progress()
    said = result.stderr.strip().splitlines()[-1]
    check(result.returncode == IO, f"without room: {result.returncode} {said}")
    for store in ("mem:mirror", "mem:xor", "disk:mirror", "disk:xor", "central"):
        check(f"{store} needs" in said, f"{store} is not told: {said}")
    job.await_progress()
    listed = [entry["path"] for entry in json.loads(job.command("list", "--json").stdout)["sets"]]
    check(listed == job.sets, f"listed are {listed}, taken {job.sets}")
    job.kill()
    hosts.leave(job.directory, MUCH * unit)
    job.restart_shares()
    job.await_progress()
    job.kill()
    return f"{', '.join(taken)}, refused; the last one restarts"


def part_of(job: ChosenJob, how: str, part: float):
    """As if the newest set had been compressed so."""
    record = job.directory / "jobs" / job.name / "rates"
    fields = dict(line.split("=", 1) for line in record.read_text().splitlines()) | {how: str(int(part * 1e15))}
    record.write_text("".join(f"{name}={value}\n" for name, value in fields.items()))


def counted_compressed(case: Case) -> str:
    """What a compressed set will take is judged by the one before. One that takes more goes to the next store: nothing of it is left where
    there was no room, and the job goes on. What no store has room for as it is, is compressed."""
    hosts = SmallHosts(case, HOSTS[:3])
    job = ChosenJob(case, hosts)
    del job.environment["SHADOWIB_COMPRESS"]

    def saved(mem: float, disk: float, central: float, how: str = "") -> dict:
        unit = job.to_save() / USABLE
        for name in hosts.names:
            hosts.leave(hosts.own(name), mem * unit)
            hosts.leave(hosts.disk(name), disk * unit)
        hosts.leave(job.directory, central * unit)
        if how:
            job.environment["SHADOWIB_COMPRESS"] = how
        result = job.try_to_save()
        job.environment.pop("SHADOWIB_COMPRESS", None)
        case.note(f"{mem} {disk} {central} {how}: {result.returncode} {result.stdout}{result.stderr}")
        check(result.returncode == 0, f"{mem} {disk} {central} {how}: {result.returncode} {result.stderr[-1500:]}")
        told = json.loads(result.stdout)
        job.sets.append(told["set"])
        job.await_progress()
        return told

    told = saved(MUCH, MUCH, MUCH, "zstd")
    check(told["store"] == "mem:mirror", f"with much room: {told}")
    part = sum(member["bytes"] for member in told["members"]) / sum(member["page_bytes"] for member in told["members"])
    # By its measured part two more copies have room; as it is, one parity has none.
    told = saved(2 * 1.1 * part * 1.05, 0.1, MUCH, "zstd")
    check(told["store"] == "mem:mirror" and told["members"][0]["compression"] == "zstd", f"with room for {part:.2f}: {told}")
    # A set that is taken for much smaller than it is.
    part_of(job, "zstd", 0.001)
    before = {name: used(hosts.own(name)) for name in hosts.names}
    told = saved(0.2 * part, MUCH, MUCH, "zstd")
    out = [option["store"] for option in told["considered"] if option["lacks"] == "ran out of space"]
    check(told["store"] == "disk:mirror" and out == ["mem:mirror", "mem:xor"], f"{told['store']}: {told['considered']}")
    after = {name: used(hosts.own(name)) for name in hosts.names}
    check(before == after, f"of the sets without room something is left: {before}, then {after}")
    # No room for plain images anywhere, and nobody has said whether to compress.
    part_of(job, "lz4", 0.6)
    told = saved(1.2, 0.1, 0.1)
    check(told["store"] == "mem:xor" and {member["compression"] for member in told["members"]} == {"lz4"}, f"by lz4: {told}")
    job.at("b", "verify", told["set"], "--strict")
    job.kill()
    if not case.line.quick:
        job.restart_shares()
        job.await_progress()
        job.kill()
    return f"zstd makes {100 * part:.0f} % of it; copies by that, disks after memory ran out twice, lz4 where nothing plain had room"


def used(path: pathlib.Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def survives_enough(case: Case) -> str:
    """--survive 2 is no mirror and no xor; on one host alone, central."""
    hosts = SmallHosts(case, HOSTS[:3])
    job = ChosenJob(case, hosts)
    words = [job.shadowib, "checkpoint", job.name, "--dir", str(job.directory), "--json", "--store", "auto", "--survive", "2", "--near", str(hosts.place)]
    result = subprocess.run(hosts.at("a", words), text=True, capture_output=True, timeout=180, env=job.environment, check=False)
    check(result.returncode == 0, result.stderr)
    told = json.loads(result.stdout)
    check(told["store"] == "mem:rs:2", f"{told['store']}: {told['considered']}")
    job.at("b", "verify", told["set"], "--strict")
    job.kill()
    return told["store"]


def run() -> int:
    line = Line("store_choice", __doc__)
    line.case("the branches, by room", branches)
    line.case("compressed sets", counted_compressed)
    line.case("survives as many as asked", survives_enough)
    return line.finish()


if __name__ == "__main__":
    main(run)
