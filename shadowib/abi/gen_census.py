#!/usr/bin/env python3
"""Generates what the build needs from verbs.def and the installed libibverbs.

Usage: gen_census.py verbs.def --library LIBIBVERBS_SO_1 --readelf READELF --out DIR

Writes into DIR
  libshadowib.map   version script of libshadowib.so
  dropin.map        version script of the drop-in libibverbs.so.1: all nodes, no symbols
  dropin.c          one local object per node, so that the linker keeps the node
  exports.S         the exported entry points: one jump each to a handler or a refusal
  census_names.inc  CENSUS_NAME(id, text): what a refusal calls itself
  census_table.inc  CENSUS_FUNC(name, node, default, handling, convention, man)
  slot_table.inc    CENSUS_SLOT(id, struct, member, handling, convention, man)
  newer_slots.inc   NEWER_SLOT(id, convention): front slots of verbs_context the installed header lacks, in layout order
"""
import argparse
import os
import re
import subprocess
import sys

HANDLINGS = ("shadow", "forward", "refuse", "noop", "data")
CONVENTIONS = ("int", "ptr", "minus1", "zero", "void", "rereg", "post", "-")
API = ["shadowib_version", "shadowib_is_member", "shadowib_join", "shadowib_checkpoint", "shadowib_add_hook",
       "shadowib_remove_hook", "shadowib_last_error"]
API_2 = ["shadowib_join_as", "shadowib_publish", "shadowib_lookup"]


def fail(message):
    sys.exit(f"gen_census.py: {message}")


def read_census(path):
    """Returns (functions, slots): dicts in file order; ids number both in that order."""
    functions, slots = [], []
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        fields = line.split("#")[0].split()
        if not fields:
            continue
        if len(fields) != 6 or fields[0] not in ("func", "slot"):
            fail(f"{path}:{number}: expected 'func|slot NAME NODE HANDLING CONVENTION MAN': {line.strip()}")
        kind, name, node, handling, convention, man = fields
        if handling not in HANDLINGS or convention not in CONVENTIONS:
            fail(f"{path}:{number}: unknown handling or convention of {name}")
        entry = dict(name=name, node=node.rstrip("@"), default=not node.endswith("@"), handling=handling,
                     convention=convention, man="" if man == "-" else man)
        (functions if kind == "func" else slots).append(entry)
    for index, entry in enumerate(functions + slots):
        entry["id"] = index
    return functions, slots


def installed_symbols(library, readelf):
    """Returns ({(name, node)}, private node) of the installed library; (empty, 'IBVERBS_PRIVATE_34') without one."""
    if not library or not os.path.exists(library):
        return set(), "IBVERBS_PRIVATE_34"
    text = subprocess.run([readelf, "-W", "--dyn-syms", library], check=True, capture_output=True, text=True).stdout
    found = set(re.findall(r"DEFAULT\s+(?:\d+|ABS)\s+(\S+?)@@?(IBVERBS_\S+)", text))
    private = sorted({node for _, node in found if "PRIVATE" in node})
    return found, private[0] if private else "IBVERBS_PRIVATE_34"


def resolve_private(functions, installed, private):
    """Names the private node, fills in its number, and drops private names the installed library does not have."""
    number = private.rsplit("_", 1)[1]
    kept = []
    for f in functions:
        if f["node"] == "PRIVATE":
            f["node"], f["name"] = private, f["name"].replace("_NN", "_" + number)
            if installed and (f["name"], private) not in installed:
                continue
        else:
            f["node"] = "IBVERBS_" + f["node"]
        kept.append(f)
    return kept


def public_order(node):
    return tuple(int(part) for part in node.split("_")[1].split("."))


def nodes_of(functions, private):
    return sorted({f["node"] for f in functions if f["node"] != private}, key=public_order)


def version_script(functions, private):
    """Nodes as in the library, each inheriting from the one before. No 'local: *': functions of libc that the guards
    interpose have no version and must stay visible; what is C is hidden where it is compiled. C++ names are hidden
    here, because headers give some of them default visibility (operator new, type information)."""
    lines, previous = [], ""
    for node in nodes_of(functions, private) + [private]:
        lines.append(f"{node} {{\n  global:")
        lines += [f"    {f['name']};" for f in functions if f["node"] == node and f["default"]]
        if not previous:
            lines.append("  local:\n    _Z*;")
        lines.append(f"}}{'' if node == private else previous};\n")
        previous = f" {node}"
    lines.append("SHADOWIB_1 {\n  global:")
    lines += [f"    {name};" for name in API]
    lines.append("};\n\nSHADOWIB_2 {\n  global:")
    lines += [f"    {name};" for name in API_2]
    lines.append("} SHADOWIB_1;\n")
    return "\n".join(lines)


