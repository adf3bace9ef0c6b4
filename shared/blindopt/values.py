"""Small objects that hold values and are made in great numbers."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """A dataclass that mypy lets nobody change.

    A frozen one refuses it at run time too, and so takes three times as long to make.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
