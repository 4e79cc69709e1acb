"""ci/test --full: every acceptance line is a program of its own in ci/acceptance/; this runs them one after the other."""
import pathlib
import re

from ctest import SCRIPT_SKIP
from results import Result
from steps import LOGS, ROOT, Steps

# What --full calls a line, and its program in ci/acceptance/ with what it is given.
LINES = {
    "A1": "newcomer --test", "A2": "random_moments", "A3": "perftest", "A4": "found_by_name", "A5": "damaged_sets",
    "A6": "refusals", "A7": "sanitizers", "A8": "memory_limit", "A9": "figures",
    "B1": "rdma_core", "B2": "other_clients", "B4": "fuzzing", "B5": "hot_path", "BSP": "bsp_library", "BSP_COST": "bsp_cost",
    "C1": "clients_vm", "C2": "rdma_core_vm", "C3": "adapters_vm", "C3_HOSTS": "hosts_vm", "C3_MACHINES": "machines_vm", "C3_RESTARTS": "restarts_vm",
    "C5": "cost_vm", "CONTAINERS": "containers",
    "D3": "storm", "D3_VM": "storm_vm", "D4": "fault_points", "D6": "blocked_calls",
    "E1": "mpi_jobs", "E2": "mpi_vm", "E3": "mpi_hosts", "E5": "mpi_cost", "E6": "sudden_death", "KEPT_ALIVE": "kept_alive",
    "FED1": "federation_undisturbed", "FED2": "federation_traced", "FED9": "federation_three",
    "FED7": "federation_cost", "FED10": "federation_simulated", "FED11": "federation_clusters", "FED4": "federation_together", "FED_ALONE": "federation_alone", "FED_BORDER": "federation_border", "FED_HOSTS": "federation_hosts", "FED_RESTART": "federation_restart", "FED_STORM": "federation_storm", "FED_TEND": "federation_tend",
    "BSP_EVERYWHERE": "portable_everywhere",
    "BSP_VALUES": "portable_values", "BSP_REFUSALS": "portable_refusals", "BSP_KILL": "portable_kill", "BSP_JOBS": "portable_jobs", "BSP_RESTART": "portable_bsp", "BSP_MIXED": "portable_mixed", "BSP_SUPERVISED": "portable_supervised", "BSP_PORTABLE_COST": "portable_cost",
    "H1": "user_reports", "I1": "pause", "I2": "compressed", "I2_I4": "one_pass", "I3": "incremental", "I5": "growth", "PACKAGES": "packages",
    "MW": "task_farms", "MW4": "farm_checkpoints", "MW5": "farm_recovery", "MW7": "farm_speed", "MW8": "farm_programs", "MW9": "farm_hosts",
    "MW11": "disposable_clients",
    "MW_FIGURES": "farm_figures",
    "S1": "lost_hosts", "S2": "store_choice", "S3": "copy_speed", "S4": "store_faults", "S6": "flush", "S7": "own_interval", "S9": "store_storm", "S9_VM": "store_vm", "V4": "many",
}
STATE = ROOT / "build" / "acceptance" / "state.json"
TIMEOUT_S = 4 * 3600  # of one line


def run(steps: Steps, wanted: list[str], restart: bool, seed: str | None) -> list[Result]:
    programs = {program.split()[0]: label for label, program in LINES.items()}
    labels = [programs.get(name.lower(), name.upper()) for name in wanted] or list(LINES)
    for label in labels:
        if label not in LINES:
            raise SystemExit(f"ci/test: no acceptance line {label}; there are {', '.join(LINES)}, or by their programs {', '.join(programs)}")
    if not steps.configure_and_build("release"):
        return [Result("release", "build", "failed", "see build/logs")]
    results = []
    for label in labels:
        name, *given = LINES[label].split()
        argv = ["python3", f"ci/acceptance/{name}.py", *given, "--state", str(STATE)]
        argv += ["--restart"] if restart else []
        argv += ["--seed", seed] if seed else []
        log = LOGS / f"acceptance-{name}.log"
        code = steps.run(f"acceptance {label} {name}", argv + ["--log", str(log)], TIMEOUT_S, live=True)
        results += read_log(name, log, code)
    return results


CASE = re.compile(r"^(passed|FAILED|SKIPPED) +([^:]+):? ?(.*)$")


def read_log(name: str, log: pathlib.Path, code: int) -> list[Result]:
    results = []
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        if match := CASE.match(line):
            results.append(Result(name, match[2].strip(), match[1].lower(), match[3]))
        elif match := SCRIPT_SKIP.match(line):
            part, _, reason = match[1].partition(": ")
            results.append(Result(name, f"{name}: {part}", "skipped", reason))
    if code not in (0, 77) and not any(r.outcome == "failed" for r in results):
        results.append(Result(name, "the line as a whole", "failed", f"exit code {code}"))
    return results


