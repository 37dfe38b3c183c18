"""`ringfence image`: what boxes can have as their /usr. Own commands: what they do is in host.install."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ringfence.cli.db_command import say
from ringfence.cli.options import Json

image = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="What boxes can have as their /usr, beside the host's own."
)


@image.command("build")
def build(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called; a name that is there moves to it.")],
    source: Annotated[
        str | None, typer.Option("--from", metavar="DIR", help="The root of a system; host: this host's own.")
    ] = None,
    suite: Annotated[
        str | None, typer.Option("--suite", metavar="SUITE", help="A Debian release, by debootstrap.")
    ] = None,
    include: Annotated[
        str | None, typer.Option("--include", metavar="PKG,...", help="With --suite: packages beside the minimal ones.")
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option("--mirror", metavar="URL", help="With --suite: where from. Default: as apt of this host."),
    ] = None,
    json: Json = False,
) -> int:
    """Make an image: tried, and named by the digest of all that is in it. As root, or as who runs the server."""
    from ringfence.host.install import image_commands
    from ringfence.host.install.images import Wish

    packages = tuple(each for each in (include or "").split(",") if each)
    wish = Wish(name, source, suite, packages, mirror or "")
    return say(image_commands.build(os.environ, wish, as_json=json))


@image.command("ls")
def ls(json: Json = False) -> int:
    """Show the images, and how many boxes run with each or are bound to it."""
    from ringfence.host.install import image_commands

    return say(image_commands.ls(os.environ, as_json=json))


@image.command("rm")
def rm(
    wanted: Annotated[str, typer.Argument(metavar="ID|NAME", help="Of several names, one; else the image.")],
    json: Json = False,
) -> int:
    """Remove an image that no box has."""
    from ringfence.host.install import image_commands

    return say(image_commands.rm(os.environ, wanted, as_json=json))
