"""Collectives between ranks: what layers ask of a group, and a group of one."""

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
        """By a graph (of CUDA; on the CPU a tape), once each of the collectives in it has been
        called.
        """

    def all_reduce(self, x: Tensor) -> Tensor:
        """The ranks' x (float32) added as a balanced binary tree in order of rank; the same bits on
        each of them.
        """

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """The ranks' x, one after the other along `dim`."""

    def send(self, x: Tensor, dst: int) -> None:
        """Start to send; returns before the other side has it, so nobody may write to x
        afterwards.
        """

    def recv(self, shape: tuple[int, ...], dtype: torch.dtype, src: int) -> Tensor:
        """What rank `src` sends next; the shape and dtype must be its own."""

    def barrier(self) -> None:
        """Return once every rank has called."""

    def check(self) -> None:
        """To be called when the device has computed what it was asked: GroupError if a collective
        may have given anything.
        """

    def abort(self) -> None:
        """From any thread: whoever waits in a collective of the group gets a GroupError, and it is
        of no more use.

        On any rank where ranks share memory; on this one, at least, where they do not.
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
        raise AssertionError("a group of one has nobody to send to")

    def recv(self, shape: tuple[int, ...], dtype: torch.dtype, src: int) -> Tensor:
        raise AssertionError("a group of one has nobody to receive from")

    def barrier(self) -> None:
        return

    def check(self) -> None:
        return

    def abort(self) -> None:
        return
