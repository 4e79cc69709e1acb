#!/usr/bin/env python3
"""Measures the prose of documents and header comments: words a sentence, long sentences, weak beginnings.

Usage: ci/prose.py [--all] [--base REVISION] [--longest N] [FILE...]      exit code 1 if a rule is broken
  without FILE   judges the sentences that changed since the merge base with REVISION (default: origin/main, else main)
  FILE...        judges all sentences of these files
  --all          judges the whole tree: the averages of documents and of headers, and every weak beginning
  --longest N    prints the N longest sentences of what is judged, too

The rules: 16 words a sentence on average, at most 5 % of the sentences above 30 words, no sentence that begins with
Of, What, Who, By or The same. Tables, code, and headings are not judged.
"""
import argparse
import dataclasses
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
MEAN_WORDS = 16
LONG_WORDS = 30
LONG_SHARE = 0.05
# Fewer sentences give no average.
ENOUGH = 8
WEAK = re.compile(r"(Of|What|Who|By|The same)\b")
CODE = re.compile(r"``.*?``|`[^`]*`", re.DOTALL)
# A sentence ends before a capital letter, a quote, a bracket, code, or emphasis.
END = re.compile(r"(?<=[.!?])[)*_\"]*\s+(?=[A-Z\"'(*_`\[])")
WORD = re.compile(r"[A-Za-z0-9][\w'-]*")
NO_END = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|No|Fig)\.$")


@dataclasses.dataclass(frozen=True)
class Sentence:
    file: str
    line: int
    text: str

    @property
    def words(self) -> int:
        return len(WORD.findall(CODE.sub("x", self.text)))


def paragraphs_of_document(text: str):
    """Yields (line, paragraph) of Markdown: no code, table, heading, or indented block; each item of a list by itself."""
    paragraph, start, fenced, in_item = [], 0, False, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        item = re.match(r"\s*(?:[-*+]|\d+\.)\s+", line)
        ends = not line.strip() or fence or fenced or line.startswith(("#", "|", "<", "    ")) and not (in_item and line.startswith("  "))
        if (ends or item) and paragraph:
            yield start, " ".join(paragraph)
            paragraph = []
        if fence:
            fenced = not fenced
        if item:
            in_item = True
        elif ends and not line.startswith("  "):
            in_item = False
        if ends or line.startswith("<!--"):
            continue
        if not paragraph:
            start = number
        paragraph.append(line[item.end():] if item else line.strip("> "))


def paragraphs_of_header(text: str):
    """Yields (line, comment) of a C or C++ header: each block of // lines, each comment between /* and */."""
    block, start = [], 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        comment = re.match(r"\s*//[/!]?<?\s?(.*)", line)
        if comment:
            if not block:
                start = number
            block.append(comment[1])
        elif block:
            yield start, " ".join(block)
            block = []
    for match in re.finditer(r"/\*(.*?)\*/", text, re.DOTALL):
        yield text.count("\n", 0, match.start()) + 1, re.sub(r"\n\s*\* ?", "\n", match[1])


def sentences_of(name: str, text: str) -> list[Sentence]:
    paragraphs = paragraphs_of_document if name.endswith(".md") else paragraphs_of_header
    found = []
    for line, paragraph in paragraphs(text):
        joined = ""
        for part in END.split(" ".join(paragraph.split())):
            joined = f"{joined} {part}".strip()
            if NO_END.search(joined):
                continue
            sentence = Sentence(name, line, joined)
            joined = ""
            if sentence.words >= 3:
                found.append(sentence)
        if joined:
            found.append(Sentence(name, line, joined))
    return found


def git(*arguments: str) -> str | None:
    result = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return result.stdout if result.returncode == 0 else None


def tree(names=None) -> list[Sentence]:
    listed = names if names is not None else (git("ls-files", "--cached", "--others", "--exclude-standard") or "").splitlines()
    if names is None and not listed:
        listed = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.relative_to(ROOT).parts[0] != "build"]
    return [sentence for name in sorted(set(listed)) if name.endswith((".md", ".h")) and (ROOT / name).is_file()
            for sentence in sentences_of(name, (ROOT / name).read_text(errors="replace"))]


def merge_base(revision: str | None) -> str | None:
    for candidate in [revision] if revision else ["origin/main", "main"]:
        base = git("merge-base", "HEAD", candidate)
        if base:
            return base.strip()
    return None


