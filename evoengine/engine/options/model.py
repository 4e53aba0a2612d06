"""Options of the language model that proposes patches and configs in ``evolve``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from evoengine.engine.options.fields import Option, check_fields


@dataclass(frozen=True)
class ModelOptions:
    """Options of the language model; without an address no model is used."""

    llm_url: Annotated[
        str,
        Option("OpenAI-compatible endpoint for patches and configs, such as http://127.0.0.1:8000/v1.", metavar="URL"),
    ] = ""
    llm_model: Annotated[str, Option("Name of the model.", metavar="NAME")] = ""
    llm_calls: Annotated[int, Option("Requests of this run.", min=1)] = 50
    llm_tokens: Annotated[int | None, Option("Tokens of this run, prompts and replies.", min=1)] = None
    llm_money: Annotated[float | None, Option("Money of this run, in the currency of --llm-price.", min=0.0)] = None
    llm_price: Annotated[str, Option("Prices per million tokens of prompts and replies.", metavar="IN,OUT")] = ""
    llm_seconds: Annotated[float | None, Option("Seconds of waiting for the model in this run.", min=0.0)] = None
    llm_reply_tokens: Annotated[int, Option("Tokens of a reply at most.", min=1)] = 4096
    llm_timeout: Annotated[float, Option("Seconds of a request at most.", min=0.001)] = 180.0

    def __post_init__(self) -> None:
        check_fields(self)
