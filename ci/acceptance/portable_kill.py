"""A program is killed while it writes portable images: the one that is there is always whole, and the program goes on from it."""
import signal
import subprocess
import time

from common import Case, Line, check, main
from portable_programs import HERE, Program, digest, environment

KILLS, QUICK = 50, 6
SOURCE = """#include <shadowib/portable.h>
#include <stdio.h>
#include <stdlib.h>
static unsigned long sum;
int main(int argc, char** argv) {
  const int most = argc > 1 ? atoi(argv[1]) : 40;
  unsigned* big = malloc(2000000 * sizeof *big);
  for (int step = 0; step < most; step++) {
    for (int i = 0; i < 2000000; i++) big[i] += i * 2654435761u + step;
    sum += big[step * 1000];
    shadowib_portable_due();
    shadowib_portable_site();
  }
  printf("%lu\\n", sum);
  return 0;
}
"""


def program_of(case: Case) -> Program:
    (case.work / "big.c").write_text(SOURCE)
    return Program(case, case.work / "big.c", HERE)


def killed(case: Case) -> str:
    program, images = program_of(case), case.work / "images"
    images.mkdir()
    image, random = images / "member-0.psi", case.random()
    wanted = program.output()
    kills, restarts, torn = QUICK if case.line.quick else KILLS, 0, 0
    for _ in range(kills):
        options = {"DIR": str(images)}
        if image.exists():
            options["FROM"] = str(image)
            restarts += 1
        with subprocess.Popen(program.command(), env=environment(options), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            time.sleep(random.uniform(0.02, 0.6))
            process.send_signal(signal.SIGKILL)
        torn += (images / "member-0.psi.new").exists()
        if image.exists():
            digest(case, image)
    if not image.exists():
        program.save(images, "3")
    check(program.output(FROM=str(image)) == wanted, "the last image leads to another result")
    return f"{kills} kills, {restarts} from an image, {torn} while one was written"


def no_room(case: Case) -> str:
    """A write fails half way: the old image stays, the program is told and goes on."""
    program, images = program_of(case), case.work / "images"
    image, wanted = program.save(images, "2")
    number = digest(case, image)
    done = subprocess.run(["prlimit", "--fsize=1000000", "env", "--ignore-signal=XFSZ", *program.command("3")], capture_output=True, text=True, check=False,
                          env=environment({"DIR": str(images)}))
    check(done.returncode == 0 and done.stdout != wanted, f"the program does not go on: {done}")
    check("the image cannot be written: File too large" in done.stderr, f"not told: {done.stderr}")
    check(digest(case, image) == number and sorted(p.name for p in images.iterdir()) == ["member-0.psi"], "the old image is gone, or a part stays")
    return "told, the old image stays"


def run() -> int:
    line = Line("portable_kill", __doc__)
    line.case("killed", killed)
    line.case("no room", no_room)
    return line.finish()


if __name__ == "__main__":
    main(run)
