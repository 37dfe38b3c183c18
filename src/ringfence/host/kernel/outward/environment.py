"""The environment of a command for its way out: proxy and certificates, for every tool that has a variable of its
own. Pure data.

It is convenience only: a box has no other way out, whatever is in the environment, and a command may unset all of it.

Variables that add to a tool's own roots hold the user's CA; those that replace them hold the bundle of the host's
public roots and that CA. A CA alone in one of the latter breaks every host that is passed through.
"""

from __future__ import annotations

from ringfence.host.kernel.outward.listeners import PROXY_PORTS

CA = "/etc/ringfence/ca.pem"
BUNDLE = "/etc/ringfence/bundle.pem"

_PROXIED = (
    "HTTP_PROXY",  # curl and wget read only the lower-case form for some schemes, others only the upper
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "grpc_proxy",
    "WS_PROXY",
    "WSS_PROXY",
    "YARN_HTTP_PROXY",
    "YARN_HTTPS_PROXY",
    "CARGO_HTTP_PROXY",
    "HEX_HTTPS_PROXY",
)
_REPLACING = (
    "SSL_CERT_FILE",  # OpenSSL, Go, rustls with native roots, uv, httpx, .NET
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "HTTPLIB2_CA_CERTS",
    "CONDA_SSL_VERIFY",
    "COMPOSER_CAFILE",
    "BUNDLE_SSL_CA_CERT",
    "HEX_CACERTS_PATH",
    "YARN_HTTPS_CA_FILE_PATH",
    "PERL_LWP_SSL_CA_FILE",
    "CODEX_CA_CERTIFICATE",
    "npm_config_cafile",  # NODE_EXTRA_CA_CERTS does nothing for npm as soon as some npmrc has a cafile
)
_ADDING = ("NODE_EXTRA_CA_CERTS", "DENO_CERT")
# No brackets and no ranges: httpx fails at its start on either.
_DIRECT = "localhost,127.0.0.1,::1"


def block(port: int | None) -> dict[str, str]:
    """For one invocation: `port` of its proxy in the box. None: no proxy of its own, all goes the transparent way; the
    certificates are needed there too. ValueError: a port that is no invocation's.
    """
    return certificates() if port is None else certificates() | proxy(port)


def certificates() -> dict[str, str]:
    return {
        **dict.fromkeys(_REPLACING, BUNDLE),
        **dict.fromkeys(_ADDING, CA),
        "DENO_TLS_CA_STORE": "system,mozilla",
        "AWS_EC2_METADATA_DISABLED": "true",  # nobody answers there: the SDKs would wait for it
        "GIT_TERMINAL_PROMPT": "0",  # a denial must not end in a question for a password
        "CARGO_NET_GIT_FETCH_WITH_CLI": "true",  # libgit2 knows none of the variables
        "CARGO_HTTP_MULTIPLEXING": "false",  # stalls through proxies (cargo#11746)
    }


def proxy(port: int) -> dict[str, str]:
    """No user and no password in the address: Java and some Node tools fail on one, and others print it."""
    if port not in PROXY_PORTS:
        raise ValueError(f"no invocation has port {port}")
    return {
        **dict.fromkeys(_PROXIED, f"http://127.0.0.1:{port}"),
        "NO_PROXY": _DIRECT,
        "no_proxy": _DIRECT,
        "NODE_USE_ENV_PROXY": "1",
        "PERL_LWP_ENV_PROXY": "1",
        "CLOUDSDK_PROXY_TYPE": "http",
        "CLOUDSDK_PROXY_ADDRESS": "127.0.0.1",
        "CLOUDSDK_PROXY_PORT": str(port),
    }


BLOCK = frozenset(block(PROXY_PORTS[0]))  # every variable of it
