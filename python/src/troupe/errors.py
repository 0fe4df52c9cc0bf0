"""What fails, and how."""

from __future__ import annotations

import enum
from typing import Optional


class Status(enum.IntEnum):
    """`troupe_status` of troupe.h."""

    OK = 0
    INVALID_ARGUMENT = 1
    NOT_FOUND = 2
    ALREADY_EXISTS = 3
    UNAVAILABLE = 4
    IO = 5
    CORRUPT = 6
    MISMATCH = 7
    TIMEOUT = 8
    PEER_LOST = 9
    ABORTED = 10
    STALE_EPOCH = 11
    OUT_OF_MEMORY = 12
    NUMERIC = 13
    INTERNAL = 14


class Error(RuntimeError):
    """The message says what was expected, what was found and what to do next. `status` says what kind of failure it
    is: of a lost peer, for instance, `Status.PEER_LOST`."""

    def __init__(self, status: Status | int, message: str) -> None:
        super().__init__(message)
        self.status = Status(status)

    def __reduce__(self) -> tuple[type[Error], tuple[int, str]]:
        """So that it can be sent to other processes."""
        return type(self), (int(self.status), str(self))


def invalid(message: str) -> Error:
    """A call out of turn, a wrong name, an impossible value."""
    return Error(Status.INVALID_ARGUMENT, message)


def is_loss(error: Optional[BaseException]) -> bool:
    """Whether it tells of the loss of another rank, as far as this one knows."""
    return isinstance(error, Error) and error.status in (Status.PEER_LOST, Status.STALE_EPOCH, Status.TIMEOUT)
