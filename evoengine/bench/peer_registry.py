"""All peers, found by listing :mod:`evoengine.bench.peers`: a new peer is one new file there.

A peer's module defines ``PEERS``, one :class:`~evoengine.bench.peer_protocol.Peer` for each row of the table, and
``ORDER``, its place among the modules. Modules whose name begins with an underscore hold parts of a peer.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from evoengine.bench import peers
from evoengine.bench.peer_protocol import Peer
from evoengine.errors import UsageError


@cache
def all_peers() -> tuple[Peer, ...]:
    """Returns every peer in the order of the table."""
    names = [found.name for found in pkgutil.iter_modules(peers.__path__) if not found.name.startswith("_")]
    modules = [importlib.import_module(f"{peers.__name__}.{name}") for name in names]
    return tuple(peer for module in sorted(modules, key=lambda module: module.ORDER) for peer in module.PEERS)


def select_peers(names: str | None) -> tuple[Peer, ...]:
    """Returns the peers of a comma-separated list, in its order; all of them for None.

    Raises:
        UsageError: A name is unknown, or the list is empty.
    """
    if names is None:
        return all_peers()
    known = {peer.name: peer for peer in all_peers()}
    wanted = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        what = f"unknown peer '{unknown[0]}'" if unknown else "no peer is named"
        raise UsageError(f"{what}: choose from {', '.join(known)}")
    return tuple(known[name] for name in wanted)
