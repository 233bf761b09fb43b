"""A package of formats: a worked example of the entry point ``derender_proxy.formats``.

Its pyproject.toml would say ::

    [project.entry-points."derender_proxy.formats"]
    acme = "acme_formats"

and the sidecar, installed beside it, then knows ``--tool-call-parser acme``: calls written as
``<<call>>NAME<<args>>{...}<<end>>``. ``acme_upper`` shows a parser that is code and no table.
"""

from proxy.derender.parsing.arguments.headed import HeadedReader
from proxy.derender.parsing.events import CONTENT
from proxy.derender.parsing.foreign import ForeignFormat, Opening
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ReasoningFormat, ToolFormat

ACME = ToolFormat(
    names=("acme",),
    states={
        "content": State(Sink.CONTENT, on={"<<call>>": "name"}),
        "name": State(Sink.HEAD, on={"<<args>>": "arguments"}, trial=True),
        "arguments": State(Sink.CALL, reader=HeadedReader, then="closing", headed=True),
        "closing": State(Sink.GAP, on={"<<end>>": "content"}, otherwise="content"),
    },
)

ACME_REASONING = ReasoningFormat(names=("acme",), start="<<think>>", end="<<said>>", open_by_default=False)


class Upper:
    """Everything is content, in capitals. No state worth saving but the half of a character."""

    def __init__(self, opening: Opening) -> None:
        self._detokenizer = opening.detokenizer
        self.named = ""
        self.events = []
        self.reasoning_tokens = 0
        self.state = "content"
        self.held = ""

    def feed(self, ids):
        text = self._detokenizer.push(ids)
        if text:
            self.events.append((CONTENT, text.upper(), ""))

    def feed_one(self, token_id):
        self.feed((token_id,))

    def finish(self, cut):
        pass

    def resume(self, pending):
        self._detokenizer.resume(pending)

    def save(self):
        return [self._detokenizer.save()]

    def load(self, saved):
        self._detokenizer.load(*saved)


FORMATS = (ACME, ACME_REASONING, ForeignFormat(Upper, tool_names=("acme_upper",)))
