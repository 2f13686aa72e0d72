"""Reading one segment image: every record, and what is wrong with it.  Pure.

For recovery.py and inspect.py.  The question it must answer right: is an unreadable spot a write
that was under way at the crash (it was not acknowledged, it may be cut off) or damage to
something that had been synced (it must be reported)?  Writes are serial, each starts with a BATCH
record and is synced before the next starts.  So damage with a later BATCH behind it was synced; and
so was all that a mark covers (records.SyncMark), of which one stands in another page of the segment
and one in a file of its own: a tail that reads as zeros is no torn write.
In the last write, a spot counts as torn only if it looks like one: it must be more than a single
flipped bit away from a valid record, and in a zero-filled segment some disk sector of it must
still be zero (in a recycled one the leftovers look like anything).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from brokerd.storage import records
from brokerd.storage.records import HEADER, HEADER_BYTES, SegmentHeader, crc, crc_extend

SECTOR_BYTES = 512
#: Numbers per row: uid, index, term, birth, offset << 32 | length, kinds.
ROW = 6
#: In the row's kinds: the data's checksum is wrong.
BAD = 1 << 32

PAYLOAD_KINDS = frozenset((records.GROUP, records.HARD_STATE, records.LOST, records.PROMISES))
#: Writes that the mark in the head may be behind what is readable: it is synced with the write that
#: follows it, and while that is under way only the one before is known to be synced.
MARK_LAG_BATCHES = records.MARK_EVERY_BATCHES + 2


@dataclass(slots=True)
class SegmentScan:
    """What stands in one segment."""

    header: SegmentHeader
    rows: array[int] = field(default_factory=lambda: array("Q"))
    #: Where in `rows` the moved records start.
    moved: list[int] = field(default_factory=list)
    #: Data of the small records by offset.
    payloads: dict[int, bytes] = field(default_factory=dict)
    #: Data of the last SEGMENTS record.
    segment_ids: bytes | None = None
    #: Offsets at which records were lost whose group is not known.
    lost: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: Behind the last record that counts.
    end: int = 0
    sealed: bool = False
    next_segment: int = 0
    batches: int = 0
    #: Where the last write starts: only it can be unsynced.
    last_batch_start: int = 0
    last_batch: int = 0
    torn_bytes: int = 0


def scan_segment(
    image: bytes, header: SegmentHeader, name: str, *, is_tail: bool, last_mark: bytes = b""
) -> SegmentScan:
    """Read a whole segment; `is_tail`: it is the one that was being written.

    last_mark: the file of marks, as it stands.
    """
    return _Scanner(image, header, name, is_tail, last_mark).run()


#: Longest data in which a flipped bit is searched for: eight steps per byte.
ONE_BIT_SEARCH_BYTES = 1 << 20
CRC32C_POLYNOMIAL = 0x82F63B78


def is_one_bit(difference: int, size: int) -> bool:
    """Return whether flipping one bit in `size` bytes changes a CRC32C by `difference`.

    The checksum is linear: a bit's effect depends only on its distance from the end, and one step
    of the shift register leads from one bit's effect to that of the bit before it.
    """
    if not difference:
        return False
    effect = CRC32C_POLYNOMIAL
    for _ in range(8 * min(size, ONE_BIT_SEARCH_BYTES)):
        if effect == difference:
            return True
        effect = effect >> 1 ^ (CRC32C_POLYNOMIAL if effect & 1 else 0)
    return False


class _Scanner:
    """One pass over an image; `position` is always at a record or at trouble."""

    def __init__(
        self, image: bytes, header: SegmentHeader, name: str, is_tail: bool, last_mark: bytes
    ) -> None:
        self.image = image
        self.header = header
        self.name = name
        self.is_tail = is_tail
        self.scan = SegmentScan(header)
        self.marker = header.salt.to_bytes(4, "little")
        self.position = self.scan.end = self.scan.last_batch_start = records.SEGMENT_DATA_START
        self.batch_end = self.position
        #: What was synced for certain ends here.
        self.synced_end = self.position
        self.mark = None
        if is_tail:
            self.mark = records.decode_sync_mark(image, header)
            last = records.decode_sync_mark(last_mark, header, (0,))
            for mark in (self.mark, last):
                self.synced_end = max(self.synced_end, 0 if mark is None else mark.end)

    def run(self) -> SegmentScan:
        scan = self.scan
        if not self.header.both_copies:
            scan.notes.append(f"{self.name}: one copy of the segment header is unreadable")
        while not scan.sealed:
            self._take_entries()
            if not (self._take() if self._is_header(self.position) else self._trouble()):
                break
        scan.end = self.position
        if not scan.sealed:
            self._judge_end()
        return scan

    def _judge_end(self) -> None:
        size, nominal = len(self.image), self.header.size
        if size < nominal:
            self._lose(size, f"file has {size} bytes, was created with {nominal}")
        elif not self.is_tail:
            self._lose(self.position, "the end of the segment (its seal) is missing")
        else:
            self._judge_mark()

    def _judge_mark(self) -> None:
        """The mark must be there, and not much older than what is readable.

        The segment began with one, and a sector is old or new, never neither.
        """
        mark, last = self.mark, self.scan.last_batch
        if mark is None or last - mark.batch > MARK_LAG_BATCHES:
            self._lose(
                self.position,
                "the record of what was synced is unreadable or old: there may have been more",
            )

    def _lose(self, offset: int, why: str) -> None:
        self.scan.lost.append(offset)
        self.scan.notes.append(f"{self.name}+{offset:#x}: DAMAGE: {why}")

    def _is_header(self, position: int) -> bool:
        image = self.image
        if image[position : position + 4] != self.marker:
            return False
        body_end = position + HEADER_BYTES
        if body_end > len(image):
            return False
        _, checksum, _, _, _, _, _, _, offset, _, _, _ = HEADER.unpack_from(image, position)
        is_intact = crc_extend(self.header.seed, image[position + 8 : body_end]) == checksum
        return is_intact and bool(offset == position)

    def _take_entries(self) -> None:
        """Take intact entries and BATCH records as long as there are any; all else is for _take.

        Nothing here that _take would not do: this is the loop that recovery spends its time in.
        """
        image, scan, salt, seed = self.image, self.scan, self.header.salt, self.header.seed
        unpack, extend = HEADER.unpack_from, scan.rows.extend
        position, limit = self.position, len(self.image) - HEADER_BYTES
        while position <= limit:
            (marker, checksum, data_checksum, length, uid, index, term, birth, offset, kind) = (
                fields := unpack(image, position)
            )[:10]
            data_start = position + HEADER_BYTES
            if (
                marker != salt
                or (kind > records.LIVE and kind != records.STAGED)
                or offset != position
                or crc_extend(seed, image[position + 8 : data_start]) != checksum
            ):
                break
            end = data_start + length
            if end > len(image) or crc(image[data_start:end]) != data_checksum:
                break
            if kind == records.BATCH:
                scan.batches += 1
                scan.last_batch = index
                scan.last_batch_start = position
                self.batch_end = position + birth
            else:
                if birth:
                    scan.moved.append(len(scan.rows))
                kinds = kind | fields[10] << 8 | fields[11] << 16
                extend((uid, index, term, birth, position << 32 | length, kinds))
            position = end
        self.position = position

    def _take(self) -> bool:
        """Take the record at the position (its header is intact); False: the log ends here."""
        start = self.position
        (_, _, checksum, length, uid, index, term, birth, offset, kind, entry_kind, flags) = (
            HEADER.unpack_from(self.image, start)
        )
        data = self.image[start + HEADER_BYTES : start + HEADER_BYTES + length]
        is_bad = crc(data) != checksum or len(data) != length
        if is_bad and self._is_torn(start, start + HEADER_BYTES + length):
            return self._cut("unfinished write")
        scan = self.scan
        if is_bad:
            scan.notes.append(
                f"{self.name}+{start:#x}: DAMAGE: data of {records.KIND_NAMES.get(kind, kind)} "
                f"record of group {uid:x}, index {index}, fails its checksum"
            )
        self.position = start + HEADER_BYTES + length
        if kind == records.BATCH:
            scan.batches += 1
            scan.last_batch = index
            scan.last_batch_start = start
            self.batch_end = start + birth
            return True
        if kind == records.SEAL:
            scan.sealed = True
            scan.next_segment = index
        kinds = kind | entry_kind << 8 | flags << 16 | (BAD if is_bad else 0)
        if birth:
            scan.moved.append(len(scan.rows))
        scan.rows.extend((uid, index, term, birth, offset << 32 | length, kinds))
        if is_bad and kind in (records.SEGMENTS, records.PROMISES):
            scan.lost.append(start)
        elif kind == records.SEGMENTS:
            scan.segment_ids = data
        if kind in PAYLOAD_KINDS and not is_bad:
            scan.payloads[start] = data
        return self.position <= len(self.image)

    def _trouble(self) -> bool:
        """No valid header at the position: the end, a torn write, or damage."""
        start = self.position
        following = self._next_header(start + 1)
        at_batch = start >= self.batch_end
        first = self.image[start : start + HEADER_BYTES]
        # Zeros, or leftovers of an earlier use of the file: the ordinary end.
        is_blank = not self.header.fresh or not any(first)
        is_end = start >= self.synced_end
        if following is None and at_batch and self.is_tail and is_blank and is_end:
            return False
        if self._is_torn(start, max(self.batch_end, start + HEADER_BYTES)):
            return self._cut("unfinished write")
        if is_end:
            why = "record header is unreadable, its group is not known"
        else:
            why = f"what was synced here is gone, up to +{self.synced_end:#x}"
        self._lose(start, why)
        if following is None:
            # The seal goes behind the damage, so that it is found again next time.
            self.position = max(self.batch_end, start + HEADER_BYTES, self.synced_end)
            return False
        self.position = following
        return True

    def _cut(self, why: str) -> bool:
        end = min(max(self.batch_end, self.position + 1), len(self.image))
        self.scan.torn_bytes = end - self.position
        self.scan.notes.append(
            f"{self.name}+{self.position:#x}: {why}, {self.scan.torn_bytes} bytes cut off "
            "(never acknowledged)"
        )
        return False

    def _is_torn(self, start: int, end: int) -> bool:
        if not self.is_tail or start < self.synced_end:
            return False
        if self._next_header(start + 1, records.BATCH) is not None:
            return False
        # A sector of one set bit is all zeros without it.
        if self._is_one_bit_off(start, end):
            return False
        if not self.header.fresh:
            return True
        end = min(max(end, self.batch_end), len(self.image))
        for sector in range(start - start % SECTOR_BYTES, end, SECTOR_BYTES):
            if not any(self.image[max(start, sector) : sector + SECTOR_BYTES]):
                return True
        return False

    def _is_one_bit_off(self, start: int, end: int) -> bool:
        """Return whether one flipped bit explains the record's checksum failure.

        A sector that was lost may have held one set bit of the record; but then what follows in the
        write, which began in that sector, is gone too.
        """
        image = self.image
        if start + HEADER_BYTES > len(image):
            return False
        header = image[start : start + HEADER_BYTES]
        if self._fault_of(header) != (0, 0):
            return self._is_whole_but_for_its_header(start, header)
        _, _, data_checksum, length = HEADER.unpack(header)[:4]
        data = image[start + HEADER_BYTES : min(end, len(image))]
        if len(data) != length or not is_one_bit(crc(data) ^ data_checksum, length):
            return False
        return end >= self.batch_end or self._is_header(end)

    def _fault_of(self, header: bytes) -> tuple[int, int]:
        """Return what is wrong with the marker and with the checksum; (0, 0): nothing."""
        marker, checksum = records.FRONT.unpack_from(header)
        found = crc_extend(self.header.seed, header[records.FRONT.size :])
        return marker ^ self.header.salt, found ^ checksum

    def _is_whole_but_for_its_header(self, start: int, header: bytes) -> bool:
        """Return whether a flipped bit of the header is all that is wrong here."""
        marker, difference = self._fault_of(header)
        if marker and difference:
            return False
        flipped = marker.bit_count() if marker else difference.bit_count()
        if flipped != 1 and (marker or not is_one_bit(difference, HEADER_BYTES - 8)):
            return False
        whole = self._mended(header)
        _, _, data_checksum, length, _, _, _, birth, _, kind, _, _ = HEADER.unpack(whole)
        end = start + HEADER_BYTES + length
        data = self.image[start + HEADER_BYTES : end]
        if len(data) != length or crc(data) != data_checksum:
            return False
        write_end = start + birth if kind == records.BATCH else self.batch_end
        return end >= write_end or self._is_header(end)

    def _mended(self, header: bytes) -> bytes:
        """Return the header that one flipped bit of this one makes intact."""
        number = int.from_bytes(header, "little")
        for bit in range(8 * HEADER_BYTES):
            mended = (number ^ 1 << bit).to_bytes(HEADER_BYTES, "little")
            if self._fault_of(mended) == (0, 0):
                return mended
        raise AssertionError("one flipped bit was to explain it")

    def _next_header(self, position: int, kind: int | None = None) -> int | None:
        """Return where the next intact header (of that kind) stands; a search for the salt."""
        while (position := self.image.find(self.marker, position)) >= 0:
            if self._is_header(position) and (
                kind is None or self.image[position + HEADER_BYTES - 4] == kind
            ):
                return position
            position += 1
        return None
