"""The words that the lint's rules go by: what rubrics say that a response does, and how they say it.

In: nothing. Out: sets of words in lower case. Verbs are in their base form; `VERB_FORMS` maps "states", "state" and
"stating" to "state".
"""

from __future__ import annotations

import re


def words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What a response does, by the dimension that it speaks for. "Clear" ones decide, the others only lean.
SEES = words_of("read see spot notice observe locate trace extract perceive detect")
MAY_SEE = words_of(
    """
    recognise recognize identify describe place find count distinguish match label mark depict view
    """
)
REASONS = words_of(
    """
    compute calculate derive subtract add divide multiply sum solve apply conclude infer deduce justify argue prove
    reason simplify convert substitute eliminate reject exclude double halve triple square integrate differentiate set
    """
)
MAY_REASON = words_of(
    """
    estimate verify check compare rank relate obtain determine evaluate combine explain interpret weigh confirm rule
    contrast link connect
    """
)
STATES = words_of(
    """
    state say mention note give report name point claim list provide include indicate specify acknowledge remark tell
    declare assert cite quote
    """
)
ANSWERS = words_of("answer select choose pick respond reply")
CONCLUDES = words_of(
    """
    conclude answer determine decide infer arrive obtain compute calculate derive reach return
    """
)
FORMATS = words_of("format begin start end round spell keep limit restrict present express phrase write")
ADVISES = words_of("advise recommend suggest propose encourage discourage warn urge")
OTHERS = words_of(
    """
    use take make draw plot show demonstrate discuss refer support treat arrive return sketch highlight outline
    summarise summarize clarify define emphasise emphasize introduce address reach offer assume ask cover illustrate
    consider measure analyse analyze examine display sort order communicate convey understand know look pay follow
    capture work produce construct decide stay join exhibit reflect possess mind
    """
)
VERBS = SEES | MAY_SEE | REASONS | MAY_REASON | STATES | ANSWERS | FORMATS | ADVISES | OTHERS
# Their -s forms are plural nouns as well ("lines and marks"): they count as verbs only before an object.
ALSO_NOUNS = words_of(
    """
    state name note mark list label place count sum report answer point match square rank use trace set spot start end
    limit estimate link plot draw show check claim contrast cover order measure sort view format round cite present find
    read reason rule work display address offer ask look support
    """
)
RELATES = words_of(
    """
    compare add subtract sum combine distinguish multiply divide relate contrast link connect match average
    """
)

FINITE = words_of(
    """
    is are was were has have had does do did can will would should must may equals contains lies stands holds carries
    wears rises falls grows increases decreases leans sits crosses belongs represents means comes goes becomes remains
    stays shows starts ends begins points exceeds drops reaches makes gives takes needs hangs runs joins flows passes
    turns leads connects covers faces touches meets matches agrees
    """
)
SUBORDINATORS = words_of("because since if when whenever although unless once so between both given either")

# How rubrics say that something was done well, without saying what. The first kind can't be checked even with one
# object.
VAGUE = words_of(
    """
    good well solid deep strong nice nicely effective effectively intuitive intuitively thorough thoroughly insightful
    coherent coherently convincing convincingly appropriate appropriately proper properly helpful helpfully useful
    usefully professional professionally empathetic supportive polite caring clear clearly logical logically easy easily
    sound rigorous excellent great high quality reasonable reasonably sensible adequate adequately sufficient
    sufficiently comprehensive comprehensively detailed relevant meaningful engaging informative organised organized
    careful carefully carefulness skilful skillful friendly pleasant warm kind respectful smart precise precisely
    concise concisely understandable readable valuable suitable suitably impressive natural naturally fluent fluently
    structured satisfactory
    """
)
# Said to be shown, these are praise too.
VIRTUES = words_of(
    """
    understanding knowledge comprehension insight insights awareness skill skills expertise competence mastery
    proficiency care empathy ability
    """
)
CORRECT = words_of("correct correctly accurate accurately rightly complete completely true valid")
# Nouns and the like of any response, any picture and any task: with nothing else there is no fact to check.
GENERIC = words_of(
    """
    response responses answer answers reasoning thinking explanation explanations solution solutions image images chart
    graph figure picture photo photograph scene document table diagram plot question problem task user reader patient
    information details detail context content description analysis interpretation tone language wording terminology
    terms style knowledge understanding insight insights comprehension method methods approach step steps instruction
    instructions way manner attention visual visually data conclusion argument presentation evidence process logic
    mathematical throughout overall model awareness skill skills work everything important key main deal element
    elements follow follows meets requirement requirements given provided final consistent consistently result results
    required needed ability value values number numbers object objects feature features part parts principle principles
    recommendation recommendations suggestion suggestions advice written shown made found seen said done concept
    concepts theory theories fact facts formula formulas equation equations calculation calculations topic issue
    """
)
FUNCTION = words_of(
    """
    a an the of in on at to for from by with as and or that this these those it its their there is are was were be been
    being has have had do does did will would should must may can could about into than then so such very also both what
    which who whom whose how why when where whether all any some each every no not nor but while during if because since
    through across along around upon onto off again always here they them he she his her one's own more most much many
    only just out up down over under per via
    """
)
_COUNTING = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty
"""
NUMBER_WORDS = {word: str(number) for number, word in enumerate(_COUNTING.split())}
_IRREGULAR = """
    fell/fall fallen/fall rose/rise risen/rise hidden/hide held/hold sold/sell stood/stand drawn/draw drew/draw
    grew/grow grown/grow ran/run went/go gone/go became/become began/begin begun/begin written/write wrote/write
    taken/take took/take given/give gave/give seen/see saw/see shown/show made/make found/find built/build lit/light
    lay/lie worn/wear wore/wear
