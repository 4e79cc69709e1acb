"""Writes cpio archives of the "newc" form, which a kernel unpacks as its first root file system; several may follow each other."""
import pathlib
import stat


def directory(name: str) -> tuple[str, int, bytes]:
    return name, stat.S_IFDIR | 0o755, b""


def text(name: str, content: bytes, mode: int = 0o755) -> tuple[str, int, bytes]:
    return name, stat.S_IFREG | mode, content


def file(name: str, path: pathlib.Path) -> tuple[str, int, bytes]:
    return text(name, path.read_bytes())


def archive(entries: list[tuple[str, int, bytes]]) -> bytes:
    """Of (name, mode, content), in that order: a directory before what is in it."""
    out = bytearray()
    for inode, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        raw = name.encode() + b"\0"
        # inode, mode, uid, gid, links, mtime, size, device (2), special device (2), length of the name, no checksum
        fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(raw), 0)
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + raw
        out += bytes(-len(out) % 4) + content
        out += bytes(-len(out) % 4)
    return bytes(out) + bytes(-len(out) % 512)
