"""A fresh Debian of the machine's own release, below a directory: made by debootstrap once and unpacked from a tar file later.

Commands run in namespaces of their own for mounts and processes. With the last process all mounts are gone, however it ended.
"""
import os
import pathlib
import shutil
import subprocess
import tempfile

CACHE = pathlib.Path(__file__).resolve().parents[2] / "build" / "chroot"
# A script for sh, run in the new namespaces: $1 is the root, the rest is the command.
ENTER = r"""
set -e
root=$1; shift
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
# No chroot: a process in one may not make user namespaces, which restarts of ordinary users need.
cd "$root"
pivot_root . mnt
cd /
/usr/bin/umount -l /mnt
exec /usr/bin/env -i HOME=/root TERM=dumb LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
"""


class Unavailable(Exception):
    """Why there can be no chroot here."""


def mirrors() -> dict[str, str]:
    """Where the machine's apt has Debian from: suite -> URI. The first suite is the release."""
    release = next(line.split("=")[1].strip() for line in open("/etc/os-release") if line.startswith("VERSION_CODENAME="))
    listed = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT) $(ORIGIN)",
                             "Created-By: Packages"], capture_output=True, text=True, check=False).stdout
    found = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.split(" ")[1]):
        uri, suite, component, origin = line.split(" ", 3)
        if component == "main" and origin == "Debian" and suite.startswith(release):
            found.setdefault(suite, uri)
    if release not in found:
        raise Unavailable(f"apt has no lists of Debian {release}; run apt-get update")
    return found


class Chroot:
    """with Chroot(directory) as root: root.run([...]). The tree is removed at the end."""

    def __init__(self, directory: pathlib.Path | None = None):
        if os.geteuid() != 0:
            raise Unavailable("a chroot needs root")
        if not shutil.which("debootstrap"):
            raise Unavailable("debootstrap is not installed")
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="shadowib-chroot-", dir=directory))

    def __enter__(self):
        try:
            tar = self._base()
            subprocess.run(["tar", "-C", self.root, "-xpf", tar], check=True)
            shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")
        except BaseException:
            shutil.rmtree(self.root, ignore_errors=True)
            raise
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.root)

    @staticmethod
    def _base() -> pathlib.Path:
        """The minimal system with its lists of packages, as a tar file. Kept for a week: lists grow old."""
        release = next(iter(mirrors()))
        tar = CACHE / f"{release}.tar"
        if tar.exists() and os.path.getmtime(tar) > os.path.getmtime(__file__) \
                and subprocess.run(["find", tar, "-mtime", "-7"], capture_output=True, check=True).stdout:
            return tar
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            made = pathlib.Path(scratch) / "root"
            log = CACHE / "debootstrap.log"
            with open(log, "wb") as sink:
                done = subprocess.run(["debootstrap", "--variant=minbase", release, made, mirrors()[release]], stdout=sink,
                                      stderr=subprocess.STDOUT, check=False)
            if done.returncode != 0:
                raise Unavailable(f"debootstrap failed, see {log}: {log.read_text(errors='replace').strip().splitlines()[-1]}")
            (made / "etc/apt/sources.list").write_text("".join(f"deb {uri} {suite} main\n" for suite, uri in mirrors().items()))
            # A mirror may be a snapshot, whose lists are old.
            (made / "etc/apt/apt.conf.d/90tests").write_text('Acquire::Check-Valid-Until "false";\nAcquire::Retries "3";\n'
                                                             'APT::Install-Recommends "false";\n')
            for proxy in pathlib.Path("/etc/apt/apt.conf.d").glob("*proxy*"):
                shutil.copy(proxy, made / "etc/apt/apt.conf.d")
            shutil.copy("/etc/resolv.conf", made / "etc/resolv.conf")
            enter(made, ["apt-get", "update", "-q"], check=True, stdout=subprocess.DEVNULL)
            partial = pathlib.Path(scratch) / "tar"
            subprocess.run(["tar", "-C", made, "--exclude=./dev/*", "-cpf", partial, "."], check=True)
            partial.replace(tar)
        return tar

    def run(self, argv: list[str], user: str | None = None, cwd: str = "/", **how) -> subprocess.CompletedProcess:
        """Runs a command in it, as root or as `user`. `how`: as for subprocess.run."""
        words = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", cwd, *argv]
        if user:
            words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "env", f"HOME=/home/{user}", *words]
        return enter(self.root, words, **how)


def enter(root: pathlib.Path, words: list[str], **how) -> subprocess.CompletedProcess:
    return subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private",
                           "sh", "-c", ENTER, "sh", str(root), *map(str, words)], stdin=subprocess.DEVNULL, **how)
