"""In each of two guests: `shared_job.py BIN BACKEND...`. A job of two members on two nodes, in the directory of both; a checkpoint is
taken on node 0, and both members go on and find all their data right."""
import json
import os
import pathlib
import subprocess
import sys
import time

NODE = int(os.environ["SHADOWIB_VM_NODE"])
TOP = pathlib.Path(os.environ["SHADOWIB_VM_SHARED"])
BIN = pathlib.Path(sys.argv[1])
PATIENCE_S = 600  # until a hang is told. These clocks go on while the guest waits for a processor, at a load of 20 most of the time
DEPTH = 8
NOT_FOUND = 3


def wait_for(what: str, come, given_up=lambda: False):
    deadline = time.monotonic() + PATIENCE_S
    while not (result := come()):
        assert time.monotonic() < deadline, f"node {NODE}: {what}: not within {PATIENCE_S} s"
        if given_up():
            return None
        time.sleep(0.05)
    return result


def tell(name: str):
    (TOP / name).touch()


def told(name: str) -> bool:
    return name in os.listdir(TOP)  # a client of NFS asks the server for a listing, and not for a name it takes for missing


class Member:
    """The server on node 0, the client on node 1."""

    def __init__(self, name: str, backend: str, iterations: int):
        self.directory, self.iterations = TOP / "ckpt", iterations
        self.name, self.role = name, ("server", "client")[NODE]
        self.output = pathlib.Path("/tmp") / f"{name}.out"
        # Soft-RoCE does atomic operations twice if an acknowledgement is late, as it is where two guests share a processor.
        words = [BIN / "verbs_check", "--iters", str(iterations), "--depth", str(DEPTH), "--ack-timeout", "21",
                 *(["--gid", "1"] if backend == "verbs" else []), *([os.environ["SHADOWIB_VM_PEER"]] if NODE else [])]
        with open(self.output, "wb") as sink:
            self.process = subprocess.Popen(self._shadowib("run", "--job", name, "--backend", backend, "--", *words),
                                            stdout=sink, stderr=subprocess.STDOUT)

    def _shadowib(self, verb: str, *words) -> list:
        return [BIN / "shadowib", verb, "--dir", self.directory, *words]

    def command(self, *words) -> str:
        """What it prints; nothing if nobody of the job is alive."""
        done = subprocess.run(self._shadowib(*words), capture_output=True, text=True, check=False)
        if done.returncode == NOT_FOUND:
            return ""
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.text()}"
        return done.stdout

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def ended(self) -> bool:
        return self.process.poll() is not None

    def sent(self) -> list[int]:
        """Requests retired, by live member that answers, one on each node; whichever came first is member 0."""
        shown = self.command("status", self.name, "--json")
        members = json.loads(shown)["members"] if shown else []
        assert sorted(m["host"] for m in members) in ([], ["node0"], ["node1"], ["node0", "node1"]), members
        objects = [(m.get("state") or {}).get("objects") or {} for m in members if m["alive"]]
        return [sum(q["sends_retired"] for q in o["queue_pairs"]) for o in objects if o.get("queue_pairs")]

    def finish(self):
        wait_for(f"the {self.role}'s end", self.ended)
        assert self.process.returncode == 0, f"the {self.role} exited with {self.process.returncode}:\n{self.text()}"
        assert f"{self.role}: {self.iterations} iterations of {DEPTH} messages" in self.text(), self.text()


def checkpoint(member: Member) -> bool:
    """On node 0. False: the job was over before."""
    before = wait_for("two members that send", lambda: (s := member.sent()) and len(s) == 2 and min(s) > 0 and s, member.ended)
    if before is None:
        return False
    began = time.monotonic()
    made = member.command("checkpoint", member.name)
    if not made:
        return False
    made = pathlib.Path(made.split()[-1])
    took = time.monotonic() - began
    assert {f"member-{index}.img" for index in (0, 1)} <= set(os.listdir(made)), os.listdir(made)
    after = member.sent()
    print(f"{member.name}: checkpoint after {before} of {(DEPTH + 4) * member.iterations} requests, in {took:.1f} s; then {after}")
    return True


def run_job(backend: str, iterations: int) -> bool:
    name = f"{backend}-{iterations}"
    if NODE == 1:
        wait_for("the server", lambda: told(f"{name}.listens"))
    member = Member(name, backend, iterations)
    if NODE == 0:
        wait_for("to listen", lambda: "listening" in member.text())
        tell(f"{name}.listens")
        tell(f"{name}.{'done' if checkpoint(member) else 'early'}")
    member.finish()
    tell(f"{name}.over{NODE}")
    wait_for("the other's end", lambda: told(f"{name}.over{1 - NODE}"))
    return told(f"{name}.done")


for kind in sys.argv[2:]:
    assert any(run_job(kind, count) for count in (300, 1200, 4800)), f"{kind}: every job was over before its checkpoint"
    print(f"{kind}: right")
