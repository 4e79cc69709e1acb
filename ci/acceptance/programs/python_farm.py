"""A farm of null tasks with 64 bytes each way, one worker, 16 tasks outstanding. Prints the microseconds of a task.

Usage: python_farm.py mpi4py|dask TASKS; mpi4py by `mpiexec -n 2 python3 -m mpi4py.futures python_farm.py mpi4py TASKS`.
"""
import sys
import time

MESSAGE = bytes(64)
OUTSTANDING, WARM = 16, 50


def null(message: bytes) -> bytes:
    return message


def measure(submit, tasks: int) -> float:
    waiting, begun = [], 0.0
    for done in range(WARM + tasks):
        if done == WARM:
            begun = time.monotonic()
        while len(waiting) < min(OUTSTANDING, WARM + tasks - done):
            waiting.append(submit())
        if waiting.pop(0).result() != MESSAGE:
            sys.exit("a result is wrong")
    return 1e6 * (time.monotonic() - begun) / tasks


if __name__ == "__main__":
    kind, number = sys.argv[1], int(sys.argv[2])
    if kind == "mpi4py":
        from mpi4py.futures import MPIPoolExecutor
        with MPIPoolExecutor(max_workers=1) as pool:
            print(f"{measure(lambda: pool.submit(null, MESSAGE), number):.1f} us a task", flush=True)
    else:
        from distributed import Client, LocalCluster
        with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
            print(f"{measure(lambda: client.submit(null, MESSAGE, pure=False), number):.1f} us a task", flush=True)
