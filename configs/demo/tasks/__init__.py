"""The tasks of the demo checkpoint: each draws examples of itself, some of which are held out."""

from collections.abc import Callable
from random import Random

from tasks.example import Example
from tasks.facts import capitals, days, enumerations, months, scripts, small_talk, squadron, unknown
from tasks.json_texts import extraction, listing, objects
from tasks.numbers import addition, comparison, counting, multiplication, subtraction
from tasks.tools import calling, not_calling, relaying
from tasks.turns import following_up, remembering
from tasks.words import echoing, letters, repeating, reversing, spelling, uppercasing, word_length

# Each task with its shares of the examples of the five training cycles: the second gives more to
# what is hard, the others to tools and extraction. Relaying begins with the calls of calling.
TASKS: dict[str, tuple[int, int, int, int, int, Callable[[Random], Example]]] = {
    "addition": (12, 10, 8, 8, 10, addition),
    "subtraction": (12, 12, 12, 16, 16, subtraction),
    "multiplication": (4, 5, 4, 4, 4, multiplication),
    "comparison": (3, 10, 5, 6, 12, comparison),
    "counting": (4, 14, 9, 14, 14, counting),
    "spelling": (5, 2, 2, 3, 2, spelling),
    "reversing": (8, 4, 4, 3, 4, reversing),
    "uppercasing": (4, 2, 2, 2, 2, uppercasing),
    "letters": (4, 2, 2, 2, 3, letters),
    "word_length": (5, 2, 2, 2, 2, word_length),
    "repeating": (4, 10, 9, 16, 26, repeating),
    "echoing": (4, 10, 4, 14, 14, echoing),
    "listing": (3, 8, 3, 4, 3, listing),
    "objects": (4, 3, 2, 3, 3, objects),
    "days": (5, 8, 4, 4, 8, days),
    "months": (6, 10, 5, 12, 10, months),
    "squadron": (5, 3, 3, 3, 2, squadron),
    "enumerations": (3, 2, 2, 2, 2, enumerations),
    "capitals": (3, 2, 2, 3, 6, capitals),
    "scripts": (5, 3, 3, 3, 2, scripts),
    "small_talk": (2, 2, 2, 3, 4, small_talk),
    "unknown": (2, 2, 2, 2, 2, unknown),
    "remembering": (4, 3, 3, 3, 3, remembering),
    "following_up": (5, 6, 4, 4, 4, following_up),
    "calling": (0, 0, 24, 0, 0, calling),
    "relaying": (0, 0, 10, 14, 12, relaying),
    "not_calling": (0, 0, 10, 12, 10, not_calling),
    "extraction": (0, 0, 12, 9, 6, extraction),
}
