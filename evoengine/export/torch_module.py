"""Export as one Python module with embedded kernels: a torch custom op that needs neither EvoEngine nor a compiler."""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib.resources
import textwrap
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from evoengine import __version__
from evoengine.documents.escaping import comment, python_string
from evoengine.export.expression import AXES, EXACT_ROWS, names_of, to_python
from evoengine.export.record import ExportRecord
from evoengine.kernel.records import Binary
from evoengine.kernel.tensor_maps import MapSpec
from evoengine.model import Problem

_EMBEDDED_MODULES: Final = (
    *("map_encoding", "driver", "call", "map_arguments", "shortcuts", "autocast", "torch_fallback", "sdpa_arguments"),
    *("launcher", "lookup", "ops", "docstrings", "dispatch", "first_use_check", "kernel_choice", "embedded_kernels"),
)
"""Runtime modules to embed, each after those that it imports."""
_WIDTH: Final = 120
_INDENT: Final = " " * 8

_HEAD: Final = '''\
"""Fused attention for torch, exported by EvoEngine {version}. Needs only torch, and a CUDA driver for its kernels.

    import {module}
    o = {module}.attention(q, k, v{example})      # see help({module}.attention)

Problems (batch x heads x rows x head_dim); calls with the same traits and other sizes use the nearest one:

{kernels}

{choice}Other calls use torch's own attention: other traits, another GPU and the CPU with a warning, and calls that need
a gradient, which the kernels do not compute.
``python {module}.py`` checks the hashes of the kernels and, on a GPU, their results.
"""
'''

_CHOICE: Final = """\
Where a problem has several kernels, the first call checks and times them on its GPU, which takes seconds, and keeps the
fastest; the choice is stored in ~/.cache/evoengine/choices.json. Where they cannot be timed, the first one is used.

"""

_TAIL: Final = '''
_EMBEDDED = EmbeddedKernels(KERNELS)
_DISPATCHER = Dispatcher("{namespace}", _EMBEDDED.resolve)
attention = _DISPATCHER.attention


def explain(q, k, v, sink=None, cu_seqlens_q=None, cu_seqlens_kv=None, **options):
    """Returns which kernel serves a call, as one line; options are the fields of ``Options``."""
    q, k, v = cast_by_autocast(q, k, v)
    call = read_call(q, k, v, sink, cu_seqlens_q, cu_seqlens_kv, Options(**options))
    found = _EMBEDDED.find(call, torch.cuda.get_device_capability(q.device) if q.is_cuda else None)
    return f"torch's own attention: {{found}}" if isinstance(found, str) else f"kernel {{found.name}}, {{found.gpu}}"


if __name__ == "__main__":
    sys.exit(_EMBEDDED.check())
'''


@dataclass(frozen=True)
class BuiltRecord:
    """Row with its machine code."""

    record: ExportRecord
    binary: Binary


def export_torch(built: Sequence[BuiltRecord], module: str) -> str:
    """Returns the text of the module.

    Args:
        built: Rows; among those of one problem the module chooses by measurement.
        module: Name of the module, for its documentation.
    """
    first = built[0].record.problem
    head = _HEAD.format(
        version=__version__,
        module=module,
        example=", causal=True" if first.causal else "",
        kernels=_lines(built),
        choice=_CHOICE if len({item.record.problem.key for item in built}) < len(built) else "",
    )
    imports, texts = _runtime()
    digest = hashlib.sha256("".join(item.binary.code_hash for item in built).encode()).hexdigest()[:12]
    parts = (
        head.rstrip(),
        "\n".join(("from __future__ import annotations", "", *imports)),
        *texts,
        _section("the kernels"),
        *(_kernel(number, item) for number, item in enumerate(built)),
        f"KERNELS = ({', '.join(f'_KERNEL_{number}' for number in range(len(built)))},)",
        _TAIL.format(namespace=f"evo_{digest}").strip(),
    )
    return "\n\n\n".join(parts) + "\n"


def _lines(built: Sequence[BuiltRecord]) -> str:
    """Lists the kernels by problem and device; where there are several, the range of their times and their rows."""
    groups: dict[tuple[str, str, str], list[BuiltRecord]] = {}
    for item in built:
        key = (item.record.problem.key, item.record.device.name, item.binary.arch)
        groups.setdefault(key, []).append(item)
    lines = []
    for (problem, device, arch), items in groups.items():
        rows = ", ".join(str(item.record.row_id) for item in items)
        count = len(items)
        what = f"{problem}  on {device} ({arch}){f', {count} kernels' * (count > 1)}{_times(items)}"
        lines.append("    " + comment(what if count > 1 else f"{what}, row {rows}"))
        if count > 1:
            lines += textwrap.wrap(
                f"rows {rows}, in this order", _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT
            )
    return "\n".join(lines)


