"""States that somebody made up or spoiled: a miss, a 400 or a 409; never a 500, never another stream's text."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
from typing import Any

import msgspec

from proxy.derender.derenderer import Derenderer
from tests import derenders
from tests.derender_http.replicas import CHAT, Replica, split, stream_body
from tests.generators.base import Marker, toy

SECRET = "the-secret-of-another-stream"
ROUNDS = int(os.environ.get("FUZZ_STATES", "10000"))


class Fuzz:
    """Two streams on one server: the states of the victim, whose text is SECRET, are used against the other."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.made = toy(("<think>", "</think>", "<tool_call>", "</tool_call>"), ())
        opener = Derenderer(self.made.vocabulary, reasoning_parser="qwen3", tool_parser="hermes")
        self.replicas = [Replica(opener, state_key="k", derender_state=kind) for kind in ("full", "compact")]
        self.mine: list[bytes] = []
        self.others: list[bytes] = []

    async def prepare(self) -> None:
        text = [
            "<b>I wonder",
            Marker("</think>"),
            "So: ",
            Marker("<tool_call>"),
            '{"name": "search", "arguments": {"a": "',
        ]
        for replica in self.replicas:
            for request_id, said, states in (("mine", "plain", self.mine), ("victim", SECRET, self.others)):
                ids = self.made.encode([*text, said * 3], self.rng)
                state: bytes | None = None
                for chunk, _ in derenders.pieces(ids, derenders.cut(len(ids), self.rng, 6)):
                    status, answer = await replica.post(CHAT, self.body(request_id, chunk, state))
                    assert status == 200
                    state = split(answer)[1]
                    states.append(state)

    def body(self, request_id: str, ids: list[int], state: bytes | None) -> bytes:
        tools = [{"type": "function", "function": {"name": "search", "parameters": {}}}]
        chat = {"messages": [{"role": "user", "content": "x"}], "tools": tools}
        return stream_body(ids, state, request_id=request_id, chat_request=chat, prompt_token_ids=[1, 2])

    def spoiled(self) -> bytes:
        """One state that no server has sent like this."""
        rng = self.rng
        raw = rng.choice(self.mine if rng.random() < 0.6 else self.others)
        how = rng.randrange(12)
        if how == 0:  # another stream's, as it is
            return rng.choice(self.others)
        if how == 1:  # bits flipped, anywhere
            spoiled = bytearray(raw)
            for _ in range(rng.randint(1, 4)):
                spoiled[rng.randrange(len(spoiled))] ^= 1 << rng.randrange(8)
            return bytes(spoiled)
        if how == 2:  # cut off
            return raw[: rng.randrange(len(raw))]
        value = json.loads(raw)
        token = value.get("derender", "f..")
        parts = token[1:].split(".")
        if how == 3:  # bits flipped inside the token, of which base64 stays intact
            n = rng.randrange(3)
            data = bytearray(base64.b64decode(parts[n])) or bytearray(1)
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            parts[n] = base64.b64encode(bytes(data)).decode()
        elif how == 4:  # the token of another stream, or of another step
            value["derender"] = json.loads(rng.choice(self.others + self.mine)).get("derender")
            return json.dumps(value).encode()
        elif how == 5:  # a payload of our own making
            saved = rng.choice(([], {}, [0] * 12, [[b"x" * 99] * 9], [["call", SECRET] * 6], 7, None, "x"))
            parts[0] = base64.b64encode(msgspec.msgpack.encode((rng.choice((3, -1, 2**63, "x")), saved))).decode()
        elif how == 6:  # nested deeply, or long
            blob = rng.choice((b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", os.urandom(300)))
            parts[0] = base64.b64encode(blob).decode()
        elif how == 7:  # the other kind
            return json.dumps({**value, "derender": ("c" if token[0] == "f" else "f") + token[1:]}).encode()
        elif how == 8:  # other ids or lengths under the same token
            field = rng.choice(("output_token_ids", "output_chunk_lens"))
            items = list(value[field]) or [1]
            items[rng.randrange(len(items))] = rng.choice((0, 1, 5, -1, 2**40, 2**70, True, None, "1", 1.0))
            value[field] = items
        elif how == 9:  # a field of another type or size
            field = rng.choice(list(value))
            junk: list[Any] = [None, [], {}, "x" * 5000, -1, 2**64, [["x"]], ["x"] * 1025, [1] * 9000, 1e308, True]
            value[field] = rng.choice(junk)
        elif how == 10:  # offsets and windows
            value.update(prev_tokens=["a"] * rng.randint(0, 3), prefix_offset=rng.randint(-1, 4))
            value["read_offset"] = rng.randint(-1, 4)
        else:  # the key of the cache, with nothing behind it
            parts[1], parts[2] = (json.loads(rng.choice(self.others)).get("derender", "f.x.y").split(".") + ["", ""])[
                1:3
            ]
        if how in (3, 5, 6, 11):
            value["derender"] = rng.choice(("f", "c", token[0], "")) + ".".join(parts)
        return json.dumps(value, separators=rng.choice(((",", ":"), (", ", ": ")))).encode()

    async def run(self, rounds: int) -> dict[int, int]:
        """How often each status was answered."""
        await self.prepare()
        seen: dict[int, int] = {}
        for _ in range(rounds):
            state = self.spoiled()
            status, answer = await self.rng.choice(self.replicas).post(CHAT, self.body("mine", [0x20, 0x7A], state))
            assert status in (200, 400, 409), (status, state)
            seen[status] = seen.get(status, 0) + 1
            told = split(answer)[0] if status == 200 else answer
            assert SECRET[:6].encode() not in told, state
            if status != 200:
                error = json.loads(answer)["error"]
                assert error["code"] == status and SECRET[:6] not in error["message"]
        return seen


def test_spoiled_states() -> None:
    seen = asyncio.run(Fuzz(1).run(ROUNDS))
    assert seen[200] and seen[400] and seen[409]


def test_the_victim_is_not_disturbed() -> None:
    """After all that, the victim's stream goes on as if nothing had been."""

    async def run() -> None:
        fuzz = Fuzz(2)
        await fuzz.run(500)
        last = [state for state in fuzz.others if json.loads(state)["derender"][0] == "f"][-1]
        status, answer = await fuzz.replicas[0].post(CHAT, fuzz.body("victim", [0x21], last))
        assert status == 200
        delta = json.loads(split(answer)[0])["choices"][0]["delta"]
        assert delta["tool_calls"][0]["function"]["arguments"] == "!"

    asyncio.run(run())
