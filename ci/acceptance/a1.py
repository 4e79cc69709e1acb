"""A1: on a fresh Debian 12, ci/quickstart builds release and ends with shadowib-pingpong's table and verdict, and ci/test
passes. The fresh system is a minimal bookworm made by debootstrap, the root of a mount namespace of its own, with a copy
of what is committed."""
import os
import pathlib
import shutil
import subprocess

from common import ROOT, Case, Line, Skip, check, main

FILES = ("etc/resolv.conf", "etc/hosts", "etc/apt/apt.conf.d", "etc/apt/keyrings", "etc/ssl/certs/ca-certificates.crt")
MOUNTS = (("proc", "proc", "proc"), ("sysfs", "sys", "sysfs"), ("devtmpfs", "dev", "devtmpfs"), ("devpts", "dev/pts", "devpts"),
          ("tmpfs", "dev/shm", "tmpfs"))


def shell(case: Case, log: str, words: list[str], timeout: float, **options) -> str:
    """Runs a command with a pipe for its output: a file outside of the chroot is none that a checkpoint inside can find."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout,
                          text=True, errors="replace", check=False, **options)
    (case.work / log).write_text(done.stdout)
    check(done.returncode == 0, f"{' '.join(words)} exited with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def mirror() -> str:
    """Where this machine's apt gets Debian from."""
    for source in [pathlib.Path("/etc/apt/sources.list"), *pathlib.Path("/etc/apt/sources.list.d").glob("*")]:
        for line in source.read_text().splitlines() if source.exists() else []:
            words = line.split()
            if words[:1] == ["URIs:"] and words[1].rstrip("/").endswith("/debian"):
                return words[1]
            if words[:1] == ["deb"]:
                for word in words[1:]:
                    if word.rstrip("/").endswith("/debian"):
                        return word
    raise Skip("no apt source ends in /debian, so there is nothing to bootstrap from")


def bootstrap(case: Case) -> pathlib.Path:
    if os.geteuid() != 0:
        raise Skip("debootstrap and chroot need root; on a fresh Debian 12, run ci/quickstart and ci/test instead")
    if not shutil.which("debootstrap"):
        raise Skip("debootstrap is not installed")
    root = case.work / "root"
    shell(case, "debootstrap.log", ["debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", str(root), mirror()], 1200)
    for name in FILES:
        source, target = pathlib.Path("/") / name, root / name
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    # A mount point of its own, as the root directory of a system or a container is.
    subprocess.run(["mount", "--bind", str(root), str(root)], check=True)
    case.cleanups.append(lambda _: subprocess.run(["umount", "-l", str(root)], check=False))
    for kind, where, what in MOUNTS:
        (root / where).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", what, kind, str(root / where)], check=True)
        case.cleanups.append(lambda _, w=where: subprocess.run(["umount", "-l", str(root / w)], check=False))
    tree = root / "src" / "shadowib"
    tree.mkdir(parents=True)
    archive = subprocess.Popen(["git", "-C", str(ROOT), "archive", "HEAD"], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(tree)], stdin=archive.stdout, check=True)
    check(archive.wait() == 0, "git archive failed")
    return root


def fresh(case: Case):
    root = bootstrap(case)
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8",
                   **proxies}
    # By pivot_root and not by chroot, in which the kernel makes no user namespace.
    enter = 'cd "$0" && mkdir -p .old && pivot_root . .old && umount -l /.old && cd / && exec /bin/bash -c "$1"'
    inside = ["unshare", "--mount", "--propagation", "private", "/bin/bash", "-c", enter, str(root)]
    table = shell(case, "quickstart.log", inside + ["cd /src/shadowib && ci/quickstart"], 1800, env=environment)
    check("verdict" in table and "ok" in table.lower().rsplit("verdict", 1)[1], f"no good verdict:\n{table[-3000:]}")
    if case.line.quick:
        return "quickstart ends with verdict ok"
    text = shell(case, "test.log", inside + ["cd /src/shadowib && ci/test"], 3600, env=environment)
    return f"quickstart ends with verdict ok; test: {text.strip().splitlines()[-1]}"


def run() -> int:
    line = Line("a1", __doc__)
    line.case("fresh Debian 12", fresh)
    return line.finish()


if __name__ == "__main__":
    main(run)
