"""Prior knowledge of a search: its information about fast configs before the first candidate.

A search uses all of it, to find a fast kernel soon. A replay compares strategies, and prior knowledge would hide their
differences: two strategies that begin with the same good configs look alike. So a replay uses only the priors that its
options request.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from evoengine.engine.options.search import SearchOptions
from evoengine.search.candidate.device_spec import DeviceKind


@dataclass(frozen=True)
class Priors:
    """The priors in force; each is an option of that name (:class:`~evoengine.engine.options.search.SearchOptions`)."""

    starts: bool
    """Configs that the search spaces name, and imported ones, are tried first."""
    forecast: bool
    """Configs that the latency model predicts to be fastest are tried first."""
    transfer: bool
    """Rows of near problems and other GPUs are tried first."""
    skip: bool
    """Configs that the latency model predicts to be far too slow are not tried."""

    @classmethod
    def of(cls, request: SearchOptions, kind: DeviceKind) -> Priors:
        """The priors of a request on a device: by default all of them, and none in a replay."""
        default = kind != "replay"

        def resolved(given: bool | None) -> bool:
            return default if given is None else given

        return cls(*(resolved(getattr(request, field.name)) for field in fields(cls)))

    @property
    def on(self) -> tuple[str, ...]:
        """Names of the priors in force."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name))

    @property
    def off(self) -> tuple[str, ...]:
        """Names of the other priors."""
        return tuple(field.name for field in fields(self) if not getattr(self, field.name))
