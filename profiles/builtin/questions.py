"""Short questions in English, of the kind that people type into a chat."""

from profiles.builtin.draws import Draw

_PAIRS = (
    ("a heat pump", "an air conditioner"),
    ("espresso", "filter coffee"),
    ("a fixed-rate loan", "a variable-rate loan"),
    ("a comet", "an asteroid"),
    ("baking soda", "baking powder"),
    ("an alligator", "a crocodile"),
    ("a violin", "a viola"),
    ("weather", "climate"),
    ("a virus", "a bacterium"),
    ("mean", "median"),
    ("a mutex", "a semaphore"),
    ("TCP", "UDP"),
    ("jam", "marmalade"),
    ("a hurricane", "a tornado"),
    ("a shared lease", "a sublet"),
    ("gross pay", "net pay"),
    ("plaster", "drywall"),
    ("a road bike", "a gravel bike"),
    ("cane sugar", "honey"),
    ("a patent", "a copyright"),
    ("stainless steel", "cast iron"),
    ("a stack", "a queue"),
)
_THINGS = (
    *("a bicycle freewheel", "a thermostat", "a septic tank", "a sundial", "a hydraulic jack", "a pressure cooker"),
    *("a canal lock", "a barcode scanner", "a smoke detector", "a sewing machine", "a water turbine", "a zip fastener"),
    *("noise-cancelling headphones", "an induction hob", "a tide table", "a credit score", "a torque wrench"),
    *("a microwave oven", "a solar panel", "a combination lock", "a fuel gauge", "a refrigerator"),
)
_PUZZLES = (
    *("the sky turns red at sunset", "bread goes stale faster in the fridge", "onions make people cry"),
    *("ice floats on water", "leaves change colour in autumn", "cats land on their feet", "the sea is salty"),
    *("tyres lose pressure in cold weather", "a mirror swaps left and right", "popcorn pops", "metal feels cold"),
    *("salt keeps roads free of ice", "planes leave white trails", "old books smell the way they do"),
    *("echoes are stronger in empty rooms", "the moon shows us only one side", "rubber bands snap when they are old"),
)
_ACTIVITIES = (
    *("keeping houseplants alive while travelling", "learning the names of new colleagues", "packing a small suitcase"),
    *("saving water in an old house", "preparing a first job interview", "sharpening kitchen knives"),
    *("cycling to work in winter", "reading more books in a year", "storing potatoes over the winter"),
    *("taking better photos indoors", "keeping a shared kitchen tidy", "sleeping well on a night train"),
    *("teaching a child to swim", "growing tomatoes on a balcony", "cleaning a cast-iron pan"),
    *("running a short weekly meeting", "repairing a scratched table", "choosing a second-hand laptop"),
)
_STEPS = (
    *("signing a rental contract", "buying a used car", "moving a piano", "painting a bathroom", "adopting a dog"),
    *("booking a mountain hut", "replacing a light switch", "sending a parcel abroad", "planting a fruit tree"),
    *("updating a server", "lending money to a friend", "hiring a builder", "starting a long hike alone"),
    *("changing a bicycle chain", "giving a speech at a wedding", "renting out a spare room"),
)
_FORMS = (
    "What is the difference between {first} and {second}, and when does it matter in practice?",
    "How does {first} differ from {second}? Answer in {few} sentences, with one everyday example.",
    "Explain how {thing} works to a curious twelve-year-old, in about {few} sentences.",
    "I have never understood how {thing} works. Can you walk me through it step by step?",
    "Why is it that {puzzle}? Give the main reason first, then {few} details.",
    "My niece asked me why {puzzle}. What would be a correct answer that is not too long?",
    "Give me {few} practical tips for {activity}, one line each, the most useful first.",
    "What are the usual mistakes people make when {activity}, and how do I avoid them?",
    "What should I check before {step}? Please list no more than {few} points.",
    "A friend is thinking about {step}. Which {few} questions should she ask first?",
)


def ask(draw: Draw, chars: int) -> str:
    """A question of about so many characters: of eight drawn, the one that comes nearest."""
    return min((_ask(draw) for _ in range(8)), key=lambda text: abs(len(text) - chars))


def _ask(draw: Draw) -> str:
    first, second = draw.some(draw.one(_PAIRS), 2)
    return draw.one(_FORMS).format(
        first=first,
        second=second,
        thing=draw.one(_THINGS),
        puzzle=draw.one(_PUZZLES),
        activity=draw.one(_ACTIVITIES),
        step=draw.one(_STEPS),
        few=draw.one(("three", "four", "five", "six")),
    )
