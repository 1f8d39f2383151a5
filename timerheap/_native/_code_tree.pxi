# The tree of weighted codes, on csrc/th_tree.h.

PICK_ALL, PICK_ROWS, PICK_TIES = TH_PICK_ALL, TH_PICK_ROWS, TH_PICK_TIES
PICK_LEADS, PICK_REST = TH_PICK_LEADS, TH_PICK_REST

cdef enum:
    _CODE_TREE = 4  # the kind of its head
    _FEW_PAGES = 16  # of which none are worth to be given back
    _FEW_CODES = 1 << 16  # bytes, likewise


@cython.final
cdef class CodeTree(_Borrower):
    """Multisets of codes of one format by int64 id: codes with weights, which are not 0, in order.

    It lives in one block of `memory`, a Memory, or in memory of its own. Each call is atomic under the GIL. An entry
    takes 40 bytes of a page, which is at least three eighths full, and those of its code beyond 16.
    """

    cdef th_tree t
    cdef CodeFormat format
    cdef uint64_t changes  # counts changes and moves
    cdef readonly int64_t losses  # how many ids have lost their last entry so far

    def __cinit__(self, CodeFormat format not None, memory=None):
        self.format, self.memory = format, memory

    # ---- memory ----

    cdef int rehouse(self, size_t pages, size_t codes, bint pack) except -1:
        """Move the tree to a new block, unless another thread changes it meanwhile."""
        cdef size_t size = th_tree_size(pages, codes)
        cdef uint64_t before = self.changes
        cdef _Memory old, room
        cdef void *start
        if size == SIZE_MAX:
            raise MemoryError("a tree must have fewer than 2**32 pages")
        if self.memory is not None:
            room = self.borrow(size)
            start = cnp.PyArray_DATA(room.array)
        else:
            room = _memory(size)
            start = _start(room, size, 0)
        if before != self.changes:
            self.give(room)
            return 0
        if pack:
            th_tree_pack(&self.t, start, pages, codes)
        else:
            th_tree_move(&self.t, start, pages, codes)
        self.changes += 1
        old, self.room = self.room, room
        self.give(old)
        return 0

    cdef int grow_for(self, th_tree_need need) except -1:
        cdef th_tree_use use = th_tree_usage(&self.t)
        cdef size_t pages = use.used_pages + need.pages - min(use.free_pages, need.pages)
        cdef size_t codes = use.used_codes + need.codes
        if not use.pages:
            codes += 8 if not need.codes else 64  # what a block begins with
        if pages > use.pages and use.pages:
            pages = max(pages, 2 * use.pages if use.pages < _FEW_PAGES else use.pages + use.pages // 3)
        if codes > use.codes and use.codes:
            codes = max(codes, use.codes + use.codes // 3)
        return self.rehouse(max(pages, use.pages), max(codes, use.codes), False)

    cdef int tidy(self) except -1:
        """Release memory if most of it is free, and keep the tree unchanged if an allocation fails."""
        cdef th_tree_use use = th_tree_usage(&self.t)
        cdef size_t pages = use.used_pages - use.free_pages, codes = use.used_codes - use.free_codes
        if not use.entries:
            self.clear()
        elif (use.pages > _FEW_PAGES + 3 * pages or use.codes > _FEW_CODES + 3 * codes
                or use.free_codes > _FEW_CODES + codes):
            try:
                self.rehouse(pages + pages // 4, codes + codes // 4, True)
            except Exception:  # MemoryError, or whatever else a Memory raises
                pass
        return 0

    @property
    def nbytes(self):
        """int: number of bytes allocated. O(1)."""
        cdef th_tree_use use = th_tree_usage(&self.t)
        return th_tree_size(use.pages, use.codes) if use.pages else 0

    @property
    def used_nbytes(self):
        """int: number of bytes that entries take, without what is free. O(1)."""
        cdef th_tree_use use = th_tree_usage(&self.t)
        return th_tree_size(use.used_pages - use.free_pages, use.used_codes - use.free_codes) if use.entries else 0

    def _head(self):
        """Return a list of integers with which `_attach` finds the tree again, in any process. O(1)."""
        if self.memory is None:
            raise ValueError("_head() must be called on a structure in a Memory, got one in memory of its own")
        at, size = (0, 0) if self.room is None else (self.room.block.at, len(self.room.array))
        return [_CODE_TREE, at, size, self.losses]

    @staticmethod
    def _attach(CodeFormat format not None, memory, head):
        """Return the tree that `head`, of `_head`, describes, on the bytes that it has in `memory`. O(1).

        The tree must not have been changed since, and one process may use it at a time. A ValueError is raised if
        `head` cannot be the head of a tree in this memory.
        """
        if not isinstance(head, (list, tuple)) or len(head) != 4 or any(type(each) is not int for each in head):
            raise ValueError(f"head must be a list of 4 integers, as _head() returns it, got {_shown(head)}")
        kind, at, size, losses = head
        if kind != _CODE_TREE or any(not 0 <= each < 1 << 63 for each in head):
            raise ValueError(f"head must be that of a tree of codes, got {_shown(head)}")
        cdef CodeTree tree = CodeTree(format, memory)
        tree.losses = losses
        if not size:
            return tree
        tree.room = _lent(memory.attach(at, size), size)
        if not th_tree_place(&tree.t, cnp.PyArray_DATA(tree.room.array), size):
            tree.room = None
            raise ValueError("head must be that of a tree of codes, but its block holds other bytes")
        return tree

    # ---- many entries ----

    def add(self, ids, Codes codes not None, weights):
        """Add n codes with weights to the multisets of `ids`, int64; return what has changed. O(n log(n + len)).

        Returns the number of an added row of each entry whose weight has changed, in the order of ids and codes, and the
        weights before and after, all int64. The tree is unchanged after a MemoryError or any other error of the memory, and after the ArgumentRangeError of a weight
        beyond the int64 that can be negated.
        """
        cdef cnp.ndarray id_ = _own_column(ids, "ids", codes), weight = _own_column(weights, "weights", codes)
        cdef cnp.ndarray rows, sums, before, after
        cdef th_changes changes
        cdef th_tree_need need
        cdef th_status status
        cdef size_t k
        rows, sums = _added_up(id_, codes, weight, True)
        before, after = _empty(sums.shape[0], cnp.NPY_INT64), _empty(sums.shape[0], cnp.NPY_INT64)
        result = rows, before, after
        changes.rows.id, changes.rows.weight, changes.rows.codes = _int64s(id_), _int64s(weight), codes.c
        changes.row, changes.sum, changes.n = _int64s(rows), _int64s(sums), sums.shape[0]
        while True:
            status = th_tree_plan(&self.t, &changes, _int64s(before), &need)
            if status == TH_NO:
                raise _beyond()
            if status == TH_YES:
                break
            self.grow_for(need)
        if changes.n:
            self.losses += th_tree_add(&self.t, &changes)
            self.changes += 1
        for k in range(changes.n):
            _int64s(after)[k] = _int64s(before)[k] + _int64s(sums)[k]
        self.tidy()
        return result

    def pick(self, ids, kind, n=0, backwards=False):
        """Return entries of each of `ids`, in their order or backwards. O(log len) for each, and O(entries read).

        `kind` says which: PICK_ALL; PICK_ROWS, those of positive weights until the weights add up to `n`, the last one
        cut; PICK_TIES, these, whole, and all whose leads equal that of the last one; PICK_LEADS, those of the first `n`
        leads; PICK_REST, what PICK_ROWS leaves. `n` is one number, or one for each id. Returns the number of entries of
        each id, all Codes, and the weights, both int64.
        """
        cdef _Columns columns = _Columns(None)
        cdef th_column of_ids = columns.take(ids, "ids"), of_n = columns.take(n, "n")
        cdef size_t count = columns.count()
        cdef cnp.ndarray id_ = _copied(of_ids, count), most = _copied(of_n, count)
        cdef cnp.ndarray lengths = _zeros(count, cnp.NPY_INT64), weights, offsets, data
        cdef th_pick how
        cdef th_picked found
        cdef uint64_t changes
        cdef int64_t number = _int64(kind, "kind")
        if not TH_PICK_ALL <= number <= TH_PICK_REST:
            raise ValueError(f"kind must be one of the PICK constants, got {number}")
        how.kind, how.backwards = <th_pick_kind>number, bool(backwards)
        while True:
            changes = self.changes
            found.length = NULL
            self.picked(&how, id_, most, &found)
            weights, offsets = _empty(found.entries, cnp.NPY_INT64), _zeros(found.entries + 1, cnp.NPY_INT64)
            data = _empty(found.size, cnp.NPY_UINT8)
            codes = _codes_of(data, offsets)
            if changes == self.changes:  # otherwise another thread has changed the tree
                break
        found.length, found.weight, found.offset = _int64s(lengths), _int64s(weights), _int64s(offsets)
        found.code = _uint8s(data)
        self.picked(&how, id_, most, &found)
        return lengths, codes, weights

    cdef int picked(self, const th_pick *how, cnp.ndarray ids, cnp.ndarray most, th_picked *found) except -1:
        cdef size_t n = ids.shape[0]
        if th_tree_pick(&self.t, &self.format.f, how, _int64s(ids), _int64s(most), n, found) != TH_YES:
            raise RuntimeError("the block of a tree must not be written by others, but it has been")
        return 0

    def totals(self, ids):
        """Return the sums of the positive weights of each of `ids`, and the numbers of these, int64. O(n log len)."""
        cdef _Columns columns = _Columns(None)
        cdef th_column of_ids = columns.take(ids, "ids")
        cdef size_t n = columns.count()
        cdef cnp.ndarray id_ = _copied(of_ids, n)
        cdef cnp.ndarray rows = _empty(n, cnp.NPY_INT64), entries = _empty(n, cnp.NPY_INT64)
        result = rows, entries
        th_tree_totals(&self.t, _int64s(id_), n, _int64s(rows), _int64s(entries))
        return result

    # ---- as a container ----

    def ids(self):
        """Return all ids that have entries, ascending, int64. O(len)."""
        cdef cnp.ndarray ids
        cdef uint64_t changes
        while True:
            changes = self.changes
            ids = _empty(th_tree_ids(&self.t, NULL), cnp.NPY_INT64)
            if changes == self.changes:  # otherwise another thread has changed the tree
                break
        th_tree_ids(&self.t, _int64s(ids))
        return ids

    def __len__(self):
        """Return the number of entries."""
        return th_tree_usage(&self.t).entries

    def clear(self):
        """Remove all entries and release all memory. O(1)."""
        cdef _Memory old = self.room
        self.room = None
        memset(&self.t, 0, sizeof(th_tree))
        self.changes += 1
        self.give(old)

    def _check(self):
        """Raise AssertionError if an invariant of the tree is broken. O(n)."""
        if th_tree_check(&self.t) != TH_YES:
            raise AssertionError("a page of the tree is not as it must be")
