"""Debian's kernel, downloaded and unpacked without being installed, and the first root file system for it. Both are cached."""
import contextlib
import dataclasses
import fcntl
import hashlib
import lzma
import os
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile

import newc

# What a guest needs, in the order of loading; what these depend on is found by depmod. rxe asks for crc32 by name, which no
# dependency tells.
MODULES = ("virtio_pci 9pnet_virtio 9p virtio_net veth bridge dummy crc32_generic crc32-pclmul crc32c-intel crc32c_generic "
           "ib_uverbs ib_umad rdma_ucm rdma_rxe unix_diag").split()
NFS_MODULES = "nfsd nfsv4".split()  # beside these, of guests with a shared directory
NEWEST = "linux-image-amd64"  # depends on the newest kernel's package
DOWNLOAD_S = 300


class Unavailable(Exception):
    """There is no kernel to be had; the text says why, and what to do."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    version: str               # "6.1.0-56-amd64"
    image: pathlib.Path        # for QEMU's -kernel
    initramfs: pathlib.Path    # busybox and the modules, without a program to begin with
    nfs_modules: pathlib.Path  # an archive to follow it


def cache() -> pathlib.Path:
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "shadowib" / "vm"


def obtain(package: str = NEWEST) -> Kernel:
    """The kernel of that Debian package, from the cache if it is there. Unavailable if not and it cannot be downloaded."""
    top = cache()
    top.mkdir(parents=True, exist_ok=True)
    with locked(top / "lock"):
        name, reason = newest_name() if package == NEWEST else (package, "")
        if name is None:
            known = sorted((path for path in top.glob("linux-image-*") if (path / "vmlinux").exists()), key=by_number)
            if not known:
                raise Unavailable(reason)
            name = known[-1].name
        return prepared(top / name)


def by_number(path: pathlib.Path) -> list:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


@contextlib.contextmanager
def locked(path: pathlib.Path):
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def tool(name: str, package: str) -> str:
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if path is None:
        raise Unavailable(f"{name} is not installed: ci/setup installs Debian's package {package}")
    return path


def newest_name() -> tuple[str | None, str]:
    """The package that `linux-image-amd64` depends on today, or None and why that is not known."""
    if not shutil.which("apt-cache"):
        return None, "this is no Debian: there is no apt-cache to name a kernel, and none is cached"
    told = subprocess.run(["apt-cache", "depends", NEWEST], capture_output=True, text=True, check=False).stdout
    match = re.search(r"Depends: (linux-image-\d\S+-amd64)$", told, re.M)
    return (match[1], "") if match else (None, f"apt knows no package {NEWEST}: run `apt-get update`")


def prepared(home: pathlib.Path) -> Kernel:
    """Downloads, unpacks and builds what is missing in `home`; every file there is complete, since it is renamed into place."""
    version = home.name.removeprefix("linux-image-")
    recipe = hashlib.sha256(repr((MODULES, NFS_MODULES, busybox().stat().st_mtime_ns, 1)).encode()).hexdigest()[:12]
    kernel = Kernel(version, home / "vmlinux", home / f"initramfs-{recipe}.cpio", home / f"nfs-{recipe}.cpio")
    if all(path.exists() for path in (kernel.image, kernel.initramfs, kernel.nfs_modules)):
        return kernel
    depmod, dpkg = tool("depmod", "kmod"), tool("dpkg", "dpkg")
    package = downloaded(home)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="unpack-") as tree:
        root = pathlib.Path(tree)
        run([dpkg, "-x", str(package), tree], f"cannot unpack {package}")
        image = root / "boot" / f"vmlinuz-{version}"
        if not image.exists():
            raise Unavailable(f"{package} has no {image.relative_to(root)}")
        unpacked = root / "vmlinux"
        unpacked.write_bytes(uncompressed(image.read_bytes()))
        run([depmod, "-b", tree, version], f"cannot order the modules of {version}")
        os.replace(unpacked, kernel.image)
        built = root / "built"
        modules = root / "lib" / "modules" / version
        always = load_order(modules, MODULES)
        nfs = load_order(modules, MODULES + NFS_MODULES)[len(always):]
        for target, files in ((kernel.initramfs, first_root(always)), (kernel.nfs_modules, numbered(nfs, len(always)))):
            built.write_bytes(newc.archive(files))
            os.replace(built, target)
    return kernel


def uncompressed(image: bytes) -> bytes:
    """The kernel within a bzImage, which QEMU boots as well, by PVH: its own unpacking takes three seconds of an emulated
    processor. As it is, if it is packed otherwise than with xz. Where it lies: the kernel's Documentation/arch/x86/boot.rst."""
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    packed = image[(sectors + 1) * 512 + offset:][:length]
    if image[0x202:0x206] != b"HdrS" or not packed.startswith(b"\xfd7zXZ\0"):
        return image
    return lzma.LZMADecompressor().decompress(packed)


def downloaded(home: pathlib.Path) -> pathlib.Path:
    home.mkdir(exist_ok=True)
    package = home / "package.deb"
    if package.exists():
        return package
    with tempfile.TemporaryDirectory(dir=home, prefix="download-") as work:
        # As root apt would become a user that cannot write here.
        as_self = ["-o", "APT::Sandbox::User=root"] if os.getuid() == 0 else []
        try:
            run([tool("apt-get", "apt"), *as_self, "-q", "download", home.name], f"cannot download {home.name}", cwd=work)
            os.replace(next(pathlib.Path(work).glob("*.deb")), package)
        except (Unavailable, StopIteration) as error:
            with contextlib.suppress(OSError):
                pathlib.Path(work).rmdir()
                home.rmdir()
            raise Unavailable(f"{error or 'apt-get downloaded nothing'}; is the network up, and `apt-get update` done?") from None
    return package


def run(argv: list[str], what: str, **options):
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                              timeout=DOWNLOAD_S, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{what}: {error}") from None
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise Unavailable(f"{what}: {last}")


def busybox() -> pathlib.Path:
    return pathlib.Path(tool("busybox", "busybox-static"))


def first_root(modules: list[pathlib.Path]) -> list:
    """busybox and the modules."""
    files = [newc.directory(name) for name in ("bin", "dev", "proc", "sys", "host", "real", "modules", "job")]
    files.append(newc.file("bin/busybox", busybox()))
    return files + numbered(modules)


def numbered(modules: list[pathlib.Path], first: int = 0) -> list:
    """By the order in which they have to be loaded."""
    return [newc.file(f"modules/{number:02d}-{path.name}", path) for number, path in enumerate(modules, first)]


def load_order(modules: pathlib.Path, names: list[str]) -> list[pathlib.Path]:
    """Those, and before each what it depends on."""
    needs, at = {}, {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        name = module_name(path)
        at[name], needs[name] = modules / path, [module_name(other) for other in others.split()]
    builtin = {module_name(path) for path in (modules / "modules.builtin").read_text().split()}
    ordered: dict[str, pathlib.Path] = {}
    for wanted in map(module_name, names):
        if wanted in builtin:
            continue
        if wanted not in at:
            raise Unavailable(f"the kernel in {modules} has no module {wanted}; Debian's cloud kernels lack some")
        for name in [*reversed(needs[wanted]), wanted]:
            ordered.setdefault(name, at[name])
    return list(ordered.values())


def module_name(path: str) -> str:
    return pathlib.PurePath(path).name.split(".ko")[0].replace("-", "_")
