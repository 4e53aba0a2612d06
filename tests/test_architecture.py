"""Rules of the architecture that can be read off the source: import direction, owners of heavy libraries, sizes."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "evoengine"

# A package may import packages of lower layers only. The leaderboard stands beside the kernel side: it imports only the
# model, and only packages that store or read evaluations import it.
LAYERS = {
    "__main__": 12,
    "cli": 11,
    "api": 10,
    "evolution": 10,
    "engine": 9,
    "export": 8,
    "interop": 8,
    "report": 8,
    "search": 7,
    "parity": 6,
    "bench": 6,
    "device": 5,
    "costmodel": 5,
    "emulator": 4,
    "kernel": 4,
    "landscape": 4,
    "space": 3,
    "leaderboard": 3,
    "runtime": 2,
    "target": 2,
    "model": 2,
    "statistics": 1,
    "documents": 1,
    "system": 1,
    "errors": 0,
    "__init__": 0,
}
ONLY_FOR = {
    "leaderboard": {"cli", "api", "evolution", "engine", "search", "export", "interop", "report"},
    "cli": {"__main__"},
    "api": {"cli"},
    "evolution": {"cli"},
}
ONLY_FROM = {"emulator": {"errors"}}
"""Packages that import no package but these."""
FACADE = "evoengine.__init__"
"""Hands on the public names of ``api`` on first use: the one arrow that runs up; see its own test."""
OWNERS = {
    "cupy": ("evoengine/device/cuda/device.py",),
    "jinja2": (
        "evoengine/evolution/llm/prompts.py",
        "evoengine/kernel/template/",
        "evoengine/export/",
        "evoengine/report/page.py",
    ),
    "sqlalchemy": ("evoengine/leaderboard/",),
    "alembic": ("evoengine/leaderboard/database/migrations/",),
    "ray": ("evoengine/engine/cluster/cluster.py",),
    "typer": ("evoengine/cli/",),
    "rich": ("evoengine/cli/",),
    "optuna": ("evoengine/search/", "evoengine/report/influence.py"),
    "openai": ("evoengine/evolution/llm/exchange.py",),
    "httpx2": ("evoengine/evolution/llm/exchange.py",),
    "plotly": ("evoengine/report/",),
    "optuna_dashboard": ("evoengine/cli/verbs/dashboard.py",),
    "yaml": ("evoengine/interop/",),
    "torch": (
        "evoengine/parity/reference/sdpa_reference.py",
        "evoengine/bench/",
        "evoengine/runtime/",
        "evoengine/api/",
    ),
}
SINGLE = ("cupy",)
COMPILING = {
    "evoengine.api.selection": "what the shipped templates render; variants are no families there",
    "evoengine.costmodel.emulation.fault_source_lines": "a kernel that was screened before, for its line numbers",
    "evoengine.device.cuda.device": "a source of its own",
    "evoengine.device.device_selfcheck": "a source of its own",
    "evoengine.parity.controls.noop_control": "a source of its own",
    "evoengine.search.selftest.selftest": "what the shipped templates render",
    "evoengine.search.candidate.build": "by screened_kernel",
    "evoengine.search.candidate.screening": "it is screened_kernel",
    "evoengine.engine.rows.kernels": "by screened_kernel",
    "evoengine.evolution.counters": "by screened_kernel",
    "evoengine.export.recompile": "by screened_kernel",
}
"""Modules that compile kernels, and why no source that is untrusted leaves them without having been screened."""
HEAVY = {"alembic", "openai", "httpx2", "ray", "psycopg", "torch", "optuna", "cupy", "sqlalchemy", "scipy", "plotly"}
MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 50
UNDOCUMENTED_LINES = 8
"""Public functions and methods that span more lines than this must say what they do."""


@dataclass(frozen=True)
class Import:
    """One imported module and where it stands."""

    target: str
    line: int
    deferred: bool
    """Inside a function or under TYPE_CHECKING: not run when the module is imported."""


def modules() -> dict[str, Path]:
    """Dotted name of every module of the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)] = path
    return found


def imports_of(tree: ast.AST, deferred: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        lazy = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.If) and last_name(node.test) == "TYPE_CHECKING":
            lazy = True
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, deferred) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            yield from (Import(f"{node.module}.{alias.name}", node.lineno, deferred) for alias in node.names)
        elif isinstance(node, ast.Call) and last_name(node.func) == "import_module":
            yield from (Import(str(arg.value), node.lineno, True) for arg in node.args if isinstance(arg, ast.Constant))
        yield from imports_of(node, lazy)


def last_name(node: ast.expr) -> str:
    """Last part of a dotted name; empty for other expressions."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def all_imports() -> dict[str, list[Import]]:
    found = {name: list(imports_of(tree_of(path))) for name, path in modules().items()}
    return found | {FACADE: []}


def package_of(module: str) -> str:
    """``evoengine.kernel.abi`` is in the package ``kernel``, ``evoengine.model`` is its own."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else "__init__"


