"""All peers, in the order of the table. A new peer is one module and one entry here."""

from __future__ import annotations

from typing import Final

from evoengine.bench.peers import flash_attn, flashinfer, flex, sdpa, triton_fa2, varlen, xformers
from evoengine.bench.peers.base import Peer
from evoengine.errors import UsageError

PEERS: Final[tuple[Peer, ...]] = (
    *sdpa.PEERS,
    *varlen.PEERS,
    *triton_fa2.PEERS,
    *flex.PEERS,
    *flash_attn.PEERS,
    *xformers.PEERS,
    *flashinfer.PEERS,
)


def select_peers(names: str | None) -> tuple[Peer, ...]:
    """The peers of a comma-separated list, in its order; all of them for None.

    Raises:
        UsageError: a name is unknown, or there is none.
    """
    if names is None:
        return PEERS
    known = {peer.name: peer for peer in PEERS}
    wanted = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        what = f"unknown peer '{unknown[0]}'" if unknown else "no peer is named"
        raise UsageError(f"{what}: choose from {', '.join(known)}")
    return tuple(known[name] for name in wanted)
