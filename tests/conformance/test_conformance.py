"""The neutral suite ``canitoolcall``, in process: every fixture whole and in eight chunkings, in both profiles."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from canitoolcall.results import CaseResult, Status

from tests.conformance.run import PROFILES, cases

# The best of vLLM 0.33.0, SGLang 0.5.20 and transformers 5.17 in each family: passes, and passes with soft ones.
BEST_PEER = {
    "deepseek": (43, 52),
    "gemma4": (33, 40),
    "glm": (33, 44),
    "gpt-oss": (48, 48),
    "kimi": (44, 44),
    "llama": (9, 9),
    "mistral": (38, 40),
    "qwen3-hermes": (23, 43),
    "qwen3-xml": (24, 49),
}
# Two fixtures contradict each other in one space.
UNREACHABLE = {"gemma4/vllm-text-before-call"}

# A call that was begun cannot be taken back: these expect none of one that is cut or does not parse.
BEGUN_CALLS = {
    "deepseek/v3-truncated-mid-arguments",
    "deepseek/v31-truncated-mid-arguments",
    "deepseek/v32-truncated-mid-arguments",
    "deepseek/v32-truncated-second-parallel-call",
    "deepseek/v4-truncated-mid-arguments",
    "deepseek/v4-truncated-second-parallel-call",
    "deepseek/v41-truncated-mid-arguments",
    "deepseek/v41-truncated-second-parallel-call",
    "deepseek/vllm-v3-malformed-missing-brace",
    "gemma4/truncated-before-close",
    "gemma4/truncated-mid-string",
    "gemma4/truncated-second-parallel-call",
    "glm/glm45-truncated-after-arg-key",
    "glm/glm47-truncated-before-close-call",
    "glm/glm47-truncated-inside-arg-value",
    "gpt-oss/harmony-truncated-in-arguments",
    "kimi/k26-truncated-inside-arguments",
    "kimi/k3-truncated-inside-argument",
    "llama/l3-truncated-inside-parameters",
    "llama/l4-truncated-missing-close-bracket",
    "mistral/v13think-truncated-in-arguments",
    "qwen3-hermes/bug-sglang-30480-truncated-mid-arguments",
    "qwen3-hermes/truncated-mid-arguments-no-thinking",
    "qwen3-hermes/truncated-mid-arguments-thinking",
    "qwen3-hermes/truncated-second-parallel-call",
    "qwen3-hermes/vllm-invalid-json-missing-brace",
    "qwen3-xml/q38-truncated-in-parameter",
}
# Where the suite's answer contradicts vLLM's own streamed one, which the default profile follows: id to reason.
CONTRADICTIONS: dict[str, str] = {}


@cache
def results(profile: str) -> tuple[CaseResult, ...]:
    return tuple(cases(PROFILES[profile]()))


def counts(profile: str, family: str) -> Counter[Status]:
    return Counter(case.status for case in results(profile) if case.family == family)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_fixture_runs_in_every_chunking(profile: str) -> None:
    found = results(profile)
    assert len(found) == 469
    assert not [case.fixture_id for case in found if case.skipped_strategies or case.status is Status.UNSUPPORTED]
    assert not [case.harness_error for case in found if case.harness_error]
    matched = ("expected_match", "expected_error")
    assert {sum(row.check in matched for row in case.checks) for case in found} == {9}


def test_all_that_can_pass_passes_with_complete_and_trim() -> None:
    assert {case.fixture_id for case in results("complete") if case.status is not Status.PASS} == UNREACHABLE
    assert all(case.status is Status.SOFT_PASS for case in results("complete") if case.fixture_id in UNREACHABLE)


@pytest.mark.parametrize("family", BEST_PEER)
def test_no_family_is_below_its_best_peer(family: str) -> None:
    found = counts("complete", family)
    passes, with_soft = BEST_PEER[family]
    assert found[Status.PASS] >= passes
    assert found[Status.PASS] + found[Status.SOFT_PASS] >= with_soft


def test_the_defaults_fail_only_what_streaming_cannot_pass() -> None:
    failed = {case.fixture_id for case in results("default") if case.status not in (Status.PASS, Status.SOFT_PASS)}
    assert failed <= BEGUN_CALLS | CONTRADICTIONS.keys()


@pytest.mark.parametrize("profile", PROFILES)
def test_streams_are_the_same_however_they_are_cut(profile: str) -> None:
    wanted = ("stream_equals_nonstream", "split_invariance")
    rows = [(case.fixture_id, row) for case in results(profile) for row in case.checks if row.check in wanted]
    assert rows
    assert not [(name, row.strategy, row.detail) for name, row in rows if row.status is not Status.PASS]
