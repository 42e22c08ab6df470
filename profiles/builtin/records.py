"""Extraction tasks: a document, a JSON schema, and the JSON that is to be copied out of it.

Only a part of each document is wanted, and all that is wanted stands in it word for word.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from profiles.builtin.draws import Draw
from profiles.builtin.lengths import INVOICE, LABORATORY, LOG, MINUTES, Room

SYSTEM = "You extract data. You answer with JSON that follows the schema and copy values exactly as they are written."

_FIRST = "Anna Bela Carla Dario Edit Femke Goran Hanna Ivo Judit Karel Lena Milan Nora Otto Petra Rosa Stefan".split()
_LAST = "Aldous Berek Castell Dovic Erdos Galland Hollos Ilves Jansky Kerekes Lantos Moravec Ostrow Palfi".split()
_TOWNS = "Alder Bay,Brenik,Castle Ford,Dorholm,Eastmere,Fallow Hill,Gransund,Harrow End,Ivanfeld,Kestrel Point".split(
    ","
)
_FIRMS = "Northgate Supply,Blue Heron Tools,Marsh & Sons,Quarry Lane Foods,Tern Island Energy,Vesper Paper Mill".split(
    ","
)
_GOODS = (
    *(
        "galvanised hinge, left-handed, with two grease nipples",
        "flat washer, 24 mm, zinc plated, boxed by the hundred",
    ),
    *("oak board, planed on four sides, kiln dried, 2.4 m", "hydraulic hose, two steel braids, crimped on both ends"),
    *("pallet wrap, 500 mm, black, for outside storage", "safety lamp, battery operated, rated for wet rooms"),
    *("filter cartridge, pleated, washable, fine grade", "anchor bolt, threaded, with nut, for cracked concrete"),
    *("ball valve, full bore, brass, lever handle in red", "copy paper, 80 g, recycled, five reams to the carton"),
    *("work gloves, cowhide, lined, size 10, by the pair", "extension cable, 25 m, rubber, with a thermal switch"),
)
_REMARKS = (
    *("Deliveries are accepted on weekdays from seven until half past three at the rear gate.",),
    *("Pallets are exchanged one for one; missing ones are charged at the daily rate of the depot.",),
    *("Goods remain the property of the seller until the invoice has been paid in full.",),
    *("Please quote the reference in all letters, since the account is looked up by it alone.",),
    *("Complaints about visible damage reach us best within five days and with a photograph.",),
    *("Our offices are closed in the last week of December; the emergency line stays open.",),
    *("Prices hold until the end of the quarter and include the usual packing.",),
)


_MOST_LINES = 10_000


@dataclass(frozen=True, slots=True)
class Extraction:
    """What is asked, the schema of the answer, and the answer."""

    kind: str  # of document, and the name of its schema
    text: str
    schema: dict[str, Any]
    answer: dict[str, Any]


def extraction(draw: Draw, room: Room) -> Extraction:
    """An extraction task whose text fills the room."""
    kind = draw.one(list(_WRITERS))
    return _WRITERS[kind](draw, room(kind))


def _text(type_: str = "string", **more: Any) -> dict[str, Any]:
    return {"type": type_, **more}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _person(draw: Draw) -> str:
    return f"{draw.one(_FIRST)} {draw.one(_LAST)}"


def _date(draw: Draw) -> str:
    return f"{draw.whole(2023, 2026)}-{draw.whole(1, 12):02d}-{draw.whole(1, 28):02d}"


def _later(draw: Draw, date: str) -> str:
    """A date in the year after."""
    return f"{int(date[:4]) + 1}-{draw.whole(1, 12):02d}-{draw.whole(1, 28):02d}"


def _spread(draw: Draw, low: int, high: int) -> set[int]:
    """Numbers of the lines that are wanted: the first few hold one, and then each so many."""
    wanted, at = set(), draw.whole(1, 3)
    while at < _MOST_LINES:
        wanted.add(at)
        at += draw.whole(low, high)
    return wanted


def _filled(draw: Draw, head: str, tail: str, chars: int, line: Callable[[int], str]) -> list[str]:
    """Lines between head and tail until the text has about so many characters; four at least."""
    lines: list[str] = []
    size = len(head) + len(tail)
    while len(lines) < 4 or size + len(lines[-1]) // 2 < chars:
        lines.append(line(len(lines)))
        size += len(lines[-1]) + 1
    return lines


def _invoice(draw: Draw, chars: int) -> Extraction:
    number, issued = f"INV-{draw.whole(10_000, 99_999)}", _date(draw)
    due = _later(draw, issued)
    seller, buyer, contact = draw.one(_FIRMS), f"{_person(draw)} Workshop, {draw.one(_TOWNS)}", _person(draw)
    question = draw.one(
        (
            "Extract the invoice: number, dates, parties, and only those lines that are marked as back order.",
            "Extract number, dates and parties of this invoice, and of its lines only those on back order.",
        )
    )
    head = (
        f"{question}\n\n{seller}\nInvoice {number}\nIssued {issued}, due {due}\nBill to: {buyer}\n"
        f"Contact: {contact}, extension {draw.whole(100, 999)}\n\nLines\n"
    )
    tail = "\n\n" + "\n".join(draw.some(_REMARKS, 3))
    wanted = _spread(draw, 7, 13)
    items: list[dict[str, Any]] = []

    def line(at: int) -> str:
        back = at in wanted
        code, quantity = f"{draw.one('ABCDEFGH')}{draw.whole(1000, 9999)}", draw.whole(1, 240)
        price = f"{draw.whole(1, 480)}.{draw.whole(0, 99):02d}"
        if back:
            items.append({"code": code, "quantity": quantity, "unit_price": price})
        state = "back order" if back else draw.one(("shipped", "shipped in part", "collected"))
        return f"{at + 1:>3}  {code}  {quantity} x {price} EUR  {draw.one(_GOODS)}  [{state}]"

    lines = _filled(draw, head, tail, chars, line)
    answer = {
        "invoice_number": number,
        "issued": issued,
        "due": due,
        "seller": seller,
        "buyer": buyer,
        "back_orders": items,
    }
    item = _object(code=_text(), quantity=_text("integer", minimum=1), unit_price=_text())
    schema = _object(
        invoice_number=_text(),
        issued=_text(),
        due=_text(),
        seller=_text(),
        buyer=_text(),
        back_orders={"type": "array", "items": item},
    )
    return Extraction(INVOICE, head + "\n".join(lines) + tail, schema, answer)


_SERVICES = "billing catalogue checkout gateway mailer search session shipping stock thumbnails".split()
_QUIET = (
    "request finished in {n} ms, {m} rows read, connection returned to the pool",
    "cache refreshed for {m} keys, next refresh in {n} s",
    "worker {m} took a job from the queue, {n} jobs are left",
    "health check answered in {n} ms by replica {m}",
)
_LOUD = (
    "connection to the database was refused after {n} ms",
    "certificate of the upstream expired {m} days ago",
    "queue is full, {n} messages were turned away",
    "disk of replica {m} has {n} MB left",
)


def _log(draw: Draw, chars: int) -> Extraction:
    host, day = f"node-{draw.whole(1, 60):02d}.{draw.one(('east', 'west', 'lab'))}", _date(draw)
    question = draw.one(
        (
            "List every ERROR of this log with time, service and message. Ignore all other levels.",
            "From this log, extract the host, the day and all lines at level ERROR.",
        )
    )
    head = f"{question}\n\n== log of {host}, {day} ==\n"
    wanted = _spread(draw, 9, 16)
    incidents: list[dict[str, Any]] = []
    second = draw.whole(0, 40_000)

    def line(at: int) -> str:
        nonlocal second
        second += draw.whole(1, 40)
        clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        service = draw.one(_SERVICES)
        bad = at in wanted
        message = draw.one(_LOUD if bad else _QUIET).format(n=draw.whole(2, 900), m=draw.whole(1, 64))
        if bad:
            incidents.append({"time": clock, "service": service, "message": message})
        return f"{clock} {'ERROR' if bad else draw.one(('INFO', 'INFO', 'DEBUG', 'WARN'))} {service}: {message}"

    lines = _filled(draw, head, "", chars, line)
    incident = _object(time=_text(), service=_text(enum=list(_SERVICES)), message=_text())
    schema = _object(host=_text(), day=_text(), errors={"type": "array", "items": incident})
    answer = {"host": host, "day": day, "errors": incidents}
    return Extraction(LOG, head + "\n".join(lines), schema, answer)


_TESTS = (
    *(("Haemoglobin", "g/L", 120, 160), ("Sodium", "mmol/L", 135, 145), ("Potassium", "mmol/L", 35, 51)),
    *(("Creatinine", "umol/L", 60, 110), ("Ferritin", "ug/L", 30, 300), ("Calcium", "mg/L", 84, 102)),
    *(
        ("Glucose", "mg/dL", 70, 99),
        ("Platelets", "G/L", 150, 400),
        ("Albumin", "g/L", 35, 50),
        ("Urea", "mg/dL", 15, 45),
    ),
)
_METHODS = (
    *("measured twice, mean of both runs, calibrator within its limits", "single run, control sample in range"),
    *("repeated after dilution, both results agree within two percent", "measured on the second analyser"),
)


def _laboratory(draw: Draw, chars: int) -> Extraction:
    report, taken, clinician = f"LR{draw.whole(200_000, 999_999)}", _date(draw), _person(draw)
    question = draw.one(
        (
            "Extract the report number, the date of sampling, the clinician and every value outside its range.",
            "Which values lie outside their reference range? Return them with the data of the report.",
        )
    )
    head = (
        f"{question}\n\nLaboratory report {report}\nSample taken on {taken}\nRequested by Dr. {clinician},"
        f" {draw.one(_TOWNS)} clinic\nSample, test, result, range, remark\n"
    )
    tail = "\n\nThe report was released electronically and is valid without a signature."
    wanted = _spread(draw, 8, 15)
    outside: list[dict[str, Any]] = []

    def line(at: int) -> str:
        test, unit, low, high = draw.one(_TESTS)
        sample = f"S{at + 1:02d}"
        bad = at in wanted
        value = draw.one((low - draw.whole(2, 9), high + draw.whole(2, 40))) if bad else draw.whole(low, high)
        if bad:
            outside.append({"sample": sample, "test": test, "value": value, "unit": unit})
        return f"{sample}, {test}, {value} {unit}, {low} to {high}, {draw.one(_METHODS)}"

    lines = _filled(draw, head, tail, chars, line)
    value = _object(sample=_text(), test=_text(), value=_text("integer"), unit=_text())
    schema = _object(report=_text(), taken=_text(), clinician=_text(), outside_range={"type": "array", "items": value})
    answer = {"report": report, "taken": taken, "clinician": clinician, "outside_range": outside}
    return Extraction(LABORATORY, head + "\n".join(lines) + tail, schema, answer)


def _minutes(draw: Draw, chars: int) -> Extraction:
    place, day, chair = draw.one(_TOWNS), _date(draw), _person(draw)
    question = draw.one(
        (
            "Extract from these minutes who has to do what by when. Leave out everything that is not a task.",
            "Return the place, the day, the chair and all tasks that were given out in this meeting.",
        )
    )
    head = f"{question}\n\nMinutes of the works committee, {place}, {day}\nIn the chair: {chair}\n\n"
    wanted = _spread(draw, 7, 12)
    tasks: list[dict[str, Any]] = []
    topics = (
        "the boiler room",
        "the loading bay",
        "the north fence",
        "the visitor car park",
        "the archive",
        "the canteen",
    )

    def line(at: int) -> str:
        topic, person = draw.one(topics), _person(draw)
        if at in wanted:
            due = _later(draw, day)
            what = (
                draw.one(("get two offers for", "draw up a plan of", "write to the insurer about", "inspect"))
                + f" {topic}"
            )
            tasks.append({"person": person, "task": what, "due": due})
            return f"{at + 1}. It was agreed that {person} will {what} by {due}."
        said = draw.one(
            (
                "reported that the costs for {t} came to {n} in the last quarter, which is within the estimate.",
                "asked whether {t} could be used for storage until the spring; the matter was left open.",
                "thanked the team that had cleaned {t} and noted {n} hours of overtime.",
                "reminded everybody that {t} stays closed while the new cables are pulled through.",
            )
        )
        return f"{at + 1}. {person} {said.format(t=topic, n=draw.whole(12, 980))}"

    lines = _filled(draw, head, "", chars, line)
    task = _object(person=_text(), task=_text(), due=_text())
    schema = _object(place=_text(), day=_text(), chair=_text(), tasks={"type": "array", "items": task})
    answer = {"place": place, "day": day, "chair": chair, "tasks": tasks}
    return Extraction(MINUTES, head + "\n".join(lines), schema, answer)


_WRITERS: dict[str, Callable[[Draw, int], Extraction]] = {
    INVOICE: _invoice,
    LOG: _log,
    LABORATORY: _laboratory,
    MINUTES: _minutes,
}
