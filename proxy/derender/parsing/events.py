"""What the parser says about a stream, before it becomes deltas.

An event is a tuple ``(kind, text, extra)``:

=============  ======================================  =====================================
kind           text                                    extra
=============  ======================================  =====================================
``REASONING``  a piece of the reasoning                ``""``
``CONTENT``    a piece of the visible answer           ``""``
``CALL``       the name of the call that begins        the id the model wrote, or ``""``
``ARGUMENTS``  a piece of the arguments' JSON text     ``""``
``END``        ``""``                                  ``"closed"``, or ``"broken"`` where the
                                                       call was malformed or cut, ``"listed"``
                                                       where it closed inside a list; the list
                                                       has an ``END`` of its own behind its calls
=============  ======================================  =====================================
"""

from __future__ import annotations

from typing import Final, TypeAlias

REASONING: Final = 0
CONTENT: Final = 1
CALL: Final = 2
ARGUMENTS: Final = 3
END: Final = 4

CLOSED: Final = "closed"
BROKEN: Final = "broken"
LISTED: Final = "listed"

Event: TypeAlias = tuple[int, str, str]
