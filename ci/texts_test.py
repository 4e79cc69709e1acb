"""Tests of the checks of texts: ci/prose.py and ci/documents.py.

texts_test.py [unittest options]
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import documents
import prose

LONG = "This sentence " + "goes on and on " * 8 + "until it ends."
SHORT = "The agent waits for a request. "


class Prose(unittest.TestCase):
    def complaints(self, text, name="x.md"):
        return prose.judge(name, prose.sentences_of(name, text))

    def test_short_sentences_pass(self):
        self.assertEqual(self.complaints(SHORT * 20), [])

    def test_one_long_sentence_in_forty_passes_and_three_do_not(self):
        self.assertEqual(self.complaints(SHORT * 40 + LONG), [])
        self.assertEqual(len(self.complaints(SHORT * 40 + (LONG + " ") * 3)), 3)

    def test_an_average_above_16_words_is_told(self):
        sentence = "The agent of a member waits in its thread for a request, reads the request, and then answers it. "
        self.assertIn("at most 16 read well", " ".join(self.complaints(sentence * 10)))

    def test_weak_beginnings_are_told_wherever_they_stand(self):
        for begin in ("Of", "What", "Who", "By", "The same"):
            found = self.complaints(f"A line.\n\n- {begin} it is a thing.\n")
            self.assertEqual(len(found), 1, begin)
            self.assertIn("x.md:3", found[0])
        self.assertEqual(self.complaints("The sameness of it. Offers are made. Whatever comes is taken."), [])

    def test_tables_code_and_headings_are_not_judged(self):
        self.assertEqual(self.complaints(f"# {LONG}\n\n| {LONG} |\n|---|\n| What it is |\n\n```\n{LONG}\n```\n\n    {LONG}\n" * 3), [])

    def test_items_of_a_list_are_sentences_of_their_own(self):
        self.assertEqual([s.words for s in prose.sentences_of("x.md", "- one two three\n- four five\n  six seven\n")], [3, 4])

    def test_comments_of_a_header_are_judged(self):
        text = "// Of a thing there is one.\nint x;\n/* By this one is made. */\n"
        self.assertEqual(len(self.complaints(text, "x.h")), 2)

    def test_moved_and_old_sentences_are_not_judged_and_new_ones_are(self):
        with tempfile.TemporaryDirectory() as directory:
            place = pathlib.Path(directory)

            def git(*words):
                return subprocess.run(["git", "-C", directory, "-c", "user.name=n", "-c", "user.email=e", *words], check=True,
                                      capture_output=True, text=True).stdout.strip()

            git("init", "-q", "-b", "main")
            (place / "a.md").write_text("What is old stays.\n")
            git("add", ".")
            git("commit", "-qm", "one")
            base = git("rev-parse", "HEAD")
            (place / "a.md").rename(place / "b.md")
            (place / "b.md").write_text("What is old stays. What is new is judged.\n")
            root, prose.ROOT = prose.ROOT, place
            try:
                self.assertEqual([c.split(": ")[-1] for c in prose.complaints_about_changes(base)], ["What is new is judged."])
                self.assertIsNone(prose.complaints_about_changes("nowhere"))
            finally:
                prose.ROOT = root


class Documents(unittest.TestCase):
    def test_links_and_anchors_lead_somewhere(self):
        good = "[a](README.md) [b](docs/guide/mpi.md#limits) [c](https://example.org/x) [d](docs/overview.svg)\n"
        self.assertEqual(documents.check_links("README.md", good), [])
        bad = documents.check_links("README.md", "x\n[a](nowhere.md)\n[b](docs/guide/mpi.md#nowhere)\n")
        self.assertEqual([c.split(":")[1] for c in bad], ["2", "3"])

    def test_paths_exist(self):
        self.assertEqual(documents.check_paths("x.md", "`ci/lint`, `shadowib/abi/verbs.def`, `ci/acceptance/*.py`, `docs/man/`"), [])
        self.assertEqual(len(documents.check_paths("x.md", "`ci/no_such_file`, `hooks/nowhere/*.cc`")), 2)

    def verbs(self, text, census):
        return documents.check_table("x.md", text, documents.VERB_COLUMNS, census)

    def test_refusals_say_what_to_do(self):
        rows = "| `it is what a row explains` | why | remedy |"
        good = ('return refuse(fd, "pipe", "it is odd; close it");\n'
                'return refuse(area, "it is odd",\n              "; unmap it");\n'
                'return refuse_child(t, c, "it ends just now", EAGAIN);\n'
                'return refuse(fd, "pipe", "as we know it is what a row explains");\n'
                'return Status::of(Code::kRefused, error, "descriptor %d: %s", fd, why);\n')
        self.assertEqual(documents.check_refusals("x.cc", good, rows), [])
        bad = 'a;\nreturn refuse(fd, "pipe",\n              "it is odd");\nreturn Status(Code::kRefused, 0, "more than 64 things");\n'
        found = documents.check_refusals("x.cc", bad, rows)
        self.assertEqual([line.split(": ")[0] for line in found], ["x.cc:2", "x.cc:4"])

    def test_the_table_of_verbs_is_that_of_the_census(self):
        census = documents.census("func ibv_a 1.1 shadow int -\nfunc ibv_b 1.1 refuse int -\nslot ibv_cq_ex.read_c - shadow zero -\n"
                                  "func ibv_private PRIVATE refuse int -\nfunc ibv_a 1.0@ refuse int -\n")
        self.assertEqual(census, {"ibv_a": "shadow", "ibv_b": "refuse", "ibv_wc_read_c": "shadow"})
        good = "| x | shadowed |\n|---|---|\n| x | `ibv_a`, `ibv_wc_read_c` |\n\n| x | refused |\n|---|---|\n| x | `ibv_b` |\n"
        self.assertEqual(self.verbs(good, census), [])
        self.assertEqual(len(self.verbs(good.replace("`ibv_a`, ", ""), census)), 1)
        self.assertEqual(len(self.verbs(good.replace("`ibv_b`", "`ibv_b`, `ibv_a`, `ibv_nothing`"), census)), 2)

    def test_examples_fit_into_a_terminal(self):
        page = ".SH EXAMPLES\n.nf\n.RS\n{}\n.RE\n.fi\n.SH FILES\n" + 100 * "x" + "\n"
        self.assertEqual(documents.check_examples("x.1", page.format(66 * "x")), [])
        self.assertEqual(documents.check_examples("x.1", page.format(65 * "x" + "\\-")), [])
        self.assertEqual(len(documents.check_examples("x.1", page.format(67 * "x"))), 1)

    def test_quoted_messages_are_those_of_the_sources(self):
        messages = documents.messages_of(['return f("descriptor %d cannot "\n   "be saved; close %.20s", fd);'])
        table = "| `descriptor N cannot be saved; close NAME` | why |\n"
        wrong = table.replace("saved", "kept")

        def check(text, name=documents.TROUBLES):
            return len(documents.check_messages(name, text, messages))
        self.assertEqual(check(table), 0)
        self.assertEqual(check(wrong), 1)
        self.assertEqual(check("\n## Programs\n" + wrong), 0)
        self.assertEqual(check("\n## Programs\n\n## Task farms\n" + wrong), 1)
        self.assertEqual(check("| message | remedy |\n" + wrong, "portable.md"), 1)
        self.assertEqual(check("| word | meaning |\n" + wrong, "portable.md"), 0)
        quoted = documents.messages_of(['warn("option \\"%s\\" is none");', 'complain "$argument leaves out types"'])
        self.assertIn('option "\0" is none', quoted)
        self.assertIn("\0 leaves out types", quoted)


if __name__ == "__main__":
    unittest.main()
