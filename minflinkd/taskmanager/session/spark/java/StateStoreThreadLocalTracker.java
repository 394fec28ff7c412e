package org.apache.spark.sql.execution.streaming.state;

import scala.Option;

/**
 * Hides Spark's own class of this name, as this one comes first on the class path.
 *
 * An aggregate opens its state store twice, for reading and then for writing. Spark passes the first one to the second
 * in a thread-local variable, and Spark 4.3 leaves it there until the task ends. Another stateful operator in the same
 * task, such as transformWithState by the keys of a session window, then takes the aggregate's store for its own and
 * fails: "Can only upgrade readStore to writeStore with the same stateStoreId". Here a store is handed out only once.
 */
public final class StateStoreThreadLocalTracker$ {
  public static final StateStoreThreadLocalTracker$ MODULE$ = new StateStoreThreadLocalTracker$();

  private final ThreadLocal opened = new ThreadLocal();

  private StateStoreThreadLocalTracker$() {}

  public void setStore(ReadStateStore store) {
    opened.set(store);
  }

  public Option getStore() {
    Object store = opened.get();
    opened.remove();
    return Option.apply(store);
  }

  public void clearStore() {
    opened.remove();
  }
}
