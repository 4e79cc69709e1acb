"""The programs of others that have to run under the shim, a line each: what B2 goes through."""
import dataclasses


SHORT = "too short to be caught"
LISTENING = '"state": "listening"'  # by rdma_cm


@dataclasses.dataclass(frozen=True)
class Client:
    """A program and its two ends: `words server -p PORT -n ITERATIONS` and `words client -p PORT -n ITERATIONS`."""
    words: str                # of both ends
    requests: float = 1       # that the busiest queue pair posts in an iteration
    most: int = 2**31 - 1     # iterations that the program can be asked for
    multiple: int = 1         # and those it comes to an end with are multiples of
    restart: str = "survives"  # under checkpoint, kill, restart; or why that is not tried
    needs: str = ""           # not there yet: the program is expected to say so, not to hang
    server: str = ""
    client: str = "localhost"  # behind everything else; {port} in either stands for the port
    tools: tuple = ()         # of the server and of the client, if they are two programs
    port: str = "-p"          # the option; "": none
    iterations: str = "-n"
    short: int = 1000         # iterations of a run without checkpoints
    ready: str = ""           # no socket tells that the server is ready, but this in its status
    endless: bool = False     # the server never ends
    tests: str = ""           # further words of the client's, which make it another line

    @property
    def name(self) -> str:
        return f"{self.words} {self.tests}".strip()

    @property
    def tool(self) -> str:
        return self.words.split()[0]

    def end(self, which: int, port: int, iterations: int) -> list[str]:
        """The command of the server (0) or the client (1)."""
        words = self.words.split()
        if self.tools:
            words[0] = self.tools[which]
        words += [self.port, str(port)] if self.port else []
        words += [self.iterations, str(iterations)] if self.iterations else []
        return words + (f"{self.client} {self.tests}" if which else self.server).format(port=port).split()


def pingpong(kind: str, *options: str, **more) -> list[Client]:
    return [Client(" ".join([f"ibv_{kind}_pingpong", option]).strip(), **more) for option in options]


# It keeps a time stamp of every message, and a latency test a second one. With several queue pairs it takes the last
# completion for a hundred requests, believes that it has them all and polls no more, if the iterations are no multiple of it.
def perftest(tools: str, types: str, *options: str, **more) -> list[Client]:
    # With -R the server listens on IPv4 only, and localhost may be ::1.
    return [Client(" ".join(f"{tool} -F -c {kind} {option}".split()), most=20_000_000, multiple=100, ready=LISTENING if "-R" in option.split() else "",
                   client="127.0.0.1" if "-R" in option.split() else "localhost", **more)
            for tool in tools.split() for kind in types.split() for option in options]


def over_rdma_cm(words: str, **more) -> Client:
    """Of librdmacm's own utilities; most name the server by -s."""
    return Client(words, **{"ready": LISTENING, "client": "-s 127.0.0.1", **more})


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
    *perftest("ib_send_bw", "RC UD", "-R", "-R -e"),
    *perftest("ib_write_lat ib_read_bw ib_atomic_bw", "RC", "-R"),
    over_rdma_cm("rping -V", server="-s -a 127.0.0.1", client="-c -a 127.0.0.1", iterations="-C"),
    over_rdma_cm("rping -V -q", server="-s -a 127.0.0.1", client="-c -a 127.0.0.1", iterations="-C"),
    over_rdma_cm("ucmatose -c 4", iterations="-C", short=50, restart=SHORT),
    over_rdma_cm("udaddy -c 4", port="", iterations="-C", short=50, restart=SHORT),
    over_rdma_cm("rdma_server", tools=("rdma_server", "rdma_client"), iterations="", restart=SHORT),
    over_rdma_cm("rdma_xserver -c r", tools=("rdma_xserver", "rdma_xclient"), iterations="", restart=SHORT),
    over_rdma_cm("rdma_xserver -c x", tools=("rdma_xserver", "rdma_xclient"), iterations="", restart=SHORT),
    over_rdma_cm("mckey -m 239.1.2.3 -b 127.0.0.1", client="-s", port="", iterations="-C", short=20, ready='"multicast_groups": 1',
                 restart=SHORT),
    over_rdma_cm("cmtime", iterations="-c", short=100, endless=True, restart="its server does not end"),
    over_rdma_cm("rcopy", server="-p {port}", client="/etc/services 127.0.0.1:copied -p {port}", port="", iterations="", endless=True,
                 restart="its server does not end"),
    *[over_rdma_cm(f"rstream -S 4096 -C 1 {option}".strip(), iterations="-I", requests=2) for option in ("", "-T b", "-T v")],
    over_rdma_cm("riostream -S 4096 -C 1", iterations="-I", short=100, requests=2),
    *[Client(f"ucx_perftest -d ib2tcp0:1 -x {test}", client="127.0.0.1") for test in
      ("rc_verbs -t am_lat", "rc_verbs -t put_bw", "rc_verbs -t get -D zcopy -s 1024", "rc_verbs -t add_lat", "ud_verbs -t am_lat")],
    *[Client("qperf", tests=f"-t 1 {tests} quit", client="127.0.0.1", port="-lp", iterations="", restart="measures by the clock")
      for tests in ("rc_lat rc_bw rc_bi_bw rc_rdma_read_lat rc_rdma_read_bw rc_rdma_write_lat rc_rdma_write_bw",
                    "rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add",
                    "uc_lat uc_bw uc_bi_bw uc_rdma_write_lat uc_rdma_write_bw", "ud_lat ud_bw ud_bi_bw",
                    "-cm1 rc_lat rc_bw rc_rdma_write_bw")],
    *[Client(f"fi_pingpong -p {kind} -S 4096 -c", server="-B {port}", client="-P {port} 127.0.0.1", port="", iterations="-I")
      for kind in ("verbs -e msg", "verbs -e dgram", "verbs;ofi_rxm -e rdm")],
]
