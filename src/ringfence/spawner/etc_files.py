"""The box's /etc, as data: what is generated, and which public parts of the host's are shown read-only.

All configuration that the host writes for tools lives here, never in the user's HOME. Must never hold a secret, a user's
name or a path of the host.
"""

from __future__ import annotations

import hashlib

UID = GID = 1000
USER = "user"
HOME = "/home/user"
HOSTNAME = "box"

# Read-only from the host where it has them: public, and what installed programs need to start at all (awk and others
# are links through alternatives; ld.so.cache makes the loader find libraries outside the default folders).
FROM_HOST = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ssl/certs",
    "ssl/openssl.cnf",
)

_PASSWD = f"""root:x:0:0:root:/root:/usr/sbin/nologin
{USER}:x:{UID}:{GID}:{USER}:{HOME}:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_GROUP = f"root:x:0:\n{USER}:x:{GID}:\nnogroup:x:65534:\n"
_NSSWITCH = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n"
_HOSTS = f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost\n"
# The synthetic resolver of the egress worker, on the loopback of the box's own network namespace. One short try: until
# a worker is there the port is closed, and a name must fail at once.
_RESOLV = "nameserver 127.0.0.1\noptions timeout:2 attempts:1\n"
# Files of the tree show their owner as the box's user, but a mount's top may show another: git must not refuse it.
_GITCONFIG = """[safe]
\tdirectory = *
[init]
\tdefaultBranch = main
[gc]
\tautoDetach = false
[advice]
\tdetachedHead = false
"""
_PIP = "[global]\ndisable-pip-version-check = true\nno-input = true\n"
_NPM = "update-notifier=false\nfund=false\naudit=false\n"
_PROFILE = 'export PATH="$HOME/.local/bin:/opt/ringfence/bin:/usr/local/bin:/usr/bin:/bin"\numask 022\n'
_SHELLS = "/bin/sh\n/bin/bash\n/usr/bin/sh\n/usr/bin/bash\n"

GENERATED: dict[str, str] = {
    "passwd": _PASSWD,
    "group": _GROUP,
    "nsswitch.conf": _NSSWITCH,
    "hosts": _HOSTS,
    "hostname": f"{HOSTNAME}\n",
    "resolv.conf": _RESOLV,
    "gitconfig": _GITCONFIG,
    "pip.conf": _PIP,
    "npmrc": _NPM,
    "profile": _PROFILE,
    "bash.bashrc": "",
    "shells": _SHELLS,
    "timezone": "Etc/UTC\n",
    "machine-id": "",  # the box's own is bound over it
}
# Needed by getservbyname and getprotobyname; public constants, too long to repeat here.
FROM_HOST_FILES = ("services", "protocols", "mime.types")


def machine_id(installation: str, box: str) -> str:
    """machine-id(5): 32 hexadecimal digits, stable for the box, not to be traced to the host."""
    return hashlib.sha256(f"machine-id\0{installation}\0{box}".encode()).hexdigest()[:32] + "\n"
