"""In each of two guests: what the directory of both has to do for a job whose members are on several nodes."""
import errno
import fcntl
import itertools
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import time

NODE = int(os.environ["SHADOWIB_VM_NODE"])
TOP = pathlib.Path(os.environ["SHADOWIB_VM_SHARED"])
PATIENCE_S = 60
ROUNDS = 9


def lock(path: pathlib.Path, kind: int) -> int | None:
    """An open file description with that lock on the whole file, or None if another has one against it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0))
        return fd
    except OSError as error:
        os.close(fd)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return None


def wait_for(what: str, come):
    deadline = time.monotonic() + PATIENCE_S
    while not (result := come()):
        assert time.monotonic() < deadline, f"node {NODE}: {what} has not come within {PATIENCE_S} s"
        time.sleep(0.01)
    return result


def fresh(look):
    """A file that has been replaced between the kernel's two looks is looked for again, as shadowib does."""
    while True:
        try:
            return look()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise


def meet(name: str):
    """Until both nodes are there."""
    (TOP / f"{name}.{NODE}").touch()
    wait_for(f"the other at {name}", (TOP / f"{name}.{1 - NODE}").exists)


def locks_exclude(holder: int):
    path = TOP / f"lock{holder}"
    for kind, others in ((fcntl.F_WRLCK, ()), (fcntl.F_RDLCK, (fcntl.F_RDLCK,))):
        if NODE == holder:
            fd = lock(path, kind)
            assert fd is not None, "nobody else has locked it yet"
        meet(f"held-{holder}-{kind}")
        if NODE != holder:
            for mine in (fcntl.F_RDLCK, fcntl.F_WRLCK):
                got = lock(path, mine)
                assert (got is not None) == (mine in others), f"node {holder} has lock {kind}: {mine} was {'' if got else 'not '}had"
                if got is not None:
                    os.close(got)
        meet(f"tried-{holder}-{kind}")
        if NODE == holder:
            os.close(fd)
        meet(f"freed-{holder}-{kind}")
        if NODE != holder:
            os.close(lock(path, fcntl.F_WRLCK))
        meet(f"over-{holder}-{kind}")


def a_killed_holder_frees(holder: int):
    path, held = TOP / f"killed{holder}", f"killed-held-{holder}"
    if NODE == holder:
        child = subprocess.Popen([sys.executable, __file__, "hold", path], stdout=subprocess.PIPE)
        assert child.stdout.read(4) == b"held"
    meet(held)
    if NODE != holder:
        assert lock(path, fcntl.F_WRLCK) is None
        (TOP / f"kill{holder}").touch()
        os.close(wait_for("the lock of a killed program", lambda: lock(path, fcntl.F_WRLCK)))
    else:
        wait_for("the word to kill", (TOP / f"kill{holder}").exists)
        child.kill()
        child.wait()


def one_of_both_wins(how: str, attempt):
    """`attempt(n)` of both at once: True of one only, each time."""
    won = 0
    for n in range(ROUNDS):
        meet(f"{how}-{n}")
        won += attempt(n)
    (TOP / f"{how}-won.{NODE}.tmp").write_text(str(won))
    os.rename(TOP / f"{how}-won.{NODE}.tmp", TOP / f"{how}-won.{NODE}")
    other = wait_for("the other's count", lambda: (TOP / f"{how}-won.{1 - NODE}").exists() and (TOP / f"{how}-won.{1 - NODE}").read_text())
    assert won + int(other) == ROUNDS, f"{how}: {won} and {other} of {ROUNDS}"


def created(n: int) -> bool:
    try:
        os.close(os.open(TOP / f"excl{n}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        return True
    except FileExistsError:
        return False


def linked(n: int) -> bool:
    own = TOP / f"own{NODE}.{n}"
    own.write_text(str(NODE))
    try:
        os.link(own, TOP / f"link{n}")
        return True
    except FileExistsError:
        return False


def renames_are_whole():
    """A reader finds one whole value or another, never none and never half of one."""
    path, enough = TOP / "value", TOP / "value.enough"
    if NODE == 0:
        for n in itertools.count():
            (TOP / "value.tmp").write_text(str(n % 10) * 10000)
            os.rename(TOP / "value.tmp", path)
            if enough.exists():
                return
    wait_for("a value", lambda: fresh(path.exists))
    seen = set()
    while len(seen) < ROUNDS:
        text = fresh(path.read_text)
        assert len(text) == 10000 and len(set(text)) == 1, f"{len(text)} bytes, {set(text)}"
        seen.add(text)
    enough.touch()


def news_is_fast():
    """By name, which was asked for in vain before, and in a listing."""
    times = []
    for n in range(ROUNDS):
        ask, answer = (f"ping{n}", f"pong{n}")
        if NODE == 0:
            assert not (TOP / answer).exists()
            began = time.monotonic()
            (TOP / ask).touch()
            wait_for(answer, (TOP / answer).exists)
            times.append(time.monotonic() - began)
        else:
            wait_for(ask, lambda: ask in os.listdir(TOP))
            (TOP / answer).touch()
    if NODE == 0:
        print(f"there and back in {statistics.median(times):.3f} s, {max(times):.3f} at most")
        assert statistics.median(times) < 1, times


if __name__ == "__main__":
    if sys.argv[1:2] == ["hold"]:
        kept = lock(pathlib.Path(sys.argv[2]), fcntl.F_WRLCK)
        print("held", end="", flush=True)
        time.sleep(PATIENCE_S)
    else:
        assert "SHADOWIB_VM_SHARED" in os.environ and list(TOP.iterdir()) in ([], [TOP / "locks.1"], [TOP / "locks.0"])
        meet("locks")
        for node in (0, 1):
            locks_exclude(node)
            a_killed_holder_frees(node)
        one_of_both_wins("create", created)
        one_of_both_wins("link", linked)
        renames_are_whole()
        news_is_fast()
        print("shared")
