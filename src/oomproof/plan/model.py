"""What a plan is made of, as frozen data."""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Term:
    """One signed summand of the budget, in bytes, and where it came from."""

    name: str
    bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the caller wishes. Sizes in bytes; None means no wish."""

    budget_bytes: int | None = None
    """Take exactly this (``--budget``); an error when it is above the limit."""
    cap_bytes: int | None = None
    """Never more than this (``--cap``)."""
    margin_floor_bytes: int | None = None
    """The margin is never less than this; None: the default of `plan.budget`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One budget, and terms that add up to it exactly."""

    budget_bytes: int
    terms: tuple[Term, ...]
    notices: tuple[str, ...] = ()
    probed: bool = False

    @property
    def allowed_bytes(self) -> int:
        """What the more conservative of check and probe allows, before any margin."""
        return sum(term.bytes for term in self.terms if term.name in ALLOWED_TERMS)

    def as_json(self) -> dict[str, object]:
        """The public JSON document of ``oomproof plan --json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "budget_bytes": self.budget_bytes,
            "terms": [{"name": t.name, "bytes": t.bytes, "source": t.source} for t in self.terms],
            "probed": self.probed,
            "notices": list(self.notices),
        }


ALLOWED_TERMS = frozenset({"available", "host_shortfall", "probe_shortfall"})
"""Names of the terms that say what can be had; all others take something off it."""
