"""Compilations that begin before they are asked for."""

from __future__ import annotations

from concurrent.futures import Future

from evoengine.engine.prefetching_compiler import PrefetchingCompiler
from evoengine.landscape.synthetic import null_landscape
from evoengine.model import Config
from evoengine.search.candidate.evaluate import Compilation
from evoengine.search.replay import ReplayCompiler


class Listener(ReplayCompiler):
    """A compiler that notes what it was given."""

    def __init__(self) -> None:
        landscape = null_landscape(16)
        super().__init__(landscape)
        self.configs = [evaluation.config for evaluation in landscape.evaluations]
        self.given: list[Config] = []

    def submit(self, config: Config) -> Future[Compilation]:
        self.given.append(config)
        return super().submit(config)


def test_what_was_begun_is_compiled_once_and_handed_out_to_whom_it_is_about() -> None:
    inner = Listener()
    first, second, third, *_ = inner.configs
    ahead = PrefetchingCompiler(inner, (first, second))
    assert inner.given == [first, second]
    for config in (third, second, first):
        assert ahead.submit(config).result().config == config
    assert inner.given == [first, second, third]
    assert (ahead.workers, ahead.lost) == (inner.workers, inner.lost)


def test_what_is_asked_for_again_is_compiled_again() -> None:
    inner = Listener()
    ahead = PrefetchingCompiler(inner, inner.configs[:1])
    handed_out = [ahead.submit(inner.configs[0]) for _ in range(2)]
    assert handed_out[0] is not handed_out[1]
    assert inner.given == inner.configs[:1] * 2
