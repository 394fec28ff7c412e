package org.minflinkd;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;

import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.local.LocalSchedulerBackend;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A source in Spark's real-time mode whose batches end on request, and which waits between two batches.
 *
 * In this mode Spark ends a batch after a given time only. A checkpoint needs the end of a batch when it is requested, and
 * needs to know of it. So this source stands before another one (option "minflinkd.format"), and its readers end when
 * they are told to. Option "minflinkd.key" names the `Control` that all sources of a query share.
 *
 * Only for sessions whose tasks run in this JVM, as readers look at the `Control`.
 */
public final class RealTimeSource implements TableProvider {
  private static final String FORMAT = "minflinkd.format";
  private static final String KEY = "minflinkd.key";
  private static final Map controls = new ConcurrentHashMap(); // key -> Control

  public static Control control(String key) {
    Control control = (Control) controls.get(key);
    if (control != null) return control;
    controls.putIfAbsent(key, new Control(key));
    return (Control) controls.get(key);
  }

  /** The query has ended, and does not run again. */
  public static void forget(String key) throws ReflectiveOperationException {
    Control control = (Control) controls.remove(key);
    if (control != null && control.backend != null) LocalThreads.need(control.backend, key, 0);
  }

  /** Where the batches of one query begin and end. */
  public static final class Control {
    private static final int SINGLE = 8; // buckets of one millisecond; then four for each power of two
    private static final int BUCKETS = 88; // up to 2 h
    private final String key;
    private final AtomicLong rows = new AtomicLong();
    private final AtomicLongArray latencies = new AtomicLongArray(BUCKETS); // since they were told last
    private final AtomicLong waited = new AtomicLong(); // all latencies together, in milliseconds, since then
    private long endedAt = 0; // nanoseconds: the first reader of the last batch has ended; 0: the next batch reads
    private long pause = -1; // microseconds in which nothing was read between two batches, the last time
    private volatile long cuts = 0;
    private volatile boolean looked = false; // a reader has found no row for a moment
    private String batch = null; // the one that has begun, or that waits to begin
    private boolean waits = false;
    private boolean released = false;
    private long boundaries = 0;
    private long cutsBefore = 0; // the batch ends when there have been more
    private int sourceTasks = 0; // of the present batch, as far as it is planned
    private int otherTasks = 0;
    private int threads = 0;
    private LocalSchedulerBackend backend;

    Control(String key) {
      this.key = key;
    }

    /** Call before each run of the query. `otherTasks`: those of a batch that are not of a source. */
    public synchronized void open(LocalSchedulerBackend backend, int otherTasks) {
      this.backend = backend;
      this.otherTasks = otherTasks;
      batch = null;
      waits = false;
      released = false;
      endedAt = 0;
    }

    /** End the batch that runs, soon. */
    public synchronized void cut() {
      cuts = cuts + 1;
    }

    public long cuts() {
      return cuts;
    }

    public long rows() {
      return rows.get();
    }

    /**
     * Rows so far, the last pause in microseconds (-1: none), and since last time all latencies together in milliseconds,
     * and the rows by bucket of their latency.
     */
    public synchronized String figures() {
      StringBuilder text = new StringBuilder();
      text.append(rows.get()).append(' ').append(pause).append(' ').append(waited.getAndSet(0));
      for (int bucket = 0; bucket < BUCKETS; bucket++) text.append(' ').append(latencies.getAndSet(bucket, 0));
      return text.toString();
    }

    public boolean looked() {
      return looked;
    }

    /**
     * Wait until the query is between two batches, with the last one committed. Returns how often it has been there,
     * which is more than `after`; or -1 after the given time. With `untilRows`, also returns -1 when there are rows.
     */
    public synchronized long awaitBoundary(long after, boolean untilRows, long millis) throws InterruptedException {
      long until = System.nanoTime() + millis * 1000000;
      for (long left = millis; left > 0; left = (until - System.nanoTime()) / 1000000) {
        if (waits && boundaries > after) return boundaries;
        if (untilRows && rows.get() > 0) return -1;
        wait(left);
      }
      return waits && boundaries > after ? boundaries : -1;
    }

    /** Let the next batch begin. It ends when there have been more than `cutsBefore` cuts. */
    public synchronized void release(long cutsBefore) {
      if (!waits) return;
      this.cutsBefore = cutsBefore;
      waits = false;
      released = true;
      notifyAll();
    }

