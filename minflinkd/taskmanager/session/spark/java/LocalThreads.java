package org.minflinkd;

import java.lang.reflect.Field;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;

import org.apache.spark.SparkContext;
import org.apache.spark.rpc.RpcEndpointRef;
import org.apache.spark.scheduler.local.KillTask;
import org.apache.spark.scheduler.local.LocalEndpoint;
import org.apache.spark.scheduler.local.LocalSchedulerBackend;
import org.apache.spark.scheduler.local.ReviveOffers$;

/**
 * More threads for Spark tasks in `local[N]`, as long as they are needed.
 *
 * The tasks of a query in real-time mode all run at once, and for as long as the query does. With the N threads of the
 * session alone, they would keep other queries from running, or Spark would refuse them as too many. So such a query
 * brings its own threads. Most of the time they wait for rows.
 *
 * The number of free threads belongs to the endpoint of Spark's local scheduler, which changes it while it handles a
 * message. So it is changed in a message, too: one to kill a task that does not exist, of which the endpoint asks the
 * reason.
 */
public final class LocalThreads {
  private static final long NO_TASK = -1L;
  private static final int MANY = 1 << 20;
  private static final Map needs = new HashMap(); // owner -> threads

  private LocalThreads() {}

  /** Sets how many threads an owner needs in addition to N; 0: none any more. Tasks may start on them from now on. */
  public static synchronized void need(LocalSchedulerBackend backend, String owner, int threads)
      throws ReflectiveOperationException {
    Integer before = (Integer) needs.get(owner);
    final int more = threads - (before == null ? 0 : before.intValue());
    if (more == 0) return;
    if (threads == 0) needs.remove(owner);
    else needs.put(owner, Integer.valueOf(threads));
    dropLimit(backend);
    RpcEndpointRef ref = (RpcEndpointRef) get(LocalSchedulerBackend.class, backend, "localEndpoint");
    ref.send(new Change(endpoint(ref), more));
    ref.send(ReviveOffers$.MODULE$);
  }

  /**
   * Lets Spark accept stages that have more tasks than there are free threads at the moment. Otherwise it would refuse
   * them while tasks of others, which end soon, are on some of the threads.
   */
  private static void dropLimit(LocalSchedulerBackend backend) throws ReflectiveOperationException {
    Field total = LocalSchedulerBackend.class.getDeclaredField("totalCores");
    total.setAccessible(true);
    int before = total.getInt(backend);
    if (before >= MANY) return;
    // Without this, by default data frames would have as many partitions. The backend's own settings are a copy, in
    // which nobody looks for it.
    SparkContext.getOrCreate().conf().setIfMissing("spark.default.parallelism", String.valueOf(before));
    total.setInt(backend, MANY);
  }

  private static LocalEndpoint endpoint(RpcEndpointRef ref) throws ReflectiveOperationException {
    Object env = get(ref.getClass(), ref, "nettyEnv");
    Object dispatcher = get(env.getClass(), env, "dispatcher");
    Map endpoints = (Map) get(dispatcher.getClass(), dispatcher, "endpointRefs");
    for (Iterator each = endpoints.keySet().iterator(); each.hasNext(); ) {
      Object one = each.next();
      if (one instanceof LocalEndpoint) return (LocalEndpoint) one;
    }
    throw new NoSuchFieldException("Spark's local scheduler has no endpoint");
  }

  private static Object get(Class kind, Object of, String name) throws ReflectiveOperationException {
    Field field = kind.getDeclaredField(name);
    field.setAccessible(true);
    return field.get(of);
  }

  /** Changes the number of free threads when the endpoint handles it, on the endpoint's thread. */
  public static final class Change extends KillTask {
    private final LocalEndpoint endpoint;
    private final int more;
    private boolean done = false; // whoever shows this message asks for the reason, too

    Change(LocalEndpoint endpoint, int more) {
      super(NO_TASK, false, "");
      this.endpoint = endpoint;
      this.more = more;
    }

    public String reason() {
      if (done) return "";
      done = true;
      scala.math.BigDecimal free = endpoint.org$apache$spark$scheduler$local$LocalEndpoint$$freeCores();
      endpoint.org$apache$spark$scheduler$local$LocalEndpoint$$freeCores_$eq(
          free.$plus(scala.math.BigDecimal$.MODULE$.int2bigDecimal(more)));
      return "";
    }
  }
}
