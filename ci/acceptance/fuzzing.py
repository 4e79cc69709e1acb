"""B4: every fuzz target runs ten minutes from its seeds without a finding."""
import os
import subprocess

from common import ROOT, Case, Line, check, main

SEEDS = ROOT / "ci" / "fuzz" / "seeds"


def fuzz(case: Case, target: str, seconds: int):
    log = case.work / "fuzz.log"
    with open(log, "wb") as sink:
        for words in (["cmake", "--preset", "fuzz"], ["cmake", "--build", "--preset", "fuzz", "-j", str(os.cpu_count() or 2)],
                      ["ci/fuzz/run", "--seconds", str(seconds), target]):
            done = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, check=False)
            check(done.returncode == 0, f"{' '.join(words)} exited with {done.returncode}:\n{log.read_text(errors='replace')[-3000:]}")
    return " ".join(log.read_text(errors="replace").splitlines()[-1].split())


def run() -> int:
    line = Line("fuzzing", __doc__)
    for target in sorted(path.name for path in SEEDS.iterdir()):
        line.case(target, lambda case, t=target: fuzz(case, t, 30 if line.quick else 600))
    return line.finish()


if __name__ == "__main__":
    main(run)
