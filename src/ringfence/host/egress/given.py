"""What a command is given for its way out: proxy and certificates, placeholders, what is mounted, the way to the model gateway.

What is mounted is in clear in the command's environment, which the release lane has before. Must never give anything else of a
value, nor a variable that the command's own environment would lose by it: the caller lays its own over this.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from ringfence.host.egress.evidence import step_of
from ringfence.host.egress.outpost import Live
from ringfence.host.egress.site import Home
from ringfence.host.egress.standins import Group, StandIns, model_key, stand_ins
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.outward import placeholders
from ringfence.host.kernel.outward.credentials import Binding, Use
from ringfence.host.kernel.outward.environment import certificates, proxy
from ringfence.host.kernel.outward.ports import Releases, Wanted

_MODELS = (
    # OPENAI_API_BASE: of LiteLLM, and of older clients
    ("OPENAI_API_KEY", (("OPENAI_BASE_URL", "openai/v1"), ("OPENAI_API_BASE", "openai/v1"))),
    ("ANTHROPIC_API_KEY", (("ANTHROPIC_BASE_URL", "anthropic"),)),
)


class Giving:
    def __init__(self, key: bytes, releases: Releases, *, gateway: bool) -> None:
        """`key`: of placeholders."""
        self._key, self._releases, self._gateway = key, releases, gateway
        self._certificates = certificates()
        self._log = logging.getLogger("ringfence.egress")

    def stand_ins(self, invocation: str, groups: Iterable[Group], expires: float) -> StandIns:
        return stand_ins(self._key, invocation, groups, expires)

    def model_digest(self, invocation: str) -> str:
        """Of its key for the gateway."""
        return placeholders.digest(model_key(self._key, invocation))

    async def environment(self, home: Home, live: Live, bindings: Iterable[Binding]) -> Mapping[str, str]:
        """A value that cannot be had is left out, and the log says so."""
        own = dict(live.given.environment)
        for binding in bindings:
            if binding.use is Use.MOUNTED and (value := await self._mounted(home, live, binding)) is not None:
                own |= dict.fromkeys(binding.environment, value)
        made = {**self._certificates, **proxy(live.port)}
        if self._gateway:
            made |= _models(live.port, model_key(self._key, live.id), own)
        return made | own

    async def _mounted(self, home: Home, live: Live, binding: Binding) -> str | None:
        who = live.who
        wanted = Wanted(
            box=home.box,
            user=home.user,
            credential=binding.credential,
            binding=binding.id,
            invocation=live.id,
            host="",
            method="MOUNTED",
            path="",
            run=who.run,
            step=step_of(who),
        )
        try:
            value = (await self._releases.release(None, wanted)).reveal().decode()
        except UnicodeDecodeError:
            self._log.warning("credential %s is no text: it is not mounted", binding.credential)
            return None
        except RingfenceError as error:
            self._log.warning("credential %s is not mounted: %s", binding.credential, error.message)
            return None
        return None if "\0" in value else value


def _models(port: int, key: str, own: Collection[str]) -> dict[str, str]:
    """As the SDKs read them: the gateway is asked at the command's own port, and its key says whose it is. A user's `own` key of
    a provider goes to the provider itself: the gateway would not take it."""
    made: dict[str, str] = {}
    for name, places in _MODELS:
        if name not in own:
            made |= {name: key, **{place: f"http://127.0.0.1:{port}/model/{path}" for place, path in places}}
    return made
