"""Which JPEG files a GPU's decoder reads as the CPU's does, told from their headers."""

from collections.abc import Iterator

from PIL import Image

SCAN, FRAME, ADOBE, QUANTIZATION, HUFFMAN = 0xDA, 0xC0, 0xEE, 0xDB, 0xC4
OTHER_FRAMES = frozenset(range(0xC1, 0xD0)) - {0xC4, 0xC8, 0xCC}  # tables and extensions have numbers among them
RGB = (ord("R"), ord("G"), ord("B"))
SAMPLINGS = (0x11, 0x21, 0x12, 0x22)  # of luminance, where that of the color differences is 0x11
TAIL = 64  # bytes at the end in which the end marker must stand; cameras may add a few after it


def plain_size(content: bytes) -> tuple[int, int] | None:
    """Height and width of a baseline JPEG of luminance and color differences that is there to its end, else None.

    None are other formats, progressive, gray, RGB and CMYK JPEGs, truncated ones and such without the tables they name
    (of which a GPU makes some image instead of failing) and those beyond Pillow's bound against decompression bombs:
    the CPU's decoder reads or refuses them.

    >>> plain_size(b"no image")
    """
    if content[:2] != b"\xff\xd8" or content.rfind(b"\xff\xd9", -TAIL) < 0:
        return None
    frame, tables, place = b"", set[tuple[int, int]](), 2
    while place + 4 <= len(content) and content[place] == 0xFF:
        marker, length = content[place + 1], int.from_bytes(content[place + 2 : place + 4], "big")
        segment = content[place + 4 : place + 2 + length]
        if marker == SCAN:
            whole = _is_only_scan(frame, segment) and _named_tables(frame, segment) <= tables
            return _frame_size(frame) if whole else None
        if marker in OTHER_FRAMES or (marker == FRAME and frame) or (marker == ADOBE and not _luminance(segment)):
            return None
        if marker == FRAME:
            frame = segment
        elif marker in (QUANTIZATION, HUFFMAN):
            tables |= {(marker, name) for name in _table_names(marker, segment)}
        place += 2 + length
    return None


def _frame_size(segment: bytes) -> tuple[int, int] | None:
    """Height and width from a frame's header, where it has three components of 8 bits that are not named R, G, B.

    Luminance is sampled as often as the others or twice as often, in either direction.
    """
    if len(segment) != 15 or segment[0] != 8 or segment[5] != 3 or tuple(segment[6::3]) == RGB:
        return None
    if segment[7] not in SAMPLINGS or segment[10] != 0x11 or segment[13] != 0x11:
        return None
    height, width = int.from_bytes(segment[1:3], "big"), int.from_bytes(segment[3:5], "big")
    bound = Image.MAX_IMAGE_PIXELS
    return (height, width) if height and width and (bound is None or height * width <= bound) else None


def _table_names(marker: int, segment: bytes) -> Iterator[int]:
    """The names of the tables in a segment: their number, and for Huffman's also whether of means (0) or waves (16).

    A table that the segment ends within is none.
    """
    place = 0
    while place < len(segment):
        name = segment[place]
        quantization = marker == QUANTIZATION
        values = 64 * (1 + (name >> 4 > 0)) if quantization else sum(segment[place + 1 : place + 17])
        place += 1 + values + (0 if quantization else 16)
        if values and place <= len(segment):
            yield name & 15 if quantization else name


def _is_only_scan(frame: bytes, scan: bytes) -> bool:
    """Whether a scan's header names all three components of the frame, each once, in their order."""
    names = frame[6::3]
    return len(scan) == 10 and scan[0] == 3 == len(set(names)) and scan[1:7:2] == names and scan[7:] == b"\0\x3f\0"


def _named_tables(frame: bytes, scan: bytes) -> set[tuple[int, int]]:
    """The tables that the components of a frame and of its scan refer to."""
    huffman = {name for pair in scan[2:7:2] for name in (pair >> 4, 16 + (pair & 15))}
    return {(QUANTIZATION, name) for name in frame[8::3]} | {(HUFFMAN, name) for name in huffman}


def _luminance(segment: bytes) -> bool:
    """Whether Adobe's marker, where it is that, says that colors are luminance and differences."""
    return segment[:5] != b"Adobe" or segment[11:12] == b"\x01"
