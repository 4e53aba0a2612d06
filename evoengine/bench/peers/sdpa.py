"""PyTorch's scaled_dot_product_attention: with torch's own choice of backend, and with each backend alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from evoengine.bench.peer_protocol import PeerCall, PeerInputs, PeerOutput, PeerUnavailableError

_NO_KERNEL: Final = ("No available kernel", "No viable backend")
_NO_REASON: Final = ("not used because", "runtime disabled")
"""Parts of warnings that do not concern the requested backend."""


@dataclass(frozen=True)
class Sdpa:
    """One backend; an empty ``backend`` leaves the choice to torch."""

    name: str
    backend: str = ""
    """Member of ``torch.nn.attention.SDPBackend``."""
    knows_bottom_right: bool = True
    """Whether the backend supports torch's ``causal_lower_right``; otherwise the mask is passed as a tensor."""

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        """Binds the arguments and tries the backend once."""
        inputs.supports_only("window")
        import torch

        attention = torch.nn.functional.scaled_dot_product_attention
        with self._scope():  # torch warns about rows without a key
            arguments = self._arguments(inputs)

        def run() -> PeerOutput:
            return PeerOutput(attention(inputs.q, inputs.k, inputs.v, **arguments))

        if self.backend:
            self._try(run)
        return PeerCall(run, scope=self._scope)

    def _try(self, run: Callable[[], PeerOutput]) -> None:
        """Makes one call; torch explains only in warnings why a backend does not support a problem."""
        with self._scope(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                run()
            except RuntimeError as error:
                if not any(text in str(error) for text in _NO_KERNEL):
                    raise
                raise PeerUnavailableError(_reason([str(warning.message) for warning in caught])) from error

    def _arguments(self, inputs: PeerInputs) -> dict[str, Any]:
        problem = inputs.problem
        arguments: dict[str, Any] = {}
        if problem.heads != problem.kv_heads:
            arguments["enable_gqa"] = True
        only_causal = problem.causal and problem.window_left is None
        if only_causal and problem.seq_q == problem.seq_kv:
            arguments["is_causal"] = True
        elif only_causal and self.knows_bottom_right and inputs.on_gpu:
            from torch.nn.attention.bias import causal_lower_right

            arguments["attn_mask"] = causal_lower_right(problem.seq_q, problem.seq_kv)
        elif problem.masked:
            arguments["attn_mask"] = inputs.mask()
        return arguments

    @contextmanager
    def _scope(self) -> Iterator[None]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns once per reason why a backend does not fit
            if not self.backend:
                yield
                return
            with sdpa_kernel([getattr(SDPBackend, self.backend)]):
                yield


def _reason(warned: list[str]) -> str:
    texts = [text.partition("(Triggered internally")[0].strip() for text in warned]
    telling = [text for text in texts if text and not any(part in text for part in _NO_REASON)]
    return f"not supported: {telling[0]}" if telling else "does not take this problem"


# Every file of this folder defines these: its place in the table of ``compare``, and one peer for each row.
ORDER: Final = 1
PEERS: Final = (
    Sdpa("sdpa"),
    Sdpa("sdpa-flash", "FLASH_ATTENTION"),
    Sdpa("sdpa-efficient", "EFFICIENT_ATTENTION"),
    Sdpa("sdpa-cudnn", "CUDNN_ATTENTION", knows_bottom_right=False),
    Sdpa("sdpa-math", "MATH", knows_bottom_right=False),
)