def wrong_arrows(imports: Mapping[str, list[Import]]) -> list[str]:
    wrong = []
    for module, found in imports.items():
        source = package_of(module)
        for item in found:
            target = package_of(item.target)
            if not item.target.startswith("evoengine") or target == source:
                continue
            up = LAYERS[target] >= LAYERS[source]
            kept_out = source not in ONLY_FOR.get(target, {source}) or target not in ONLY_FROM.get(source, {target})
            if up or kept_out:
                wrong.append(f"{module}:{item.line} imports {item.target}")
    return wrong


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module."""
    reach = {name: _reachable(graph, name) for name in graph}
    seen: set[str] = set()
    found = []
    for name in graph:
        group = [other for other in reach[name] if name in reach[other]]
        if len(group) > 1 and name not in seen:
            seen.update(group)
            found.append(sorted(group))
    return found


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    todo = list(graph[start])
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo.extend(graph[name])
    return reached


def module_graph(imports: Mapping[str, list[Import]], *, deferred: bool = True) -> dict[str, set[str]]:
    """Which modules import which; ``from package import thing`` counts as the module that holds the thing."""
    graph = {}
    for name, found in imports.items():
        texts = [item.target for item in found if deferred or not item.deferred]
        targets = {text if text in imports else text.rpartition(".")[0] for text in texts}
        graph[name] = (targets & imports.keys()) - {name}
    return graph


def undeclared(imports: Mapping[str, list[Import]], declared: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Imports of another package's modules that its ``__init__`` does not name in ``PUBLIC_MODULES``."""
    wrong = []
    for module, found in imports.items():
        for item in found:
            if not item.target.startswith("evoengine.") or package_of(item.target) == package_of(module):
                continue
            parts = (item.target if item.target in imports else item.target.rpartition(".")[0]).split(".")
            parents = {".".join(parts[:depth]): parts[depth] for depth in range(2, len(parts))}
            wrong += [
                f"{module}:{item.line} imports {parent}.{name}"
                for parent, name in parents.items()
                if name not in declared.get(parent, ())
            ]
    return wrong


def declared_modules() -> dict[str, tuple[str, ...]]:
    packages = [name for name, path in modules().items() if path.name == "__init__.py" and name != FACADE]
    return {name: getattr(importlib.import_module(name), "PUBLIC_MODULES", ()) for name in packages}


def test_packages_import_only_public_modules_of_others() -> None:
    assert undeclared(all_imports(), declared_modules()) == []


def test_undeclared_imports_are_seen() -> None:
    imports = {
        "evoengine.search.x": list(imports_of(ast.parse("from evoengine.space.moves.mutation import mutate_rows")))
    }
    imports["evoengine.space.moves.mutation"] = []
    assert len(undeclared(imports, {"evoengine.space": ("moves",)})) == 1
    assert undeclared(imports, {"evoengine.space": ("moves",), "evoengine.space.moves": ("mutation",)}) == []


def test_public_modules_are_used_by_another_package() -> None:
    users = module_graph(all_imports())
    used = {
        target for module, targets in users.items() for target in targets if package_of(target) != package_of(module)
    }
    public = {f"{package}.{name}" for package, names in declared_modules().items() for name in names}
    assert {name for name in public if not any(f"{one}.".startswith(f"{name}.") for one in used)} == set()


def test_every_package_has_a_layer() -> None:
    packages = {path.stem for path in PACKAGE.glob("*.py")} | {
        path.parent.name for path in PACKAGE.glob("*/__init__.py")
    }
    assert packages <= LAYERS.keys()


def test_arrows_point_down() -> None:
    assert wrong_arrows(all_imports()) == []


def test_wrong_arrows_are_seen() -> None:
    up = list(
        imports_of(ast.parse("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from evoengine import cli"))
    )
    sideways = list(imports_of(ast.parse("def f():\n    import evoengine.costmodel.latency")))
    aside = list(imports_of(ast.parse("from evoengine.leaderboard.store import Store")))
    assert wrong_arrows({"evoengine.kernel.x": up}) == ["evoengine.kernel.x:3 imports evoengine.cli"]
    assert len(wrong_arrows({"evoengine.device.x": sideways})) == 1
    assert wrong_arrows({"evoengine.parity.x": aside})
    assert wrong_arrows({"evoengine.search.x": aside}) == []


def test_no_circles() -> None:
    imports = all_imports()
    packages: dict[str, set[str]] = {name: set() for name in LAYERS}
    for module, found in imports.items():
        packages[package_of(module)] |= {package_of(i.target) for i in found if i.target.startswith("evoengine.")}
    assert circles({name: targets - {name} for name, targets in packages.items()}) == []
    assert circles(module_graph(imports)) == []


