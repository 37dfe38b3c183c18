"""What must hold between rows, each as a question that names the rows for which it does not. Text only: check.py asks.

Every question runs on SQLite and on PostgreSQL, gives one column `id` (what to look at), and reads only. A question
says what is wrong in the words of whoever has to mend it. Sources: architecture.md section 7, faults.md I2, I3, I6.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringfence.host.kernel.kernels import EPOCH_JUMP

_KEPT = "COALESCE((SELECT c.kept_from FROM cuts c WHERE c.thread = {}), 1)"
_FINAL = "('completed', 'failed', 'cancelled')"


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    says: str
    query: str


RULES: tuple[Rule, ...] = (
    Rule(
        "events_gapless",
        "the thread's events are not all there from the first kept cursor to its newest",
        f"""
        SELECT t.id AS id FROM threads t
        LEFT JOIN (
            SELECT thread, COUNT(*) AS many, MIN(cursor) AS low, MAX(cursor) AS high FROM events GROUP BY thread
        ) e ON e.thread = t.id
        WHERE COALESCE(e.many, 0) <> t.cursor - {_KEPT.format("t.id")} + 1
           OR e.low <> {_KEPT.format("t.id")} OR e.high <> t.cursor
        """,
    ),
    Rule(
        "message_event",
        "the message has no event of its kind at its cursor",
        f"""
        SELECT m.id AS id FROM messages m
        LEFT JOIN events e ON e.thread = m.thread AND e.cursor = m.cursor
                          AND e.kind = CASE WHEN m.author IS NULL THEN 'reply' ELSE 'message' END
        WHERE e.cursor IS NULL AND m.cursor >= {_KEPT.format("m.thread")}
        """,
    ),
    Rule(
        "turn_run",
        "the turn and its run do not agree (state, end, thread, actor or lane)",
        """
        SELECT t.id AS id FROM turns t LEFT JOIN runs r ON r.id = t.run
        WHERE r.id IS NULL OR r.turn <> t.id OR r.state <> t.state OR r.thread <> t.thread OR r.actor <> t.actor
           OR r.lane <> t.lane OR (t.ended_at IS NULL) <> (r.ended_at IS NULL)
        """,
    ),
    Rule(
        "turn_end",
        "the turn is final without an end, or has an end and is not final",
        f"SELECT id FROM turns WHERE (state IN {_FINAL}) <> (ended_at IS NOT NULL)",
    ),
    Rule(
        "turn_message",
        "the turn's message is another turn's, or not its actor's",
        """
        SELECT t.id AS id FROM turns t JOIN messages m ON m.id = t.message
        WHERE m.turn <> t.id OR m.thread <> t.thread OR m.author IS NULL OR m.author <> t.actor
        """,
    ),
    Rule(
        "run_turn",
        "the run is not the one that its turn names",
        "SELECT r.id AS id FROM runs r JOIN turns t ON t.id = r.turn WHERE t.run IS NULL OR t.run <> r.id",
    ),
    Rule(
        "run_end_event",
        "the run is final, and its thread has no event that says so",
        f"""
        SELECT r.id AS id FROM runs r
        LEFT JOIN (SELECT DISTINCT run FROM events WHERE kind = 'run.ended') e ON e.run = r.id
        WHERE r.state IN {_FINAL} AND e.run IS NULL AND {_KEPT.format("r.thread")} = 1
        """,
    ),
    Rule(
        "run_position",
        "the run's place in its lane is not the cursor of its turn's message",
        """
        SELECT r.id AS id FROM runs r JOIN turns t ON t.id = r.turn JOIN messages m ON m.id = t.message
        WHERE r.position <> m.cursor
        """,
    ),
    Rule(
        "run_lane",
        "the run's lane is not the one of its thread",
        """
        SELECT r.id AS id FROM runs r JOIN threads t ON t.id = r.thread
        WHERE r.lane <> CASE WHEN t.parallel THEN t.id || '/' || r.actor ELSE t.id END
        """,
    ),
    Rule(
        "lane_one_live",
        "two runs of the lane are at work at once",
        "SELECT lane AS id FROM runs WHERE state = 'running' GROUP BY lane HAVING COUNT(*) > 1",
    ),
    Rule(
        "run_tenant",
        "the run crosses a tenant: its actor, its thread and itself are not of one",
        """
        SELECT r.id AS id FROM runs r JOIN threads t ON t.id = r.thread JOIN users u ON u.id = r.actor
        WHERE r.tenant <> t.tenant OR r.tenant <> u.tenant
        """,
    ),
    Rule(
        "member_tenant",
        "the thread has a member of another tenant",
        """
        SELECT t.id AS id FROM members m JOIN threads t ON t.id = m.thread JOIN users u ON u.id = m."user"
        WHERE u.tenant <> t.tenant
        """,
    ),
    Rule(
        "box_tenant",
        "the box is of another tenant than its user",
        'SELECT b.id AS id FROM boxes b JOIN users u ON u.id = b."user" WHERE u.tenant <> b.tenant',
    ),
    Rule(
        "steps_gapless",
        "the run's steps are not numbered 1, 2, 3, ...",
        "SELECT run AS id FROM steps GROUP BY run HAVING MIN(n) <> 1 OR MAX(n) <> COUNT(*)",
    ),
    Rule(
        "step_open",
        "a step is under way in a run that has ended",
        f"""
        SELECT DISTINCT r.id AS id FROM steps s JOIN runs r ON r.id = s.run
        WHERE s.state = 'begun' AND r.state IN {_FINAL}
        """,
    ),
    Rule(
        "step_end",
        "a step has an end and is under way, or has ended without one",
        "SELECT DISTINCT run AS id FROM steps WHERE (state = 'begun') <> (ended_at IS NULL)",
    ),
    Rule(
        "checkpoint_step",
        "the checkpoint stands after a step that has not ended",
        """
        SELECT c.run AS id FROM checkpoints c LEFT JOIN steps s ON s.run = c.run AND s.n = c.step
        WHERE c.step <> 0 AND (s.n IS NULL OR s.state = 'begun')
        """,
    ),
    Rule(
        "checkpoint_cursor",
        "the checkpoint knows events that are not there",
        """
        SELECT c.run AS id FROM checkpoints c JOIN runs r ON r.id = c.run JOIN threads t ON t.id = r.thread
        WHERE c.cursor > t.cursor
        """,
    ),
    Rule(
        "blob_bytes",
        "the blob says that it holds another number of bytes than it has",
        """
        SELECT b.run || ' ' || b.digest AS id FROM blobs b
        LEFT JOIN (SELECT run, digest, SUM(LENGTH(data)) AS size FROM blob_chunks GROUP BY run, digest) c
               ON c.run = b.run AND c.digest = b.digest
        WHERE COALESCE(c.size, 0) <> b.held
        """,
    ),
    Rule(
        "blob_actor",
        "the blob is counted for another user than its run's",
        "SELECT b.run || ' ' || b.digest AS id FROM blobs b JOIN runs r ON r.id = b.run WHERE b.actor <> r.actor",
    ),
    Rule(
        "summary_cursor",
        "the summary reaches to a cursor where there is no message",
        """
        SELECT s.thread || ' ' || s.actor AS id FROM summaries s
        LEFT JOIN messages m ON m.thread = s.thread AND m.cursor = s.cursor WHERE m.id IS NULL
        """,
    ),
    Rule(
        "key_owner",
        "the idempotency key stands for somebody else's message",
        """
        SELECT i.actor || ' ' || i.key AS id FROM idempotency i JOIN messages m ON m.id = i.message
        JOIN users u ON u.id = i.actor WHERE m.author IS NULL OR m.author <> i.actor OR u.tenant <> i.tenant
        """,
    ),
    Rule(
        "gate_run",
        "the question is not of its run: user, thread, turn or tenant are others",
        """
        SELECT g.id AS id FROM gates g JOIN runs r ON r.id = g.run
        WHERE g."user" <> r.actor OR g.thread <> r.thread OR g.turn <> r.turn OR g.tenant <> r.tenant
        """,
    ),
    Rule(
        "gate_open",
        "a question is open, and its run is not parked",
        "SELECT g.id AS id FROM gates g JOIN runs r ON r.id = g.run WHERE g.state = 'open' AND r.state <> 'parked'",
    ),
    Rule(
        "run_parked",
        "the run is parked, and no question of it is open",
        """
        SELECT r.id AS id FROM runs r
        WHERE r.state = 'parked' AND NOT EXISTS (SELECT 1 FROM gates g WHERE g.run = r.id AND g.state = 'open')
        """,
    ),
    Rule(
        "gate_answer",
        "the answer of the question is not among those that were given to it",
        """
        SELECT g.id AS id FROM gates g
        WHERE g.answer IS NOT NULL
          AND NOT EXISTS (
              SELECT 1 FROM gate_answers a WHERE a.gate = g.id AND a.answer = g.answer AND a.by = g.answered_by
          )
        """,
    ),
    Rule(
        "effect_step",
        "the effect has no step, and its run's journal is kept; or it is another user's than its run's",
        f"""
        SELECT e.run || ' ' || e.n AS id FROM effects e JOIN runs r ON r.id = e.run
        LEFT JOIN steps s ON s.run = e.run AND s.n = e.n
        WHERE e."user" <> r.actor
           OR (s.n IS NULL AND (r.state NOT IN {_FINAL} OR EXISTS (SELECT 1 FROM steps k WHERE k.run = e.run)))
        """,
    ),
    Rule(
        "effect_end",
        "the effect waits to be sent in a run that has ended, or its step has ended without it",
        f"""
        SELECT e.run || ' ' || e.n AS id FROM effects e JOIN runs r ON r.id = e.run
        JOIN steps s ON s.run = e.run AND s.n = e.n
        WHERE (r.state IN {_FINAL} AND e.state IN ('intended', 'sent'))
           OR (s.state = 'ended' AND e.state IN ('intended', 'sent'))
        """,
    ),
    Rule(
        "effect_gate",
        "the effect names an approval that is not of its step, or is not used",
        """
        SELECT e.run || ' ' || e.n AS id FROM effects e JOIN gates g ON g.id = e.gate
        WHERE g.run <> e.run OR g.n <> e.n OR g.state <> 'used' OR g.digest <> e.digest
        """,
    ),
    Rule(
        "kernel_schema",
        "the kernel process says that the newest schema it knows is older than the oldest that it needs",
        "SELECT worker AS id FROM kernels WHERE schema_from > schema_to",
    ),
    Rule(
        "generation_source",
        "the generation does not say of which backup it was made, or is the first and says so",
        "SELECT number AS id FROM generations WHERE (number = 1) <> (source IS NULL)",
    ),
    Rule(
        "run_generation",
        "the run's epoch is one of a restored backup, and the store has never been restored",
        f"""
        SELECT r.id AS id FROM runs r
        WHERE r.epoch >= {EPOCH_JUMP} AND NOT EXISTS (SELECT 1 FROM generations g WHERE g.number > 1)
        """,
    ),
    Rule(
        "chain_generation",
        "the chain of the audit is of a generation that the store has not come to",
        """
        SELECT c.chain AS id FROM audit_chains c
        WHERE c.generation > COALESCE((SELECT MAX(g.number) FROM generations g), 1)
        """,
    ),
)
