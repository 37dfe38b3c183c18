"""How hosts, paths and queries of requests are read, strictly by what grants and widely by what denies; A8, A13, D23, cases 19 and 22."""

from __future__ import annotations

import pytest

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.matching import compile_rules, covers
from tests.support.rules import ALLOW, DENY, answer, asked, rule


@pytest.mark.parametrize(
    ("pattern", "host", "matches"),
    [
        ("example.com", "example.com", True),
        ("EXAMPLE.com.", "example.com", True),
        ("example.com", "a.example.com", False),
        ("example.com", "evil-example.com", False),  # A8, case 45
        ("*.example.com", "evil-example.com", False),
        ("*.example.com", "example.com.evil.com", False),
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "a.b.example.com", False),  # exactly one
        ("*.example.com", "example.com", False),  # no apex
        ("**.example.com", "a.example.com", True),
        ("**.example.com", "a.b.c.example.com", True),
        ("**.example.com", "example.com", False),
        ("**.example.com", "evil-example.com", False),
        ("**.example.com", "xexample.com", False),
        ("*", "example.com", True),
        ("*", "localhost", True),
        ("*", "93.184.216.34", False),  # A13
        ("*", "::1", False),
        ("**.34", "93.184.216.34", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.0.0.0/8", "10.example.com", False),
        ("fd00::/8", "fd12::1", True),
        ("fd00::/8", "fe12::1", False),
        ("0.0.0.0/0", "::1", False),
        ("::/0", "1.2.3.4", False),
    ],
)
def test_hosts(pattern: str, host: str, matches: bool) -> None:
    if pattern == "**.34":
        with pytest.raises(Invalid):
            compile_rules([rule(pattern)])
        return
    matcher = compile_rules([rule(pattern)])
    expected = ALLOW if matches else DENY
    assert matcher.request(asked(host)).answer is expected
    assert matcher.connection(host, 443, True).answer is expected


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "*.",
        "**",
        "*.*.com",
        "a.*.com",
        "ex*.com",
        "*com",
        "***.com",
        "1.2.3.4",
        "::1",
        "[::1]",
        "*.1.2.3.4",
        "10.1.0.0/8",
        *("10.0.0.0/33", "::ffff:0:0/96", "fe80::%1/64", "api.test:443", "https://api.test", "a b", "*.0x7f"),
    ],
)
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(Invalid):
        compile_rules([rule("fine.test"), rule(pattern)])


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("/repos", "/repos", True),
        ("/repos", "/repos/", False),
        ("/repos", "/reposx", False),
        ("/repos/*", "/repos/a", True),
        ("/repos/*", "/repos/", False),
        ("/repos/*", "/repos/a/b", False),
        ("/repos/*/issues", "/repos/a/issues", True),
        ("/repos/**", "/repos", True),
        ("/repos/**", "/repos/", True),
        ("/repos/**", "/repos/a/b/c", True),
        ("/repos/**", "/reposx/a", False),
        ("/**/info/refs", "/info/refs", True),
        ("/**/info/refs", "/o/r.git/info/refs", True),
        ("/**/info/refs", "/o/r.git/info/refs/x", False),
        ("/**/a/**/b", "/a/a/x/b/b", True),
        ("/**/a/**/b", "/x/b/a", False),
        ("/**/**", "/x", True),
        ("/*/**/*", "/x", False),
        ("/%7euser", "/~user", True),
        ("/a%2Ab", "/a*b", True),
        ("/%2a", "/*", True),
        ("/%2a", "/x", False),
        ("/**", "/@types%2Fnode", False),
        ("/*", "/@types%2Fnode", False),
        ("/*%2F*", "/@types%2Fnode", True),
        ("/*%2f*", "/@types/node", False),
        ("/*%2F*/**", "/@types%2Fnode/-/x", True),
        ("/**%2F*", "/a/b%2Fc", True),
        ("/@types%2Fnode", "/@types%2Fnode", True),
    ],
)
def test_paths(pattern: str, path: str, matches: bool) -> None:
    assert answer([rule("api.test", paths=(pattern,))], asked(path=path)) is (ALLOW if matches else DENY)
    binding = Binding("bnd_1", "crd_1", "api.test", paths=(pattern,))
    assert covers(binding, asked(path=path)) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        *("", "repos", "/a*", "/*a", "/***", "/a//b", "/../a", "/a?x", "/a#x", "/a b", "/%zz", "/a;b", "/\u00e9"),
        *("/x%2F**", "/x%2f**/y", "/**%2F**"),  # it would be two stars that nobody asks for
    ],
)
def test_what_is_no_path(pattern: str) -> None:
    with pytest.raises(Invalid):
        compile_rules([rule("api.test", paths=(pattern,))])


