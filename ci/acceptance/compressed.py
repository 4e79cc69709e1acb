"""I2, --compress: the pages of images are compressed, and every byte comes back: of memory of which half can be compressed, saved by
the program and by a saver, near and in --dir, whole and incrementally; and of LAMMPS in the whole form, which judges its sizes."""
import json
import pathlib
import shutil

from common import Case, Line, Skip, check, main
from incremental import Changing, image_of, packs_of
from jobs import Job, wait_for
from mpi import PATHS, Setup, check_result, launched, undisturbed
from mpi_programs import Lammps

MIB = 1 << 20
HOWS = ("none", "lz4", "zstd")
GOALS = {"lz4": 0.60, "zstd": 0.45}  # of what LAMMPS takes by none
HALF = 0.65  # of memory of which half is one word, and the program's libraries


def inspected(job: Job, path: pathlib.Path | str) -> dict:
    image = json.loads(job.command("inspect", str(path), "--json").stdout)["images"][0]
    check(image["stored_bytes"] <= image["page_bytes"], f"pages take more than they are: {image['stored_bytes']}")
    return image


def told(sizes: dict[str, int]) -> str:
    return ", ".join(f"{how} {size / MIB:.1f} MiB" + (f" ({100 * size / sizes['none']:.0f} %)" if how != "none" else "")
                     for how, size in sizes.items())


def each_kind(case: Case, mebibytes: int, save: str) -> str:
    """One process, saved and restarted by each kind."""
    changing = Changing(case, mebibytes, save, ("halves",))
    sizes = {}
    for how in HOWS:
        changing.order("change")
        result = changing.job.command("checkpoint", changing.job.name, "--compress", how, "--timeout", "300", "--kill", "--json",
                                      timeout=330)
        report = json.loads(result.stdout)
        path = pathlib.Path(report["set"])
        changing.job.sets.append(str(path))
        for program in changing.job.programs:
            program.process.wait(60)
        member, image = report["members"][0], inspected(changing.job, path)
        sizes[how] = image_of(path).stat().st_size
        check(sizes[how] == member["bytes"] == image["bytes"], f"{how}: {sizes[how]} bytes, told are {member['bytes']}, {image['bytes']}")
        check(member.get("compression", "none") == how, f"{how}: the member says {member}")
        check(how == "none" or member["page_bytes"] == image["page_bytes"], f"{how}: the member says {member}, the image {image['page_bytes']}")
        check((image["stored_bytes"] < image["page_bytes"]) == (how != "none"), f"{how}: {image['stored_bytes']} of {image['page_bytes']}")
        changing.job.command("verify", str(path))
        history = changing.job.command("history", changing.job.name).stdout
        check(how == "none" or f"({how} of " in history, f"{how}: the history does not tell: {history}")
        changing.restart()
        changing.keep_newest()
    for how in GOALS:
        check(sizes[how] <= HALF * sizes["none"], f"half can be compressed: {told(sizes)}")
    changing.finish()
    return told(sizes)


def near_and_incremental(case: Case, mebibytes: int) -> str:
    changing = Changing(case, mebibytes, "stopped", ("halves",))
    place = case.work / "near"
    place.mkdir()
    near = changing.job.command("checkpoint", changing.job.name, "--compress", "zstd", "--store", "disk:single", "--near", str(place),
                                "--timeout", "300", "--kill", timeout=330).stdout.strip().splitlines()[-1]
    changing.job.sets.append(near)
    for program in changing.job.programs:
        program.process.wait(60)
    changing.restart()
    changing.job.environment |= {"SHADOWIB_COMPRESS": "lz4", "SHADOWIB_STORE": "central"}
    whole = image_of(changing.checkpoint()).stat().st_size
    changing.order("change")
    path = changing.checkpoint(kill=True)
    part = image_of(path).stat().st_size
    check(len(packs_of(path)) == 1, f"packs: {packs_of(path)}")
    changed = changing.pages * 4096 / 100
    check(part <= HALF * changed + 2 * MIB, f"{part / MIB:.2f} MiB are written of {changed / MIB:.2f} MiB that changed")
    changing.keep_newest()
    changing.job.command("verify", str(path))
    changing.restart()
    shutil.rmtree(place, ignore_errors=True)
    changing.finish()
    return f"a near set restarted; whole {whole / MIB:.1f} MiB, then {part / MIB:.2f}"


def lammps(case: Case) -> str:
    """Its result after restarts is that of a run without any, and its images are as small as they should be."""
    setup = Setup(PATHS["ucx rc"], Lammps(steps=4000))
    if missing := setup.missing():
        raise Skip(missing)
    expected, _ = undisturbed(case, setup)
    job, sizes = launched(setup, case, "saved"), {}
    log = job.place / "log.lammps"
    wait_for("some steps", lambda: job.programs[0].ended() or log.exists() and "\nStep" in log.read_text(), 300)
    for how in HOWS:
        job.environment["SHADOWIB_COMPRESS"] = how
        check(job.kill_everything(), "LAMMPS came to its end")
        sizes[how] = sum(image.stat().st_size for image in pathlib.Path(job.sets[-1]).glob("*.img"))
        inspected(job, job.sets[-1])
        job.restart()
        wait_for("the restarted ranks", lambda: job.programs[0].ended() or len(job.members()) == setup.ranks, 120, 0.05)
    job.finish(600)
    check_result(job, expected)
    for how, goal in GOALS.items():
        check(sizes[how] <= goal * sizes["none"], f"{how} has to take {100 * goal:.0f} % at most: {told(sizes)}")
    return told(sizes)


def run() -> int:
    line = Line("compressed", __doc__)
    mebibytes = 32 if line.quick else 1024
    line.case("each kind", lambda case: each_kind(case, mebibytes, "stopped"))
    line.case("each kind by savers", lambda case: each_kind(case, mebibytes, "forked"))
    line.case("near, and incrementally", lambda case: near_and_incremental(case, mebibytes))
    if not line.quick:
        line.case("LAMMPS", lammps)
    return line.finish()


if __name__ == "__main__":
    main(run)