def dropin_files(functions, private):
    script, source, previous = [], ["/* One marker per version node, so that the linker keeps the node. */"], ""
    for node in nodes_of(functions, private) + [private]:
        marker = "shadowib_dropin_" + node.replace(".", "_")
        script.append(f"{node} {{ global: {marker};{' local: *;' if not previous else ''} }}"
                      f"{'' if node == private else previous};")
        source.append(f"__attribute__((visibility(\"default\"))) const char {marker} = 0;")
        previous = f" {node}"
    return "\n".join(script) + "\n", "\n".join(source) + "\n"


def handler(name):
    return "shadowib_" + name.lstrip("_")


def exports(functions):
    """The only processor-dependent text here: x86-64 jumps."""
    out = ["/* Exported entry points of libshadowib.so: one jump each. */", ".text"]
    for f in functions:
        local = "export_" + f["name"] + "_" + f["node"].replace(".", "_")
        versioned = f"{f['name']}@{'@' if f['default'] else ''}{f['node']}"
        if f["handling"] == "data":
            out += [f".bss\n.globl {local}\n.type {local}, @object\n.size {local}, 1\n{local}: .zero 1\n.text"]
        else:
            if f["handling"] in ("shadow", "forward"):
                target, body = handler(f["name"]), []
            elif f["handling"] == "noop":
                target, body = "shadowib_census_noop", []
            else:
                target, body = f"shadowib_refuse_{f['convention']}", [f"\tmovl ${f['id']}, %edi"]
            out += [f".hidden {target}", f".globl {local}", f".type {local}, @function", ".p2align 4", f"{local}:",
                    "\tendbr64", *body, f"\tjmp {target}", f".size {local}, .-{local}"]
        out.append(f".symver {local}, {versioned}, local")
    out.append('.section .note.GNU-stack,"",@progbits')
    return "\n".join(out) + "\n"


def verb_of(slot):
    """The verb a program calls to reach a slot."""
    struct, member = slot.split(".")
    if struct == "ibv_cq_ex" and member.startswith("read_"):
        return "ibv_wc_" + member
    if struct == "ibv_wq":
        return "ibv_post_wq_recv"
    return member if member.startswith(("ibv_", "_compat_")) else "ibv_" + member


def table(functions, slots):
    names = [f'CENSUS_NAME({f["id"]}, "{f["name"]}{"" if f["default"] else " (version " + f["node"] + ")"}", "{f["man"]}")'
             for f in functions]
    names += [f'CENSUS_NAME({s["id"]}, "{verb_of(s["name"])}", "{s["man"]}")' for s in slots]
    rows = [f'CENSUS_FUNC({f["name"]}, "{f["node"]}", {int(f["default"])}, "{f["handling"]}", "{f["convention"]}", '
            f'"{f["man"]}")' for f in functions]
    cells = ['CENSUS_SLOT({}, {}, {}, {}, {}, "{}")'.format(s["id"], *s["name"].split("."), s["handling"],
                                                         s["convention"], s["man"]) for s in slots]
    newer = [f'NEWER_SLOT({s["id"]}, {s["convention"]})' for s in slots if s["name"].startswith("verbs_context.")]
    return names, rows, cells, newer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("census")
    parser.add_argument("--library", default="")
    parser.add_argument("--readelf", default="readelf")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    functions, slots = read_census(options.census)
    installed, private = installed_symbols(options.library, options.readelf)
    functions = resolve_private(functions, installed, private)
    names, rows, cells, newer = table(functions, slots)
    script, source = dropin_files(functions, private)
    files = {"libshadowib.map": version_script(functions, private), "dropin.map": script, "dropin.c": source,
             "exports.S": exports(functions), "census_names.inc": "\n".join(names) + "\n",
             "census_table.inc": "\n".join(rows) + "\n", "slot_table.inc": "\n".join(cells) + "\n",
             "newer_slots.inc": "\n".join(newer) + "\n"}
    os.makedirs(options.out, exist_ok=True)
    for name, text in files.items():
        with open(os.path.join(options.out, name), "w", encoding="utf-8") as out:
            out.write(text)


if __name__ == "__main__":
    main()
