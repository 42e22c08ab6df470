"""What passages are about: kinds of things, what can be said of them, and how it is asked."""

from dataclasses import dataclass, field

PEOPLE = (
    "Agnes Bruno Clara Dénes Elsa Fabian Greta Henrik Ilona Jonas Linus Marta Niels Olga Pavel Rita Simon".split(),
    "Almási Brandt Carlsen Dahl Egri Fischer Grove Haas Ivers Jensen Kovács Lund Maier Novak Olsen Petrov Soós".split(),
)


@dataclass(frozen=True, slots=True)
class Attribute:
    """One thing that can be told of a subject. Its value is one of `choices`, or a number, or else a person.

    In a sentence {it} stands for the subject and {value} for the value.
    """

    question: str
    sentences: tuple[str, ...]
    low: int = 0
    high: int = 0
    unit: str = ""
    choices: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Subject:
    """A kind of thing, with the words that a passage about one is made of."""

    name: str
    chapter: str
    pronouns: tuple[str, ...]
    openings: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    asides: tuple[str, ...]


def _built(what: str, low: int, high: int) -> Attribute:
    return Attribute(
        f"In which year was {{name}} {what}?",
        (f"{{it}} was {what} in {{value}}", f"it is known that {{it}} was {what} in the year {{value}}"),
        low,
        high,
    )


def _number(question: str, low: int, high: int, unit: str, *sentences: str) -> Attribute:
    return Attribute(question, sentences, low, high, unit)


def _person(question: str, *sentences: str) -> Attribute:
    return Attribute(question, sentences)


def _choice(question: str, choices: str, *sentences: str) -> Attribute:
    return Attribute(question, sentences, choices=tuple(choices.split(" | ")))


