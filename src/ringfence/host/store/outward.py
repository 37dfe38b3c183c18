"""The tables of credentials, of rules of the way out, of rolls, and of invocations: the third part of the schema.

Must never be used to create them: migrations/ does that. No column holds a value in clear: `data` and `wrapped_key` are what
host/vault made of it. A credential that is revoked keeps its row and none of its versions.
"""

from __future__ import annotations

import sqlalchemy as sa

from ringfence.host.store.columns import id_, json_, some, text, time, to, whole
from ringfence.host.store.schema import metadata

CREDENTIAL_LIVE = "revoked_at IS NULL"  # a query must say it in these words to be given the index
LIVE = "removed_at IS NULL"
OPEN = "closed_at IS NULL"

credentials = sa.Table(
    "credentials",
    metadata,
    id_(),
    to("tenant", "tenants.id"),
    text("owner"),
    to("user", "users.id", nullable=True),
    text("name"),
    whole("version"),  # the newest; of one that is revoked the last
    text("kind"),
    text("reach"),  # JSON, or empty: kernel.outward.reaches
    text("mac"),  # of the newest version, under its own key: kernel.outward.credentials.Sealed
    time("created_at", nullable=False),
    time("updated_at", nullable=False),
    time("revoked_at"),
    sa.CheckConstraint("owner IN ('user', 'tenant', 'shared')", name="owner"),
    sa.CheckConstraint("(owner = 'tenant') = (\"user\" IS NULL)", name="user"),
    sa.CheckConstraint("kind IN ('opaque', 'oauth_refresh', 'authority')", name="kind"),
    sa.CheckConstraint("version >= 1", name="version"),
    sa.Index("ix_credentials_tenant", "tenant"),
)
some("uq_credentials_user", credentials, ["user", "name"], f'{CREDENTIAL_LIVE} AND "user" IS NOT NULL', unique=True)
some("uq_credentials_tenant", credentials, ["tenant", "name"], f'{CREDENTIAL_LIVE} AND "user" IS NULL', unique=True)

credential_versions = sa.Table(
    "credential_versions",
    metadata,
    to("credential", "credentials.id", primary_key=True),
    whole("version", primary_key=True),
    text("kek"),
    sa.Column("wrapped_key", sa.LargeBinary, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
    time("created_at", nullable=False),
    sa.CheckConstraint("version >= 1", name="version"),
)

credential_grants = sa.Table(
    "credential_grants",
    metadata,
    to("credential", "credentials.id", primary_key=True),
    to("user", "users.id", primary_key=True),
    time("created_at", nullable=False),
    sa.Index("ix_credential_grants_user", "user"),
)

credential_renewals = sa.Table(  # of access tokens; a row that is about an older version says nothing
    "credential_renewals",
    metadata,
    to("credential", "credentials.id", primary_key=True),
    whole("version"),
    text("holder"),  # the kernel that asks for a token now; "" = none
    time("until"),  # when its turn ends, whatever became of it
    whole("failures"),  # in a row
    time("again_at"),  # after a failure; NULL then: for good
    text("why"),
    whole("cut"),  # 1: a question was sent, and its answer is not known
    sa.CheckConstraint("(holder = '') = (until IS NULL)", name="until"),
)

credential_bindings = sa.Table(
    "credential_bindings",
    metadata,
    id_(),
    to("user", "users.id"),
    to("credential", "credentials.id"),
    json_("body"),  # kernel.outward.spelled
    text("digest"),  # of credential and body without the id: the same binding is there once
    time("created_at", nullable=False),
    time("removed_at"),
    sa.Index("ix_credential_bindings_credential", "credential"),
)
some("uq_credential_bindings_live", credential_bindings, ["user", "digest"], LIVE, unique=True)

egress_rules = sa.Table(
    "egress_rules",
    metadata,
    id_(),
    to("tenant", "tenants.id", nullable=True),
    to("user", "users.id", nullable=True),
    text("scope"),  # id of user, else of tenant, else "": what the rule is of, never NULL for the sake of the index
    json_("body"),  # kernel.outward.spelled
    text("digest"),  # of the body without id and note
    time("created_at", nullable=False),
    time("removed_at"),
    sa.CheckConstraint("scope = COALESCE(\"user\", tenant, '')", name="scope"),
    sa.CheckConstraint('"user" IS NULL OR tenant IS NOT NULL', name="layer"),
)
some("uq_egress_rules_live", egress_rules, ["scope", "digest"], LIVE, unique=True)

rolls = sa.Table(
    "rolls",
    metadata,
    id_("of"),  # kernel.outward.rolls: of whom, and of what
    whole("edition"),
    json_("entries"),
    text("kek"),
    text("mac"),
    sa.CheckConstraint("edition >= 1", name="edition"),
)

# What was changed, for other kernels: the number of the newest change of each, and with `of` empty the newest of all.
outward_news = sa.Table(
    "outward_news",
    metadata,
    id_("of"),
    whole("n"),
    sa.Index("ix_outward_news_n", "n"),
)

invocations = sa.Table(
    "invocations",
    metadata,
    id_(),
    to("tenant", "tenants.id"),
    to("user", "users.id"),
    to("box", "boxes.id"),
    text("key"),
    to("run", "runs.id", nullable=True),
    whole("epoch"),
    whole("port"),
    time("opened_at", nullable=False),
    time("closed_at"),
    sa.CheckConstraint("port BETWEEN 100 AND 1021", name="port"),
    sa.CheckConstraint("epoch >= 0", name="epoch"),
    sa.Index("ix_invocations_closed_at", "closed_at"),
    sa.Index("ix_invocations_user", "user"),
)
some("uq_invocations_port", invocations, ["box", "port"], OPEN, unique=True)
