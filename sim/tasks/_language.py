"""The language of `tabletop`: what can be done with what, in which words, and what is held out."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal

from sim.core import layout

Split = Literal["train", "held_out", "all"]
"""What instructions are drawn from: those of training, those held out of it, or both."""

COLOURS = tuple(layout.COLOURS)
SHAPES = ("cube", "can")
NOUNS = {"cube": ("cube", "block"), "can": ("can", "cylinder")}
KINDS = tuple(itertools.product(COLOURS, SHAPES))
"""Colour and shape of everything that an instruction can name."""

WORDINGS = {
    "touch": (
        "touch the {}", "tap the {}", "put your finger on the {}", "reach out and tap the {}",
    ),
    "lift": (
        "lift the {}", "pick up the {}", "raise the {} off the table", "take the {} and hold it up",
    ),
    "left": (
        "put the {} into the left tray", "place the {} on the tray to the left",
        "move the {} to the left tray and let go", "drop the {} in the tray on the left",
    ),
    "right": (
        "put the {} into the right tray", "place the {} on the tray to the right",
        "move the {} to the right tray and let go", "drop the {} in the tray on the right",
    ),
    "push": (
        "push the {} away", "shove the {} away from you", "slide the {} forward",
        "push the {} forward over the table",
    ),
    "front": (
        "put the {} in front of the {}", "place the {} in front of the {}",
        "set the {} down in front of the {}", "move the {} so that it stands in front of the {}",
    ),
    "behind": (
        "put the {} behind the {}", "place the {} behind the {}",
        "set the {} down behind the {}", "move the {} so that it stands behind the {}",
    ),
}  # fmt: skip
"""Wordings of training, by act; the second noun is the thing of reference."""
HELD_OUT_WORDINGS = {
    "touch": ("reach out and touch the {}", "put your finger out and tap the {}"),
    "lift": ("pick the {} up off the table", "take the {} and raise it"),
    "left": ("take the {} and put it on the left tray", "move the {} into the tray to the left"),
    "right": ("take the {} and put it on the right tray", "move the {} into the tray to the right"),
    "push": ("slide the {} away from you", "shove the {} forward over the table"),
    "front": ("take the {} and set it down in front of the {}", "drop the {} in front of the {}"),
    "behind": ("take the {} and set it down behind the {}", "drop the {} behind the {}"),
}
"""Wordings that training never shows, made of words that it does show."""
ACTS = tuple(WORDINGS)
RELATIONS = ("front", "behind")
"""Acts with a thing of reference."""


@dataclasses.dataclass(frozen=True)
class Goal:
    """Something that can be done in a scene: an act, with one of its things or with two."""

    act: str
    thing: int
    reference: int | None = None


def goals(things: int) -> tuple[Goal, ...]:
    """Return everything that can be done with a number of things: 44 goals with 4 things."""
    single = [Goal(act, thing) for act in ACTS if act not in RELATIONS for thing in range(things)]
    pairs = [
        Goal(act, *pair) for act in RELATIONS for pair in itertools.permutations(range(things), 2)
    ]
    return (*single, *pairs)


def choose(numbers: Sequence[int], shapes: Sequence[str], split: Split) -> tuple[Goal, ...]:
    """Return the goals of these numbers, all if there are none, in a scene of things of shapes.

    Raises:
        ValueError: there is no such goal, or the split has none of them in any colour.
    """
    known = goals(len(shapes))
    if not all(0 <= number < len(known) for number in numbers):
        raise ValueError(f"goals: got {numbers}, expected numbers from 0 to {len(known) - 1}")
    chosen = tuple(known[number] for number in numbers) or known
    kinds = [(goal.act, (colour, shapes[goal.thing])) for goal in chosen for colour in COLOURS]
    if not any(is_allowed(act, kind, split) for act, kind in kinds):
        raise ValueError(
            f"goals: got {numbers}, none of which is in the split {split!r} of the compositions, "
            "whatever the colours; choose others, or compositions all"
        )
    return chosen


def is_held_out(act: str, kind: tuple[str, str]) -> bool:
    """Return whether training never asks for an act with a thing of this colour and shape.

    It is 8 of the 56 combinations of act, colour and shape. Training shows the act with other
    things, and the thing in other acts.
    """
    colour, shape = COLOURS.index(kind[0]), SHAPES.index(kind[1])
    return (ACTS.index(act) + 2 * colour + 3 * shape) % len(ACTS) == 0


def is_allowed(act: str, kind: tuple[str, str], split: Split) -> bool:
    """Return whether a split of the compositions holds an act with a thing."""
    return split == "all" or is_held_out(act, kind) == (split == "held_out")


def wordings(act: str, split: Split) -> tuple[str, ...]:
    """Return the wordings of an act in a split."""
    there = {"train": WORDINGS[act], "held_out": HELD_OUT_WORDINGS[act]}
    return there.get(split, WORDINGS[act] + HELD_OUT_WORDINGS[act])


def instruction(wording: str, number: int, *kinds: tuple[str, str]) -> str:
    """Return a wording with the things filled in; its number decides between synonyms."""
    return wording.format(*(f"{colour} {NOUNS[shape][number % 2]}" for colour, shape in kinds))


def instructions(compositions: Split, wording: Split) -> tuple[str, ...]:
    """Return every instruction of the splits."""
    return tuple(
        instruction(text, number, *kinds)
        for act in ACTS
        for number, text in enumerate(wordings(act, wording))
        for kinds in itertools.permutations(KINDS, 1 + (act in RELATIONS))
        if is_allowed(act, kinds[0], compositions)
    )
