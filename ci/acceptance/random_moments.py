"""A2: Debian's ibv_rc_pingpong, and the checking example, over shm and tcp, with and without events, are checkpointed at
random moments of the data phase, killed and restarted; both ends exit with 0 and no byte is wrong. No image holds a piece
of the job's key."""
import pathlib
import shutil

from common import Case, Line, Skip, check, main
from jobs import Job, free_port
from pair import Pair, campaign


# What --quick takes. Its three checkpoints in a run are a restart of a restart of a restart.
SAMPLE = ("ibv_rc_pingpong shm events", "ibv_rc_pingpong tcp", "ibv_rc_pingpong shm, 1 byte",
          "ibv_rc_pingpong tcp, resume only five times in a row", "verbs_check tcp events", "verbs_check shm events, 1 MiB")


def pingpong(transport: str, events: bool, extra: list[str], seconds: float) -> Pair:
    tool = shutil.which("ibv_rc_pingpong")
    if not tool:
        raise Skip("ibv_rc_pingpong is not installed (package ibverbs-utils)")

    def commands(port, iterations):
        common = [tool, "-c", "-p", str(port), "-n", str(iterations), *(["-e"] if events else []), *extra]
        return common, common + ["localhost"]
    return Pair(commands, transport, seconds=seconds, good=("iters in",))


def verbs_check(line: Line, transport: str, events: bool, extra: list[str], seconds: float) -> Pair:
    tool, depth = line.program("verbs_check"), 16

    def commands(port, iterations):
        common = [tool, "--port", str(port), "--iters", str(iterations), "--depth", str(depth),
                  *(["--events"] if events else []), *extra]
        return common, common + ["127.0.0.1"]
    return Pair(commands, transport, requests=depth + 4, seconds=seconds, good=("server: ", "client: "))


def check_no_key(job: Job, path: str):
    """A word of the key at whichever offset is a piece: half a spilled register is half of what a thief wants."""
    key, word = (job.directory / "jobs" / job.name / "key").read_bytes(), 8
    images = sorted(pathlib.Path(path).glob("*.img"))
    check(len(images) == 2 and len(key) == 32, f"{len(images)} images and a key of {len(key)} bytes")
    for image in images:
        data = image.read_bytes()
        found = {at: data.count(key[at:at + word]) for at in range(len(key) - word + 1)}
        check(not any(found.values()), f"{image} holds words of the job's key; by offset in the key, how often: "
              f"{ {at: count for at, count in found.items() if count} }")


def key_in_images(case: Case, transport: str):
    """Both sides of a handshake, of a fresh job and of a restarted one."""
    tool, port = case.line.program("verbs_check"), free_port()
    job = Job(case, transport=transport)
    command = [tool, "--port", str(port), "--iters", "100000000"]
    job.start_pair(command, command + ["127.0.0.1"], port)
    for generation in range(2):
        job.wait_data_phase()
        check_no_key(job, job.checkpoint())
        if generation == 0:
            job.restart()
    return "no word of the key in any of 4 images"


def run() -> int:
    line = Line("random_moments", __doc__)
    seconds = 1.0 if line.quick else 6.0
    many, some, per_run = (3, 1, 3) if line.quick else (50, 10, 5)

    def case(name: str, pair, wanted: int, at_once: int, kill: bool = True):
        if line.quick and name not in SAMPLE:
            return
        line.case(name, lambda c: campaign(c, pair(), at_once, kill), wanted)

    def cases(program: str, pair, sizes: dict):
        for transport in ("shm", "tcp"):
            for events in (False, True):
                kind = f"{program} {transport}{' events' if events else ''}"
                case(kind, lambda t=transport, e=events: pair(t, e, []), many, per_run)
                for what, options in sizes.items():
                    case(f"{kind}, {what}", lambda t=transport, e=events, o=options: pair(t, e, o), some, per_run)
            case(f"{program} {transport}, resume only five times in a row", lambda t=transport: pair(t, False, []), 5, 5, False)
            case(f"{program} {transport}, restart of a restart of a restart", lambda t=transport: pair(t, False, []), 3, 3)

    for transport in ("shm", "tcp"):
        line.case(f"no key in images, {transport}", lambda c, t=transport: key_in_images(c, t))
    cases("ibv_rc_pingpong", lambda t, e, o: pingpong(t, e, o, seconds),
          {"1 byte": ["-s", "1", "-r", "500"], "1 MiB": ["-s", "1048576"]})
    cases("verbs_check", lambda t, e, o: verbs_check(line, t, e, o, seconds),
          {"16 bytes": ["--size", "16"], "1 MiB": ["--size", "1048576"]})
    return line.finish()


if __name__ == "__main__":
    main(run)
