"""The programs of others that have to run under the shim, a line each, and what they have to be told of an adapter: the table
that B2 and C1 go through."""
import dataclasses

SHORT = "too short to be caught"
FOR_EVER = "its server does not end"


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
    client: str = "localhost"  # behind everything else; in either, {port} and {iterations} stand for these
    tools: tuple = ()         # of the server and of the client, if they are two programs
    port: str = "-p"          # the option; "": none
    iterations: str = "-n"
    short: int = 1000         # iterations of a run without checkpoints
    ready: str = ""           # no socket tells that the server is ready, but this (jobs.READY)
    endless: bool = False     # the server never ends
    alone: bool = False       # the server starts all there is
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
        return words + (f"{self.client} {self.tests}" if which else self.server).format(port=port, iterations=iterations).split()


@dataclasses.dataclass(frozen=True)
class Adapter:
    """An adapter, and what programs have to be told of it."""
    backend: str
    device: str
    address: str              # where rdma_cm finds it
    gid: str = ""             # of libibverbs' examples; "": they go by LID, and with one GID as well
    xrc: bool = True
    short: int = 1000         # iterations of a run without checkpoints
    seconds: float = 3.0      # that a run with checkpoints is to take without them
    patience: float = 60      # seconds for a run's end
    environment: dict = dataclasses.field(default_factory=dict)


IB2TCP = Adapter("ib2tcp", "ib2tcp0", "127.0.0.1")
# Emulated: natively it does some thousand messages a second.
RXE = Adapter("verbs", "rxe0", "192.168.77.1", "-g 1", xrc=False, short=200, seconds=6.0, patience=180,
              # Or UCX drops all datagrams, since it looks for another address in their route headers than there is, and libfabric
              # asks for a longer completion queue than there can be.
              environment={"UCX_UD_VERBS_ETH_DGID_CHECK": "n", "FI_UNIVERSE_SIZE": "16", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                           "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_plm_rsh_agent": "", "OMPI_MCA_orte_tmpdir_base": "/dev/shm"})


def pingpong(on: Adapter, kind: str, *options: str, **more) -> list[Client]:
    """Of libibverbs' examples."""
    options += ("-g 0",) if "" in options and not on.gid else ()
    return [Client(" ".join(f"ibv_{kind}_pingpong {on.gid} {option}".split()), **{"short": on.short, **more}) for option in options]


def perftest(on: Adapter, tools: str, types: str, *options: str, **more) -> list[Client]:
    # It keeps a time stamp of every message, and a latency test a second one. With several queue pairs it takes the last
    # completion for a hundred requests, believes that it has them all and polls no more, if the iterations are no multiple of it.
    # With -R the server listens on IPv4 only, and localhost may be ::1.
    return [Client(" ".join(f"{tool} -F -c {kind} {option}".split()), most=20_000_000, multiple=100, short=on.short,
                   ready="listening" if "-R" in option.split() else "",
                   client=on.address if "-R" in option.split() else "localhost", **more)
            for tool in tools.split() for kind in types.split() if kind != "XRC" or on.xrc for option in options]


