"""A5: damaged sets are refused by verify and restart, with a message and the documented exit code; a checkpoint that cannot
be written fails while the job runs on; a process killed in mid-checkpoint leaves nothing, and the previous set restarts."""
import json
import os
import pathlib
import shutil
import signal
import subprocess

from common import Case, Line, Skip, check, main
from jobs import ABORTED, CORRUPT, IO, NOT_FOUND, Job, finish_big, free_port, wait_for


def member(case: Case, name: str = "job", size: int = 1, **settings) -> Job:
    """A job of one small process that is a member and waits."""
    work = case.work / name
    work.mkdir(exist_ok=True)
    job = Job(case, name, **settings)
    program = job.start("member", [case.line.program("ci_big_process"), str(size)])
    wait_for("the member to be ready", lambda: "ready" in program.text() or program.ended(), 60)
    check(not program.ended(), program.text())
    return job


def pingpong_set(case: Case, name: str, compress: str = "none") -> tuple[Job, str]:
    """A set of two processes that exchange data, which have been killed."""
    job, port = Job(case, name), free_port()
    command = ["ibv_rc_pingpong", "-c", "-p", str(port), "-n", "20000000"]
    job.start_pair(command, command + ["localhost"], port)
    job.wait_data_phase()
    return job, job.checkpoint(environment={"SHADOWIB_COMPRESS": compress})


def listed(job: Job) -> list[str]:
    return [s["path"] for s in json.loads(job.command("list", "--json").stdout)["sets"]]


def corrupt_bytes(case: Case, compress: str):
    line = case.line
    tool = line.program("ci_corrupt")
    _, path = pingpong_set(case, "victim", compress)
    scratch = case.work / "scratch"
    words = [tool, path, "--scratch", str(scratch), "--seed", f"{case.random().getrandbits(32):x}", "--jobs",
             str(os.cpu_count() or 2)]
    if line.quick:
        # Each change of compressed pages is found by decompressing the whole image.
        words += ["--every", "400" if compress == "none" else "8000", "--payload", "60", "--places", "20"]
    case.note(" ".join(words))
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    check(result.returncode == 0, f"{result.stdout}{result.stderr[-2000:]}")
    return result.stdout.strip()


def refused(job: Job, path: str, codes: tuple, command: str) -> int:
    result = job.command(command, path, check_code=False)
    said = result.stderr.strip()
    check(result.returncode in codes, f"{command} of {path} exited with {result.returncode}, expected {codes}: {said}")
    check(said, f"{command} of {path} was refused without a message")
    check("Traceback" not in said and "terminate" not in said, said)
    return result.returncode


def damage(rng, target: pathlib.Path):
    """Changes one byte of a file, or cuts it off."""
    size = target.stat().st_size
    with open(target, "r+b") as file:
        if rng.random() < 0.3:
            file.truncate(rng.randrange(size))
            return f"{target.name} cut off"
        at = rng.randrange(min(size, 65536)) if rng.random() < 0.5 else rng.randrange(size)
        file.seek(at)
        old = file.read(1)[0]
        file.seek(at)
        file.write(bytes([old ^ rng.randrange(1, 256)]))
        return f"{target.name} byte {at}"


def commands_refuse(case: Case, compress: str):
    """verify and restart, as commands; a restart must not have begun: the job's epoch stays."""
    job, path = pingpong_set(case, "victim", compress)
    epoch = job.directory / "jobs" / "victim" / "epoch"
    before = epoch.read_bytes() if epoch.exists() else b""
    copy = job.directory / "sets" / "victim.9000"
    rng = case.random()
    for number in range(6 if case.line.quick else 150):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy)
        files = sorted(copy.iterdir())
        what = damage(rng, rng.choice(files))
        case.note(f"{number}: {what}")
        for command in ("verify", "restart"):
            check(refused(job, str(copy), (CORRUPT,), command) == CORRUPT, what)
    shutil.rmtree(copy)
    check((epoch.read_bytes() if epoch.exists() else b"") == before, "a refused restart changed the job's epoch")
    job.command("verify", path)
    job.restart(path)
    job.wait_data_phase()
    return f"{number + 1} damaged sets refused by both commands, the good one restarts"