@pytest.mark.parametrize("paths", [(), ("/**",), ("/admin/**",), ("/*/x",)])
def test_a_deny_reads_an_encoded_slash_both_ways(paths: tuple[str, ...]) -> None:
    wide = rule("api.test", paths=("/*%2F*", "/**"))
    assert answer([wide], asked(path="/admin%2Fx")) is ALLOW
    assert answer([wide, rule("api.test", DENY, paths=paths)], asked(path="/admin%2Fx")) is DENY


LENIENT = [
    "/admin",
    "/admin/",
    "/ADMIN",
    "/admin%3Bx",
    "/admin%3B",
    "/admin%20",
    "/admin.",
    "/Admin..%20.",
    "/admin%20/",
]


@pytest.mark.parametrize("path", LENIENT)
def test_a_deny_reads_a_segment_as_lenient_servers_do(path: str) -> None:
    """A grant does not: what is no more than alike has no rule."""
    deny = rule("api.test", DENY, paths=("/admin", "/admin/**"))
    assert answer([rule("api.test"), deny], asked(path=path)) is DENY
    assert answer([rule("api.test"), deny], asked(path=path.rstrip("/") + "/x")) is DENY
    assert answer([rule("api.test", paths=("/admin",))], asked(path=path)) is (ALLOW if path == "/admin" else DENY)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/Admin/*/Secret.", "/aDMIN/x/secret"),
        ("/a%2Fb", "/A%2FB.%3Bx"),
        ("/a/b", "/A%2FB"),
        ("/%2A", "/*"),
        ("/x%2Ay", "/X*Y"),
        ("/", "/"),
        ("/a/", "/a"),
        ("/...x", "/...X"),
    ],
)
def test_so_are_the_patterns_of_a_deny(pattern: str, path: str) -> None:
    rules = [rule("api.test", paths=("/**", "/*%2F*")), rule("api.test", DENY, paths=(pattern,))]
    assert answer(rules, asked(path=path)) is DENY


@pytest.mark.parametrize("path", ["/admins", "/admi", "/a/admin", "/%20admin", "/.admin", "/admin%C3%A9", "/"])
def test_a_deny_does_not_read_more_than_that(path: str) -> None:
    rules = [rule("api.test"), rule("api.test", DENY, paths=("/admin", "/admin/**"))]
    assert answer(rules, asked(path=path)) is ALLOW


def test_an_encoded_slash_is_admitted_where_a_rule_names_one() -> None:
    matcher = compile_rules([rule("*.npm.test", paths=("/*%2f*",)), rule("api.test")])
    assert matcher.encoded_slash("r.npm.test")
    assert not matcher.encoded_slash("api.test") and not matcher.encoded_slash("npm.test")


@pytest.mark.parametrize(
    ("query", "grants", "denies"),
    [
        ("service=git-upload-pack", True, True),
        ("a=b&service=git-upload-pack", True, True),
        ("", False, False),
        ("service=git-receive-pack", False, False),
        ("service=git-upload-pack&service=git-receive-pack", False, True),
        ("service=git-upload-pack&%73ervice=git-receive-pack", False, True),
        ("service=git-upload-pack;service=git-receive-pack", False, True),
        ("service=git-upload-pack&x;service=git-receive-pack", False, True),
        ("service=git%2Dupload-pack", False, True),
        ("service=git-upload-pack+", False, True),
        ("Service=git-upload-pack", False, True),
        ("SERVICE=GIT-Upload-Pack", False, True),
        ("%20service%09=%20git-upload-pack%00", False, True),
        ("service=git-upload-pack&Service=git-receive-pack", False, True),
        ("service[]=git-upload-pack", False, False),  # 0047 says what is not read
        ("xservice=git-upload-pack", False, False),
    ],
)
def test_queries_grant_strictly_and_deny_widely(query: str, grants: bool, denies: bool) -> None:
    wanted = (("service", "git-upload-pack"),)
    request = asked(path="/info/refs", query=query)
    assert answer([rule("api.test", query=wanted)], request) is (ALLOW if grants else DENY)
    assert answer([rule("api.test"), rule("api.test", DENY, query=wanted)], request) is (DENY if denies else ALLOW)
