package org.minflinkd;

import java.time.Duration;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;

/** Asks the brokers where partitions end. `settings`: of Kafka's client, as query/pending.py has them. */
public final class KafkaEnds {
  private final AdminClient admin;
  private final ListOffsetsOptions options;
  private final long timeout; // in milliseconds

  public KafkaEnds(Map settings, long timeout) {
    this.timeout = timeout;
    boolean committed = "read_committed".equals(settings.get("isolation.level"));
    options = new ListOffsetsOptions(committed ? IsolationLevel.READ_COMMITTED : IsolationLevel.READ_UNCOMMITTED);
    options.timeoutMs(Integer.valueOf((int) timeout));
    Properties own = new Properties();
    own.putAll(settings);
    // Kafka looks for the classes that its settings name among those of the thread. The connector may be elsewhere.
    ClassLoader before = Thread.currentThread().getContextClassLoader();
    Thread.currentThread().setContextClassLoader(AdminClient.class.getClassLoader());
    try {
      admin = AdminClient.create(own);
    } finally {
      Thread.currentThread().setContextClassLoader(before);
    }
  }

  /**
   * The offset after the last record of each partition, one a line: topic, partition and offset, with tabs between them.
   *
   * `partitions`: a line for each, with topic and partition. Those of a topic that is gone are left out. If one has no
   * leader, or is gone from its topic, it throws a TimeoutException.
   */
  public String ends(String partitions) throws Exception {
    Map asked = new HashMap();
    String[] lines = partitions.split("\n");
    for (int i = 0; i < lines.length; i++) {
      String[] parts = lines[i].split("\t");
      asked.put(new TopicPartition(parts[0], Integer.parseInt(parts[1])), OffsetSpec.latest());
    }
    ListOffsetsResult found = admin.listOffsets(asked, options);
    StringBuilder ends = new StringBuilder();
    for (Iterator all = asked.keySet().iterator(); all.hasNext(); ) {
      TopicPartition one = (TopicPartition) all.next();
      ListOffsetsResult.ListOffsetsResultInfo end;
      try {
        end = (ListOffsetsResult.ListOffsetsResultInfo) found.partitionResult(one).get(timeout, TimeUnit.MILLISECONDS);
      } catch (ExecutionException error) {
        if (error.getCause() instanceof org.apache.kafka.common.errors.UnknownTopicOrPartitionException) continue;
        throw error;
      }
      ends.append(one.topic()).append('\t').append(one.partition()).append('\t').append(end.offset()).append('\n');
    }
    return ends.toString();
  }

  public void close() {
    admin.close(Duration.ZERO);
  }
}