def wrong_images(case: Case):
    job, first = pingpong_set(case, "victim")
    _, other = pingpong_set(case, "stranger")
    images = sorted(p.name for p in pathlib.Path(first).iterdir() if not p.name.startswith("manifest"))
    foreign = sorted(p.name for p in pathlib.Path(other).iterdir() if not p.name.startswith("manifest"))
    check(len(images) == 2, f"two images expected: {images}")

    def missing(copy):
        (copy / images[1]).unlink()

    def from_another_set(copy):
        shutil.copy(pathlib.Path(other) / foreign[0], copy / images[0])

    def from_another_rank(copy):
        shutil.copy(pathlib.Path(first) / images[1], copy / images[0])

    def ranks_swapped(copy):
        for to, source in ((images[0], images[1]), (images[1], images[0])):
            shutil.copy(pathlib.Path(first) / source, copy / to)

    def images_empty(copy):
        for name in images:
            (copy / name).write_bytes(b"")

    def empty(copy):
        for file in copy.iterdir():
            file.unlink()

    def no_manifest(copy):
        (copy / "manifest.json").unlink()

    def no_sum(copy):
        (copy / "manifest.xxh3").unlink()

    def one_more(copy):
        shutil.copy(pathlib.Path(first) / images[0], copy / "another")

    changes = (missing, from_another_set, from_another_rank, ranks_swapped, images_empty, empty, no_manifest, no_sum, one_more)
    for change in changes:
        copy = job.directory / "sets" / "victim.9001"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(first, copy)
        change(copy)
        for command in ("verify", "restart"):
            case.note(f"{change.__name__}: {command}: {refused(job, str(copy), (CORRUPT, NOT_FOUND), command)}")
        shutil.rmtree(copy)
    return ", ".join(c.__name__.replace("_", " ") for c in changes) + " refused"


def still_good(job: Job, previous: str):
    """The job runs on, only the previous set is listed, a new checkpoint works, and the previous set restarts."""
    check(listed(job) == [previous], f"listed: {listed(job)}, expected only {previous}")
    job.check_running()


def full_disk(case: Case):
    if os.geteuid() != 0:
        raise Skip("mounting a small tmpfs needs root; the fault point is tested by \"writes fail\"")
    small = case.work / "ckpt"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(small)], capture_output=True,
                      check=False).returncode:
        raise Skip("a tmpfs cannot be mounted here")
    case.cleanups.insert(0, lambda _: subprocess.run(["umount", "-l", str(small)], check=False))
    job = member(case, size=16)
    free = os.statvfs(small).f_bavail * os.statvfs(small).f_frsize
    with open(small / "filler", "wb") as filler:
        filler.write(bytes(max(0, free - (6 << 20))))
    result = job.command("checkpoint", job.name, "--kill", check_code=False)
    check(result.returncode == IO, f"exit code {result.returncode} instead of {IO}: {result.stderr}")
    check("space" in result.stderr.lower(), f"the message does not name the cause: {result.stderr}")
    check(not listed(job), f"listed: {listed(job)}")
    hidden = [p.name for p in (small / "sets").glob(".*")]
    check(not hidden, f"left behind: {hidden}")
    job.check_running()
    (small / "filler").unlink()
    job.remove_old_sets()
    finish_big(job)
    return result.stderr.strip()


def writes_fail(case: Case):
    """SHADOWIB_FAULT makes the member's own writes fail, wherever the directory is."""
    job = member(case, environment={"SHADOWIB_FAULT": "70:enospc"})
    result = job.command("checkpoint", job.name, check_code=False, environment={"SHADOWIB_FAULT": ""})
    check(result.returncode == IO, f"exit code {result.returncode} instead of {IO}: {result.stderr}")
    check(not listed(job), f"listed: {listed(job)}")
    finish_big(job)
    return result.stderr.strip()


def unwritable(case: Case):
    job = member(case)
    previous = job.checkpoint(kill=False)
    sets = pathlib.Path(previous).parent
    # Root writes into any directory but one that is read-only or full; immutable stands for that.
    sets.chmod(0o500)
    frozen = os.geteuid() == 0 and subprocess.run(["chattr", "+i", str(sets)], capture_output=True, check=False).returncode == 0
    if os.geteuid() == 0 and not frozen:
        raise Skip("root can write into any directory, and chattr +i does not work here")
    try:
        result = job.command("checkpoint", job.name, "--kill", check_code=False)
        check(result.returncode == IO, f"exit code {result.returncode} instead of {IO}: {result.stderr}")
        check(str(sets) in result.stderr, f"the message does not name the directory: {result.stderr}")
        still_good(job, previous)
    finally:
        if frozen:
            subprocess.run(["chattr", "-i", str(sets)], check=False)
        sets.chmod(0o700)
    job.checkpoint()
    job.restart(previous)
    wait_for("the restarted member", lambda: len(job.members()) == 1, 30)
    finish_big(job)
    return result.stderr.strip()


