"""Classes that have one name in one namespace and are defined in two files.

C++ takes them for one. Of two destructors that have no body in the class, the linker keeps one, and it runs for both. No compiler
sees that, since no file includes both.
"""
import collections
import re

NAMESPACE = re.compile(r"\bnamespace\s*([\w:]*)\s*$")
CLASS = re.compile(r"\b(?:class|struct|union)\b[^()=]*?(?<![\w:])([\w:]+)\s*(?:final\s*)?(?::[^:].*)?$", re.S)
# Attributes and macros with arguments stand between "class" and the name.
ATTRIBUTES = re.compile(r"\[\[.*?\]\]|\b\w+\([^()]*\)|\bSHADOWIB_[A-Z_]+\b")


def blanked(text: str) -> str:
    """Comments, strings and directives as blanks: every line stays where it is."""
    pattern = r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*"
    return re.sub(pattern, lambda match: re.sub(r"[^\n]", " ", match[0]), text, flags=re.S | re.M)


def classes_of(text: str) -> list[tuple[str, int]]:
    """(name with its namespace, line) of the classes of a C++ file, without those in anonymous namespaces and in other classes."""
    code, scopes, found = blanked(text), [], []
    begin = 0
    for match in re.finditer(r"[{};]", code):
        head = code[begin:match.start()].strip()
        begin = match.end()
        if match[0] == "}":
            del scopes[-1:]
        if match[0] != "{":
            continue
        namespace, name = NAMESPACE.search(head), CLASS.search(ATTRIBUTES.sub("", head))
        if namespace:
            scopes.append(namespace[1] or None)  # None: anonymous
            continue
        if name and all(isinstance(scope, str) and scope for scope in scopes):
            found.append(("::".join([*scopes, name[1]]), code.count("\n", 0, match.start()) + 1))
        scopes.append("")
    return found


def complaints(sources: dict[str, str]) -> list[str]:
    places: dict[str, dict[str, int]] = collections.defaultdict(dict)
    for name, text in sources.items():
        if name.endswith((".h", ".cc")):
            for defined, line in classes_of(text):
                places[defined].setdefault(name, line)
    return [f"{name}:{line}: another class is called {defined}, too, in {first}: name it otherwise, or put it into an anonymous namespace"
            for defined, where in sorted(places.items()) for first in [next(iter(where))]
            for name, line in list(where.items())[1:]]