def rdma_cm(on: Adapter) -> list[Client]:
    """librdmacm's own utilities; most name the server by -s."""
    def of(words: str, **more) -> Client:
        return Client(words.strip(), **{"ready": "listening", "client": f"-s {on.address}", "short": on.short, **more})
    return [
        *[of(f"rping -V {option}", server=f"-s -a {on.address}", client=f"-c -a {on.address}", iterations="-C") for option in ("", "-q")],
        of("ucmatose -c 4", iterations="-C", short=50, restart=SHORT),
        of("udaddy -c 4", port="", iterations="-C", short=50, restart=SHORT),
        of("rdma_server", tools=("rdma_server", "rdma_client"), iterations="", restart=SHORT),
        *[of(f"rdma_xserver -c {kind}", tools=("rdma_xserver", "rdma_xclient"), iterations="", restart=SHORT)
          for kind in ("r", "x") if kind == "r" or on.xrc],
        of(f"mckey -m 239.1.2.3 -b {on.address}", client="-s", port="", iterations="-C", short=20, ready="joined", restart=SHORT),
        of("cmtime", iterations="-c", short=on.short // 10, endless=True, restart=FOR_EVER),
        of("rcopy", server="-p {port}", client=f"/etc/services {on.address}:copied -p {{port}}", port="", iterations="", endless=True,
           restart=FOR_EVER),
        *[of(f"rstream -S 4096 -C 1 {option}", iterations="-I", requests=2) for option in ("", "-T b", "-T v")],
        of("riostream -S 4096 -C 1", iterations="-I", short=100, requests=2),
    ]


def ucx(on: Adapter) -> list[Client]:
    return [Client(f"ucx_perftest -d {on.device}:1 -x {test}", client=on.address, short=on.short) for test in
            ("rc_verbs -t am_lat", "rc_verbs -t put_bw", "rc_verbs -t get -D zcopy -s 1024", "rc_verbs -t add_lat", "ud_verbs -t am_lat")]


def qperf(on: Adapter) -> list[Client]:
    tests = ["rc_lat rc_bw rc_bi_bw rc_rdma_read_lat rc_rdma_read_bw rc_rdma_write_lat rc_rdma_write_bw",
             "rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add"]
    if on.gid:  # without a LID it connects by rdma_cm alone, and does reliable connections only
        tests = [f"-cm1 {test}" for test in tests]
    else:
        tests += ["uc_lat uc_bw uc_bi_bw uc_rdma_write_lat uc_rdma_write_bw", "ud_lat ud_bw ud_bi_bw", "-cm1 rc_lat rc_bw rc_rdma_write_bw"]
    return [Client("qperf", tests=f"-t 1 {test} quit", client=on.address, port="-lp", iterations="", restart="measures by the clock") for test in tests]


def libfabric(on: Adapter, *kinds: str) -> list[Client]:
    return [Client(f"fi_pingpong -p {kind} -S 4096 -c", server="-B {port}", client=f"-P {{port}} {on.address}", port="", iterations="-I",
                   short=on.short) for kind in kinds]


def open_mpi(*layers: str) -> list[Client]:
    return [Client(f"mpirun -n 2 {layer}", tools=("mpirun", "ci_mpi_ring"), server="ci_mpi_ring {iterations}", alone=True, port="", iterations="", short=50,
                   restart="its launcher is no member") for layer in layers]


def clients(on: Adapter) -> list[Client]:
    return [
        *pingpong(on, "rc", "", "-c", "-e", "-N", "-s 1"),
        *pingpong(on, "rc", "-s 1048576", short=on.short // 10),
        *pingpong(on, "uc", "", "-e"),
        *pingpong(on, "ud", "", "-e"),
        *pingpong(on, "srq", "", "-e", requests=1 / 16),  # that many queue pairs, in turn
        *pingpong(on, "srq", "-q 4", requests=1 / 4),
        # It asks for a send queue as long as its run: what it can be asked for is over before a checkpoint, but of large messages.
        *(pingpong(on, "xsrq", "", "-e", restart="too short") if on.xrc else []),
        *(pingpong(on, "xsrq", "-s 1048576", "-e -s 1048576", most=16_300) if on.xrc else []),
        *perftest(on, "ib_send_bw", "RC UC UD XRC", "", "-e", "-b", "-I 64"),
        *perftest(on, "ib_send_bw", "RC XRC", "-q 8"),
        # Unreliable ones ask for a receive per iteration, which is more than Soft-RoCE's completion queue has room for.
        *perftest(on, "ib_send_bw", "UC UD", "-q 8 -r 2000"),
        *perftest(on, "ib_send_bw", "RC", "--use-srq", "--use-srq -q 8"),
        *perftest(on, "ib_send_lat", "RC UC UD XRC", "", "-e"),
        *perftest(on, "ib_write_bw", "RC UC XRC", "", "-q 8", "-b", "-I 64"),  # it has no -e
        *perftest(on, "ib_write_lat", "RC UC XRC", ""),
        *perftest(on, "ib_read_bw", "RC XRC", "", "-e", "-q 8", "-b"),
        *perftest(on, "ib_read_lat", "RC XRC", "", "-e"),
        *perftest(on, "ib_atomic_bw", "RC XRC", "", "-e", "-q 8", "-b"),
        *perftest(on, "ib_atomic_lat", "RC XRC", ""),
        *perftest(on, "ib_send_bw", "RC UD", "-R", "-R -e"),
        *perftest(on, "ib_send_lat ib_write_bw ib_write_lat ib_read_bw ib_read_lat ib_atomic_bw ib_atomic_lat", "RC", "-R"),
        *rdma_cm(on),
        *ucx(on),
        *qperf(on),
        *libfabric(on, "verbs -e msg", "verbs -e dgram", "verbs;ofi_rxm -e rdm"),
        *(open_mpi("--mca pml ucx -x UCX_TLS=ud_verbs,self", "--mca pml ucx -x UCX_TLS=rc_v,self",
                   "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm") if on is RXE else []),
    ]
