package org.minflinkd;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.StateStoreProviderId;

/** What is done to Spark's table of open state stores, under the lock that Spark itself holds for it. */
public final class StateStores {
  private StateStores() {}

  /**
   * Lets the stores of one run of a query be those of another, open as they are; returns how many there were.
   *
   * Maintenance closes a store that it finds under the id of a run that has ended; what it has taken out before stays
   * with it. A store tells Spark of its commits and uploads under the run's id, too.
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
        RocksDBStateStoreProvider provider = (RocksDBStateStoreProvider) providers.remove(before).get();
        Configuration conf =
            provider.org$apache$spark$sql$execution$streaming$state$RocksDBStateStoreProvider$$hadoopConf();
        conf.set(StreamExecution.RUN_ID_KEY(), to.toString());
        own.set(provider, id);
        providers.put(id, provider);
      }
      return handed.size();
    }
  }
}
