"""Every case runs, but for those that a later change brings; every sentence of those that run has a checker."""

from __future__ import annotations

from tests.faults import (
    cases,
    checks,  # noqa: F401
    checks_derender,  # noqa: F401
    checks_details,  # noqa: F401
    checks_service,  # noqa: F401
    test_choices,
    test_derender,
    test_derender_validation,
    test_model_outputs,
    test_procedures,
    test_transport,
    test_validation,
)
from tests.faults.evidence import CHECKS

RUNNERS = (
    *(test_choices, test_derender, test_derender_validation, test_model_outputs),
    *(test_procedures, test_transport, test_validation),
)


def test_every_case_runs_or_is_listed() -> None:
    run = [case for module in RUNNERS for case in module.CASES]
    assert len(run) == len(set(run))
    assert set(cases.load()) - set(run) == set(cases.later())
    assert set(cases.load()) >= set(run)


def test_what_is_listed_is_there() -> None:
    assert set(cases.LATER) <= set(cases.load())
    assert len(cases.load()) == 110


def test_every_sentence_has_a_checker() -> None:
    waiting = {text for text, reason in cases.LATER_SENTENCES.items() if cases.awaited(reason)}
    later = cases.later()
    needed = {text for case in cases.load().values() if case.id not in later for text in case.invariants} - waiting
    assert needed <= set(CHECKS), needed - set(CHECKS)


def test_every_checker_has_a_sentence() -> None:
    assert set(CHECKS) <= {text for case in cases.load().values() for text in case.invariants}


def test_texts_of_families_without_a_tokenizer() -> None:
    """Their stand-in vocabularies give the text back, in each plan."""
    for case in cases.load().values():
        if case.tokenizer in cases.SPELLED:
            for plan in case.plans():
                ids = list(plan.ids)
                assert cases.tokenizer(case.tokenizer).decode(ids, skip_special_tokens=False) == case.text, plan.name
