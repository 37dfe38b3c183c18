"""What goes with a user or a tenant: its credentials with their sealed values, bindings, rules, invocations. Write functions
only, called in the transaction that removes them: there is never a moment at which one is gone and the other is not.
"""

from __future__ import annotations

import sqlalchemy as sa

from ringfence.host.kernel.ids import TenantId, UserId
from ringfence.host.kernel.outward.rolls import BINDINGS, GRANTS
from ringfence.host.store.credential_rows import LIVE_CREDENTIAL, end_bindings, end_credentials
from ringfence.host.store.egress_rules import end_rules
from ringfence.host.store.invocations import close_where
from ringfence.host.store.outward import credential_bindings, credential_grants, credentials, invocations
from ringfence.host.store.roll_rows import drop, strike
from ringfence.host.store.schema import users
from ringfence.host.store.transaction import Tx

# Whoever stores something for the user meanwhile has the row for reading (credential_rows.keep_user): it is waited for. Who only
# refers to it (a foreign key) is in nobody's way.
_LOCK = sa.select(users.c.id).where(users.c.id == sa.bindparam("which")).with_for_update(key_share=True)


def user_leaves(tx: Tx, user: UserId) -> None:
    tx.connection.execute(_LOCK, {"which": user})
    _end(tx, credentials.c.user == user)
    grants = (
        sa.delete(credential_grants).where(credential_grants.c.user == user).returning(credential_grants.c.credential)
    )
    for credential in sorted(tx.connection.execute(grants).scalars()):
        strike(tx, GRANTS + credential, [user], lambda: True)
    end_bindings(tx, credential_bindings.c.user == user)
    drop(tx, BINDINGS + user)
    end_rules(tx, user)
    close_where(tx, invocations.c.user == user)


def tenant_leaves(tx: Tx, tenant: TenantId) -> None:
    """It has no users any more, and its row is locked."""
    _end(tx, credentials.c.tenant == tenant)
    end_rules(tx, tenant)


def _end(tx: Tx, whose: sa.ColumnElement[bool]) -> None:
    which = sa.select(credentials.c.id).where(whose, LIVE_CREDENTIAL).with_for_update()
    end_credentials(tx, list(tx.connection.execute(which).scalars()))
