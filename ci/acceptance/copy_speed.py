"""S3: copies, parities and lost images are made as fast as the network between hosts lets them. Five pretended hosts have a member
each, of as much memory. What a store adds to a checkpoint is compared with bare TCP streams of as many bytes between the same hosts, all
at once; a restart of what a peer has, or what is decoded, with one of images of one's own. Times are ratios within a run; run it alone."""
import pathlib
import statistics
import subprocess
import sys
import time

from common import Case, Line, check, main
from jobs import Job, wait_for
from lost_hosts import HOSTS, SPARE, Hosts, NearJob

OF_THE_NETWORK = 0.6  # at least; of rs:2 half of it, since it sends twice as much
ENCODING, FROM_A_PEER, DECODED = 0.8, 1.5, 2.5
ROUNDS = 5
PORT = 7100
# receiver PORT BYTES | sender ADDRESS PORT FILE: prints when it began and when it ended, on the clock that all hosts of here share.
STREAM = """
import socket, sys, time
if sys.argv[1] == "receiver":
    listener = socket.create_server(("", int(sys.argv[2])))
    print("listens", flush=True)
    connection, left, buffer = listener.accept()[0], int(sys.argv[3]), bytearray(1 << 20)
    while left > 0:
        left -= connection.recv_into(buffer) or sys.exit("it ended early")
else:
    connection = socket.create_connection((sys.argv[2], int(sys.argv[3])))
    sys.stdin.readline()
    print(time.monotonic(), flush=True)
    connection.sendfile(open(sys.argv[4], "rb"))
    connection.shutdown(socket.SHUT_WR)
print(time.monotonic(), flush=True)
"""


