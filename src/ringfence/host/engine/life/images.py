"""Which image a box has as its /usr. A box is bound to an id by its first start, and to another by `box upgrade` alone: a name that
stands for a newer image, or another default in the settings, moves nothing by itself, and a box that is started again is what it was.

What is bound is in the row before anything is started with it, so that `image rm` sees it. Must never start a box with something else
than its row says because that is gone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Box
from ringfence.host.kernel.errors import Invalid, NotFound, Unavailable
from ringfence.host.kernel.images import DEFAULT, HOST, NAMED, is_wish
from ringfence.host.kernel.life.drift import made_of


class Images:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def bound(self, box: Box) -> Box:
        """As it is to be started. The host's, which nobody can take away, is written with the start itself. Unavailable: what it is
        to have is no image of this host."""
        if box.image_bound:
            return box
        try:
            image = await self._id_of(box.image_wanted)
        except NotFound as error:
            raise Unavailable(
                f"the box cannot be started: {error.message}",
                remedy="ringfence image build NAME, or for this box: ringfence box upgrade USER --image host",
            ) from error
        if image == HOST:
            return replace(box, image_bound=HOST)
        return await self._parts.store.boxes.update(box.id, image_bound=image)

    def of_start(self, box: Box) -> dict[str, Any]:
        """What the row says of a box that was just started."""
        made = made_of(self._parts.facts, box.limits, box.image_bound)
        return {"made_of": made, "image": made.get("image", ""), "image_bound": box.image_bound}

    async def chosen(self, box: Box, wish: str | None) -> tuple[str, str]:
        """(what it wants, the id that this stands for now); `wish` None: what it wants already, DEFAULT: what the settings say.
        Invalid, NotFound."""
        if wish is not None and wish != DEFAULT and not is_wish(wish):
            raise Invalid(f"{wish[:80]!r} is no image", remedy=f"a name, an id, host or {DEFAULT}; {NAMED}")
        wanted = box.image_wanted if wish is None else "" if wish == DEFAULT else wish
        return wanted, await self._id_of(wanted)

    async def bind(self, box: Box, choice: tuple[str, str]) -> Box:
        wanted, image = choice
        if (box.image_wanted, box.image_bound) == choice:
            return box
        return await self._parts.store.boxes.update(box.id, image_wanted=wanted, image_bound=image)

    async def _id_of(self, wanted: str) -> str:
        name = wanted or self._parts.config.image
        return HOST if name == HOST else await self._parts.driver.find_image(name)