def killed_member(case: Case, point: int):
    """A member of two dies in the middle of the second checkpoint: nothing of it stays, the first restarts."""
    job = Job(case)
    port = free_port()
    command = ["ibv_rc_pingpong", "-c", "-p", str(port), "-n", "20000000"]
    job.environment["SHADOWIB_FAULT"] = f"{point}:crash:1:2"
    job.start_pair(command, command + ["localhost"], port)
    del job.environment["SHADOWIB_FAULT"]
    job.wait_data_phase()
    previous = job.checkpoint(kill=False)
    result = job.command("checkpoint", job.name, check_code=False)
    check(result.returncode == ABORTED, f"exit code {result.returncode} instead of {ABORTED}: {result.stderr}")
    check(listed(job) == [previous], f"listed: {listed(job)}")
    hidden = [p.name for p in (job.directory / "sets").glob(".*")]
    check(not hidden, f"left behind: {hidden}")
    job.stop()
    job.restart(previous)
    job.wait_data_phase()
    return result.stderr.strip()


def crash_at(case: Case, point: int):
    """A member kills itself at a fault point of its first checkpoint; another job's set stays good."""
    job = Job(case)
    port = free_port()
    command = ["ibv_rc_pingpong", "-c", "-p", str(port), "-n", "20000000"]
    job.environment["SHADOWIB_FAULT"] = f"{point}:crash:1"
    job.start_pair(command, command + ["localhost"], port)
    del job.environment["SHADOWIB_FAULT"]
    job.wait_data_phase()
    result = job.command("checkpoint", job.name, "--timeout", "20", check_code=False)
    check(result.returncode == ABORTED, f"exit code {result.returncode} instead of {ABORTED}: {result.stderr}")
    check(not listed(job), f"listed: {listed(job)}")
    hidden = [p.name for p in (job.directory / "sets").glob(".*")]
    check(not hidden, f"left behind: {hidden}")
    return result.stderr.strip()


AFTER_COMMIT = 230  # the command's last fault point: the set is there, the members have not heard


def crash_of_command(case: Case, point: int):
    """The command dies at a fault point: the job runs on, nothing half-made is listed, the next checkpoint works."""
    job = member(case)
    previous = job.checkpoint(kill=False)
    result = job.command("checkpoint", job.name, check_code=False, environment={"SHADOWIB_FAULT": f"{point}:crash"})
    check(result.returncode == -signal.SIGKILL, f"exit code {result.returncode}: {result.stderr}")
    job.check_running()
    sets = listed(job)
    check(sets[:1] == [previous] and len(sets) == (2 if point == AFTER_COMMIT else 1), f"listed: {sets}")
    job.checkpoint()
    shutil.rmtree(job.sets[-1])
    job.restart(sets[-1])
    finish_big(job)
    return f"the job ran on, {pathlib.Path(sets[-1]).name} restarts"


def run() -> int:
    line = Line("damaged_sets", __doc__)
    line.case("every byte and truncation refused", lambda case: corrupt_bytes(case, "none"))
    line.case("every byte and truncation refused, compressed", lambda case: corrupt_bytes(case, "lz4"))
    line.case("refused by the commands", lambda case: commands_refuse(case, "none"))
    line.case("refused by the commands, compressed", lambda case: commands_refuse(case, "zstd"))
    line.case("wrong images", wrong_images)
    line.case("full disk", full_disk)
    line.case("writes fail", writes_fail)
    line.case("unwritable directory", unwritable)
    line.case("member killed in mid-checkpoint", lambda case: killed_member(case, 70))
    for point in (70,) if line.quick else (10, 20, 30, 40, 50, 60, 70):
        line.case(f"member dies at fault point {point}", lambda case, p=point: crash_at(case, p))
    for point in (200, AFTER_COMMIT) if line.quick else (200, 210, 220, AFTER_COMMIT):
        line.case(f"command dies at fault point {point}", lambda case, p=point: crash_of_command(case, p))
    return line.finish()


if __name__ == "__main__":
    main(run)
