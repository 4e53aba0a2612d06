"""Operators that ask a language model: patches of the source, and configs."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Sequence
from typing import Final

from evoengine.errors import ModelBudgetError, ModelError, ModelStatusError, short_line
from evoengine.evolution.llm.client import Answer, ChatClient
from evoengine.evolution.llm.completion import is_transient
from evoengine.evolution.llm.exchange import Message
from evoengine.evolution.llm.prompts import Prompts, patch_text, region_costs
from evoengine.evolution.llm.replies import ReplyError, read_configs, read_patch
from evoengine.evolution.records import Context, Proposal
from evoengine.model import Patch

_LOG: Final = logging.getLogger(__name__)
_MOST_FAILURES: Final = 3
"""Consecutive failed calls after which the endpoint is given up."""
_FOCUSED: Final = 3
"""Most expensive regions, one of which a prompt names."""
_CONFIGS: Final = 8
_MISTAKES: Final = 8


class ModelAccess:
    """Decides what a failed call means for the run: end it, or go on without this proposal.

    Args:
        client: Client of the endpoint.
    """

    def __init__(self, client: ChatClient) -> None:
        self._client = client
        self._failures = 0
        self._spent = False

    def ask(self, purpose: str, messages: Sequence[Message]) -> Answer | None:
        """Asks the model; None if there is no reply and the run can go on without one.

        Raises:
            ModelError: The endpoint does not accept the request at all, or failed several times in a row.
        """
        if self._spent:
            return None
        try:
            answer = self._client.ask(purpose, messages)
        except ModelBudgetError as error:
            self._spent = True
            _LOG.warning("%s: the model is asked no more", error)
            return None
        except ModelError as error:
            self._failures += 1
            if self._failures >= _MOST_FAILURES or _is_final(error):
                raise
            _LOG.warning("%s", error)
            return None
        self._failures = 0
        return answer


class ModelPatches:
    """The operator ``patches``: the model edits marked regions and may add tunables.

    Args:
        access: Access to the model.
        prompts: Prompts.
    """

    name = "patches"

    def __init__(self, access: ModelAccess, prompts: Prompts) -> None:
        self._access = access
        self._prompts = prompts
        self._repaired: set[str] = set()

    def propose(self, context: Context, rng: random.Random) -> tuple[Proposal, ...]:
        """Asks for one patch; a reply that cannot be read is sent back once with the reason, then it is a failure."""
        focus = rng.choice([region for region, _ in region_costs(context)[:_FOCUSED]]).name if context.regions else ""
        answer = self._access.ask(self.name, self._prompts.patches(context, focus))
        if answer is None:
            return ()
        try:
            return (self._proposal(context, read_patch(answer.text), answer),)
        except ReplyError as error:
            reason = str(error)
        fixed = self._corrected(context, answer.text, reason, ())
        return (_failed(self.name, context, reason, answer),) if fixed is None else (fixed,)

    def repair(self, context: Context, proposal: Proposal, message: str) -> Proposal | None:
        """Asks once for a correction, with the message of the compiler, the space or the gate."""
        if proposal.patch is None or proposal.origin in self._repaired:
            return None
        hints = _mismatches(context, proposal.patch)
        return self._corrected(context, patch_text(proposal.patch), message, hints)

    def _corrected(self, context: Context, text: str, message: str, hints: Sequence[str]) -> Proposal | None:
        answer = self._access.ask(self.name, self._prompts.repair(context, text, message, hints))
        if answer is None:
            return None
        self._repaired.add(answer.origin)
        try:
            return self._proposal(context, read_patch(answer.text), answer)
        except ReplyError as error:
            _LOG.warning("the model's corrected patch cannot be used: %s", error)
            return None

    def _proposal(self, context: Context, patch: Patch, answer: Answer) -> Proposal:
        return Proposal(self.name, (context.parent.family,), patch, origin=answer.origin)


class ModelConfigs:
    """The operator ``configs``: the model names configs, and the rules of the search space filter them.

    Args:
        access: Access to the model.
        prompts: Prompts.
    """

    name = "configs"

    def __init__(self, access: ModelAccess, prompts: Prompts) -> None:
        self._access = access
        self._prompts = prompts
        self._mistakes: deque[str] = deque(maxlen=_MISTAKES)

    def propose(self, context: Context, rng: random.Random) -> tuple[Proposal, ...]:
        """Asks for configs; those that are not valid enter the next prompt with their reasons.

        Without a valid one, the reply is a failure.
        """
        answer = self._access.ask(self.name, self._prompts.configs(context, _CONFIGS, self._mistakes))
        if answer is None:
            return ()
        try:
            read = read_configs(answer.text, context)
        except ReplyError as error:
            self._mistakes.append(str(error))
            return (_failed(self.name, context, str(error), answer),)
        self._mistakes.extend(read.rejected)
        if not read.accepted:
            return (_failed(self.name, context, "; ".join(read.rejected), answer),)
        proposal = Proposal(self.name, (context.parent.family,), None, tuple(read.accepted), answer.origin)
        return (proposal,)

    def repair(self, context: Context, proposal: Proposal, message: str) -> Proposal | None:
        return None


def _failed(operator: str, context: Context, reason: str, answer: Answer) -> Proposal:
    """Returns the failure of a reply, which counts as a proposal of its operator."""
    return Proposal(operator, (context.parent.family,), origin=answer.origin, failure=short_line(reason))


def _is_final(error: ModelError) -> bool:
    return isinstance(error, ModelStatusError) and not is_transient(error.status)


def _mismatches(context: Context, patch: Patch) -> list[str]:
    """Names the first line of each SEARCH part that its file's regions do not have."""
    found = []
    for number, edit in enumerate(patch.edits, 1):
        texts = [region.text for region in context.regions if region.file == edit.file]
        if not texts:
            files = ", ".join(sorted({region.file for region in context.regions}))
            found.append(f"block {number}: no region is in {edit.file}: the files are {files}")
        elif not any(edit.search in text for text in texts):
            lines = {line for text in texts for line in text.split("\n")}
            missing = next((line for line in edit.search.split("\n") if line not in lines), "")
            found.append(f"block {number}: the regions of {edit.file} have no line {missing.strip()!r}")
    return found
