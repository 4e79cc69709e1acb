"""Programs of a job on two machines: node 0 runs the line, node 1 starts what it is told to, over the network of both."""
import json
import os
import pathlib
import signal
import socket
import socketserver
import subprocess
import threading

from jobs import wait_for

PORT = 18500


class _Handler(socketserver.StreamRequestHandler):
    """One program a connection: a line that describes it, then its exit code when it has ended. Whoever closes kills it."""

    def handle(self):
        asked = json.loads(self.rfile.readline())
        if "quit" in asked:
            threading.Thread(target=self.server.shutdown).start()
            return
        with open(asked["output"], "wb") as sink:
            process = subprocess.Popen(asked["argv"], stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, cwd=asked["cwd"],
                                       env=asked["env"], start_new_session=True)
        threading.Thread(target=self._end, args=(process,)).start()
        self._tell(pid=process.pid)
        self._tell(code=process.wait())

    def _end(self, process):
        """Signals as they come; end of file is SIGKILL, to all that it has started."""
        for line in self.rfile:
            process.send_signal(int(line))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)

    def _tell(self, **words):
        try:
            self.wfile.write(json.dumps(words).encode() + b"\n")
        except OSError:
            pass  # node 0 has gone on


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def serve() -> int:
    """Node 1: until node 0 says that the line is over."""
    with _Server(("", PORT), _Handler) as server:
        server.serve_forever()
    return 0


def connect() -> socket.socket | None:
    """To node 1, if it serves already."""
    try:
        return socket.create_connection((os.environ["SHADOWIB_VM_PEER"], PORT))
    except ConnectionRefusedError:
        return None


class RemoteProcess:
    """As much of subprocess.Popen as Job needs of a program on node 1."""

    def __init__(self, argv, output, cwd, env):
        self.connection = wait_for("the other node", connect, 60)
        self.lines = self.connection.makefile("rb")
        self._say({"argv": [str(word) for word in argv], "output": str(output), "cwd": str(cwd), "env": env})
        self.pid = json.loads(self.lines.readline())["pid"]
        self.returncode = None
        self.ended = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _say(self, words):
        self.connection.sendall(json.dumps(words).encode() + b"\n")

    def _listen(self):
        self.returncode = json.loads(self.lines.readline() or '{"code": -9}')["code"]
        self.ended.set()

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired("a program on the other node", timeout)
        return self.returncode

    def terminate(self):
        self.connection.sendall(f"{int(signal.SIGTERM)}\n".encode())

    def kill(self):
        self.connection.shutdown(socket.SHUT_WR)


def quit_other():
    with connect() as connection:
        connection.sendall(b'{"quit": 1}\n')


def shared_area() -> pathlib.Path:
    return pathlib.Path(os.environ["SHADOWIB_VM_SHARED"]) / "area"
