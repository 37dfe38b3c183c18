"""Presets against the requests of the tools that they are for; cases 9, 46, D69."""

from __future__ import annotations

import pytest

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward.checking import check_rule
from ringfence.host.kernel.outward.matching import compile_rules
from ringfence.host.kernel.outward.presets import PRESETS, preset
from ringfence.host.kernel.outward.registries import DEBIAN, DEBIAN_SECURITY, NPM, PYPI, PYPI_FILES, PYPI_UPLOAD
from ringfence.host.kernel.outward.rules import Layer, Request, Verdict
from ringfence.host.kernel.outward.targets import target

ALLOW, DENY = Verdict.ALLOW, Verdict.DENY


@pytest.mark.parametrize(
    ("spec", "method", "host", "raw", "expected"),
    [
        ("git-read:git.test", "GET", "git.test", "/o/r.git/info/refs?service=git-upload-pack", ALLOW),
        ("git-read:git.test", "POST", "git.test", "/o/r.git/git-upload-pack", ALLOW),  # case 9
        ("git-read:git.test", "GET", "git.test", "/r/info/refs?service=git-receive-pack", DENY),
        ("git-read:git.test", "GET", "git.test", "/r/info/refs?service=git-upload-pack&service=git-receive-pack", DENY),
        ("git-read:git.test", "GET", "git.test", "/r/info/refs", DENY),
        ("git-read:git.test", "POST", "git.test", "/r/git-receive-pack", DENY),
        ("git-read:git.test", "POST", "git.test", "/r/issues", DENY),
        ("git-read:git.test", "GET", "git.test.evil.test", "/r/info/refs?service=git-upload-pack", DENY),
        ("git-read:git.test,hub.test", "POST", "hub.test", "/r/git-upload-pack", ALLOW),
        ("git-read:*.test", "POST", "hub.test", "/r/git-upload-pack", ALLOW),
        ("git-write:git.test", "GET", "git.test", "/r/info/refs?service=git-receive-pack", ALLOW),
        ("git-write:git.test", "POST", "git.test", "/r/git-receive-pack", ALLOW),
        ("git-write:git.test", "POST", "git.test", "/r/git-upload-pack", ALLOW),
        ("git-write:git.test", "POST", "git.test", "/r.git/info/lfs/objects/batch", ALLOW),
        ("git-write:git.test", "DELETE", "git.test", "/r", DENY),
        ("pypi", "GET", PYPI, "/simple/requests/", ALLOW),
        ("pypi", "GET", PYPI, "/pypi/requests/json", ALLOW),
        ("pypi", "GET", PYPI_FILES, "/packages/ab/cd/ef/x-1.0-py3-none-any.whl.metadata", ALLOW),
        ("pypi", "POST", PYPI, "/legacy/", DENY),
        ("pypi", "POST", PYPI_UPLOAD, "/legacy/", DENY),
        ("npm", "GET", NPM, "/left-pad", ALLOW),
        ("npm", "GET", NPM, "/@types%2fnode", ALLOW),
        ("npm", "GET", NPM, "/@types%2fnode/latest", ALLOW),
        ("npm", "GET", NPM, "/@types/node/-/node-22.0.0.tgz", ALLOW),
        ("npm", "POST", NPM, "/-/npm/v1/security/advisories/bulk", ALLOW),
        ("npm", "PUT", NPM, "/left-pad", DENY),
        ("npm", "PUT", NPM, "/@types%2fnode", DENY),
        ("debian", "GET", DEBIAN, "/debian/dists/bookworm/InRelease", ALLOW),
        ("debian", "GET", DEBIAN_SECURITY, "/debian-security/dists/bookworm-security/InRelease", ALLOW),
        ("debian", "PUT", DEBIAN, "/debian/x", DENY),
        ("debian", "GET", DEBIAN, "/other", DENY),
        ("github-api-read", "GET", "api.github.com", "/repos/o/r/pulls", ALLOW),
        ("github-api-read", "POST", "api.github.com", "/repos/o/r/pulls", DENY),
        ("github-api-read", "POST", "api.github.com", "/graphql", DENY),
        ("github-api-read:api.test", "GET", "api.test", "/repos", ALLOW),
        ("github-graphql", "POST", "api.github.com", "/graphql", ALLOW),
    ],
)
def test_requests(spec: str, method: str, host: str, raw: str, expected: Verdict) -> None:
    matcher = compile_rules(preset(spec))
    read = target(raw.encode(), encoded_slash=matcher.encoded_slash(host))
    assert matcher.request(Request(host, 443, True, method, read.path, read.query)).answer is expected


def test_a_push_is_denied_at_every_port() -> None:
    for rule in preset("git-read:git.test"):
        assert rule.ports == (() if rule.answer is DENY else (443,))


def test_only_debian_is_asked_without_tls() -> None:
    for name, each in PRESETS.items():
        rules = preset(name if each.hosts else f"{name}:git.test")
        plain = any(rule.plain for rule in rules)
        assert plain is (name == "debian")
    request = Request(DEBIAN, 80, False, "GET", "/debian/x")
    assert compile_rules(preset("debian")).request(request).answer is ALLOW


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_rule_could_be_stored_and_has_an_id_of_its_own(name: str) -> None:
    spec = name if PRESETS[name].fixed else f"{name}:b.test,a.test"
    rules = preset(spec, Layer.TENANT)
    assert len({rule.id for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.id.startswith(f"preset:{name}:") and rule.layer is Layer.TENANT
        assert check_rule(rule) == rule


@pytest.mark.parametrize(
    "spec", ["", "nope", "git-read", "git-read:", "git-read:*", "git-read:10.0.0.0/8", "pypi:evil.test", "npm:x"]
)
def test_what_is_no_preset(spec: str) -> None:
    with pytest.raises(Invalid) as caught:
        preset(spec)
    assert caught.value.remedy
