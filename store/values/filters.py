"""Filters over the properties of messages: expressions of SQL-92 as RocketMQ 5 has them.

``region = 'north' AND (amount BETWEEN 10 AND 20.5 OR NOT urgent = TRUE)``; besides these ``<>``, ``>``,
``>=``, ``<``, ``<=``, ``IN``, ``IS NULL`` and ``NOT`` before ``BETWEEN``, ``IN`` and ``NULL``. A name without
quotes has letters, digits, ``_`` and ``$``; any other stands in double quotes. Words such as AND are read in
upper and lower case, names as they are written. Text is compared by ``=``, ``<>`` and ``IN``; the other
comparisons are of numbers.

The logic has three values. A property that is missing or null is unknown, and so is a comparison of types
that do not fit; text that holds a number, as every property of RocketMQ does, is a number where it meets one,
to 15 digits, and ``true`` and ``false`` in any case are truth values where they meet one. NOT unknown is
unknown, and only an expression that is true chooses a message.

An expression becomes a ``jsonpath`` of Postgres, which goes to the database as a parameter: no text of a
caller is ever part of a statement. Each comparison is translated so that it is true when it holds and when
its opposite is asked for true when that holds; NOT turns into the opposites below it. So no negation is left
in the path, and unknown may count as false everywhere in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import NoReturn

from duewheel.store.values.errors import InvalidFilter, NulInText
from duewheel.store.values.kinds import a_kind

#: The longest expression, in characters.
MAX_LENGTH = 8192
#: How deep parentheses and NOT may be nested.
MAX_DEPTH = 100

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<number>[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?![\w$.]))
  | (?P<word>[^\W\d][\w$]*|\$[\w$]*)
  | '(?P<text>(?:[^']|'')*)'
  | "(?P<name>(?:[^"]|"")+)"
  | (?P<sign><>|<=|>=|=|<|>|\(|\)|,)
    """,
    re.VERBOSE,
)
_RESERVED = {"AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE"}
# The comparison that holds where the first one does not, and the one with the sides exchanged.
_OPPOSITES = {"=": "<>", "<>": "=", ">": "<=", "<=": ">", "<": ">=", ">=": "<"}
_EXCHANGED = {"=": "=", "<>": "<>", ">": "<", "<": ">", ">=": "<=", "<=": ">="}
_IN_JSONPATH = {"=": "==", "<>": "!="}
_LARGEST = Decimal("1.7e308")
_SMALLEST = Decimal("1e-307")
_MOST_DIGITS = 100
# Text that counts as a number, for like_regex.
_NUMBER_IN_TEXT = "^[-+]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][-+]?[0-9]+)?$"

# Null differs from everything in a jsonpath, but is unknown here. Other types that do not fit are unknown in
# both.
_NOT_NULL = "@ != null"

_Literal = str | Decimal | bool
# Writes the predicate that is true when a condition holds (or, given false, when its opposite does).
_Predicate = Callable[[bool], str]


def to_jsonpath(expression: str) -> str:
    """The ``jsonpath`` predicate that is true of the properties an expression chooses.

    Args:
        expression: at most 8192 characters, nested at most 100 deep.

    Returns:
        Text for a parameter of type jsonpath; its ``$`` is the object of the properties.

    Raises:
        InvalidFilter: it is no such expression; the message gives the place and what is expected there.
        NulInText: a NUL character.

    Example:
        >>> to_jsonpath("region IS NOT NULL")
        'strict ($."region" != null)'
    """
    if not isinstance(expression, str):
        raise InvalidFilter(f'the filter is {a_kind(expression)}, not a str: write it as "amount > 100"')
    if "\0" in expression:
        raise NulInText("the filter holds a NUL character, which no property can: remove it")
    if len(expression) > MAX_LENGTH:
        raise InvalidFilter(f"the filter has {len(expression)} characters, the limit is {MAX_LENGTH}")
    try:
        expression.encode()
    except UnicodeEncodeError as error:
        raise InvalidFilter(
            f"the filter holds half of a surrogate pair at position {error.start}, which is no character"
        ) from None
    return f"strict {_Parser(expression).whole()(True)}"


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """word (in upper case, if reserved), name, number, text, sign or end."""
    value: str
    position: int
    """Of its first character, from 0."""


