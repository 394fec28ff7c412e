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

/** Changes Spark's table of open state stores, under the lock that Spark itself uses for it. */
public final class StateStores {
  private static final Object STORES = StateStore$.MODULE$;
  private static final Method COORDINATOR = method("coordinatorRef", new Class[0]);
  private static final Method REPORT =
      method("reportActiveStoreInstance", new Class[] {StateStoreProviderId.class, Seq.class});

  private StateStores() {}

  /**
   * Assigns the open stores of one query run to another run. Returns how many there were.
   *
   * Maintenance closes a store if Spark's coordinator does not know its run as active. So each store is reported to the
   * coordinator under the new run before it moves. Stores that maintenance has already taken out of the table stay with
   * it. A store also uses the run's id when it reports its commits and uploads: so the id in the store is changed, too.
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

  /** Makes the coordinator forget a run that has no store any more. */
  public static void forget(UUID run) throws Exception {
    scala.Option coordinator = (scala.Option) COORDINATOR.invoke(STORES, new Object[0]);
    if (coordinator.isDefined()) ((StateStoreCoordinatorRef) coordinator.get()).deactivateInstances(run);
  }

  /** Returns a private method of Spark's StateStore, made accessible. */
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
