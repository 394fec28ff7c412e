package org.minflinkd;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.Serializable;
import java.nio.ByteBuffer;

import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.spark.sql.avro.AvroSerializer;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;

/**
 * Writes what `WireFormat` reads: a byte 0, the id of the schema, and Avro. Spark's own conversion makes Avro's values.
 */
public final class WireEncoder implements Serializable {
  private final String schema;
  private final int id;
  private final DataType type;
  private transient AvroSerializer values;
  private transient GenericDatumWriter writer;

  /** Type: of the column, which has to fit the schema. Throws why it does not. */
  public WireEncoder(String schema, int id, DataType type) {
    this.schema = schema;
    this.id = id;
    this.type = type;
    begin();
  }

  /** Stands in plans, and must be the same for all that means the same. */
  public String toString() {
    return "avro";
  }

  private void begin() {
    Schema parsed = SchemaRegistry.lenient().parse(schema);
    values = new AvroSerializer(type, parsed, false);
    writer = new GenericDatumWriter(parsed);
  }

  /** Row: of one column. Returns null for null, which Kafka takes for a deleted key. */
  public byte[] encode(InternalRow row) throws IOException {
    if (row.isNullAt(0)) return null;
    if (values == null) begin();
    ByteArrayOutputStream record = new ByteArrayOutputStream(256);
    record.write(0);
    record.write(ByteBuffer.allocate(4).putInt(id).array());
    BinaryEncoder out = EncoderFactory.get().directBinaryEncoder(record, null);
    try {
      writer.write(values.serialize(row.get(0, type)), out);
    } catch (RuntimeException error) { // Avro and Spark throw any
      throw new IllegalArgumentException("a row for Kafka does not fit its schema: " + error.getMessage(), error);
    }
    out.flush();
    return record.toByteArray();
  }
}