    /** Called by each source for each batch. The first call waits. Returns the cuts before the batch. */
    synchronized long begin() {
      String next = SparkContext.getOrCreate().getLocalProperty("streaming.sql.batchId");
      if (!next.equals(batch)) {
        batch = next;
        released = false;
        waits = true;
        boundaries = boundaries + 1;
        notifyAll();
        try {
          while (!released) wait();
        } catch (InterruptedException e) { // the query is stopped
          throw new UncheckedIOException(new InterruptedIOException());
        } finally {
          waits = false;
        }
        sourceTasks = 0;
      }
      return cutsBefore;
    }

    /** All tasks of a batch run at once, so there must be a thread for each. Called for each place that reads a source. */
    synchronized void planned(int partitions) throws ReflectiveOperationException {
      sourceTasks = sourceTasks + partitions;
      if (sourceTasks + otherTasks <= threads) return;
      threads = sourceTasks + otherTasks;
      LocalThreads.need(backend, key, threads);
    }

    /** A row is done with, by the stage that has read it. `millis`: since the time of its record. */
    void done(long millis) {
      latencies.incrementAndGet(bucket(millis));
      waited.addAndGet(Math.max(millis, 0L));
    }

    static int bucket(long ms) {
      if (ms < SINGLE) return (int) Math.max(ms, 0);
      int power = 63 - Long.numberOfLeadingZeros(ms); // 3: from 8 to 15
      return (int) Math.min(SINGLE + 4 * (power - 3) + ((ms >> (power - 2)) & 3), BUCKETS - 1);
    }

    synchronized void ended() {
      if (endedAt == 0) endedAt = System.nanoTime();
    }

    synchronized void resumed() {
      if (endedAt == 0) return;
      pause = (System.nanoTime() - endedAt) / 1000;
      endedAt = 0;
    }

    void read(boolean row) {
      if (!row) looked = true;
      else if (rows.getAndIncrement() == 0) firstRow();
    }

    synchronized void firstRow() { // not private: Janino would let it lock the class
      notifyAll();
    }
  }

