"""Opens the operators that ask a language model, from the options of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from evoengine.engine.options.model import ModelOptions
from evoengine.errors import UsageError
from evoengine.evolution.llm.budget import Budget, Limits, Price, Spent
from evoengine.evolution.llm.client import ChatClient
from evoengine.evolution.llm.endpoint import Endpoint, Key
from evoengine.evolution.llm.prompts import Prompts
from evoengine.evolution.llm.proposers import ModelAccess, ModelConfigs, ModelPatches
from evoengine.evolution.records import Proposer
from evoengine.leaderboard.database.connection import database_url
from evoengine.leaderboard.store import Leaderboard


def endpoint_of(options: ModelOptions) -> Endpoint:
    """Returns the endpoint.

    Raises:
        UsageError: Address or model is missing or malformed.
    """
    if not options.llm_model:
        raise UsageError("--llm-url needs --llm-model: the name of one of the endpoint's models")
    return Endpoint(options.llm_url, options.llm_model, options.llm_reply_tokens, options.llm_timeout)


def limits_of(options: ModelOptions) -> Limits:
    """Returns the limits of the budget.

    Raises:
        UsageError: The price is malformed or missing.
    """
    price = Price.parse(options.llm_price) if options.llm_price else None
    return Limits(options.llm_calls, options.llm_tokens, options.llm_money, options.llm_seconds, price)


@dataclass(frozen=True)
class OpenedModel:
    """Operators that ask one model, within one budget."""

    operators: tuple[Proposer, ...]
    budget: Budget

    @property
    def spent(self) -> Spent:
        """Totals of the requests so far."""
        return self.budget.spent

    @property
    def is_priced(self) -> bool:
        """Whether the price of the tokens is known."""
        return self.budget.limits.price is not None


@contextmanager
def open_model(options: ModelOptions, db: str) -> Iterator[OpenedModel | None]:
    """Opens the operators that ask the model, and the leaderboard that gets the transcripts.

    Args:
        options: Options of the model; without an address there is none.
        db: Leaderboard for the transcripts.

    Raises:
        UsageError: An option is missing or malformed.
    """
    if not options.llm_url:
        yield None
        return
    endpoint, limits = endpoint_of(options), limits_of(options)
    Key.for_endpoint(endpoint)  # a key that must not be sent is reported before any work
    with Leaderboard(database_url(db)) as board:
        budget, prompts = Budget(limits), Prompts.installed()
        access = ModelAccess(ChatClient(endpoint, budget, board.add_transcript))
        yield OpenedModel((ModelPatches(access, prompts), ModelConfigs(access, prompts)), budget)
