"""Runs one command after the other: quiet while it goes well, its output in build/logs, its time on the screen."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "logs"


class Steps:
    def __init__(self):
        self.start = time.monotonic()
        self.number = 0
        LOGS.mkdir(parents=True, exist_ok=True)

    def seconds(self) -> float:
        return time.monotonic() - self.start

    def say(self, text: str):
        print(f"[{self.seconds():6.1f} s] {text}", flush=True)

    def run(self, name: str, argv: list[str], timeout: float, env: dict | None = None, live: bool = False,
            tail: int = 40) -> int:
        """Returns the exit code, 124 after `timeout` seconds. `live`: shows the output, too, as it comes."""
        self.number += 1
        log = LOGS / f"{self.number:02d}-{re.sub(r'[^a-z0-9]+', '-', name.lower())}.log"
        began = time.monotonic()
        self.say(name)
        with open(log, "wb") as sink:
            sink.write(("+ " + " ".join(argv) + "\n").encode())
            sink.flush()
            process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT,
                                       stdout=subprocess.PIPE if live else sink, start_new_session=True,
                                       env={**os.environ, **(env or {})})
            code = self._wait(process, sink, began + timeout, live)
        took = time.monotonic() - began
        if code == 0:
            self.say(f"{name}: ok ({took:.1f} s)")
        else:
            what = f"ran out of its {timeout:.0f} s" if code == 124 else f"exit code {code}"
            self.say(f"{name}: FAILED, {what} ({took:.1f} s), log: {log.relative_to(ROOT)}")
            if not live:
                lines = log.read_text(errors="replace").splitlines()
                for line in lines[-tail:]:
                    print("    " + line)
        sys.stdout.flush()
        return code

    @staticmethod
    def _wait(process, sink, deadline, live) -> int:
        try:
            if live:
                for line in process.stdout:
                    sink.write(line)
                    sys.stdout.write("    " + line.decode(errors="replace"))
                    sys.stdout.flush()
            return process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return 124
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise

    def configure_and_build(self, preset: str, targets: list[str] = (), timeout: float = 1800) -> bool:
        if self.run(f"configure {preset}", ["cmake", "--preset", preset], 600) != 0:
            return False
        argv = ["cmake", "--build", "--preset", preset, "-j", str(os.cpu_count() or 2)]
        if targets:
            argv += ["--target", *targets]
        return self.run(f"build {preset}", argv, timeout) == 0
