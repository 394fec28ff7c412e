package org.minflinkd;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.StateStore$;
import org.apache.spark.sql.execution.streaming.state.StateStoreCoordinatorRef;
import org.apache.spark.sql.execution.streaming.state.StateStoreProviderId;
import scala.collection.immutable.Seq;

/** What is done to Spark's table of open state stores, under the lock that Spark itself holds for it. */
public final class StateStores {
  private static final Object STORES = StateStore$.MODULE$;
  private static final Method COORDINATOR = method("coordinatorRef", new Class[0]);
  private static final Method REPORT =
      method("reportActiveStoreInstance", new Class[] {StateStoreProviderId.class, Seq.class});

  private StateStores() {}

  /**
   * Lets the stores of one run of a query be those of another, open as they are; returns how many there were.
   *
   * Maintenance closes a store of a run that Spark's coordinator does not know to be active, as one that has ended; what
   * it has taken out before stays with it. A store tells of its commits and uploads under the run's id, too.
   */
  public static int handOver(scala.collection.mutable.HashMap providers, UUID from, UUID to) throws Exception {
    Field own = RocksDBStateStoreProvider.class.getDeclaredField("stateStoreProviderId");
    own.setAccessible(true);
    synchronized (providers) {
      List handed = new ArrayList();
      scala.collection.Iterator ids = providers.keysIterator();
      while (ids.hasNext()) {
        StateStoreProviderId id = (StateStoreProviderId) ids.next();
        boolean known = providers.get(id).get() instanceof RocksDBStateStoreProvider;
        if (known && id.queryRunId().equals(from)) handed.add(id);
      }
      for (int i = 0; i < handed.size(); i++) {
        StateStoreProviderId before = (StateStoreProviderId) handed.get(i);
        StateStoreProviderId id = new StateStoreProviderId(before.storeId(), to);
        RocksDBStateStoreProvider provider = (RocksDBStateStoreProvider) providers.get(before).get();
        Configuration conf =
            provider.org$apache$spark$sql$execution$streaming$state$RocksDBStateStoreProvider$$hadoopConf();
        REPORT.invoke(STORES, new Object[] {id, scala.collection.immutable.Nil$.MODULE$});
        conf.set(StreamExecution.RUN_ID_KEY(), to.toString());
        own.set(provider, id);
        providers.remove(before);
        providers.put(id, provider);
      }
      return handed.size();
    }
  }

  /** Lets the coordinator forget a run that has no store any more. */
  public static void forget(UUID run) throws Exception {
    scala.Option coordinator = (scala.Option) COORDINATOR.invoke(STORES, new Object[0]);
    if (coordinator.isDefined()) ((StateStoreCoordinatorRef) coordinator.get()).deactivateInstances(run);
  }

  /** A private method of Spark's StateStore. */
  private static Method method(String name, Class[] parameters) {
    try {
      Method found = STORES.getClass().getDeclaredMethod(name, parameters);
      found.setAccessible(true);
      return found;
    } catch (NoSuchMethodException error) {
      throw new IllegalStateException("this is not the Spark that minflinkd knows: " + error, error);
    }
  }
}
