"""Which sources ci/locks leaves to others: those without annotations, and those that a build has checked.

locks_test.py [unittest options]
"""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("locks", str(HERE / "locks"))
locks = importlib.util.module_from_spec(importlib.util.spec_from_loader("locks", loader))
loader.exec_module(locks)


class Left(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)
        self.top = pathlib.Path(self.place.name).resolve()
        self.write("guarded.h", f'#include "{locks.ANNOTATIONS}"\n')
        self.write("far.h", '#pragma once\n#  include "guarded.h"\n')
        self.write("guarded.cc", '#include <vector>\n#include "far.h"\n')
        self.write("plain.cc", "#include <vector>\n")

    def write(self, name: str, text: str) -> pathlib.Path:
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def entry(self, source: str, options: str = "", build: str = "clang") -> dict:
        directory = self.top / build
        directory.mkdir(exist_ok=True)
        return {"directory": str(directory), "file": str(self.top / source),
                "command": f"ccache /usr/bin/clang++ -I{self.top} {options} -o {pathlib.Path(source).name}.o -c {self.top / source}"}

    def built(self, source: str, options: str, made: bool = True) -> pathlib.Path:
        entry = self.entry(source, options, "fuzz")
        self.write("fuzz/compile_commands.json", json.dumps([entry]))
        if made:
            self.write(f"fuzz/{pathlib.Path(source).name}.o", "")
        return self.top / "fuzz"

    def left(self, *entries: dict, built: pathlib.Path | None = None) -> list[str]:
        return [pathlib.Path(entry["file"]).name for entry in locks.left_to_check(list(entries), built)]

    def test_a_source_is_checked_that_includes_annotations_by_a_header(self):
        self.assertEqual(self.left(self.entry("guarded.cc"), self.entry("plain.cc")), ["guarded.cc"])

    def test_sources_that_are_compiled_at_once(self):
        self.write("Unity/unity_0_cxx.cxx", f'#include "{self.top}/plain.cc"\n#include "{self.top}/guarded.cc"\n')
        self.write("Unity/unity_1_cxx.cxx", f'#include "{self.top}/plain.cc"\n')
        united = [self.entry(f"Unity/unity_{number}_cxx.cxx") for number in (0, 1)]
        self.assertEqual(self.left(*united), ["unity_0_cxx.cxx"])
        self.assertEqual(self.left(*united, built=self.built("guarded.cc", "-Werror -Wthread-safety")), ["unity_0_cxx.cxx"])
        self.assertEqual(self.left(*united, built=self.built("Unity/unity_0_cxx.cxx", "-Werror -Wthread-safety")), [])

    def test_a_header_that_is_not_found_is_an_error(self):
        self.write("guarded.cc", '#include "gone.h"\n')
        with self.assertRaises(SystemExit):
            self.left(self.entry("guarded.cc"))

    def test_what_a_build_has_checked_is_left_out(self):
        checked = "-Werror -Wthread-safety"
        self.assertEqual(self.left(self.entry("guarded.cc"), built=self.built("guarded.cc", checked)), [])
        for options, made in ((checked, False), ("-Wthread-safety", True), ("-Werror", True), (checked + " -DOTHER", True)):
            (self.top / "fuzz" / "guarded.cc.o").unlink(missing_ok=True)
            with self.subTest(options=options, made=made):
                self.assertEqual(self.left(self.entry("guarded.cc"), built=self.built("guarded.cc", options, made)), ["guarded.cc"])

    def test_what_a_build_has_made_before_a_change_is_checked(self):
        for name in ("guarded.cc", "far.h"):
            built = self.built("guarded.cc", "-Werror -Wthread-safety")
            made = (built / "guarded.cc.o").stat().st_mtime_ns
            with self.subTest(changed=name):
                self.assertEqual(self.left(self.entry("guarded.cc"), built=built), [])
                os.utime(self.top / name, ns=(made + 1, made + 1))
                self.assertEqual(self.left(self.entry("guarded.cc"), built=built), ["guarded.cc"])
                os.utime(self.top / name, ns=(made, made))

    def test_other_code_under_a_sanitizer_is_checked_all_the_same(self):
        built = self.built("guarded.cc", "-Werror -Wthread-safety")
        self.write("far.h", '#include "guarded.h"\n#ifdef __SANITIZE_THREAD__\n#endif\n')
        self.built("guarded.cc", "-Werror -Wthread-safety")
        self.assertEqual(self.left(self.entry("guarded.cc"), built=built), [])
        self.write("far.h", '#include "guarded.h"\n#ifdef __SANITIZE_ADDRESS__\n#endif\n')
        self.built("guarded.cc", "-Werror -Wthread-safety")
        self.assertEqual(self.left(self.entry("guarded.cc"), built=built), ["guarded.cc"])


if __name__ == "__main__":
    unittest.main()
