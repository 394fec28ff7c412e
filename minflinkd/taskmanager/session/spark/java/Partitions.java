package org.minflinkd;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;

import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import org.apache.spark.scheduler.StageInfo;
import org.apache.spark.scheduler.TaskInfo;

/**
 * What the partitions of each query have done: in the last runs of each of its stages, and since the query was started.
 *
 * Spark keeps the same for its web page, but of all queries together and of some dozens of stages only, so a quick query
 * makes it forget a slow one. Here, each query has its own room. Spark calls this on a thread of its own.
 *
 * A stage is known again in the next micro-batch by the number of its job in the micro-batch, and its place in the job:
 * a query's micro-batches have the same plan. Nothing is decided here.
 */
public final class Partitions extends SparkListener {
  private static final int QUERIES = 64; // the least recently used one is forgotten first
  private static final int STAGES = 24; // of a query
  private static final int IN_A_JOB = 1000; // stages, at most: a larger number is the next job's
  private static final int KEPT = 4096; // partitions of a stage that are told apart
  private static final int UNDER_WAY = 1024; // jobs, and stages: of more, Spark has dropped the events of their ends

  private final LinkedHashMap queries = new LinkedHashMap(16, 0.75f, true); // run id -> Query
  private final Map running = new LinkedHashMap(); // stage id -> Execution
  private final Map jobs = new LinkedHashMap(); // job id -> its stage ids

  public synchronized void onJobStart(SparkListenerJobStart event) {
    Properties properties = event.properties();
    String run = properties == null ? null : properties.getProperty("spark.jobGroup.id");
    String batch = properties == null ? null : properties.getProperty("streaming.sql.batchId");
    if (run == null || batch == null) return;
    Query query = (Query) queries.get(run);
    if (query == null) {
      query = new Query();
      queries.put(run, query);
      if (queries.size() > QUERIES) queries.remove(queries.keySet().iterator().next());
    }
    int first = IN_A_JOB * query.begin(Long.parseLong(batch));
    TreeMap infos = new TreeMap();
    scala.collection.Iterator each = event.stageInfos().iterator();
    while (each.hasNext()) {
      StageInfo info = (StageInfo) each.next();
      infos.put(Integer.valueOf(info.stageId()), info);
    }
    int place = 0;
    for (Iterator one = infos.values().iterator(); one.hasNext(); place++) {
      StageInfo info = (StageInfo) one.next();
      Stage stage = query.stage(first + Math.min(place, IN_A_JOB - 1));
      if (stage != null) add(running, info.stageId(), new Execution(stage, query.batch, info.numTasks()));
    }
    add(jobs, event.jobId(), new ArrayList(infos.keySet()));
  }

  private static void add(Map underWay, int id, Object one) {
    underWay.put(Integer.valueOf(id), one);
    if (underWay.size() > UNDER_WAY) underWay.remove(underWay.keySet().iterator().next());
  }

  /** Forgets the stages that were skipped or have failed: the others are forgotten when they are complete. */
  public synchronized void onJobEnd(SparkListenerJobEnd event) {
    List stages = (List) jobs.remove(Integer.valueOf(event.jobId()));
    if (stages != null) running.keySet().removeAll(stages);
  }

  public synchronized void onTaskStart(SparkListenerTaskStart event) {
    Execution execution = (Execution) running.get(Integer.valueOf(event.stageId()));
    if (execution == null) return;
    execution.stage.underWay = execution;
    execution.partition(event.taskInfo());
  }

  public synchronized void onTaskEnd(SparkListenerTaskEnd event) {
    Execution execution = (Execution) running.get(Integer.valueOf(event.stageId()));
    if (execution == null) return;
    Partition one = execution.partition(event.taskInfo());
    TaskMetrics metrics = event.taskMetrics();
    if (metrics == null) return;
    one.spent[Partition.MS] = metrics.executorRunTime();
    one.spent[Partition.ROWS_IN] = metrics.inputMetrics().recordsRead() + metrics.shuffleReadMetrics().recordsRead();
    one.spent[Partition.ROWS_OUT] =
        metrics.outputMetrics().recordsWritten() + metrics.shuffleWriteMetrics().recordsWritten();
    one.spent[Partition.BYTES_IN] = metrics.inputMetrics().bytesRead() + metrics.shuffleReadMetrics().totalBytesRead();
    one.spent[Partition.BYTES_OUT] =
        metrics.outputMetrics().bytesWritten() + metrics.shuffleWriteMetrics().bytesWritten();
  }

  public synchronized void onStageCompleted(SparkListenerStageCompleted event) {
    Integer id = Integer.valueOf(event.stageInfo().stageId());
    Execution execution = (Execution) running.get(id);
    if (execution == null || event.stageInfo().failureReason().isDefined()) return;
    running.remove(id);
    execution.stage.complete(execution);
  }

  /** Returns a line for each of the last executions of each stage that is complete, or is the first one of its stage. */
  public synchronized String stages(String run) {
    StringBuilder out = new StringBuilder();
    Query query = (Query) queries.get(run);
    if (query == null) return "";
    for (Iterator each = query.stages.entrySet().iterator(); each.hasNext();) {
      Map.Entry one = (Map.Entry) each.next();
      Stage stage = (Stage) one.getValue();
      for (int i = 0; i < 2; i++) {
        Execution execution = i == 0 ? stage.before : stage.shown();
        if (execution == null) continue;
        long[] sums = execution.sums();
        out.append(one.getKey()).append('\t').append(execution.batch).append('\t').append(execution.tasks);
        for (int k = 0; k < sums.length; k++) out.append('\t').append(sums[k]);
        out.append('\t').append(stage.ms).append('\t').append(stage.longestMs).append('\n');
      }
    }
    return out.toString();
  }

