"""Every option of --help is in the command's man page and the other way round; every variable the code reads is described.

man_test.py COMMAND SOURCE_DIRECTORY
"""
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

COMMAND, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
MAN = SOURCE / "docs" / "man"
COMMANDS = ("run", "supervise", "tend", "checkpoint", "restart", "status", "line", "history", "report", "list", "inspect", "verify", "gc", "rebuild", "flush", "keeper",
            "worker", "doctor")


def options_of_help(*command, program=COMMAND):
    text = subprocess.run([program, *command, "--help"], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"^  (?:-\w,)?(--[a-z-]+)", text, re.M))


def options_of_page(name):
    text = (MAN / name).read_text().replace("\\-", "-")
    options = text[text.index(".SH OPTIONS"):]
    options = options[:options.index(".SH", 4)]
    return {option for line in re.findall(r"^\.B[IR]? .*", options, re.M) for option in re.findall(r"--[a-z][a-z-]*", line)}


def completed(*words):
    """What bash offers for the last of the words."""
    script = subprocess.run([COMMAND, "--completion", "bash"], check=True, capture_output=True, text=True).stdout
    ask = 'COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _shadowib; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", script + ask, "bash", "shadowib", *words], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


class Completions(unittest.TestCase):
    def test_bash_offers_every_command_and_option(self):
        self.assertEqual(completed(""), set(COMMANDS))
        for command in ((), *((c,) for c in COMMANDS)):
            with self.subTest(command):
                self.assertEqual(completed(*command, "--"), options_of_help(*command) | {"--help"})
        self.assertEqual(completed("run", "--backend", ""), {"auto", "verbs", "ib2tcp"})

    def test_zsh_offers_every_command_and_option(self):
        script = subprocess.run([COMMAND, "--completion", "zsh"], check=True, capture_output=True, text=True).stdout
        self.assertTrue(script.startswith("#compdef shadowib\n"))
        for command in COMMANDS:
            part = re.search(rf"(?ms)^      {command}\) (.*?) ;;$", script)[1]
            offered = set(re.findall(r"'(--[a-z-]+)=?\[", part))
            self.assertEqual(offered | {"--help"}, options_of_help(command) | {"--help"}, command)
        if zsh := shutil.which("zsh"):
            subprocess.run([zsh, "-n", "/dev/stdin"], input=script, text=True, check=True)


class ManPages(unittest.TestCase):
    def test_options_agree(self):
        for command in COMMANDS:
            with self.subTest(command):
                self.assertEqual(options_of_help(command), options_of_page(f"shadowib-{command}.1"))
        self.assertEqual(options_of_help(), options_of_page("shadowib.1"))
        storm = pathlib.Path(COMMAND).with_name("shadowib-storm")
        self.assertEqual(options_of_help(program=storm), options_of_page("shadowib-storm.1"))

    def test_commands_and_pages_agree(self):
        help_text = subprocess.run([COMMAND, "--help"], check=True, capture_output=True, text=True).stdout
        listed = set(re.findall(r"^  ([a-z]+)  ", help_text[help_text.index("Commands:"):], re.M))
        self.assertEqual(listed, set(COMMANDS))
        pages = {p.stem for p in MAN.glob("shadowib-*.1")} - {"shadowib-pingpong", "shadowib-storm", "shadowib-cc", "shadowib-c++", "shadowib-values"}
        self.assertEqual(pages, {f"shadowib-{c}" for c in COMMANDS})

    def test_exit_codes_agree(self):
        header = (SOURCE / "shadowib/base/status.h").read_text()
        codes = set(re.findall(r"^  k\w+ = (\d+),", header, re.M))
        page = (MAN / "shadowib.1").read_text()
        table = page[page.index(".SH EXIT STATUS"):]
        for code in codes | {"20", "70", "75", "125", "126", "127"}:
            self.assertRegex(table, rf"(?m)^\.B {code}$", code)

    def test_every_variable_is_described(self):
        page = (MAN / "shadowib-environment.7").read_text()
        described = set(re.findall(r"^\.BR? (SHADOWIB_[A-Z0-9_]+)", page, re.M))
        read = set()
        for directory in ("shadowib", "hooks", "ib2tcp"):
            for path in (SOURCE / directory).rglob("*.cc"):
                if "test" not in path.name and path.name != "guard.cc":  # which is in no library of the product
                    read |= set(re.findall(r'getenv\("(SHADOWIB_[A-Z0-9_]+)"\)', path.read_text()))
        self.assertLessEqual(read, described)
        for name in "JOB DIR EXCHANGE BACKEND INTERVAL LOG SIGNAL IBVERBS IB2TCP_TRANSPORT FAULT COMMAND".split():
            self.assertIn("SHADOWIB_" + name, described)

    def rendered(self, page):
        """The page as a terminal of 80 columns shows it, by section; nothing is wrong with it."""
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-rLL=80n", "-P-cbou", str(page)], capture_output=True, text=True)
        self.assertEqual(done.stderr, "", page.name)
        sections, name = {}, None
        for line in done.stdout.splitlines():
            if re.match(r"[A-Z]", line) and not line.startswith("SHADOWIB"):
                name = line
                sections[name] = []
            elif name is not None:
                sections[name].append(line)
        return sections

    def test_lines_stand_as_they_were_meant(self):
        for page in sorted(MAN.glob("*.[17]")):
            sections = self.rendered(page)
            examples = sections.get("EXAMPLES", [])
            for line in examples:
                with self.subTest(page=page.name, line=line):
                    self.assertLessEqual(len(re.findall(r"\bshadowib(?:-storm)? (?!-- )[a-z-]", line.split(" -- ")[0])), 1, "one command a line")
                    self.assertTrue(line.isascii(), "it can be pasted into a shell")
                    self.assertLessEqual(len(line), 80, "it is not folded")
            if page.name not in ("shadowib.1", "shadowib-environment.7"):
                self.assertTrue(any(line.strip().startswith(page.stem.replace("-", " ", 1)) or page.stem in line for line in examples),
                                f"{page.name} has an example")
            for line in sections.get("FILES", []):
                with self.subTest(page=page.name, line=line):
                    self.assertLessEqual(line.count("DIR/"), 1)
        files = [line.split()[0] for line in self.rendered(MAN / "shadowib.1")["FILES"] if line.strip().startswith("DIR/")]
        self.assertGreaterEqual(len(files), 7)
        self.assertEqual(len(files), len(set(files)))

    def test_pages_are_well_formed(self):
        for page in MAN.glob("*.[17]"):
            text = page.read_text()
            self.assertRegex(text, r"(?m)^\.TH ", page.name)
            for section in (".SH NAME", ".SH DESCRIPTION", ".SH SEE ALSO"):
                self.assertIn(section, text, page.name)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
