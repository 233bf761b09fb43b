"""What inspection finds in a template."""

from __future__ import annotations

import jinja2
import pytest

from proxy.render.template import inspect_template
from tests.tokenizers import tokenizer_dir

LOOP = "{% for p in m.content %}{% endfor %}"
MACRO = "{% macro f(c) %}{% for p in c %}{% endfor %}{% endmacro %}"
PARTS = [
    "{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for p in m['content'] | list %}{% endfor %}{% endfor %}",
    "{% for m in messages[1:] %}{% for p in m['content'][0:2] %}{% endfor %}{% endfor %}",
    "{% set rest = messages[1:] %}{% for m in rest %}{% for p in m.content %}{% endfor %}{% endfor %}",
    "{% set ns = namespace(r=messages) %}{% for m in ns.r %}{% for p in m.content %}{% endfor %}{% endfor %}",
    "{% set ns = namespace() %}{% set ns.r = messages %}{% for m in ns.r %}" + LOOP + "{% endfor %}",
    "{% for m in messages %}{% set content = m.content %}{% for p in content %}{% endfor %}{% endfor %}",
    MACRO + "{% for m in messages %}{{ f(m.content) }}{% endfor %}",
    MACRO + "{% for m in messages %}{{ f(c=m['content']) }}{% endfor %}",
    "{% generation %}{% for m in messages %}" + LOOP + "{% break %}{% endfor %}{% endgeneration %}",
]
STRING = [
    "{{ messages[0].content }}",
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% for t in tools %}{% for p in t.content %}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}",
    "{% macro f(content) %}{% for p in content %}{% endfor %}{% endmacro %}{{ f(tools) }}",
    "{% for m in documents %}{% for p in m.content %}{% endfor %}{% endfor %}",
]


@pytest.mark.parametrize("template", PARTS)
def test_iterates_over_content(template: str) -> None:
    assert inspect_template(template).reads_parts


@pytest.mark.parametrize("template", STRING)
def test_reads_content_as_a_string(template: str) -> None:
    assert not inspect_template(template).reads_parts


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "deepseek_v3"])
def test_real_templates_read_strings(name: str) -> None:
    facts = inspect_template((tokenizer_dir(name) / "chat_template.jinja").read_text(encoding="utf-8"))
    assert not facts.reads_parts and not facts.knows_developer
    assert {"messages", "add_generation_prompt"} <= facts.variables


def test_variables_and_roles() -> None:
    facts = inspect_template("{{ a }}{% set b = 1 %}{{ b }}{% if c == 'developer' %}{% endif %}")
    assert facts.variables == {"a", "c"}
    assert facts.knows_developer


def test_broken() -> None:
    with pytest.raises(jinja2.TemplateSyntaxError):
        inspect_template("{% if %}")
