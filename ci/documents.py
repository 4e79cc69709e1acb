#!/usr/bin/env python3
"""Checks documents against the tree: links, paths, and the table of verbs.

Usage: ci/documents.py      exit code 1 if something is wrong
  - a link of a document leads to a file of the repository, and its anchor to a heading
  - a path between backticks that begins with a directory of the repository exists
  - docs/reference/verbs.md names each public verb of shadowib/abi/verbs.def once, under how it is handled
  - docs/reference/process-state.md names each state of hooks/imager/kernel_state.def once, likewise
  - no two rows of the tables of INDEXES begin alike
  - examples of man pages fit into 80 columns
  - docs/guide/troubleshooting.md quotes messages that the sources have; words in capitals stand for names and numbers
  - refusals of what cannot be captured say what to do, behind a semicolon, or have a row there
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
VERBS = "docs/reference/verbs.md"
MAN, MAN_COLUMNS = "docs/man", 80
INDEXES = ("README.md", "docs/README.md", "docs/internals/decisions/README.md", "docs/internals/architecture.md")
TROUBLES = "docs/guide/troubleshooting.md"
MESSAGES = (TROUBLES, "docs/guide/portable.md", "docs/guide/bsp.md")  # pages with tables of them
REFUSING = ("hooks/imager/descriptors/capture/*.cc", "hooks/imager/save/mapping_table.cc", "hooks/imager/save/process_state.cc",
            "hooks/imager/save/timers.cc")
CENSUS = "shadowib/abi/verbs.def"
STATES = "docs/reference/process-state.md"
STATE_CENSUS = "hooks/imager/kernel_state.def"
LINK = re.compile(r"(?<!\\)\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:ci|cmake|docs|examples|hooks|ib2tcp|model|perftest|shadowib|storm)/[\w./*-]*)")
# Made by a build or written by a run, and parts of a key or an installation.
NOT_OF_THE_TREE = re.compile(r"ib2tcp/(lid|ep|mcast)/|shadowib/libshadowib|shadowib/dropin|shadowib/shadowib\.h")
# The title of the last column of a table, and the handlings of the census that belong there.
VERB_COLUMNS = {"shadowed": {"shadow"}, "stateless": {"forward", "noop"}, "refused": {"refuse"}}
STATE_COLUMNS = {"restored": {"kRestored"}, "refused": {"kRefused"}, "harmless": {"kHarmless"}}
LITERALS = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*')
# What stands for a name or a number in a quoted message, and the fewest characters of the rest that tell anything.
PLACEHOLDER = re.compile(r"\b[A-Z]+\b|\.\.\.|'")
LEAST_PART = 6
LEAST_REASON = 12  # of a message that a row explains
PREFIXES = {"ibv_cq_ex": "ibv_wc_", "ibv_wq": "ibv_wq_"}
NAMES = {"ibv_wq_post_recv": "ibv_post_wq_recv", "ibv_query_rt_values": "ibv_query_rt_values_ex", "ibv_wc_start_poll": "ibv_start_poll",
         "ibv_wc_next_poll": "ibv_next_poll", "ibv_wc_end_poll": "ibv_end_poll"}


def documents() -> list[str]:
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
                            capture_output=True, text=True, check=False).stdout.split()
    listed = listed or [str(p.relative_to(ROOT)) for p in ROOT.rglob("*.md") if p.relative_to(ROOT).parts[0] != "build"]
    return sorted(name for name in listed if (ROOT / name).is_file())


def anchors(text: str) -> set[str]:
    """The anchors of headings, as GitHub makes them."""
    headings = re.findall(r"^#+\s+(.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_links(name: str, text: str) -> list[str]:
    complaints = []
    for match in LINK.finditer(re.sub(r"```.*?```", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)):
        target, _, anchor = match[1].partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        line = text.count("\n", 0, text.find(match[0])) + 1
        file = (ROOT / name).parent / target if target else ROOT / name
        if not file.exists():
            complaints.append(f"{name}:{line}: leads to {match[1]}, which is not there")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            complaints.append(f"{name}:{line}: {match[1]}: there is no such heading")
    return complaints


def check_paths(name: str, text: str) -> list[str]:
    complaints = []
    for match in PATH.finditer(text):
        path = match[1].rstrip(".")
        if NOT_OF_THE_TREE.match(path) or (any(ROOT.glob(path)) if "*" in path else (ROOT / path).exists()):
            continue
        complaints.append(f"{name}:{text.count(chr(10), 0, match.start()) + 1}: there is no {path}")
    return complaints


def census(text: str) -> dict[str, str]:
    """Public verbs and how each is handled; a slot under the name of the function that calls it."""
    handled = {}
    for line in text.splitlines():
        words = line.split()
        if not words or words[0] not in ("func", "slot") or words[2] in ("PRIVATE", "1.0@"):
            continue
        name = words[1].lstrip("_")
        if words[0] == "slot":
            struct, _, member = words[1].partition(".")
            if member.startswith("_compat_"):
                continue
            name = member if member.startswith("ibv_") else PREFIXES.get(struct, "ibv_") + member
        handled.setdefault(NAMES.get(name, name), words[3])
    return handled


def state_census(text: str) -> dict[str, str]:
    return dict(re.findall(r"^STATE\((\w+), \w+, (\w+),", text, re.M))


def check_table(page: str, text: str, columns: dict[str, set[str]], handled: dict[str, str]) -> list[str]:
    """The last column of each table that has one of these titles names all of the census, each once, under its handling."""
    complaints, column, named = [], "", set()
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            column = ""
        elif cells[-1] in columns:
            column = cells[-1]
        elif column:
            for verb in re.findall(r"`(\w+)`", cells[-1]):
                if verb not in handled:
                    complaints.append(f"{page}:{number}: the census has no {verb}")
                elif handled[verb] not in columns[column]:
                    complaints.append(f"{page}:{number}: {verb} is {handled[verb]} in the census")
                elif verb in named:
                    complaints.append(f"{page}:{number}: {verb} is named twice")
                named.add(verb)
    return complaints + [f"{page}: {verb} is missing ({how})" for verb, how in handled.items() if verb not in named]


def messages_of(sources: list[str]) -> str:
    """All string literals, neighbours joined as the compiler joins them; a value (%s, $variable) is a NUL."""
    literals = []
    for text in sources:
        for match in LITERALS.finditer(text):
            literals.append(re.sub(r'(?<!\\)"\s*"', "", match[0])[1:-1].replace('\\"', '"'))
    return re.sub(r"%[-+ #0]*[\d.*]*(?:hh|h|ll|l|z)?[sdiuxXcp]|\$[a-z]+", "\0", "\n".join(literals))


def check_messages(name: str, text: str, messages: str) -> list[str]:
    """The first column of tables of messages. The programs' section has messages of others."""
    found, section, title = [], "", ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## "):
            section = line
        cell = line.strip("|").split("|")[0] if line.startswith("|") else ""
        title = "" if not cell else title or cell
        if section == "## Programs" or name != TROUBLES and not title.strip().startswith("message"):
            continue
        for message in re.findall(r"`([^`]+)`", cell):
            parts = [part.strip(" ,:;()") for part in PLACEHOLDER.split(message)]
            found += [f"{name}:{number}: no source has the message '{part}'" for part in parts
                      if len(part) >= LEAST_PART and part not in messages]
    return found


