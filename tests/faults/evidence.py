"""What a test has seen of a case, and the table of sentences that judge it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.faults.cases import Case, Plan
from tests.faults.exchange import Choice, Exchange


@dataclass
class Evidence:
    """``streamed`` and ``whole``: one answer for each plan. ``metered``: streamed, with usage in every chunk.
    ``facts``: what a test of a procedure has measured, by name."""

    case: Case
    streamed: list[tuple[Plan | None, Exchange]] = field(default_factory=list)
    whole: list[tuple[Plan | None, Exchange]] = field(default_factory=list)
    metered: tuple[Plan, Exchange] | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def answers(self) -> list[Exchange]:
        return [answer for _, answer in self.streamed + self.whole]

    @property
    def choices(self) -> list[Choice]:
        return [choice for answer in self.answers for choice in answer.choices.values()]

    @property
    def streamed_choices(self) -> list[Choice]:
        return [choice for _, answer in self.streamed for choice in answer.choices.values()]

    def fact(self, name: str) -> Any:
        assert name in self.facts, f"the test of {self.case.id} has not established {name!r}"
        return self.facts[name]


Check = Callable[[Evidence], None]
CHECKS: dict[str, Check] = {}


def sentence(*texts: str) -> Callable[[Check], Check]:
    """Registers the checker of a sentence (or of several that say the same)."""

    def register(check: Check) -> Check:
        for text in texts:
            assert text not in CHECKS, text
            CHECKS[text] = check
        return check

    return register


def judge(evidence: Evidence, waiting: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """Every sentence of the case holds. A sentence that has no checker fails."""
    for text in evidence.case.invariants:
        if text in waiting:
            continue
        assert text in CHECKS, f"no checker: {text}"
        try:
            CHECKS[text](evidence)
        except AssertionError as error:
            raise AssertionError(f"{evidence.case.id}: {text}\n{error}") from error
