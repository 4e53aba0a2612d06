"""Hardware counters by plain names, and the metrics of Nsight Compute behind them.

Several metrics with similar names count different things. The metrics here agree with kernels whose instructions and
addresses are known (checked by ``scripts/measure/check_counters.py``):

- ``smsp__inst_executed_op_shared_ld`` also counts the loads without effect (``@!PT LDS``) that ptxas puts ahead of
  ``LDGSTS``; ``smsp__sass_inst_executed_op_shared_ld`` does not.
- ``..._pipe_tensor_op_hmma`` also counts ``HFMA2.MMA``, which ptxas uses to load constants.
- ``l1tex__t_sectors_pipe_lsu_mem_global_op_ld`` counts the sectors of loads and of ``cp.async`` together;
  ``smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ld`` those of loads alone.
- ``l1tex__data_bank_conflicts_...`` also counts accesses that wait for another client of the data banks. Their number,
  which differs from run to run, is ``l1tex__data_bank_conflicts_type_arbitration``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_MINUS: Final = "-"


@dataclass(frozen=True)
class HardwareCounter:
    """One counter of a GPU."""

    name: str
    formulas: tuple[tuple[str, ...], ...]
    """Metrics to add, or to subtract if they begin with ``-``; the first formula with all metrics available is used."""

    def value(self, values: Mapping[str, float]) -> float | None:
        """Computes the count; None if no formula has all its metrics.

        Args:
            values: Values by metric.
        """
        for formula in self.formulas:
            if all(metric.removeprefix(_MINUS) in values for metric in formula):
                signs = [-1 if metric.startswith(_MINUS) else 1 for metric in formula]
                return sum(
                    sign * values[metric.removeprefix(_MINUS)] for sign, metric in zip(signs, formula, strict=True)
                )
        return None

    @property
    def metrics(self) -> tuple[str, ...]:
        """All metrics of all formulas."""
        return tuple(dict.fromkeys(metric.removeprefix(_MINUS) for formula in self.formulas for metric in formula))


def _shared_wavefronts(*operations: str) -> tuple[str, ...]:
    return tuple(f"smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{one}.sum" for one in operations)


def _conflicts(*operations: str) -> tuple[str, ...]:
    return tuple(f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{one}.sum" for one in operations)


_HMMA: Final = "smsp__inst_executed_pipe_tensor_op_hmma.sum"
_CONSTANTS: Final = "smsp__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum"
_GLOBAL_READS: Final = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
_GLOBAL_LOADS: Final = "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ld.sum"
_ARBITRATION: Final = "l1tex__data_bank_conflicts_type_arbitration.sum"

ARBITRATION: Final = "conflicts by arbitration"
COUNTERS: Final = (
    HardwareCounter("instructions", (("smsp__inst_executed.sum",),)),
    HardwareCounter(
        "tensor instructions", ((_HMMA, f"-{_CONSTANTS}"), (_HMMA,), ("smsp__inst_executed_pipe_tensor.sum",))
    ),
    HardwareCounter("shared loads", (("smsp__sass_inst_executed_op_shared_ld.sum",),)),
    HardwareCounter("ldmatrix", (("smsp__sass_inst_executed_op_ldsm.sum",), ("smsp__inst_executed_op_ldsm.sum",))),
    HardwareCounter("shared stores", (("smsp__sass_inst_executed_op_shared_st.sum",),)),
    HardwareCounter("wavefronts, loads", (_shared_wavefronts("ld", "ldsm"), _shared_wavefronts("ld"))),
    HardwareCounter("wavefronts, stores", (_shared_wavefronts("st", "stsm"), _shared_wavefronts("st"))),
    HardwareCounter("conflicts, loads", (_conflicts("ld"),)),
    HardwareCounter("conflicts, stores", (_conflicts("st"),)),
    HardwareCounter("conflicts, cp.async", (_conflicts("ldgsts"),)),
    HardwareCounter(ARBITRATION, ((_ARBITRATION,),)),
    HardwareCounter("conflicts less arbitration", ((*_conflicts("ld", "st", "ldgsts"), f"-{_ARBITRATION}"),)),
    HardwareCounter("sectors, loads", ((_GLOBAL_LOADS,),)),
    HardwareCounter("sectors, cp.async", ((_GLOBAL_READS, f"-{_GLOBAL_LOADS}"),)),
    HardwareCounter("sectors, stores", (("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",),)),
)
"""All counters. Sectors refer to global memory, wavefronts and conflicts to shared memory."""
