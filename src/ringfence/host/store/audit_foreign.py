"""Whether a chain by a key that is not here is another installation's, where several share a database. Must never write.

It is read from rows that whoever writes the database can change, so it takes no chain for good: what is another's is told
as not checked. A chain that the database says was made here stays broken.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.kernel.audit import Head
from ringfence.host.store.schema import audit_chains, kernels

_WHOSE = sa.select(kernels.c.installation).where(kernels.c.worker == sa.bindparam("of_chain"))
_BY_KEY = (
    sa.select(kernels.c.installation)
    .distinct()
    .join(audit_chains, audit_chains.c.chain == kernels.c.worker)
    .where(audit_chains.c.key == sa.bindparam("of_key"), kernels.c.installation != "")
    .order_by(kernels.c.installation)
)


def elsewhere(connection: Connection, head: Head, installation: str) -> str | None:
    """The name of the other installation; empty: nobody knows it any more, since a kernel's row is kept for 30 days.
    None: it is this one's, or nothing says that it is not. `installation`: this one; empty: there is only one."""
    if not installation or not head.key or kernels.name not in sa.inspect(connection).get_table_names():
        return None
    own = connection.execute(_WHOSE, {"of_chain": head.chain}).scalar_one_or_none()
    if own:
        return None if own == installation else str(own)
    names = [str(name) for name in connection.execute(_BY_KEY, {"of_key": head.key}).scalars()]
    if installation in names:
        return None
    if names:
        return names[0]
    return "" if connection.dialect.name == "postgresql" else None  # a file has one installation
