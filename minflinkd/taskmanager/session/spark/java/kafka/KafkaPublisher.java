package org.minflinkd;

import java.io.BufferedInputStream;
import java.io.FileInputStream;
import java.io.InputStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes records in Kafka transactions, each with a mark that says what has been written so far.
 *
 * The mark is an offset of a consumer group that has the name of the transactional id, and nobody consumes with it.
 * `id`, `settings` and the marks are those of sinks/kafka.py, which decides what is written.
 */
public final class KafkaPublisher {
  private final Map settings;
  private final String id;
  private final long timeout; // in milliseconds, for the marks
  private final KafkaProducer producer;
  private final List sent = new ArrayList();

  /** Fences every other producer with this id, and aborts what it has left open: only then can the marks be trusted. */
  public KafkaPublisher(Map settings, String id, long timeout) {
    this.settings = settings;
    this.id = id;
    this.timeout = timeout;
    Properties own = new Properties();
    own.putAll(settings);
    own.put("transactional.id", id);
    own.put("key.serializer", ByteArraySerializer.class);
    own.put("value.serializer", ByteArraySerializer.class);
    ClassLoader before = useOwnClasses();
    try {
      producer = new KafkaProducer(own);
    } finally {
      Thread.currentThread().setContextClassLoader(before);
    }
    try {
      producer.initTransactions();
    } catch (RuntimeException error) {
      producer.close(Duration.ZERO);
      throw error;
    }
  }

  /** Kafka looks for the classes that its settings name among those of the thread. The connector may be elsewhere. */
  private static ClassLoader useOwnClasses() {
    ClassLoader before = Thread.currentThread().getContextClassLoader();
    Thread.currentThread().setContextClassLoader(KafkaProducer.class.getClassLoader());
    return before;
  }

  /**
   * The marks of all topics, one a line.
   *
   * `topic` may be null. The broker says only of partitions that it is asked for that a first mark is about to be there.
   */
  public String marks(String topic) throws Exception {
    Properties own = new Properties();
    own.putAll(settings);
    own.keySet().retainAll(AdminClientConfig.configNames());
    ClassLoader before = useOwnClasses();
    AdminClient admin;
    try {
      admin = AdminClient.create(own);
    } finally {
      Thread.currentThread().setContextClassLoader(before);
    }
    try {
      ListConsumerGroupOffsetsOptions options = new ListConsumerGroupOffsetsOptions().requireStable(true);
      if (topic != null) {
        List named = Collections.singletonList(new TopicPartition(topic, 0));
        Map asked = Collections.singletonMap(id, new ListConsumerGroupOffsetsSpec().topicPartitions(named));
        admin.listConsumerGroupOffsets(asked, options).partitionsToOffsetAndMetadata(id)
            .get(timeout, TimeUnit.MILLISECONDS);
      }
      Map found = (Map) admin.listConsumerGroupOffsets(id, options).partitionsToOffsetAndMetadata()
          .get(timeout, TimeUnit.MILLISECONDS);
      StringBuilder lines = new StringBuilder();
      for (Iterator all = found.values().iterator(); all.hasNext(); ) {
        OffsetAndMetadata offset = (OffsetAndMetadata) all.next();
        if (offset != null) lines.append(offset.metadata()).append('\n');
      }
      return lines.toString();
    } finally {
      admin.close(Duration.ZERO);
    }
  }

  public void begin() {
    sent.clear();
    producer.beginTransaction();
  }

  /** Sends the rows of a file in Arrow's stream format, in their order. Returns the topic of the first one. */
  public String send(String path) throws Exception {
    BufferAllocator allocator = new RootAllocator();
    InputStream file = new BufferedInputStream(new FileInputStream(path), 1 << 20);
    ArrowStreamReader reader = new ArrowStreamReader(file, allocator);
    String first = null;
    try {
      VectorSchemaRoot root = reader.getVectorSchemaRoot();
      while (reader.loadNextBatch()) {
        VarCharVector topics = (VarCharVector) root.getVector("topic");
        if (first == null && root.getRowCount() > 0) first = topics.getObject(0).toString();
        IntVector partitions = (IntVector) root.getVector("partition");
        VarBinaryVector keys = (VarBinaryVector) root.getVector("key");
        VarBinaryVector values = (VarBinaryVector) root.getVector("value");
        FieldVector headers = root.getVector("headers");
        for (int row = 0; row < root.getRowCount(); row++) {
          Integer partition = partitions == null || partitions.isNull(row) ? null : Integer.valueOf(partitions.get(row));
          byte[] key = keys == null || keys.isNull(row) ? null : keys.get(row);
          byte[] value = values.isNull(row) ? null : values.get(row);
          String topic = topics.getObject(row).toString();
          List own = headers == null ? Collections.EMPTY_LIST : headersOf((ListVector) headers, row);
          Future record = producer.send(new ProducerRecord(topic, partition, key, value, own));
          // One that cannot be sent, e.g. to a topic that does not exist, has waited for max.block.ms. The next would, too.
          if (record.isDone()) record.get();
          else sent.add(record);
        }
        forgetSent();
      }
    } finally {
      reader.close();
      allocator.close();
    }
    return first;
  }

  /** Commits what was sent, and the mark with it. Throws what kept a record from being written. */
  public void commit(String topic, long checkpoint, String mark) throws Exception {
    producer.flush();
    for (int i = 0; i < sent.size(); i++) ((Future) sent.get(i)).get();
    sent.clear();
    Map offsets = new HashMap();
    offsets.put(new TopicPartition(topic, 0), new OffsetAndMetadata(checkpoint, mark));
    producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(id));
    producer.commitTransaction();
  }

  /**
   * Ends at once, also what another thread waits for.
   *
   * What is not committed will be aborted by the next producer with this id, or by the broker.
   */
  public void close() {
    producer.close(Duration.ZERO);
  }

  /** Throws the error of a record that could not be written, and forgets those that were. */
  private void forgetSent() throws Exception {
    int done = 0;
    while (done < sent.size() && ((Future) sent.get(done)).isDone()) ((Future) sent.get(done++)).get();
    sent.subList(0, done).clear();
  }

  private static List headersOf(ListVector lists, int row) {
    List found = new ArrayList();
    if (lists.isNull(row)) return found;
    StructVector each = (StructVector) lists.getDataVector();
    VarCharVector keys = (VarCharVector) each.getChild("key");
    VarBinaryVector values = (VarBinaryVector) each.getChild("value");
    for (int i = lists.getElementStartIndex(row); i < lists.getElementEndIndex(row); i++) {
      byte[] value = values.isNull(i) ? null : values.get(i);
      found.add(new RecordHeader(keys.getObject(i).toString(), value));
    }
    return found;
  }
}
