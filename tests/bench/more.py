"""Cases of the benchmark for families whose tokenizers are not at hand: qwen3's, their markers matched in the text."""

from __future__ import annotations

from tests.bench.core import Case

_CALL = '{"name": "write_file", "arguments": {"path": "a", "content": "%s"}}'
_XML = '<%s="write_file">\n<%s="path">a</%s>\n<%s="content">%%s</%s>\n</%s>'


def _elements(call: str, key: str) -> str:
    end = key.split()[0]
    return _XML % (call, key, end, key, end, call.split()[0])


_PLAMO = (
    "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>write_file"
    "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"
    '{"path": "a", "content": "%s"}<|plamo:end_tool_arguments:plamo|>'
)
_IFM = (
    "<ifm|tool_calls><ifm|tool_call>write_file\n<ifm|arg_key>content</ifm|arg_key>\n<ifm|arg_value>%s</ifm|arg_value>\n"
    "</ifm|tool_call></ifm|tool_calls>"
)

# the name, an output that is one call with a long string, and whether that string is JSON's
_FAMILIES = (
    ("longcat", f"<longcat_tool_call>\n{_CALL}\n</longcat_tool_call>", True),
    ("phi4_mini_json", f"functools[{_CALL}]", True),
    ("internlm", f"<|action_start|><|plugin|>\n{_CALL}<|action_end|>", True),
    ("jamba", f"<tool_calls>[{_CALL}]</tool_calls>", True),
    ("xlam", f"[{_CALL}]", True),
    ("gigachat3", f"<|function_call|>{_CALL}", True),
    ("apertus", '<|tools_prefix|>[{"write_file": {"content": "%s"}}]<|tools_suffix|>', True),
    ("cohere_command3", '<|START_ACTION|>[{"tool_name": "write_file", "parameters": {"a": "%s"}}]<|END_ACTION|>', True),
    ("plamo3", _PLAMO, True),
    ("inkling", '<|content_invoke_tool_json|>{"name": "write_file", "args": {"a": "%s"}}<|end_message|>', True),
    ("lfm2", '<|tool_call_start|>[write_file(path="a", content="%s")]<|tool_call_end|>', True),
    ("functiongemma", "<start_function_call>call:write_file{content:<escape>%s<escape>}<end_function_call>", False),
    ("k2_horizon", _IFM, False),
    ("dots", "<dots_function_call>\n" + _elements("invoke name", "parameter name") + "\n</dots_function_call>", False),
    ("minicpm5", _elements("function name", "param name"), False),
    ("mimo", "<tool_call>\n" + _elements("function", "parameter").replace('="', "=").replace('">', ">"), False),
    ("muse", " to=write_file<|message|>" + _elements("atem:invoke name", "atem:parameter name"), False),
)
_ANSWER = {"inkling": "<|content_text|>%s", "muse": " to=user<|message|>%s", "cohere_command3": "<|START_RESPONSE|>%s"}

CASES = tuple(
    case
    for name, frame, escape in _FAMILIES
    for case in (
        Case(name, "content", "qwen3", None, name, _ANSWER.get(name, "%s")),
        Case(name, "arguments", "qwen3", None, name, frame, escape),
    )
)
