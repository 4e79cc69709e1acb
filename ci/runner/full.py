"""ci/test --full: every acceptance line is a program of its own, ci/acceptance/LINE.py; this runs them one after the other."""
import pathlib
import re

from results import Result
from steps import LOGS, ROOT, Steps

LINES = [f"a{n}" for n in range(1, 10)] + ["b1", "b2", "b4", "b5", "c1", "c2", "c3", "c3_hosts", "c3_machines", "c5", "containers", "d3", "d3_vm", "d4", "d6", "e1", "e2", "e3", "e5", "e6", "newcomer", "packages"]
STATE = ROOT / "build" / "acceptance" / "state.json"
TIMEOUT_S = 4 * 3600  # of one line


def run(steps: Steps, wanted: list[str], restart: bool, seed: str | None) -> list[Result]:
    names = [name.lower() for name in wanted] or LINES
    for name in names:
        if name not in LINES:
            raise SystemExit(f"ci/test: no acceptance line {name}; there are {', '.join(LINES).upper()}")
    if not steps.configure_and_build("release"):
        return [Result("release", "build", "failed", "see build/logs")]
    results = []
    for name in names:
        argv = ["python3", f"ci/acceptance/{name}.py", "--state", str(STATE)]
        argv += ["--restart"] if restart else []
        argv += ["--seed", seed] if seed else []
        log = LOGS / f"acceptance-{name}.log"
        code = steps.run(f"acceptance {name.upper()}", argv + ["--log", str(log)], TIMEOUT_S, live=True)
        results += read_log(name, log, code)
    return results


CASE = re.compile(r"^(passed|FAILED|SKIPPED) +([^:]+):? ?(.*)$")


def read_log(name: str, log: pathlib.Path, code: int) -> list[Result]:
    results = []
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        if match := CASE.match(line):
            results.append(Result(name, match[2].strip(), match[1].lower(), match[3]))
    if code not in (0, 77) and not any(r.outcome == "failed" for r in results):
        results.append(Result(name, "the line as a whole", "failed", f"exit code {code}"))
    return results


