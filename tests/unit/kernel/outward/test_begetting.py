"""Which requests are answered by a credential."""

from __future__ import annotations

import pytest

from ringfence.host.kernel.outward.begetting import begets
from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.rules import Request

BOUND = Binding("bnd_1", "crd_1", "api.test")

BEGETTING = [
    "/token",
    "/token/",
    "/oauth/token",
    "/oauth2/v4/TOKEN",
    "/login/oauth/access_token",
    "/app/installations/1/access_tokens",
    "/repos/a/b/actions/runners/registration-token",
    "/-/npm/v1/tokens",
    "/_/oidc/mint-token",
    "/api/v4/users/1/personal_access_tokens",
    "/api/v4/personal_access_tokens/1/rotate",
    "/v1/realtime/client_secrets",
    "/v1/organization/admin_api_keys",
]


@pytest.mark.parametrize("path", BEGETTING)
def test_answered_by_a_credential(path: str) -> None:
    for method in ("POST", "PUT", "PATCH"):
        assert begets(Request("api.test", 443, True, method, path), BOUND)
    for method in ("GET", "HEAD", "DELETE"):
        assert not begets(Request("api.test", 443, True, method, path), BOUND)
    named = Binding("bnd_1", "crd_1", "api.test", paths=(path,))
    assert not begets(Request("api.test", 443, True, "POST", path), named), "its owner has said so"


@pytest.mark.parametrize(
    "path",
    ["/", "/v1/messages/count_tokens", "/v1/chat/completions", "/repos/a/tokenizer", "/token/1", "/tokens/info", "/a/git-upload-pack"],
)  # fmt: skip
def test_what_is_not(path: str) -> None:
    assert not begets(Request("api.test", 443, True, "POST", path), BOUND)
