"""A second implementation of docs/wire-format.md, from the page alone: no numpy, and nothing of the package."""

from __future__ import annotations

import hashlib
import struct
import zlib


def decode(blob: bytes, known: list[bool] | None = None, layout_bytes: bytes | None = None):
    """({name: (shape, flat values)}, mask as a list) of a well-formed blob."""
    assert blob[:4] == b"FSZ\x01" and zlib.crc32(blob[:-4]) == struct.unpack("<I", blob[-4:])[0]
    at = 4

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        return blob[at - count : at]

    def varint() -> int:
        value = shift = 0
        while True:
            byte = take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def section() -> bytes:
        deflated, data = take(1)[0], take(varint())
        return zlib.decompress(data, -15) if deflated else data

    def layout() -> list[list[tuple[str, list[int]]]]:
        return [
            [(take(varint()).decode(), [varint() for _ in range(varint())]) for _ in range(varint())] for _ in range(2)
        ]

    def subset(size: int) -> list[bool]:
        kind = take(1)[0]
        if kind < 2:
            return [kind == 1] * size
        data = section()
        if kind == 2:
            return [bool(data[i // 8] >> (7 - i % 8) & 1) for i in range(size)]
        members, place = [kind == 4] * size, 0
        for byte in data:
            place += byte
            if byte < 255:
                members[place] = kind == 3
                place += 1
        return members

    def words(count: int, width: int) -> list[int]:
        if not count:
            return []
        planes, bits, found = [section() for _ in range(width)], 8 * width, []
        for column in zip(*planes, strict=True):
            word = int.from_bytes(bytes(column), "big")
            word = word >> 1 | (word & 1) << (bits - 1)
            found.append(word)
        assert len(found) == count
        return found

    form = take(1)[0]
    name = take(8) if form else b""
    if form == 2:
        inside, rest = blob, at
        blob, at = layout_bytes, 0
        tensors, statistics = layout()
        blob, at, fields = inside, rest, layout_bytes
    else:
        start = at
        tensors, statistics = layout()
        fields = blob[start:at]
    sizes = [_product(shape) for _, shape in tensors]
    if form == 0:
        mask = subset(sum(sizes))
    else:
        packed = bytes(sum(bit << (7 - i) for i, bit in enumerate(known[k : k + 8])) for k in range(0, len(known), 8))
        assert hashlib.blake2b(fields + packed, digest_size=8).digest() == name
        died, born = subset(sum(known)), subset(len(known) - sum(known))
        died, born = iter(died), iter(born)
        mask = [not next(died) if was else next(born) for was in known]
    precision = take(1)[0]
    counts, start = [], 0
    for size in sizes:
        counts.append(sum(mask[start : start + size]))
        start += size
    if not sum(counts):
        kept = []
    elif precision == 0:
        kept = [struct.unpack("<f", struct.pack("<I", word))[0] for word in words(sum(counts), 4)]
    elif precision == 1:
        kept = [struct.unpack("<e", struct.pack("<H", word))[0] for word in words(sum(counts), 2)]
    elif precision == 2:
        kept = [struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words(sum(counts), 2)]
    elif precision == 4:
        channels, start = [], 0  # of each kept entry: (tensor, entry of its first dimension), or None
        for tensor, (_, shape) in enumerate(tensors):
            for place in range(sizes[tensor]):
                if mask[start + place]:
                    channels.append((tensor, place // _product(shape[1:])) if len(shape) > 1 else None)
            start += sizes[tensor]
        plain = iter(words(channels.count(None), 4))
        named = list(dict.fromkeys(channel for channel in channels if channel is not None))
        steps, scales = [], {}
        if named:
            owners = list(dict.fromkeys(tensor for tensor, _ in named))
            whole = dict(zip(owners, struct.unpack(f"<{len(owners)}f", take(4 * len(owners))), strict=True))
            shares = section()
            scales = {
                name: _single(whole[name[0]] * (share + 1) / 256) for name, share in zip(named, shares, strict=True)
            }
            steps = iter(struct.unpack(f"<{len(channels) - channels.count(None)}b", section()))
        kept = [
            struct.unpack("<f", struct.pack("<I", next(plain)))[0] if channel is None else next(steps) * scales[channel]
            for channel in channels
        ]
    else:
        scales = struct.unpack(f"<{len(sizes)}f", take(4 * len(sizes)))
        steps = iter(struct.unpack(f"<{sum(counts)}b", section()))
        kept = [next(steps) * scale for scale, count in zip(scales, counts, strict=True) for _ in range(count)]
    values = iter(kept)
    flat = [next(values) if keep else 0.0 for keep in mask]
    ends = sum(_product(shape) for _, shape in statistics)
    flat += [struct.unpack("<f", struct.pack("<I", word))[0] for word in words(ends, 4)]
    assert at == len(blob) - 4
    found, start = {}, 0
    for tensor, shape in tensors + statistics:
        found[tensor] = (tuple(shape), flat[start : start + _product(shape)])
        start += _product(shape)
    return found, mask


def _single(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def _product(shape: list[int]) -> int:
    total = 1
    for side in shape:
        total *= side
    return total
