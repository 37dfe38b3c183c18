"""One judged request: exchanged stand-ins, sent, answered. The one place where a secret meets the wire.

In this order: placeholders, limits, hold, the body's beginning, intent, dial, secrets, send (rule 3 of the design). Nothing
leaves before the step before it has said yes; no redirect is followed, and nothing is sent twice but a read without a body that was
answered with 401 while its access token was renewed: once more, with the new one. It must never write a byte of a response that its
scrubber has not seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ringfence.host.egress import fields, scrub, swap, told, websocket
from ringfence.host.egress.answering import Answering
from ringfence.host.egress.asked import Asked, Spent
from ringfence.host.egress.asking import held
from ringfence.host.egress.bodies import SCANNED, Download, Upload
from ringfence.host.egress.client import Client, Left
from ringfence.host.egress.framing import Question
from ringfence.host.egress.judging import Policy, refused
from ringfence.host.egress.limits import Deadline
from ringfence.host.egress.needs import Intent, Outcome, Withheld
from ringfence.host.egress.refusals import Code, Refusal
from ringfence.host.egress.works import Desk, Link
from ringfence.host.kernel.outward.begetting import REMEDY, WHY, begets
from ringfence.host.kernel.outward.checking import READING
from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.rules import Verdict
from ringfence.host.kernel.outward.secret import Secret

Linking = Callable[[], Awaitable[Link]]
"""A connection to where the request goes; Refusal."""


class _Again(Exception):
    """The request is to be sent once more, with these."""

    def __init__(self, secrets: Sequence[Secret]) -> None:
        super().__init__()
        self.secrets = secrets


class Exchange:
    """`now`: the policy in force, for what may have changed since the request was judged."""

    def __init__(self, desk: Desk, box: Client, asked: Asked, deadline: Deadline, now: Callable[[], Policy]) -> None:
        self._desk = desk
        self._box = box
        self._asked = asked
        self._deadline = deadline
        self._now = now
        # Noted before anything is waited for, so that who takes it back finds it.
        self._used: tuple[swap.Part, ...] = ()
        self._kept_fields = self._passed()
        self._trouble: Exception | None = None
        self._row = ""
        self.upload = Upload(asked.head, box, asked.rule.up_bytes)
        self.spent = Spent()
        self._link: Link | None = None
        self._old: Sequence[Secret] = ()  # access tokens that were refused: it has been sent once

    async def run(self, linking: Linking) -> bool:
        """Whether the box's connection can carry another request. Refusal (`spent.started`: too late to say so); Left;
        OSError."""
        asked = self._asked
        plan = self._plan()
        self._used = plan.used
        with self._desk.flow.request():
            if asked.judged.decision.answer is Verdict.ASK:
                await self._hold()
            try:
                begun = await self._beginning()
                await self._intent(plan)
                self._deadline.within(self._desk.bounds.idle, "server")
                self._link = await linking()
                secrets = await self._secrets(plan)
                try:
                    return await self._exchange(plan, secrets, begun)
                except _Again as again:
                    self._link.end()
                    self._link, self._old = None, secrets
                    self._link = await linking()
                    for part in plan.used:
                        self._check(part)
                    return await self._exchange(plan, again.secrets, begun)
            except Refusal as refusal:
                self.spent.error = str(refusal.code)
                raise
            except BaseException as error:
                self.spent.error = type(error).__name__
                raise
            finally:
                if self._link is not None:
                    self._link.end()
                self._outcome()

    # --- what it uses, for who takes it back ---------------------------------------------------------------------

    def uses(self, credential: str) -> bool:
        """From the moment on that it is planned: what is revoked on its way must not arrive."""
        return any(part.binding is not None and part.binding.credential == credential for part in self._used)

    def permitted(self, policy: Policy) -> bool:
        """Whether what it uses is bound still, and for this request."""
        return all(part.binding is None or self._bound(part.binding, policy) for part in self._used)

    def ticketed(self) -> bool:
        """Whether the stand-ins that it came with are still somebody's."""
        return all(part.ticket is None or self._desk.tickets.stands(part.ticket, part.binding) for part in self._used)

    def _bound(self, binding: Binding, policy: Policy) -> bool:
        now = policy.binding(binding.id)
        if now is None or (now.credential, now.use) != (binding.credential, binding.use):
            return False
        return set(binding.positions) <= set(now.positions) and policy.covers(now, self._asked.judged.request)

    # --- before anything leaves ----------------------------------------------------------------------------------

    def _plan(self) -> swap.Plan:
        asked, policy = self._asked, self._asked.policy
        if policy is None:
            return swap.Plan()
        request = asked.judged.request
        scope = swap.Scope(
            secure=request.tls and not asked.judged.origin.literal,
            find=lambda digest: self._desk.tickets.find(asked.invocation, digest),
            binding=policy.binding,
            covers=lambda binding: policy.covers(binding, request),
            injected=policy.injected(request),
            forward_literal=asked.rule.forward_literal,
        )
        plan = swap.plan(asked.judged.target, self._kept_fields, scope)
        if any(part.binding is not None and begets(request, part.binding) for part in plan.used):
            raise Refusal(Code.DENIED, WHY, remedy=REMEDY)
        return plan

    def _passed(self) -> list[tuple[bytes, bytes]]:
        asked = self._asked
        strict = asked.policy is not None and asked.policy.strict(asked.judged.origin.host)
        kept = fields.outgoing(asked.head.fields, strict=strict, websocket=asked.websocket)
        return fields.without(kept, *asked.stripped)

    async def _hold(self) -> None:
        decision = self._asked.judged.decision
        if (rule := decision.missing) is None:
            raise refused(decision)  # nobody is asked about more than this
        self._deadline.within(self._desk.bounds.hold + 5, "server")  # 5: the server says when it is over
        await held(self._desk.kernel, self._asked.invocation, rule, self._asked.judged.request.query)

    async def _beginning(self) -> list[bytes]:
        """With Expect the box waits for the server's word: its body is looked at as it comes."""
        self._deadline.within(self._desk.bounds.idle, "box")
        if self.upload.ended or self._asked.head.one(b"expect") is not None:
            return []
        begun = await self.upload.beginning()
        before = 0
        for piece in begun:
            self._scan(piece, before)
            before += len(piece)
        return begun

    def _scan(self, piece: bytes, before: int) -> None:
        if not self._asked.rule.forward_literal and before < SCANNED:
            self.upload.scan(piece, before)

    async def _intent(self, plan: swap.Plan) -> None:
        asked = self._asked
        first = next((part.binding for part in plan.used if part.binding is not None), None)
        reads = asked.head.method in READING and not asked.websocket  # through which whatever is said may be a write
        if not asked.evidence or reads or (first is None and not asked.invocation):
            return
        self._desk.flow.record()
        request = asked.judged.request
        intent = Intent(
            asked.invocation,
            first.credential if first else "",
            first.id if first else "",
            request.host,
            request.port,
            request.method,
            told.path(request.path),
        )
        try:
            self._row = await self._desk.kernel.intent(intent)
        except Withheld as error:
            raise Refusal(Code.CREDENTIAL, f"the request could not be recorded: {error.why}") from None

    async def _secrets(self, plan: swap.Plan) -> list[Secret]:
        found: list[Secret] = []
        for part in plan.used:
            if part.binding is None:
                continue
            ticket, binding = part.ticket, part.binding
            self._check(part)
            if ticket is not None:
                self._desk.tickets.spend(ticket)
            invocation = ticket.invocation if ticket is not None else self._asked.invocation
            try:
                found.append(await self._desk.kernel.secret(binding.credential, binding.id, invocation, *self._place()))
            except Withheld as error:
                raise Refusal(Code.CREDENTIAL, f"the credential is not to be had: {error.why}") from None
        return found

    def _check(self, part: swap.Part) -> None:
        """Whether it may be used now. Refusal."""
        if part.binding is not None and not self._bound(part.binding, self._now()):
            raise Refusal(Code.CREDENTIAL, "the credential is not bound to this request any more")
        if part.ticket is not None and not self._desk.tickets.stands(part.ticket, part.binding):
            raise Refusal(Code.EXPIRED, "the stand-in has ended with its command")

    def _place(self) -> tuple[str, str, str]:
        request = self._asked.judged.request
        return request.host, request.method, told.path(request.path)

    async def _another(self, plan: swap.Plan, secrets: Sequence[Secret]) -> None:
        """A 401: of access tokens others are asked for, for this request or the next of its client. _Again."""
        found = list(secrets)
        used = [part for part in plan.used if part.binding is not None]
        for at, part in enumerate(used):
            assert part.binding is not None
            invocation = part.ticket.invocation if part.ticket is not None else self._asked.invocation
            other = await self._desk.kernel.another(
                part.binding.credential, part.binding.id, invocation, *self._place(), found[at]
            )
            found[at] = other or found[at]
        head = self._asked.head
        if found != list(secrets) and head.method in READING and not head.has_body and not self._asked.websocket:
            raise _Again(found)

    def _outcome(self) -> None:
        self.spent.up = self.upload.taken
        if self._row:
            spent = self.spent
            self._desk.kernel.outcome(self._row, Outcome(spent.status, spent.error, spent.up, spent.down))

    # --- the wire ------------------------------------------------------------------------------------------------

    async def _exchange(self, plan: swap.Plan, secrets: Sequence[Secret], begun: list[bytes]) -> bool:
        link, asked = self._link, self._asked
        assert link is not None
        target, kept = swap.done(plan, asked.judged.target, self._kept_fields, secrets)
        sought = (*secrets, *self._old)
        used = [part.binding for part in plan.used if part.binding is not None]
        whole = not all(each.ranges for each in used)  # only all of an answer can be looked through
        question = self._question(target, kept, injected=bool(used), whole=whole)
        out = [question.head(), *map(question.data, begun)]
        if self.upload.ended:
            out.append(question.end())
        if link.unasked:  # came since it was taken from those that wait
            raise Refusal(Code.UPSTREAM, "the server spoke before it was asked")
        link.writer.write(b"".join(out))
        download = Download(question, link.reader, self._desk.bounds)
        scrubber = scrub.Scrubber(scrub.forms(sought)) if sought else None
        answering = Answering(self._box, self.upload, download, asked, scrubber, self._deadline, self.spent)
        answering.whole = whole
        if secrets and not self._old:
            answering.refused = lambda: self._another(plan, secrets)
        self._deadline.within(self._desk.bounds.quiet, "server")
        try:
            if self.upload.ended:
                await self._drained(link)
                alive = await answering.run(link)
            else:
                alive = await self._both(question, link, answering)
        finally:  # who has read enough leaves, and has been shown it all the same
            if scrubber is not None and scrubber.hits:
                self._reflected(scrubber.hits)
        # Bytes behind an answer are nobody's: such a connection is not used again. Nor is one that somebody has proved himself on.
        link.spare = download.whole and not answering.personal and not fields.personal(kept)
        return alive

    def _question(self, target: bytes, kept: list[tuple[bytes, bytes]], *, injected: bool, whole: bool) -> Question:
        head = self._asked.head
        headers = [(b"host", self._asked.judged.origin.header), *kept]
        if whole:
            headers = fields.without(headers, *fields.PARTIAL)
        if injected:  # what is compressed cannot be looked through for the secret
            headers = [
                *fields.without(headers, b"accept-encoding", websocket.EXTENSIONS, *fields.TRANSFORMING),
                (b"accept-encoding", b"identity"),
            ]
        if self._asked.websocket:
            headers += websocket.UPGRADE
        headers += fields.framing(head.fields)
        return Question(head.method, target, headers, bodied=head.has_body, most=self._desk.bounds.head_bytes * 2)

    async def _both(self, question: Question, link: Link, answering: Answering) -> bool:
        """The answer may begin, and end, while the body is still coming: then the body ends where it is."""
        alive, failure = False, None
        async with asyncio.TaskGroup() as group:
            pump = group.create_task(self._pump(question, link))
            try:
                alive = await answering.run(link)
            except Exception as error:
                failure = error
            pump.cancel()
        if self._trouble is not None:
            raise self._trouble
        if failure is not None:
            raise failure
        return alive and self.upload.ended

    async def _pump(self, question: Question, link: Link) -> None:
        """Ends without a word when the server reads no more: its answer is what counts."""
        try:
            while True:
                before = self.upload.taken
                piece = await self.upload.next()
                if not piece:
                    break
                self._scan(piece, before)
                self._deadline.within(self._desk.bounds.idle, "box")
                link.writer.write(question.data(piece))
                if not await self._drained(link):
                    return
            link.writer.write(question.end())
            self._deadline.within(self._desk.bounds.quiet, "server")
            await self._drained(link)
        except (Refusal, Left) as error:
            self._trouble = error
            link.drop()

    async def _drained(self, link: Link) -> bool:
        try:
            await link.writer.drain()
        except OSError:
            return False
        return True

    def _reflected(self, hits: int) -> None:
        host, method, path = self._place()
        details = {"host": host, "method": method, "path": told.beginning(path), "times": str(hits)}
        self._desk.findings.tell("secret_reflected", self._asked.invocation, details)
