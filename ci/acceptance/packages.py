"""The Debian packages: installed in a fresh Debian they run a job, checkpoint, kill and restart it, complete its options and
show its pages; once removed they leave nothing behind."""
import os
import pathlib
import re
import subprocess
import sys

from common import Case, Line, Skip, check, main

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "chroot"))
from chroot import Chroot, Unavailable  # noqa: E402

NAMES = ("libshadowib0", "libshadowib-dev", "shadowib", "shadowib-doc")
# Directories whose content says nothing about packages, or is dpkg's own.
ELSEWHERE = ("proc", "sys", "dev", "tmp", "run", "mnt", "root", "var/cache", "var/log", "var/lib/apt", "var/lib/dpkg", "var/lib/systemd")


def build(case: Case) -> list[pathlib.Path]:
    """The four packages, made from the build tree."""
    out = case.work / "packages"
    done = subprocess.run(["cpack", "--config", case.line.build / "CPackConfig.cmake", "-B", out], capture_output=True, text=True,
                          check=False)
    check(done.returncode == 0, f"cpack exited with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    packages = sorted(out.glob("*.deb"))
    check({path.name.split("_")[0] for path in packages} == set(NAMES), f"cpack made {[path.name for path in packages]}")
    return packages


def names_below(root: pathlib.Path) -> set[str]:
    found = set()
    for directory, children, files in os.walk(root):
        below = os.path.relpath(directory, root)
        children[:] = [name for name in children if os.path.normpath(os.path.join(below, name)) not in ELSEWHERE]
        found |= {os.path.normpath(os.path.join(below, name)) for name in children + files}
    return found


def dead_links(root: pathlib.Path, installed: set[str]) -> list[str]:
    dead = []
    for name in sorted(installed):
        page = root / name
        if name.endswith(".md") and not page.is_symlink():
            links = re.findall(r"(?<!\\)\[[^\]]*\]\(([^)#\s]+)[^)\s]*\)", page.read_text())
            dead += [f"{name}: {link}" for link in links if not link.startswith("http") and not (page.parent / link).exists()]
    return dead


def in_a_fresh_debian(case: Case):
    packages = build(case)
    try:
        chroot = Chroot()
    except Unavailable as why:
        raise Skip(str(why)) from why
    with chroot as root:
        def run(*words, user=None):
            done = root.run(list(words), user=user, capture_output=True, text=True)
            case.note(f"$ {' '.join(words)}\n{done.stdout}{done.stderr}")
            check(done.returncode == 0, f"{' '.join(words)} exited with {done.returncode}: {(done.stdout + done.stderr)[-2500:]}")
            return done.stdout

        run("useradd", "-m", "tester")
        before = names_below(root.root)
        for package in packages:
            (root.root / "tmp" / package.name).write_bytes(package.read_bytes())
        run("apt-get", "install", "-y", "-q", *(f"/tmp/{package.name}" for package in packages))
        installed = names_below(root.root) - before
        for name in ("usr/bin/shadowib", "usr/lib/libshadowib.so.0", "usr/lib/shadowib/libshadowib-ib2tcp.so",
                     "usr/include/shadowib/shadowib.h", "usr/share/man/man1/shadowib-run.1.gz",
                     "usr/share/bash-completion/completions/shadowib", "usr/share/zsh/vendor-completions/_shadowib",
                     "usr/share/doc/shadowib-doc/copyright"):
            check(name in installed, f"/{name} is not installed")
        for package, parts in {"libshadowib0": ("Yann Collet", "Frank Denis"), "shadowib": ("Facebook", "Lohmann"), "libshadowib-dev": ()}.items():
            text = (root.root / "usr/share/doc" / package / "copyright").read_text()
            check("Apache License" in text and all(part in text for part in parts), f"the notices of {package} lack one of {parts}")
        dead = dead_links(root.root, installed)
        check(not dead, f"links of installed documents lead nowhere: {dead[:10]}")
        check(any(name.endswith("examples/batch/slurm.sh") for name in installed), "the scripts for batch systems are not installed")
        said = run("shadowib-pingpong", user="tester")
        check("verdict: ok" in said, f"shadowib-pingpong says: {said[-1500:]}")
        completed = run("bash", "-c", "source /usr/share/bash-completion/completions/shadowib; COMP_WORDS=(shadowib res) COMP_CWORD=1; "
                        "_shadowib; echo ${COMPREPLY[*]}")
        check(completed.split() == ["restart"], f"bash completes 'shadowib res' by {completed.split()}")
        run("dpkg", "--verify", *NAMES)
        run("apt-get", "purge", "-y", "-q", "--auto-remove", *NAMES)
        left = sorted(names_below(root.root) - before)
        check(not left, f"left behind: {left[:20]}")
        return f"{len(installed)} files came and went"


def run() -> int:
    line = Line("packages", __doc__)
    line.case("installed, used and removed in a fresh Debian", in_a_fresh_debian)
    return line.finish()


if __name__ == "__main__":
    main(run)
