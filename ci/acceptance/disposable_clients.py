"""MW11: clients as guests of saved servers, rping and ib_send_bw. A checkpoint waits for none of them, also not for a stopped one. After the
restart each server sees that its clients are dead. That of rping serves new ones; one of ib_send_bw serves one client, and ends."""
import json
import os
import re
import shutil
import signal

from common import Case, Line, Skip, check, main
from jobs import Job, Program, free_port, wait_for

ADDRESS = "127.0.0.1"
ENDLESS, MOST_SENDS = "2000000000", "100000000"
PATIENCE = 120  # seconds, for what comes at once on a quiet machine

# The last words of the thread that serves a client of rping. It learns of the peer's death by rdma_cm's event or by a failed request. If
# the request is first, it destroys the connection, and rping may never read that event.
ENDED_SERVICE = re.compile(r"^(?:wait for \w+ state|post send error) \d+$", re.MULTILINE)


def start_guest(job: Job, role: str, words: list[str]) -> Program:
    """A client under `shadowib run --guest`. It is no program of the job's, which ends and restarts without it."""
    argv = [job.shadowib, "run", "--job", job.name, "--guest", "--dir", str(job.directory), "--backend", job.backend, "--", *words]
    return job._spawn(role, argv)  # pylint: disable=protected-access


def ping(port: int, count: str) -> list[str]:
    return ["rping", "-c", "-V", "-a", ADDRESS, "-p", str(port), "-C", count]


def stream_words() -> list[str]:
    return ["ib_send_bw", "-R", "-F", "-N", "-c", "RC", "-p", str(free_port()), "-n", MOST_SENDS]


def guests_of(job: Job) -> int:
    return len(json.loads(job.command("status", job.name, "--json").stdout).get("guests", []))


def ended_services(server: Program) -> int:
    return len(ENDED_SERVICE.findall(server.text()))


def listeners(job: Job) -> int:
    return job.command("status", job.name, "--json", check_code=False).stdout.count('"state": "listening"')


def moving(job: Job, last: dict) -> set[tuple[int, int]]:
    """Reliable queue pairs, by member and number, whose counters have moved since the call before."""
    now = {(m.index, q["qp_num"]): (q["sends_retired"], q["receives_completed"])
           for m in job.members() for q in m.queue_pairs if q["type"] == "RC"}
    found = {key for key, counters in now.items() if key in last and last[key] != counters}
    last.clear()
    last.update(now)
    return found


def all_served(job: Job, clients: list[Program], count: int):
    """Waits until `count` queue pairs of the members have been seen to exchange data."""
    last: dict = {}
    seen: set = set()

    def served():
        ended = [c for c in clients if c.ended()]
        check(not ended, f"ended at once: {[c.text()[-2000:] for c in ended]}")
        seen.update(moving(job, last))
        return len(seen) >= count
    wait_for(f"{count} guests to be served", served, PATIENCE, 0.1)


def ends_with_the_job(job: Job, guest: Program):
    os.kill(guest.process.pid, signal.SIGCONT)
    job._wait(guest, PATIENCE)  # pylint: disable=protected-access
    check("its job was saved and ended" in (job.case.work / "shadowib.log").read_text(), "no guest told why it ended")
    check(guest.process.returncode != 0, f"{guest.role} came to a good end: {guest.text()[-2000:]}")


def clients_of_saved_servers(case: Case, count: int) -> str:
    for tool in ("rping", "ib_send_bw"):
        if shutil.which(tool) is None:
            raise Skip(f"there is no {tool} here")
    job = Job(case)
    port = free_port()
    server = job.start("rping-server", ["rping", "-s", "-P", "-V", "-a", ADDRESS, "-p", str(port)])
    streams = []
    for i in range(count):
        words = stream_words()
        streams.append((job.start(f"send-server-{i}", words), words))
        wait_for("the servers", lambda: job.check_running() or listeners(job) == len(streams) + 1, PATIENCE)  # a free port stays one
    guests: list[Program] = []
    for i in range(count):  # one by one: rping's server takes two requests that come at once for one
        guests.append(start_guest(job, f"rping-{i}", ping(port, ENDLESS)))
        all_served(job, guests, len(guests))
    for i, (_, words) in enumerate(streams):
        guests.append(start_guest(job, f"send-{i}", [*words, ADDRESS]))
    all_served(job, guests, 2 * count)
    check(guests_of(job) == 2 * count, f"status shows {guests_of(job)} guests, not {2 * count}")
    stopped = (guests[0], guests[-1])  # one of each
    for guest in stopped:
        guest.process.send_signal(signal.SIGSTOP)
    job.checkpoint(kill=False)
    check(not any(guest.ended() for guest in guests), "a guest ended by a checkpoint of the servers")
    for guest in stopped:
        guest.process.send_signal(signal.SIGCONT)
    all_served(job, guests, 2 * count)  # they go on, those that were stopped too
    for guest in stopped:
        guest.process.send_signal(signal.SIGSTOP)
    job.checkpoint()
    for guest in guests:
        ends_with_the_job(job, guest)
    before = ended_services(server)
    restart = job.restart()

    def dead_peers():
        check(not restart.ended(), f"the restart ended: {restart.text()[-2000:]}")
        return ended_services(server) - before >= count
    wait_for(f"the restarted server to see {count} dead peers", dead_peers, PATIENCE)
    for stream, _ in streams:
        wait_for("a restarted ib_send_bw to see its peer dead", lambda: re.search("(?i)completion with error|failed status", stream.text()),  # pylint: disable=cell-var-from-loop
                 PATIENCE)
    for i in range(count):
        guest = start_guest(job, f"new-{i}", [*ping(port, "20"), "-v"])
        job._wait(guest, PATIENCE)  # pylint: disable=protected-access
        pings = guest.text().count("ping data")  # not its code: rping may exit with 255 as it closes a channel that its thread reads
        check(pings == 20, f"{guest.role} had {pings} pings of 20 and exited with {guest.process.returncode}: {guest.text()[-2000:]}")
    job.command("checkpoint", job.name, "--kill")
    job._wait(restart, PATIENCE)  # pylint: disable=protected-access
    return f"{count} guests of rping, {count} of ib_send_bw; after the restart {2 * count} dead peers, {count} new guests served"


def run() -> int:
    line = Line("disposable_clients", __doc__)
    count = 2 if line.quick else 8  # of each
    line.case(f"{count} clients", lambda case: clients_of_saved_servers(case, count))
    return line.finish()


if __name__ == "__main__":
    main(run)
