package org.minflinkd;

import java.lang.management.BufferPoolMXBean;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryPoolMXBean;
import java.lang.management.MemoryUsage;
import java.lang.management.ThreadInfo;
import java.lang.management.ThreadMXBean;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import org.apache.spark.JobExecutionStatus;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkJobInfo;
import org.apache.spark.SparkStatusTracker;

/** What this JVM's threads do, and what it uses, each in one call. */
public final class JvmView {
  private static final Pattern TASK = Pattern.compile("task (\\d+)\\.\\d+ in stage (\\d+)\\.");

  private static final Pattern WORKS = Pattern.compile("stream execution thread|Executor task");

  private JvmView() {}

  /**
   * Returns the stacks of all threads, in Java's form, separated by a form feed; at most `longest` characters.
   *
   * Those that run queries come first: a JVM that has run for long has more threads than fit.
   */
  public static String dump(int deepest, int longest) {
    ThreadMXBean bean = ManagementFactory.getThreadMXBean();
    ThreadInfo[] threads = bean.dumpAllThreads(false, false, deepest);
    StringBuilder out = new StringBuilder();
    for (int i = 0; i < 2 * threads.length && out.length() < longest; i++) {
      ThreadInfo one = threads[i % threads.length];
      if (one == null || WORKS.matcher(one.getThreadName()).find() != (i < threads.length)) continue;
      out.append('"').append(one.getThreadName()).append("\" Id=").append(one.getThreadId());
      out.append(' ').append(one.getThreadState());
      if (one.getLockName() != null) out.append(" on ").append(one.getLockName());
      if (one.getLockOwnerName() != null) {
        out.append(" owned by \"").append(one.getLockOwnerName()).append("\" Id=").append(one.getLockOwnerId());
      }
      out.append('\n');
      StackTraceElement[] frames = one.getStackTrace();
      for (int k = 0; k < frames.length; k++) out.append("\tat ").append(frames[k].toString()).append('\n');
      out.append("\n\f");
    }
    return out.length() > longest ? out.substring(0, longest) : out.toString();
  }

  /**
   * Samples the threads of one query. Returns a line for each different stack: how often it was seen, whether the
   * thread was runnable, the partition or -1, and the frames from the outermost one on, separated by tabs.
   */
  public static String sample(String run, int samples, int pauseMs, int deepest, int most) throws InterruptedException {
    ThreadMXBean bean = ManagementFactory.getThreadMXBean();
    Map counts = new LinkedHashMap();
    for (int n = 0; n < samples; n++) {
      Set stages = stages(run);
      ThreadInfo[] threads = bean.dumpAllThreads(false, false, deepest);
      for (int i = 0; i < threads.length; i++) {
        ThreadInfo one = threads[i];
        if (one == null || one.getStackTrace().length == 0) continue;
        String name = one.getThreadName();
        String partition = "-1";
        if (name.indexOf(run) < 0) {
          Matcher task = TASK.matcher(name);
          if (!task.find() || !stages.contains(Integer.valueOf(task.group(2)))) continue;
          partition = task.group(1);
        }
        String key = key(one, partition);
        Integer seen = (Integer) counts.get(key);
        if (seen == null && counts.size() >= most) continue;
        counts.put(key, Integer.valueOf(seen == null ? 1 : seen.intValue() + 1));
      }
      Thread.sleep(pauseMs);
    }
    StringBuilder out = new StringBuilder();
    for (Iterator each = counts.entrySet().iterator(); each.hasNext();) {
      Map.Entry one = (Map.Entry) each.next();
      out.append(one.getValue()).append('\t').append(one.getKey()).append('\n');
    }
    return out.toString();
  }

  private static String key(ThreadInfo thread, String partition) {
    Thread.State state = thread.getThreadState();
    boolean runs = state == Thread.State.RUNNABLE || state == Thread.State.NEW;
    StringBuilder out = new StringBuilder(runs ? "1" : "0").append('\t').append(partition);
    StackTraceElement[] frames = thread.getStackTrace();
    for (int k = frames.length - 1; k >= 0; k--) {
      out.append('\t').append(frames[k].getClassName()).append('.').append(frames[k].getMethodName());
      out.append(':').append(frames[k].getLineNumber());
    }
    return out.toString();
  }

  /** Returns the stages of the query's running Spark jobs. A query's jobs are in the group of its run. */
  private static Set stages(String run) {
    Set found = new HashSet();
    SparkStatusTracker tracker = SparkContext.getOrCreate().statusTracker();
    int[] jobs = tracker.getJobIdsForGroup(run);
    for (int i = 0; i < jobs.length; i++) {
      scala.Option info = tracker.getJobInfo(jobs[i]);
      if (info.isEmpty()) continue;
      SparkJobInfo job = (SparkJobInfo) info.get();
      if (job.status() != JobExecutionStatus.RUNNING) continue;
      int[] stages = job.stageIds();
      for (int k = 0; k < stages.length; k++) found.add(Integer.valueOf(stages[k]));
    }
    return found;
  }

  /** Returns what the JVM uses: a line for each figure, its name and value separated by a tab. */
  public static String figures() {
    StringBuilder out = new StringBuilder();
    memory(out, "heap", ManagementFactory.getMemoryMXBean().getHeapMemoryUsage());
    memory(out, "non_heap", ManagementFactory.getMemoryMXBean().getNonHeapMemoryUsage());
    for (Iterator each = ManagementFactory.getMemoryPoolMXBeans().iterator(); each.hasNext();) {
      MemoryPoolMXBean pool = (MemoryPoolMXBean) each.next();
      if (pool.getName().equals("Metaspace")) memory(out, "metaspace", pool.getUsage());
    }
    for (Iterator each = ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class).iterator(); each.hasNext();) {
      BufferPoolMXBean pool = (BufferPoolMXBean) each.next();
      if (!pool.getName().equals("direct") && !pool.getName().equals("mapped")) continue;
      line(out, pool.getName() + ".count", pool.getCount());
      line(out, pool.getName() + ".used_bytes", pool.getMemoryUsed());
      line(out, pool.getName() + ".capacity_bytes", pool.getTotalCapacity());
    }
    for (Iterator each = ManagementFactory.getGarbageCollectorMXBeans().iterator(); each.hasNext();) {
      GarbageCollectorMXBean collector = (GarbageCollectorMXBean) each.next();
      String name = "gc." + collector.getName().replace(' ', '_');
      line(out, name + ".count", collector.getCollectionCount());
      line(out, name + ".time_ms", collector.getCollectionTime());
    }
    line(out, "classes.loaded", ManagementFactory.getClassLoadingMXBean().getTotalLoadedClassCount());
    line(out, "classes.unloaded", ManagementFactory.getClassLoadingMXBean().getUnloadedClassCount());
    return out.toString();
  }

  private static void memory(StringBuilder out, String name, MemoryUsage usage) {
    line(out, name + ".used_bytes", usage.getUsed());
    line(out, name + ".committed_bytes", usage.getCommitted());
    line(out, name + ".max_bytes", usage.getMax());
  }

  private static void line(StringBuilder out, String name, long value) {
    out.append(name).append('\t').append(value).append('\n');
  }
}
