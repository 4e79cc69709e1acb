"""A Redis server for one measurement, on the loopback. As a context it gives the URI of a new exchange."""
import socket
import subprocess


class RedisServer:
    SCHEME, PORT, QUERY = "redis", "--port", ""

    def options(self, _directory):
        return []

    def __init__(self, directory, _=None):
        self.process, self.uri, options = None, "", self.options(directory)
        while self.process is None:
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                port = s.getsockname()[1]
            process = subprocess.Popen(["redis-server", "--bind", "127.0.0.1", *options, self.PORT, str(port), "--dir", directory, "--save", "",
                                        "--tcp-backlog", "4096"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if any("Ready to accept connections" in line for line in process.stdout):
                self.process, self.uri = process, f"{self.SCHEME}://127.0.0.1:{port}/scale" + self.QUERY.format(directory)
            else:  # somebody has taken the port
                process.wait()
                process.stdout.close()

    def __enter__(self):
        return self.uri

    @staticmethod
    def told(uri, field):
        """A number of the server's INFO."""
        with socket.create_connection(("127.0.0.1", int(uri.split(":")[2].split("/")[0]))) as s:
            s.sendall(b"INFO all\r\nQUIT\r\n")
            said = b"".join(iter(lambda: s.recv(65536), b"")).decode()
        return float(next(line.split(":")[1] for line in said.splitlines() if line.startswith(field + ":")))

    @classmethod
    def cpu_s(cls, uri):
        """The server's processor time so far."""
        return cls.told(uri, "used_cpu_user") + cls.told(uri, "used_cpu_sys")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
