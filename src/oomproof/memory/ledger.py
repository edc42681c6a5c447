"""The ledger: who holds how many bytes, and who waits for how many, in which order.

Every change is one method with one locked section, and a locked section is a straight line: no call, no loop,
no container made, nothing raised. CPython runs signal handlers, finalisers and the cycle collector only at
calls, at jumps backward and where containers are made. So none of them ever meets a ledger that is half
changed, or waits for a lock that its own thread holds, and a KeyboardInterrupt falls between changes.
CPython 3.14 alone may lose the lock itself when a signal handler raises (python/cpython#148874): every `with`
statement there has a call between taking a lock and remembering to give it back.
Whatever a change did is written into the `Holding` or `Request` it was made for, within the same section: the
caller can tell, and undo it, even if an interrupt took the returned value from it.

Not covered: waking those who wait (`waiting`, `dispatch`), eviction, messages. No clock, thread, callback.
"""

from __future__ import annotations

import threading

from oomproof.memory.records import (
    CLOSED,
    EVERYTHING,
    EXCEEDED,
    GRANTED,
    RELEASED,
    TOO_MUCH,
    WAITING,
    WITHDRAWN,
    Account,
    Holding,
    Request,
)


class Ledger:
    """One line of arithmetic: the sum of all holdings never passes the total that was in force at each grant.

    Those who hold and want to grow stand in a line of their own before those who want to begin: whoever is
    begun must be able to end, or the bytes that the others wait for never come back. Each line is first come,
    first served; nobody passes the first one who still waits.
    """

    def __init__(self, total: int, name: str) -> None:
        self.name = name
        # Reentrant, although nothing of ours re-enters: a debugger's trace function may run anywhere.
        self._lock = threading.RLock()
        self.total = total
        self.used = self.peak = 0
        self.changes = 0
        """Goes up with every change: a reader that saw the same number before and after saw one state."""
        self.waiting = 0
        """Requests that are not decided yet."""
        self.waited = self.granted = self.withdrawn = 0
        self.accounts: dict[str, Account] = {}
        self._growing = _line()
        self._beginning = _line()

    @property
    def standstill(self) -> threading.RLock:
        """Held, nothing changes but what finalisers and signal handlers of this thread do."""
        return self._lock

    def account(self, owner: str) -> Account:
        """The owner's account, or a new one to be listed by the change that uses it."""
        return self.accounts.get(owner) or Account(owner)

    def take(self, holding: Holding, size: int) -> int:
        """Open `holding` with `size` bytes if they are free and nobody waits: GRANTED, WAITING, EXCEEDED."""
        account = holding._account
        with self._lock:
            if size > self.total:
                return EXCEEDED
            if self.waiting or size > self.total - self.used:
                return WAITING
            if account.owner in self.accounts:
                account = self.accounts[account.owner]
            else:
                self.accounts[account.owner] = account
            holding._account = account
            holding._bytes = size
            holding._open = True
            account.reservations += 1
            account.bytes += size
            if account.bytes > account.peak:
                account.peak = account.bytes
            self.used += size
            if self.used > self.peak:
                self.peak = self.used
            self.granted += 1
            self.changes += 1
            return GRANTED

    def take_growth(self, request: Request) -> None:
        """Decide a `request` for growth at once, unless bytes are missing or another growth waits."""
        holding = request.holding
        size = request.size
        with self._lock:
            if not holding._open:
                request.state = RELEASED
            elif size > self.total - holding._bytes:
                request.state = EXCEEDED
            elif self._growing.after is self._growing and size <= self.total - self.used:
                account = holding._account
                holding._bytes += size
                account.bytes += size
                if account.bytes > account.peak:
                    account.peak = account.bytes
                self.used += size
                if self.used > self.peak:
                    self.peak = self.used
                self.changes += 1
                request.state = GRANTED

    def enqueue(self, request: Request) -> None:
        """Put `request` at the end of its line; `decide` will say what becomes of it."""
        account = request.account
        line = self._growing if request.growth else self._beginning
        with self._lock:
            if account.owner in self.accounts:
                account = self.accounts[account.owner]
            else:
                self.accounts[account.owner] = account
            request.account = account
            if not request.growth:
                request.holding._account = account
            account.waiting += 1
            account.waiting_bytes += request.size
            request.linked = True
            if request.growth:
                # It is before those who begin: their first is to be told again when it is the first of all.
                self._beginning.after.leads = False
            request.after = line
            request.before = line.before
            line.before.after = request
            line.before = request
            self.waiting += 1
            self.waited += 1
            self.changes += 1

    def decide(self) -> Request | None:
        """The first in line if it is decided, now or before: it is to be woken and dismissed. Else None."""
        with self._lock:
            request = self._growing.after
            if request is self._growing:
                request = self._beginning.after
                if request is self._beginning:
                    return None
            if request.state != WAITING:
                return request
            holding = request.holding
            account = request.account
            size = request.size
            if request.growth and not holding._open:
                request.state = RELEASED
            elif size > self.total - holding._bytes:
                request.state = EXCEEDED
            elif size > self.total - self.used:
                return None
            else:
                request.state = GRANTED
            self.waiting -= 1
            account.waiting -= 1
            account.waiting_bytes -= size
            if request.state == GRANTED:
                if not request.growth:
                    holding._open = True
                    account.reservations += 1
                    self.granted += 1
                account = holding._account
                holding._bytes += size
                account.bytes += size
                if account.bytes > account.peak:
                    account.peak = account.bytes
                self.used += size
                if self.used > self.peak:
                    self.peak = self.used
            account = request.account
            if not account.waiting and not account.reservations:
                del self.accounts[account.owner]
            self.changes += 1
            return request

    def review(self, request: Request | None, *, growth: bool) -> Request | None:
        """The one behind `request` (None: the first), refused if it can never be met; None at the line's end.

        A `request` that has left the line has nobody behind it any more: the review starts again.
        """
        line = self._growing if growth else self._beginning
        with self._lock:
            request = request.after if request is not None and request.linked else line.after
            if request is line:
                return None
            if request.state == WAITING and request.size > self.total - request.holding._bytes:
                account = request.account
                request.state = EXCEEDED
                self.waiting -= 1
                account.waiting -= 1
                account.waiting_bytes -= request.size
                if not account.waiting and not account.reservations:
                    del self.accounts[account.owner]
                self.changes += 1
            return request

    def dismiss(self, request: Request) -> None:
        """Take a request that is decided out of the line, if it is still there."""
        with self._lock:
            if request.linked:
                request.linked = False
                request.before.after = request.after
                request.after.before = request.before
                request.before = request.after = self._beginning

    def first(self) -> Request | None:
        """The first in line."""
        with self._lock:
            request = self._growing.after
            if request is self._growing:
                request = self._beginning.after
                if request is self._beginning:
                    return None
            return request

    def expire(self, request: Request) -> bool:
        """Withdraw `request` unless it is decided; whether it was withdrawn."""
        with self._lock:
            if request.state != WAITING or not request.linked:
                return False
            account = request.account
            request.state = WITHDRAWN
            self.waiting -= 1
            self.withdrawn += 1
            account.waiting -= 1
            account.waiting_bytes -= request.size
            if not account.waiting and not account.reservations:
                del self.accounts[account.owner]
            request.linked = False
            request.before.after = request.after
            request.after.before = request.before
            request.before = request.after = self._beginning
            self.changes += 1
            return True

    def revoke(self, request: Request) -> None:
        """Take back what was granted to a `request` whose asker is gone; once."""
        with self._lock:
            if request.state != GRANTED:
                return
            request.state = WITHDRAWN
            holding = request.holding
            if not holding._open:
                return
            size = request.size
            if size > holding._bytes:
                size = holding._bytes
            account = holding._account
            holding._bytes -= size
            account.bytes -= size
            self.used -= size
            self.withdrawn += 1
            if not request.growth:
                holding._open = False
                account.reservations -= 1
                if not account.waiting and not account.reservations:
                    del self.accounts[account.owner]
            self.changes += 1

    def give_back(self, holding: Holding, size: int) -> int:
        """Take `size` bytes (or EVERYTHING) from `holding`: their number, CLOSED or TOO_MUCH.

        A holding whose last byte is given back is closed.
        """
        with self._lock:
            if not holding._open:
                return CLOSED
            if size == EVERYTHING:
                size = holding._bytes
            elif size > holding._bytes:
                return TOO_MUCH
            account = holding._account
            holding._bytes -= size
            account.bytes -= size
            self.used -= size
            if not holding._bytes:
                holding._open = False
                account.reservations -= 1
                if not account.waiting and not account.reservations:
                    del self.accounts[account.owner]
            self.changes += 1
            return size

    def split(self, holding: Holding, part: Holding, size: int) -> int:
        """Move `size` bytes from `holding` to `part`, which is opened: the size, CLOSED or TOO_MUCH."""
        target = part._account
        with self._lock:
            if not holding._open:
                return CLOSED
            if size > holding._bytes:
                return TOO_MUCH
            if target.owner in self.accounts:
                target = self.accounts[target.owner]
            else:
                self.accounts[target.owner] = target
            source = holding._account
            holding._bytes -= size
            source.bytes -= size
            part._account = target
            part._bytes = size
            part._open = True
            target.reservations += 1
            target.bytes += size
            if target.bytes > target.peak:
                target.peak = target.bytes
            self.changes += 1
            return size

    def transfer(self, holding: Holding, target: Account) -> int:
        """Give `holding` to another owner: its size, or CLOSED."""
        with self._lock:
            if not holding._open:
                return CLOSED
            if target.owner in self.accounts:
                target = self.accounts[target.owner]
            else:
                self.accounts[target.owner] = target
            source = holding._account
            size = holding._bytes
            source.reservations -= 1
            source.bytes -= size
            target.reservations += 1
            target.bytes += size
            if target.bytes > target.peak:
                target.peak = target.bytes
            holding._account = target
            if not source.waiting and not source.reservations:
                del self.accounts[source.owner]
            self.changes += 1
            return size

    def set_total(self, total: int) -> None:
        """Change the total; what is held stays held."""
        with self._lock:
            self.total = total
            self.changes += 1

    def shortfall(self) -> int:
        """Bytes that must come back before the first in line can be met, or before the total is kept."""
        with self._lock:
            request = self._growing.after
            if request is self._growing:
                request = self._beginning.after
            wanted = request.size if request.state == WAITING else 0
            return self.used + wanted - self.total

    def lead(self) -> Request | None:
        """The first in line if it has not been told yet that it is."""
        with self._lock:
            request = self._growing.after
            if request is self._growing:
                request = self._beginning.after
                if request is self._beginning:
                    return None
            if request.leads:
                return None
            request.leads = True
            return request

    def reset_line(self) -> None:
        """In a forked child: a lock of its own, and nobody waits, for no other thread came along."""
        self._lock = threading.RLock()
        for account in list(self.accounts.values()):
            account.waiting = account.waiting_bytes = 0
            if not account.reservations:
                del self.accounts[account.owner]
        self.waiting = 0
        self._growing = _line()
        self._beginning = _line()


def _line() -> Request:
    """An empty line: a ring of requests that begins and ends at one that nobody made."""
    line = Request(Holding(Account("")), 0)
    line.before = line.after = line
    return line
