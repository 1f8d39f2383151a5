"""The queries over windows, in Flink's SQL: q5, q7, q8, q11, q12, q15 and q16.

The text is the published one with three differences. The table has all events, since they have one watermark;
WHERE chooses. Where the published text joins a window's rows with its maximum, RANK() says the same (q5, q7).
Where it updates the row of a day with each bid, here a window of the day emits the row at its end (q15, q16).
"""

from __future__ import annotations

from pyspark.sql import DataFrame

import timerheap.spark
from nexmark.streams import WATERMARK


def run(events: DataFrame, query: str) -> DataFrame:
    """Run a query over the table `events`."""
    events.createOrReplaceTempView("events")
    time = {} if "p_time" in query else {"watermark": WATERMARK}
    return timerheap.spark.sql(events.sparkSession, query, **time)


def q5(events: DataFrame) -> DataFrame:
    """Find the auctions with the most bids in the last 10 seconds, every 2 seconds."""
    return run(
        events,
        """
        SELECT auction, num
        FROM (
          SELECT *, RANK() OVER (PARTITION BY window_start, window_end ORDER BY num DESC) AS place
          FROM (
            SELECT auction, COUNT(*) AS num, window_start, window_end
            FROM TABLE(HOP(TABLE events, DESCRIPTOR(dateTime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
            WHERE event_type = 2
            GROUP BY auction, window_start, window_end
          )
        )
        WHERE place <= 1
        """,
    )


def q7(events: DataFrame) -> DataFrame:
    """Find the highest bids of each 10 seconds."""
    return run(
        events.select("event_type", "auction", "bidder", "price", "dateTime", "extra"),
        """
        SELECT auction, bidder, price, dateTime, extra
        FROM (
          SELECT *, RANK() OVER (PARTITION BY window_start, window_end ORDER BY price DESC) AS place
          FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
          WHERE event_type = 2
        )
        WHERE place <= 1
        """,
    )


def q8(events: DataFrame) -> DataFrame:
    """Find the persons who opened auctions in the 10 seconds in which they registered."""
    return run(
        events,
        """
        SELECT P.id, P.name, P.window_start AS stime
        FROM (
          SELECT id, name, window_start, window_end
          FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
          WHERE event_type = 0
          GROUP BY id, name, window_start, window_end
        ) P
        JOIN (
          SELECT seller, window_start, window_end
          FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
          WHERE event_type = 1
          GROUP BY seller, window_start, window_end
        ) A
        ON P.id = A.seller AND P.window_start = A.window_start AND P.window_end = A.window_end
        """,
    )


def q11(events: DataFrame) -> DataFrame:
    """Count the bids of each bidder until 10 seconds pass without one."""
    return run(
        events,
        """
        SELECT bidder, COUNT(*) AS bid_count, window_start AS starttime, window_end AS endtime
        FROM TABLE(SESSION(TABLE events PARTITION BY bidder, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
        WHERE event_type = 2
        GROUP BY bidder, window_start, window_end
        """,
    )


def q12(events: DataFrame) -> DataFrame:
    """Count the bids of each bidder in 10 seconds of processing time."""
    return run(
        events,
        """
        SELECT bidder, COUNT(*) AS bid_count, window_start AS starttime, window_end AS endtime
        FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(p_time), INTERVAL '10' SECOND))
        WHERE event_type = 2
        GROUP BY bidder, window_start, window_end
        """,
    )


_DAY = """
    SELECT {key} DATE_FORMAT(window_start, 'yyyy-MM-dd') AS `day`, {latest}
      COUNT(*) AS total_bids,
      COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
      COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
      COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
      COUNT(DISTINCT bidder) AS total_bidders,
      COUNT(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
      COUNT(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders,
      COUNT(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders,
      COUNT(DISTINCT auction) AS total_auctions,
      COUNT(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions,
      COUNT(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions,
      COUNT(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions
    FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(dateTime), INTERVAL '1' DAY))
    WHERE event_type = 2
    GROUP BY {key} window_start, window_end
"""


def q15(events: DataFrame) -> DataFrame:
    """Count the bids, bidders and auctions of a day, by price."""
    return run(events, _DAY.format(key="", latest=""))


def q16(events: DataFrame) -> DataFrame:
    """Count them for each channel, with the minute of its latest bid."""
    return run(events, _DAY.format(key="channel,", latest="DATE_FORMAT(MAX(dateTime), 'HH:mm') AS `minute`,"))
