"""C1: programs of others (clients.py) on a kernel's RDMA device: natively, under the shim, and with checkpoint, kill and restart
at random moments of the data phase. Boots a machine with Soft-RoCE (ci/vm/run) and goes on in there. A table says what became
of each."""
from clients import RXE, clients
from common import Line, main
from guest import run_in_guest
from parity import Table, restarted, table_option, undisturbed

TIMEOUT_S = {True: 1200, False: 7200}  # --quick or not
SAMPLE = ("ibv_rc_pingpong -g 1 -c",)  # restarts_vm has a shared receive queue


def in_guest(line: Line) -> int:
    table = Table(line, "natively", "shim", "restarted")
    for client in clients(RXE):
        if line.quick and client.name not in SAMPLE:
            continue
        if not line.quick:
            table.case(client, "natively", lambda c, k=client: undisturbed(c, k, RXE, native=True))
            table.case(client, "shim", lambda c, k=client: undisturbed(c, k, RXE))
        if client.restart != "survives":
            table.set(client, "restarted", client.restart)
        else:
            table.case(client, "restarted", lambda c, k=client: restarted(c, k, RXE, seconds=12 if line.quick else 0),
                       1 if line.quick else 2)
    table.write()
    return line.finish()


if __name__ == "__main__":
    main(lambda: run_in_guest(Line("clients_vm", __doc__, table_option), in_guest, TIMEOUT_S))
