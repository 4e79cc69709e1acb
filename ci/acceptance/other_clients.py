"""B2: programs of others (clients.py) run under the shim on ib2tcp, over shm and tcp, undisturbed and with checkpoint, kill
and restart at random moments of the data phase. A table says what became of each."""
from clients import IB2TCP, clients
from common import Line, main
from parity import Table, restarted, table_option, undisturbed

SAMPLE = ("ibv_uc_pingpong", "ibv_ud_pingpong -e", "ibv_srq_pingpong", "ibv_rc_pingpong -N", "ib_send_bw -F -c RC --use-srq",
          "ib_write_bw -F -c UC", "ib_send_lat -F -c UD")


def run() -> int:
    line = Line("other_clients", __doc__, table_option)
    table = Table(line, "shm", "tcp", "shm, restarted", "tcp, restarted")
    for client in clients(IB2TCP):
        if line.quick and client.name not in SAMPLE:
            continue
        for transport in ("tcp",) if line.quick else ("shm", "tcp"):
            if not line.quick:
                table.case(client, transport, lambda c, k=client, t=transport: undisturbed(c, k, IB2TCP, t))
            if client.restart != "survives":
                table.set(client, f"{transport}, restarted", client.restart)
            elif not client.needs:
                table.case(client, f"{transport}, restarted",
                           lambda c, k=client, t=transport: restarted(c, k, IB2TCP, t, 2.0 if line.quick else 0), 1 if line.quick else 2)
    table.write()
    return line.finish()


if __name__ == "__main__":
    main(run)
