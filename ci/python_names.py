"""Imports of the repository's own Python files that lead nowhere.

Python looks at an import when it comes to it: one inside of a function that only a long run calls stays broken for months.
"""
import ast
import sys

# Modules that are not Python's and not the repository's: of rdma-core's tests, which pyverbs_runner.py runs.
FOREIGN = {"args_parser", "distributed", "mpi4py"}


def defined(tree: ast.Module) -> set[str]:
    """Names that the file defines anywhere: as much as an import may ask for."""
    names = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))
                    for alias in node.names}


def imported(tree: ast.Module) -> list[tuple[int, str, str]]:
    """(line, module, name or "") of every import."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name.split(".")[0], "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.lineno, node.module.split(".")[0], alias.name) for alias in node.names]
    return found


def complaints(texts: dict[str, str]) -> list[str]:
    """`texts`: all files of the repository by their names."""
    trees = {name: ast.parse(text, name) for name, text in texts.items()
             if name.endswith(".py") or text.startswith("#!/usr/bin/env python3")}
    modules: dict[str, set[str]] = {}
    for name, tree in trees.items():
        modules.setdefault(name.rsplit("/", 1)[-1].removesuffix(".py"), set()).update(defined(tree))
    found = []
    for name, tree in trees.items():
        for line, module, wanted in imported(tree):
            if module in sys.stdlib_module_names or module in FOREIGN:
                continue
            if module not in modules:
                found.append(f"{name}:{line}: there is no module {module}")
            elif wanted and wanted not in modules[module]:
                found.append(f"{name}:{line}: {module}.py defines no {wanted}")
    return found