def changed(base: str) -> list[Sentence]:
    """Sentences of this tree that stood nowhere at the base: a file that only moved has none."""
    names = [name for name in (git("diff", "--name-only", "--no-renames", base) or "").splitlines() if name.endswith((".md", ".h"))]
    names += [name for name in (git("ls-files", "--others", "--exclude-standard") or "").splitlines() if name.endswith((".md", ".h"))]
    there = set((git("ls-tree", "-r", "--name-only", base) or "").splitlines())
    before = {sentence.text for name in names if name in there
              for sentence in sentences_of(name, git("show", f"{base}:{name}") or "")}
    return [sentence for sentence in tree(names) if sentence.text not in before]


def judge(what: str, sentences: list[Sentence]) -> list[str]:
    """Complaints about one body of prose."""
    complaints = [f"{s.file}:{s.line}: begins with '{WEAK.match(s.text)[1]}': {s.text[:80]}" for s in sentences if WEAK.match(s.text)]
    if len(sentences) < ENOUGH:
        return complaints
    mean = sum(s.words for s in sentences) / len(sentences)
    long = [s for s in sentences if s.words > LONG_WORDS]
    if mean > MEAN_WORDS:
        complaints.append(f"{what}: {mean:.1f} words a sentence; at most {MEAN_WORDS} read well")
    if len(long) > LONG_SHARE * len(sentences):
        complaints += [f"{s.file}:{s.line}: {s.words} words in a sentence: {s.text[:80]}" for s in long]
    return complaints


def kinds(sentences: list[Sentence]) -> dict[str, list[Sentence]]:
    return {"documents": [s for s in sentences if s.file.endswith(".md")], "headers": [s for s in sentences if s.file.endswith(".h")]}


def files(sentences: list[Sentence]) -> dict[str, list[Sentence]]:
    found: dict[str, list[Sentence]] = {}
    for sentence in sentences:
        found.setdefault(sentence.file, []).append(sentence)
    return found


def complaints_about_changes(base: str | None = None, names: list[str] | None = None) -> list[str] | None:
    """For ci/lint: of the files `names`, if any are named. None: there is nothing to compare with, as in an unpacked archive."""
    found = merge_base(base)
    if found is None:
        return None
    return [c for name, sentences in files(changed(found)).items() if not names or name in names for c in judge(name, sentences)]


def complaints_about_tree() -> list[str]:
    return [c for what, some in kinds(tree()).items() for c in judge(what, some)]


def complaints_about_files(names: list[str]) -> list[str]:
    return [c for name, sentences in files(tree(names)).items() for c in judge(name, sentences)]


def figures(what: str, sentences: list[Sentence]) -> str:
    count = max(len(sentences), 1)
    mean = sum(s.words for s in sentences) / count
    long = 100 * sum(s.words > LONG_WORDS for s in sentences) / count
    weak = sum(bool(WEAK.match(s.text)) for s in sentences)
    return f"{what}: {len(sentences)} sentences, {mean:.1f} words each, {long:.1f} % above {LONG_WORDS}, {weak} with a weak beginning"


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__.split("Usage: ", 1)[1].split("  exit", 1)[0].strip(), description=__doc__.split("\n", 1)[0])
    parser.add_argument("--all", action="store_true", help="the whole tree")
    parser.add_argument("--base", metavar="REVISION", help="what changed since the merge base with it")
    parser.add_argument("--longest", type=int, default=0, metavar="N", help="print the N longest sentences, too")
    parser.add_argument("files", nargs="*", metavar="FILE")
    options = parser.parse_args()
    if options.files:
        names = [str(pathlib.Path(name).resolve().relative_to(ROOT)) for name in options.files]
        sentences = tree(names)
        complaints = complaints_about_files(names)
    elif options.all:
        sentences = tree()
        complaints = complaints_about_tree()
    else:
        base = merge_base(options.base)
        if base is None:
            print("SKIPPED prose: no base to compare with; name files, or take --all")
            return 0
        sentences = changed(base)
        complaints = complaints_about_changes(options.base) or []
    for what, some in kinds(sentences).items():
        print(figures(what, some))
    for s in sorted(sentences, key=lambda s: -s.words)[:options.longest]:
        print(f"{s.file}:{s.line}: {s.words} words: {s.text[:160]}")
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
