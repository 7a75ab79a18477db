"""One rule for every length of time that callers give. It knows what a clock can wait, and nothing else."""

import numbers
from typing import Optional, overload

__all__ = ["LONGEST", "check_seconds"]

#: No wait is longer: 30 years. Above, the clocks of the system overflow.
LONGEST = 1e9


@overload
def check_seconds(name: str, value: float, *, positive: bool = False) -> float: ...


@overload
def check_seconds(name: str, value: Optional[float], *, positive: bool = False) -> Optional[float]: ...


def check_seconds(name: str, value: Optional[float], *, positive: bool = False) -> Optional[float]:
    """The time that `value` means, from 0 to `LONGEST`; None, for no limit, stays None.

    A negative time is 0, as for the waits of the standard library, but refused with `positive`, like 0.
    Raises `TypeError` for what is no number and `ValueError` for NaN; their texts begin with `name`.
    """
    if value is None:
        return None
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is a number of seconds, not {value!r}")
    if value != value or (positive and value <= 0):
        raise ValueError(f"{name} is seconds{' above 0' if positive else ''}, not {value!r}")
    return float(min(max(value, 0.0), LONGEST))
