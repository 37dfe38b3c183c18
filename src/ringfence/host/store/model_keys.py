"""A provider's key that goes out with a call of a model: held against what stands, and written down, in the call's
transaction.

Finding a key takes three questions and a commit; whether what was found still stands is one, within a commit that is
there anyway. Must never let a key go that a look for it would not find. Grants are not among what is looked at: no
call goes with a key that was granted.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.kernel.models.ports import Caller, Changed, Going, Standing
from ringfence.host.kernel.outward.credentials import Owner
from ringfence.host.kernel.outward.releasing import release_row
from ringfence.host.store.audit import release_draft
from ringfence.host.store.audit_chain import Chain
from ringfence.host.store.credential_rows import LIVE_CREDENTIAL
from ringfence.host.store.dialect import Dialect
from ringfence.host.store.outward import credentials
from ringfence.host.store.quick import Quick
from ringfence.host.store.text import storable
from ringfence.host.store.transaction import Tx

# Wider than what is taken: a row too many costs a look, one too few would be a key that is not meant any more.
_NAMED = (
    sa.select(credentials.c.id, credentials.c.version)
    .where(
        LIVE_CREDENTIAL,
        credentials.c.tenant == sa.bindparam("in_tenant"),
        credentials.c.name == sa.bindparam("named"),
        sa.or_(
            credentials.c.user == sa.bindparam("of_user"),
            credentials.c.owner == sa.literal_column(f"'{Owner.TENANT.value}'"),
        ),
    )
    .order_by(credentials.c.id)
)
_STANDING = Quick(_NAMED)
_KEPT = Quick(_NAMED.with_for_update(read=True, of=credentials))  # who revokes elsewhere is answered after our commit


def standing(connection: Connection, dialect: Dialect, caller: Caller, name: str, query: Quick = _STANDING) -> Standing:
    if not storable(name):
        return ()
    asked = {"of_user": caller.user, "in_tenant": caller.tenant, "named": name}
    return tuple((id_, version) for id_, version in dialect.pairs(connection, query, asked))


def go(tx: Tx, chain: Chain, caller: Caller, going: Going) -> None:
    """Changed."""
    name = going.credential.name
    if standing(tx.connection, tx.world.dialect, caller, name, _KEPT) != going.standing:
        raise Changed(f"the key {name!r} is another by now")
    chain.append(tx, release_draft(None, *release_row(going.credential, going.wanted)))
