"""How a line typed into `godwit shell` is read: words parted by blanks, quotes around names that contain some."""

from __future__ import annotations

from godwit.errors import UsageError

QUOTES = "\"'"


def first_word(line: str) -> tuple[str, str]:
    """The first word without its quotes, and the rest behind the blanks that follow it.

    UsageError for a quote that is not closed.
    """
    line = line.lstrip()
    if line[:1] and line[0] in QUOTES:
        end = line.find(line[0], 1)
        if end < 0:
            raise UsageError(f"the quote {line[0]} is not closed; add one at the end of the name")
        return line[1:end], line[end + 1 :].lstrip()
    word, _, rest = line.partition(" ")
    return word, rest.lstrip()


def words(line: str) -> list[str]:
    """All words of a line."""
    found = []
    rest = line.strip()
    while rest:
        word, rest = first_word(rest)
        found.append(word)
    return found


def topic_and_message(line: str) -> tuple[str, str]:
    """A name, then a text that reaches to the end of the line as it was typed.

    Quotes around the whole text are taken off: `pub a "two words"`. Others stay: `pub a {"celsius": 21.5}`.
    """
    topic, text = first_word(line)
    text = text.rstrip()
    if len(text) >= 2 and text[0] in QUOTES and text.find(text[0], 1) == len(text) - 1:
        text = text[1:-1]
    return topic, text


def quoted(name: str) -> str:
    """A name as it has to be typed."""
    if name and not any(character.isspace() or character in QUOTES for character in name):
        return name
    quote = "'" if '"' in name else '"'
    return f"{quote}{name}{quote}"
