"""A2: Debian's ibv_rc_pingpong, and the checking example, over shm and tcp, with and without events, are checkpointed at
random moments of the data phase, killed and restarted; both ends exit with 0 and no byte is wrong."""
import shutil

from common import Line, Skip, main
from pair import Pair, campaign


def pingpong(transport: str, events: bool, extra: list[str], seconds: float) -> Pair:
    tool = shutil.which("ibv_rc_pingpong")
    if not tool:
        raise Skip("ibv_rc_pingpong is not installed (package ibverbs-utils)")

    def commands(port, iterations):
        common = [tool, "-c", "-p", str(port), "-n", str(iterations), *(["-e"] if events else []), *extra]
        return common, common + ["localhost"]
    return Pair(commands, transport, seconds=seconds, good=("iters in",))


def verbs_check(line: Line, transport: str, events: bool, extra: list[str], seconds: float) -> Pair:
    tool, depth = line.program("verbs_check"), 16

    def commands(port, iterations):
        common = [tool, "--port", str(port), "--iters", str(iterations), "--depth", str(depth),
                  *(["--events"] if events else []), *extra]
        return common, common + ["127.0.0.1"]
    return Pair(commands, transport, requests=depth + 4, seconds=seconds, good=("server: ", "client: "))


def run() -> int:
    line = Line("a2", __doc__)
    seconds = 2.5 if line.quick else 6.0
    many, some, per_run = (3, 1, 3) if line.quick else (50, 10, 5)

    def cases(program: str, pair, sizes: dict):
        for transport in ("shm", "tcp"):
            for events in (False, True):
                kind = f"{program} {transport}{' events' if events else ''}"
                line.case(kind, lambda c, t=transport, e=events: campaign(c, pair(t, e, []), per_run), many)
                for what, options in sizes.items():
                    if line.quick and (transport == "tcp") != events:
                        continue
                    line.case(f"{kind}, {what}",
                              lambda c, t=transport, e=events, o=options: campaign(c, pair(t, e, o), per_run), some)
            line.case(f"{program} {transport}, resume only five times in a row",
                      lambda c, t=transport: campaign(c, pair(t, False, []), 5, kill=False), 5)
            line.case(f"{program} {transport}, restart of a restart of a restart",
                      lambda c, t=transport: campaign(c, pair(t, False, []), 3), 3)

    cases("ibv_rc_pingpong", lambda t, e, o: pingpong(t, e, o, seconds),
          {"1 byte": ["-s", "1", "-r", "500"], "1 MiB": ["-s", "1048576"]})
    cases("verbs_check", lambda t, e, o: verbs_check(line, t, e, o, seconds),
          {"16 bytes": ["--size", "16"], "1 MiB": ["--size", "1048576"]})
    return line.finish()


if __name__ == "__main__":
    main(run)
