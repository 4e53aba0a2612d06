"""A tiny template family, so that the kernel package is tested independently of the shipped templates."""

from __future__ import annotations

import shutil
from pathlib import Path

from evoengine.kernel.records import Source
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import DType, Problem, Value
from evoengine.space.loader import load_space
from evoengine.space.search_space import SearchSpace
from evoengine.target import get_target

ROOT = Path(__file__).resolve().parent.parent.parent

KERNEL = """\
// A kernel that copies Q to O: purpose first.
//% include "prologue.cuh.jinja"
//% include "params.cuh"
//# this line comment is gone
/*# and this one #*/
struct Pair { int a[2][2]; };
__constant__ Pair table = {{{1, 2}, {3, 4}}};
extern "C" __global__ void __launch_bounds__(Cfg::LAUNCH_THREADS)
evo_attention(const __grid_constant__ AttentionParams p) {
    extern __shared__ float staging[];
    const int i = blockIdx.x * Cfg::ROWS + threadIdx.x;
    int lane;
    asm("mov.b32 %0, {%1, %2};" : "=r"(lane) : "h"(static_cast<short>(i)), "h"(static_cast<short>(0)));
    //% if SKEWED
    staging[threadIdx.x] = 1.0f;
    //% else
    staging[threadIdx.x] = 0.0f;
    //% endif
    __syncthreads();
    if (i < p.seq_q)
        static_cast<unsigned short*>(p.o)[i * p.o_row_stride] =
            static_cast<unsigned short>(staging[threadIdx.x ^ 1] + lane + table.a[lane & 1][0] + @{ FACTOR }@);
}
"""

META = """\
family = "copy"
doc = "Copies."
min_arch = 80
dtypes = ["fp16", "bf16"]
head_dims = [32, 64]
[launch]
grid = ["ceil_div(seq_q, ROWS)", "heads", "batch"]
threads = "THREADS"
smem_bytes = "THREADS * 4"
[compile]
maxrregcount = "REGISTERS"
"""

MORE_MEMORY = """\
workspace_bytes = "batch * rows_q * ROWS"
counters = "heads if packed else 0"
"""
"""Further keys of ``[launch]``."""

THEN = """\
[[then]]
when = "PLACE == 'shared' and has_lse"
entry = "evo_combine"
grid = ["rows_q", "heads", "memory_batch"]
threads = "THREADS * 2"
smem_bytes = "head_dim"
"""
"""A ``[[then]]`` table: a second launch."""

SPACE = """\
family = "copy"
doc = "Copies."
[tunables.WARPS]
kind = "ordinal"
values = [1, 2, 4]
unit = "warps"
doc = "warps per CTA"
[tunables.FACTOR]
kind = "ordinal"
values = [1, 2]
unit = "times"
doc = "how often"
[tunables.REGISTERS]
kind = "ordinal"
values = [0, 64, 128]
unit = "registers"
doc = "cap"
[tunables.PLACE]
kind = "categorical"
values = ["direct", "shared"]
unit = "place"
doc = "where rows wait"
[tunables.SKEWED]
kind = "boolean"
unit = "flag"
doc = "start at one"
[derived.THREADS]
expr = "32 * WARPS"
unit = "threads"
doc = "threads per CTA"
[derived.ROWS]
expr = "THREADS"
unit = "rows"
doc = "rows per CTA"
[derived.TILES]
expr = "ceil_div(seq_q, ROWS)"
unit = "tiles"
doc = "follows the length, so it stays out of the source"
[constraints.any]
rule = "THREADS <= max_threads_per_block"
reason = "limit"
"""

DEFAULTS: dict[str, Value] = {"WARPS": 2, "FACTOR": 1, "REGISTERS": 0, "PLACE": "shared", "SKEWED": False}
PROBLEM = Problem(1, 2, 64, 64)
TARGET = get_target("l4")


def write_family(folder: Path, *, kernel: str = KERNEL, meta: str = META, space: str = SPACE) -> Path:
    """Writes the tiny family with the shipped partials; returns the templates folder."""
    templates = folder / "templates"
    (templates / "copy").mkdir(parents=True, exist_ok=True)
    shutil.copytree(ROOT / "templates" / "partials", templates / "partials", dirs_exist_ok=True)
    (templates / "copy" / "kernel.cu.jinja").write_text(kernel)
    (templates / "copy" / "template.toml").write_text(meta)
    (folder / "copy.toml").write_text(space)
    return templates


def space_of(folder: Path) -> SearchSpace:
    """Returns the search space of the tiny family."""
    return load_space(folder / "copy.toml")


def render(folder: Path, values: dict[str, Value] | None = None, problem: Problem = PROBLEM) -> Source:
    """Renders the tiny family from a folder."""
    space = space_of(folder)
    template = TemplateLibrary(folder / "templates").load("copy")
    return template.render(space.config({**DEFAULTS, **(values or {})}), problem, space, TARGET)


BF16_CAUSAL = Problem(1, 2, 64, 32, dtype=DType.BF16, causal=True)