class _Parser:
    """Reads one expression from left to right."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = self._split()
        self._at = 0
        self._depth = 0

    def whole(self) -> _Predicate:
        predicate = self._any_of()
        if self._next.kind != "end":
            self._refuse("AND, OR or the end")
        return predicate

    # Each rule of the grammar is a method, from the one that binds least.

    def _any_of(self) -> _Predicate:
        predicates = [self._all_of()]
        while self._takes("OR"):
            predicates.append(self._all_of())
        return _joined(predicates, any_of=True)

    def _all_of(self) -> _Predicate:
        predicates = [self._condition()]
        while self._takes("AND"):
            predicates.append(self._condition())
        return _joined(predicates, any_of=False)

    def _condition(self) -> _Predicate:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidFilter(
                f"the filter is nested more than {MAX_DEPTH} deep at position {self._next.position}: "
                "write it with fewer parentheses and NOT"
            )
        try:
            if self._takes("NOT"):
                inner = self._condition()
                return lambda holds: inner(not holds)
            if self._takes("("):
                inner = self._any_of()
                self._demand(")")
                return inner
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> _Predicate:
        if self._is_name():
            return self._about(self._name())
        literal = self._literal("a property, NOT or a parenthesis")
        if isinstance(literal, bool) and self._next.value not in _OPPOSITES:
            return lambda holds: _constant(literal is holds)
        operator = self._operator("=, <>, >, >=, < or <=")
        return self._compared(self._name(), _EXCHANGED[operator], literal)

    def _about(self, name: str) -> _Predicate:
        if self._takes("IS"):
            is_not = self._takes("NOT")
            self._demand("NULL")
            return lambda holds: _is_null(name, holds is not is_not)
        negated = self._takes("NOT")
        if self._takes("BETWEEN"):
            predicate = self._between(name)
        elif self._takes("IN"):
            predicate = self._in(name)
        elif negated:
            self._refuse("BETWEEN or IN")
        else:
            operator = self._operator("=, <>, >, >=, <, <=, BETWEEN, IN or IS")
            return self._compared(name, operator, self._literal("a number, a 'text', TRUE or FALSE"))
        return (lambda holds: predicate(not holds)) if negated else predicate

    def _between(self, name: str) -> _Predicate:
        low = self._number()
        self._demand("AND")
        high = self._number()

        def write(holds: bool) -> str:
            bounds = [(">=", low), ("<=", high)] if holds else [("<", low), (">", high)]
            return _exists(name, _of_numbers(bounds, any_of=not holds))

        return write

    def _in(self, name: str) -> _Predicate:
        self._demand("(")
        literals = [self._literal("a number, a 'text', TRUE or FALSE")]
        while self._takes(","):
            literals.append(self._literal("a number, a 'text', TRUE or FALSE"))
        self._demand(")")
        return _equal(name, literals)

    def _compared(self, name: str, operator: str, literal: _Literal) -> _Predicate:
        if operator in ("=", "<>"):
            equal = _equal(name, [literal])
            return equal if operator == "=" else lambda holds: equal(not holds)
        if isinstance(literal, bool) or not isinstance(literal, Decimal):
            raise InvalidFilter(
                f"position {self._last.position} of the filter: {operator} compares numbers, and "
                f"{_shown(literal)} is none: use = or <>, or write a number without quotes"
            )
        number = literal
        return lambda holds: _exists(
            name, _of_numbers([(operator if holds else _OPPOSITES[operator], number)], any_of=True)
        )

    # Tokens.

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    @property
    def _last(self) -> _Token:
        return self._tokens[self._at - 1]

    def _takes(self, value: str) -> bool:
        if self._next.kind in ("word", "sign") and self._next.value == value:
            self._at += 1
            return True
        return False

    def _demand(self, value: str) -> None:
        if not self._takes(value):
            self._refuse(value)

    def _is_name(self) -> bool:
        kind = self._next.kind
        return kind == "name" or (kind == "word" and self._next.value not in _RESERVED)

    def _name(self) -> str:
        if not self._is_name():
            self._refuse("the name of a property")
        self._at += 1
        return self._last.value

    def _operator(self, expected: str) -> str:
        token = self._next
        if token.kind != "sign" or token.value not in _OPPOSITES:
            self._refuse(expected)
        self._at += 1
        return token.value

    def _literal(self, expected: str) -> _Literal:
        token = self._next
        if token.kind == "number":
            return self._number()
        if token.kind == "text":
            self._at += 1
            return token.value
        if token.kind == "word" and token.value in ("TRUE", "FALSE"):
            self._at += 1
            return token.value == "TRUE"
        if token.kind == "word" and token.value == "NULL":
            raise InvalidFilter(
                f"position {token.position} of the filter: nothing equals NULL: write IS NULL or IS NOT NULL"
            )
        return self._refuse(expected)

    def _number(self) -> Decimal:
        token = self._next
        if token.kind != "number":
            self._refuse("a number")
        self._at += 1
        number = Decimal(token.value)
        too_long = len(number.as_tuple().digits) > _MOST_DIGITS
        if too_long or (number != 0 and not _SMALLEST <= abs(number) <= _LARGEST):
            raise InvalidFilter(
                f"position {token.position} of the filter: the number {token.value[:40]} is out of range, "
                f"the limit is {_MOST_DIGITS} digits and ±{_SMALLEST} to ±{_LARGEST}"
            )
        return number

    def _refuse(self, expected: str) -> NoReturn:
        token = self._next
        found = "its end" if token.kind == "end" else repr(self._expression[token.position :][:20])
        raise InvalidFilter(f"position {token.position} of the filter: expected {expected}, found {found}")

    def _split(self) -> list[_Token]:
        tokens = []
        position = 0
        while position < len(self._expression):
            match = _TOKEN.match(self._expression, position)
            if match is None:
                rest = self._expression[position:]
                advice = (
                    "the quote is never closed; a quote inside of quotes is written twice"
                    if rest[0] in "'\""
                    else "text stands in single quotes, and a name of other characters than letters, "
                    "digits, _ and $ in double ones"
                )
                raise InvalidFilter(
                    f"position {position} of the filter: {rest[:20]!r} cannot be read: {advice}"
                )
            kind = str(match.lastgroup)
            if kind != "space":
                tokens.append(_Token(kind, _value(kind, match[kind]), position))
            position = match.end()
        tokens.append(_Token("end", "", position))
        return tokens


def _value(kind: str, written: str) -> str:
    if kind == "word":
        return written.upper() if written.upper() in _RESERVED else written
    if kind == "text":
        return written.replace("''", "'")
    if kind == "name":
        return written.replace('""', '"')
    return written


def _joined(predicates: list[_Predicate], *, any_of: bool) -> _Predicate:
    if len(predicates) == 1:
        return predicates[0]

    def write(holds: bool) -> str:
        # The opposite of "any holds" is "all do not".
        sign = " || " if any_of is holds else " && "
        return f"({sign.join(predicate(holds) for predicate in predicates)})"

    return write


def _equal(name: str, literals: list[_Literal]) -> _Predicate:
    """The property equals one of the literals; its opposite: it is known to differ from all of them."""

    def write(holds: bool) -> str:
        numbers = [("=" if holds else "<>", n) for n in literals if isinstance(n, Decimal)]
        conditions = [_of_numbers(numbers, any_of=holds)] if numbers else []
        conditions += [_of_text(text, holds) for text in literals if isinstance(text, str)]
        conditions += [_of_truth(truth is holds) for truth in literals if isinstance(truth, bool)]
        return _exists(name, (" || " if holds else " && ").join(conditions))

    return write


# Conditions on the value of a property, which is @ in them.


def _of_numbers(comparisons: list[tuple[str, Decimal]], *, any_of: bool) -> str:
    sign = " || " if any_of else " && "
    native = sign.join(f"@ {_sign(operator)} {_number(number)}" for operator, number in comparisons)
    as_text = sign.join(f"@.double() {_sign(operator)} {_number(number)}" for operator, number in comparisons)
    return f"(({_NOT_NULL} && ({native})) || (@ like_regex {_quoted(_NUMBER_IN_TEXT)} && ({as_text})))"


def _of_text(text: str, holds: bool) -> str:
    return f"({_NOT_NULL} && @ {_sign('=' if holds else '<>')} {_quoted(text)})"


def _of_truth(truth: bool) -> str:
    word = "true" if truth else "false"
    return f'(@ == {word} || @ like_regex "^{word}$" flag "i")'


def _exists(name: str, condition: str) -> str:
    return f"exists({_path(name)} ? ({condition}))"


def _is_null(name: str, holds: bool) -> str:
    path = _path(name)
    return f"(({path} == null) is unknown || {path} == null)" if holds else f"({path} != null)"


def _constant(truth: bool) -> str:
    return "(1 == 1)" if truth else "(1 == 0)"


def _sign(operator: str) -> str:
    return _IN_JSONPATH.get(operator, operator)


def _path(name: str) -> str:
    return f"$.{_quoted(name)}"


def _quoted(text: str) -> str:
    # A string of jsonpath is one of JSON.
    return json.dumps(text, ensure_ascii=False)


def _number(number: Decimal) -> str:
    return f"({number})" if number.is_signed() else str(number)


def _shown(literal: _Literal) -> str:
    return str(literal).upper() if isinstance(literal, bool) else repr(str(literal)[:20])
