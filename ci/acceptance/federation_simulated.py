"""FED10: the simulator of federations has the paper's figures: as many checkpoints with 103 messages (figure 8), as many forced ones
whatever the timer (figure 5), no more of one cluster because the other one takes more (figure 7). Ten hours take 50 million
instructions at most, a twentieth of a second. Traces with failures are judged good, and a changed one is refused."""
import json
import random
import re
import shutil
import subprocess

from common import ROOT, Case, Line, Skip, check, main

PAPER = ROOT / "perftest" / "fedsim" / "paper"
MOST_INSTRUCTIONS = 50_000_000


def figures(case: Case, part: str) -> dict:
    runs = 10 if case.line.quick else 40
    done = subprocess.run(["python3", "-B", str(ROOT / "perftest" / "federation"), "--build", str(case.line.build), "--out", str(case.work),
                           "--runs", str(runs), "--only", part], capture_output=True, text=True, check=False)
    check(done.returncode == 0, done.stdout + done.stderr)
    return json.loads((case.work / "federation.json").read_text())[part]


def clcs(result: dict, cluster: int) -> float:
    return result["forced"][cluster]["mean"] + result["unforced"][cluster]["mean"]


def figure_8(case: Case) -> str:
    results = figures(case, "figure 8")
    most = [clcs(results["103"], cluster) for cluster in (0, 1)]
    check(all(57 <= count <= 69 for count in most), f"at 103 messages the clusters take {most} CLCs; the paper has 63")
    for cluster in (0, 1):
        forced = [result["forced"][cluster]["mean"] for result in results.values()]
        check(forced == sorted(forced), f"more messages do not force more CLCs of cluster {cluster}: {forced}")
    return f"{most[0]:.1f} and {most[1]:.1f} CLCs at 103 messages; the paper has 63"


def figure_5(case: Case) -> str:
    forced = [result["forced"][0]["mean"] for result in figures(case, "figures 5 and 6").values()]
    check(len(forced) == 7 and max(forced) - min(forced) <= 1, f"forced CLCs depend on the timer: {forced}")
    return f"{min(forced):.1f} to {max(forced):.1f} forced CLCs of cluster 0; the paper has 8"


def figure_7(case: Case) -> str:
    results = figures(case, "figure 7")
    counts = [clcs(result, 0) for result in results.values()]
    check(len(counts) == 6 and max(counts) - min(counts) <= 1, f"cluster 0 takes more because cluster 1 does: {counts}")
    check(clcs(results["15"], 1) > clcs(results["60"], 1) + 10, "the timer of cluster 1 changes nothing")
    return f"{min(counts):.1f} to {max(counts):.1f} CLCs of cluster 0"


def words(case: Case, application: str = "application") -> list[str]:
    return [case.line.program("fedsim"), "--topology", str(PAPER / "topology.json"), "--application", str(PAPER / f"{application}.json"),
            "--timers", str(PAPER / "timers.json")]


def ten_hours(case: Case) -> str:
    if not shutil.which("valgrind"):
        raise Skip("valgrind is not installed: instructions are counted by its callgrind")
    done = subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={case.work / 'callgrind.out'}", *words(case)],
                          capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    check(done.returncode == 0 and found, done.stderr[-2000:])
    messages = json.loads(done.stdout)["messages"]
    check(messages == [[2920, 145], [11, 2497]], f"not all messages were simulated: {messages}")
    check(int(found[1]) <= MOST_INSTRUCTIONS, f"{found[1]} instructions")
    return f"{int(found[1]) / 1e6:.1f} million instructions"


def traces(case: Case, policy: str) -> str:
    dice = random.Random(f"{case.line.seed} {policy}")
    judged = recoveries = refused = with_forced = 0
    for number in range(4 if case.line.quick else 40):
        trace, seed = case.work / f"trace-{number}.jsonl", dice.getrandbits(32)
        made = subprocess.run([*words(case, "application_random"), "--policy", policy, "--seed", str(seed), "--failures", "6", "--trace", "3",
                               "--trace-file", str(trace)], capture_output=True, text=True, check=False)
        check(made.returncode == 0, f"seed {seed}: {made.stderr}")
        report = json.loads(made.stdout)
        good = subprocess.run([case.line.program("fedsim"), "--check", str(trace)], capture_output=True, text=True, check=False)
        check(good.returncode == 0, f"seed {seed}: {good.stdout[-2000:]}")
        said = f"{report['delivered']} delivered, {sum(report['forced'])} forced CLCs, {report['recoveries']} recoveries, 0 wrong"
        # A recovery drops forced CLCs from no count: both count what was committed.
        check(said in good.stdout, f"seed {seed}: the judge says {good.stdout.strip()}, and the simulator {said}")
        judged, recoveries = judged + 1, recoveries + report["recoveries"]
        lines = trace.read_text().splitlines()
        posts = [i for i, line in enumerate(lines) if '"event":"post"' in line]
        deliveries = [i for i, line in enumerate(lines) if '"event":"deliver"' in line]
        commits = [i for i, line in enumerate(lines) if '"event":"commit"' in line and '"forced":true' in line]
        check(posts and deliveries, f"seed {seed}: nothing happened")
        twice, lost = dice.choice(deliveries), dice.choice(posts)
        changes = {"twice": lines[:twice + 1] + lines[twice:],
                   "posted by another job": [*lines[:lost], lines[lost].replace('"job":"fedsim"', '"job":"other"'), *lines[lost + 1:]]}
        if commits:  # `index` may force none: the CLCs of timers bring the numbers on
            late = dice.choice(commits)
            changes["not called forced"] = [*lines[:late], lines[late].replace('"forced":true', '"forced":false'), *lines[late + 1:]]
            changes["forced in vain"] = lines[:late + 1] + lines[late:]
            with_forced += 1
        for name, changed in changes.items():
            trace.write_text("\n".join(changed) + "\n")
            bad = subprocess.run([case.line.program("fedsim"), "--check", str(trace)], capture_output=True, text=True, check=False)
            check(bad.returncode == 5, f"seed {seed}: a trace with a message or CLC {name} is judged good: {bad.stdout}")
            refused += 1
    check(with_forced > 0, "no trace has a forced CLC")
    return f"{judged} traces with {recoveries} recoveries are good, {refused} changed ones are not"


def run() -> int:
    line = Line("federation_simulated", __doc__)
    line.case("figure 8", figure_8)
    line.case("figure 5", figure_5)
    line.case("figure 7", figure_7)
    line.case("ten hours", ten_hours)
    for policy in ("paper", "vector", "index"):
        line.case(f"traces, {policy}", lambda case, policy=policy: traces(case, policy))
    return line.finish()


if __name__ == "__main__":
    main(run)
