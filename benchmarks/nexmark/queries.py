"""The queries of Nexmark in Spark's SQL, each with what it must find.

`sql` is what a stream runs. `expected` says the same as the benchmark does, in the words of a batch, and so often in
another way: ROW_NUMBER instead of the largest struct, COUNT(DISTINCT ...) instead of the size of a set. Both read the
views person, auction and bid.

Spark has no retractions. A query whose rows change is in update mode, and its result is the last row of each `key`. Two
aggregations, one over the other, would need them, too; so q4 and q9 keep their state in Python (`closing.py`).

Left out are q6, which Flink cannot run either, q10, whose subject is a files sink, and q23.
"""

from __future__ import annotations

from dataclasses import dataclass

WATERMARK = "4 seconds"
VIEWS = {
    "person": "SELECT person.*, dateTime FROM events WHERE kind = 0",
    "auction": "SELECT auction.*, dateTime FROM events WHERE kind = 1",
    "bid": "SELECT bid.*, dateTime FROM events WHERE kind = 2",
}


@dataclass(frozen=True)
class Query:
    """`views`: what it reads. `key`: the columns that identify a row of its result; none: rows never change."""

    name: str
    what: str
    views: tuple[str, ...]
    sql: str = ""
    python: str = ""  # instead of `sql`: a function of `closing.py`
    expected: str = ""  # none: it depends on the time of day
    key: tuple[str, ...] = ()

    @property
    def output_mode(self) -> str:
        return "update" if self.key and self.sql else "append"


_RANKS = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")


def _statistics(*, distinct: bool) -> str:
    """Return the columns of q15 and q16: bids, bidders and auctions, all and by three ranks of prices."""

    def number(column: str, rank: str) -> str:
        only = f" FILTER (WHERE {rank})" if rank else ""
        return f"count(DISTINCT {column}){only}" if distinct else f"size(collect_set({column}){only})"

    names = ("total", *(f"rank{n}" for n in range(1, 4)))
    ranks = dict(zip(names, ("", *_RANKS), strict=True))
    bids = [f"count(*){f' FILTER (WHERE {rank})' if rank else ''} AS {name}_bids" for name, rank in ranks.items()]
    bidders = [f"{number('bidder', rank)} AS {name}_bidders" for name, rank in ranks.items()]
    auctions = [f"{number('auction', rank)} AS {name}_auctions" for name, rank in ranks.items()]
    return ", ".join([*bids, *bidders, *auctions])


_DAY = "date_format(dateTime, 'yyyy-MM-dd')"
_CHANNEL_ID = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"
_BIDS = "SELECT auction, bidder, price, dateTime, extra FROM bid"
_EURO = "SELECT auction, bidder, 0.908 * price AS price, dateTime, extra FROM bid"
_SOME = "SELECT auction, price FROM bid WHERE auction % 123 = 0"
_LOCAL = """SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')"""
_SIDE = """SELECT auction, bidder, price, dateTime, S.value FROM bid
JOIN (SELECT id AS key, concat('value-', id) AS value FROM range(10000)) S ON auction % 10000 = S.key"""
_CALCULATED = """SELECT auction, bidder, 0.908 * price AS price,
  CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
       WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bidTimeType,
  dateTime, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000"""
_WITH_AUCTION = """SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.dateTime AS bid_time, B.extra AS bid_extra,
  A.itemName, A.description, A.initialBid, A.reserve, A.dateTime, A.expires, A.seller, A.category, A.extra
FROM bid B JOIN auction A ON B.auction = A.id WHERE A.category = 10"""
_CHANNELS = f"""SELECT auction, bidder, price, channel,
  CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
       ELSE {_CHANNEL_ID} END AS channel_id
FROM bid WHERE {_CHANNEL_ID} <> '' OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')"""
_FOLDERS = """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
  split_part(url, '/', 6) AS dir3 FROM bid"""
