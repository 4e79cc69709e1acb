"""Programs of MPI, and what of their output is the same in every run that is right."""
import dataclasses
import hashlib
import pathlib
import re
import shutil

from common import check


@dataclasses.dataclass
class Ring:
    """examples/mpi_ring, which checks every byte as it comes. As many iterations as the path is fast, unless told."""
    iterations: int | None = None
    abort_at: int | None = None
    name = "ring"

    def missing(self, _path) -> str:
        return ""

    def prepare(self, place: pathlib.Path, ranks: int):
        pass

    def words(self, line, path) -> list[str]:
        words = [line.program(path.mpi.program), str(self.iterations or path.iterations)]
        return words if self.abort_at is None else [*words, str(self.abort_at)]

    def result(self, job) -> str:
        found = re.findall(r"checksum ([0-9a-f]{16})", job.output())
        check(len(found) == 1, f"{len(found)} checksums instead of one:\n{job.output()[-3000:]}")
        return found[0]


# Lennard-Jones atoms that melt, LAMMPS' example of them.
MELT = """units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 10 0 10 0 10
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
thermo 10
run {steps}
write_dump all custom final.dump id x y z vx vy vz modify sort id format float %.17g
"""


@dataclasses.dataclass
class Lammps:
    steps: int = 400
    name = "lammps"

    def missing(self, _path) -> str:
        return "" if shutil.which("lmp") else "lmp is not installed (package lammps)"

    def prepare(self, place: pathlib.Path, ranks: int):
        (place / "in.melt").write_text(MELT.format(steps=self.steps))

    def words(self, _line, _path) -> list[str]:
        return ["lmp", "-in", "in.melt", "-echo", "none"]

    def result(self, job) -> str:
        """The columns of its log, and the atoms at the end with all digits."""
        log = (job.place / "log.lammps").read_text()
        columns = re.search(r"^Step .*?(?=^Loop time)", log, re.MULTILINE | re.DOTALL)
        check(columns, f"the log has no columns:\n{log[-2000:]}")
        rows = columns[0].splitlines()
        check(len(rows) == 2 + self.steps // 10, f"{len(rows)} lines of columns for {self.steps} steps:\n{columns[0][-2000:]}")
        atoms = (job.place / "final.dump").read_text()
        check(len(atoms.splitlines()) == 9 + 4000, f"{len(atoms.splitlines())} lines of 4,000 atoms")
        return hashlib.sha256((columns[0] + atoms).encode()).hexdigest()[:16]


@dataclasses.dataclass
class Hpcc:
    """The HPC Challenge's seven benchmarks, each of which checks what it has computed."""
    size: int = 300
    name = "hpcc"

    def missing(self, _path) -> str:
        return "" if shutil.which("hpcc") else "hpcc is not installed (package hpcc)"

    def prepare(self, place: pathlib.Path, ranks: int):
        rows = 2 if ranks % 2 == 0 and ranks > 2 else 1
        values = [("HPL.out", "output file"), (8, "device out"), (1, "# of problems sizes"), (self.size, "Ns"), (1, "# of NBs"), (80, "NBs"),
                  (0, "PMAP"), (1, "# of process grids"), (rows, "Ps"), (ranks // rows, "Qs"), (16.0, "threshold"), (1, "# of panel fact"),
                  (2, "PFACTs"), (1, "# of recursive stopping criterium"), (4, "NBMINs"), (1, "# of panels in recursion"), (2, "NDIVs"),
                  (1, "# of recursive panel fact."), (1, "RFACTs"), (1, "# of broadcast"), (1, "BCASTs"), (1, "# of lookahead depth"),
                  (1, "DEPTHs"), (2, "SWAP"), (64, "swapping threshold"), (0, "L1"), (0, "U"), (1, "Equilibration"), (8, "memory alignment"),
                  ("##", "ignored"), (0, "additional sizes for PTRANS"), (1200, "values of N"), (0, "additional blocking sizes for PTRANS"),
                  (40, "values of NB")]
        (place / "hpccinf.txt").write_text("HPLinpack benchmark input file\nHPC Challenge\n" + "".join(f"{v} {what}\n" for v, what in values))

    def words(self, _line, _path) -> list[str]:
        return ["hpcc"]

    def result(self, job) -> str:
        """Its verdicts, without the times beside them."""
        text = (job.place / "hpccoutf.txt").read_text()
        check("End of HPC Challenge tests." in text and "Success=1" in text, f"it did not come to its end:\n{text[-2000:]}")
        text = re.sub(r"^CPU .*", "", text, flags=re.MULTILINE)  # the verdict of WALL again, where that took any
        found = re.findall(r"FAILED|PASSED|Found \d+ errors in \d+ locations \(\w+\)|Node\(s\) with error \d+|Solution Validates|"
                           r"^\w+_Errors=\d+$", text, re.MULTILINE)
        bad = [verdict for verdict in found if re.search(r"FAILED|failed|Found [1-9]|error [1-9]|=[1-9]", verdict)]
        check(not bad and "PASSED" in found and "Solution Validates" in found, f"verdicts: {found}")
        return f"{len(found)} verdicts, {hashlib.sha256('|'.join(found).encode()).hexdigest()[:8]}"


@dataclasses.dataclass
class Events:
    """acceptance/programs/pmix_events.c: no MPI, but a launcher's events, from when there is a file "go"."""
    name = "events"

    def missing(self, _path) -> str:
        return ""

    def prepare(self, place: pathlib.Path, ranks: int):
        pass

    def words(self, line, _path) -> list[str]:
        return [line.program("ci_pmix_events")]

    def result(self, job) -> str:
        return "; ".join(sorted(re.findall(r"^rank \d+ has heard .*", job.output(), re.MULTILINE)))


@dataclasses.dataclass
class Spawn:
    """acceptance/programs/mpi_spawn.c: a rank and the two that it has spawned."""
    iterations: int = 20_000
    spawned: int = 2
    name = "spawn"

    def missing(self, _path) -> str:
        return ""

    def prepare(self, place: pathlib.Path, ranks: int):
        pass

    def words(self, line, _path) -> list[str]:
        return [line.program("ci_mpi_spawn"), str(self.iterations)]

    def result(self, job) -> str:
        found = re.findall(r"^sum (\d+) of (\d+)$", job.output(), re.MULTILINE)
        check(len(found) == 1 and found[0][0] == found[0][1], f"sums: {found}\n{job.output()[-3000:]}")
        return found[0][0]
