"""Names and ids of images, and what is held together with the spawner's and the builder's."""

from __future__ import annotations

import pytest

from ringfence.host.install import images as install
from ringfence.host.install import images_tree, images_try
from ringfence.host.kernel import images
from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.images import HOST, Listing, Use, check_name, is_wish, uses
from ringfence.spawner import etc_files, protocol
from ringfence.spawner import images as spawner

TREE = f"tree:{'a' * 32}"


def test_all_sides_mean_the_same() -> None:
    assert (images.ID.pattern, images.NAME.pattern) == (protocol.IMAGE_ID.pattern, protocol.IMAGE_NAME.pattern)
    assert images.HOST == protocol.HOST_IMAGE
    assert install.HALF.pattern == spawner.HALF.pattern
    assert spawner.LINKS == images_try._LINKS
    assert tuple(images_tree.OF_ETC) == etc_files.OF_IMAGE
    assert {name for name, folder in images_tree.OF_ETC.items() if folder} == set(etc_files.FOLDERS_OF_IMAGE)
    assert set(etc_files.OF_IMAGE) <= set(etc_files.FROM_HOST)


@pytest.mark.parametrize("name", ["host", "default", "", "-a", ".a", "A", "a b", "a/b", "a" * 64, "a\n", TREE])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(Invalid):
        check_name(name)


def test_names_and_ids_cannot_be_taken_for_each_other() -> None:
    assert check_name("debian-12.1_x") == "debian-12.1_x"
    assert is_wish(HOST) and is_wish(TREE) and is_wish("debian")
    assert not is_wish("default") and not is_wish("tree:12") and not is_wish("")


def test_no_entry_can_be_read_as_two() -> None:
    one, other = Listing(), Listing()
    one.add(b"usr/a", "f", 0o644, 1, b"b" * 32)
    other.add(b"usr/a" + b"b", "f", 0o644, 1, b"b" * 31)
    assert one.id != other.id
    third = Listing()
    third.add(b"usr/a", "f", 0o755, 1, b"b" * 32)
    assert len({one.id, other.id, third.id}) == 3 and images.ID.match(one.id)


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (Use("b", "t", "u", "", "", ""), (False, False)),  # the settings say host
        (Use("b", "t", "u", "debian", "", ""), (False, True)),  # not started yet
        (Use("b", "t", "u", "debian", "tree:" + "b" * 32, ""), (False, False)),  # the name has moved
        (Use("b", "t", "u", "debian", TREE, ""), (False, True)),
        (Use("b", "t", "u", "", "host", TREE), (True, False)),  # bound to another while it still runs
    ],
)
def test_who_uses_an_image(use: Use, told: tuple[bool, bool]) -> None:
    assert uses(use, TREE, ("debian",), HOST) == told


def test_a_name_alone_is_used_by_no_box_that_does_not_run() -> None:
    assert uses(Use("b", "t", "u", "", "host", ""), "", ("old",), HOST) == (False, False)
    assert uses(Use("b", "t", "u", "old", "", ""), "", ("old",), HOST) == (False, True)


def test_the_settings_image_is_used_by_who_has_no_other() -> None:
    assert uses(Use("b", "t", "u", "", "", ""), TREE, ("debian",), "debian") == (False, True)
    assert uses(Use("b", "t", "u", "", "", "host:1"), HOST, (), HOST) == (True, True)
