"""Short chat in Hungarian. The sentences are whole: in Hungarian an ending follows the vowels of its word."""

from profiles.builtin.draws import Draw

SYSTEM = "Segítőkész asszisztens vagy. Magyarul, röviden és pontosan válaszolj."

_OPENINGS = ("Szia!", "Helló!", "Szia, lenne egy kérdésem.", "Segítséget szeretnék kérni.", "Egy gyors kérdésem lenne.")
# What has happened, then what may be asked about it.
_TOPICS = (
    (
        "A mosógépem centrifugálás közben nagyon zörög, pedig vízszintesen áll.",
        ("Mi lehet az oka, és mit nézzek meg először?", "Megjavíthatom magam, vagy szerelőt kell hívnom?"),
    ),
    (
        "Holnap reggel vonattal utazom Szegedre, és Cegléden át kell szállnom.",
        ("Mennyi időt hagyjak az átszállásra, ha nehéz bőröndöm is van?", "Mit tegyek, ha lekésem a csatlakozást?"),
    ),
    (
        "Vasárnap hatan jönnek hozzánk ebédre, és egyikük vegetáriánus.",
        (
            "Milyen menüt ajánlasz, amelyet előző nap elő lehet készíteni?",
            "Mi legyen a főétel, ha csak két órám van rá?",
        ),
    ),
    (
        "A lányom jövő héten ír dolgozatot a másodfokú egyenletekből.",
        ("Hogyan magyarázzam el neki a megoldóképletet?", "Milyen feladatokkal gyakoroljon a hétvégén?"),
    ),
    (
        "Az erkélyen nevelt paradicsompalántáim levelei sárgulni kezdtek.",
        (
            "Mit csinálok rosszul, és hogyan menthetem meg a növényeket?",
            "Túl sok vizet kapnak, vagy inkább túl keveset?",
        ),
    ),
    (
        "Elvesztettem a bankkártyámat a piacon, de már letiltottam.",
        ("Mi a teendőm ezután, és mikorra kaphatok újat?", "Mire figyeljek a számlámon a következő napokban?"),
    ),
    (
        "A főnököm arra kért, hogy öt percben mutassam be a negyedéves eredményeket.",
        ("Hogyan építsem fel az előadást, hogy ne legyen unalmas?", "Hány diát érdemes ehhez készíteni?"),
    ),
    (
        "Használt kerékpárt szeretnék venni, főleg városi közlekedésre.",
        ("Mire figyeljek a próbaút alatt?", "Melyik alkatrészek kopása jelent nagyobb kiadást?"),
    ),
    (
        "A szomszédom minden este tizenegyig hangosan zenél.",
        ("Hogyan szóljak neki úgy, hogy ne legyen belőle vita?", "Kihez fordulhatok, ha a kérés nem használ?"),
    ),
    (
        "Kezdő futó vagyok, és tavasszal szeretnék lefutni egy félmaratont.",
        ("Milyen edzéstervet javasolsz az első hónapra?", "Hetente hányszor fussak, hogy ne sérüljek meg?"),
    ),
    (
        "Megpróbáltam kovászos uborkát készíteni, de nyúlós lett a leve.",
        ("Mit ronthattam el, és meg lehet-e még enni?", "Hogyan csináljam legközelebb, hogy sikerüljön?"),
    ),
    (
        "Albérletet keresek Debrecenben, és a tulajdonos két havi kauciót kér.",
        ("Mit kell a szerződésben mindenképpen rögzíteni?", "Milyen esetben tarthatja vissza a kauciót?"),
    ),
    (
        "A laptopom ventilátora akkor is pörög, ha csak levelezek.",
        ("Hogyan deríthetem ki, hogy mi terheli a gépet?", "Érdemes kitakarítani, vagy inkább vigyem szervizbe?"),
    ),
    (
        "Az öcsém angol nyelvvizsgára készül, de a szóbeli résztől nagyon fél.",
        ("Hogyan gyakorolhatnánk együtt esténként?", "Mivel lehet csökkenteni a vizsgadrukkot?"),
    ),
    (
        "Otthon szeretnék kenyeret sütni, de csak szárított élesztőm van.",
        ("Mennyit tegyek fél kiló liszthez, és meddig kelesszem?", "Mitől lesz ropogós a héja egy sima sütőben?"),
    ),
    (
        "Nyáron egy hétre megyünk a Balatonhoz két kisgyerekkel.",
        ("Melyik partot ajánlod, ha sekély vizet keresünk?", "Mit csináljunk velük, ha esik az eső?"),
    ),
    (
        "A nappaliból szeretnénk leválasztani egy kis dolgozószobát.",
        ("Milyen megoldás jön szóba, ha nem akarunk falat építeni?", "Hogyan oldjuk meg, hogy elég fény jusson be?"),
    ),
    (
        "A kutyám fél a tűzijátéktól, szilveszterkor mindig elbújik a fürdőszobában.",
        ("Hogyan készíthetem fel erre az estére?", "Mikor kell vele emiatt állatorvoshoz fordulni?"),
    ),
    (
        "Tegnap óta csöpög a víz a konyhai csap alatt, de csak akkor, ha a meleget nyitom meg.",
        ("Mi lehet a hiba, és hogyan zárjam el addig a vizet?", "Milyen szerszám kell a javításhoz?"),
    ),
    (
        "Most először adok be adóbevallást egyéni vállalkozóként.",
        ("Milyen iratokat készítsek elő hozzá?", "Melyek a leggyakoribb hibák, amelyeket el lehet kerülni?"),
    ),
    (
        "Egy régi családi fényképet szeretnék digitalizálni és kijavítani.",
        ("Milyen felbontással olvassam be a képet?", "Hogyan tüntessem el róla a gyűrődéseket?"),
    ),
    (
        "A szüleim most kaptak okostelefont, és nehezen igazodnak el rajta.",
        ("Melyik beállításokat érdemes először módosítani?", "Hogyan tanítsam meg nekik a videóhívást?"),
    ),
    (
        "Téli gumit kellene vennem, de nem tudom, megéri-e az olcsóbbat választani.",
        ("Milyen szempontok alapján döntsek?", "Hány évig használható biztonságosan egy készlet?"),
    ),
    (
        "Egy kis könyvtárban dolgozom, és felolvasóestet szeretnénk szervezni.",
        ("Hogyan hirdessük meg, hogy fiatalok is eljöjjenek?", "Mennyi idő alatt lehet egy ilyen estét előkészíteni?"),
    ),
    (
        "A barátnőm gluténérzékeny, és tortát szeretnék sütni a születésnapjára.",
        (
            "Milyen lisztet használjak, hogy ne essen szét a tészta?",
            "Mire ügyeljek a konyhában, hogy biztonságos legyen?",
        ),
    ),
    (
        "Az új munkahelyemen hibrid rendben dolgozunk, és nehezen osztom be az időmet.",
        ("Milyen napirendet javasolsz az otthoni napokra?", "Hogyan választhatom el jobban a munkát a pihenéstől?"),
    ),
    (
        "Örököltem egy kis szőlőt a Mátra lábánál, de semmit sem tudok a metszésről.",
        ("Mikor kezdjem a metszést, és mire figyeljek?", "Hol tanulhatnám meg az alapokat néhány hét alatt?"),
    ),
    (
        "A fiam nem hajlandó zöldséget enni, csak a répát szereti.",
        (
            "Hogyan vegyem rá, hogy mást is megkóstoljon?",
            "Milyen ételbe lehet észrevétlenül belekeverni a főzeléknek valót?",
        ),
    ),
)
_CLOSINGS = (
    *(
        "Kérlek, legfeljebb öt mondatban válaszolj.",
        "Pontokba szedve írd le, kérlek.",
        "Konkrét példát is írj, kérlek.",
    ),
    *("Elég egy rövid, közérthető válasz.", "Ha több lehetőség van, kettőt írj le.", "Előre is köszönöm!", ""),
)


def chat(draw: Draw, chars: int) -> str:
    """A message of about so many characters: of eight drawn, the one that comes nearest."""
    return min((_chat(draw) for _ in range(8)), key=lambda text: abs(len(text) - chars))


def _chat(draw: Draw) -> str:
    situation, questions = draw.one(_TOPICS)
    return " ".join(part for part in (draw.one(_OPENINGS), situation, draw.one(questions), draw.one(_CLOSINGS)) if part)
