"""Budget of the calls of one run: calls, tokens, money and seconds, reserved before each call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from evoengine.documents.plain_numbers import parse_number
from evoengine.errors import ModelBudgetError, UsageError

_FRAME_TOKENS: Final = 64
"""Tokens that a chat template may add to a prompt."""
_MESSAGE_TOKENS: Final = 16
"""Tokens that it may add to each message."""
_MILLION: Final = 1_000_000


@dataclass(frozen=True)
class Usage:
    """Tokens of one call."""

    prompt_tokens: int
    reply_tokens: int

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.reply_tokens


@dataclass(frozen=True)
class Price:
    """Price of a model per million tokens, in the currency of the budget."""

    prompt: float
    reply: float

    @classmethod
    def parse(cls, text: str) -> Price:
        """Parses ``IN,OUT``.

        Raises:
            UsageError: The text is not two numbers of at least 0.
        """
        try:
            prompt, reply = (parse_number(part.strip()) for part in text.split(","))
        except ValueError:
            prompt = reply = math.nan
        if not (math.isfinite(prompt) and math.isfinite(reply)) or min(prompt, reply) < 0:
            raise UsageError("--llm-price: must be IN,OUT: two prices per million tokens, such as 0.5,1.5")
        return cls(prompt, reply)

    def of(self, usage: Usage) -> float:
        return (usage.prompt_tokens * self.prompt + usage.reply_tokens * self.reply) / _MILLION


@dataclass(frozen=True)
class Limits:
    """Bounds of one run; None for no bound.

    Raises:
        UsageError: Money is bounded, and no price is known.
    """

    calls: int | None = None
    tokens: int | None = None
    money: float | None = None
    seconds: float | None = None
    price: Price | None = None

    def __post_init__(self) -> None:
        if self.money is not None and self.price is None:
            raise UsageError("--llm-money needs --llm-price IN,OUT: the prices per million tokens")


@dataclass(frozen=True)
class Spent:
    """Totals of a run, or the upper bounds of one call."""

    calls: int = 0
    tokens: int = 0
    money: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Reservation:
    """Upper bounds of one call, which count as spent until it is settled."""

    usage: Usage
    money: float
    seconds: float


class Budget:
    """Accounts of one run. What is spent and reserved together never exceeds the limits.

    Args:
        limits: Limits of the run.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._spent = Spent()

    @property
    def spent(self) -> Spent:
        """Totals so far, with the reservation of a call under way."""
        return self._spent

    def reserve(self, prompt_bytes: int, messages: int, most_tokens: int, timeout_s: float) -> Reservation:
        """Reserves one call.

        Args:
            prompt_bytes: Size of the prompt in UTF-8; no tokenizer makes more tokens of it than that.
            messages: Number of messages.
            most_tokens: Maximum number of tokens of the reply.
            timeout_s: Time limit of the call; it shrinks to the seconds that are left.

        Raises:
            ModelBudgetError: The call does not fit.
        """
        usage = Usage(prompt_bytes + _FRAME_TOKENS + _MESSAGE_TOKENS * messages, most_tokens)
        money = self.price_of(usage) or 0.0
        seconds = (
            timeout_s if self.limits.seconds is None else min(timeout_s, self.limits.seconds - self._spent.seconds)
        )
        needed = Spent(1, usage.tokens, money, seconds)
        if seconds <= 0:
            raise ModelBudgetError(f"the model's budget of {self.limits.seconds:g} seconds (--llm-seconds) is spent")
        for name, option in (("calls", "--llm-calls"), ("tokens", "--llm-tokens"), ("money", "--llm-money")):
            limit = getattr(self.limits, name)
            total = getattr(self._spent, name) + getattr(needed, name)
            if limit is not None and total > limit:
                raise ModelBudgetError(
                    f"the model's budget of {limit:g} {name} ({option}) is spent: {getattr(self._spent, name):.6g} are "
                    f"used, and the next call may take {getattr(needed, name):.6g}"
                )
        self._add(needed)
        return Reservation(usage, money, seconds)

    def settle(self, reservation: Reservation, usage: Usage | None, seconds: float) -> Usage:
        """Replaces a reservation by what the call took.

        Args:
            reservation: Reservation of the call.
            usage: Tokens that the endpoint reports; None if it reports none.
            seconds: Duration of the call.

        Returns:
            Tokens that are counted: those reported, or the reserved ones if the report is missing or impossible.
        """
        counted = reservation.usage if usage is None or not _is_plausible(usage, reservation.usage) else usage
        self._replace(reservation, counted, seconds)
        return counted

    def settle_unused(self, reservation: Reservation, seconds: float) -> Usage:
        """Replaces the reservation of a request that was turned away before the model ran; the call itself counts."""
        counted = Usage(0, 0)
        self._replace(reservation, counted, seconds)
        return counted

    def _replace(self, reservation: Reservation, counted: Usage, seconds: float) -> None:
        self._add(
            Spent(
                calls=0,
                tokens=counted.tokens - reservation.usage.tokens,
                money=(self.price_of(counted) or 0.0) - reservation.money,
                seconds=seconds - reservation.seconds,
            )
        )

    def wait(self, seconds: float) -> float:
        """Counts a wait between two requests; returns the seconds to wait, which the budget may shorten."""
        limit = self.limits.seconds
        left = seconds if limit is None else max(0.0, min(seconds, limit - self._spent.seconds))
        self._add(Spent(seconds=left))
        return left

    def price_of(self, usage: Usage) -> float | None:
        """Returns the price of some tokens; None if no price is known."""
        return None if self.limits.price is None else self.limits.price.of(usage)

    def _add(self, more: Spent) -> None:
        spent = self._spent
        self._spent = Spent(
            spent.calls + more.calls,
            spent.tokens + more.tokens,
            spent.money + more.money,
            spent.seconds + more.seconds,
        )


def _is_plausible(usage: Usage, reserved: Usage) -> bool:
    return 0 < usage.prompt_tokens <= reserved.prompt_tokens and 0 < usage.reply_tokens <= reserved.reply_tokens
