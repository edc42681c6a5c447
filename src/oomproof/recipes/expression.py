"""Sizes as arithmetic: ``(budget - 256MiB - threads * 1MiB) * 90%``.

    sum     := product (("+" | "-") product)*
    product := factor (("*" | "/") factor)*
    factor  := number | number "%" | size | name | "(" sum ")" | ("min" | "max") "(" sum ("," sum)* ")"

Sizes are those of `oomproof.units` without a space (``256MiB``), ``75%`` is 0.75, names are
other values. The arithmetic is exact; the result is rounded down to whole bytes at the end.
Nothing here can do anything but compute. Not covered: where the names come from, see `model`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NoReturn

from oomproof.errors import ConfigError
from oomproof.units import MAX_SIZE, parse_size

MAX_LENGTH = 1000
"""Characters; and how deep parentheses may be nested."""
MAX_DEPTH = 30

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d[\d.]*)(?P<unit>[A-Za-z]+|%)?|(?P<name>[a-z][a-z0-9_]*)|(?P<sign>[-+*/(),]))",
    re.ASCII,
)
_NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_FUNCTIONS: dict[str, Callable[[list[Fraction]], Fraction]] = {"min": min, "max": max}


def is_name(text: str) -> bool:
    """Whether a value can be called so."""
    return _NAME.fullmatch(text) is not None and text not in _FUNCTIONS


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression; `evaluate` can fail only for what the values make of it."""

    text: str
    names: frozenset[str]
    """The values that it needs."""

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Raises ConfigError that says what is wrong, and where."""
        parser = _Parser(text, None)
        parser.whole()
        return cls(text.strip(), frozenset(parser.names))

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Rounded down. Raises ConfigError for a division by zero, or more than a size can be."""
        result = _Parser(self.text, values).whole()
        if abs(result) > MAX_SIZE:
            raise ConfigError(f"{self.text!r} is more than any memory")
        return result.numerator // result.denominator


class _Parser:
    """Evaluates while it reads; without values it checks only, with 1 in the place of each."""

    def __init__(self, text: str, values: Mapping[str, int] | None) -> None:
        if len(text) > MAX_LENGTH:
            raise ConfigError(f"{text[:40]!r}... is longer than {MAX_LENGTH} characters")
        self._text = text
        self._values = values
        self._depth = 0
        self.names: set[str] = set()
        self._position = 0
        self._next()

    def whole(self) -> Fraction:
        """The value of all of it."""
        result = self._sum()
        if self._token is not None:
            self._fail("nothing more, or + - * /")
        return result

    def _sum(self) -> Fraction:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ConfigError(f"{self._text!r} is nested more than {MAX_DEPTH} deep")
        result = self._product()
        while self._sign() in ("+", "-"):
            result = result + self._product() if self._take() == "+" else result - self._product()
        self._depth -= 1
        return result

    def _product(self) -> Fraction:
        result = self._factor()
        while self._sign() in ("*", "/"):
            if self._take() == "*":
                result *= self._factor()
            else:
                result = self._divided(result, self._factor())
        return result

    def _divided(self, dividend: Fraction, divisor: Fraction) -> Fraction:
        if divisor:
            return dividend / divisor
        if self._values is None:
            return dividend
        raise ConfigError(f"{self._text!r} divides by zero")

    def _factor(self) -> Fraction:
        token = self._token
        if token is None:
            self._fail("a number, a size or a name")
        if token["number"] is not None:
            self._next()
            return self._number(token["number"], token["unit"])
        if token["name"] is not None:
            self._next()
            return self._call(token["name"]) if token["name"] in _FUNCTIONS else self._value(token["name"])
        self._expect("(", "a number, a size or a name")
        result = self._sum()
        self._expect(")", "a closing )")
        return result

    def _call(self, function: str) -> Fraction:
        self._expect("(", f"( after {function}")
        arguments = [self._sum()]
        while self._sign() == ",":
            self._next()
            arguments.append(self._sum())
        self._expect(")", "a comma or a closing )")
        return _FUNCTIONS[function](arguments)

    def _number(self, number: str, unit: str | None) -> Fraction:
        try:
            if unit is None or unit == "%":
                return Fraction(number) / (100 if unit else 1)
            return Fraction(parse_size(number + unit))
        except ValueError:
            raise ConfigError(f"{self._text!r}: {number!r} is no number") from None

    def _value(self, name: str) -> Fraction:
        self.names.add(name)
        return Fraction(1 if self._values is None else self._values[name])

    def _sign(self) -> str | None:
        return None if self._token is None else self._token["sign"]

    def _take(self) -> str | None:
        sign = self._sign()
        self._next()
        return sign

    def _expect(self, sign: str, wanted: str) -> None:
        if self._sign() != sign:
            self._fail(wanted)
        self._next()

    def _next(self) -> None:
        self._start = self._position
        self._token = _TOKEN.match(self._text, self._position)
        if self._token is not None:
            self._position = self._token.end()
        elif self._text[self._position :].strip():
            self._fail("a number, a size, a name or one of + - * / ( ) ,")

    def _fail(self, wanted: str) -> NoReturn:
        rest = self._text[self._start :].strip()
        raise ConfigError(f"{self._text!r}: {wanted} is expected {f'at {rest!r}' if rest else 'at its end'}")
