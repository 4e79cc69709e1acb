"""D3: a storm of random verbs of several processes (shadowib-storm) goes on while it is checkpointed at random moments, resumed, or
killed and restarted, over shm, tcp, and from one to the other. Nothing is lost, doubled, early, corrupted, reordered, and nothing
hangs, by a ledger that knows every byte. storm_vm.py is the same on Soft-RoCE."""
from common import Line, main
from storms import Storm, run_storm


def options(parser):
    parser.add_argument("--checkpoints", type=int, metavar="N",
                        help="so many in each case, three of ten with kill and restart, instead of as many as the line wants")


def run() -> int:
    line = Line("storm", __doc__, options)
    # (checkpoints, restarts): in all 1,000 and 300; of --quick a small share of each.
    many, both, few = ((6, 2), (8, 4), (3, 1)) if line.quick else ((350, 105), (200, 60), (50, 15))
    if line.options.checkpoints:
        many = both = few = (line.options.checkpoints, -(-3 * line.options.checkpoints // 10))
    storms = {
        "shm": Storm(*many, ("shm",)),
        "tcp": Storm(*many, ("tcp",)),
        "shm and tcp": Storm(*both, ("shm", "tcp")),
        "shm, strict": Storm(*few, ("shm",), options=("--strict",)),
        "tcp, strict": Storm(*few, ("tcp",), options=("--strict",)),
    }
    # Of --quick: both transports in one job, and from one to the other; and one that signals every request.
    for name in ("shm and tcp", "tcp, strict") if line.quick else storms:
        storm = storms[name]
        line.case(name, lambda case, s=storm: run_storm(case, s))
    return line.finish()


if __name__ == "__main__":
    main(run)