"""
IRREGULAR: dict[str, str] = {form: verb for form, _, verb in (pair.partition("/") for pair in _IRREGULAR.split())}
UNITS = words_of(
    """
    degree degrees ° % percent cm m mm km metre metres meter meters kg g gram grams second seconds s minute minutes hour
    hours ml l litre litres liter liters dollar dollars euro euros $ € £ unit units v a ampere amperes volt volts
    """
)
# Two criteria that differ in one of these say different things, however alike they read.
OPPOSED = words_of(
    """
    red blue green yellow orange purple black white grey gray brown pink top bottom left right upper lower middle above
    below first second third last next previous not no never avoid highest lowest largest smallest higher more less
    greater fewer larger smaller increase decrease rise fall positive negative minimum maximum horizontal vertical
    before after inside outside north south east west x y true false yes male female without fail front back start end
    """
)
# Function words that make a difference nevertheless ("goes down", "explains why").
DECISIVE = words_of("not no nor none down over under off only most more some his her how why when where who if")
ORDERED = re.compile(
    r"\b(?:than|over|from|minus|exceeds?|before|after|above|below|beneath|under|behind|in front|into|inside|"
    r"(?:left|right|north|south|east|west) of)\b",
    re.IGNORECASE,
)
SYNONYMS = {
    form: words[0]
    for words in map(
        str.split,
        (
            "show demonstrate prove illustrate",
            "cm centimetre centimeter",
            "mm millimetre millimeter",
            "km kilometre kilometer",
            "metre meter m",
            "kg kilogram",
            "gram g",
            "millilitre ml milliliter",
            "percent %",
            "degree °",
            "colour color",
            "confuse mix conflate",
            "apply use employ utilise utilize",
            "compute calculate determine evaluate work",
            "label headed head marked titled entitled labelled labeled",
            "large larger largest big bigger biggest",
            "high higher highest tall taller tallest",
            "because since as",
            "make form constitute",
            "recognise recognize",
            "picture image photo photograph figure",
            "roughly about approximately around",
        ),
    )
    for form in words
}

# Pitfalls: texts that name a failure, and those that name its absence.
FAILS = words_of(
    """
    fail forget omit neglect ignore overlook misread mistake confuse mix swap miscount mislabel misinterpret miss lack
    invent hallucinate misidentify misstate misjudge misapply misuse misunderstand fabricate conflate disregard
    """
)
SURELY_FAILS = FAILS - words_of("omit neglect ignore overlook miss lack forget swap mix")
FAILING = words_of(
    """
    incorrectly wrongly mistakenly erroneously falsely inaccurately wrong improperly unjustifiably
    """
)
SUCCEEDING = words_of("correctly accurately properly appropriately successfully rightly")


def third_person(verb: str) -> str:
    if verb.endswith(("s", "x", "z", "ch", "sh", "ss")):
        return verb + "es"
    return verb[:-1] + "ies" if verb.endswith("y") and verb[-2] not in "aeou" else verb + "s"


def gerund(verb: str) -> str:
    return verb[:-1] + "ing" if verb.endswith("e") and not verb.endswith("ee") else verb + "ing"


VERB_FORMS = {form: verb for verb in (VERBS | FAILS) for form in (verb, third_person(verb), gerund(verb))}
