"""Scenes: groups of equal objects on a backdrop, and the relations between the groups.

Coordinates run from 0 to 1, x to the right and y downwards, whatever the image size.
"""

from dataclasses import dataclass

SHAPES = ("ball", "cube", "cone", "star", "ring", "cylinder", "heart", "diamond")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "white")
SIZES = ("small", "large")
PATTERNS = ("plain", "striped", "dotted", "checkered", "shiny")
COUNTS = (1, 2, 3, 4)
INDOORS = ("table", "rug", "tiles")
OUTDOORS = ("grass", "snow", "sand", "water", "night")
BACKDROPS = INDOORS + OUTDOORS

ACTIONS = (
    "leaning_against",
    "stacked_on",
    "balancing_on",
    "hanging_from",
    "chasing",
    "pushing",
    "orbiting",
    "shining_on",
)
# Relations implied by actions, in the same direction: "on top of" by either of two.
ON_TOP_OF = ("stacked_on", "balancing_on")
TOUCHING = ("leaning_against", "stacked_on", "balancing_on", "pushing")
RELATIONS = (*ACTIONS, "on_top_of", "touching", "left_of", "above", "next_to")

MAX_GROUPS = 4
APART = 0.15
"""Least distance of centres for left of or above, and the largest that next to allows."""

Point = tuple[float, float]
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class SceneGroup:
    """One to four equal objects; `positions` are their centres and `radius` is half their size."""

    shape: str
    colour: str
    size: str
    pattern: str
    positions: tuple[Point, ...]
    radius: float

    @property
    def count(self) -> int:
        return len(self.positions)

    @property
    def centre(self) -> Point:
        xs, ys = zip(*self.positions, strict=True)
        return sum(xs) / len(xs), sum(ys) / len(ys)

    @property
    def box(self) -> Box:
        """Left, top, right and bottom of the box around all objects."""
        xs, ys = zip(*self.positions, strict=True)
        r = self.radius
        return min(xs) - r, min(ys) - r, max(xs) + r, max(ys) + r


@dataclass(frozen=True)
class Action:
    """The group at index `subject` does `name` to the group at index `target`."""

    name: str
    subject: int
    target: int


@dataclass(frozen=True)
class Scene:
    """Up to four groups of different shapes, which makes "two balls" unambiguous."""

    backdrop: str
    groups: tuple[SceneGroup, ...]
    actions: tuple[Action, ...]


def related(scene: Scene, name: str, first: int, second: int) -> bool:
    """Whether relation `name` holds from group `first` to group `second`.

    - an action holds if the scene has it, in that direction;
    - `on_top_of` holds for `stacked_on` and `balancing_on`;
    - `touching` holds, in both directions, for the actions with contact;
    - `left_of` and `above` compare the groups' centres, which must be APART on that axis;
    - `next_to` (both directions) requires centres at most APART in height and a horizontal gap
      between the boxes of at most APART.
    """
    one, other = scene.groups[first], scene.groups[second]
    dx, dy = other.centre[0] - one.centre[0], other.centre[1] - one.centre[1]
    if name == "left_of":
        return dx >= APART
    if name == "above":
        return dy >= APART
    if name == "next_to":
        gap = max(one.box[0], other.box[0]) - min(one.box[2], other.box[2])
        return abs(dy) <= APART and gap <= APART
    forward = {a.name for a in scene.actions if (a.subject, a.target) == (first, second)}
    backward = {a.name for a in scene.actions if (a.subject, a.target) == (second, first)}
    if name == "on_top_of":
        return not forward.isdisjoint(ON_TOP_OF)
    if name == "touching":
        return not (forward | backward).isdisjoint(TOUCHING)
    return name in forward