def child_graph(graph: Mapping[str, set[str]], package: str) -> dict[str, set[str]]:
    """Which modules and sub-packages that lie directly in a package import which others there."""
    prefix = f"evoengine.{package}."
    children: dict[str, set[str]] = {}
    for module, targets in graph.items():
        if module.startswith(prefix):
            child = module.split(".")[2]
            others = {target.split(".")[2] for target in targets if target.startswith(prefix)}
            children.setdefault(child, set()).update(others - {child})
    return children


@pytest.mark.parametrize("package", sorted(LAYERS))
def test_sub_packages_do_not_import_each_other_in_a_circle(package: str) -> None:
    assert circles(child_graph(module_graph(all_imports()), package)) == []


def test_circles_of_sub_packages_are_seen() -> None:
    graph = {
        "evoengine.device.cuda.one": {"evoengine.device.tools.one", "evoengine.errors"},
        "evoengine.device.tools.one": set(),
        "evoengine.device.tools.two": {"evoengine.device.cuda.two", "evoengine.device.tools.one"},
        "evoengine.device.cuda.two": {"evoengine.device.contract"},
        "evoengine.device.contract": set(),
    }
    assert circles(child_graph(graph, "device")) == [["cuda", "tools"]]


def test_the_package_root_is_only_a_facade() -> None:
    found = list(imports_of(ast.parse(modules()[FACADE].read_text("utf-8"))))
    own = [item for item in found if item.target.startswith("evoengine")]
    assert own
    assert all(item.deferred and package_of(item.target) in {"api", "engine", "model", "search"} for item in own)
    names = {item.target for items in all_imports().values() for item in items if item.target.count(".") == 1}
    assert {name for name in names if name.startswith("evoengine.") and package_of(name) == "__init__"} <= {
        "evoengine.__version__"
    }


def test_the_runtime_imports_nothing_but_torch() -> None:
    """Exported modules carry its text."""
    own = [item for name, items in all_imports().items() if package_of(name) == "runtime" for item in items]
    packages = {item.target.partition(".")[0] for item in own if not item.target.startswith("evoengine.runtime.")}
    assert packages <= {"torch", *sys.stdlib_module_names}


def test_circles_are_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]


@pytest.mark.parametrize("package", OWNERS)
def test_packages_have_one_owner(package: str) -> None:
    users = {
        modules()[module].relative_to(ROOT).as_posix()
        for module, found in all_imports().items()
        if any(item.target.partition(".")[0] == package for item in found)
    }
    assert [user for user in users if not user.startswith(OWNERS[package])] == []
    assert package not in SINGLE or len(users) <= 1


def test_every_module_that_compiles_screens_or_is_trusted() -> None:
    compiles = {"evoengine.kernel.compile.compiler.Compiler", "evoengine.kernel.compile.nvrtc.run_nvrtc"}
    found = {module for module, imports in all_imports().items() if any(item.target in compiles for item in imports)}
    assert {module for module in found if not module.startswith("evoengine.kernel.")} == COMPILING.keys()
    for module, reason in COMPILING.items():
        calls = re.findall(
            r"[cC]ompiler(?:\([^()]*(?:\([^()]*\))?\))?\.compile\(", modules()[module].read_text("utf-8")
        )
        assert not calls or reason != "by screened_kernel", module


def functions_of(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def test_modules_and_functions_are_small() -> None:
    sizes = {name: path.read_text("utf-8").count("\n") for name, path in modules().items()}
    assert {name: lines for name, lines in sizes.items() if lines >= MAX_MODULE_LINES} == {}
    functions = {f"{name}.{one.name}": lines_of(one) for name, path in modules().items() for one in functions_of(path)}
    assert {name: lines for name, lines in functions.items() if lines >= MAX_FUNCTION_LINES} == {}


def test_longer_public_functions_have_a_docstring() -> None:
    missing = [
        f"{name}.{function.name}"
        for name, path in modules().items()
        for function in functions_of(path)
        if not function.name.startswith("_")
        and lines_of(function) > UNDOCUMENTED_LINES
        and ast.get_docstring(function) is None
        and not any("override" in ast.unparse(decorator) for decorator in function.decorator_list)
    ]
    assert missing == []


needs_cli = pytest.mark.skipif(not (PACKAGE / "cli" / "app.py").exists(), reason="the command line is not there yet")


@needs_cli
def test_the_command_line_defers_heavy_packages() -> None:
    imports = all_imports()
    graph = module_graph(imports, deferred=False)
    at_start = _reachable(graph, "evoengine.cli.app") | {"evoengine.cli.app"}
    heavy = [
        f"{module}:{item.line} imports {item.target}"
        for module in sorted(at_start)
        for item in imports[module]
        if not item.deferred and item.target.partition(".")[0] in HEAVY
    ]
    assert heavy == []


@needs_cli
def test_help_imports_nothing_heavy() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "evoengine", "--help"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr[-500:]
    imported = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines() if line.startswith("import time:")}
    assert imported & HEAVY == set()
