"""The bookkeeping of the driver's self-check: what fails is said to fail."""

from __future__ import annotations

from typing import cast

from ringfence.client.sync import SyncClient
from ringfence.prove import driver_check
from ringfence.prove.self_check import Check, Place, SelfCheck, equal, refused, run

PLACE = Place(cast(SyncClient, None), "bob")  # the checks below ask nothing of it


def test_a_wrong_answer_and_an_error_fail_the_report() -> None:
    def breaks(_place: Place) -> tuple[bool, str]:
        raise RuntimeError("the box is on fire")

    good = Check("good", "1", lambda _place: equal(1, 1))
    report = run("d", PLACE, (good, Check("wrong", "1", lambda _place: equal(2, 1)), Check("error", "1", breaks)))
    assert [check.ok for check in report.checks] == [True, False, False]
    assert not report.ok and "on fire" in report.checks[2].found
    assert run("d", PLACE, (good,)).ok
    assert not SelfCheck("d").ok


def test_the_report_has_the_keys_of_the_contract() -> None:
    told = run("d", PLACE, (Check("a", "1", lambda _place: equal(1, 1)),)).as_json()
    assert set(told) == {"driver", "ok", "checks"}
    assert set(told["checks"][0]) == {"id", "ok", "seconds", "found", "expected"}


def test_refused_wants_the_error_it_names() -> None:
    assert refused(lambda: None, "not_found") == (False, "no error")


def test_f101_every_subject_of_the_list_is_covered() -> None:
    """Subjects of inspect_ai's sandbox self-check, and the check of ours that asks the same."""
    ids = [check.id for check in driver_check.CHECKS]
    assert len(ids) == len(set(ids))
    covered = {
        "file-text", "file-binary", "file-large", "file-unicode", "file-absolute", "file-relative", "file-empty",
        "file-touched", "file-missing", "file-read-forbidden", "file-write-forbidden", "file-read-directory",
        "file-write-directory", "file-nonsense", "file-names", "file-replace", "exec-output", "exec-timeout",
        "exec-permission", "exec-user", "exec-other-user", "exec-unknown-user", "cwd-unspecified", "cwd-relative",
        "cwd-absolute", "exec-stdout-limited", "exec-stderr-limited", "exec-stdin", "exec-env",
    }  # fmt: skip
    assert covered <= set(ids)
