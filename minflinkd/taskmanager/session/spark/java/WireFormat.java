package org.minflinkd;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.Serializable;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.avro.LogicalType;
import org.apache.avro.LogicalTypes;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.spark.sql.avro.AvroDeserializer;
import org.apache.spark.sql.avro.SchemaConverters;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Reads what was written with a Schema Registry: a byte 0, the id of the writer's schema, and Avro.
 *
 * Each record has the schema of its writer. Avro resolves it to the one schema that the job reads with, and Spark's own
 * conversion makes a row of that. What cannot be read is told as an error beside the row: it is the job that decides
 * what becomes of it. Errors of the registry are thrown.
 */
public final class WireFormat implements Serializable {
  private static final int HEAD = 5; // bytes before the data
  private static final int LONGEST = 500; // characters of an error
  private static final String CORRECTED = "CORRECTED"; // dates before 1582 are as Avro defines them
  private static final int DEEPEST = 200; // types in types, in a writer's schema

  private final SchemaRegistry registry;
  private final String schema;
  private transient Schema reader;
  private transient Schema numbers;
  private transient AvroDeserializer rows;
  private transient Map writers; // id -> GenericDatumReader, or what is wrong with the schema

  public WireFormat(SchemaRegistry registry, String schema) {
    this.registry = registry;
    this.schema = schema;
  }

  /** Stands in plans, and must be the same for all that means the same. */
  public String toString() {
    return "avro";
  }

  /** The type of what `decode` returns. Throws what is wrong with the schema. */
  public DataType columnType() {
    return new StructType().add("error", DataTypes.StringType, true).add("read", type(), true);
  }

  private DataType type() {
    return SchemaConverters.toSqlType(asNumbers(), true, "member_", -1).dataType();
  }

  /** The schema without the types that Spark has only on trial, and refuses in queries: times of day, nanoseconds. */
  private Schema asNumbers() {
    JsonNode json;
    try {
      json = new ObjectMapper().readTree(schema);
    } catch (IOException error) {
      throw new IllegalArgumentException("the schema is no JSON");
    }
    leaveOut(json);
    return SchemaRegistry.lenient().parse(json.toString());
  }

  private static void leaveOut(JsonNode json) {
    if (json.isObject() && SchemaRegistry.text(json, "logicalType").matches("time-.*|.*-nanos")) {
      ((ObjectNode) json).remove("logicalType");
    }
    Iterator parts = json.iterator();
    while (parts.hasNext()) leaveOut((JsonNode) parts.next());
  }

  /** Returns a row of what is wrong, or null, and what was read. Throws Away, Refused. */
  public Object decode(byte[] record) {
    Object[] found = new Object[2];
    try {
      found[1] = value(record);
    } catch (SchemaRegistry.Away error) {
      throw error;
    } catch (SchemaRegistry.Refused error) {
      throw error;
    } catch (IOException error) {
      found[0] = said(error);
    } catch (RuntimeException error) { // the registry does not know the schema, or it is none of Avro's
      found[0] = said(error);
    }
    return new GenericInternalRow(found);
  }

  private Object value(byte[] record) throws IOException {
    if (record.length < HEAD || record[0] != 0) {
      throw new IOException("it does not begin with a byte 0 and the id of a schema");
    }
    int id = (record[1] & 255) << 24 | (record[2] & 255) << 16 | (record[3] & 255) << 8 | record[4] & 255;
    GenericDatumReader datum = of(id);
    AvroBytes data = new AvroBytes(record, HEAD);
    try {
      Object read = datum.read(null, data);
      if (!data.isEnd()) throw new IOException("bytes are left after the value");
      return rows.deserialize(read).get();
    } catch (java.io.EOFException error) {
      throw new IOException("it ends too early for the schema " + id);
    } catch (IOException error) {
      throw new IOException("with the schema " + id + ": " + error.getMessage(), error);
    } catch (RuntimeException error) { // Avro and Spark throw any, for what they cannot read
      throw new IOException("with the schema " + id + ": " + error.getMessage(), error);
    }
  }

  private GenericDatumReader of(int id) throws IOException {
    if (writers == null) {
      reader = SchemaRegistry.lenient().parse(schema);
      numbers = asNumbers();
      rows = new AvroDeserializer(numbers, type(), CORRECTED, true, "member_", -1);
      writers = new HashMap();
    }
    Object known = writers.get(Integer.valueOf(id));
    if (known == null) {
      Schema writer = registry.byId(id);
      String conflict = conflict(writer, reader, "", new HashSet(), 0);
      if (conflict == null) known = new GenericDatumReader(writer, numbers);
      else known = "the schema " + id + " does not fit: " + conflict;
      writers.put(Integer.valueOf(id), known);
    }
    if (known instanceof String) throw new IOException((String) known);
    return (GenericDatumReader) known;
  }

