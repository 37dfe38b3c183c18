"""Credentials, their bindings, and the vault. A value goes out once, in the body of a request, and never comes back."""

from __future__ import annotations

from base64 import b64encode

from ringfence.client import urls
from ringfence.client.connection import Connection, Json


class Secrets(Connection):
    async def secrets(self, user: str, *, tenant: str | None = None) -> list[Json]:
        """What the user may bind: own, then the tenant's, then what was granted."""
        return list((await self._json("GET", f"{self._user(user, tenant)}/secrets"))["secrets"])

    async def all_secrets(self, *, tenant: str | None = None) -> list[Json]:
        """Of the tenant and all its users; operators only."""
        return list((await self._json("GET", self._in_tenant(tenant, "secrets")))["secrets"])

    async def set_secret(
        self,
        user: str,
        name: str,
        value: bytes,
        *,
        shared: bool | None = None,
        binding: Json | None = None,
        oauth: bool = False,
        tenant: str | None = None,
    ) -> Json:
        """A new one, or its next version. `binding`: as in `bind_secret`, made at once. `oauth`: the value is a grant as
        JSON, for which access tokens are got."""
        body = {"value_b64": b64encode(value).decode("ascii"), "shared": shared, "binding": binding, "oauth": oauth}
        answer: Json = await self._json("PUT", self._secret(user, name, tenant), body)
        return answer

    async def set_tenant_secret(
        self,
        name: str,
        value: bytes,
        *,
        user: str = "",
        binding: Json | None = None,
        oauth: bool = False,
        tenant: str | None = None,
    ) -> Json:
        """The tenant's, which each of its users may bind. Operators only. `binding` is made for `user`."""
        body = {"value_b64": b64encode(value).decode("ascii"), "user": user, "binding": binding, "oauth": oauth}
        answer: Json = await self._json("PUT", f"{self._in_tenant(tenant, 'secrets')}/{urls.segment(name)}", body)
        return answer

    async def revoke_secret(self, user: str, name: str, *, tenant: str | None = None) -> Json:
        """For good: no worker has the value any more when this returns."""
        answer: Json = await self._json("DELETE", self._secret(user, name, tenant))
        return answer

    async def revoke_tenant_secret(self, name: str, *, tenant: str | None = None) -> Json:
        answer: Json = await self._json("DELETE", f"{self._in_tenant(tenant, 'secrets')}/{urls.segment(name)}")
        return answer

    async def grant_secret(
        self, user: str, name: str, to: str, *, granted: bool = True, tenant: str | None = None
    ) -> None:
        """Of a shared one of `user`, to another user of the tenant; `granted` False takes it back."""
        path = f"{self._secret(user, name, tenant)}/grants/{urls.segment(to)}"
        await self._json("PUT" if granted else "DELETE", path)

    async def bind_secret(self, user: str, name: str, binding: Json, *, tenant: str | None = None) -> list[Json]:
        """`binding`: NewBinding of the API, such as {"recipe": "github"}. The new ones."""
        return list((await self._json("POST", f"{self._secret(user, name, tenant)}/bindings", binding))["bindings"])

    async def reach_secret(self, user: str, name: str, binding: Json | None, *, tenant: str | None = None) -> Json:
        """Of a shared one: those it is granted to may bind it there too, as in `bind_secret`; None: nowhere any more."""
        return await self._reach(self._secret(user, name, tenant), binding)

    async def reach_tenant_secret(self, name: str, binding: Json | None, *, tenant: str | None = None) -> Json:
        """The same of the tenant's, for each of its users. Operators only."""
        return await self._reach(f"{self._in_tenant(tenant, 'secrets')}/{urls.segment(name)}", binding)

    async def _reach(self, path: str, binding: Json | None) -> Json:
        answer: Json = await self._json("DELETE" if binding is None else "PUT", f"{path}/reach", binding)
        return answer

    async def unbind_secret(self, user: str, which: str, *, tenant: str | None = None) -> list[str]:
        """`which`: an id of a binding, or a credential's name for all of its. The ids that are gone."""
        path = f"{self._user(user, tenant)}/bindings/{urls.segment(which)}"
        return list((await self._json("DELETE", path))["unbound"])

    async def vault(self) -> Json:
        """{"sealed", "remedy", "key", "old", "unreadable", "restored", "altered"}; operators only."""
        answer: Json = await self._json("GET", "/v1/vault")
        return answer

    async def rotate_vault(self) -> Json:
        """{"rewrapped", "resigned", "left", "damaged"}. May be cut off anywhere and asked again."""
        answer: Json = await self._json("POST", "/v1/vault/rotate")
        return answer

    async def vault_restored(self) -> int:
        """The store was put back by another host: what is older in it is right. The generation. Operators only."""
        return int((await self._json("POST", "/v1/vault/restored"))["generation"])

    async def forget_ca(self, user: str, *, tenant: str | None = None) -> None:
        """The user's boxes get another CA at their next start. Operators only."""
        await self._json("DELETE", f"{self._user(user, tenant)}/ca")

    def _secret(self, user: str, name: str, tenant: str | None) -> str:
        return f"{self._user(user, tenant)}/secrets/{urls.segment(name)}"
