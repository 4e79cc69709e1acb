"""Containers: a job in Podman's default profile is checkpointed, resumed, killed, and restarted in a new container of the same kind,
or refused by a message with the option that grants what is missing. As root and as an ordinary user."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from common import Case, Line, Skip, check, main
from jobs import PERMISSION, REFUSED, wait_for

USER = 65534
OPTIONS_AT_MOST = 4  # that refusals may ask for, one after the other
# Podman sets these limits, and may not raise them everywhere. Control groups are no concern of this line.
MODEST = ("--rm", "--network=none", "--cgroups=disabled", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000")
# crun takes no hybrid of both versions of control groups: in a mount namespace of its own there is one.
ONE_VERSION = ("unshare", "--mount", "sh", "-c", 'umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"', "sh")


class Containers:
    """A root directory with the product and the host's /usr, and containers of it, by one user."""

    def __init__(self, case: Case, user: int | None):
        self.case, self.user = case, user
        self.root, self.data = case.work / "root", case.work / "data"
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="shadowib-"))  # Podman takes no path of more than 50 characters
        self.processes, self.wrapper, self.number = [], (), 0
        case.cleanups.append(self.stop)
        if shutil.which("podman") is None:
            raise Skip("podman is not installed")
        self._make_root()
        self.data.mkdir()
        (self.home / "run").mkdir()
        for place in (case.work, self.home) if user is not None else ():
            for top, directories, files in os.walk(place):
                for name in (*directories, *files, "."):
                    os.chown(pathlib.Path(top, name), user, user, follow_symlinks=False)
        self._find_a_way()

    def _make_root(self):
        for name in ("proc", "sys", "dev", "tmp", "etc", "run", "usr", "data", "var", "root", "opt/shadowib/bin"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.volumes = ["/usr:/usr:ro"]
        for name in ("bin", "sbin", "lib", "lib64", "lib32"):
            there = pathlib.Path("/", name)
            if there.is_symlink():
                (self.root / name).symlink_to(os.readlink(there))
            elif there.exists():
                (self.root / name).mkdir()
                self.volumes.append(f"{there}:{there}:ro")
        for name in ("passwd", "group", "ld.so.cache"):
            shutil.copy(f"/etc/{name}", self.root / "etc")
        product, build = self.root / "opt" / "shadowib", self.case.line.build
        for program in ("shadowib", "shadowib-storm"):
            shutil.copy(self.case.line.program(program), product / "bin")
        (product / "lib").mkdir()
        for part in ("dropin", "shadowib"):
            shutil.copytree(build / "lib" / part, product / "lib" / part, symlinks=True)
        for library in (build / "lib").glob("libshadowib.so*"):
            shutil.copy(library, product / "lib", follow_symlinks=False)

    def _find_a_way(self):
        """Whether and how Podman runs here. Says loudly why it does not."""
        is_hybrid = pathlib.Path("/sys/fs/cgroup/unified").exists()
        self.wrapper = ONE_VERSION if is_hybrid and os.geteuid() == 0 else ()
        done = self.podman("run", *MODEST, *self._mounts(), "--rootfs", str(self.root), "/usr/bin/true", timeout=120)
        if done.returncode != 0:
            raise Skip(f"podman cannot run a container here: {done.stderr.strip()[-300:]}")

    def _mounts(self):
        return [f"--volume={v}" for v in (*self.volumes, f"{self.data}:/data")] + ["--workdir=/data"]

    def _words(self, *words):
        # As the user, with nothing of the machine's own storage touched.
        become = () if self.user is None else ("setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups")
        return [*self.wrapper, *become, "podman", f"--root={self.home / 'root'}", f"--runroot={self.home / 'run'}",
                f"--tmpdir={self.home / 'tmp'}", "--storage-driver=vfs", "--cgroup-manager=cgroupfs", *words]

    def _environment(self):
        return {**os.environ, "HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.home / "run")}

    def podman(self, *words, timeout=180):
        return subprocess.run(self._words(*words), env=self._environment(), cwd=self.case.work, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=timeout)

    def start(self, options, *words):
        """A container in the foreground; its output is in .log."""
        self.number += 1
        name, log = f"{self.case.work.name}-{self.number}", self.case.work / f"{self.number}.log"
        argv = self._words("run", f"--name={name}", *MODEST, *options, *self._mounts(), "--rootfs", str(self.root), *words)
        self.case.note(f"{log.name}: {' '.join(argv)}")
        with open(log, "wb") as sink:
            process = subprocess.Popen(argv, env=self._environment(), cwd=self.case.work, stdin=subprocess.DEVNULL, stdout=sink,
                                       stderr=subprocess.STDOUT)
        process.name, process.log = name, log
        self.processes.append(process)
        return process

    def stop(self, _failed=False):
        for process in self.processes:
            if process.poll() is None:
                self.podman("kill", process.name)
                process.wait(60)
        self.podman("system", "migrate")  # ends the process that keeps an ordinary user's namespaces
        shutil.rmtree(self.home, ignore_errors=True)


class StormInside:
    """A storm of one process in a container, which knows what every byte must be."""

    SHADOWIB = "/opt/shadowib/bin/shadowib"

    def __init__(self, containers: Containers):
        self.containers, self.area = containers, containers.data / "area"
        self.area.mkdir()
        if containers.user is not None:
            os.chown(self.area, containers.user, containers.user)

    def run(self):
        seed = str(int(self.containers.case.line.seed, 16))
        return self.containers.start((), self.SHADOWIB, "run", "--job=j", "--dir=/data/ckpt", "--backend=ib2tcp", "--",
                                     "/opt/shadowib/bin/shadowib-storm", "--processes=1", "--rank=0", "--area=/data/area",
                                     f"--seed={seed}")

    def checkpoint(self, container, *options):
        return self.containers.podman("exec", container.name, self.SHADOWIB, "checkpoint", "j", "--dir=/data/ckpt", *options)

    def restart(self, options):
        return self.containers.start(options, self.SHADOWIB, "restart", "j", "--dir=/data/ckpt", "--backend=ib2tcp")

    def progress(self) -> int:
        path = self.area / "progress-0"
        text = path.read_text().strip() if path.exists() else ""
        return int(text) if text.isdigit() else 0

    def await_progress(self, container):
        before = self.progress()
        wait_for("the storm to go on", lambda: container.poll() is not None or self.progress() > before, 120)
        check(container.poll() is None, f"the container has ended:\n{container.log.read_text(errors='replace')[-2000:]}")


def restart_as_told(storm: StormInside):
    """Restarts in a container of the same kind, then with each option that a refusal names. The container, and the options."""
    options = []
    for _ in range(OPTIONS_AT_MOST + 1):
        before, container = storm.progress(), storm.restart(options)
        wait_for("the restart to run or to end", lambda c=container, b=before: c.poll() is not None or storm.progress() != b, 120)
        if container.poll() is None:
            return container, options
        said = container.log.read_text(errors="replace")
        check(container.returncode in (PERMISSION, REFUSED), f"exit code {container.returncode} and no refusal:\n{said[-2000:]}")
        named = re.search(r"podman: ([^;)]+)", said)
        check(named, f"a refusal that names no option of podman's:\n{said[-2000:]}")
        check(named[1].split() != options[-len(named[1].split()):], f"the option it names does not grant it:\n{said[-2000:]}")
        options += named[1].split()
    raise AssertionError("unreachable: " + " ".join(options))


def life(case: Case, user: int | None):
    containers = Containers(case, user)
    storm = StormInside(containers)
    container = storm.run()
    storm.await_progress(container)
    for _ in range(2):
        done = storm.checkpoint(container)
        check(done.returncode == 0, f"checkpoint: exit code {done.returncode}: {done.stderr}")
        storm.await_progress(container)
    storm.checkpoint(container, "--kill")  # ends with the container, perhaps before it can say so
    check(container.wait(60) == 137, f"killed on request, and the container's exit code is {container.returncode}")
    sets = sorted((containers.data / "ckpt" / "sets").glob("j.*"))
    check([s.name for s in sets] == ["j.0001", "j.0002", "j.0003"], f"sets: {[s.name for s in sets]}")
    container, options = restart_as_told(storm)
    storm.await_progress(container)
    done = storm.checkpoint(container)
    check(done.returncode == 0, f"checkpoint after the restart: exit code {done.returncode}: {done.stderr}")
    storm.await_progress(container)
    (storm.area / "stop").touch()
    check(container.wait(120) == 0, f"exit code {container.returncode}:\n{container.log.read_text(errors='replace')[-2000:]}")
    return "restarted " + (f"with {' '.join(options)}, as the refusal said" if options else "with the default options")


def run() -> int:
    line = Line("containers", __doc__)
    if os.geteuid() == 0:
        line.case("by root", lambda case: life(case, None))
        line.case("by an ordinary user", lambda case: life(case, USER))
    else:
        line.case("by this user", lambda case: life(case, None))
    return line.finish()


if __name__ == "__main__":
    main(run)
