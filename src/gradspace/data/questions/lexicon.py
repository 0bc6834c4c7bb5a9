"""Names and things of the built-in dataset `questions`; words are drawn from these tuples."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words(
    """
    Ada Alba Aron Bela Bruno Calla Casimir Cora Dario Della Edda Egon Elin Emil Fabia
    Felix Finn Flora Gesa Gideon Greta Hanno Hedda Hugo Ida Ilka Ivo Jana Jaro Jonna Juno
    Kaspar Kira Lasse Leda Linus Lotta Luca Mara Matteo Mila Milo Nadia Nils Nora Odo Olga
    Orla Otis Paula Pavel Petra Quirin Rosa Ruben Selma Silas Tilda Timo Ulla Vera Viktor
    Wanda Yaro
    """
)

LAST_NAMES = _words(
    """
    Abend Acker Amsel Anger Bach Berg Birk Borg Brandt Busch Corvin Dahl Distel Dorn Eber
    Ebner Erle Falk Farn Fels Fink Forst Frost Gerster Glas Grund Hafer Hain Halm Heller
    Herbst Holt Jansen Kern Kiesel Klee Korn Kranich Lerch Linde Lorenz Marder Marsch Mohn
    Moor Nagel Nebel Otter Pappel Quell Rabe Raune Riedel Rohr Sander Sommer Stark Tann
    Thal Ulm Vogt Weber Winter Zander
    """
)

TOWNS = _words(
    """
    Ardenbrook Birkenau Brackwater Castlemoor Dunhaven Eastmere Fernhill Glimmerford
    Greyport Hollowdale Ironbridge Juniper Kestrel Larkspur Lindenau Marrowfield Northgate
    Oakhollow Pinecrest Quarryton Ravensend Saltmarsh Silverlake Stonebeck Thornbury
    Underhill Velden Westerhall Willowmere Yarrow
    """
)

JOBS = _words(
    """
    actor baker barber beekeeper brewer carpenter cobbler diver doctor farmer ferryman
    florist gardener glazier judge librarian miller nurse pilot plumber potter surgeon
    tailor teacher translator weaver
    """
)

COLOURS = _words("black blue brown golden green grey orange red spotted white")

ANIMALS = _words(
    """
    canary cat donkey duck falcon ferret goat goose hamster hedgehog lizard parrot pony
    rabbit tortoise turtle
    """
)

MATERIALS = _words("brass copper glass leather paper silver stone wooden")

THINGS = _words(
    """
    basket bell bowl box chair clock compass globe kite lamp ladder mirror necklace puppet
    telescope vase
    """
)

MONTHS = _words(
    """
    January February March April May June July August September October November December
    """
)

INSTRUMENTS = _words(
    """
    accordion banjo bassoon cello clarinet drum fiddle flute harp horn lute oboe piano
    trumpet tuba viola
    """
)

DISHES = _words(
    """
    borscht curry dumplings fritters goulash lasagne noodles omelettes paella pancakes pie
    ravioli risotto soup stew tacos
    """
)
