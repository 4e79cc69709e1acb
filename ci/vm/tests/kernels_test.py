"""An image made under one kernel goes on under a newer one, whose vdso and clocks are others; and on this machine it is refused
for its processor, if that is another, before anything is touched. `kernels_test.py BUILD`."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

RUN = pathlib.Path(__file__).resolve().parents[1] / "run"
BUILD = pathlib.Path(sys.argv[1]).resolve()
SKIPPED = 77
ITERATIONS = 40_000
MAKE = """
set -e
run() { "$BIN/shadowib" run --dir /tmp/job --backend ib2tcp --job j -- "$BIN/verbs_check" --port 18516 --iters $ITERATIONS --depth 8 "$@"; }
run >"$AREA/server" 2>&1 &
for ((i = 0; i < 300; i++)); do grep -q listening "$AREA/server" && break; sleep 0.1; done
run 127.0.0.1 >"$AREA/client" 2>&1 &
for ((i = 0; i < 300; i++)); do
  "$BIN/shadowib" status --dir /tmp/job --json j | grep -q '"sends_retired": *[1-9][0-9]' && break
  sleep 0.1
done
"$BIN/shadowib" checkpoint --dir /tmp/job --kill j
cp -r /tmp/job "$AREA/"
"""
GO_ON = """
cp -r "$AREA/job" /tmp/
exec "$BIN/shadowib" restart --dir /tmp/job --backend ib2tcp j.0001
"""


def other_kernel() -> str | None:
    """The newest package of the backported series, if apt knows one."""
    said = subprocess.run(["apt-cache", "depends", "linux-image-6.12-amd64"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"Depends: (linux-image-\d\S+-amd64)$", said, re.M)
    return match[1] if match else None


def guest(area: pathlib.Path, script: str, *options: str) -> str:
    argv = [RUN, "--timeout", "300", "--log", area / "vm.log", "--share", area, *options, "--",
            "env", f"AREA={area}", f"BIN={BUILD}/bin", f"ITERATIONS={ITERATIONS}", "bash", "-c", script]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=400, check=False)
    if done.returncode == SKIPPED:
        print((done.stdout + done.stderr).strip())  # "SKIPPED: ..."
        sys.exit(SKIPPED)
    if done.returncode != 0:
        sys.exit(f"FAILED: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def here(area: pathlib.Path) -> str:
    """The same image on this machine, whose processor is hardly the emulated one. What came of it."""
    job = area / "here"
    shutil.copytree(area / "job", job)
    ours = [job / "jobs" / "j" / name for name in ("epoch", "key")]
    before = [path.read_bytes() for path in ours]
    argv = [BUILD / "bin" / "shadowib", "restart", "--dir", job, "--backend", "ib2tcp", "j.0001"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=400, check=False)
    if done.returncode == 0:
        return "runs on this machine as well"
    if done.returncode != 4 or "processor: " not in done.stderr or [path.read_bytes() for path in ours] != before:
        sys.exit(f"FAILED: on this machine exit code {done.returncode}, which is neither 0 nor a refusal of the processor that touches "
                 f"nothing:\n{done.stdout}{done.stderr}")
    return "refused by name on this machine"


def main():
    kernel = other_kernel()
    if kernel is None:
        print("SKIPPED: apt knows no package linux-image-6.12-amd64: run `apt-get update`")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory(prefix="shadowib-kernels-") as top:
        area = pathlib.Path(top)
        guest(area, MAKE)
        on_host = here(area)
        print(guest(area, GO_ON, "--kernel", kernel))
        for end in ("server", "client"):
            said = (area / end).read_text()
            if f"{end}: {ITERATIONS} iterations" not in said:
                sys.exit(f"FAILED: the {end} does not say that all was right:\n{said}")
    print(f"passed: from the newest kernel of the distribution to {kernel}; {on_host}")


main()
