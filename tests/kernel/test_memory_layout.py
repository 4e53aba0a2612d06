"""Layouts of tensors in memory: strides, NaN in the gaps, and checks of what a kernel wrote there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evoengine.device.contract import GAPPED, random_inputs
from evoengine.errors import LaunchError
from evoengine.kernel.abi import PARAMS_DTYPE
from evoengine.kernel.call_memory import call_params, call_regions
from evoengine.kernel.memory_layout import AXES, POISON_BITS, TensorLayout
from evoengine.kernel.records import Workspace
from evoengine.model import Problem

PROBLEM = Problem(2, 4, 5, 8, kv_heads=2, seq_kv=7)


def test_strides_of_slices_and_prefixes() -> None:
    queries = TensorLayout("bshd", row_gap=2 * 2 * 8)  # of [2, 5, 4 + 2 + 2, 8]
    assert queries.strides((2, 4, 5, 8)) == (5 * 8 * 8, 8, 8 * 8)
    cache = TensorLayout("bhsd", head_gap=3 * 8)  # of [2, 2, 10, 8]
    assert cache.strides((2, 2, 7, 8)) == (2 * 10 * 8, 10 * 8, 8)
    with pytest.raises(ValueError, match="multiples of 8"):
        TensorLayout(row_gap=4)


def test_gaps_of_inputs_hold_nan_and_the_tensors_are_unchanged() -> None:
    inputs, dense = random_inputs(PROBLEM, 1, GAPPED), random_inputs(PROBLEM, 1)
    for name in ("q", "k", "v"):
        tensor, memory = getattr(inputs, name), getattr(inputs, f"{name}_memory")
        assert np.array_equal(tensor, getattr(dense, name))
        assert (memory == POISON_BITS).sum() == memory.size - tensor.size > 0
        assert not (tensor == POISON_BITS).any()


def test_an_expanded_axis_has_a_stride_of_zero_and_poison_in_place_of_its_other_entries() -> None:
    shape, keys = (2, 2, 7, 8), np.arange(2 * 2 * 7 * 8, dtype=np.uint16).reshape(2, 2, 7, 8)
    for axis, name in enumerate(AXES):
        dense, layout = TensorLayout("bshd"), TensorLayout("bshd", expanded=(name,))
        strides = list(dense.strides(shape))
        strides[axis] = 0
        assert layout.strides(shape) == tuple(strides)
        memory = layout.place(keys)
        assert memory.size == layout.elements(shape) == dense.elements(shape)
        first = keys.take([0], axis)
        assert np.array_equal(layout.view(memory, shape), np.broadcast_to(first, shape))
        assert np.count_nonzero(memory == POISON_BITS) == memory.size - first.size
        assert np.array_equal(layout.gap_mask(shape), memory == POISON_BITS)
    with pytest.raises(ValueError, match="cannot be expanded"):
        replace(GAPPED, o=TensorLayout(expanded=("head",)))


def test_every_tensor_has_its_own_strides_in_the_parameters() -> None:
    inputs = random_inputs(PROBLEM, 1, GAPPED)
    record = np.frombuffer(call_params(inputs, dict.fromkeys("qkvo", 16)).tobytes(), PARAMS_DTYPE)[0]
    for axis, name in enumerate(("batch", "head", "row")):
        found = {tensor: int(record[f"{tensor}_{name}_stride"]) for tensor in "qkvo"}
        shapes = {"q": inputs.output_shape, "k": inputs.kv_shape, "v": inputs.kv_shape, "o": inputs.output_shape}
        assert found == {t: getattr(GAPPED, t).strides(shape)[axis] for t, shape in shapes.items()}
        assert len(set(found.values())) == 4


def test_a_write_into_a_gap_of_the_output_fails_with_its_place() -> None:
    inputs = random_inputs(PROBLEM, 1, GAPPED)
    (output,) = (region for region in call_regions(inputs, Workspace(0, 0)) if region.name == "o")
    after = np.array(output.contents)
    inputs.logical_output(after)[...] = 0
    output.check(after.view(np.uint8))
    batch, head, row = GAPPED.o.strides(inputs.output_shape)
    after[batch + 2 * head + 3 * row + 8 :][:2] = 0
    with pytest.raises(LaunchError, match=r"\b2 elements .*gaps of O.* batch 1, head 2, row 3$"):
        output.check(after.view(np.uint8))
