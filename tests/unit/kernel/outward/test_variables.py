"""Which variables may hold a placeholder: none that a command runs by, or goes out by."""

from __future__ import annotations

import pytest

from ringfence.host.egress import given
from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward import variables, wishes
from ringfence.host.kernel.outward.credentials import Use
from ringfence.host.kernel.outward.environment import BLOCK
from ringfence.host.kernel.outward.recipes import RECIPES
from ringfence.host.kernel.outward.wishes import BindingWish

OF_INTERPRETERS = (
    "NODE_OPTIONS PYTHONPATH PYTHONSTARTUP PERL5LIB PERL5OPT RUBYOPT JAVA_TOOL_OPTIONS _JAVA_OPTIONS CLASSPATH"
)
OF_SYSTEM = (
    "PATH HOME LD_PRELOAD LD_LIBRARY_PATH BASH_ENV ENV IFS GIT_SSH_COMMAND GIT_CONFIG_COUNT EDITOR SSL_CERT_DIR DYLD_X"
    " CURL_HOME WGETRC PIP_INDEX_URL UV_INDEX_URL AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3"
)


@pytest.mark.parametrize(
    "name", [*f"{OF_INTERPRETERS} {OF_SYSTEM}".split(), "path", "npm_config_script_shell", "1A", "A-B", ""]
)
def test_what_says_what_is_run_is_none(name: str) -> None:
    assert not variables.allowed(name)
    for use in (Use.PLACEHOLDER, Use.MOUNTED):
        with pytest.raises(Invalid, match="variable"):
            wishes.bindings(BindingWish(host="api.test", environment=(name,), use=use), "crd_1")


def test_what_the_way_out_sets_is_none() -> None:
    """In whatever case: curl and npm read some in either."""
    gateways = {place for _, places in given._MODELS for place, _ in places}
    for name in BLOCK | gateways:
        assert not any(variables.allowed(each) for each in (name, name.upper(), name.lower())), name


def test_what_tools_read_a_credential_from_is_one() -> None:
    names = {name for each in RECIPES.values() for name in (*each.environment, *each.elsewhere)}
    for name in names | {
        "API_KEY",
        "GIT_TOKEN",
        "NODE_AUTH_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "BUNDLE_GITHUB__COM",
        "PGPASSWORD",
    }:
        assert variables.allowed(name), name
    assert wishes.variable("https-proxy") == "SECRET_HTTPS_PROXY" and wishes.variable("deploy-key") == "DEPLOY_KEY"
