"""The sinks, formats, options and Spark settings that a job may use, as tables, and what to say about all others."""

from __future__ import annotations

from minflinkd.jobgraph.faults import nearest

FILE_FORMATS = ("parquet", "json", "csv", "text", "orc")

TABLE_FORMATS = ("delta", "iceberg")  # appended to, in the table's own transactions

PASSING_FORMATS = ("console", "collect", "noop")  # no other system has their rows

SINK_FORMATS = (*FILE_FORMATS, *TABLE_FORMATS, "kafka", "jdbc", *PASSING_FORMATS)

# Spark ignores an option that it does not know. So an option that nearly matches a known one is refused as misspelt.
# Any other is passed on, because Spark's own list is longer than its documentation.
_FILES_IN = """maxFilesPerTrigger maxBytesPerTrigger maxCachedFiles discardCachedInputRatio maxFileAge latestFirst
    fileNameOnly cleanSource sourceArchiveDir basePath pathGlobFilter recursiveFileLookup modifiedBefore modifiedAfter
    ignoreCorruptFiles ignoreMissingFiles ignoreInvalidPartitionPaths ignoredPathSegmentRegex archivePathFilter"""
_DATES = "dateFormat timeFormat timestampFormat timestampNTZFormat timeZone locale enableDateTimeParsingFallback"
_TEXTS = f"{_DATES} mode columnNameOfCorruptRecord multiLine lineSep encoding charset compression samplingRatio"
_BY_FORMAT = {
    "json": f"""{_TEXTS} primitivesAsString prefersDecimal allowComments allowUnquotedFieldNames allowSingleQuotes
        allowNumericLeadingZeros allowNonNumericNumbers allowBackslashEscapingAnyCharacter allowUnquotedControlChars
        dropFieldIfAllNull ignoreNullFields inferTimestamp pretty sortKeys writeNonAsciiCharacterAsCodePoint""",
    "csv": f"""{_TEXTS} sep delimiter quote quoteAll escape escapeQuotes charToEscapeQuoteEscaping comment header
        inferSchema preferDate enforceSchema ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace nullValue nanValue
        emptyValue positiveInf negativeInf maxColumns maxCharsPerColumn unescapedQuoteHandling codec extension""",
    "text": "wholetext lineSep encoding compression",
    "parquet": "mergeSchema datetimeRebaseMode int96RebaseMode compression",
    "orc": "mergeSchema compression",
}

# Options of a source or sink that the user may not set, and why.
_REFUSED_OPTIONS = {
    "checkpointlocation": "minflinkd keeps the checkpoints; see `checkpointing`",
    "path": "write `path` beside `format`, not under `options`",
    "queryname": "a query has the name of its task",
}


def misspelt_option(format: str, option: str, *, reads: bool) -> str | None:
    """Return the known option that `option` of a files source or sink nearly matches.

    None if `option` is known, or unlike any that is.
    """
    if format not in _BY_FORMAT:
        return None
    known = (_BY_FORMAT[format] + (f" {_FILES_IN}" if reads else "")).split()
    if option.lower() in {name.lower() for name in known}:  # the case of Spark's options does not matter
        return None
    return nearest(option, known, cutoff=0.8)


def refused_option(option: str) -> str | None:
    """Return why a source or sink may not have this option; None if it may."""
    return _REFUSED_OPTIONS.get(option.lower())


# Settings that minflinkd decides for every task, by the task's parallelism or because restore depends on them.
_OWNED = {
    "spark.sql.shuffle.partitions": "it follows from the parallelism: set `parallelism`, or `max-parallelism`",
    "spark.sql.exchange.reuse": "with it, what reads one operator twice would lose rows",
    "spark.sql.streaming.checkpointLocation": "minflinkd keeps the checkpoints; see `checkpointing`",
    "spark.sql.streaming.checkpointFileManagerClass": "snapshots depend on it",
    "spark.sql.streaming.minBatchesToRetain": "snapshots depend on it",
    "spark.sql.streaming.stopActiveRunOnRestart": "restores depend on it",
    "spark.sql.streaming.stateStore.providerClass": "snapshots and rescaling need the RocksDB provider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "snapshots depend on it",
    "spark.sql.streaming.stateStore.encodingFormat": "snapshots depend on it",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "snapshots depend on it",
}
_WHOLE_JVM = (
    "spark.sql.streaming.stateStore.maintenance",
    "spark.sql.streaming.stateStore.numStateStoreMaintenance",
    "spark.sql.streaming.stateStore.unloadOnCommit",
    "spark.sql.streaming.streamingQueryListeners",
    "spark.sql.streaming.ui.",
    "spark.sql.ui.",
    "spark.sql.artifact.",
    "spark.sql.catalogImplementation",
    "spark.sql.extensions",
    "spark.sql.queryExecutionListeners",
    "spark.sql.warehouse.dir",
)


def refused_setting(name: str) -> str | None:
    """Return why a job may not have this Spark setting; None if it may."""
    for owned, why in _OWNED.items():
        if name.lower() == owned.lower():
            return f"minflinkd sets it: {why}"
    if name.startswith(_WHOLE_JVM) or not name.startswith("spark.sql."):
        return "it acts on the whole JVM, which jobs share: an administrator sets it for all TaskManagers"
    return None