_AUCTION_DAY = f"""SELECT auction, {_DAY} AS day, count(*) AS total_bids,
  {", ".join(f"count(*) FILTER (WHERE {rank}) AS rank{n}_bids" for n, rank in enumerate(_RANKS, 1))},
  min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
FROM bid GROUP BY auction, {_DAY}"""
_SESSIONS = """SELECT bidder, count(*) AS bid_count, session_window(dateTime, '10 seconds').start AS starttime,
  session_window(dateTime, '10 seconds').end AS endtime
FROM bid GROUP BY bidder, session_window(dateTime, '10 seconds')"""

QUERIES = {
    query.name: query
    for query in (
        Query("q0", "the bids as they are", ("bid",), _BIDS, expected=_BIDS),
        Query("q1", "prices in euros", ("bid",), _EURO, expected=_EURO),
        Query("q2", "bids for some auctions", ("bid",), _SOME, expected=_SOME),
        Query(
            "q3", "who sells in three states: a join without a limit", ("auction", "person"), _LOCAL, expected=_LOCAL
        ),
        Query(
            "q4",
            "the average closing price of each category",
            ("auction", "bid"),
            python="closing_prices",
            expected="""SELECT category, avg(final) AS price FROM (
  SELECT A.category, max(B.price) AS final FROM auction A JOIN bid B
    ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires GROUP BY A.id, A.category)
GROUP BY category""",
            key=("category",),
        ),
        Query(
            "q5",
            "the auctions with most bids, in sliding windows",
            ("bid",),
            """SELECT w.start AS starttime, hot.auction, hot.num FROM (
  SELECT w, explode(filter(found, each -> each.num = most)) AS hot FROM (
    SELECT w, max(num) AS most, collect_list(struct(auction, num)) AS found FROM (
      SELECT auction, window(dateTime, '10 seconds', '2 seconds') AS w, count(*) AS num FROM bid
      GROUP BY auction, window(dateTime, '10 seconds', '2 seconds'))
    GROUP BY w))""",
            expected="""SELECT w.start AS starttime, auction, num FROM (
  SELECT *, rank() OVER (PARTITION BY w ORDER BY num DESC) AS place FROM (
    SELECT auction, window(dateTime, '10 seconds', '2 seconds') AS w, count(*) AS num FROM bid
    GROUP BY auction, window(dateTime, '10 seconds', '2 seconds')))
WHERE place = 1""",
        ),
        Query(
            "q7",
            "the highest bids of each ten seconds",
            ("bid",),
            """SELECT B.auction, B.price, B.bidder, B.dateTime, B.extra FROM bid B JOIN (
  SELECT window_time(w) AS last, most FROM (
    SELECT window(dateTime, '10 seconds') AS w, max(price) AS most FROM bid GROUP BY window(dateTime, '10 seconds'))) M
ON B.price = M.most AND B.dateTime >= M.last - INTERVAL 10 SECONDS AND B.dateTime <= M.last + INTERVAL 1 SECOND
WHERE B.dateTime BETWEEN M.last + INTERVAL '0.000001' SECOND - INTERVAL 10 SECONDS
  AND M.last + INTERVAL '0.000001' SECOND""",
            expected="""SELECT B.auction, B.price, B.bidder, B.dateTime, B.extra FROM bid B JOIN (
  SELECT window(dateTime, '10 seconds') AS w, max(price) AS most FROM bid GROUP BY window(dateTime, '10 seconds')) M
ON B.price = M.most WHERE B.dateTime BETWEEN M.w.start AND M.w.end""",
        ),
        Query(
            "q8",
            "who has registered and sold in the same ten seconds",
            ("person", "auction"),
            """SELECT P.id, P.name, P.w.start AS starttime FROM (
  SELECT id, name, window(dateTime, '10 seconds') AS w FROM person GROUP BY id, name, window(dateTime, '10 seconds')) P
JOIN (SELECT seller, window(dateTime, '10 seconds') AS w FROM auction
  GROUP BY seller, window(dateTime, '10 seconds')) A
ON P.id = A.seller AND P.w = A.w""",
            expected="""SELECT DISTINCT P.id, P.name, window(P.dateTime, '10 seconds').start AS starttime FROM person P
WHERE EXISTS (SELECT 1 FROM auction A WHERE A.seller = P.id
  AND floor(unix_millis(A.dateTime) / 10000) = floor(unix_millis(P.dateTime) / 10000))""",
        ),
        Query(
            "q9",
            "the winning bid of each auction",
            ("auction", "bid"),
            python="winning_bids",
            expected="""SELECT id, itemName, category, seller, bidder, price, bid_time FROM (
  SELECT A.*, B.bidder, B.price, B.dateTime AS bid_time,
    row_number() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime, B.bidder) AS place
  FROM auction A JOIN bid B ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires)
WHERE place = 1""",
            key=("id",),
        ),
        Query("q11", "how often each bidder bids in one go", ("bid",), _SESSIONS, expected=_SESSIONS),
        Query(
            "q12",
            "bids of each bidder, by the time of day when they are processed",
            ("bid",),
            """SELECT bidder, count(*) AS bid_count, w.start AS starttime, w.end AS endtime FROM (
  SELECT bidder, window(current_timestamp(), '10 seconds') AS w FROM bid)
GROUP BY bidder, w""",
            key=("bidder", "starttime"),
        ),
        Query("q13", "bids with a value from a small table", ("bid",), _SIDE, expected=_SIDE),
        Query("q14", "a calculation, and characters that are counted", ("bid",), _CALCULATED, expected=_CALCULATED),
        Query(
            "q15",
            "how many bid each day",
            ("bid",),
            f"SELECT {_DAY} AS day, {_statistics(distinct=False)} FROM bid GROUP BY {_DAY}",
            expected=f"SELECT {_DAY} AS day, {_statistics(distinct=True)} FROM bid GROUP BY {_DAY}",
            key=("day",),
        ),
        Query(
            "q16",
            "how many bid each day through each channel",
            ("bid",),
            f"""SELECT channel, {_DAY} AS day, max(date_format(dateTime, 'HH:mm')) AS minute,
  {_statistics(distinct=False)} FROM bid GROUP BY channel, {_DAY}""",
            expected=f"""SELECT channel, {_DAY} AS day, max(date_format(dateTime, 'HH:mm')) AS minute,
  {_statistics(distinct=True)} FROM bid GROUP BY channel, {_DAY}""",
            key=("channel", "day"),
        ),
        Query("q17", "each day of each auction", ("bid",), _AUCTION_DAY, expected=_AUCTION_DAY, key=("auction", "day")),
        Query(
            "q18",
            "the last bid of each bidder for each auction",
            ("bid",),
            """SELECT auction, bidder, last.* FROM (
  SELECT auction, bidder, max(struct(dateTime, price, channel, url, extra)) AS last FROM bid
  GROUP BY auction, bidder)""",
            expected="""SELECT auction, bidder, dateTime, price, channel, url, extra FROM (
  SELECT *, row_number() OVER (PARTITION BY bidder, auction
    ORDER BY dateTime DESC, price DESC, channel DESC, url DESC, extra DESC) AS place FROM bid)
WHERE place = 1""",
            key=("auction", "bidder"),
        ),
        Query(
            "q19",
            "the ten highest bids for each auction",
            ("bid",),
            """SELECT auction, max_by(struct(price, bidder, dateTime, channel, url, extra),
  struct(price, bidder, dateTime, channel, url, extra), 10) AS best FROM bid GROUP BY auction""",
            expected="""SELECT auction, collect_list(each) AS best FROM (
  SELECT auction, struct(price, bidder, dateTime, channel, url, extra) AS each, row_number() OVER (PARTITION BY auction
    ORDER BY price DESC, bidder DESC, dateTime DESC, channel DESC, url DESC, extra DESC) AS place FROM bid
  ORDER BY auction, place)
WHERE place <= 10 GROUP BY auction""",
            key=("auction",),
        ),
        Query(
            "q20",
            "bids with their auction: a join without a limit",
            ("bid", "auction"),
            _WITH_AUCTION,
            expected=_WITH_AUCTION,
        ),
        Query("q21", "the id of each channel", ("bid",), _CHANNELS, expected=_CHANNELS),
        Query("q22", "the folders of each URL", ("bid",), _FOLDERS, expected=_FOLDERS),
    )
}