  /**
   * Returns what a stage's last execution was: a line with its micro-batch and how many partitions it had, and a line
   * for each of them, but at most for the `most` that took longest.
   */
  public synchronized String partitions(String run, int key, int most) {
    Query query = (Query) queries.get(run);
    Stage stage = query == null ? null : (Stage) query.stages.get(Integer.valueOf(key));
    Execution execution = stage == null ? null : stage.shown();
    if (execution == null) return "";
    List found = new ArrayList(execution.partitions.values());
    long now = System.currentTimeMillis();
    Collections.sort(found, new Longest(now));
    StringBuilder out = new StringBuilder();
    out.append(execution.batch).append('\t').append(execution.tasks).append('\n');
    for (int i = 0; i < Math.min(found.size(), most); i++) {
      Partition one = (Partition) found.get(i);
      out.append(one.index).append('\t').append(one.host).append('\t').append(one.executor).append('\t');
      out.append(one.attempt).append('\t').append(one.status).append('\t').append(one.started);
      for (int k = 0; k < Partition.SPENT; k++) out.append('\t').append(k == Partition.MS ? one.ms(now) : one.spent[k]);
      long[] totals = (long[]) stage.totals.get(Integer.valueOf(one.index));
      for (int k = 0; k < Partition.SPENT; k++) out.append('\t').append(totals == null ? 0 : totals[k]);
      out.append('\n');
    }
    return out.toString();
  }

  private static final class Query {
    final TreeMap stages = new TreeMap(); // key -> Stage
    long batch = -1;
    int jobs;

    /** Begins a job of a micro-batch. Returns its number in it. */
    int begin(long of) {
      if (of != batch) jobs = 0;
      batch = of;
      return jobs++;
    }

    Stage stage(int key) {
      Stage known = (Stage) stages.get(Integer.valueOf(key));
      if (known == null && stages.size() < STAGES) {
        known = new Stage();
        stages.put(Integer.valueOf(key), known);
      }
      return known;
    }
  }

  private static final class Stage {
    final Map totals = new HashMap(); // partition -> what it has spent in all complete executions
    long ms;
    long longestMs; // of the longest partition of each execution
    Execution underWay;
    Execution last;
    Execution before;

    Execution shown() {
      return last != null ? last : underWay;
    }

    void complete(Execution execution) {
      before = last;
      last = execution;
      underWay = null;
      long[] sums = execution.sums();
      ms += sums[0];
      longestMs += sums[1];
      for (Iterator each = execution.partitions.entrySet().iterator(); each.hasNext();) {
        Map.Entry one = (Map.Entry) each.next();
        long[] total = (long[]) totals.get(one.getKey());
        if (total == null) {
          if (totals.size() >= KEPT) continue;
          total = new long[Partition.SPENT];
          totals.put(one.getKey(), total);
        }
        for (int k = 0; k < total.length; k++) total[k] += ((Partition) one.getValue()).spent[k];
      }
    }
  }

  private static final class Execution {
    final Stage stage;
    final long batch;
    final int tasks;
    final Map partitions = new HashMap();

    Execution(Stage stage, long batch, int tasks) {
      this.stage = stage;
      this.batch = batch;
      this.tasks = tasks;
    }

    /** Returns the partition of an attempt. What an earlier attempt has spent is not counted. */
    Partition partition(TaskInfo info) {
      // Some partitions only may be computed, and then the index counts these.
      Integer index = Integer.valueOf(info.partitionId() >= 0 ? info.partitionId() : info.index());
      Partition one = new Partition(index.intValue(), info);
      Partition known = (Partition) partitions.get(index);
      // Not a second copy of a slow one, when the first has ended, and not the late end of an earlier attempt.
      if (known != null && (known.isOver() && !one.isOver() || known.attempt > one.attempt)) return one;
      if (known != null || partitions.size() < KEPT) partitions.put(index, one);
      return one;
    }

    /** Returns the time of all partitions and of the longest one, and the rows of all and of the one with most. */
    long[] sums() {
      long now = System.currentTimeMillis();
      long[] found = new long[4];
      for (Iterator each = partitions.values().iterator(); each.hasNext();) {
        Partition one = (Partition) each.next();
        found[0] += one.ms(now);
        found[1] = Math.max(found[1], one.ms(now));
        found[2] += one.spent[Partition.ROWS_IN];
        found[3] = Math.max(found[3], one.spent[Partition.ROWS_IN]);
      }
      return found;
    }
  }

  private static final class Partition {
    static final int MS = 0;
    static final int ROWS_IN = 1;
    static final int ROWS_OUT = 2;
    static final int BYTES_IN = 3;
    static final int BYTES_OUT = 4;
    static final int SPENT = 5;

    final int index;
    final String host;
    final String executor;
    final int attempt;
    final String status;
    final long started;
    final long[] spent = new long[SPENT];

    Partition(int index, TaskInfo info) {
      this.index = index;
      this.host = info.host();
      this.executor = info.executorId();
      this.attempt = info.attemptNumber();
      this.status = info.status();
      this.started = info.launchTime();
    }

    boolean isOver() {
      return status.equals("SUCCESS");
    }

    /** Returns its time; of one that runs, its time so far. */
    long ms(long now) {
      return status.equals("RUNNING") ? Math.max(0, now - started) : spent[MS];
    }
  }

  private static final class Longest implements Comparator {
    private final long now;

    Longest(long now) {
      this.now = now;
    }

    public int compare(Object a, Object b) {
      int byTime = Long.compare(((Partition) b).ms(now), ((Partition) a).ms(now));
      return byTime != 0 ? byTime : ((Partition) a).index - ((Partition) b).index;
    }
  }
}
