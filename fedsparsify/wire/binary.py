"""Fields written to and read from bytes, one after the other. The reader checks every length before it uses it.

Numbers are little-endian; a `varint` is unsigned LEB128 of at most nine bytes. A `section` is a byte that says raw (0)
or deflate (1), a varint length, and that many bytes.
"""

from __future__ import annotations

import zlib
from typing import TypeAlias

from ..errors import WireError

RAW, DEFLATED = 0, 1
SHORT, SAMPLE = 1 << 12, 1 << 11  # up to SHORT bytes are deflated both ways; of longer data, a sample decides
LEVEL = 4  # on trained models a tenth of level 6's time, and 1 % larger
NUMBERS, PATTERNS = zlib.Z_HUFFMAN_ONLY, zlib.Z_DEFAULT_STRATEGY
CHECKSUM = 4  # bytes of the CRC-32 at the end
Bytes: TypeAlias = bytes | bytearray | memoryview


class Writer:
    """Writes fields one after the other."""

    def __init__(self, start: bytes = b"") -> None:
        self.buffer = bytearray(start)

    def varint(self, value: int) -> None:
        """An unsigned number, seven bits per byte, the lowest first."""
        while value > 127:
            self.buffer.append(value & 127 | 128)
            value >>= 7
        self.buffer.append(value)

    def text(self, text: str) -> None:
        """UTF-8 after its length in bytes."""
        data = text.encode()
        self.varint(len(data))
        self.buffer += data

    def section(self, data: Bytes) -> None:
        """Bytes, deflated if that makes them fewer."""
        smaller = _deflate(data)
        chosen = data if smaller is None else smaller
        self.buffer.append(RAW if smaller is None else DEFLATED)
        self.varint(len(chosen))
        self.buffer += chosen

    def sealed(self) -> bytes:
        """All bytes, followed by their CRC-32."""
        return sealed(self.buffer)


def sealed(*parts: Bytes) -> bytes:
    """Bytes one after the other, and then their CRC-32."""
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return b"".join((*parts, checksum.to_bytes(CHECKSUM, "little")))


def _deflate(data: Bytes) -> bytes | None:
    """The smaller of two ways to deflate, or None if neither makes it smaller.

    Huffman codes alone suit numbers, and are fast; matches suit patterns. Of long data, a sample from the middle
    decides; matches must save a tenth more to be worth their time.
    """
    if len(data) <= SHORT:
        best = min(_squeeze(data, NUMBERS), _squeeze(data, PATTERNS), key=len)
    else:
        plain, matched = _sampled(data)
        if min(plain, matched) > 0.99:
            return None
        best = _squeeze(data, PATTERNS if matched < 0.9 * plain else NUMBERS)
    return best if len(best) < len(data) else None


def estimate(data: Bytes) -> int:
    """About how many bytes a section of `data` takes, from a sample of it."""
    return int(len(data) * min(*_sampled(data), 1))


def _sampled(data: Bytes) -> tuple[float, float]:
    """The compressed share of a sample from the middle, for each way to deflate."""
    middle = max(len(data) - SAMPLE, 0) // 2
    sample = data[middle : middle + SAMPLE]
    return len(_squeeze(sample, NUMBERS)) / len(sample), len(_squeeze(sample, PATTERNS)) / len(sample)


def _squeeze(data: Bytes, way: int) -> bytes:
    squeezer = zlib.compressobj(LEVEL, zlib.DEFLATED, -15, 9, way)
    return squeezer.compress(data) + squeezer.flush()


class Reader:
    """Reads fields one after the other; every error says which field, and at which byte."""

    def __init__(self, data: Bytes, start: int = 0) -> None:
        self._data, self.at = memoryview(data), start

    @classmethod
    def sealed(cls, data: Bytes, magic: bytes, what: str) -> Reader:
        """A reader that stands after `magic`; the CRC-32 at the end has been checked."""
        if len(data) < len(magic) + 4:
            raise WireError(f"{what} must have at least {len(magic) + 4} bytes. Received: {len(data):,}.")
        if bytes(data[: len(magic) - 1]) != magic[:-1]:
            raise WireError(f"{what} must begin with {magic[:-1]!r}. Received: {bytes(data[: len(magic) - 1])!r}.")
        if data[len(magic) - 1] != magic[-1]:
            raise WireError(f"{what} is of version {data[len(magic) - 1]}; this release reads version {magic[-1]}.")
        body, stated = memoryview(data)[:-4], int.from_bytes(data[-4:], "little")
        if (found := zlib.crc32(body)) != stated:
            raise WireError(
                f"{what} is damaged or cut off: its checksum is {found:08x} over {len(body):,} bytes, "
                f"but its last four bytes say {stated:08x}."
            )
        return cls(body, len(magic))

    def fail(self, what: str) -> WireError:
        """An error at the present byte."""
        return WireError(f"{what} (at byte {self.at:,} of {len(self._data):,}).")

    def take(self, count: int, what: str) -> memoryview:
        """The next `count` bytes."""
        left = len(self._data) - self.at
        if count > left:
            raise self.fail(f"{what} should have {count:,} bytes, but {left:,} are left")
        self.at += count
        return self._data[self.at - count : self.at]

    def byte(self, what: str, most: int) -> int:
        """A number in one byte."""
        value = self.take(1, what)[0]
        if value > most:
            raise self.fail(f"{what} must be at most {most}. Received: {value}")
        return value

    def peek(self) -> int:
        """The next byte, without reading it; -1 at the end."""
        return self._data[self.at] if self.at < len(self._data) else -1

    def varint(self, what: str, most: int) -> int:
        """An unsigned number of any length up to `most`."""
        value = 0
        for shift in range(0, 63, 7):
            byte = self.take(1, what)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                if value > most:
                    raise self.fail(f"{what} must be at most {most:,}. Received: {value:,}")
                return value
        raise self.fail(f"{what} is a number of more than nine bytes")

    def text(self, what: str, most: int) -> str:
        """UTF-8 of at most `most` bytes."""
        data = self.take(self.varint(f"length of {what}", most), what)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8: {error.reason}") from None

    def section(self, what: str, most: int, exact: bool = True) -> Bytes:
        """The bytes of a section: `most` of them exactly, or at most."""
        kind = self.byte(f"kind of {what}", DEFLATED)
        data: Bytes = self.take(self.varint(f"length of {what}", most), what)
        if kind == DEFLATED:
            data = self._inflate(data, most, what)
        if exact and len(data) != most:
            raise self.fail(f"{what} should have {most:,} bytes. Received: {len(data):,}")
        return data

    def _inflate(self, data: Bytes, most: int, what: str) -> bytes:
        inflater = zlib.decompressobj(-15)
        try:
            # One byte more than allowed shows that there is more; nothing beyond it is ever allocated.
            found = inflater.decompress(data, most + 1)
        except zlib.error as error:
            raise self.fail(f"{what} cannot be inflated: {error}") from None
        if len(found) > most:
            raise self.fail(f"{what} inflates to more than {most:,} bytes")
        if not inflater.eof or inflater.unused_data:
            raise self.fail(f"{what} ends {'after' if inflater.eof else 'before'} its deflated data does")
        return found

    def end(self) -> None:
        """Refuse bytes that follow."""
        if left := len(self._data) - self.at:
            raise self.fail(f"{left:,} bytes follow where nothing should")
