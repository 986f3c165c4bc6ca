"""From tokens to text while they arrive: no half character, no half stop string."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from tunewright_workloads.contract.faults import Fault, UserError

_BYTE = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")
_SPACE = "▁"


class Pieces:
    """What bytes each token of a SentencePiece-style vocabulary (Gemma's) stands for.

    Working on bytes, not on `decode()` of growing prefixes, keeps a token's text fixed once it is
    out: with byte fallback a later byte can turn what `decode()` said of earlier ones.
    """

    def __init__(self, path: Path) -> None:
        """Reads `tokenizer.json`. Raises UserError when its decoder is not Gemma's."""
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        if "ByteFallback" not in repr(self._tokenizer.decoder):
            raise UserError(
                Fault(str(path), "has a decoder other than Gemma's (replace, byte fallback, fuse)", None)
            )
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = frozenset(i for i, token in added.items() if token.special)
        self._verbatim = frozenset(added)
        self.size = self._tokenizer.get_vocab_size()

    def bytes(self, token: int) -> bytes:
        """The token's UTF-8 bytes; a special token's are its name's. Unknown ids have none."""
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if token in self._verbatim:
            return piece.encode()
        byte = _BYTE.match(piece)
        return bytes([int(byte[1], 16)]) if byte else piece.replace(_SPACE, " ").encode()


class Decoder:
    """Incremental text of one generation. Special tokens add nothing to it.

    Bytes that can never become a character turn into U+FFFD; bytes that still can are held back,
    and dropped when the generation ends before they do.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The characters that this token completes, often ''."""
        if token in self._pieces.special:
            return ""
        return self._utf8.decode(self._pieces.bytes(token))


class Stops:
    """Cuts text before the first stop string, which may arrive in any number of parts."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """(text that is safe to show, whether a stop string was met). After True nothing follows."""
        if not self.stops:
            return text, False
        held = self._held + text
        hits = [at for at in (held.find(stop) for stop in self.stops) if at >= 0]
        if hits:
            self._held = ""
            return held[: min(hits)], True
        keep = max(_overlap(held, stop) for stop in self.stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], False

    def flush(self) -> str:
        """What was held back, when the generation ends without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
