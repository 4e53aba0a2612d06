"""An examine service that is still being prepared, and what is known of a device before it is opened."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from evoengine.device.workers.gpu_binding import GpuBinding
from evoengine.engine.deferred_examiner import DeferredExaminer
from evoengine.engine.gpus import find_gpu
from evoengine.engine.prefetch import begin_imports, early_imports
from evoengine.engine.worker_pools import DeviceDescriber, ExaminePool, known_gpu
from evoengine.errors import UsageError
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Problem, Status
from evoengine.search.candidate.evaluate import DeviceSpec, prepare
from evoengine.space.data_dirs import data_dir
from evoengine.space.language.loader import find_space
from evoengine.target import get_target

PROBLEM = Problem(1, 1, 16, 16)
L4 = get_target("l4")
LONG_S = 300.0
"""No wait here takes so long, however slow the machine: what does has hung."""


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    space = find_space("mma")
    config = next(iter(space.build(PROBLEM, L4).starts()))
    source = TemplateLibrary(data_dir("templates")).load("mma").render(config, PROBLEM, space, L4)
    return Kernel(source, Compiler(None).compile(source, "sm_89"))


def test_what_comes_before_the_device_is_ready_waits_for_it(kernel: Kernel) -> None:
    may_begin = threading.Event()

    def make() -> ExaminePool:
        assert may_begin.wait(LONG_S)
        spec = DeviceSpec("emulator")
        return ExaminePool(prepare(PROBLEM, spec, inputs_seed=7), (GpuBinding(),), L4, begin_imports(spec.kind))

    with closing(DeferredExaminer(make, 1, sanitizes=False)) as late:
        assert (late.workers, late.lost, late.sanitizes) == (1, (), False)
        early, unwanted = late.submit(kernel, None), late.submit(kernel, None)
        assert unwanted.cancel()
        assert not early.done()
        may_begin.set()
        assert early.result(LONG_S).status is Status.OK
        assert late.submit(kernel, None).result(LONG_S).timing == early.result().timing
        assert late.inspect(kernel).result(LONG_S).finding == ""
        assert late.lost == ()


def test_a_preparation_that_fails_is_told_by_everything_that_waits(kernel: Kernel) -> None:
    def make() -> ExaminePool:
        raise UsageError("no such device")

    with closing(DeferredExaminer(make, 1, sanitizes=False)) as late:
        calls = [late.submit(kernel, None)]
        with pytest.raises(UsageError, match="no such device"):
            calls[0].result(LONG_S)
        assert late.lost == ()


@pytest.mark.skipif(find_gpu() is not None, reason="there is a GPU")
def test_without_a_gpu_only_compilers_are_begun_and_for_a_replay_nothing() -> None:
    for device in ("auto", "cuda", "emulator", "replay:some.file"):
        with early_imports(device) as imports:
            assert imports.devices is None
            assert imports.preparer is None
            assert (imports.compilers is None) == device.startswith("replay")
    assert known_gpu(DeviceSpec("cuda")) is None


@pytest.mark.gpu
def test_the_driver_says_of_a_gpu_what_the_open_device_says() -> None:
    for arch in ("", "sm_80"):
        known = known_gpu(DeviceSpec("cuda", arch=arch))
        assert known is not None, "only of a GPU without a data sheet"
        assert known == DeviceDescriber(DeviceSpec("cuda", arch=arch)).describe()