def check_refusals(name: str, text: str, rows: str) -> list[str]:
    """Not those that pass by themselves (EAGAIN), nor those whose words are a parameter (%s at the end)."""
    known = [part.strip(" ,:;()") for message in re.findall(r"`([^`]+)`", rows) for part in PLACEHOLDER.split(message)]
    known = [part for part in known if len(part) >= LEAST_REASON]
    found = []
    for match in re.finditer(r"return (?:refuse\w*\(|Status(?:::of)?\(Code::kRefused\b)[^\n]*(?:\n[^\n]*?)*?;\n", text):
        literals = [re.sub(r'"\s*"', "", literal[0])[1:-1] for literal in LITERALS.finditer(match[0])]
        said = "".join(literals)
        passes = "EAGAIN" in match[0] or any(literal.endswith("%s") for literal in literals)
        if " " in said and ";" not in said and not passes and not any(part in said for part in known):
            found.append(f"{name}:{text.count(chr(10), 0, match.start()) + 1}: no word of what to do, here or in {TROUBLES}: {said}")
    return found


def check_rows(name: str, text: str) -> list[str]:
    """No two rows of a table of links begin alike: two changes that added to one row were merged as two."""
    found, seen = [], set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            seen = set()
            continue
        first = line.strip("|").split(" | ")[0].strip()
        if first in seen:
            found.append(f"{name}:{number}: a second row '{first}': make it one")
        seen.add(first)
    return found


def check_examples(name: str, text: str) -> list[str]:
    """The lines of a man page's EXAMPLES, as a terminal shows them; man_test sees the same, by groff, when all is built."""
    found, inside, indent = [], False, 7
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(".SH"):
            inside, indent = "EXAMPLES" in line, 7
        elif line.startswith((".RS", ".RE")):
            indent += 7 if line.startswith(".RS") else -7
        elif inside and not line.startswith("."):
            columns = indent + len(re.sub(r"\\(?:f.|\(..|.)", lambda escape: "" if escape[0][1] in "f&" else "x", line))
            if columns > MAN_COLUMNS:
                found.append(f"{name}:{number}: {columns} columns, {MAN_COLUMNS} are shown: {line}")
    return found


def complaints() -> list[str]:
    found = []
    for page in sorted((ROOT / MAN).glob("*.[17]")):
        found += check_examples(f"{MAN}/{page.name}", page.read_text())
    for name in documents():
        text = (ROOT / name).read_text()
        found += check_links(name, text) + check_paths(name, text) + (check_rows(name, text) if name in INDEXES else [])
    sources = [p.read_text() for room in ("hooks", "shadowib", "ib2tcp", "libraries") for p in sorted((ROOT / room).rglob("*"))
               if p.suffix in (".cc", ".h", ".in") and not p.stem.endswith("_test")]
    messages = messages_of(sources)
    for name in MESSAGES:
        found += check_messages(name, (ROOT / name).read_text(), messages)
    for pattern in REFUSING:
        for path in sorted(ROOT.glob(pattern)):
            found += check_refusals(str(path.relative_to(ROOT)), path.read_text(), (ROOT / TROUBLES).read_text())
    found += check_table(VERBS, (ROOT / VERBS).read_text(), VERB_COLUMNS, census((ROOT / CENSUS).read_text()))
    return found + check_table(STATES, (ROOT / STATES).read_text(), STATE_COLUMNS, state_census((ROOT / STATE_CENSUS).read_text()))


if __name__ == "__main__":
    if sys.argv[1:]:
        print(__doc__.strip())
        sys.exit(0 if sys.argv[1] in ("-h", "--help") else 2)
    FOUND = complaints()
    print("\n".join(FOUND))
    sys.exit(1 if FOUND else 0)
