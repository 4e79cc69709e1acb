"""Portable images move between architectures: each program prints the same wherever it goes on, and its values have the same digest.

Each image is taken at a site on one architecture, restarted on each, saved again there at once, and restarted at home from that."""
from common import Case, Line, check, main
from portable_programs import PROGRAMS, Program, at_hand, digest

# The short version: each architecture in some programs.
QUICK = {"values.c": ("x86_64", "i686", "powerpc", "s390x"), "graph.c": ("x86_64", "i686", "aarch64", "s390x"),
         "classes.cc": ("x86_64", "aarch64", "s390x"), "containers.cc": ("x86_64", "i686", "s390x"), "heat.cc": ("x86_64", "s390x")}
# Programs that compute something, as BSP programs do between their supersteps: saved at more sites.
RESTARTED = ("lu.c", "fft.c", "gradient.c", "matrix.c", "similarity.c", "graph.c", "heat.cc")
EVERY = dict.fromkeys((*QUICK, *RESTARTED, "heat.c"))
LEVELS = ("-O2", "-O0", "-O3")
SITES = 5  # of each program and architecture
SITES_RESTARTED = 20  # at -O2


def moves(case: Case, name: str, level: str) -> str:
    quick = case.line.quick
    programs = {a.name: Program(case, PROGRAMS / name, a, level) for a in at_hand(case) if not quick or a.name in QUICK[name]}
    sites = 1 if quick else SITES_RESTARTED if name in RESTARTED and level == LEVELS[0] else SITES
    moved = 0
    for home, program in programs.items():
        wanted = program.output()
        visits = program.visits()
        check(visits >= 1, f"{name} has no site")
        chosen = case.random(home).sample(range(1, visits + 1), min(sites, visits))
        for at in chosen:
            image, output = program.save(case.work / "home", AT=str(at))
            check(output == wanted, f"{name} on {home} prints {output!r} when it is saved at visit {at}, plain {wanted!r}")
            number = digest(case, image)
            for away, other in programs.items():
                there = f"{name} of {home}, visit {at}, on {away}"
                again, output = other.save(case.work / "away", FROM=str(image), AT="0")
                check(output == wanted, f"{there}: prints {output!r}, at home {wanted!r}")
                check(digest(case, again) == number, f"{there}: its values have digest {digest(case, again)}, at home {number}")
                moved += 1
                if quick and home != "x86_64" and away != "s390x":
                    continue
                check(program.output(FROM=str(again)) == wanted, f"{there} and back: prints something else")
    return f"{len(programs)} architectures, {moved} moves, 0 differ"


def run() -> int:
    line = Line("portable_values", __doc__)
    for name in QUICK if line.quick else EVERY:
        for level in LEVELS[:1] if line.quick else LEVELS:
            line.case(f"{name} {level}", lambda case, name=name, level=level: moves(case, name, level))
    return line.finish()


if __name__ == "__main__":
    main(run)
