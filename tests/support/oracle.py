"""What the cache should hold and whom it should evict, said naively: pages, who ends where, and a queue.

Written from the definitions in the design and the papers, in terms of token pages only. It knows no node ids, no
tree and no table: a page is a number that stands for all tokens up to its end, so equal prefixes are equal
numbers, and everything is looked for by scanning.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Space = tuple[str | None, str | None]


@dataclass(eq=False)
class Line:
    """One line of a trajectory's history: the page up to which it is resident (0: nothing)."""

    owner: Owner
    touched: int
    tail: int
    length: int = 0
    prompt: Sequence[int] = ()


@dataclass(eq=False)
class Owner:
    """One trajectory (one generation of its id)."""

    space: Space
    name: str | None
    requests: dict[str, int] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    interleaves: bool = False
    closing: bool = False
    parked: bool = False
    forgotten: bool = False
    table_entry: Any = None
    history: list[int] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)

    @property
    def anonymous(self) -> bool:
        return self.name is None


class Oracle:
    """The resident pages, their owners, and the order of eviction.

    Args:
        chunk: tokens of a tail chunk, 0 for all; `visit` "chunk" or "leaf".
    """

    def __init__(self, page_size: int, chunk: int, visit: str) -> None:
        self.page_size, self.chunk, self.visit = page_size, chunk, visit
        self._number: dict[tuple[int, Any], int] = {}
        self.parent = [0]
        self.depth = [0]
        self.space: list[Space] = [(None, None)]
        self._words: list[Sequence[int]] = [()]
        self._texts: dict[int, array[int]] = {}
        self.clock = 0
        self.owners: list[Owner] = []
        self.clear()

    def clear(self) -> None:
        self.resident: set[int] = set()
        self.kids: dict[int, set[int]] = {}
        self.ends: set[int] = set()
        self.anchors: Counter[int] = Counter()
        self.round: list[Owner] = []
        self.dead: dict[int, Owner] = {}
        self.doomed: dict[int, None] = {}
        self.owners = [owner for owner in self.owners if owner.requests]
        for owner in self.owners:
            owner.lines.clear()

    # ---- pages ----

    def pages(self, tokens: Sequence[int], space: Space) -> list[int]:
        """The pages that these tokens fill; a rest that fills none is left out."""
        size, page, path = self.page_size, 0, []
        for start in range(0, len(tokens) // size * size, size):
            word = tuple(tokens[start : start + size])
            key = (page, word) if page else (0, (space, word))
            number = self._number.get(key)
            if number is None:
                number = self._number[key] = len(self.parent)
                self.parent.append(page)
                self.depth.append(self.depth[page] + 1)
                self.space.append(space)
                self._words.append(word)
            path.append(number)
            page = number
        return path

    def text(self, page: int) -> array[int]:
        """All tokens up to the end of a page."""
        if page not in self._texts:
            words = []
            at = page
            while at:
                words.append(self._words[at])
                at = self.parent[at]
            self._texts[page] = array("q", [token for word in reversed(words) for token in word])
        return self._texts[page]

    def path(self, page: int) -> list[int]:
        found = []
        while page:
            found.append(page)
            page = self.parent[page]
        return found

    def hit(self, path: Sequence[int]) -> int:
        """How many of these pages are resident, from the first."""
        for count, page in enumerate(path):
            if page not in self.resident:
                return count
        return len(path)

    def leaves(self) -> list[int]:
        return [page for page in self.resident if not self.kids.get(page)]

    def tokens(self) -> int:
        return len(self.resident) * self.page_size

    # ---- what a request does to the tree ----

    def match(self, tokens: Sequence[int], space: Space) -> int:
        """The page a prefix match ends at; the tree's nodes are split there."""
        path = self.pages(tokens, space)
        count = self.hit(path)
        if count:
            self.ends.add(path[count - 1])
        return path[count - 1] if count else 0

    def insert(self, tokens: Sequence[int], prompt: int, space: Space) -> int:
        """Put these tokens in; `prompt` of them are the request's prompt. Returns the page they end at."""
        path = self.pages(tokens, space)
        count = self.hit(path)
        for page in path[count:]:
            self.resident.add(page)
            self.kids.setdefault(self.parent[page], set()).add(page)
        boundary = prompt // self.page_size
        for at in (count, len(path), boundary if boundary < len(path) else 0):
            if at:
                self.ends.add(path[at - 1])
        return path[-1] if path else 0

    def lock(self, page: int) -> None:
        self.anchors[page] += 1

    def unlock(self, page: int) -> None:
        self.anchors[page] -= 1
        assert self.anchors[page] >= 0
        if not self.anchors[page]:
            del self.anchors[page]
            self.unpark(page)

    # ---- trajectories ----

    def begin(self, owner: Owner, rid: str) -> None:
        self.clock += 1
        if owner not in self.owners:
            self.owners.append(owner)
        self._out_of_round(owner)
        owner.parked = False
        owner.requests[rid] = self.clock

    def lines_at(self, page: int) -> list[Line]:
        return [line for owner in self.owners for line in owner.lines if line.tail == page and page]

    def record(
        self, owner: Owner, rid: str, tail: int, prompt: Sequence[int], length: int, rewrites: bool
    ) -> None:
        """The history of a request, of `length` tokens, is in the tree up to `tail`."""
        if not tail:
            return
        path = set(self.path(tail))
        arrival = owner.requests[rid]
        for page in [page for page in self.dead if page in path]:
            self.dead.pop(page).interleaves = True
        continued: Line | None = None
        for line in list(owner.lines):
            if not line.tail or line.tail in path:
                if continued is None:
                    continued = line
                else:
                    self._drop_line(line)
            elif (
                rewrites
                and line.touched < arrival
                and not owner.interleaves
                and path.intersection(self.path(line.tail))
            ):
                self._drop_line(line)
                self.dead[line.tail] = owner
        if continued is None:
            if owner.lines and not rewrites:
                return
            continued = Line(owner, 0, 0)
        else:
            self._drop_line(continued)
        self.clock += 1
        continued.touched = self.clock
        continued.length = max(length, self.depth[tail] * self.page_size, 0 if rewrites else continued.length)
        continued.tail = tail
        continued.prompt = prompt
        owner.lines.append(continued)

    def leave(self, rid: str, owner: Owner, final: bool) -> int:
        """A request is gone. Returns the tokens that a completion freed."""
        if final:
            owner.closing = True
        del owner.requests[rid]
        freed = 0
        if not owner.requests:
            if owner.closing:
                freed = self.release(owner)
            elif any(line.tail for line in owner.lines):
                owner.parked = False
                self.round.append(owner)
            else:
                self._quiet(owner)
        self.drain()
        return freed

    def release(self, owner: Owner) -> int:
        """Completed: everything that only this trajectory owns goes now, or when it is unlocked."""
        tails = [line.tail for line in reversed(owner.lines) if line.tail]
        tails += [page for page, left_by in self.dead.items() if left_by is owner]
        self._forget(owner)
        before = len(self.resident)
        for tail in tails:
            stop = self._drop_upward(tail)
            if stop and self.anchors[stop] and not self.lines_at(stop):
                self.doomed[stop] = None
        return (before - len(self.resident)) * self.page_size

    def drain(self) -> None:
        for page in [page for page in self.doomed if not self.anchors[page]]:
            del self.doomed[page]
            self._drop_upward(page)

    def unpark(self, page: int) -> None:
        lines = self.lines_at(page)
        for line in lines:
            owner = line.owner
            if owner.parked and not owner.requests and all(other.owner is owner for other in lines):
                owner.parked = False
                self.round.append(owner)

    def _forget(self, owner: Owner) -> None:
        self._out_of_round(owner)
        for line in list(owner.lines):
            self._drop_line(line)
        for page in [page for page, left_by in self.dead.items() if left_by is owner]:
            del self.dead[page]
        self.owners.remove(owner)
        owner.forgotten = True

    def _quiet(self, owner: Owner) -> None:
        if any(line.tail for line in owner.lines):
            return
        if owner.anonymous:
            self._forget(owner)
        else:
            self._out_of_round(owner)

    def _out_of_round(self, owner: Owner) -> None:
        if owner in self.round:
            self.round.remove(owner)

    def _drop_line(self, line: Line) -> None:
        line.owner.lines.remove(line)
        if line.tail:
            self.unpark(line.tail)

    # ---- eviction ----

    def free_leaf(self, page: int) -> bool:
        return page in self.resident and not self.kids.get(page) and not self.anchors[page]

    def cuttable(self, owner: Owner) -> bool:
        """Whether an idle trajectory has a tail that is private and unlocked."""
        return any(
            line.tail
            and self.free_leaf(line.tail)
            and all(other.owner is owner for other in self.lines_at(line.tail))
            for line in owner.lines
        )

    def reclaim(self, wanted: int) -> int:
        """Evict at least so many tokens of superseded branches and idle trajectories, if there are so many.

        Returns:
            tokens freed; fewer than wanted if SGLang's own order has to go on.
        """
        before = len(self.resident)

        def freed() -> int:
            return (before - len(self.resident)) * self.page_size

        for page in list(self.dead):
            if freed() >= wanted:
                return freed()
            self._drop_upward(page, lambda: freed() >= wanted)
            if freed() < wanted and not self.anchors[page]:
                self.dead.pop(page, None)
        while freed() < wanted and self.round:
            owner = self.round[0]
            spent = self._cut(owner)
            if owner in self.round:
                self.round.remove(owner)
                if not spent:
                    self.round.append(owner)
                owner.parked = spent
        return freed()

    def _cut(self, owner: Owner) -> bool:
        """One visit: the last `chunk` private tokens, whole leaves first and a part of the last one.

        Returns:
            whether it gave nothing, or all that its only line had.
        """
        freed = 0
        for line in list(owner.lines):
            page = line.tail
            while page and self.free_leaf(page):
                if any(other.owner is not owner for other in self.lines_at(page)):
                    break
                budget = self.chunk - freed
                size = self.node(page) * self.page_size
                if self.chunk == 0 or size <= budget:
                    page = self._drop_node(page)
                    freed += size
                else:
                    part = budget // self.page_size
                    if part == 0:
                        return freed == 0
                    keep = page
                    for _ in range(part):
                        keep = self.parent[keep]
                    self.ends.add(keep)
                    self._drop_node(page)
                    return False
                if self.visit == "leaf":
                    return False
        return freed == 0 or len(owner.lines) <= 1

    def node(self, end: int) -> int:
        """Pages of the tree's node that ends here."""
        count, page = 1, self.parent[end]
        while page and page not in self.ends:
            count, page = count + 1, self.parent[page]
        return count

    def _drop_upward(self, page: int, enough: Callable[[], bool] = lambda: False) -> int:
        while page and self.free_leaf(page) and not self.lines_at(page) and not enough():
            page = self._drop_node(page)
        return page

    def _drop_node(self, end: int) -> int:
        """A leaf of the tree goes; what ended at it ends at its parent. Returns the parent."""
        page = end
        for _ in range(self.node(end)):
            self.resident.remove(page)
            self.kids[self.parent[page]].remove(page)
            page = self.parent[page]
        self.ends.discard(end)
        for line in self.lines_at(end):
            line.tail = page
            if not page and not line.owner.requests:
                self._quiet(line.owner)
        left_by = self.dead.pop(end, None)
        if left_by is not None and page and not self.lines_at(page):
            self.dead = {page: left_by, **self.dead}
        self.doomed.pop(end, None)
        if page:
            self.unpark(page)
        return page

    def observe(self, left: set[int]) -> None:
        """SGLang's own order has evicted: only these pages are left."""
        gone = self.resident - left
        for page in gone:
            if self.parent[page] in left:
                self.ends.add(self.parent[page])
        for page in sorted(gone & self.ends, key=lambda page: -self.depth[page]):
            self._drop_node(page)
        assert self.resident == left, "a part of a node went"
