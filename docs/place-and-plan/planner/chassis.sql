-- The chassis that histogram.sql counts, for the manifest: take it from the same `telemetry`, with the same times.
-- A chassis of two generations comes out twice, and `ballast plan` refuses the part: it has one.
WITH settings AS (
  SELECT
    1767571200 AS from_s,
    1770595200 AS until_s
)
SELECT DISTINCT t.chassis, t.generation
FROM telemetry t CROSS JOIN settings s
WHERE t.t_s >= s.from_s AND t.t_s < s.until_s AND t.chassis <> ''
ORDER BY t.chassis
