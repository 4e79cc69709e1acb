"""Whether ci/lint refuses what it is there for: each fault is planted in a copy of the tree's sources."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
KEPT = ("ci", "cmake", "docs", "examples", "hooks", "ib2tcp", "libraries", "model", "perftest", "shadowib", "storm")


class Lint(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        cls.tree = pathlib.Path(cls.place.name)
        for folder in KEPT:
            shutil.copytree(ROOT / folder, cls.tree / folder, ignore=shutil.ignore_patterns("__pycache__"))

    @classmethod
    def tearDownClass(cls):
        cls.place.cleanup()

    def lint(self, check: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, "-B", str(self.tree / "ci/lint"), "--only", check], capture_output=True, text=True,
                              check=False)
        return done.returncode, done.stdout + done.stderr

    def refuses(self, check: str, file: str, planted: str, words: str, *, beside: tuple[str, str] | None = None):
        """With `planted` as the file's first line, and a second such pair."""
        before = {}
        for name, line in [(file, planted), *([beside] if beside else [])]:
            before[name] = (self.tree / name).read_text()
            (self.tree / name).write_text(line + "\n" + before[name])
        code, output = self.lint(check)
        for name, text in before.items():
            (self.tree / name).write_text(text)
        self.assertEqual(code, 1, output)
        self.assertIn(words, output)

    def test_the_tree_passes(self):
        for check in ("layers", "names", "paths"):
            code, output = self.lint(check)
            self.assertEqual(code, 0, output)

    def test_an_include_that_goes_up(self):
        self.refuses("layers", "shadowib/base/log.cc", '#include "hooks/agent/agent.h"', "shadowib/base may see nothing only")
        self.refuses("layers", "hooks/threads/stop.cc", '#include "hooks/job/job_info.h"', "hooks/threads may see")
        self.refuses("layers", "hooks/imager/descriptors/capture/capture.cc",
                     '#include "hooks/imager/descriptors/remake/restore.h"', "capture may see")

    def test_a_circle_of_folders(self):
        # Allowed by the layers, which know shadowib/entry as one; a circle all the same.
        self.refuses("layers", "shadowib/entry/guards/guard.h", '#include "shadowib/entry/errors.h"', "circle of folders",
                     beside=("shadowib/entry/errors.h", '#include "shadowib/entry/guards/guard.h"'))

    def test_the_heap_in_a_stopped_member(self):
        self.refuses("layers", "hooks/raw/text.cc", "void* planted() { return malloc(3); }", "calls malloc()")
        self.refuses("layers", "hooks/imager/save/timers.cc", "void planted() { std::free(nullptr); }", "calls free()")

    def test_two_classes_of_one_name(self):
        self.refuses("names", "shadowib/cr/published_ids.h", "namespace shadowib { class DirectoryReader final : public Status { }; }",
                     "another class is called shadowib::DirectoryReader, too, in hooks/raw/directory_reader.h")
        self.refuses("names", "hooks/agent/agent.cc", "namespace shadowib { struct Directory { struct Key {}; }; }",
                     "another class is called shadowib::Directory")

    def test_classes_of_one_name_that_are_apart(self):
        kept = "namespace shadowib::raw { class Directory {}; } namespace shadowib { namespace { class Directory {}; } class Directory; }"
        file = self.tree / "hooks/agent/agent.cc"
        before = file.read_text()
        file.write_text(kept + "\n" + before)
        code, output = self.lint("names")
        file.write_text(before)
        self.assertEqual(code, 0, output)

    def test_an_import_that_leads_nowhere(self):
        self.refuses("names", "ci/acceptance/storm.py", "def planted():\n    from gone import storm", "there is no module gone")
        self.refuses("names", "ci/acceptance/storm.py", "def planted():\n    from pair import gone", "pair.py defines no gone")

    def test_a_comment_that_names_no_file(self):
        self.refuses("paths", "shadowib/base/log.cc", "// See shadowib/entry/gone.cc.", "there is no file 'shadowib/entry/gone.cc'")
        self.refuses("paths", "hooks/agent/agent.cc", "// See GONE.md.", "there is no file 'GONE.md'")


if __name__ == "__main__":
    unittest.main(verbosity=2)
