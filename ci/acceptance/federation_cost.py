"""FED7: what a federation costs where nothing crosses a border. A message inside a cluster needs at most 1 % more instructions than one of a job without
clusters, from post_send to the completion that the peer polls. Instructions are counted, so it does not matter what else the machine does."""
import json
import shutil
import subprocess

from common import ROOT, Case, Line, Skip, check, main

MOST_MORE = 0.01
MESSAGES = {"64 bytes": ["--bytes", "64"], "64 bytes inline": ["--bytes", "64", "--inline"], "4096 bytes": ["--bytes", "4096"]}


def instructions(case: Case, words: list[str]) -> float:
    done = subprocess.run(["python3", "-B", str(ROOT / "perftest" / "path"), "--build", str(case.line.build), "--json", *words],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"perftest/path {' '.join(words)}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    return json.loads(done.stdout)["post_to_completion"]


def inside(case: Case) -> str:
    if not shutil.which("valgrind"):
        raise Skip("valgrind is not installed: instructions are counted by its callgrind")
    words = MESSAGES[case.name.removeprefix("inside a cluster, ")]
    without, within = instructions(case, words), instructions(case, [*words, "--cluster"])
    case.figures = {"without": without, "within": within}
    check(within <= without * (1 + MOST_MORE), f"{within:.0f} instructions inside of a cluster, {without:.0f} without clusters")
    return f"{within:.0f} instructions inside of a cluster, {without:.0f} without clusters"


def run() -> int:
    line = Line("federation_cost", __doc__)
    for name in list(MESSAGES)[:1 if line.quick else None]:
        line.case(f"inside a cluster, {name}", inside)
    return line.finish()


if __name__ == "__main__":
    main(run)
