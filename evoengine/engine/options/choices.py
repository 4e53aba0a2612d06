"""Known values of options, which the shell completes; each comes from the registry that also checks the option."""

from __future__ import annotations

from collections.abc import Iterable

from evoengine.errors import UsageError
from evoengine.model import NAMED_PROBLEMS, DType


def problems() -> Iterable[str]:
    """Names of problems."""
    return NAMED_PROBLEMS


def dtypes() -> Iterable[str]:
    """Element types."""
    return [kind.value for kind in DType]


def strategies() -> Iterable[str]:
    """Names of the built-in strategies."""
    from evoengine.search.strategies.registry import STRATEGIES

    return STRATEGIES


def families() -> Iterable[str]:
    """``auto`` and the kernel families, those of the user included."""
    from evoengine.space.loader import family_names

    try:
        return ["auto", *family_names()]
    except UsageError:  # completion must not print an error
        return ["auto"]


def targets() -> Iterable[str]:
    """Names of the GPUs with a data sheet."""
    from evoengine.target import TARGETS

    return TARGETS


def architectures() -> Iterable[str]:
    """Architectures of the GPUs with a data sheet."""
    from evoengine.target import TARGETS

    return dict.fromkeys(target.arch for target in TARGETS.values())


def devices() -> Iterable[str]:
    """Values of ``--device``, without the numbers of GPUs."""
    return ["auto", "cuda", "cuda:all", "emulator", "replay:"]


def peers() -> Iterable[str]:
    """Names of the libraries of ``compare``."""
    from evoengine.bench.peer_registry import select_peers

    return [peer.name for peer in select_peers(None)]