  private static TableProvider inner(String format) {
    try {
      return (TableProvider) org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(
          format, org.apache.spark.sql.internal.SQLConf.get()).getConstructor(new Class[0]).newInstance(new Object[0]);
    } catch (ReflectiveOperationException e) {
      throw new IllegalArgumentException(format, e);
    }
  }

  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return inner(options.get(FORMAT)).inferSchema(options);
  }

  public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
    CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(properties);
    return new CutTable(inner(options.get(FORMAT)).getTable(schema, partitioning, properties), options.get(KEY));
  }

  public static final class CutTable implements SupportsRead {
    private final Table table;
    private final String key;

    CutTable(Table table, String key) {
      this.table = table;
      this.key = key;
    }

    public String name() { return table.name(); }
    public StructType schema() { return table.schema(); }
    public Set capabilities() { return table.capabilities(); }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return new CutScanBuilder(((SupportsRead) table).newScanBuilder(options), key);
    }
  }

  public static final class CutScanBuilder implements ScanBuilder {
    private final ScanBuilder builder;
    private final String key;

    CutScanBuilder(ScanBuilder builder, String key) {
      this.builder = builder;
      this.key = key;
    }

    public Scan build() { return new CutScan(builder.build(), key); }
  }

  public static final class CutScan implements Scan {
    private final Scan scan;
    private final String key;

    CutScan(Scan scan, String key) {
      this.scan = scan;
      this.key = key;
    }

    public StructType readSchema() { return scan.readSchema(); }
    public String description() { return scan.description(); }
    public CustomMetric[] supportedCustomMetrics() { return scan.supportedCustomMetrics(); }
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
      return new CutStream(scan.toMicroBatchStream(checkpoint), control(key));
    }
  }

  public static final class CutStream implements MicroBatchStream, SupportsRealTimeMode, SupportsTriggerAvailableNow {
    private final MicroBatchStream stream;
    private final Control control;
    private long cutsBefore;

    CutStream(MicroBatchStream stream, Control control) {
      this.stream = stream;
      this.control = control;
    }

    public void prepareForRealTimeMode() { ((SupportsRealTimeMode) stream).prepareForRealTimeMode(); }

    /** On the query's thread. The batch before is committed. */
    public InputPartition[] planInputPartitions(Offset start) {
      cutsBefore = control.begin();
      InputPartition[] planned = ((SupportsRealTimeMode) stream).planInputPartitions(start);
      try {
        control.planned(planned.length);
      } catch (ReflectiveOperationException e) {
        throw new IllegalStateException(e);
      }
      return planned;
    }

    public PartitionReaderFactory createReaderFactory() {
      return new CutReaderFactory(stream.createReaderFactory(), control.key, cutsBefore);
    }

    public Offset mergeOffsets(PartitionOffset[] offsets) { return ((SupportsRealTimeMode) stream).mergeOffsets(offsets); }
    public InputPartition[] planInputPartitions(Offset start, Offset end) { return stream.planInputPartitions(start, end); }
    public Offset latestOffset() { return stream.latestOffset(); }
    public Offset latestOffset(Offset start, ReadLimit limit) {
      return ((SupportsTriggerAvailableNow) stream).latestOffset(start, limit);
    }
    public ReadLimit getDefaultReadLimit() { return ((SupportsTriggerAvailableNow) stream).getDefaultReadLimit(); }
    public Offset reportLatestOffset() { return ((SupportsTriggerAvailableNow) stream).reportLatestOffset(); }
    public void prepareForTriggerAvailableNow() { ((SupportsTriggerAvailableNow) stream).prepareForTriggerAvailableNow(); }
    public Offset initialOffset() { return stream.initialOffset(); }
    public Offset deserializeOffset(String json) { return stream.deserializeOffset(json); }
    public void commit(Offset end) { stream.commit(end); }
    public void stop() { stream.stop(); }
    public String toString() { return stream.toString(); }
  }

  public static final class CutReaderFactory implements PartitionReaderFactory {
    private final PartitionReaderFactory factory;
    private final String key;
    private final long cutsBefore;

    CutReaderFactory(PartitionReaderFactory factory, String key, long cutsBefore) {
      this.factory = factory;
      this.key = key;
      this.cutsBefore = cutsBefore;
    }

    public PartitionReader createReader(InputPartition partition) {
      Control control = (Control) controls.get(key);
      if (control == null) throw new IllegalStateException("the query has ended");
      return new CutReader((SupportsRealTimeRead) factory.createReader(partition), control, cutsBefore);
    }
  }

  /** Polls for short times, and looks in between whether its batch is to end. */
  public static final class CutReader implements SupportsRealTimeRead {
    private static final long SLICE = 20; // milliseconds
    private static final int TIMESTAMP = 5; // a column of Kafka's source, in microseconds
    private final SupportsRealTimeRead reader;
    private final Control control;
    private final long cutsBefore;
    private boolean begun = false;
    private long recordMillis = -1; // the time of the row that was handed out last

    CutReader(SupportsRealTimeRead reader, Control control, long cutsBefore) {
      this.reader = reader;
      this.control = control;
      this.cutsBefore = cutsBefore;
    }

    public SupportsRealTimeRead.RecordStatus nextWithTimeout(Long start, Long timeout) throws IOException {
      if (!begun) control.resumed();
      begun = true;
      if (recordMillis >= 0) control.done(System.currentTimeMillis() - recordMillis);
      recordMillis = -1;
      long left = timeout.longValue();
      long began = System.nanoTime();
      while (left > 0 && control.cuts() == cutsBefore) {
        SupportsRealTimeRead.RecordStatus status = reader.nextWithTimeout(start, Long.valueOf(Math.min(left, SLICE)));
        control.read(status.hasRecord());
        if (status.hasRecord()) {
          recordMillis = ((InternalRow) reader.get()).getLong(TIMESTAMP) / 1000;
          return status;
        }
        left = timeout.longValue() - (System.nanoTime() - began) / 1000000;
      }
      control.ended();
      return SupportsRealTimeRead.RecordStatus.newStatusWithoutArrivalTime(false);
    }

    public PartitionOffset getOffset() { return reader.getOffset(); }
    public boolean next() throws IOException { return reader.next(); }
    public Object get() { return reader.get(); }
    public void close() throws IOException { reader.close(); }
    public CustomTaskMetric[] currentMetricsValues() { return reader.currentMetricsValues(); }
    public void initMetricsValues(CustomTaskMetric[] metrics) { reader.initMetricsValues(metrics); }
  }
}
