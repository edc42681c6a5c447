"""What a plan is made from and made of, as frozen data. Sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from oomproof.units import KIB

SCHEMA_VERSION = 1

ALLOWED_TERMS = frozenset({"available", "host_shortfall", "probe_shortfall", "share"})
"""Names of the terms that say what can be had; all others take something off it."""

LEARNED_TERM = "learned"

THREAD_BYTES = 256 * KIB
"""What a thread takes that no ledger shows, where no recipe knows better: 16 KiB of kernel stack
(x86-64's THREAD_SIZE), the touched part of its own stack, and its arena of the C library's malloc,
which grows in steps of 132 KiB. A guess that stands until attempts show the real number."""


@dataclass(frozen=True, slots=True)
class Term:
    """One signed summand of the budget, in bytes, and where it came from."""

    name: str
    bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class ProgramOverhead:
    """What a program takes beside its budget that no ledger shows, as its recipe knows it."""

    parts: tuple[Term, ...] = ()
    """Fixed sizes, from 0 up: ``Term("code_cache", 240 << 20, "recipe jvm")``, arenas, a driver, ..."""
    thread_bytes: int = THREAD_BYTES
    """Of each thread."""
    mapped_bytes: int = 0
    """Mapped files and devices: they cost page tables, and no ledger counts those."""


@dataclass(frozen=True, slots=True)
class LearnedOverhead:
    """What the program took beside its budget in attempts that lived: cgroup peak less budget."""

    bytes: int
    samples: int


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
    steps: tuple[int, ...] = ()
    """The only budgets that the program can use (``--steps``): rounded down to one of them."""
    share_millionths: int | None = None
    """The part of what can be had that is this program's (``--share``): 500000 is half of it."""
    threads: int = 0
    """How many threads the program starts (``--threads``)."""
    pinned_bytes: int = 0
    """How much of the budget is page-locked (``--pinned``): its page tables are always whole."""
    program: ProgramOverhead = field(default_factory=ProgramOverhead)
    """From the recipe."""
    learned: LearnedOverhead | None = None
    """From the history."""


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
    def unlearned_bytes(self) -> int:
        """The budget before known good and known bad ones had a say."""
        return sum(term.bytes for term in self.terms if term.name != LEARNED_TERM)

    @property
    def margin_bytes(self) -> int:
        """All that was taken off what is allowed, whatever the reason."""
        return self.allowed_bytes - self.budget_bytes

    def with_budget(self, budget_bytes: int, source: str, name: str = LEARNED_TERM) -> Plan:
        """The same plan with the budget that `source` showed to be better, as one more term."""
        learned = Term(name, budget_bytes - self.budget_bytes, source)
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
