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

# Of them an image brings its own (images.py): what its programs are linked and found by. What a box trusts stays the host's.
OF_IMAGE = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d")
FOLDERS_OF_IMAGE = ("alternatives", "ld.so.conf.d")

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
# Where trust.py's certificates are shown. These files are for tools that read no variable of a command's environment.
CA = "/etc/ringfence/ca.pem"
BUNDLE = "/etc/ringfence/bundle.pem"
_GITCONFIG = f"""[safe]
\tdirectory = *
[init]
\tdefaultBranch = main
[gc]
\tautoDetach = false
[advice]
\tdetachedHead = false
[http]
\tsslCAInfo = {BUNDLE}
"""
_PIP = f"[global]\ndisable-pip-version-check = true\nno-input = true\ncert = {BUNDLE}\n"
_NPM = f"update-notifier=false\nfund=false\naudit=false\ncafile={BUNDLE}\n"
_WGET = f"ca_certificate = {BUNDLE}\n"
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
    "wgetrc": _WGET,
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
