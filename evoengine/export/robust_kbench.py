"""Export of one kernel as a task directory of Sakana's robust-kbench.

A task has ``func_forward.py`` (the function in PyTorch, a module around it, inputs), ``config_forward.json`` (input,
init and shared configs, each a list of arguments) and a ``.cu`` file, a torch extension with ``forward``.
"""

from __future__ import annotations

import json
from string import Template
from typing import Final

from evoengine.errors import UsageError
from evoengine.export.cu import export_cu
from evoengine.export.facts import support_code
from evoengine.export.record import ExportRecord
from evoengine.model import Problem

KERNEL_FILE: Final = "forward.cu"

_HEAD: Final = """\
// A torch extension: torch.utils.cpp_extension.load(name=..., sources=["forward.cu"]) gives forward(q, k, v).
#define EVO_NO_MAIN
#include <torch/extension.h>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

"""


def task_files(record: ExportRecord) -> dict[str, str]:
    """Returns the files of the task directory by name.

    Raises:
        UsageError: The row has no source, or its problem has inputs or outputs besides Q, K, V and O.
    """
    problem = record.problem
    extras = [name for name, on in (("packed", problem.packed), ("sink", problem.sink), ("lse", problem.lse)) if on]
    if extras:
        raise UsageError(
            f"problem {problem.key}: a robust-kbench task has Q, K, V and one output, so it cannot express "
            f"{' and '.join(extras)}: choose another row or export format"
        )
    return {
        "func_forward.py": _python(problem),
        "config_forward.json": json.dumps(_configs(problem), indent=2) + "\n",
        KERNEL_FILE: f"{_HEAD}{_setting(record.only_arch)}{export_cu(record)}\n{support_code('torch_forward.cu')}",
    }


def _setting(only_arch: str) -> str:
    """Returns a comment with torch's setting for architectures with a letter, which torch drops by default."""
    if not only_arch:
        return ""
    digits = only_arch.removeprefix("sm_")
    return f"// Build with TORCH_CUDA_ARCH_LIST={digits[:-2]}.{digits[-2:]} in the environment.\n\n"


def _configs(problem: Problem) -> dict[str, list[dict[str, int]]]:
    """Returns configs of the problem itself, of fewer rows and of another batch size, which a kernel must serve too."""
    own = {
        "batch_size": problem.batch,
        "num_heads": problem.heads,
        "num_kv_heads": problem.kv_heads,
        "seq_len_q": problem.seq_q,
        "seq_len_kv": problem.seq_kv,
    }
    odd = {"seq_len_q": max(1, problem.seq_q - 1), "seq_len_kv": max(1, problem.seq_kv - 1)}
    empty: list[dict[str, int]] = [{}]
    return {
        "single_input_configs": [own],
        "single_init_configs": empty,
        "single_shared_configs": empty,
        "multi_input_configs": [own, own | odd, own | {"batch_size": problem.batch + 1}],
        "multi_init_configs": empty,
        "multi_shared_configs": empty,
    }


def _python(problem: Problem) -> str:
    return Template(support_code("func_forward.py.txt")).substitute(
        key=problem.key,
        batch=problem.batch,
        heads=problem.heads,
        kv_heads=problem.kv_heads,
        seq_q=problem.seq_q,
        seq_kv=problem.seq_kv,
        head_dim=problem.head_dim,
        dtype={"fp16": "float16", "bf16": "bfloat16"}[problem.dtype.value],
        left=problem.window_left,
        right=0 if problem.causal else problem.window_right,
        softcap=float(problem.softcap),
    )
