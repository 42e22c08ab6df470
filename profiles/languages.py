"""The language of a text, told from its script and its stop words. Silence beats a guess.

It runs on the recording path, for every request, so it reads 800 characters at most and loops over none of them:

1. The high bytes of UTF-16 tell the script, since Unicode lays scripts out in blocks of 256.
2. A script that one language of this list writes (Greek, Korean, Thai, kana) is an answer, given enough of it.
3. Elsewhere words vote: each stop word for all the languages that have it, several votes added as one number.

`_SILENT` are languages that may win the vote but are never named: without them Danish would be German, and Persian
Arabic.
"""

import re
import unicodedata
from itertools import islice
from typing import Final

_STOP_WORDS: Final[dict[str, str]] = {
    "en": """the of and to in a is that for it as was with be by on not he his but at are this have from or had an they
        which you one we all her she there would their what so if can when who will no how my your please do does i me
        has been than then them these those into about should could where why its were our us""",
    "hu": """a az és hogy nem is egy ez azt van volt meg de csak már vagy mint ha még el fel ki be mi te ő én kérem
        milyen hogyan miért mikor hol kell lehet lesz volna minden más után alatt szerint között ezt ami aki mert majd
        nekem ezek azok melyik amely amelyik pedig illetve legyen vannak arra ahol amikor nagyon szeretném kérlek""",
    "de": """der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an bei aus nach
        wie wir ich sie er oder aber wenn dass daß sind war wird werden einen einem einer eines zum zur noch nur man
        mir mich kann können bitte was sehr über unter dann hat haben diese dieser dieses durch uns vor ob du""",
    "fr": """de la le et les des en un du une que est pour qui dans a par plus pas au sur ne se il elle nous vous
        je ce cette ces son sa ses avec mais ou où sont aux comme si leur être fait tout on très bien votre
        notre mon ma mes peut était été ont quel quelle comment pourquoi
        à cet quand alors donc ici là sans sous entre chaque doit peuvent toute toutes dont lors""",
    "es": """de la que el en y a los del se las por un para con no una su al lo como más pero sus le ya o este sí
        porque esta entre cuando muy sin sobre también me hasta hay donde quien desde nos qué mi es son fue ser está
        están cómo cuál puede tiene todo todos eso yo usted ha favor""",
    "it": """di e il la che in un a per è una sono del non con si da i le lo gli al dei della nel alla come più anche
        ma ci questo questa o se ha delle dal sul degli mi nella quando perché essere cosa chi molto quale quali
        tra sulla ho tutti tutto stato favore suo sua loro ogni prima dopo""",
    "pt": """de a o que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem à seu
        sua ou ser quando muito há nos já está eu também só pelo pela até isso ela entre era depois sem mesmo aos ter
        seus quem nas me esse eles você essa num nem suas meu às minha têm numa pelos isto são qual favor lá
        então ainda fazer outro outra agora deve podem""",
    "nl": """de het een en van in is dat op te met voor zijn niet aan er om ook als die dan maar bij uit nog naar wordt
        deze door over ze hij wij we je ik u of heeft hebben kan kunnen worden was werd waren geen dit wat hoe waarom
        welke zou moet moeten meer tot wel al onze mijn alleen graag alstublieft""",
    "pl": """i w na z do nie się że to o jest jak a po co tak za od ale przez przy dla czy oraz lub ten ta te tego tej
        są był była było być może można już tylko który która które ich jego jej mnie mi proszę bardzo ze we gdy jeśli
        kiedy dlaczego gdzie więcej także bez pod nad między przed jakie jaki""",
    "ru": """и в не на что с как это по но из за для от так же бы если когда или уже только мы вы он она они его её ее
        при чтобы нужно можно очень есть был была было были мне меня который которая которые пожалуйста а к у о до вас
        нас я все какие какой почему где ли""",
    "uk": """і в не на що з як це та але із за для від так же б якщо коли або вже тільки ми ви він вона вони його її
        при щоб потрібно можна дуже є був була було були мені мене який яка які будь ласка у до про чи ні й а я нас
        вас чому де всі""",
    "ar": """في من على إلى أن هذا هذه التي الذي ما لا عن مع كان كانت هل كل أو ثم بعد قبل يجب يمكن ذلك لم قد هو هي كيف
        لماذا متى بين لكن إذا أي حتى عند نحن أنا و لن إن فيه منها""",
    "he": """של את על לא זה זו הוא היא אני כי גם עם או אם כל מה יש אין אבל רק כדי איך למה אנחנו אתם לי היה הייתה יותר
        בין אחרי לפני צריך אפשר בבקשה אשר אל הם לנו מי איפה מתי""",
    "hi": """है हैं का की के में से को और नहीं यह वह कि पर भी तो ही कर था थी थे हो लिए एक इस जो क्या कैसे क्यों ने
        मुझे मैं हम आप उस ये या करें साथ बाद हमें""",
}
_SILENT: Final[dict[str, str]] = {
    "nordic": """og i er det at en den til som av på de ikke med for et har jeg vi kan om du men fra så var eller skal
        och att är som på av inte ett jag det den med hur från vad ska blir af sig hvad hvordan nå nu der blev""",
    "finnish": "ja on ei se että oli hän mutta joka kun niin tai myös ovat sen mitä voi kuin ole jos minä ennen miksi",
    "estonian": "ja on ei see et oli ta aga kui mis kes siis või ka seda oma mida võib pärast enne miks",
    "czech": "a v na se je že to s z do o k i jako ale za by si po ve jsou pro od jak tak který která když nebo už aby "
    "jsem jen být bude pri sa som čo ako alebo keď pre nie proč prosím která které mi jako ktorá ktorý ktoré sú by",
    "croatian": "i u je na se da za od su s a ne to o koji koja koje kao ali iz bi ili što sam biti nije po ako kako "
    "in v ni za ki so z pa bi tudi ali kot kaj zato molim",
    "romanian": "și de la în a că nu pe cu o un pentru este din care se mai să au al ce sunt fi dar sau ale lui prin "
    "după când cum către aceasta acest vă rog",
    "catalan": "de la i el que a en un per amb és les no del una es al els més com però dels si ho les aquest aquesta "
    "són ha va molt quan també quin perquè fins seu",
    "galician": "de a o e que do da en un para é con non unha os se na por máis as dos como pero foi ao das ten ou "
    "tamén está súa seu cando moi polo pola entre este esta só pode dun dunha nun nunha ningún calquera cal quen",
    "albanian": "të e në i për një me nuk që së dhe është nga si do ka janë por ose mund duke ky kjo te",
    "gaelic": "an na a agus is ar le do i go ní nach gun air airson bha tha seo chan am ag don anns mar féidir",
    "welsh": "y yn i ar ac a o yr mewn ei am os eu ddim na nid gyda fel hyn hwn gan er wedi",
    "turkish": "ve bir bu da de için ile ne mi çok daha gibi o var olan olarak en ama ya ki kadar sonra her değil "
    "nasıl neden ben siz lütfen veya",
    "indonesian": "yang dan di ke dari ini itu untuk dengan tidak pada adalah dalam akan saya anda oleh juga atau bisa "
    "ada karena sudah kami apa bagaimana tolong lebih",
    "afrikaans": "die en van in is dat nie het te wat met vir om hy is sy op aan ek ons as by maar kan word was daar "
    "hulle dit sal deur moet asseblief",
    "vietnamese": "và của là có không các cho được trong một với người này đã để những từ khi về như tôi bạn hãy nào",
    "latin": "et in est non ad ut cum quod qui sed ex si per a ab de quae hoc sunt esse atque nec enim",
    "bulgarian": "и в не на че с как това по но от за да се са ли със към или който която които ще беше може трябва "
    "моля си го ги ме ни при този тази това без само всички",
    "serbian": "и у не на да се је као то али из за од ако или већ само ми ви они који која које што би са во го ги ќе "
    "тоа како",
    "belarusian": "і ў не на што з як гэта па але за для ад калі ці ужо толькі мы вы яна яны яго які трэба вельмі быў",
    "persian": "و در به از که این را با است برای آن یک تا می هم بر شود ها کرد شد",
    "urdu": "ہے کے میں کی اور کا سے کو پر نے ہیں یہ کہ نہیں",
    "yiddish": "און איז דער די פון אַז מיט צו אויף נישט האָט וואָס ניט",
    "marathi": "आहे आहेत आणि ची चा चे मध्ये नाही हे ही ती या साठी मला काय कसे करा की पण मी हा जे जो तर कोणता असेल म्हणून",
    "nepali": "छ छन् र को मा लाई हो पनि यो त्यो गर्न छैन मलाई तपाईं गर्नुहोस् के",
}

