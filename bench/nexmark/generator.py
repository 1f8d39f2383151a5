"""The events of Nexmark, in NumPy: persons, auctions and bids, as Parquet files that both engines read.

The formulas are those of the published generator (nexmark/nexmark on GitHub, itself from Apache Beam), with
its default configuration. Its random numbers have no seed, so proportions, ranges and the shares of hot keys
are what can be equal; `tests/spark/sql/test_nexmark.py` compares them. Two settings are stated with the
figures: 10,000 events a second of event time, which is the configuration's default, while the published runs
ask for 10 million, so that few windows of theirs end; and events that are out of order, in groups of 1,000.

Each event has a number: of 50, the first is a person, three are auctions and 46 are bids. An event's time and
its keys depend on its number. All three kinds are rows of one table, since they have one watermark. The last
row is a person two days later, who ends every window and every auction.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

PERSON, AUCTION, BID = 0, 1, 2  # event_type
FIRST_ID = 1_000  # of persons and of auctions
FIRST_CATEGORY, CATEGORIES = 10, 5
DAY = 86_400_000
SIDE_ROWS = 10_000  # of the bounded side input of q13
ROW_GROUP = 100_000  # rows of a group of a Parquet file

# Names as in the published tables; columns that two kinds share, and times in epoch milliseconds, stand once.
SCHEMA = pa.schema(
    {
        "event_type": pa.int32(),
        "ms": pa.int64(),
        "extra": pa.string(),
        **dict.fromkeys(("auction", "bidder", "price"), pa.int64()),
        **dict.fromkeys(("channel", "url"), pa.string()),
        "id": pa.int64(),  # of a person or an auction
        **dict.fromkeys(("name", "emailAddress", "creditCard", "city", "state"), pa.string()),
        **dict.fromkeys(("itemName", "description"), pa.string()),
        **dict.fromkeys(("initialBid", "reserve", "expires_ms", "seller", "category"), pa.int64()),
    }
)

_STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
_CITIES = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
]
_FIRST_NAMES = [
    "Peter",
    "Paul",
    "Luke",
    "John",
    "Saul",
    "Vicky",
    "Kate",
    "Julie",
    "Sarah",
    "Deiter",
    "Walter",
]
_LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
_HOT_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]
_CHANNELS = 10_000
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)
_TEXT = 1 << 20  # characters from which texts without a meaning are cut


@dataclass(frozen=True)
class Configuration:
    """The settings of the published generator that matter here, under its names."""

    person_proportion: int = 1
    auction_proportion: int = 3
    bid_proportion: int = 46
    first_event_rate: int = 10_000  # events per second
    hot_auction_ratio: int = 2
    hot_sellers_ratio: int = 4
    hot_bidders_ratio: int = 4
    num_in_flight_auctions: int = 100
    num_active_people: int = 1_000
    out_of_order_group_size: int = 1_000
    avg_person_byte_size: int = 200
    avg_auction_byte_size: int = 500
    avg_bid_byte_size: int = 100
    base_time: int = 1_436_918_400_000  # 2015-07-15, as in Beam

    @property
    def total_proportion(self) -> int:
        return self.person_proportion + self.auction_proportion + self.bid_proportion

    def adjusted(self, numbers: np.ndarray) -> np.ndarray:
        """Return the event numbers in the order in which events arrive: mixed within each group."""
        n = self.out_of_order_group_size
        return numbers // n * n + numbers * 953 % n

    def timestamps(self, numbers: np.ndarray) -> np.ndarray:
        return self.base_time + (numbers * (1_000_000 / self.first_event_rate)).astype(np.int64) // 1_000

    def last_person(self, numbers: np.ndarray) -> np.ndarray:
        """Return the number of the newest person when an event is made."""
        epoch, offset = np.divmod(numbers, self.total_proportion)
        return epoch * self.person_proportion + np.minimum(offset, self.person_proportion - 1)

    def last_auction(self, numbers: np.ndarray) -> np.ndarray:
        """Return the number of the newest auction when an event is made; -1 before the first."""
        epoch, offset = np.divmod(numbers, self.total_proportion)
        offset -= self.person_proportion
        return epoch * self.auction_proportion + np.clip(offset, -1, self.auction_proportion - 1)


class Generator:
    """Makes events from a seed; the same seed gives the same bytes.

    Events are made in blocks of the caller's choice, each with its own random numbers.
    """

    def __init__(self, configuration: Configuration = Configuration(), seed: int = 1) -> None:
        self.configuration, self._seed = configuration, seed
        random = np.random.default_rng(seed)
        self._text = _LETTERS[random.integers(26, size=_TEXT)]
        self._hot_urls = pa.array(_base_urls(random, len(_HOT_CHANNELS)))
        urls = _base_urls(random, _CHANNELS)
        with_id = random.integers(10, size=_CHANNELS) > 0
        self._urls = pa.array(
            f"{url}&channel_id={abs(_reversed_bits(i))}" if has else url
            for i, (url, has) in enumerate(zip(urls, with_id, strict=True))
        )
        self._channels = pa.array(f"channel-{i}" for i in range(_CHANNELS))

    def block(self, first: int, count: int) -> pa.Table:
        """Return events number `first` to `first` + `count`, in the order in which they arrive."""
        random = np.random.default_rng((self._seed, first))
        c = self.configuration
        numbers = c.adjusted(np.arange(first, first + count))
        kind = numbers % c.total_proportion
        person, bid = kind < c.person_proportion, kind >= c.person_proportion + c.auction_proportion
        parts = [
            self._persons(random, numbers[person]),
            self._auctions(random, numbers[~(person | bid)]),
            self._bids(random, numbers[bid]),
        ]
        where = np.concatenate([np.flatnonzero(mask) for mask in (person, ~(person | bid), bid)])
        return pa.concat_tables(map(_completed, parts)).take(np.argsort(where))

    def closing(self, events: int) -> pa.Table:
        """Return the person whose time ends everything: two days after the last of so many events."""
        last = int(self.configuration.timestamps(np.array([events]))[0])
        row = {"event_type": [PERSON], "ms": [last + 2 * DAY], "id": [0], "name": ["end"], "extra": [""]}
        row |= {name: [""] for name in ("emailAddress", "creditCard", "city", "state")}
        return _completed(row)

    def _persons(self, random: np.random.Generator, numbers: np.ndarray) -> dict[str, object]:
        n = len(numbers)
        names = [_chosen(random, _FIRST_NAMES, n), _chosen(random, _LAST_NAMES, n)]
        mail = [self._cut(random, random.integers(3, end, size=n)) for end in (7, 5)]
        cards = [[f"{card:04}" for card in random.integers(10_000, size=n)] for _ in range(4)]
        columns = {
            "name": pc.binary_join_element_wise(*names, " "),
            "emailAddress": pc.binary_join_element_wise(
                pc.binary_join_element_wise(*mail, "@"), pa.scalar(".com"), ""
            ),
            "creditCard": pc.binary_join_element_wise(*map(pa.array, cards), " "),
            "city": _chosen(random, _CITIES, n),
            "state": _chosen(random, _STATES, n),
        }
        size = 8 + sum(_lengths(column) for column in columns.values())
        return {
            "event_type": np.full(n, PERSON),
            "ms": self.configuration.timestamps(numbers),
            "id": self.configuration.last_person(numbers) + FIRST_ID,
            **columns,
            "extra": self._extra(random, size, self.configuration.avg_person_byte_size),
        }

    def _auctions(self, random: np.random.Generator, numbers: np.ndarray) -> dict[str, object]:
        c, n = self.configuration, len(numbers)
        hot = c.last_person(numbers) // 100 * 100  # the first of each 100 persons
        begin = c.timestamps(numbers)
        ahead = c.num_in_flight_auctions * c.total_proportion // c.auction_proportion
        longest = np.maximum((c.timestamps(numbers + ahead) - begin) * 2, 1)
        first_bid = _prices(random, n)
        texts = [self._cut(random, random.integers(3, end, size=n)) for end in (20, 100)]
        size = 48 + sum(map(_lengths, texts))
        return {
            "event_type": np.full(n, AUCTION),
            "ms": begin,
            "id": c.last_auction(numbers) + FIRST_ID,
            "itemName": texts[0],
            "description": texts[1],
            "initialBid": first_bid,
            "reserve": first_bid + _prices(random, n),
            "expires_ms": begin + 1 + random.integers(longest),
            "seller": np.where(
                random.integers(c.hot_sellers_ratio, size=n) > 0, hot, self._active_person(random, numbers)
            )
            + FIRST_ID,
            "category": FIRST_CATEGORY + random.integers(CATEGORIES, size=n),
            "extra": self._extra(random, size, c.avg_auction_byte_size),
        }

    def _bids(self, random: np.random.Generator, numbers: np.ndarray) -> dict[str, object]:
        c, n = self.configuration, len(numbers)
        newest = c.last_auction(numbers)
        oldest = np.maximum(newest - c.num_in_flight_auctions, 0)
        auction = np.where(
            random.integers(c.hot_auction_ratio, size=n) > 0,
            newest // 100 * 100,  # the first of each 100 auctions
            oldest + random.integers(newest - oldest + 1 + 10),  # up to 10 that are still to come
        )
        bidder = np.where(
            random.integers(c.hot_bidders_ratio, size=n) > 0,
            c.last_person(numbers) // 100 * 100 + 1,  # the second of each 100, who is no hot seller
            self._active_person(random, numbers),
        )
        # The published generator adds the first id of persons twice to a bidder.
        hot = random.integers(2, size=n) > 0
        at, hot_at = random.integers(_CHANNELS, size=n), random.integers(len(_HOT_CHANNELS), size=n)
        channels = pa.concat_arrays([pa.array(_HOT_CHANNELS), self._channels])
        urls = pa.concat_arrays([self._hot_urls, self._urls])
        chosen = np.where(hot, hot_at, at + len(_HOT_CHANNELS))
        return {
            "event_type": np.full(n, BID),
            "ms": c.timestamps(numbers),
            "auction": auction + FIRST_ID,
            "bidder": bidder + 2 * FIRST_ID,
            "price": _prices(random, n),
            "channel": channels.take(chosen),
            "url": urls.take(chosen),
            "extra": self._extra(random, np.full(n, 32), c.avg_bid_byte_size),
        }

    def _active_person(self, random: np.random.Generator, numbers: np.ndarray) -> np.ndarray:
        people = self.configuration.last_person(numbers) + 1
        active = np.minimum(people, self.configuration.num_active_people)
        return people - active + random.integers(active + 10)  # up to 10 who are still to come

    def _extra(self, random: np.random.Generator, size: np.ndarray, average: int) -> pa.Array:
        wanted = np.maximum(average - size, 0)
        delta = np.round(wanted * 0.2).astype(np.int64)
        lengths = wanted - delta + random.integers(np.maximum(2 * delta, 1))
        return self._cut(random, np.where(size > average, 0, lengths))

    def _cut(self, random: np.random.Generator, lengths: np.ndarray) -> pa.Array:
        """Return texts of these lengths, cut from one text at random places."""
        ends = np.cumsum(lengths)
        starts = random.integers(_TEXT - lengths)
        at = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(self._text[at]))


def write(
    directory: Path, events: int, per_file: int = 1_000_000, configuration: Configuration | None = None
) -> None:
    """Write the events twice, as the same rows in the same order of time, and the side input of q13.

    `directory`/spark has a file for each micro-batch. `directory`/flink has one for each of two readers, who
    take turns by the second: Flink reads the files of a folder in any order, and a file in its own.
    """
    made = Generator(configuration or Configuration())
    for name in ("spark", "flink"):
        (directory / name).mkdir(parents=True)
    rows = "".join(f"{key},{key},1970-01-01 00:00:00\n" for key in range(SIDE_ROWS))
    (directory / "side_input.csv").write_text(rows)
    second = made.configuration.first_event_rate
    readers = [pq.ParquetWriter(directory / "flink" / f"reader-{n}.parquet", SCHEMA) for n in range(2)]
    for first in range(0, events, per_file):
        blocks = []
        for at in range(first, min(events, first + per_file), second):
            block = made.block(at, min(second, min(events, first + per_file) - at))
            if at + len(block) == events:
                block = pa.concat_tables([block, made.closing(events)])
            blocks.append(block)
        path = directory / "spark" / f"events-{first // per_file:05}.parquet"
        pq.write_table(pa.concat_tables(blocks), path, row_group_size=ROW_GROUP)
        os.utime(path, (first // per_file,) * 2)  # Spark takes the oldest file first
        for number, reader in enumerate(readers):
            at = first // second + number
            mine = blocks[at % 2 :: 2]
            if mine:
                reader.write_table(pa.concat_tables(mine), row_group_size=ROW_GROUP)
    for reader in readers:
        reader.close()


def _completed(columns: dict[str, object]) -> pa.Table:
    """Return a table of all columns; those that are missing are null."""
    n = len(columns["ms"])  # type: ignore[arg-type]
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(n, field.type)
        for field in SCHEMA
    ]
    return pa.table(arrays, SCHEMA)


def _prices(random: np.random.Generator, n: int) -> np.ndarray:
    return np.round(10.0 ** (random.random(n) * 6) * 100).astype(np.int64)


def _chosen(random: np.random.Generator, texts: list[str], n: int) -> pa.Array:
    return pa.array(texts).take(random.integers(len(texts), size=n))


def _lengths(texts: pa.Array) -> np.ndarray:
    return pc.binary_length(texts).to_numpy(zero_copy_only=False).astype(np.int64)


def _base_urls(random: np.random.Generator, n: int) -> list[str]:
    def folder() -> str:
        letters = random.integers(26, size=random.integers(3, 5))
        special = random.integers(13, size=len(letters)) == 0
        return "".join(
            "_" if blank else chr(97 + letter) for letter, blank in zip(letters, special, strict=True)
        )

    return [f"https://www.nexmark.com/{folder()}/{folder()}/{folder()}/item.htm?query=1" for _ in range(n)]


def _reversed_bits(number: int) -> int:
    """Return the 32 bits of a number in reverse order, as a signed number."""
    bits = int(f"{number:032b}"[::-1], 2)
    return bits - (1 << 32) if bits >> 31 else bits