def _times(items: Sequence[BuiltRecord]) -> str:
    """Range of the stored times."""
    timings = [item.record.evaluation.timing for item in items]
    us = [timing.median_us for timing in timings if timing is not None]
    if not us:
        return ""
    kind = "predicted" if any(timing is not None and timing.predicted for timing in timings) else "measured"
    return f", {min(us):.2f} us {kind}" if len(us) == 1 else f", {min(us):.2f} to {max(us):.2f} us {kind}"


def _runtime() -> tuple[list[str], list[str]]:
    """Returns the distinct import lines of the runtime modules, and their texts without imports and docstrings."""
    imports: set[str] = set()
    texts = []
    for name in _EMBEDDED_MODULES:
        text = (importlib.resources.files("evoengine.runtime") / f"{name}.py").read_text(encoding="utf-8")
        lines, tree = text.splitlines(), ast.parse(text)
        body_from = 0
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports |= set(_import_lines(node))
            elif not (isinstance(node, ast.Expr) and body_from == 0):  # the module's docstring
                first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", []))])
                texts.append("\n".join((_section(_about(tree)), "", "", *lines[first - 1 :])).rstrip())
                break
            body_from = node.end_lineno or 0
    return sorted(imports, key=lambda line: (line.split()[1] == "torch", line.startswith("from"), line)), texts


def _import_lines(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Yields one line per name, so that duplicates can be removed; imports of the runtime itself are left out."""
    if isinstance(node, ast.ImportFrom):
        if node.module is not None and not node.module.startswith(("evoengine", "__future__")):
            yield from (f"from {node.module} import {alias.name}" for alias in node.names)
    else:
        yield from (f"import {alias.name}" for alias in node.names)


def _about(tree: ast.Module) -> str:
    return (ast.get_docstring(tree) or "").splitlines()[0].rstrip(".")


def _section(title: str) -> str:
    return textwrap.shorten(f"# ---- {title} ", _WIDTH - 4, placeholder=" …").ljust(_WIDTH - 1, "-")


def _kernel(number: int, item: BuiltRecord) -> str:
    record, code = item.record, item.binary.cubin
    names = names_of(record.launch, record.problem)
    launches = "\n".join(
        f"        ({python_string(step.entry)}, ({', '.join(to_python(text, names) for text in step.grid)}), "
        f"{step.threads}, {step.smem_bytes}),"
        for step in record.launch.launches
    )
    packed = base64.b85encode(zlib.compress(code, 9)).decode()
    lines = "\n".join(f"    {packed[at : at + 110]!r}" for at in range(0, len(packed), 110))
    return f"""\
def _has_exact_rows_{number}({", ".join(AXES)}):
    return {to_python(EXACT_ROWS, names)}


def _launch_sizes_{number}({", ".join(AXES)}):
    launches = (
{launches}
    )
    return launches, {to_python(record.launch.workspace_bytes, names)}, {to_python(record.launch.counters, names)}


_CODE_{number} = (
{lines}
)
_KERNEL_{number} = EmbeddedKernel(
    name={python_string(record.problem.key)},
    call={_call(record.problem)},
    arch={python_string(item.binary.arch)},
    gpu={python_string(record.device.name)},
    launch_sizes=_launch_sizes_{number},
    has_exact_rows=_has_exact_rows_{number},
    sha256={hashlib.sha256(code).hexdigest()!r},
    packed_code=_CODE_{number},{_maps(record.launch.maps)}
)"""


def _maps(maps: tuple[MapSpec, ...]) -> str:
    if not maps:
        return ""
    facts = ((item.tensor, item.box_rows, item.box_columns, item.swizzle_bytes, item.grouped) for item in maps)
    boxes = (f"MapBox{one}, " for one in facts)
    return f"\n    maps=({''.join(boxes).rstrip()}),"


def _call(problem: Problem) -> str:
    """Returns the problem as the text of a runtime ``Call``."""
    fields = {
        "dtype": problem.dtype.value,
        "batch": problem.batch,
        "heads": problem.heads,
        "kv_heads": problem.kv_heads,
        "seq_q": problem.seq_q,
        "seq_kv": problem.seq_kv,
        "rows_q": problem.rows_q,
        "rows_kv": problem.rows_kv,
        "head_dim": problem.head_dim,
        "causal": problem.causal,
        "window_left": -1 if problem.window_left is None else problem.window_left,
        "window_right": -1 if problem.window_right is None else problem.window_right,
        "softcap": float(problem.softcap),
        "scale": problem.softmax_scale,
        "sink": problem.sink,
        "lse": problem.lse,
        "packed": problem.packed,
    }
    return f"Call({', '.join(f'{name}={value!r}' for name, value in fields.items())})"
