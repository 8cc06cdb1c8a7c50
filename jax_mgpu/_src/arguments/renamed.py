"""Former names of arguments."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def renamed(**names: str) -> Callable[[Function], Function]:
    """Accepts old names of arguments, `old="new"`, each with a DeprecationWarning."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*positional: Any, **named: Any) -> Any:
            for old, new in names.items():
                if old in named:
                    if new in named:
                        raise TypeError(f"{function.__name__}: {old}: expected {new} alone, got both")
                    warnings.warn(f"{function.__name__}: {old}= is called {new}=", DeprecationWarning, stacklevel=2)
                    named[new] = named.pop(old)
            return function(*positional, **named)

        return call  # type: ignore[return-value]

    return decorate
