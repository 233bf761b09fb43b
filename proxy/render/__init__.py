"""Chat and text requests to prompt token ids and sampling parameters.

``Renderer`` renders, ``Rendered`` is what it gives, ``chat_body`` and ``completion_bodies`` are the answers of the
``/render`` routes.
"""

from proxy.render.bodies import chat_body, completion_bodies
from proxy.render.rendered import Rendered
from proxy.render.renderer import Renderer, RenderOptions

__all__ = ["RenderOptions", "Rendered", "Renderer", "chat_body", "completion_bodies"]
