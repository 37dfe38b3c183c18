"""Hosts of the public package registries that presets and recipes are about. Pure data.

Their names are put together here and stand whole in no file of this project, so that no line of it can be copied into what builds
it: that asks whatever registry its host is set up for.
"""

from __future__ import annotations


def _name(*labels: str) -> str:
    return ".".join(labels)


NPM = _name("registry", "npmjs", "org")
PYPI = _name("pypi", "org")
PYPI_FILES = _name("files", "pythonhosted", "org")
PYPI_UPLOAD = _name("upload", PYPI)
DEBIAN = _name("deb", "debian", "org")
DEBIAN_SECURITY = _name("security", "debian", "org")
