"""Ranks that are threads of one process. One runs at a time, so that what they share need not be safe for threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

WITHIN_S = 60.0


class Member:
    """The Collective of one rank."""

    def __init__(self, rank, parts, barrier, baton):
        self.rank, self.parts, self.barrier, self.baton = rank, parts, barrier, baton

    def exchange(self, x):
        self.parts[self.rank] = x
        self._meet()
        everyones = list(self.parts)
        self._meet()
        return everyones

    def _meet(self):
        self.baton.release()
        try:
            self.barrier.wait()
        finally:
            self.baton.acquire()

    def all_reduce(self, x):
        return torch.stack(self.exchange(x)).sum(0)

    def all_gather(self, x):
        return torch.cat(self.exchange(x), dim=-1)


def on_threads(size, function):
    """function(rank, collective) of each rank, in rank order."""
    parts, barrier, baton = [None] * size, threading.Barrier(size, timeout=WITHIN_S), threading.Lock()

    def run(rank):
        with baton:
            try:
                return function(rank, Member(rank, parts, barrier, baton))
            except BaseException:
                barrier.abort()
                raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))