_SAMPLE_CHARS: Final = 400
_FEWEST_WORDS: Final = 8
_FEWEST_LETTERS: Final = 16  # of a script that puts no blanks between words
_LEAST_SHARE: Final = 0.08  # of stop words among the words
_LEAD: Final = 1.3  # over the second best
# Two different stop words must vote, since one alone is an accident, and single letters do not count among them, except
# where the most frequent words are such: a; i, w, z, o; и, в, с; і, з, у.
_SHORT_WORDS: Final = frozenset(("hu", "pl", "ru", "uk"))

# Languages that vote together: those of one script.
_SCRIPT_LANGUAGES: Final = {
    "cyrillic": ("ru", "uk", "bulgarian", "serbian", "belarusian"),
    "arabic": ("ar", "persian", "urdu"),
    "hebrew": ("he", "yiddish"),
    "devanagari": ("hi", "marathi", "nepali"),
}
_BITS: Final = 10  # a count of words up to 1023; there are at most 401 in two samples
_MASK: Final = (1 << _BITS) - 1


class _Ballot:
    """Languages of one script, and the votes of their stop words."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.shifts = tuple(_BITS * at for at in range(len(names)))
        # Stop word in UTF-8 → one vote for each language that has it, each in its own ten bits of one number.
        self.votes: dict[bytes, int] = {}
        for name, shift in zip(names, self.shifts, strict=True):
            for word in set((_STOP_WORDS | _SILENT)[name].split()):
                self.votes[word.encode()] = self.votes.get(word.encode(), 0) + (1 << shift)
        # A single letter is a word of many languages, and a variable, an option, a bullet.
        self.clear_votes = {word: vote for word, vote in self.votes.items() if len(word.decode()) > 1}


def _ballots() -> dict[str, _Ballot]:
    others = {name for names in _SCRIPT_LANGUAGES.values() for name in names}
    latin = tuple(name for name in (*_STOP_WORDS, *_SILENT) if name not in others)
    return {script: _Ballot(names) for script, names in _SCRIPT_LANGUAGES.items()} | {"latin": _Ballot(latin)}


_BALLOTS: Final = _ballots()
_LATIN: Final = _BALLOTS["latin"]
# Letters that speak for one language of their script, and how many words each stands for. Long double accents exist in
# Hungarian alone; ы and э are in Russian and in Belarusian, which has other words.
_LETTERS_OF: Final = {"latin": ("hu", "őű", 2), "cyrillic": ("ru", "ыэ", 1)}
# ASCII that is no letter, to a blank. Bytes of other characters stay.
_BLANKED: Final = bytes(code if code > 127 or chr(code).isalpha() else 32 for code in range(256))
_MARKS: Final = "“”„‟’‘‚«»‹›¿¡–—…·•\xa0\u202f،؛؟।"

# High byte of UTF-16 → script. What is not here is Latin, punctuation, a symbol, or half of an emoji.
_SCRIPTS: Final = {
    "greek": (0x03, 0x1F),
    "cyrillic": (0x04,),
    "hebrew": (0x05,),
    "arabic": (0x06,),
    "devanagari": (0x09,),
    "thai": (0x0E,),
    "hangul": (0x11, *range(0xAC, 0xD8)),
    "han": tuple(range(0x34, 0xA0)),
    "kana": (0x30,),
    "another": (0x07, 0x08, *range(0x0A, 0x0E), 0x0F, 0x10, *range(0x12, 0x1E), 0xA8, 0xA9, 0xAA, 0xAB),
}
_CODES: Final = {script: code for code, script in enumerate(_SCRIPTS, start=1)}
_SCRIPT_OF: Final = {high: _CODES[script] for script, highs in _SCRIPTS.items() for high in highs}
_TO_SCRIPT: Final = bytes(_SCRIPT_OF.get(high, 0) for high in range(256))
_NO_SCRIPT: Final = bytes(high for high in range(256) if high not in _SCRIPT_OF)
_NOT_ASCII_LETTERS: Final = bytes(code for code in range(128) if not chr(code).isalpha())

# Letters of a script that the language which is named does not have, and other blocks under the same high byte.
_FOREIGN: Final = {
    "thai": re.compile("[\u0e80-\u0eff]"),
    "hebrew": re.compile("[\u0500-\u058f\u05f0-\u05f2]"),
    "arabic": re.compile("[پچژگکیٹڈڑںےہھۀەۆۇۈېڭڤڵڕێ]"),
    "devanagari": re.compile("[\u0980-\u09ffळ]"),
    "cyrillic": re.compile("[\u0460-\u048f\u0492-\u052fўјљњђћџќѓѕ]"),
}
_KANA: Final = re.compile("[\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff]")
# Characters that Chinese writes often and Japanese does not: pronouns and particles, and simplified and traditional
# forms where Japanese has a third one or none.
_CHINESE: Final = re.compile(
    "[的了吗嗎你您什怎呢吧很把哪它她們们這这沒没還还說说讓让從从與与为个應应關关點變变實实檔裡啟對对會来來發发發学"
    "时间问题错误无设务选择开闭线输项页电网络运进过两东车长见书认识语词记译议论证试话该详调谁账费资达远连邮释键门阅际难顺须预领频]"
)
_UKRAINIAN: Final = re.compile("[іїєґ]")
_NOT_UKRAINIAN: Final = re.compile("[ыэъё]")


def language_of(text: str) -> str | None:
    """ISO code of the language, by its script and its share of stop words. None unless the answer is clear.

    Clear means at least 8 words, two different stop words, a best share of at least 0.08, and 1.3 times the second
    best; in a script of its own, at least 8 words or, where none are set apart, 16 letters. On shorter or mixed texts
    silence beats a guess. Of a long text, 400 characters at its start and 400 at its end are read.
    """
    if len(text) > 2 * _SAMPLE_CHARS:
        text = f"{text[:_SAMPLE_CHARS]} {text[-_SAMPLE_CHARS:]}"
    text = text.lower()
    if text.isascii():
        return _by_words(text.encode(), _LATIN)
    scripts = _scripts_in(text)
    if _CODES["greek"] in scripts:  # its block holds the combining accents of decomposed Latin text too
        text = unicodedata.normalize("NFC", text)
        scripts = _scripts_in(text)
    script = _script_of(text, scripts) if scripts else "latin"
    if script is None or (script in _FOREIGN and _FOREIGN[script].search(text)):
        return None
    if script == "han":
        return _chinese_or_japanese(text, scripts)
    if script == "thai":
        return "th" if len(scripts) >= _FEWEST_LETTERS else None
    if script in ("greek", "hangul"):
        return ("el" if script == "greek" else "ko") if len(text.split()) >= _FEWEST_WORDS else None
    name, letters, weight = _LETTERS_OF.get(script, ("", "", 0))
    extra = weight * sum(map(text.count, letters))
    found = _by_words(_without_marks(text).encode("utf-8", "replace"), _BALLOTS[script], name, extra)
    if script == "cyrillic" and (found == "uk") != bool(_UKRAINIAN.search(text)):
        return None  # the letters and the words say different things
    return None if found == "uk" and _NOT_UKRAINIAN.search(text) else found


def _without_marks(text: str) -> str:
    for mark in _MARKS:
        if mark in text:
            text = text.replace(mark, " ")
    return text


def _by_words(text: bytes, ballot: _Ballot, favoured: str = "", extra: int = 0) -> str | None:
    words = text.translate(_BLANKED).split()
    if len(words) < _FEWEST_WORDS:
        return None
    votes = sum(filter(None, map(ballot.votes.get, words)))
    hits = [votes >> shift & _MASK for shift in ballot.shifts]
    if extra:
        hits[ballot.names.index(favoured)] += extra
    best = max(hits)
    if best < _LEAST_SHARE * len(words):
        return None
    at = hits.index(best)
    hits[at] = 0
    name = ballot.names[at]
    if best < _LEAD * max(hits) or name in _SILENT:
        return None
    votes_of = ballot.votes if name in _SHORT_WORDS else ballot.clear_votes
    return name if _differ(words, votes_of, 1 << ballot.shifts[at]) else None


def _differ(words: list[bytes], votes: dict[bytes, int], vote: int) -> bool:
    """Whether two different words vote for a language. Most texts tell within their first dozen words."""
    first = b""
    for word in words:
        if votes.get(word, 0) & vote and word != first:
            if first:
                return True
            first = word
    return False


def _script_of(text: str, scripts: bytes) -> str | None:
    """The script of most letters; "latin" where few are of another; None where two are mixed."""
    latin = len(text.encode("ascii", "ignore").translate(None, _NOT_ASCII_LETTERS))
    if len(scripts) < 0.2 * (len(scripts) + latin):
        return "latin"
    counts = {script: scripts.count(code) for script, code in _CODES.items() if code in scripts}
    counts["han"] = counts.get("han", 0) + counts.pop("kana", 0)
    if counts.get("hangul", 0) * 3 > len(scripts):
        counts["hangul"] += counts.pop("han")  # Korean may hold Chinese characters
    most = max(counts, key=counts.__getitem__)
    return most if counts[most] >= 0.6 * (len(scripts) + latin) and most != "another" else None


def _scripts_in(text: str) -> bytes:
    """One code per character that is of another script than Latin."""
    return text.encode("utf-16-le", "surrogatepass")[1::2].translate(_TO_SCRIPT, _NO_SCRIPT)


def _chinese_or_japanese(text: str, scripts: bytes) -> str | None:
    kana = len(_KANA.findall(text)) if _CODES["kana"] in scripts else 0  # its block holds 、 and 。 too
    letters = kana + scripts.count(_CODES["han"])
    if letters < _FEWEST_LETTERS:
        return None
    if kana >= 0.25 * letters:
        return "ja"
    chinese = {found[0] for found in islice(_CHINESE.finditer(text), 8)}
    return "zh" if kana <= 0.02 * letters and len(chinese) >= 2 else None
