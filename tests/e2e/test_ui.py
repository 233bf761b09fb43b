"""``/debug/ui`` in a browser: what is open is shown, and a captured stream can be stepped through.

UI_SCREENSHOTS=DIR pytest tests/e2e/test_ui.py    keeps what it looked like
"""

import asyncio
import os
from pathlib import Path

import httpx
import pytest

from tests.e2e.browser import Page
from tests.e2e.wire import call, chat_body
from tests.servers import DEMO_MODEL, DEMO_NAME, Sidecar, Simulator

TEXT = (
    "<think>\nThe user wants the weather in Oslo. I should call the tool, then say so.\n</think>\n\n"
    f"Let me look <b>that</b> up.\n{call('Oslo', days=3)}"
)


@pytest.fixture(scope="module")
def debugged(simulator):
    flags = {"reasoning_parser": "qwen3", "tool_call_parser": "hermes", "debug": True, "api_key": ["k"]}
    with Sidecar(engine_url=simulator.url, **flags) as sidecar:
        yield sidecar


@pytest.fixture
async def page():
    async with Page() as opened:
        yield opened


async def keep(page, name):
    if directory := os.environ.get("UI_SCREENSHOTS"):
        await asyncio.to_thread((Path(directory) / name).write_bytes, await page.screenshot())


async def test_open_streams_and_counters(debugged, page):
    key = {"authorization": "Bearer k"}
    async with httpx.AsyncClient(timeout=30, headers=key) as http:
        body = chat_body(TEXT + " word" * 30, xargs={"itl": 0.05}) | {"stream": True}
        chats = [
            asyncio.create_task(
                http.post(f"{debugged.url}/v1/chat/completions", json=body, headers={"x-request-id": f"ui-{number}"})
            )
            for number in range(5)
        ]
        await page.open(f"{debugged.url}/debug/ui", **key)
        await page.until("document.querySelectorAll('#streams tbody tr').length === 5")
        await page.until(
            "/ui-3/.test($('streams').textContent) && /reasoning|content|call/.test($('streams').textContent)"
        )
        await page.until("$('tiles').children[0].querySelector('b').textContent === '5'")
        await page.until("Number($('tiles').children[1].querySelector('b').textContent) > 5")  # tokens a second
        assert await page.evaluate("$('about').textContent") == "0.1.0 · 1 worker · serving"
        assert not await page.evaluate("/Oslo|weather/.test(document.body.textContent)")
        await keep(page, "ui-live.png")
        await asyncio.gather(*chats)
        await page.until("document.querySelectorAll('#streams tbody tr').length === 0")
    assert page.problems == []
    assert all(url.startswith((debugged.url, "about:")) for url in page.requested)


async def test_the_inspector(debugged, page):
    key = {"authorization": "Bearer k"}
    async with httpx.AsyncClient(headers=key) as http:
        asked = {"prompt": TEXT, "add_special_tokens": False}
        ids = (await http.post(f"{debugged.url}/tokenize", json=asked)).json()["tokens"]
    await page.open(f"{debugged.url}/debug/ui#inspector", **key)
    await page.until("$('reasoning').value === 'qwen3' && $('tools').value === 'hermes'")
    await page.evaluate(f"$('capture').value = '{' '.join(map(str, ids))}'; $('go').click()")
    await page.until("!$('result').hidden")
    assert await page.evaluate("steps.length") == len(ids)
    # At the end: the whole answer, by region. What the model wrote is text, whatever it looks like.
    assert await page.evaluate("$('answer').querySelector('b')") is None
    regions = "[...$('answer').querySelectorAll('.{}')].map(e => e.textContent).join('')"
    assert "weather in Oslo" in await page.evaluate(regions.format("reasoning"))
    assert "look <b>that</b> up." in await page.evaluate(regions.format("content"))
    assert await page.evaluate(regions.format("name")) == "get_weather "
    assert await page.evaluate(f"JSON.parse({regions.format('arguments')}).city") == "Oslo"
    assert await page.evaluate(regions.format("finish")) == "\n[tool_calls]"
    # Step by step, with the mouse and with keys.
    await page.evaluate("$('first').click()")
    assert await page.evaluate("$('where').textContent") == f"1 / {len(ids)}"
    assert (await page.evaluate("$('state').textContent")).startswith("reasoning")
    assert await page.evaluate(regions.format("content")) == ""
    for number in range(2, 6):
        await page.evaluate("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))")
        assert await page.evaluate("$('where').textContent") == f"{number} / {len(ids)}"
    held = await page.evaluate("steps.findIndex(step => step.held)")
    await page.evaluate(f"go({held})")
    assert await page.evaluate("$('answer').querySelector('.held').textContent === steps[at].held")
    await page.evaluate("go(steps.findIndex(step => step.emitted.some(e => e.region === 'arguments')) + 4)")
    await keep(page, "ui.png")
    # Another parser, coarser chunks, and what cannot be read.
    await page.evaluate("$('tools').value = 'none'; $('chunk').value = 8; $('go').click()")
    await page.until(f"steps.length === {-(-len(ids) // 8)}")
    assert await page.evaluate(regions.format("name")) == ""
    assert page.problems == []
    await page.evaluate("$('capture').value = 'data: nonsense'; $('go').click()")
    await page.until("/cannot be read/.test($('error').textContent)")
    assert await page.evaluate("$('result').hidden")


async def test_the_shadow_ring(page):
    with Simulator(DEMO_MODEL, served_model_name=(DEMO_NAME,), coupled=True) as engine:
        flags = {"mode": "shadow", "reasoning_parser": "none", "tool_call_parser": "hermes", "debug": True}
        with Sidecar(engine_url=engine.url, **flags) as sidecar:
            async with httpx.AsyncClient(timeout=30) as http:
                for _ in range(3):
                    await http.post(f"{sidecar.url}/v1/chat/completions", json=chat_body(TEXT))
            await page.open(f"{sidecar.url}/debug/ui#shadow")
            await page.until("/3 compared/.test($('shadow-about').textContent)")
            rows = await page.evaluate("$('samples').tBodies[0].rows.length")
            told = await page.evaluate("ask('shadow')")
            assert rows == len(told["samples"])
            await keep(page, "ui-shadow.png")
            if rows:
                await page.evaluate("$('samples').querySelector('button').click()")
                await page.until("!$('inspector').hidden && !$('result').hidden")
    assert page.problems == []


async def test_a_browser_is_asked_for_the_key(debugged, page):
    await page.open(f"{debugged.url}/debug/ui")
    assert await page.evaluate("document.querySelector('#tiles')") is None
    address = debugged.url.replace("http://", "http://anyone:k@")
    await page.call("Page.navigate", url=f"{address}/debug/ui")
    await page.until("document.querySelector('#tiles')?.children.length > 0")  # its own requests carry the key too
