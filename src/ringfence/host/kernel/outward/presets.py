"""Sets of rules for well-known services, by name: `git-read:github.com`, `pypi`. Data and its expansion; pure.

Hosts and paths are the services' public interfaces. Must never name a mirror, and never grant more than its note says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward.patterns import host_pattern
from ringfence.host.kernel.outward.registries import DEBIAN, DEBIAN_SECURITY, NPM, PYPI, PYPI_FILES
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Verdict

MAX_HOSTS = 16
_GET, _POST = frozenset({"GET", "HEAD"}), frozenset({"POST"})
_WRITES = frozenset({"POST", "PUT"})
_ALLOW, _DENY = Verdict.ALLOW, Verdict.DENY
_UPLOAD, _RECEIVE = "git-upload-pack", "git-receive-pack"
_PACK = 2 << 30  # bytes of a push: as large as a fetch may be
_REPORT = 1 << 20  # bytes of npm's list of what it has installed


@dataclass(frozen=True, slots=True)
class Preset:
    """`hosts`: what it is for when nobody names any; empty: some must be named, and then only those are used."""

    name: str
    note: str
    hosts: tuple[str, ...]
    fixed: bool  # the hosts cannot be chosen
    rules: Callable[[str], tuple[EgressRule, ...]]  # of one host


def preset(spec: str, layer: Layer = Layer.USER) -> tuple[EgressRule, ...]:
    """The rules of `NAME` or `NAME:HOST[,HOST]`, ids `preset:SPEC OF ONE HOST/n`. Invalid: no such preset, no host,
    no choice."""
    name, colon, listed = spec.partition(":")
    found = PRESETS.get(name)
    if found is None:
        raise Invalid(f"no preset {name[:80]!a}", remedy=f"take one of {', '.join(PRESETS)}")
    hosts = _hosts(found, listed.split(",") if colon else [])
    return tuple(
        replace(rule, id=f"preset:{name}:{host}/{number}", layer=layer, note=f"preset {name}")
        for host in hosts
        for number, rule in enumerate(found.rules(host), start=1)
    )


def _hosts(found: Preset, listed: list[str]) -> list[str]:
    if listed and found.fixed:
        raise Invalid(f"the preset {found.name} is for its own hosts", remedy=f"write it as {found.name}")
    if not (listed or found.hosts):
        raise Invalid(f"the preset {found.name} needs a host", remedy=f"write it as {found.name}:git.example.com")
    if len(listed) > MAX_HOSTS:
        raise Invalid(f"{len(listed)} hosts; the limit is {MAX_HOSTS}", remedy="use the preset several times")
    patterns = [host_pattern(each) for each in listed or found.hosts]
    for pattern in patterns:
        if not pattern.names:
            raise Invalid(f"a preset is not for {pattern}", remedy="name a host, *.NAME or **.NAME")
    return list(dict.fromkeys(str(pattern) for pattern in patterns))


def _rule(
    host: str,
    methods: frozenset[str],
    *paths: str,
    answer: Verdict = _ALLOW,
    service: str = "",
    up_bytes: int = 100 << 20,
) -> EgressRule:
    query = (("service", service),) if service else ()
    ports = () if answer is _DENY else (443,)
    return EgressRule("", answer, host, ports, methods=methods, paths=paths, query=query, up_bytes=up_bytes)


def _git_fetch(host: str) -> tuple[EgressRule, ...]:
    """Git's smart HTTP: the references of one service, then packs (gitprotocol-http)."""
    return (
        _rule(host, _GET, "/**/info/refs", service=_UPLOAD),
        _rule(host, _POST, f"/**/{_UPLOAD}"),
    )


def _git_read(host: str) -> tuple[EgressRule, ...]:
    return (
        *_git_fetch(host),
        _rule(host, frozenset(), "/**/info/refs", answer=_DENY, service=_RECEIVE),
        _rule(host, frozenset(), f"/**/{_RECEIVE}", answer=_DENY),
    )


def _git_write(host: str) -> tuple[EgressRule, ...]:
    return (
        *_git_fetch(host),
        _rule(host, _GET, "/**/info/refs", service=_RECEIVE),
        _rule(host, _POST, f"/**/{_RECEIVE}", up_bytes=_PACK),
        _rule(host, _GET | _WRITES, "/**/info/lfs/**", up_bytes=_PACK),
    )


def _pypi(host: str) -> tuple[EgressRule, ...]:
    if host == PYPI:
        return (_rule(host, _GET, "/simple/**", "/pypi/**", "/integrity/**"),)
    return (_rule(host, _GET, "/packages/**"),)


def _npm(host: str) -> tuple[EgressRule, ...]:
    return (
        _rule(host, _GET, "/**", "/*%2F*", "/*%2F*/**"),
        _rule(host, _POST, "/-/npm/v1/security/advisories/bulk", "/-/npm/v1/security/audits/quick", up_bytes=_REPORT),
    )


def _debian(host: str) -> tuple[EgressRule, ...]:
    read = _rule(host, _GET, "/debian/**", "/debian-security/**", "/debian-debug/**")
    return (replace(read, ports=(80, 443), plain=True),)


def _github_read(host: str) -> tuple[EgressRule, ...]:
    return (_rule(host, _GET, "/**"),)


def _github_graphql(host: str) -> tuple[EgressRule, ...]:
    return (_rule(host, _POST, "/graphql", "/api/graphql"),)


_ALL = (
    Preset("git-read", "clone and fetch over https; a push is denied, also by git-write", (), False, _git_read),
    Preset("git-write", "clone, fetch, push and LFS over https: what is pushed leaves", (), False, _git_write),
    Preset("pypi", "download from PyPI", (PYPI, PYPI_FILES), True, _pypi),
    Preset(
        "npm",
        "download from npm's registry; `npm audit` tells it what is installed",
        (NPM,),
        True,
        _npm,
    ),
    Preset(
        "debian",
        "packages of Debian, without TLS too: they are signed",
        (DEBIAN, DEBIAN_SECURITY),
        True,
        _debian,
    ),
    Preset("github-api-read", "GET of GitHub's REST interface", ("api.github.com",), False, _github_read),
    Preset(
        "github-graphql",
        "GitHub's GraphQL, which gh needs to list: it can write too, whatever the token may",
        ("api.github.com",),
        False,
        _github_graphql,
    ),
)
PRESETS: Mapping[str, Preset] = MappingProxyType({each.name: each for each in _ALL})
