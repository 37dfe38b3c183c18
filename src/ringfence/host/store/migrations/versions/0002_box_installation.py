"""Which installation a box lives on: several may share one database (decision 0032).

Expands: a release that does not know the column leaves it empty, which means "the only installation there is".
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None
kind = "expand"


def upgrade() -> None:
    op.add_column("boxes", sa.Column("installation", sa.Text, nullable=False, server_default=""))
