"""Collectives between ranks: the interface that layers use, and a group of one rank."""

from typing import Protocol

import torch
from torch import Tensor


class Group(Protocol):
    """`size` ranks that call the same collectives in the same order. Tensors are contiguous; a
    failure is a `GroupError`.
    """

    rank: int
    size: int

    @property
    def is_capturable(self) -> bool:
        """Whether a CUDA graph (on the CPU a tape) can capture its collectives, once each has been
        called.
        """

    def all_reduce(self, x: Tensor) -> Tensor:
        """The ranks' x (float32) added as a balanced binary tree in order of rank; the same bits on
        each of them.
        """

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """The ranks' x, concatenated along `dim`."""

    def send(self, x: Tensor, dst: int) -> None:
        """Start to send; returns before the other side has it, so x must not be written to
        afterwards.
        """

    def recv(self, shape: tuple[int, ...], dtype: torch.dtype, src: int) -> Tensor:
        """The tensor that rank `src` sends next; shape and dtype must match it."""

    def barrier(self) -> None:
        """Return once every rank has called."""

    def check(self) -> None:
        """Must be called when the device has finished: raises GroupError if a collective's result
        may be wrong.
        """

    def abort(self) -> None:
        """From any thread: every thread that waits in a collective of the group gets a GroupError,
        and the group becomes unusable. This reaches all ranks if they share memory, otherwise at
        least this one.
        """


class SingleGroup:
    """One rank alone: nothing to exchange."""

    rank = 0
    size = 1
    is_capturable = True

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return x

    def send(self, x: Tensor, dst: int) -> None:
        raise AssertionError("a group of one has no other rank to send to")

    def recv(self, shape: tuple[int, ...], dtype: torch.dtype, src: int) -> Tensor:
        raise AssertionError("a group of one has no other rank to receive from")

    def barrier(self) -> None:
        return

    def check(self) -> None:
        return

    def abort(self) -> None:
        return
