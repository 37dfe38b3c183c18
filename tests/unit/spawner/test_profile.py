"""The box's mount plan as data: what must come before what, and what must not be there at all."""

from __future__ import annotations

from typing import get_args

from ringfence.spawner import etc_files, paths, profile
from ringfence.spawner.profile import Bind, Descriptors, Directory, Flag, Link, ReadOnly, Tmpfs, Variable
from ringfence.spawner.protocol import BoxKind

LINKS = [("usr/bin", "bin"), ("usr/lib", "lib")]
PLAN = profile.plan(LINKS, 1 << 20, 2 << 20, Descriptors(9, 10, 11))
MAKES = (Bind, Directory, Link, Tmpfs)


def index(operation: profile.Operation) -> int:
    return PLAN.index(operation)


def test_the_users_trees_are_the_last_things_mounted() -> None:
    """L1, I02."""
    made = [o for o in PLAN if isinstance(o, MAKES)]
    assert tuple(made[-3:]) == profile.TREES
    assert not any(isinstance(o, Bind) and o.writable for o in made[:-3])


def test_nothing_is_made_below_a_mount_that_the_user_can_write() -> None:
    """L1."""
    writable: list[str] = []
    for operation in PLAN:
        if isinstance(operation, MAKES):
            assert not any(operation.target.startswith(f"{top}/") for top in writable), operation.describe()
        if isinstance(operation, Tmpfs) or (isinstance(operation, Bind) and operation.writable):
            writable.append(operation.target)


def test_root_and_dev_are_closed_after_everything_is_made_in_them() -> None:
    for target in ("/dev", "/"):
        closed = index(ReadOnly(target))
        later = [o.target for o in PLAN[closed:] if isinstance(o, MAKES)]
        assert later == [t.target for t in profile.TREES]  # their mount points were made before
    for tree in profile.TREES:
        assert index(Directory(tree.target)) < index(ReadOnly("/"))


def test_no_mount_hides_an_earlier_one() -> None:
    """C51: what lies inside comes after what it lies in, so both can be seen."""
    made: list[str] = []
    for operation in PLAN:
        if isinstance(operation, MAKES):
            hidden = [each for each in made if each.startswith(f"{operation.target}/")]
            assert not hidden or isinstance(operation, Directory), operation.describe()
            made.append(operation.target)
    assert {"/dev/shm", "/home/user", "/opt/ringfence"} <= set(made)


def test_namespaces_are_named_one_by_one_and_the_guest_is_pid_1() -> None:
    """L3: nothing ties the box's life to the thread or the process that started it."""
    words = [w for o in PLAN for w in o.arguments()]
    wanted = {"--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup", "--as-pid-1"}
    assert wanted <= set(words)
    assert not {"--unshare-all", "--unshare-net", "--die-with-parent", "--share-net"} & set(words)
    assert not any(w.endswith("-try") for w in words)
    assert words.index("--new-session") < words.index("--seccomp") < words.index("--chdir")


def test_only_usr_and_the_launchers_sources_are_bound() -> None:
    sources = {o.source for o in PLAN if isinstance(o, Bind)}
    assert sources == {"/usr"} | {f"/source/{n}" for n in ("etc", "guest", "home", "workspace", "tmp")}


def test_environment_is_exactly_the_table() -> None:
    found = {o.name: o.value for o in PLAN if isinstance(o, Variable)}
    assert set(found) == {"PATH", "HOME", "USER", "LANG", "SHELL", "PYTHONSAFEPATH"}
    assert found["PATH"].split(":")[:2] == ["/home/user/.local/bin", "/opt/ringfence/bin"]


def test_arguments_end_each_word_and_every_operation_describes_itself() -> None:
    data = profile.arguments(PLAN)
    assert data.endswith(b"\0") and data.split(b"\0")[-3:-1] == [b"--chdir", b"/workspace"]
    assert data.count(b"\0") == sum(len(o.arguments()) for o in PLAN)
    assert all(o.describe() for o in PLAN)
    assert Flag(("--seccomp", "9"), "the strict filter") in PLAN
    assert "2097152" in Tmpfs("/run", 2 << 20, "0755").describe()


def test_guest_command() -> None:
    assert profile.guest_command("/usr/bin/python3", 3, [4, 5], "ab")[3:] == [
        "/opt/ringfence/init.pyc",
        "3",
        "4,5",
        "ab",
    ]
    assert profile.guest_command("/usr/bin/python3", 3, [], "ab")[5] == "-"


def test_machine_id_is_stable_for_a_box_and_differs_between_boxes() -> None:
    one = etc_files.machine_id("i", "a")
    assert one == etc_files.machine_id("i", "a") and len(one) == 33 and int(one, 16)
    assert len({one, etc_files.machine_id("i", "b"), etc_files.machine_id("j", "a")}) == 3


def test_a_jail_has_what_a_box_has_but_home_and_run() -> None:
    jail = profile.plan(LINKS, 1 << 20, 2 << 20, Descriptors(9, 10, 11), profile.view("skill"))
    gone = [o for o in PLAN if o not in jail]
    assert {o.target for o in gone if isinstance(o, MAKES)} == {"/home/user", "/run"}
    assert {o.name: o.value for o in jail if o not in PLAN and isinstance(o, Variable)} == {
        "HOME": "/tmp",
        "PATH": profile.PATH.removeprefix("/home/user/.local/bin:"),
    }
    assert all(isinstance(o, Variable) for o in jail if o not in PLAN)
    assert [o for o in jail if o in PLAN] == [o for o in PLAN if o in jail]  # the order is kept
    assert not any("/home" in word for o in jail for word in o.arguments())


def test_the_tree_of_a_kind_is_what_its_view_binds() -> None:
    for kind in get_args(BoxKind):
        assert tuple(f"/source/{name}" for name in paths.parts(kind)) == tuple(
            tree.source for tree in profile.view(kind).trees
        )
    assert {kind for kind in get_args(BoxKind) if not profile.view(kind).routes} == {"skill"}