def streams(hosts: Hosts, images: dict[str, pathlib.Path]) -> float:
    """Seconds until each host has sent its image to the next one, all at once."""
    names = sorted(images)

    def start(name: str, *words: str):
        return subprocess.Popen(hosts.at(name, [sys.executable, "-c", STREAM, *words]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    receivers, senders = [], []
    for number, name in enumerate(names):
        receivers.append(start(names[(number + 1) % len(names)], "receiver", str(PORT + number), str(images[name].stat().st_size)))
        check(receivers[-1].stdout.readline() == "listens\n", "a receiver does not listen")
    for number, name in enumerate(names):
        senders.append(start(name, "sender", f"10.77.4.{(number + 1) % len(names) + 1}", str(PORT + number), str(images[name])))
    for sender in senders:
        sender.stdin.write("go\n")
        sender.stdin.flush()
    began = min(float(sender.stdout.readline()) for sender in senders)
    ended = max(float(receiver.stdout.readline()) for receiver in receivers)
    for program in receivers + senders:
        program.communicate()
        check(program.returncode == 0, "a bare stream failed")
    return ended - began


class BigJob(NearJob):
    """A process on each host that is no spare, with as much memory."""

    def __init__(self, case: Case, hosts: Hosts, store: str, mebibytes: int):
        Job.__init__(self, case, "big-" + store.replace(":", "-"), environment={"SHADOWIB_COMPRESS": "none"})
        self.hosts, self.store = hosts, store
        names = [name for name in hosts.names if name not in SPARE]
        for name in names:
            near = [] if store == "central" else ["--near", str(hosts.place)]
            words = [self.shadowib, "run", "--job", self.name, "--dir", str(self.directory), "--backend", "ib2tcp", "--store", store, *near, "--",
                     case.line.program("ci_big_process"), str(mebibytes)]
            self.programs.append(self._spawn(f"big-{name}", hosts.at(name, words)))
        self.count = len(names)
        wait_for("all to be ready", lambda: all("ready" in program.text() or program.ended() for program in self.programs), 300)
        self.await_progress()
        self.where = {member.index: self.host_of(member.pid) for member in self.members()}

    def await_progress(self):
        """All are there, and answer."""
        wait_for("all members", lambda: self.check_running() or sum(m.answered for m in self.members()) == self.count, 300, 0.01)

    def saved_s(self) -> float:
        self.make_room()
        began = time.monotonic()
        self.save()
        return time.monotonic() - began

    def restarted_s(self) -> float:
        began = time.monotonic()
        self.restart_shares()
        self.await_progress()
        return time.monotonic() - began

    def make_room(self):
        """Memory holds one set with its copies, beside the members. What was lost with a host is no set any more."""
        self.at(next(iter(self.where.values())), "gc", "--keep", "0")
        self.sets = []

    def images(self) -> dict[str, pathlib.Path]:
        found = {name: next(self.hosts.own(name).glob(f"shadowib-*/*/*/member-{member}.img")) for member, name in self.where.items()}
        check(len(found) == self.count, f"images are on {sorted(found)}")
        return found


def size_of(case: Case) -> int:
    return 64 if case.line.quick else 512


def copying(case: Case, store: str) -> str:
    hosts = Hosts(case, "mem", HOSTS + SPARE)
    single, job = BigJob(case, hosts, "mem:single", size_of(case)), None
    alone = []
    for _ in range(2 if case.line.quick else ROUNDS):
        alone.append(single.saved_s())
    single.lose(hosts.names)  # their memory has no room for both jobs' images
    job = BigJob(case, hosts, store, size_of(case))
    with_copies, bare = [], []
    for number in range(len(alone)):
        with_copies.append(job.saved_s())
        bare.append(streams(hosts, job.images()))
        case.progress(number + 1)
    added, stream = statistics.median(with_copies) - statistics.median(alone), statistics.median(bare)
    share = stream / max(added, 0.001) * (2 if store == "mem:rs:2" else 1)  # of nothing measurable: all of it
    text = (f"{size_of(case)} MiB a host: {added:.2f} s more than the {statistics.median(alone):.2f} s of mem:single; bare streams take "
            f"{stream:.2f} s: {share:.2f} of the network's speed, wanted {OF_THE_NETWORK}")
    check(case.line.quick or share >= OF_THE_NETWORK, text)
    return text


def encoding(case: Case) -> str:
    said = []
    for k, m in ((4, 1), (3, 2)):
        words = [case.line.program("parity_speed"), str(k), str(m), "8" if case.line.quick else "64", "5" if case.line.quick else "31"]
        ours, bare, ratio = map(float, subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
        said.append(f"{k}+{m}: {ours:.0f} MiB/s, ISA-L alone {bare:.0f}: {ratio:.2f}")
        check(case.line.quick or ratio >= ENCODING, "; ".join(said))
    return "; ".join(said) + f"; wanted {ENCODING}"


def coming_back(case: Case, store: str, most: float) -> str:
    hosts = Hosts(case, "mem", HOSTS + SPARE)
    job, own, other, spare = BigJob(case, hosts, store, size_of(case)), [], [], SPARE
    for lost in HOSTS[:1] if case.line.quick else HOSTS:
        job.make_room()
        job.save()
        job.kill()
        own.append(job.restarted_s())
        job.lose(lost)
        job.move(lost, spare)
        spare = lost
        other.append(job.restarted_s())
    ratio = statistics.median(other) / statistics.median(own)
    text = (f"{size_of(case)} MiB a host: {statistics.median(other):.2f} s with a host lost, {statistics.median(own):.2f} s with own images: "
            f"{ratio:.2f} times, allowed {most}")
    check(case.line.quick or ratio <= most, text)
    (case.work / "finish").touch()
    job.finish(240)
    return text


def run() -> int:
    line = Line("copy_speed", __doc__)
    for store in ("mem:mirror", "mem:xor", "mem:rs:2"):
        line.case(f"{store.replace(':', ' ')}, copying", lambda case, store=store: copying(case, store))
    line.case("encoding", encoding)
    line.case("restart from a peer", lambda case: coming_back(case, "mem:mirror", FROM_A_PEER))
    line.case("restart of what is decoded", lambda case: coming_back(case, "mem:xor", DECODED))
    return line.finish()


if __name__ == "__main__":
    main(run)