  /**
   * Says where two schemas give the same bytes another meaning. Avro's library compares types only: it would read
   * thousandths as hundredths, and microseconds as milliseconds.
   */
  private static String conflict(Schema writer, Schema reader, String path, Set seen, int depth) {
    String pair = System.identityHashCode(writer) + " " + System.identityHashCode(reader);
    if (depth > DEEPEST || !seen.add(pair)) return null; // a type that contains itself
    if (writer.getType() == Schema.Type.UNION) {
      Iterator branches = writer.getTypes().iterator();
      while (branches.hasNext()) {
        String found = conflict((Schema) branches.next(), reader, path, seen, depth + 1);
        if (found != null) return found;
      }
      return null;
    }
    if (reader.getType() == Schema.Type.UNION) {
      Schema branch = branch(writer, reader.getTypes());
      return branch == null ? null : conflict(writer, branch, path, seen, depth + 1);
    }
    if (writer.getType() != reader.getType()) return promoted(writer, reader) ? meant(writer, reader, path) : null;
    if (writer.getType() == Schema.Type.RECORD) {
      Iterator fields = reader.getFields().iterator();
      while (fields.hasNext()) {
        Schema.Field field = (Schema.Field) fields.next();
        Schema.Field written = writer.getField(field.name());
        Iterator aliases = field.aliases().iterator();
        while (written == null && aliases.hasNext()) written = writer.getField((String) aliases.next());
        if (written == null) continue;
        String below = path.isEmpty() ? field.name() : path + "." + field.name();
        String found = conflict(written.schema(), field.schema(), below, seen, depth + 1);
        if (found != null) return found;
      }
      return null;
    }
    if (writer.getType() == Schema.Type.ARRAY) {
      return conflict(writer.getElementType(), reader.getElementType(), path + "[]", seen, depth + 1);
    }
    if (writer.getType() == Schema.Type.MAP) {
      return conflict(writer.getValueType(), reader.getValueType(), path + "{}", seen, depth + 1);
    }
    return meant(writer, reader, path);
  }

  /** The branch of a reader's union that Avro takes for what is written; null if there is none. */
  private static Schema branch(Schema writer, List branches) {
    Schema promoted = null;
    for (int i = 0; i < branches.size(); i++) {
      Schema branch = (Schema) branches.get(i);
      if (branch.getType() == writer.getType()) {
        boolean named = writer.getType() == Schema.Type.RECORD || writer.getType() == Schema.Type.FIXED;
        if (!named || branches.size() <= 2 || branch.getName().equals(writer.getName())) return branch;
      } else if (promoted == null && promoted(writer, branch)) {
        promoted = branch;
      }
    }
    return promoted;
  }

  private static boolean promoted(Schema writer, Schema reader) {
    String types = writer.getType() + " " + reader.getType();
    return types.equals("INT LONG") || types.equals("STRING BYTES") || types.equals("BYTES STRING");
  }

  private static String meant(Schema writer, Schema reader, String path) {
    LogicalType written = writer.getLogicalType();
    LogicalType read = reader.getLogicalType();
    if (read == null || !counts(read.getName())) return null;
    boolean same;
    if (read instanceof LogicalTypes.Decimal) {
      LogicalTypes.Decimal one = (LogicalTypes.Decimal) read;
      same = written instanceof LogicalTypes.Decimal && ((LogicalTypes.Decimal) written).getScale() == one.getScale();
    } else {
      same = written == null || !counts(written.getName()) || written.getName().equals(read.getName());
    }
    String what = path.isEmpty() ? "it" : path;
    return same ? null : what + " is written as " + named(writer) + ", and read as " + named(reader);
  }

  private static boolean counts(String name) {
    return name.equals("decimal") || name.equals("date") || name.contains("time");
  }

  private static String named(Schema schema) {
    LogicalType type = schema.getLogicalType();
    if (type instanceof LogicalTypes.Decimal) {
      LogicalTypes.Decimal decimal = (LogicalTypes.Decimal) type;
      return "decimal(" + decimal.getPrecision() + "," + decimal.getScale() + ")";
    }
    return type == null ? schema.getType().getName() : type.getName();
  }

  private static UTF8String said(Exception error) {
    String text = error.getMessage() == null ? error.toString() : error.getMessage();
    text = text.replaceFirst("^\\[[A-Z_]+\\] ", "").replace('\n', ' ');
    return UTF8String.fromString(text.length() > LONGEST ? text.substring(0, LONGEST) + "..." : text);
  }
}
