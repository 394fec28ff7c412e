SELECT auction, bidder, price, channel, url, dateTime, extra, rank_number
FROM (SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS rank_number FROM bid)
WHERE rank_number <= 10
