"""Bundles of laws that have arrived, until somebody asks for them or newer ones need the room."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum

from ssd.speculation.law import SparseLaw
from ssd.tensor_plane.packing import PackedLaws

MOST_BYTES = 64 << 20
MOST_BUNDLES = 4096
MOST_MISSED = 256


class Absent(Enum):
    """Why a law is not to be had; the values are labels of a metric."""

    LATE = "late"  # its bundle is still to come
    GONE = "gone"  # the bundle was lost, damaged, or has made room for newer ones
    CLOSED = "plane closed"  # nothing more comes on that plane


class LawStore:
    """Of one plane. The plane's thread puts bundles in, the engine's takes laws out; numbers grow with arrival."""

    def __init__(
        self,
        most_bytes: int = MOST_BYTES,
        most_bundles: int = MOST_BUNDLES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_bytes = most_bytes
        self._most_bundles = most_bundles
        self._clock = clock
        self._lock = threading.Lock()
        self._bundles: OrderedDict[int, PackedLaws] = OrderedDict()
        self._bytes = 0
        self._newest = 0
        self._missed: dict[int, float] = {}  # bundles that were asked for before they came, and since when
        self._closed = False

    def put(self, number: int, laws: PackedLaws | None) -> bool:
        """Keep a bundle (None = damaged: its number has come, and nothing else). Whether somebody has asked for it."""
        with self._lock:
            if number <= self._newest:
                return False
            self._newest = number
            if laws is not None and not self._closed:
                self._bundles[number] = laws
                self._bytes += laws.nbytes
            while self._bundles and (self._bytes > self._most_bytes or len(self._bundles) > self._most_bundles):
                _, oldest = self._bundles.popitem(last=False)
                self._bytes -= oldest.nbytes
            asked = [known for known in self._missed if known <= number]
            for known in asked:
                del self._missed[known]
            return bool(asked)

    def law(self, bundle: int, row: int) -> SparseLaw | Absent:
        """One law of a bundle."""
        with self._lock:
            if self._closed:
                return Absent.CLOSED
            if bundle > self._newest:
                if len(self._missed) < MOST_MISSED:
                    self._missed.setdefault(bundle, self._clock())
                return Absent.LATE
            laws = self._bundles.get(bundle)
        found = laws.law(row) if laws is not None else None
        return found or Absent.GONE

    def overdue(self, limit_s: float) -> bool:
        """Whether a bundle was asked for longer ago than limit_s and has not come."""
        with self._lock:
            since = self._clock() - limit_s
            return any(asked < since for asked in self._missed.values())

    def close(self) -> None:
        """Nothing more comes; everything that was kept is let go."""
        with self._lock:
            self._closed = True
            self._bundles.clear()
            self._missed.clear()
            self._bytes = 0
