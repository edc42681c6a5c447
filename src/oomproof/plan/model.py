"""What a plan is made from and made of, as frozen data. Sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

SCHEMA_VERSION = 1

ALLOWED_TERMS = frozenset({"available", "host_shortfall", "probe_shortfall"})
"""Names of the terms that say what can be had; all others take something off it."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the caller wishes; None means no wish."""

    budget_bytes: int | None = None
    """Exactly this (``--budget``), margin or not; an error when it is above what is allowed."""
    cap_bytes: int | None = None
    """Never more than this (``--cap``)."""
    floor_bytes: int | None = None
    """The program needs at least this (``--floor``): an error when it cannot be had."""
    margin_floor_bytes: int | None = None
    """The margin is never less than this (``--margin-floor``); None: `limits.margin.default_margin_floor`."""


@dataclass(frozen=True, slots=True)
class Term:
    """One signed summand of the budget, in bytes, and where it came from."""

    name: str
    bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One budget, and terms that add up to it exactly."""

    terms: tuple[Term, ...]
    probed: bool
    """Whether a probe had a say; without one the budget rests on what check allows alone."""
    notices: tuple[str, ...] = ()

    @property
    def budget_bytes(self) -> int:
        """The one number."""
        return sum(term.bytes for term in self.terms)

    @property
    def allowed_bytes(self) -> int:
        """What the more conservative of check and probe allows, before anything is taken off."""
        return sum(term.bytes for term in self.terms if term.name in ALLOWED_TERMS)

    @property
    def margin_bytes(self) -> int:
        """All that was taken off what is allowed, whatever the reason."""
        return self.allowed_bytes - self.budget_bytes

    def with_budget(self, budget_bytes: int, source: str) -> Plan:
        """The same plan with the budget that `source` showed to be better."""
        learned = Term("learned", budget_bytes - self.budget_bytes, source)
        return replace(self, terms=(*self.terms, learned)) if learned.bytes else self

    def as_json(self) -> dict[str, object]:
        """The public JSON document of ``oomproof plan --json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "budget_bytes": self.budget_bytes,
            "terms": [{"name": t.name, "bytes": t.bytes, "source": t.source} for t in self.terms],
            "probed": self.probed,
            "notices": list(self.notices),
        }