SUBJECTS: tuple[Subject, ...] = (
    Subject(
        "the pumping station at {place}",
        "Water supply",
        ("the station", "it", "this station"),
        (
            "The pumping station at {place} lifts water from the river to the high reservoir.",
            "Water for the upper quarters of {place} comes through its pumping station.",
            "Since the wells ran dry, {place} has depended on its pumping station.",
        ),
        (
            _built("commissioned", 1901, 1998),
            _number(
                "How much water does {name} lift in an hour?",
                120,
                980,
                "cubic metres per hour",
                "{it} lifts {value} when all pumps run",
                "on a full load {it} moves {value}",
            ),
            _person(
                "Who is the keeper of {name}?",
                "the keeper of {it} is {value}, who lives next door",
                "{value} has looked after {it} for many years",
            ),
            _choice(
                "Which fuel do the emergency engines of {name} burn?",
                "diesel oil | natural gas | rapeseed oil | petrol",
                "its emergency engines burn {value}",
                "when the mains fail, engines that burn {value} take over",
            ),
            _number(
                "How high does {name} lift the water?",
                18,
                210,
                "metres",
                "the water is lifted by {value} before it reaches the tank",
                "{it} overcomes a height of {value}",
            ),
            _choice(
                "What is inspected first at {name} after a storm?",
                "the intake screen | the float switch | the main fuse | the access road",
                "after a storm {value} is inspected first",
                "the first thing that is checked after bad weather is {value}",
            ),
            _number(
                "How often are the seals of {name} replaced?",
                4,
                30,
                "months",
                "its seals are replaced every {value}",
                "a set of seals lasts {value} on average",
            ),
            _choice(
                "What colour are the doors of {name}?",
                "dark green | signal red | pale blue | ochre",
                "its doors are painted {value}",
                "visitors know {it} by its doors, which are {value}",
            ),
        ),
        (
            "A visitor's book in the hall goes back to {year}.",
            "In {year} the roof was lifted off in a gale and laid on again within a week.",
            "{person} wrote a short history of the works, of which the town library holds a copy.",
        ),
    ),
    Subject(
        "the {place} ferry",
        "Ferries and crossings",
        ("the ferry", "the boat", "it"),
        (
            "The {place} ferry crosses the estuary from the old quay to the station pier.",
            "Nobody in {place} uses the bridge if the ferry runs.",
            "The shortest way to the islands is the {place} ferry.",
        ),
        (
            _built("launched", 1948, 2016),
            _number(
                "How many cars can {name} carry?",
                6,
                64,
                "cars",
                "{it} has room for {value} on one deck",
                "with the ramp up, {value} fit on board",
            ),
            _number(
                "How long does a crossing with {name} take?",
                7,
                95,
                "minutes",
                "a crossing takes {value} in calm weather",
                "{it} needs {value} from pier to pier",
            ),
            _person(
                "Who is the captain of {name}?",
                "{value} has been her captain since the last refit",
                "the captain of {it} is {value}",
            ),
            _choice(
                "On which day does {name} not run?",
                "Monday | Tuesday | Wednesday | Thursday",
                "there is no service on {value}, when the engine is looked over",
                "{it} lies at the quay every {value}",
            ),
            _number(
                "What does a single ticket for {name} cost?",
                2,
                19,
                "crowns",
                "a single ticket costs {value}",
                "passengers pay {value} for one way",
            ),
            _choice(
                "What drives {name}?",
                "two diesel engines | an electric motor | a steam engine | a cable on the river bed",
                "{it} is driven by {value}",
                "unlike her sister ship, {it} runs on {value}",
            ),
            _number(
                "From which wind speed on does {name} stay in port?",
                12,
                29,
                "metres per second",
                "from a wind of {value} on {it} stays in port",
                "the harbour office stops {it} at {value}",
            ),
        ),
        (
            "The café on board sells a bun that is baked after a recipe of {year}.",
            "{person} painted the coat of arms on the funnel.",
            "In the winter of {year} she broke the ice for the whole harbour.",
        ),
    ),
    Subject(
        "the observatory on {place} Hill",
        "Observatories and weather stations",
        ("the observatory", "it", "the dome"),
        (
            "The observatory on {place} Hill was set up far from the lights of the coast.",
            "On clear nights the dome on {place} Hill can be seen from the valley.",
            "Weather and stars are both recorded on {place} Hill.",
        ),
        (
            _built("founded", 1869, 1987),
            _number(
                "What is the diameter of the main mirror of {name}?",
                40,
                260,
                "centimetres",
                "its main mirror measures {value} across",
                "{it} houses a mirror with a diameter of {value}",
            ),
            _person(
                "Who directs {name}?", "{value} directs {it} and teaches at the college", "the director is {value}"
            ),
            _number(
                "How many clear nights does {name} count in a year?",
                70,
                240,
                "nights",
                "{it} counts {value} with a clear sky in an average year",
                "on {value} a year the sky is clear enough",
            ),
            _choice(
                "What does {name} mainly observe?",
                "variable stars | small planets | the sun's corona | double stars",
                "the main programme is devoted to {value}",
                "what {it} observes most of the time is {value}",
            ),
            _number(
                "At which height above the sea does {name} stand?",
                310,
                2_900,
                "metres",
                "{it} stands {value} above the sea",
                "at {value} above sea level the air is dry",
            ),
            _choice(
                "In which material is the dome of {name} clad?",
                "copper | aluminium | zinc | larch shingles",
                "the dome is clad in {value}",
                "{value} covers the dome and keeps out the heat",
            ),
            _number(
                "How many plates are in the archive of {name}?",
                1_200,
                48_000,
                "plates",
                "the archive in the cellar holds {value}",
                "{it} owns {value}, half of which have been scanned",
            ),
        ),
        (
            "A comet was found here in {year} by a cleaner who looked through the finder.",
            "{person} left the house next door to the society.",
            "The road to the top was only paved in {year}.",
        ),
    ),
    Subject(
        "the {place} loom",
        "Museum holdings",
        ("the loom", "the piece", "it"),
        (
            "The {place} loom came to the museum in eleven crates.",
            "Among the textile machines the {place} loom is the one that still works.",
            "Visitors who ask for the {place} loom are led to the second floor.",
        ),
        (
            _built("assembled", 1788, 1903),
            _choice(
                "Of which wood is the frame of {name} made?",
                "ash | oak | pear wood | beech | walnut",
                "its frame is made of {value}",
                "{value} was chosen for the frame because it hardly warps",
            ),
            _number(
                "How wide is the cloth that {name} weaves?",
                42,
                190,
                "centimetres",
                "it weaves cloth {value} wide",
                "the cloth that comes off {it} is {value} wide",
            ),
            _person("Who gave {name} to the museum?", "{it} was a gift of {value}", "the museum owes {it} to {value}"),
            _number(
                "Under which number is {name} in the inventory?",
                1_040,
                98_900,
                "in the inventory",
                "{it} is number {value}",
                "the label says that {it} is number {value}",
            ),
            _choice(
                "When is {name} shown in motion?",
                "on the first Sunday of a month | every Saturday at eleven | "
                "on open days only | on Wednesdays in summer",
                "{it} is shown in motion {value}",
                "it is set going {value}",
            ),
            _choice(
                "Which part of {name} is not original?",
                "the warp beam | the left treadle | the shuttle box | the cloth roller",
                "only {value} is a later addition",
                "{value} was replaced when a boy leaned on it",
            ),
            _number(
                "For how much is {name} insured?",
                9_000,
                240_000,
                "crowns",
                "it is insured for {value}",
                "the insurers value {it} at {value}",
            ),
        ),
        (
            "A photograph of {year} shows it in a barn with hens on the beam.",
            "{person} restored the harness by the pattern of a fragment.",
            "School classes may weave a hand's breadth on it, a custom since {year}.",
        ),
    ),
    Subject(
        "the {place} orchard",
        "Orchards and seed gardens",
        ("the orchard", "it", "the estate"),
        (
            "The {place} orchard lies on a slope that is free of late frost.",
            "Old varieties of pear and apple are kept alive in the {place} orchard.",
            "Grafts from the {place} orchard are sent to four countries.",
        ),
        (
            _built("planted", 1822, 1979),
            _number(
                "How many varieties grow in {name}?",
                24,
                640,
                "varieties",
                "{value} are on its list",
                "{it} keeps {value}, two trees of each",
            ),
            _person(
                "Who prunes the old trees of {name}?",
                "the old trees are pruned by {value} alone",
                "{value} prunes the oldest rows by hand",
            ),
            _choice(
                "What does the soil of {name} consist of?",
                "loess | red clay | river gravel | weathered slate",
                "the soil consists of {value}",
                "{it} stands on {value}, which drains well",
            ),
            _number(
                "How much fruit did {name} yield last year?",
                8,
                310,
                "tonnes",
                "last year's yield was {value}",
                "in the last season {it} brought in {value}",
            ),
            _choice(
                "Which pest has troubled {name} most?",
                "the codling moth | woolly aphids | canker | the pear sucker",
                "what has troubled {it} most is {value}",
                "among the pests {value} did the greatest harm",
            ),
            _number(
                "How many beehives stand in {name}?",
                6,
                90,
                "hives",
                "{value} stand along its southern edge",
                "for pollination {it} keeps {value}",
            ),
            _choice(
                "To whom is most of the fruit of {name} sold?",
                "a cider press | the weekly market | a baby-food maker | schools",
                "most of the fruit goes to {value}",
                "its largest customer is {value}",
            ),
        ),
        (
            "The wall on the north side was finished in {year}.",
            "{person} drew every variety in watercolour.",
            "The great hail of {year} left scars that can still be seen on the trunks.",
        ),
    ),
    Subject(
        "the {place} viaduct",
        "Bridges and railways",
        ("the viaduct", "it", "the structure"),
        (
            "The {place} viaduct carries the branch line over the gorge.",
            "Trains slow down on the {place} viaduct, not for the view but for its bearings.",
            "Before the {place} viaduct was there, goods were let down by rope.",
        ),
        (
            _built("opened", 1846, 1931),
            _number(
                "How long is {name}?", 74, 940, "metres", "{it} is {value} long", "from end to end it measures {value}"
            ),
            _number(
                "How many arches has {name}?",
                5,
                31,
                "arches",
                "{it} rests on {value}",
                "{value} carry the track, no two of the same span",
            ),
            _person(
                "Who designed {name}?", "its plans are signed by {value}", "{value} designed {it} at the age of thirty"
            ),
            _choice(
                "Of what is {name} built?",
                "sandstone | granite | wrought iron | red brick | concrete blocks",
                "{it} is built of {value}",
                "the builders chose {value} for it",
            ),
            _number(
                "How fast may trains run on {name}?",
                15,
                80,
                "kilometres per hour",
                "trains may run at {value}",
                "the limit on {it} is {value}",
            ),
            _number(
                "How many trains cross {name} in a day?",
                4,
                96,
                "trains",
                "{value} cross it on a working day",
                "{it} is crossed by {value} a day",
            ),
            _choice(
                "Which animal nests under {name}?",
                "the kestrel | the jackdaw | the dipper | the barn owl",
                "{value} nests in the holes of the scaffolding",
                "under the arches lives {value}",
            ),
        ),
        (
            "One pier was blown up in {year} and rebuilt from the same stones.",
            "{person} walked across on the parapet for a bet.",
            "A plaque of {year} names all who worked on it.",
        ),
    ),
)
