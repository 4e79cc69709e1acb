"""The programs of others that have to run under the shim, a line each: what B2 goes through."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Client:
    """`program ... [--option ITERATIONS]`; the client's end gets the server's name behind it."""
    words: str                # of the server's end, "-p PORT" and the number of iterations left out
    requests: float = 1       # that the busiest queue pair posts in an iteration
    most: int = 2**31 - 1     # iterations that the program can be asked for
    restart: str = "survives"  # under checkpoint, kill, restart; or why that is not tried
    needs: str = ""           # not there yet: the program is expected to say so, not to hang

    @property
    def name(self) -> str:
        return self.words

    @property
    def tool(self) -> str:
        return self.words.split()[0]


def pingpong(kind: str, *options: str, **more) -> list[Client]:
    return [Client(" ".join([f"ibv_{kind}_pingpong", option]).strip(), **more) for option in options]


# It keeps a time stamp of every message, and a latency test a second one.
def perftest(tool: str, types: str, *options: str, **more) -> list[Client]:
    return [Client(" ".join(f"{tool} -F -c {kind} {option}".split()), most=20_000_000, **more) for kind in types.split()
            for option in options]


CLIENTS = [
    *pingpong("rc", "", "-c", "-e", "-N", "-g 0", "-s 1", "-s 1048576"),
    *pingpong("uc", "", "-e", "-g 0"),
    *pingpong("ud", "", "-e", "-g 0"),
    *pingpong("srq", "", "-e", "-g 0", requests=1 / 16),  # that many queue pairs, in turn
    *pingpong("srq", "-q 4", requests=1 / 4),
    # It asks for a send queue as long as its run: what it can be asked for is over before a checkpoint, but of large messages.
    *pingpong("xsrq", "", "-e", "-g 0", restart="too short"),
    *pingpong("xsrq", "-s 1048576", "-e -s 1048576", most=16_300),
    *perftest("ib_send_bw", "RC UC UD XRC", "", "-e", "-q 8", "-b", "-I 64"),
    *perftest("ib_send_bw", "RC", "--use-srq", "--use-srq -q 8"),
    *perftest("ib_send_lat", "RC UC UD XRC", "", "-e"),
    *perftest("ib_write_bw", "RC UC XRC", "", "-q 8", "-b", "-I 64"),  # it has no -e
    *perftest("ib_write_lat", "RC UC XRC", ""),
    *perftest("ib_read_bw", "RC XRC", "", "-e", "-q 8", "-b"),
    *perftest("ib_read_lat", "RC XRC", "", "-e"),
    *perftest("ib_atomic_bw", "RC XRC", "", "-e", "-q 8", "-b"),
    *perftest("ib_atomic_lat", "RC XRC", ""),
]
