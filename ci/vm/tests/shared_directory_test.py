"""Members on two hosts that have nothing in common but a network and a directory, by NFS as a cluster mounts it:
`shared_directory_test.py BUILD`."""
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
BIN = pathlib.Path(sys.argv[1]).resolve() / "bin"
BACKENDS = ("ib2tcp", "verbs")

done = subprocess.run([HERE.parent / "run", "--nodes", "2", "--shared-directory", "--mount-options", "defaults", "--timeout", "900",
                       "--log", BIN.parent / "vm" / "shared_directory.log", "--", "bash", "-c",
                       'set -e; "$0/nodes_test"; exec python3 -B -u "$@"', BIN, HERE / "shared_job.py", BIN, *BACKENDS],
                      stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
print(done.stdout + done.stderr)
for node in (0, 1):
    if done.returncode == 0:
        assert all(f"{node}| {backend}: right\n" in done.stdout for backend in BACKENDS), f"node {node} did not say that all was right"
sys.exit(done.returncode)
