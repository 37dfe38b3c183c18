"""What must hold between rows of credentials, rules of the way out and invocations. Text only: check.py asks, in the form and by
the rules of check_rows.py.
"""

from __future__ import annotations

from ringfence.host.store.check_rows import Rule

OUTWARD: tuple[Rule, ...] = (
    Rule(
        "credential_user",
        "the credential is live, and its user or tenant is removed or of another tenant",
        """
        SELECT c.id AS id FROM credentials c JOIN tenants t ON t.id = c.tenant LEFT JOIN users u ON u.id = c."user"
        WHERE c.revoked_at IS NULL AND (t.removed_at IS NOT NULL OR u.removed_at IS NOT NULL OR u.tenant <> c.tenant)
        """,
    ),
    Rule(
        "credential_version",
        "the credential is live without the sealed value of its newest version, or has others",
        """
        SELECT c.id AS id FROM credentials c
        LEFT JOIN (
            SELECT credential, COUNT(*) AS many, MAX(version) AS newest FROM credential_versions GROUP BY credential
        ) v ON v.credential = c.id
        WHERE (c.revoked_at IS NULL AND (COALESCE(v.many, 0) <> 1 OR v.newest <> c.version))
           OR (c.revoked_at IS NOT NULL AND COALESCE(v.many, 0) <> 0)
        """,
    ),
    Rule(
        "credential_renewal",
        "an access token is asked for, or was not to be had, for what is revoked, no grant, or a version that is not there yet",
        """
        SELECT r.credential AS id FROM credential_renewals r JOIN credentials c ON c.id = r.credential
        WHERE c.revoked_at IS NOT NULL OR c.kind <> 'oauth_refresh' OR r.version > c.version
        """,
    ),
    Rule(
        "credential_grant",
        "what is granted is not shared, not live, or the user is of another tenant, removed, or its owner",
        """
        SELECT g.credential || ' ' || g."user" AS id FROM credential_grants g
        JOIN credentials c ON c.id = g.credential JOIN users u ON u.id = g."user"
        WHERE c.owner <> 'shared' OR c.revoked_at IS NOT NULL OR u.tenant <> c.tenant OR u.removed_at IS NOT NULL
           OR c."user" = u.id
        """,
    ),
    Rule(
        "credential_binding",
        "the binding is live, and its user may not use the credential",
        """
        SELECT b.id AS id FROM credential_bindings b
        JOIN credentials c ON c.id = b.credential JOIN users u ON u.id = b."user"
        WHERE b.removed_at IS NULL AND (
            c.revoked_at IS NOT NULL OR u.removed_at IS NOT NULL OR u.tenant <> c.tenant OR c.kind = 'authority'
            OR NOT (
                c.owner = 'tenant' OR c."user" = b."user" OR (
                    c.owner = 'shared' AND EXISTS (
                        SELECT 1 FROM credential_grants g WHERE g.credential = c.id AND g."user" = b."user"
                    )
                )
            )
        )
        """,
    ),
    Rule(
        "egress_rule_layer",
        "the rule is live, and its user or tenant is removed, or they are not of one tenant",
        """
        SELECT r.id AS id FROM egress_rules r
        LEFT JOIN tenants t ON t.id = r.tenant LEFT JOIN users u ON u.id = r."user"
        WHERE r.removed_at IS NULL
          AND (t.removed_at IS NOT NULL OR u.removed_at IS NOT NULL OR u.tenant <> r.tenant)
        """,
    ),
    Rule(
        "invocation_box",
        "the invocation is not of its box or its run: user or tenant are others; or it is open and the box is removed",
        """
        SELECT i.id AS id FROM invocations i JOIN boxes b ON b.id = i.box LEFT JOIN runs r ON r.id = i.run
        WHERE b."user" <> i."user" OR b.tenant <> i.tenant OR r.actor <> i."user" OR r.tenant <> i.tenant
           OR (i.closed_at IS NULL AND b.removed_at IS NOT NULL)
        """,
    ),
)
